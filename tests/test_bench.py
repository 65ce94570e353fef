"""``splinenets bench``."""

import json

import pytest
from tests.helpers.commands import call

from splinenets.bench import latency


def test_latency(tmp_path):
    options = ["--network", "LeNet-32*D(2)*", "--network", "LeNet-128", "--runtime", "native", "--runtime", "torch"]
    out = tmp_path / "results" / "latency.json"
    code, table, err = call("bench", "latency", *options, "--threads", 1, "--rounds", 1, "--out", out)
    assert code == 0, err
    assert "LeNet-128 over LeNet-32 D(2)-D-R3" in table
    assert ">= 8" in table
    result = json.loads(out.read_text())
    assert {t["runtime"] for t in result["timings"]} == {"native", "torch"}
    assert all(0 < t["median"] <= t["p95"] for t in result["timings"])
    assert result["macs"]["LeNet-128"] == 227_939_328
    assert result["about"]["torch"]
    assert result["about"]["seconds"] > 0


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


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--network", "VGG*"], "no network fits VGG*"),
        (["--runtime", "tflite"], "unknown runtime 'tflite'"),
        (["--threads", "0"], "threads must be 1 or more"),
    ],
)
def test_wrong_options(words, complaint, tmp_path):
    code, _, err = call("bench", "latency", *words, "--out", tmp_path / "x.json")
    assert code == 2
    assert complaint in err
