"""Images of one's own: what nobody has set fits them, says why, and learns."""

import json
from dataclasses import replace

import pytest
from benchmarks.pictures import KINDS, make
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.commands import call
from tests.helpers.runs import recipe as tiny_recipe
from tests.helpers.runs import tiny_task
from tests.helpers.stubs import pictures
from torch import nn

from splinenets.data import load
from splinenets.training import Recipe, draft_recipe, load_recipe, load_run
from splinenets.training.cautions import cautions
from splinenets.training.fitting import BATCHES, EPOCHS, Fitting, Survey


@pytest.fixture
def folder(tmp_path):
    return pictures(tmp_path / "pictures", images=10)


def test_a_folder_with_nothing_set_is_learned(folder, tmp_path):
    """Rows and columns; a network with fewer filters, to be quick."""
    code, out, err = call("train", f"folder:{folder}", "--set", "width=4", "--out", tmp_path / "run")
    assert code == 0, err
    assert "best test accuracy 100.00%" in out
    assert "WARNING" not in "".join(line for line in err.splitlines(keepends=True) if "positions of" not in line)
    assert load_run(tmp_path / "run")[2] == load_recipe(f"folder:{folder}", overrides=["width=4"])


def test_show_says_why(folder):
    code, out, err = call("train", f"folder:{folder}", "--show", "--set", "batch=7", "--set", "clip=2")
    assert code == 0
    shown, draft = json.loads(out), draft_recipe(f"folder:{folder}", overrides=["batch=7", "clip=2"])
    assert (shown["batch"], shown["clip"]) == (7, 2.0)
    assert not {"batch", "clip"} & set(draft.choices)
    chosen = {"network", "model", "image_size", "augment", "epochs", "learning_rate", "anneal"}
    assert chosen <= set(draft.choices)
    for key, choice in draft.choices.items():
        line = next(line for line in err.splitlines() if line.split()[0] == key)
        assert choice.text in line
        assert choice.reason in line
        assert shown[key] == (list(choice.value) if isinstance(choice.value, tuple) else choice.value)


def test_recipes_of_named_data_sets_are_left_alone():
    assert draft_recipe("demo").choices == {}
    assert draft_recipe("cifar10-resnet", "paper", model="static").choices == {}


def test_csv_by_the_command(folder, tmp_path):
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["file,label", *rows]))
    quick = ["--set", "width=2", "--set", "epochs=1"]
    code, _, err = call("train", tmp_path / "list.csv", *quick, "--out", tmp_path / "run")
    assert code == 0, err
    _, task, recipe, _ = load_run(tmp_path / "run")
    assert (recipe.name, recipe.data) == ("list", f"csv:{tmp_path / 'list.csv'}")
    assert len(task.data.train.labels) == 16
    assert call("evaluate", tmp_path / "run")[0] == 0


def test_a_run_goes_on_after_images_were_added(folder, tmp_path):
    words = ["train", f"folder:{folder}", "--set", "width=2", "--set", "epochs=1", "--model", "static"]
    assert call(*words, "--out", tmp_path / "run")[0] == 0
    before = load_run(tmp_path / "run")[2]
    for number in range(50):
        for label in ("class000", "class001"):
            (folder / label / f"more{number}.png").write_bytes((folder / label / "0.png").read_bytes())
    assert load_recipe(f"folder:{folder}", overrides=["width=2", "epochs=1"], model="static") != before
    code, _, err = call(*words, "--out", tmp_path / "run", "--resume")
    assert code == 0, err
    assert load_run(tmp_path / "run")[2] == before
    code, _, err = call(*words, "--set", "epochs=3", "--out", tmp_path / "run", "--resume")
    assert code == 2
    assert "was begun with epochs=" in err


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("folder:{}/nowhere", "there is no folder"),
        ("{}/nowhere.csv", "there is no file"),
        ("{}/pictures", "is a folder: to train on the images in it, say folder:"),
        ("folder:{}/pictures/class000", "must hold one folder for each of at least 2 classes"),
    ],
)
def test_images_that_are_not_there(name, complaint, folder, tmp_path):
    code, out, err = call("train", name.format(tmp_path), "--out", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert complaint in err


surveys = st.builds(
    Survey,
    images=st.integers(1, 10**7),
    classes=st.integers(2, 10**4),
    side=st.integers(1, 10**4),
    channels=st.sampled_from([1, 3]),
)


@settings(max_examples=200, deadline=None)
@given(
    seen=surveys, network=st.sampled_from([None, "lenet", "resnet", "timm:x"]), weights=st.sampled_from(["", "w.pt"])
)
def test_whatever_the_images_the_recipe_is_sound(seen, network, weights):
    said = {"name": "r", "data": "folder:x", "weights": weights} | ({"network": network} if network else {})
    fitting = Fitting(Recipe(**said), said)
    for choose in (fitting.network, fitting.images, fitting.steps):
        choose(seen)
    fitting.splines()
    found = fitting.recipe  # its fields were checked when it was made
    assert Recipe.from_dict(found.as_dict()) == found
    assert min(BATCHES[0], max(seen.images // 2, 1)) <= found.batch <= BATCHES[1]
    assert EPOCHS[0] <= found.epochs <= EPOCHS[1]
    assert found.epochs * -(-seen.images // found.batch) >= min(seen.images, EPOCHS[0])
    assert not set(said) & set(fitting.choices)
    assert (found.augment == "crop-flip") == (seen.channels == 3)
    assert found.image_size <= 224


# Cautions


@pytest.mark.parametrize(
    ("changes", "train", "words"),
    [
        ({"batch": 103, "epochs": 3}, 103, ["3 steps are too few to learn 10 classes", "every epoch is a single step"]),
        ({"network": "resnet", "depth": 8, "batch": 30, "epochs": 3}, 103, ["12 steps are too few for batch norms"]),
        ({"batch": 30, "epochs": 3}, 103, []),
        ({"batch": 1, "epochs": 20}, 2, []),
        ({"batch": 1, "epochs": 20}, 1, ["all training images are of one class", "holds all 1 training images"]),
    ],
)
def test_cautions(changes, train, words):
    recipe = tiny_recipe(**changes)
    net = nn.BatchNorm2d(3) if recipe.network == "resnet" else nn.Linear(2, 2)
    found = list(cautions(recipe, tiny_task(recipe, train=train), net))
    assert len(found) == len(words)
    for sentence, start in zip(found, words, strict=True):
        assert start in sentence


def test_what_can_hardly_learn_is_said_first(folder, tmp_path):
    words = ["train", f"folder:{folder}", "--set", "batch=250", "--set", "epochs=1", "--set", "width=2"]
    code, _, err = call(*words, "--out", tmp_path / "run")
    assert code == 0
    assert "WARNING: 1 steps are too few to learn 2 classes" in err
    assert err.index("WARNING") < err.index("epoch   1")


# The folders of the benchmark


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_folders_are_as_they_are_described(kind, tmp_path):
    counts = tuple(max(count // 10, 2) for count in KINDS[kind].counts[:5])
    data = load(f"folder:{make(kind, tmp_path / 'a', counts)}", size=16)
    assert (data.train.images.shape[1] == 1) == (kind == "grey")
    assert sum(len(split.labels) for split in (data.train, data.test)) == sum(counts)
    again = load(f"folder:{make(kind, tmp_path / 'b', counts)}", size=16)
    other = load(f"folder:{make(kind, tmp_path / 'c', counts, seed=1)}", size=16)
    assert (again.train.images == data.train.images).all()
    assert (other.train.images != data.train.images).any()
    assert replace(again, name=data.name).classes == data.classes
