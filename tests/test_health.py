import json
import math
import warnings
from functools import cache

import pytest
import torch
from tests.helpers.marks import slow

import splinenets as sn
from splinenets.health_check import PositionWarning, Watch, health

SAMPLES = (100, 250, 1000)


def noise(samples, coordinates, scale):
    return scale * torch.randn(samples, coordinates)


# How positions can be suboptimal: the paper's figure 4, drawn anew for each seed. Each gives epochs, oldest first.


def constant(samples, splines):
    where = torch.rand(1, splines)
    return [(where + noise(samples, splines, 0.01 * torch.rand(()))).clamp(0, 1)] * 2


def saturated(samples, splines):
    share = 0.2 + 0.6 * torch.rand(1, splines)
    side = (torch.rand(samples, splines) < share).double()
    return [(side + noise(samples, splines, 0.02)).clamp(0, 1)]


def two_points(samples, splines):
    low, distance = 0.3 * torch.rand(1, splines), 0.3 + 0.4 * torch.rand(1, splines)
    side = (torch.rand(samples, splines) < 0.5).double()
    return [(low + distance * side + noise(samples, splines, 0.01)).clamp(0, 1)]


def steep(samples, splines):
    return [torch.sigmoid(noise(samples, splines, 12))]


def shifting_slowly(samples, splines):
    start, step = 0.15 + 0.1 * torch.rand(1, splines), 0.06 + 0.04 * torch.rand(())
    return [(start + epoch * step + noise(samples, splines, 0.05)).clamp(0, 1) for epoch in range(6)]


def shifting_back(samples, splines):
    return [1 - epoch for epoch in shifting_slowly(samples, splines)]


def shifting_fast(samples, splines):
    before = 0.2 + noise(samples, splines, 0.03)
    return [(before + 0.3 * epoch).clamp(0, 1) for epoch in range(3)]


def narrow(samples, splines):
    width = 0.1 + 0.2 * torch.rand(1, splines)
    start = torch.rand(1, splines) * (1 - width)
    return [start + width * torch.rand(samples, splines)] * 3


def bell(samples, splines):
    return [(0.5 + noise(samples, splines, 0.07)).clamp(0, 1)]


def five_points(samples, splines):
    return [torch.randint(0, 5, (samples, splines)) / 4]


ILL = {
    "constant": (constant,),
    "binary": (saturated, two_points, steep),
    "shifting": (shifting_slowly, shifting_back, shifting_fast),
    "under-used": (narrow, bell, five_points),
}


def uniform(samples, splines):
    return [torch.rand(samples, splines) for _ in range(4)]


def standardised(samples, splines):
    return [torch.sigmoid(1.7 * torch.randn(samples, splines)) for _ in range(4)]


def wide(samples, splines):
    return [torch.distributions.Beta(2.0, 2.0).sample((samples, splines))]


def alternating(samples, splines):
    return [(torch.rand(samples, splines) * 0.8 + 0.2 * (epoch % 2)) for epoch in range(6)]


def moved_in_the_first_epoch(samples, splines):
    """As networks do when they begin to learn; two epochs do not show a direction."""
    return [torch.rand(samples, splines) * 0.7, 0.3 + torch.rand(samples, splines) * 0.7]


WELL = (uniform, standardised, wide, alternating, moved_in_the_first_epoch)
TIMES = [12, slow(100)]


def judge(draw, seed):
    torch.manual_seed(seed)
    *history, last = draw(SAMPLES[seed % 3], (1, 8)[seed % 2])
    return health({"layer": last}, history=[{"layer": h} for h in history])


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize(("verdict", "draw"), [(v, d) for v, draws in ILL.items() for d in draws])
def test_ill_positions_get_their_verdict_every_time(verdict, draw, times):
    verdicts = [judge(draw, seed)["layer"].verdict for seed in range(times)]
    assert verdicts == [verdict] * times


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("draw", WELL)
def test_healthy_positions_get_no_verdict_any_time(draw, times):
    assert [judge(draw, seed)["layer"].verdict for seed in range(times)] == ["healthy"] * times


@cache
def images():
    return sn.data.load("embedded").train.images.float() / 255


def convolution(seed, slope=None, offset=None):
    """A layer whose projection is made ill on purpose, and its positions on real images."""
    torch.manual_seed(seed)
    batch = images()[seed * 50 : seed * 50 + 300]
    net = sn.convert(torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3, stride=3)), "D(5)-D-R3", example=batch)
    layer = net[0]
    if slope is not None:
        layer.projection.spec = layer.spec.replace(sigmoid_slope=slope)
    if offset is not None:
        layer.projection.running_mean -= offset * layer.projection.running_var.sqrt()
    with torch.no_grad():
        return sn.trace(net.eval(), batch)[1]


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("healthy", {}),
        ("constant", {"slope": 0.01}),
        ("binary", {"slope": 100.0}),
        ("under-used", {"slope": 0.3}),
        ("constant", {"offset": 10}),
    ],
)
@pytest.mark.parametrize("times", TIMES)
def test_networks_made_ill_on_purpose_every_time(verdict, changes, times):
    assert [health(convolution(seed, **changes))["0"].verdict for seed in range(times)] == [verdict] * times


@pytest.mark.parametrize("times", TIMES)
def test_networks_made_to_shift_every_time(times):
    for seed in range(times):
        history = [convolution(seed, slope=0.5, offset=o) for o in (-2, -1, 0, 1, 2)]
        assert health(history[-1], history=history[:-1])["0"].verdict == "shifting"


def test_measures_have_their_closed_forms():
    position = ((torch.arange(1000) + 0.5) / 1000).unsqueeze(1)
    labels = torch.arange(1000) // 200
    layer = sn.health({"layer": position}, labels)["layer"]
    assert layer.entropy == pytest.approx(1, abs=1e-6)
    assert layer.deviation == pytest.approx(1 / math.sqrt(12), abs=1e-4)
    assert layer.saturated == pytest.approx(0.04)
    assert layer.information == pytest.approx(math.log2(5), abs=0.005)
    assert layer.drift is None
    assert (layer.coordinates, layer.unhealthy, layer.advice) == (1, 0, "")


def test_drift_is_the_distance_that_distributions_moved():
    position = 0.5 * torch.rand(500, 3)
    assert health({"a": position + 0.25}, history=[{"a": position}])["a"].drift == pytest.approx(0.25, abs=1e-6)
    assert health({"a": position[torch.randperm(500)]}, history=[{"a": position}])["a"].drift == pytest.approx(0)
    assert health({"b": position}, history=[{"a": position}])["b"].drift is None


def test_information_of_independent_labels_is_nearly_nothing():
    torch.manual_seed(0)
    for samples in (100, 250, 1000):
        report = health({"layer": torch.rand(samples, 32)}, torch.randint(10, (samples,)))
        assert 0 <= report["layer"].information < 0.06


def test_history_may_be_positions_or_reports():
    torch.manual_seed(0)
    epochs = [{"layer": e} for e in shifting_slowly(200, 3)]
    reports = [health(e) for e in epochs[:-1]]
    assert health(epochs[-1], history=reports).rows() == health(epochs[-1], history=epochs[:-1]).rows()


def test_a_layer_is_as_most_of_its_coordinates_are():
    torch.manual_seed(0)
    position = torch.rand(300, 10)
    position[:, :4] = 0.5
    layer = health({"layer": position})["layer"]
    assert (layer.verdict, layer.unhealthy) == ("healthy", pytest.approx(0.4))
    position[:, 4:6] = 0.5 + 0.1 * torch.rand(300, 2)
    layer = health({"layer": position})["layer"]
    assert (layer.verdict, layer.unhealthy) == ("constant", pytest.approx(0.6))


def test_surfaces_are_judged_by_coordinate():
    torch.manual_seed(0)
    position = torch.rand(100, 3, 2)
    assert health({"layer": position}).rows() == health({"layer": position.flatten(1)}).rows()


def test_report_prints_and_is_json():
    torch.manual_seed(0)
    positions = {"conv1": torch.rand(100, 4), "dense": torch.full((100, 1), 0.5)}
    report = health(positions, torch.randint(3, (100,)))
    text = str(report)
    assert "conv1" in text
    assert "constant: all samples share one position" in text
    assert "healthy:" not in text
    rows = json.loads(report.to_json())
    assert rows == report.rows()
    assert [r["verdict"] for r in rows] == ["healthy", "constant"]
    assert [layer.layer for layer in report.unhealthy] == ["dense"]
    assert report.ailing == report.unhealthy  # as 0.1 called them
    assert report.ailing[0].ailing == report.unhealthy[0].unhealthy
    with pytest.raises(KeyError, match="no layer 'nothing', choose from"):
        report["nothing"]


def test_watch_warns_once():
    torch.manual_seed(0)
    watch = Watch()
    positions = {"alive": torch.rand(100, 4), "dead": torch.full((100, 1), 0.5), "gone": torch.full((100, 1), 0.1)}
    with pytest.warns(PositionWarning, match="^In dead, gone all samples share one position") as seen:
        first = watch(positions)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = watch(positions)
    assert first["alive"].drift is None
    assert second["alive"].drift == 0
    for _ in range(9):
        watch(positions)
    assert len(watch.history) == 5


def test_a_warning_names_some_layers_and_every_verdict():
    torch.manual_seed(0)
    flat, two = torch.full((100, 1), 0.5), torch.randint(2, (100, 1)).float()
    report = health({f"flat{i}": flat for i in range(6)} | {"two": two, "alive": torch.rand(100, 4)})
    first, second = report.warning().split(". ")
    assert first.startswith("In flat0, flat1, flat2, flat3 and 2 more layers all samples share one position")
    assert second.startswith("In two samples gather at two positions")
    assert health({"alive": torch.rand(100, 4)}).warning() == ""


def test_positions_may_carry_a_gradient():
    positions = {"layer": torch.rand(50, 2, requires_grad=True).bfloat16()}
    assert not health(positions)["layer"].quantiles.requires_grad


BAD = [
    (lambda: health({}), "there are no positions"),
    (lambda: health({"a": torch.rand(5, 2)}), "health needs 16 samples or more .*, got 5"),
    (lambda: health({"a": torch.rand(20, 2) + 1}), r"positions must lie in \[0, 1\], got 1.* in 'a'"),
    (lambda: health({"a": torch.full((20, 2), math.nan)}), r"positions must lie in \[0, 1\], got nan in 'a'"),
    (lambda: health({"a": torch.rand(20, 2), "b": torch.rand(30, 2)}), "same samples, got batch sizes"),
    (lambda: health({"a": torch.rand(20, 2)}, torch.zeros(19).long()), r"one for each of 20 samples, got .*\(19,\)"),
    (lambda: health({"a": torch.rand(20, 2)}, torch.zeros(20)), "labels must be integers.*float32"),
    (lambda: health({"a": torch.rand(20, 2)}, torch.arange(20) - 3), "labels must be 0 or more, got -3"),
    (
        lambda: health({"a": torch.rand(20, 2)}, history=[{"a": torch.rand(20, 3)}]),
        "the history of 'a' has 3 positions a sample, now there are 2",
    ),
    (lambda: Watch(0), "remember must be 1 epoch or more, got 0"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
