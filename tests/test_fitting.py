"""Images of one's own: what nobody has set fits them, says why, and learns."""

import json
import warnings
from dataclasses import replace

import pytest
from benchmarks.pictures import KINDS, make
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.commands import call
from tests.helpers.runs import files, tiny_task
from tests.helpers.runs import recipe as tiny_recipe
from tests.helpers.stubs import pictures
from torch import nn

from splinenets.data import load
from splinenets.data.listing import list_images
from splinenets.training import Recipe, checkpoint, draft_recipe, load_recipe, load_run, train
from splinenets.training.build import load_task
from splinenets.training.cautions import cautions
from splinenets.training.fitting import BATCHES, EPOCHS, FEWEST_STEPS, Fitting, Survey


@pytest.fixture
def folder(tmp_path):
    return pictures(tmp_path / "pictures", images=10)


def test_a_folder_with_nothing_set_is_learned(folder, tmp_path):
    """Rows and columns; a network with fewer filters, to be quick."""
    code, out, err = call("train", f"folder:{folder}", "--set", "width=4", "--out", tmp_path / "run")
    assert code == 0, err
    assert "best test accuracy 100.00%" in out
    warned = [line for line in err.splitlines() if "WARNING" in line and "positions of" not in line]
    assert warned == ["WARNING: 4 test images say little: each is 25% of the accuracy"]
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
        line = next(line for line in err.splitlines() if line.startswith(f"{key} "))
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
    counts=st.tuples(st.integers(1, 100), st.integers(100, 10**4)),
    tests=st.integers(1, 10**4),
    own_tests=st.booleans(),
    side=st.integers(1, 10**4),
    channels=st.sampled_from([1, 3]),
)


@settings(max_examples=200, deadline=None)
@given(
    seen=surveys,
    network=st.sampled_from([None, "lenet", "air", "resnet", "timm:x"]),
    weights=st.sampled_from(["", "w.pt"]),
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
    steps = -(-seen.images // found.batch)
    assert EPOCHS[0] <= found.epochs <= 2 * EPOCHS[1]
    assert found.epochs <= EPOCHS[1] or (found.epochs - 1) * steps < FEWEST_STEPS
    assert found.epochs * steps >= min(FEWEST_STEPS, 2 * EPOCHS[1] * steps)
    assert found.epochs * -(-seen.images // found.batch) >= min(seen.images, EPOCHS[0])
    assert not set(said) & set(fitting.choices)
    assert (found.augment == "affine-flip") == (seen.channels == 3)
    if network is None:
        assert found.network == ("resnet" if seen.images >= 5_000 else "air" if seen.classes > 20 else "lenet")
    lean = found.network == "air" and seen.images < 5_000  # as few knots as there can be, and more decay
    assert (found.model == "D(3)-C-R3") == (found.weight_decay == 0.3) == lean
    assert found.image_size <= 224
    assert (found.sampling == "classes") == (seen.counts[1] >= 2 * seen.counts[0])
    assert f"{seen.images:,} training images" in str(seen)


# Unequal classes


@pytest.fixture
def uneven(tmp_path):
    """30 images of one class, 10 of another."""
    folder = pictures(tmp_path / "uneven", images=30)
    for number in range(10, 30):
        (folder / "class001" / f"{number}.png").unlink()
    return folder


def test_classes_with_few_images_are_drawn_as_often(uneven, tmp_path):
    words = ["train", f"folder:{uneven}", "--set", "width=4", "--set", "epochs=6"]
    code, out, err = call(*words, "--out", tmp_path / "run")
    assert code == 0, err
    assert "32 training images, 8 to 24 of each of 2 classes; 8 test images that are held out" in err
    assert "sampling       classes      8 images of the smallest class, 24 of the largest" in err
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    best = max(line["test_balanced_accuracy"] for line in epochs)
    last = epochs[-1]
    shown = f"test accuracy {last['test_accuracy']:.2%}, {last['test_balanced_accuracy']:.2%} balanced"
    assert shown in out
    assert f"best balanced test accuracy {best:.2%}" in out
    assert f"{shown.removeprefix('test ')}  " in err
    code, told, _ = call("evaluate", tmp_path / "run")
    assert code == 0
    assert f"{last['test_balanced_accuracy']:.2%} balanced, loss" in told
    net, task, recipe, _ = load_run(tmp_path / "run")
    assert recipe.sampling == "classes"
    labels = task.data.test.labels
    right = net(*task.show(task.data.test, slice(None))).argmax(1) == labels
    assert last["test_balanced_accuracy"] == float(
        (right[labels == 0].double().mean() + right[labels == 1].double().mean()) / 2
    )


def test_sampling_can_be_set_and_resumes(uneven, tmp_path):
    assert load_recipe(f"folder:{uneven}", overrides=["sampling=images"]).sampling == "images"
    with pytest.raises(ValueError, match="unknown sampling 'all', choose from images, classes"):
        load_recipe(f"folder:{uneven}", overrides=["sampling=all"])
    quick = [
        "width=2",
        "epochs=3",
        "checkpoint_every=1",
        "model=static",
        "keep=100",
        "calibrate=32",
        "precision=float32",
    ]
    chosen = load_recipe(f"folder:{uneven}", overrides=quick)
    train(chosen, tmp_path / "whole")
    whole = files(tmp_path / "whole")
    train(chosen, tmp_path / "cut")
    steps = checkpoint.steps(tmp_path / "cut/checkpoints")
    for step in steps[3:]:
        for file in (tmp_path / "cut/checkpoints").glob(f"{step:08d}.*"):
            file.unlink()
    train(chosen, tmp_path / "cut", resume=True)
    assert files(tmp_path / "cut") == whole


def test_equal_classes_have_no_balanced_accuracy(folder, tmp_path):
    words = ["train", f"folder:{folder}", "--set", "width=2", "--set", "epochs=1", "--out", tmp_path / "run"]
    code, out, err = call(*words)
    assert code == 0
    assert "balanced" not in out + err + (tmp_path / "run/metrics.jsonl").read_text()


def test_broken_files_are_named_and_left_out_if_that_is_chosen(folder, tmp_path):
    (folder / "class000/3.png").write_text("no image")
    (folder / "class001/4.png").write_bytes((folder / "class001/4.png").read_bytes()[:60])
    words = ["train", f"folder:{folder}", "--set", "width=2", "--set", "epochs=1", "--out", tmp_path / "run"]
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert "cannot be read as an image" in err
    assert err.endswith("; broken=skip leaves such files out\n")
    assert not (tmp_path / "run").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = call(*words, "--set", "broken=skip")
    assert code == 0, err
    for name in ("class000/3.png", "class001/4.png"):
        line = next(line for line in err.splitlines() if name in line)
        assert line.startswith("WARNING: ")
        assert line.endswith("; it is left out")


# Cautions


@pytest.mark.parametrize(
    ("changes", "train", "words"),
    [
        ({"batch": 103, "epochs": 3}, 103, ["3 steps are too few to learn 10 classes", "every epoch is a single step"]),
        ({"network": "resnet", "depth": 8, "batch": 30, "epochs": 3}, 103, ["12 steps are too few for batch norms"]),
        ({"batch": 30, "epochs": 3}, 103, []),
        ({"batch": 1, "epochs": 20}, 2, []),
        ({"batch": 30, "epochs": 3, "tests": 19}, 103, ["19 test images say little: each is 5% of the accuracy"]),
        ({"batch": 1, "epochs": 20}, 1, ["all training images are of one class", "holds all 1 training images"]),
    ],
)
def test_cautions(changes, train, words):
    tests = changes.pop("tests", 41)
    recipe = tiny_recipe(**changes)
    net = nn.BatchNorm2d(3) if recipe.network == "resnet" else nn.Linear(2, 2)
    found = list(cautions(recipe, tiny_task(recipe, train=train, test=tests), net))
    assert len(found) == len(words)
    for sentence, start in zip(found, words, strict=True):
        assert start in sentence


def test_what_can_hardly_learn_is_said_first(folder, tmp_path):
    words = ["train", f"folder:{folder}", "--set", "batch=250", "--set", "epochs=1", "--set", "width=2"]
    code, _, err = call(*words, "--out", tmp_path / "run")
    assert code == 0
    assert "WARNING: 1 steps are too few to learn 2 classes" in err
    assert err.index("WARNING") < err.index("epoch   1")


def test_images_that_are_learned_and_tested_on_are_counted(folder, tmp_path):
    recipe = load_recipe(f"folder:{folder}", overrides=["broken=stop"])
    assert not any("pixel by pixel" in caution for caution in cautions(recipe, load_task(recipe), nn.Identity()))
    listing = list_images(f"folder:{folder}")
    for tested, trained in zip(listing.test[:3], listing.train[:3], strict=True):
        trained.path.write_bytes(tested.path.read_bytes())
    found = [caution for caution in cautions(recipe, load_task(recipe), nn.Identity()) if "pixel by pixel" in caution]
    assert found == ["3 of 4 test images are training images too, pixel by pixel, so the accuracy flatters"]
    on_disk = replace(recipe, stream="always")
    assert not any("pixel by pixel" in caution for caution in cautions(on_disk, load_task(on_disk), nn.Identity()))


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
