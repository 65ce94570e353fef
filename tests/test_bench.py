"""``python -m benchmarks.latency``, and the commands of 0.1 that it took the place of."""

import json
from pathlib import Path

import pytest
from benchmarks import latency
from tests.helpers.commands import call

from splinenets.reproduce.record import readable_json

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


@pytest.mark.slow
def test_latency(tmp_path, capsys):
    out = tmp_path / "results" / "latency.json"
    options = ["--network", "LeNet-32*D(2)*", "--network", "LeNet-128", "--runtime", "native", "--runtime", "torch"]
    latency.main([*options, "--threads", "1", "--rounds", "1", "--out", str(out)])
    table = capsys.readouterr().out
    assert "LeNet-128 over LeNet-32 D(2)-D-R3" in table
    assert ">= 8" in table
    result = json.loads(out.read_bytes())
    assert {t["runtime"] for t in result["timings"]} == {"native", "torch"}
    assert {t["calls"] for t in result["timings"]} == {latency.TIMED}
    assert all(t["median"] <= t["p95"] for t in result["timings"])
    assert result["macs"]["LeNet-128"] == 227_939_328
    assert result["about"]["torch"]
    assert result["about"]["command"].startswith("python -m benchmarks.latency --network LeNet-32*D(2)*")


def test_results_stay_in_the_repository_wherever_the_command_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert latency.result_file(["ResNet-32", "ResNet-110"]) == RESULTS / "latency-resnet.json"
    assert latency.result_file(["LeNet-32 D(2)-D-R3"]) == RESULTS / "latency-lenet.json"
    timing = latency.Timing(network="LeNet-32", runtime="torch", threads=1, median=1.0, p95=2.0, calls=10)
    monkeypatch.setattr(latency, "RESULTS", tmp_path / "clone" / "results")
    monkeypatch.setattr(latency, "measure", lambda *_, **__: [timing])
    latency.main(["--network", "LeNet-32"])
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")] == [
        "clone/results/latency-lenet.json"
    ]
    assert latency.read("lenet").timings == [timing]


def test_ratios_take_the_best_runtime_in_float32():
    def timing(network, runtime, median):
        return latency.Timing(network=network, runtime=runtime, threads=1, median=median, p95=median, calls=1)

    upper, lower = "ResNet-110", "ResNet-32 D(5)-C-R4"
    timings = [
        timing(upper, "torch", 9.0),
        timing(upper, "native", 6.0),
        timing(lower, "native", 2.0),
        timing(lower, "native bf16", 1.0),
    ]
    assert latency.quotients(timings) == [(f"{upper} over {lower}", 1, 3.0, ">= 2.7", "native / native")]
    assert [latency.met(1.09, "<= 1.08"), latency.met(1.09, ">= 1.08"), latency.met(1.09, "")] == [
        *("<= 1.08, missed", ">= 1.08, met", ""),
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--network", "VGG*"], "no network fits VGG*"),
        (["--runtime", "tflite"], "'tflite'"),
        (["--threads", "0"], "threads must be 1 or more"),
    ],
)
def test_wrong_options(words, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        latency.main([*words, "--out", str(tmp_path / "x.json")])
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["latency"], "python -m benchmarks.latency"),
        (["latency", "--network", "ResNet*", "--rounds", "3"], "python -m benchmarks.latency"),
        (["strategies"], "chosen by rule; 'make bench' measures whole networks"),
        (["strategies", "--repeats", "9"], "chosen by rule; 'make bench' measures whole networks"),
    ],
)
def test_commands_of_before_say_what_took_their_place(words, instead, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("bench", *words)
    assert (code, out) == (2, "")
    assert err.startswith("splinenets: ")
    assert instead in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_they_are_hidden():
    assert "bench" not in call("--help")[1]


@pytest.mark.parametrize(
    "content", [{}, {"a": []}, {"rows": [{"x": 1.5}] * 99, "maps": {"b": {"c": [1, 2] * 200}}, "d": None}]
)
def test_result_files_are_json_with_short_lines(content):
    text = readable_json(content)
    assert json.loads(text) == content
    assert text.endswith("}\n")
    assert max(map(len, text.splitlines())) < 300
    if "rows" in content:
        assert text.count('{"x": 1.5}') == 99
        assert '  {"x": 1.5},\n' in text
