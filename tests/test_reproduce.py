"""The paper's experiments as data; what is done is skipped, what was cut off goes on, and tables say what is missing."""

import json
import signal
from dataclasses import replace

import pytest
import torch
from tests.helpers.commands import call

from splinenets.commands.reproduce import NAMES
from splinenets.reproduce import EXPERIMENTS, SCALES, collect, draw, find, read_result, record, reuse, table, trials
from splinenets.reproduce.rivals import RIVALS, CondConv, ODConv, rival
from splinenets.training import Stopped, Watcher, load_recipe

SMALL = {"width": 2, "images": 300, "batch": 100, "epochs": 2, "precision": "float32"}


def recipe(**changes):
    return load_recipe("demo", **(SMALL | changes))


class Interrupt(Watcher):
    """Ctrl-C after some steps."""

    def __init__(self, after):
        self.after, self.first = after, None

    def begin(self, step, steps, batch):
        self.first = step

    def step(self, step, loss, accuracy):
        if step == self.after:
            signal.raise_signal(signal.SIGINT)


GRIDS = [(name, scale) for name, e in EXPERIMENTS.items() for scale in SCALES if e.paper or scale != "paper"]


@pytest.mark.parametrize(("name", "scale"), GRIDS)
def test_every_grid_has_its_recipes_and_static_twins(name, scale):
    experiment, grid = find(name), trials(name, scale, seeds=2)
    names = [row.name for row in experiment.rows]
    assert len({trial.name for trial in grid}) == len(grid) == 2 * len(names)
    recipes = {(trial.row.name, trial.recipe.seed): trial.recipe for trial in grid}
    splines = {"model", "plain", "knots", "utilization", "specialization", "calibrate", "told"}
    if not experiment.paper:  # each network has the optimizer that suits it
        splines |= {"optimizer", "learning_rate", "weight_decay", "clip", "epochs", "network", "arguments"}
    for row in experiment.rows:
        if row.twin:
            own, twin = recipes[row.name, 0].as_dict(), recipes[row.twin, 0].as_dict()
            assert twin["model"] == "static"
            assert {key for key in own if own[key] != twin[key]} <= splines
    if scale == "quick":
        assert {trial.recipe.data for trial in grid} == {"embedded"}
    if scale == "paper":
        assert {trial.recipe.knots for trial in grid} == {"at 1"}


def test_seeds_and_rows_can_be_chosen():
    rows = len(EXPERIMENTS["fashion-specialization"].rows)
    assert len(trials("fashion-specialization", "standard")) == 3 * rows
    assert len(trials("fashion-specialization", "quick")) == rows
    chosen = trials("cifar10-lenet", "standard", 2, ["LeNet-32", "D(4)*"])
    assert [t.name for t in chosen] == ["LeNet-32-seed0", "D4-D-R3-seed0", "LeNet-32-seed1", "D4-D-R3-seed1"]


def test_the_help_names_every_experiment():
    assert NAMES.split(", ") == list(EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mist"], "unknown experiment 'mist', did you mean 'mnist'?"),
        (["mnist", "--scale", "quik"], "unknown scale 'quik', did you mean 'quick'?"),
        (["mnist", "--only", "LeNet-64"], "no row of mnist fits 'LeNet-64'"),
        (["mnist", "--seeds", "0"], "seeds must be 1 or more, got 0"),
    ],
)
def test_wrong_words_are_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("reproduce", *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_a_recipe_is_trained_once(tmp_path):
    file, begun = tmp_path / "results/x.json", Interrupt(-1)
    result = record(recipe(), tmp_path / "run", file, "command", begun, layers=["dense1", "conv2"])
    assert begun.first == 0
    assert read_result(file) == result
    assert len(result.epochs) == 2
    assert result.accuracy == result.epochs[-1]["test_accuracy"]
    assert [layer["layer"] for layer in result.layers] == ["conv2", "dense1"]
    assert {key for layer in result.layers for key in layer} == {"layer", "entropy", "information"}
    assert result.threads == 1
    assert result.versions["torch"]
    before, again = file.stat().st_mtime_ns, Interrupt(-1)
    assert record(recipe(), tmp_path / "elsewhere", file, "another", again) == result
    assert again.first is None
    assert file.stat().st_mtime_ns == before
    assert not (tmp_path / "elsewhere").exists()


def test_files_of_before_can_be_read(tmp_path):
    """0.1 wrote all layers, with histograms, and before that no maps."""
    made = record(recipe(epochs=1), tmp_path / "run", tmp_path / "x.json", "", layers=["conv2"])
    old = vars(made) | {"layers": [made.layers[0] | {"verdict": "healthy", "histogram": [1] * 50}]}
    del old["maps"]
    (tmp_path / "old.json").write_text(json.dumps(old, indent=1))
    read = read_result(tmp_path / "old.json")
    assert (read.accuracy, read.seed, read.maps) == (made.accuracy, 0, {})
    assert read.layers[0]["entropy"] == made.layers[0]["entropy"]
    assert record(recipe(epochs=1), tmp_path / "none", tmp_path / "old.json", "") == read


def test_a_training_that_was_cut_off_goes_on(tmp_path):
    whole = record(recipe(), tmp_path / "whole", tmp_path / "whole.json", "")
    with pytest.raises(Stopped):
        record(recipe(), tmp_path / "run", tmp_path / "x.json", "", Interrupt(2))
    assert not (tmp_path / "x.json").exists()
    rest = Interrupt(-1)
    result = record(recipe(), tmp_path / "run", tmp_path / "x.json", "", rest)
    assert rest.first == 3
    assert (result.epochs, result.layers) == (whole.epochs, whole.layers)


def test_a_row_goes_on_from_the_weights_of_another(tmp_path):
    still = {"learning_rate": 1e-9, "epochs": 1}
    plain = record(recipe(model="static"), tmp_path / "plain", tmp_path / "plain.json", "")
    upgraded = recipe(**still, weights="plain")
    result = record(upgraded, tmp_path / "upgraded", tmp_path / "upgraded.json", "")
    fresh = record(recipe(**still), tmp_path / "fresh", tmp_path / "fresh.json", "")
    losses = [each.epochs[-1]["test_loss"] for each in (plain, result, fresh)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)  # it does not move, so it answers as the plain network does
    assert losses[2] != pytest.approx(losses[0], rel=1e-3)
    assert result.recipe["weights"] == "plain"  # and not where that lay
    assert record(upgraded, tmp_path / "elsewhere" / "run", tmp_path / "upgraded.json", "") == result
    with pytest.raises(ValueError, match="there are no weights at"):
        record(upgraded, tmp_path / "elsewhere" / "run", tmp_path / "again.json", "")


def test_every_row_is_trained_after_the_one_whose_weights_it_takes():
    grid = trials("frontier", "quick")
    names = [trial.name for trial in grid]
    starts = [(names.index(trial.recipe.weights), names.index(trial.name)) for trial in grid if trial.recipe.weights]
    assert starts
    assert all(first < then for first, then in starts)


def test_results_of_two_recipes_never_share_a_name(tmp_path):
    record(recipe(epochs=1), tmp_path / "run", tmp_path / "x.json", "")
    with pytest.raises(ValueError, match=r"holds a result with learning_rate=0.1, now learning_rate is 0.2"):
        record(recipe(epochs=1, learning_rate=0.2), tmp_path / "run", tmp_path / "x.json", "")
    (tmp_path / "x.json").write_text('{"recipe": {}}')
    with pytest.raises(ValueError, match="is not a result"):
        record(recipe(epochs=1), tmp_path / "run", tmp_path / "x.json", "")


def test_the_same_network_of_another_experiment_is_not_trained_again(tmp_path):
    wanted, other, one = recipe(epochs=1), tmp_path / "a.json", tmp_path / "b.json"
    record(replace(wanted, seed=1), tmp_path / "one", one, "")
    new = tmp_path / "new/x.json"
    assert reuse(wanted, new, [one]) == new
    record(wanted, tmp_path / "other", other, "")
    assert reuse(wanted, new, [one, other]) == other
    assert reuse(wanted, one, [other]) == one  # a file of its own is its own affair, and `record` will complain
    assert not (tmp_path / "new").exists()


def test_experiments_share_networks_without_copies(tmp_path):
    made = record(recipe(epochs=1), tmp_path / "run", tmp_path / "x.json", "")
    (trial,) = trials("cifar10-resnet-options", "standard", 1, ["D(5)-C-R3"])
    result = replace(made, recipe=trial.recipe.as_dict())
    file = tmp_path / "cifar10-resnet-options/standard/D5-C-R3-seed0.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(vars(result)))
    for name in ("cifar10-resnet-options", "cifar10-resnet-knots"):
        found = collect(name, tmp_path, "standard")
        assert {row: list(results) for row, results in found.items() if results} == {"D(5)-C-R3": [0]}
    assert not any(collect("cifar10-resnet-knots", tmp_path, "quick").values())
    own = tmp_path / "cifar10-resnet-knots/standard/D5-C-R3-seed0.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(vars(replace(result, parameters=7))))
    assert collect("cifar10-resnet-knots", tmp_path, "standard")["D(5)-C-R3"][0].parameters == 7


def test_static_networks_have_no_maps_and_their_figure_is_the_trade_off(tmp_path):
    made = record(recipe(epochs=1, model="static"), tmp_path / "run", tmp_path / "x.json", "", layers=["conv2"])
    assert made.maps == {}
    draw({"LeNet-2": {0: made}, "LeNet-4": {}}, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "LeNet-2" in drawn
    assert "LeNet-4" not in drawn


def test_tables_have_means_spreads_gains_and_gaps(tmp_path):
    experiment = find("mnist")
    made = record(recipe(epochs=1, width=2), tmp_path / "run", tmp_path / "x.json", "")

    def put(name, seed, accuracy):
        last = made.epochs[-1] | {"test_accuracy": accuracy}
        result = replace(made, recipe=made.recipe | {"seed": seed}, epochs=[last])
        file = tmp_path / f"mnist/standard/{name}-seed{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(vars(result)))

    put("LeNet-32-original", 0, 0.990)
    put("LeNet-32-original", 1, 0.992)
    put("H2-D-R3-original", 0, 0.995)
    put("H2-D-R3-original", 1, 0.994)
    *lines, blank, missing = table(experiment, collect("mnist", tmp_path, "standard")).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| LeNet-32, original | 99.52 | 99.10 ± 0.10 |  | 2 | 1 |")
    assert lines[3].startswith("| H(2)-D-R3, original | 99.61 | 99.45 ± 0.05 | +0.35 ± 0.15 (+0.50, +0.20) | 2 | 1 |")
    assert blank == ""
    assert missing == "Not trained: LeNet-32, augmented; H(2)-D-R3, augmented; H(4)-D-R3, augmented."


def test_the_command_trains_skips_and_prints_its_table(tmp_path):
    words = ["reproduce", "utilization", "--scale", "quick", "--only", "B = 2", "--out", tmp_path / "out"]
    words += ["--figure", tmp_path / "figure.svg", "--runs"]
    code, out, err = call(*words, tmp_path / "runs")
    assert code == 0
    assert "Fashion-MNIST, utilization of positions, quick" in out
    assert "| B = 2 | " in out
    assert "Not trained: without regulariser; B = 3; B = 5; B = 50." in out
    assert "1 of 1: B=2-seed0" in err
    result = read_result(tmp_path / "out/utilization/quick/B=2-seed0.json")
    assert list(result.maps) == ["conv2", "dense1"]
    for classes in result.maps.values():
        assert sum(map(sum, classes.values())) == result.test_images
        assert {len(bins) for bins in classes.values()} == {50}
    drawn = (tmp_path / "figure.svg").read_text()
    assert all(words in drawn for words in ("<?xml", "B = 2", "conv2", "dense1", "Ankle boot"))
    assert "B = 3" not in drawn
    code, again, err = call(*words, tmp_path / "runs")
    assert code == 0
    assert again == out
    assert "done before" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick(name, tmp_path):
    code, out, _ = call("reproduce", name, "--scale", "quick", "--out", tmp_path / "out", "--runs", tmp_path / "runs")
    assert code == 0
    assert "Not trained" not in out
    assert len(list((tmp_path / "out" / name / "quick").iterdir())) == len(EXPERIMENTS[name].rows)


@pytest.mark.parametrize("host", ["lenet4", "air4-8-8"])
@pytest.mark.parametrize("kind", RIVALS)
def test_rivals_have_weights_for_each_image(kind, host):
    net, images = rival(kind, host, in_channels=1, image_size=28, classes=10), torch.randn(5, 1, 28, 28)
    for name, parameter in net.named_parameters():
        if name.endswith("knots"):  # those that hand channels on start alike, and no share of equals has a gradient
            torch.nn.init.normal_(parameter, std=0.3)
    net(images).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters() if p.requires_grad)
    with torch.no_grad():
        apart = torch.cat([net.eval()(image) for image in images.split(1)])
        torch.testing.assert_close(net(images), apart, rtol=1e-4, atol=1e-4)


def test_equal_experts_are_one_convolution():
    """Shares of a half, of four experts that are the same, are two of it; a softmax's are one."""
    conv, x = torch.nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 6, 6)
    for kind, times in ((CondConv, 2.0), (ODConv, 1 / 8)):  # ODConv: a half along filters, channels and places
        layer = kind(conv)
        torch.nn.init.zeros_(layer.knots)
        layer.knots.data += conv.weight.flatten(1)
        for linear in (m for m in layer.modules() if isinstance(m, torch.nn.Linear)):
            torch.nn.init.zeros_(linear.weight), torch.nn.init.zeros_(linear.bias)
        expected = torch.nn.functional.conv2d(x, times * conv.weight, conv.bias, padding=1)
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
