"""Graphs in ONNX Runtime's own order of channels answer as the networks they come from, or not at all."""

import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import splinenets as sn
from splinenets.exporting import onnxruntime_file
from splinenets.exporting.blocked import DOMAIN, block_size
from splinenets.kernels import Unavailable


class Mixed(nn.Module):
    """What moves into blocks beside what stays outside: sums in both orders, values with several uses, odd widths."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.depthwise, self.grouped = nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 32, 1, groups=2)
        self.narrow, self.wide = nn.Conv2d(32, 20, 1, bias=False), nn.Conv2d(20, 48, (1, 3), stride=2)
        self.last, self.head = nn.Conv2d(48, 48, 1, bias=False), nn.Linear(48, 5)

    def forward(self, x):
        x = self.first(x)
        y = self.second(x.relu())
        x = (x + y).relu() + self.second(y)
        x = nn.functional.max_pool2d(torch.sigmoid(x) + x.mean((2, 3), keepdim=True), 2, padding=1)
        x = nn.functional.relu6(self.grouped(self.depthwise(x)))
        x = self.wide(self.narrow(x) * 2)
        return self.head((self.last(x) + x + x).mean((2, 3)))


SPECS = {
    "plain": None,
    "R4": "D(5)-C-R4",
    "R3": "D(5)-C-R3",
    "some": {"*": "D(4)-D-G2 degree=1", "second": "H(5)-C-R3 degree=3", "head": "D(3)-C-R4 dims=2"},
}


def mixed(spec=None):
    """The network above, and images."""
    torch.manual_seed(0)
    images = torch.randn(40, 3, 11, 10)
    net = Mixed().eval()
    return (net if spec is None else sn.convert(net, spec, example=images, spread=0.1).eval()), images


@pytest.mark.parametrize("purpose", ["latency", "throughput"])
@pytest.mark.parametrize("spec", SPECS)
def test_all_that_moves_into_blocks(spec, purpose, tmp_path):
    net, images = mixed(SPECS[spec])
    made = sn.export(net, images, tmp_path / "net.onnxruntime", purpose=purpose)
    with torch.no_grad():
        torch.testing.assert_close(made(images), net(images), rtol=1e-5, atol=1e-5)
    assert made.metadata["block"] == block_size()
    assert purpose == "latency" or made(images[:0]).shape == (0, 5)


def test_convolutions_of_whole_blocks_are_inside(tmp_path):
    net, images = mixed()
    sn.export(net, images, tmp_path / "net.onnxruntime")
    nodes = onnx.load(tmp_path / "net.onnxruntime").graph.node
    domains = [node.domain for node in nodes if node.op_type == "Conv"]
    assert (domains.count(DOMAIN), len(domains)) == (5, 8)  # not the one in groups, and not those of 20 channels
    assert len([node for node in nodes if node.op_type.startswith("Reorder")]) < 10


def test_a_graph_for_other_processors_fails(tmp_path, monkeypatch):
    net, images = mixed()
    monkeypatch.setattr(onnxruntime_file, "block_size", lambda: 8 if block_size() == 16 else 16)
    with pytest.raises(Exception, match="this file is for processors whose ONNX Runtime has blocks of"):
        sn.export(net, images, tmp_path / "net.onnxruntime")


def test_a_file_for_other_processors_is_refused_with_one_sentence(tmp_path, monkeypatch):
    net, images = mixed()
    sn.export(net, images, tmp_path / "net.onnxruntime")
    monkeypatch.setattr(onnxruntime_file, "block_size", lambda: 4)
    with pytest.raises(Unavailable, match=r"blocks of \d+ channels, and here it has 4: export it again here"):
        sn.load_export(tmp_path / "net.onnxruntime")


def test_without_blocked_convolutions_there_is_one_sentence(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    block_size.cache_clear()
    with pytest.raises(Unavailable, match="export to onnx instead"):
        block_size()


def test_knots_lie_in_the_order_of_the_convolution(tmp_path):
    net, images = mixed("D(5)-C-R4")
    sn.export(net, images, tmp_path / "net.onnxruntime")
    graph = onnx.load(tmp_path / "net.onnxruntime").graph
    sizes = {numpy_helper.to_array(each).shape for each in graph.initializer}
    assert (5, 32 * 32 * 9) in sizes  # one product mixes them
    ordered = [node.input[0] for node in graph.node if node.op_type == "ReorderInput"]
    assert len(ordered) < 6  # and nothing is put in order for an image but what comes from outside
