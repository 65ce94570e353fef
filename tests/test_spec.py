import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import splinenets as sn
from splinenets.spec import EXAMPLE

numbers = st.floats(1e-6, 100)
specs = st.builds(
    lambda knots, degree, **rest: sn.SplineSpec(knots=knots, degree=None if degree is None else degree % knots, **rest),
    kind=st.sampled_from(["dynamic", "hierarchical"]),
    knots=st.integers(2, 40),
    projection=st.sampled_from(["conv", "dot"]),
    rank=st.one_of(st.sampled_from(["R3", "R4"]), st.integers(1, 512).map("G{}".format)),
    degree=st.one_of(st.none(), st.integers(0, 20)),
    diffusion=st.one_of(st.floats(0, 1), st.floats(1, 50).map(sn.Tree), st.integers(1, 9).map("tree({})".format)),
    sigmoid_slope=st.one_of(st.none(), numbers),
    variance=st.one_of(st.none(), st.just(0.0), numbers),
    dims=st.integers(1, 9),
    standardize=st.booleans(),
    centered=st.booleans(),
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(specs)
def test_round_trip(spec):
    assert sn.SplineSpec.parse(str(spec)) == spec
    assert str(sn.SplineSpec.parse(str(spec))) == str(spec)


@pytest.mark.parametrize(
    "text", ["D(3)-C-R4", "H(5)-D-R3", "D(5)-C-G8", "H(2)-C-R3 degree=0 diffusion=tree(2) dims=3 raw"]
)
def test_the_papers_notation_prints_as_it_was_written(text):
    assert str(sn.SplineSpec.parse(text)) == text


def test_what_the_notation_means():
    spec = sn.SplineSpec.parse("H(5)-D-G4, degree=3, diffusion=0.875, slope=0.4, variance=0.05, raw, independent")
    assert dataclasses.asdict(spec) == {
        "kind": "hierarchical", "knots": 5, "projection": "dot", "rank": "G4", "degree": 3, "diffusion": 0.875,
        "sigmoid_slope": 0.4, "variance": 0.05, "dims": 1, "standardize": False, "centered": False,
        "closed": False,
    }  # fmt: skip


def test_defaults_resolve():
    assert [sn.SplineSpec(knots=k).spline_degree for k in (2, 3, 9)] == [1, 2, 2]
    assert sn.SplineSpec().slope == 1.7
    assert sn.SplineSpec(standardize=False).slope == 0.4
    assert sn.SplineSpec(sigmoid_slope=3.0).slope == 3.0


def test_splines():
    assert [sn.SplineSpec(rank=r).splines(24) for r in ("R4", "R3", "G8", "G1", "G24")] == [1, 24, 8, 1, 24]
    with pytest.raises(ValueError, match="G5 asks for 5 splines, which do not divide 24 filters"):
        sn.SplineSpec(rank="G5").splines(24)


def test_diffusion_levels():
    tree = sn.SplineSpec(diffusion="tree(2)")
    assert [tree.diffusion_at(i) for i in (1, 2, 3)] == [1, 0.5, 0.25]
    assert sn.SplineSpec(diffusion=0.875).diffusion_at(7) == 0.875


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "form"),
        ("D5-C-R3", "form"),
        ("X(5)-C-R3", "'X'"),
        ("D(5)-E-R3", "'E'"),
        ("D(5)-C-R5", "'R5'"),
        ("D(5)-C-G0", "'G0'"),
        ("D(2)-C-R3 degree=2", "knots=2, degree=2"),
        ("D(0)-C-R3", "got 0"),
        ("D(1)-C-R3", "one knot is a point and no curve"),
        ("H(1)-D-R4", "one knot is a point and no curve"),
        ("D(1000000000)-C-R3", "from 2 to 1024 (one knot"),
        ("D(99999999999999999999)-C-R3", "every knot takes as much memory"),
        ("D(300)-C-R3 degree=299", "degree must be a whole number from 0 to 20"),
        ("D(5)-C-R3 dims=1000000000", "dims must be a whole number from 1 to 16"),
        ("D(5)-C-R3 slope=1e300", "slope must be a number from"),
        ("D(5)-C-R3 slope=inf", "got inf"),
        ("D(5)-C-R3 variance=1e38", "variance must be a number from 0.0 to 100.0"),
        ("D(5)-C-R3 degree=two", "whole number, got 'two'"),
        ("D(5)-C-R3 slope=steep", "number, got 'steep'"),
        ("D(5)-C-R3 slope=-1", "-1"),
        ("D(5)-C-R3 slope=nan", "nan"),
        ("D(5)-C-R3 diffusion=1.5", "1.5"),
        ("D(5)-C-R3 diffusion=tree(0)", "tree"),
        ("D(5)-C-R3 diffusion=tree(x)", "tree"),
        ("D(5)-C-R3 variance=-1", "-1"),
        ("D(5)-C-R3 dims=0", "0"),
        ("D(5)-C-R3 colour=red", "'colour=red'"),
        ("D(5)-C-R3 raw raw", "second time"),
    ],
)
def test_a_wrong_string_says_what_is_wrong_and_shows_a_right_one(text, complaint):
    with pytest.raises(ValueError) as error:
        sn.SplineSpec.parse(text)
    message = str(error.value)
    assert repr(text) in message
    assert complaint in message
    assert EXAMPLE in message
    assert "\n" not in message


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_any_text_parses_or_explains(text):
    try:
        sn.SplineSpec.parse(text)
    except ValueError as error:
        assert EXAMPLE in str(error)


def test_wrong_fields():
    with pytest.raises(ValueError, match="unknown kind 'static'"):
        sn.SplineSpec(kind="static")
    with pytest.raises(ValueError, match="unknown projection 'mlp'"):
        sn.SplineSpec(projection="mlp")
    with pytest.raises(ValueError, match="got int"):
        sn.SplineSpec.parse(5)


@pytest.mark.parametrize(
    "fields",
    [
        {"knots": "5"},
        {"knots": 5.0},
        {"knots": True},
        {"degree": 1.5},
        {"dims": None},
        {"sigmoid_slope": "steep"},
        {"variance": [1]},
        {"diffusion": None},
        {"diffusion": [0.5]},
        {"rank": 3},
    ],
)
def test_fields_of_another_type(fields):
    ((name, value),) = fields.items()
    with pytest.raises(ValueError, match=name.replace("_", " ")) as error:
        sn.SplineSpec(**fields)
    assert str(value) in str(error.value)
