"""Figures of ordinary and extraordinary networks."""

import math
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from tests.helpers.subjects import HOSTILE

import splinenets as sn
from splinenets.analysis import figures
from splinenets.analysis.counts import by_class, join_rare, shares, spread_out, telling
from splinenets.analysis.figures import Epoch, LayerEpoch, Point
from splinenets.analysis.filters import along, view
from splinenets.analysis.gallery import NAMES
from splinenets.analysis.records import parse_epoch
from splinenets.analysis.style import to_png, to_svg
from splinenets.analysis.text import printable, unique


def positions(layers=3, splines=4, samples=200, names=None):
    generator = torch.Generator().manual_seed(1)
    return {
        names[i % len(names)] + str(i) if names else f"layer{i}": torch.rand(samples, splines, generator=generator)
        for i in range(layers)
    }


def epochs(count=8, layers=3, names=None):
    def layer(number, epoch):
        return LayerEpoch(
            entropy=0.9,
            information=0.1 * number,
            verdict=["healthy", "binary", "constant", "shifting", "under-used", "new"][(number + epoch) % 6],
            histogram=tuple(range(number, number + 50)),
        )

    return [
        Epoch(
            number=e + 1,
            train_accuracy=0.5,
            test_accuracy=0.4,
            test_loss=1.0,
            layers={(names[n % len(names)] + str(n) if names else f"layer{n}"): layer(n, e) for n in range(layers)},
        )
        for e in range(count)
    ]


def point(name="net", **changes):
    return Point(
        **({"accuracy": 0.9, "samples": 100, "macs": 10**6, "parameters": 10**5, "latency": 1e-3} | changes), name=name
    )


def labels(classes, samples=200):
    return torch.arange(samples) % classes


CASES = {
    "positions over time": lambda: figures.positions_over_time(epochs()),
    "one epoch": lambda: figures.positions_over_time(epochs(1, 1)),
    "many epochs and layers": lambda: figures.positions_over_time(epochs(200, 109)),
    "empty histograms": lambda: figures.positions_over_time(
        [parse_epoch({"epoch": 1, "train_accuracy": 0, "test_accuracy": 0, "test_loss": 0, "layers": [{"layer": "a", "entropy": 0, "information": 0, "verdict": "", "histogram": [0] * 50}]})]
    ),
    "utilization": lambda: figures.utilization(positions()),
    "utilization of a constant": lambda: figures.utilization({"a": torch.full((50, 1), 0.5)}),
    "specialization": lambda: figures.specialization(positions(), labels(10), [f"class {i}" for i in range(10)]),
    "specialization of 100 classes": lambda: figures.specialization(positions(40), labels(100), HOSTILE),
    "flow": lambda: figures.flow(positions(), labels(10), [f"class {i}" for i in range(10)]),
    "flow through one layer": lambda: figures.flow(positions(1), labels(2), ["a", "b"]),
    "flow through many layers": lambda: figures.flow(positions(109), labels(100), HOSTILE),
    "tradeoff": lambda: figures.tradeoff([point("static"), point("spline", macs=2 * 10**6)]),
    "tradeoff of one, never right": lambda: figures.tradeoff([point(accuracy=0.0)]),
    "tradeoff without numbers": lambda: figures.tradeoff([point(accuracy=math.nan, samples=0, macs=0)]),
    "tradeoff without latency": lambda: figures.tradeoff([point("static"), point("spline", latency=None)]),
    "tradeoff of many": lambda: figures.tradeoff([point(name) for name in HOSTILE[:12]]),
    "health": lambda: figures.health_over_epochs(epochs()),
    "health of many layers": lambda: figures.health_over_epochs(epochs(100, 31)),
    "hostile names": lambda: figures.health_over_epochs(epochs(3, 100, HOSTILE)),
    "hostile layers": lambda: figures.utilization(positions(100, names=HOSTILE)),
}  # fmt: skip


def test_the_docs_name_functions_that_are_there():
    """And ``splinenets figures --only`` knows every name."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "figures.md").read_text()
    where = re.search(r"function in `([\w.]+)`", page)[1]
    rows = re.findall(r"^\| (\w*) ?\| `([\w.]+)` \|", page, flags=re.MULTILINE)
    assert [name for name, _ in rows if name] == list(NAMES)
    for _, function in rows:
        module, _, name = f"{where}.{function}".rpartition(".")
        assert getattr(import_module(module), name).__module__ == module == figures.__name__


@pytest.mark.parametrize("name", CASES)
def test_every_figure_can_be_drawn(name):
    figure = CASES[name]()
    assert isinstance(figure, Figure)
    svg = to_svg(figure)
    assert b"<script" not in svg
    assert len(svg) < 1_500_000
    if not any(word in name for word in ("hostile", "100")):
        check_labels(figure)


def check_labels(figure):
    """Labels of ticks and titles of panels do not overlap, each among themselves."""
    renderer = figure._get_renderer()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    groups = [axis.get_ticklabels() for axes in shown for axis in (axes.xaxis, axes.yaxis)]
    groups.append([axes._left_title for axes in shown])
    for group in groups:
        upright = [t for t in group if t.get_visible() and t.get_text() and not t.get_rotation()]
        boxes = [t.get_window_extent(renderer).shrunk(0.98, 0.98) for t in upright]
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[i + 1 :]), [t.get_text() for t in upright]


def test_a_figure_is_the_same_file_every_time():
    first, second = (to_svg(figures.flow(positions(1), labels(2), HOSTILE[:2])) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("net", "example"),
    [
        (lambda s: sn.SplineConv2d(3, 8, 5, spec=s), (4, 3, 8, 8)),
        (lambda s: sn.SplineConv2d(6, 8, 3, groups=2, spec=s), (4, 6, 8, 8)),
        (lambda s: sn.SplineConv1d(20, 8, 3, spec=s), (4, 20, 8)),
        (lambda s: sn.SplineConv3d(2, 8, 3, spec=s), (4, 2, 6, 6, 6)),
        (lambda s: sn.SplineLinear(30, 20, spec=s), (4, 30)),
        (lambda s: sn.SplineLinear(2, 1, spec=s), (4, 2)),
    ],
)
@pytest.mark.parametrize("spec", ["D(5)-C-R3", "D(2)-C-R4", "D(12)-C-R3 degree=3 dims=2", "D(2)-C-R4 degree=0"])
def test_filters_of_every_kind_of_layer(net, example, spec):
    layer = net(spec)
    figure = figures.filters_along(layer, "layer")
    if spec == "D(5)-C-R3":
        assert to_png(figure, dpi=40).startswith(b"\x89PNG")
    # what is shown is what a sample there receives
    shown = view(layer, 0)
    place = torch.full((1, *layer.position_shape), 0.25)
    expected = shown.of(layer.weights_at(place)).detach()
    torch.testing.assert_close(along(layer, shown, torch.tensor([0.25])), expected)
    assert len(figure.axes) == 9 * min(layer.splines, 4) + 1
    assert layer(torch.randn(example)).shape[0] == 4


def test_rare_classes_are_joined():
    given = torch.tensor([0, 0, 1, 2, 2, 3])
    joined, names = join_rare(given, ["a", "b", "c", "d"], most=3)
    assert names == ["a", "c", "2 others"]
    assert joined.tolist() == [0, 0, 2, 1, 1, 2]
    assert join_rare(given, ["a", "b", "c", "d"])[1] == ["a", "b", "c", "d"]


def test_counts_by_hand():
    position = torch.tensor([[0.0, 0.1], [0.99, 0.1], [1.0, 0.9]])
    counts = by_class(position, torch.tensor([0, 0, 1]), 2, bins=2)
    assert counts.tolist() == [[[1, 1], [2, 0]], [[0, 1], [0, 1]]]
    assert shares(counts)[:, 0].tolist() == [[1, 0.5], [0, 0.5]]


def test_the_most_telling_spline_comes_first():
    classes = labels(4, 400)
    noise = torch.rand(400)
    assert telling(torch.stack([noise, classes / 4 + 0.1, noise * 0.5], 1), classes)[0] == 1


def test_spread_out():
    assert spread_out("abc", 3) == ["a", "b", "c"]
    assert spread_out(range(100), 3) == [0, 50, 99]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_printable(text):
    shown = printable(text, 50)
    assert shown.isprintable()
    assert len(shown) <= 50
    shown.encode()


def test_unique_names():
    assert unique(["a", "b", "a"]) == ["a", "b", "a (2)"]
