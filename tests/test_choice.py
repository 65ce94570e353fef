"""Which strategy is chosen, and what happens when it does not fit."""

import json
import warnings

import pytest
import torch

import splinenets as sn
from splinenets.bench import strategies as bench
from splinenets.cli import main
from splinenets.operators import choice, measured
from splinenets.operators.measured import Case, measurements, ranking

FULL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


def fails_with(error):
    def strategy(*args):
        raise error

    return strategy


def test_auto_takes_the_fastest_that_was_measured():
    for case, seconds in measurements():
        assert seconds[ranking(case)[0]] == min(seconds.values())


def test_a_case_is_like_the_nearest_one():
    case, _ = measurements()[0]
    assert ranking(case._replace(samples=case.samples * 1.2, filters=case.filters + 1)) == ranking(case)
    assert set(ranking(Case("linear", "float32", True, 3, 7, 9, 1, 1, 4))) <= set(choice.STRATEGIES)


def test_a_batch_that_does_not_fit_falls_to_the_next_with_one_warning(monkeypatch):
    layer, x = sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6)
    with sn.strategy("bank"):
        expected = layer.eval()(x)
    first, second, *_ = choice.choose(x, layer.curves, layer.operation(x)[1])
    for error in (RuntimeError(FULL), MemoryError()):
        monkeypatch.setitem(choice.STRATEGIES, first, fails_with(error))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
        assert [w.category for w in seen] == [choice.StrategyWarning]
        assert f"batch of 5 does not fit into memory with the strategy '{first}': trying '{second}'" in str(
            seen[0].message
        )
    monkeypatch.setitem(choice.STRATEGIES, first, fails_with(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        layer(x)


def test_the_last_strategy_fails_as_torch_does(monkeypatch):
    for name in choice.STRATEGIES:
        monkeypatch.setitem(choice.STRATEGIES, name, fails_with(RuntimeError(FULL)))
    layer, x = sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6)
    with pytest.warns(choice.StrategyWarning), pytest.raises(RuntimeError, match="can't allocate"):
        layer(x)


def test_an_unknown_device_uses_the_safest_strategy():
    layer = sn.SplineConv2d(2, 4, 3).to("meta")
    x = torch.empty(5, 2, 6, 6, device="meta")
    assert choice.choose(x, layer.curves, layer.operation(x)[1]) == choice.SAFE
    assert layer.operate(x, torch.empty(5, 4, device="meta")).shape == (5, 4, 4, 4)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Measurements in a folder of their own."""
    path = tmp_path / "mine" / "strategies.json"
    monkeypatch.setenv(measured.MEASUREMENTS, str(path))
    measurements.cache_clear()
    ranking.cache_clear()
    yield path
    monkeypatch.undo()
    measurements.cache_clear()
    ranking.cache_clear()


def test_bench_strategies_is_used_from_then_on(fresh, monkeypatch, capsys):
    settings = [s for s in bench.settings() if s[1] == 1 and s[0] in ((64, 10), (3, 16, 3, 32))][::5]
    monkeypatch.setattr(bench, "settings", lambda: settings)
    with pytest.raises(SystemExit) as stop:
        main(["bench", "strategies", "--repeats", "1"])
    assert not stop.value.code
    assert "fastest" in capsys.readouterr().out
    assert json.loads(fresh.read_text())["about"]["command"] == "splinenets bench strategies"
    assert len(measurements()) == len(settings)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"columns": [], "rows": [[1]]}', '{"rows": 3}'])
def test_measurements_that_cannot_be_read_are_left_alone(fresh, content):
    fresh.parent.mkdir()
    fresh.write_text(content)
    assert len(measurements()) > 100


def test_bench_strategies_wants_a_file(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "strategies", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "must be a file" in capsys.readouterr().err
