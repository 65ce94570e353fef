"""Recipes and command lines: what is wrong is named, with exit code 2 and no traceback."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.commands import call
from tests.helpers.grammars import KEYS, junk, numbers, tokens, toml, words

import splinenets
from splinenets.training.draft import load_recipe, recipe_names
from splinenets.training.loop import learning_rate
from splinenets.training.recipe import Recipe, parse_override, recipe_types
from splinenets.training.values import from_text


@pytest.mark.parametrize("name", ["demo", "mnist-lenet", "fashion-lenet", "cifar10-lenet", "cifar10-resnet"])
@pytest.mark.parametrize("schedule", ["fast", "paper"])
def test_shipped_recipes(name, schedule):
    assert name in recipe_names()
    recipe = load_recipe(name, schedule)
    assert recipe.spec is not None
    assert (recipe.bins, recipe.bin_slope, recipe.momentum) == (50, 100, 0.9)
    if schedule == "paper":
        assert (recipe.batch, recipe.learning_rate, recipe.spec.variance, recipe.spec.slope) == (250, 0.3, 0.05, 0.4)
        resnet = recipe.network == "resnet"
        assert recipe.spec.diffusion == (0.875 if resnet else 1)
        assert recipe.utilization == recipe.specialization == (0.05 if resnet else 0.2)
    else:
        assert recipe.anneal == "one-cycle"
        assert recipe.weight_decay > 0


def test_recipe_round_trip():
    recipe = load_recipe("cifar10-resnet", "paper", ["drops=0.2,0.9", "full_gradient=yes"], model="static", seed=3)
    assert (recipe.drops, recipe.full_gradient, recipe.model, recipe.seed) == ((0.2, 0.9), True, "static", 3)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe


def test_recipes_and_runs_of_earlier_versions_keep_the_rate_of_their_knots(tmp_path):
    file = tmp_path / "old.toml"
    file.write_text("knots_rate = 0.03\n[schedule.fast]\nknots_rate = 0.1\n[schedule.slow]\n")
    assert (load_recipe(str(file)).knots, load_recipe(str(file)).knots_share) == ("at 0.1", 0.1)
    assert load_recipe(str(file), "slow").knots == "at 0.03"
    assert load_recipe("cifar10-resnet").knots_share is None
    today = Recipe(name="r").as_dict()
    before = {key: value for key, value in today.items() if key != "knots"}
    assert Recipe.stored(today, "r").knots == "balanced"
    assert Recipe.stored(before, "r").knots == "at 1"  # older than the key
    assert Recipe.stored({**before, "knots_rate": 0.1}, "r").knots == "at 0.1"
    assert Recipe(name="r").change_since(before, "r") == ("knots", "at 1", "balanced")


def test_the_recipe_of_air():
    recipe = load_recipe("cifar10-air", overrides=["widths=8,16,16"])
    assert (recipe.network_name, recipe.spec.knots, recipe.augment) == ("air8-16-16", 2, "shift-flip")
    with pytest.raises(ValueError, match=r"widths must be 3 numbers between 1 and 1,024"):
        load_recipe("cifar10-air", overrides=["widths=8,16"])


def test_model_overrules_spline_options():
    assert load_recipe("cifar10-resnet", "paper", model="D(5)-C-R3 diffusion=0.5").spec.diffusion == 0.5
    assert load_recipe("cifar10-resnet", "paper", model="D(5)-C-R3").spec.diffusion == 0.875


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmo"], "unknown recipe 'dmo', did you mean 'demo'?"),
        (["nowhere.toml"], "there is no recipe file 'nowhere.toml'"),
        (["demo", "--set", "epoch=3"], "unknown key 'epoch', did you mean 'epochs'?"),
        (["demo", "--set", "epochs"], "--set needs key=value, such as --set epochs=3, got 'epochs'"),
        (["demo", "--set", "epochs=two"], "epochs must be a whole number, got 'two'"),
        (["demo", "--set", "epochs=0"], "epochs must lie between 1 and 100,000, got 0"),
        (["demo", "--set", "full_gradient=perhaps"], "full_gradient must be true or false, got 'perhaps'"),
        (["demo", "--set", "learning_rate=nan"], "learning_rate must lie between 0 and 1,000, got nan"),
        (["demo", "--set", "drops=0.7,0.3"], "drops must be shares of the steps"),
        (["demo", "--set", "network=vgg"], "unknown network 'vgg', choose from lenet, resnet, air"),
        (["demo", "--set", "knots=fast"], "knots must be 'balanced' or 'at' a share of the rate, such as 'at 0.1'"),
        (["demo", "--set", "optimizer=adam"], "unknown optimizer 'adam', choose from sgd, nesterov, adamw, muon"),
        (["demo", "--set", "data=imagenet"], "unknown data 'imagenet', choose from"),
        (["demo", "--set", "augment=mixup"], "augment: unknown augmentation 'mixup'"),
        (["demo", "--set", "network=resnet", "--set", "depth=33"], "depth of a ResNet must be 6n + 2"),
        (["demo", "--set", "name=x"], "name is the recipe's own"),
        (["demo", "--model", "H(5)"], "model: cannot read the spec 'H(5)'"),
        (["demo", "--model", "D(5)-D-G7"], "G7 asks for 7 splines, which do not divide"),
        (["demo", "--model", "D(1000000000)-C-R3"], "knots must be a whole number from 2 to 1024"),
        (["demo", "--model", "D(99999999999999999999)-C-R3"], "got 99999999999999999999"),
        (["demo", "--model", "D(300)-C-R3 degree=299"], "degree must be a whole number from 0 to 20"),
        (["demo", "--model", "D(5)-C-R3 dims=1000000000"], "dims must be a whole number from 1 to 16"),
        (["demo", "--model", "D(5)-C-R3 slope=1e300"], "slope must be a number from"),
        (["demo", "--model", "D(5)-C-R3 variance=1e38"], "variance must be a number from"),
        (["demo", "--model", "D(1024)-C-R3 dims=16", "--set", "width=1024"], "GB of memory, and this machine has"),
        (["demo", "--set", "bins=1000000000"], "bins must lie between 2 and 1,000, got 1000000000"),
        (["demo", "--set", "plain=conv9"], "the pattern 'conv9' fits no layer"),
        (["demo", "--schedule", "slow"], "has no schedule 'slow'"),
        (["demo", "--tracker", "tensorbord"], "unknown tracker 'tensorbord', did you mean 'tensorboard'?"),
        (["demo", "--set", "data=folder:/nowhere"], "there is no folder /nowhere"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, message, tmp_path):
    code, out, err = call("train", *arguments, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_recipe_with_a_number_that_python_does_not_read(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text(f"bins = {'9' * 10_000}")
    code, _, err = call("train", path, "--show")
    assert code == 2
    assert err.startswith(f"splinenets: {path} is not a TOML file: ")


def test_a_recipe_that_is_nested_too_deeply(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("drops = " + "[" * 100_000)
    code, out, err = call("train", path, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err == f"splinenets: {path} is not a recipe: its values are nested too deeply\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_memory_that_runs_out_is_one_sentence(error, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise error

    monkeypatch.setattr("splinenets.training.train", full)
    code, _, err = call("train", "demo", "--out", tmp_path / "run")
    assert code == 2
    assert err.startswith("splinenets: this machine has not enough memory for that")
    assert err.count("\n") == 1


def test_missing_data_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLINENETS_DATA", str(tmp_path))
    code, _, err = call("train", "mnist-lenet", "--out", tmp_path / "run")
    assert code == 2
    assert "splinenets data get mnist" in err


def test_tracker_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("splinenets.training.journal.get_available_trackers", list)
    code, _, err = call("train", "demo", "--tracker", "tensorboard", "--out", tmp_path / "run")
    assert code == 2
    assert "pip install 'splinenets[tensorboard]'" in err


def test_evaluate_what_is_no_run(tmp_path):
    assert "is not a run" in call("evaluate", tmp_path)[2]
    (tmp_path / "run.json").write_text("{")
    assert "is damaged" in call("evaluate", tmp_path)[2]


@pytest.mark.parametrize("anneal", ["one-cycle", "steps"])
def test_learning_rate(anneal):
    recipe = Recipe(name="r", anneal=anneal, learning_rate=1.0, warmup=0.25, drops=(0.5, 0.75))
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert max(rates) == 1.0
    assert min(rates) >= 0
    assert rates[:25] == sorted(rates[:25])
    assert rates[25:] == sorted(rates[25:], reverse=True)
    assert rates[0] == pytest.approx(0.04)
    assert rates[-1] == pytest.approx(0.01 if anneal == "steps" else 0, abs=2e-3)
    assert [learning_rate(Recipe(name="r", epochs=1, warmup=w), 0, 1) >= 0 for w in (0, 0.9)] == [True, True]


# Generated command lines and recipes

many = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def fine(code, err, *named):
    """Nothing was wrong, or one sentence names what was."""
    assert code in (0, 2)
    if code == 2:
        assert err.strip()
        assert "Traceback" not in err
        assert any(name in err for name in named), (err, named)


@many
@given(key=st.sampled_from(KEYS), value=st.one_of(junk, numbers, words))
def test_generated_values(key, value):
    code, _, err = call("train", "demo", "--show", "--set", f"{key}={value}")
    fine(code, err, key, "model" if key == "spline_options" else key)
    try:  # the parser and the command line agree
        parse_override(f"{key}={value}")
    except ValueError as error:
        assert code == 2
        assert key in str(error)


@many
@given(key=st.one_of(junk, st.sampled_from(KEYS).map(lambda k: k[:-1]), st.sampled_from(KEYS).map(lambda k: k + "s")))
def test_generated_keys(key):
    code, _, err = call("train", "demo", "--show", "--set", f"{key}=1")
    fine(code, err, "unknown key", "--set", *KEYS)


@many
@given(arguments=st.lists(tokens, max_size=5))
def test_generated_command_lines(arguments):
    code, _, err = call("train", "demo", "--show", *arguments)
    fine(code, err, "splinenets: ", "Error", "Usage")


@many
@given(text=toml)
def test_generated_recipes(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "mine.toml"
    path.write_text(text, encoding="utf-8")
    code, _, err = call("train", path, "--show")
    fine(code, err, *KEYS, "unknown key", "schedule", "TOML")


def test_from_text_knows_every_type():
    for name, kind in recipe_types().items():
        default = getattr(Recipe(name="r"), name)
        text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        assert from_text(name, text, kind) == default
    assert from_text("widths", "[8, 16, 16]", tuple[int, ...]) == (8, 16, 16)
    assert from_text("plain", """["conv1", 'dense*']""", tuple[str, ...]) == ("conv1", "dense*")
    with pytest.raises(ValueError, match=r"plain must be a list like .*, got '\[conv1\]'"):
        from_text("plain", "[conv1]", tuple[str, ...])


def test_a_name_that_the_package_does_not_have():
    with pytest.raises(AttributeError, match="module 'splinenets' has no attribute 'trainings'"):
        splinenets.trainings  # noqa: B018


def test_show_starts_nothing(tmp_path):
    code, out, _ = call("train", "demo", "--show", "--out", tmp_path / "run", "--seed", "7")
    assert code == 0
    assert json.loads(out)["seed"] == 7
    assert list(tmp_path.iterdir()) == []


def test_twin_and_spline_start_alike():
    from splinenets.training.build import build_network, load_task

    chosen = [load_recipe("demo", model=model) for model in ("static", "D(5)-D-R3")]
    twin, spline = (build_network(recipe, load_task(recipe)) for recipe in chosen)
    for name, parameter in twin.named_parameters():
        assert torch.equal(parameter, spline.get_parameter(name))
