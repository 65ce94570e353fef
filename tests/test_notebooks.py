"""What a notebook shows instead of text."""

import pytest
import torch

import splinenets as sn
from splinenets.conversion import Row
from splinenets.tables import bars, html_table

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def net():
    return sn.convert(sn.models.lenet(2), "D(3)-C-R3")


def test_a_conversion_is_a_table(net):
    page = net.conversion._repr_html_()
    assert page.count("<tr>") == 1 + len(net.conversion.rows)
    assert "4 of 4 layers are splines" in page


def test_positions_are_a_table(net):
    _, positions = sn.trace(net, torch.randn(7, 1, 28, 28))
    page = positions._repr_html_()
    assert page.count("<tr>") == 1 + len(positions)
    assert "<td>7</td><td>2</td>" in page
    assert "█" in page


def test_health_is_a_table():
    page = sn.health({"conv": torch.full((300, 2), 0.5)})._repr_html_()
    assert "<td>constant</td>" in page
    assert "<p>constant: " in page


def test_positions_that_were_told():
    net = sn.condition(sn.convert(sn.models.lenet(2), "D(3)-X-R4"), 0, 1)
    _, positions = sn.trace(net, torch.randn(3, 1, 28, 28), 0.5)
    assert "told, not chosen: " in positions._repr_html_()


@pytest.mark.parametrize("position", [torch.zeros(0, 3), torch.full((2, 3), torch.nan), torch.rand(4, 3, 2)])
def test_odd_positions(position):
    page = sn.Positions({"a": position})._repr_html_()
    assert "<td>a</td>" in page
    assert "nan" not in page


@pytest.mark.parametrize(
    "shown",
    [
        sn.Conversion((Row(HOSTILE, HOSTILE, HOSTILE, HOSTILE),)),
        sn.Positions({HOSTILE: torch.rand(3, 2)}, given=[HOSTILE]),
        sn.health({HOSTILE: torch.rand(300, 2)}),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_names_cannot_become_code(shown):
    page = shown._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_tables_and_bars():
    assert (
        html_table(["a"], [["<"]])
        == "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;</td></tr></tbody></table>"
    )
    assert bars([0, 0.5, 1, 2, -1]) == "▁▅██▁"
