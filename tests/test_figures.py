"""Figures of ordinary and extraordinary networks."""

import io
import math
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from tests.helpers.subjects import HOSTILE

import splinenets as sn
from splinenets.analysis import figures, findings, history
from splinenets.analysis.counts import by_class, enough_bins, join_rare, shares, spread_out, telling
from splinenets.analysis.figures import Point
from splinenets.analysis.filters import along, view
from splinenets.analysis.gallery import NAMES
from splinenets.analysis.history import Epoch, LayerEpoch
from splinenets.analysis.records import parse_epoch
from splinenets.analysis.style import class_colours, for_both_lights, to_png, to_svg
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
    "positions over time": lambda: history.positions_over_time(epochs()),
    "one epoch": lambda: history.positions_over_time(epochs(1, 1)),
    "31 layers": lambda: history.positions_by_layer(epochs(1, 31)[0]),
    "109 layers": lambda: history.positions_by_layer(epochs(1, 109)[0]),
    "many epochs and layers": lambda: history.positions_over_time(epochs(200, 109)),
    "empty histograms": lambda: history.positions_over_time(
        [parse_epoch({"epoch": 1, "train_accuracy": 0, "test_accuracy": 0, "test_loss": 0, "layers": [{"layer": "a", "entropy": 0, "information": 0, "verdict": "", "histogram": [0] * 50}]})]
    ),
    "utilization": lambda: figures.utilization(positions()),
    "utilization of eight images": lambda: figures.utilization(positions(samples=8)),
    "specialization of eight images": lambda: figures.specialization(positions(samples=8), labels(3, 8), list("abc")),
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
    "health": lambda: history.health_over_epochs(epochs()),
    "health of many layers": lambda: history.health_over_epochs(epochs(100, 31)),
    "hostile names": lambda: history.health_over_epochs(epochs(3, 100, HOSTILE)),
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
        assert getattr(import_module(module), name).__module__ == module


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


def test_every_one_of_31_layers_has_its_name_and_its_ridge():
    figure = history.positions_by_layer(epochs(1, 31)[0])
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"layer{i}" for i in range(31)]
    assert len(axis.collections) == 31


def test_few_images_fill_few_bins():
    """A ridge of eight images is no comb of fifty bins."""
    assert [enough_bins(count) for count in (0, 8, 60, 100, 400, 10**6)] == [5, 5, 5, 10, 50, 50]
    assert enough_bins(3, 7) == 7
    scattered = tuple(int(i % 7 == 0) for i in range(50))
    epoch = Epoch(
        number=1,
        train_accuracy=0,
        test_accuracy=0,
        test_loss=0,
        layers={"a": LayerEpoch(entropy=1, information=0, verdict="healthy", histogram=scattered)},
    )
    (axis,) = history.positions_over_time([epoch]).axes
    assert len(axis.lines[0].get_xdata()) == 5 + 2  # and both ends


def lightness_and_colour(colour, seen=((1, 0, 0), (0, 1, 0), (0, 0, 1))):
    """CIELAB of a colour as people see it whose eyes mix linear light by this matrix."""
    light = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], dtype=torch.float64)
    linear = torch.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    linear = (torch.tensor(seen, dtype=torch.float64) @ linear).clamp(0, 1)
    to_xyz = torch.tensor(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], dtype=torch.float64
    )
    x, y, z = (to_xyz @ linear / torch.tensor([0.9505, 1, 1.089], dtype=torch.float64)).clamp(min=1e-9) ** (1 / 3)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# Machado, Oliveira and Fernandes (2009), severity 1
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


@pytest.mark.parametrize(("eyes", "least"), [((), 34), ((DEUTERANOPIA,), 13), ((PROTANOPIA,), 13)])
def test_ten_classes_have_ten_colours(eyes, least):
    """A difference of 2.3 can just be seen."""
    seen = torch.stack([lightness_and_colour(colour, *eyes) for colour in class_colours(10)])
    assert torch.pdist(seen).min() > least


def test_drawings_for_light_and_dark():
    plain = to_svg(figures.tradeoff([point("a"), point("b")]))
    both = for_both_lights(plain)
    assert b"prefers-color-scheme: dark" in both
    assert b"prefers-color-scheme" not in plain
    assert both.count(b"<style") == plain.count(b"<style") + 1


def test_pictures_can_be_printed():
    with Image.open(io.BytesIO(to_png(figures.tradeoff([point()])))) as image:
        assert image.width == 9 * 300
        assert round(image.info["dpi"][0]) == 300
        assert len(image.getcolors(10**6)) > 256  # and is not reduced to a palette


def test_findings_by_hand():
    classes = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]).repeat(20)
    telling_one = classes[:, None] / 3 + 0.1
    positions = {"blind": torch.full((180, 2), 0.5), "seeing": telling_one}
    assert findings.guessed(telling_one, classes, 3) == 1
    assert findings.guessed(positions["blind"], classes, 3) == 0  # who is left out is outvoted
    assert "one spline of seeing is enough to name the class of an image in 100% of cases; " in findings.telling_place(
        positions, classes, 3
    )
    assert findings.ways({"a": telling_one**2}, classes, ["x", "y", "z"]) == (
        "x and y take the most similar paths, x and z the most different ones."
    )
    assert findings.ways(positions, classes, ["x", "y"]) == ""
    assert "is in blind, with 0% of the positions instead of 20%" in findings.used(positions)
    last = epochs(3, 2)
    assert findings.learned(last) == (
        "in the end layer1 tells most about the class, 0.10 bits, 0.10 after epoch 1; 0 of 2 layers are healthy."
    )
    assert findings.spread(last[-1]).startswith("after epoch 3, layer0 is spread most evenly (90%")
    still = sn.SplineLinear(4, 3, spec="D(3)-C-R4")
    with torch.no_grad():
        (still.base if still.base is not None else still.knots).fill_(1)
        still.knots.fill_(0 if still.base is not None else 1)
    assert "differ from their mean by 0%" in findings.changing(still)


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
    if spec == "D(5)-C-R3" or isinstance(layer, sn.SplineConv1d):  # each kind of layer once, and each spec
        figure = figures.filters_along(layer, "layer")
        assert len(figure.axes) == 9 * min(layer.splines, 4) + 1
        assert to_png(figure, dpi=40).startswith(b"\x89PNG")
    # what is shown is what a sample there receives
    shown = view(layer, 0)
    place = torch.full((1, *layer.position_shape), 0.25)
    expected = shown.of(layer.weights_at(place)).detach()
    torch.testing.assert_close(along(layer, shown, torch.tensor([0.25])), expected)
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
