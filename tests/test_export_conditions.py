"""Exports of networks that are told something, and of closed curves: what they compute, what they refuse."""

import itertools
import json
import math

import onnx
import onnxruntime
import onnxscript
import pytest
import torch
from onnxscript import ir, opset18
from tests.helpers.exports import network
from tests.helpers.marks import slow, slow_where
from torch.onnx._internal.exporter._building import OpRecorder

import splinenets as sn
from splinenets.exporting import onnx_file
from splinenets.exporting.capture import Inputs
from splinenets.exporting.formats import FORMATS, KEY, seal
from splinenets.exporting.onnx_file import _Lowering
from splinenets.projection import direction

ANGLE = sn.Condition(0, 360)
# by name: the specs of a LeNet's layers, and what it is told
NETWORKS = {
    "X": ("D(5)-X-R4", {"angle": ANGLE}),
    "X closed": ("D(4)-X-R4 closed", {"angle": ANGLE}),
    "mixed": (
        {"conv1": "D(4)-X-R4 closed", "conv2": "D(4)-C-R3", "dense1": "H(3)-D-R4", "dense2": "D(5)-X-R4 degree=3"},
        {"angle": ANGLE},
    ),
    "surface": ("D(3)-X-R4 dims=2", {"angle": ANGLE, "noise": sn.Condition(1.0, 0.25)}),
    "one surface": ("D(3)-X-R4 dims=2 closed", {"place": sn.Condition((0, -1), (1, 1))}),
    "several": (
        "D(3)-X-R4",
        {"angle": sn.Condition(-180, 180, layers="conv*"), "noise": sn.Condition(layers="dense*")},
    ),
    "inherited": ({"conv1": "D(4)-X-R4", "*": "H(4)-C-R3 closed diffusion=0.7"}, {"angle": ANGLE}),
}
CLOSED = ["D(4)-C-R3 closed", "H(3)-D-R3 closed", "H(4)-C-G2 closed degree=0", "H(4)-C-R4 closed diffusion=tree(1.5)"]
SLOW = {"one surface", "several"}
IN_ONNX = ("X closed", "mixed")  # capturing takes seconds


def told_network(name):
    """A network that is told something, images, and a condition for each."""
    spec, conditions = NETWORKS[name]
    net, some = network("lenet4", spec, count=40)
    net = sn.condition(net, **conditions)
    torch.manual_seed(1)
    given = {n: net.conditions.at(n, torch.rand(len(some), size)) for n, size in net.conditions.sizes.items()}
    for n, values in given.items():  # both ends, and the middle
        values[:3] = net.conditions.at(n, torch.tensor([[0.0], [1.0], [0.5]]).expand(3, values.shape[1]))
    return net.eval(), some, given


def takes_long(name, to, purpose):
    return name in SLOW or (to != "native" and (to, purpose, name in IN_ONNX) != ("onnx", "latency", True))


CASES = list(itertools.product(NETWORKS, FORMATS, ("latency", "throughput")))


@pytest.mark.parametrize(("name", "to", "purpose"), [slow(*case) if takes_long(*case) else case for case in CASES])
def test_exports_equal_the_network(name, to, purpose, tmp_path):
    net, some, given = told_network(name)
    path = tmp_path / f"net.{to}"
    sn.export(net, (some, given), path, purpose=purpose)
    exported = sn.load_export(path)
    with torch.no_grad():
        expected = net(some, **given)
        assert (expected - net(some[:1].expand_as(some), **given)).abs().max() > 0.01
        apart = net(some, **{n: values.flip(0) for n, values in given.items()})
    assert (expected - apart).abs().max() > 1e-3  # what it is told matters
    for size in (40, 3) if purpose == "throughput" else (40,):
        parts = Inputs(some, given).split(size)
        found = torch.cat([exported(part.images, part.conditions) for part in parts])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert exported.conditions.described() == net.conditions.described()


@pytest.mark.parametrize("purpose", ["latency", "throughput"])
@pytest.mark.parametrize("spec", slow_where(CLOSED[0].__ne__, CLOSED))
def test_closed_curves_that_a_network_chooses_places_on(spec, purpose, tmp_path):
    net, some = network("lenet4", spec)
    sn.export(net, some, tmp_path / "net.onnx", purpose=purpose)
    with torch.no_grad():
        torch.testing.assert_close(sn.load_export(tmp_path / "net.onnx")(some), net(some), rtol=1e-5, atol=1e-5)


def run_nodes(build, points):
    """What ONNX Runtime computes with the nodes that build(op, value) adds."""
    value = ir.Value(name="x", shape=ir.Shape(points.shape), type=ir.TensorType(ir.DataType.FLOAT))
    recorder = OpRecorder(opset18, {})
    with onnxscript.evaluator.default_as(recorder):
        output = build(opset18, value)
    graph = ir.Graph([value], [output], nodes=recorder.nodes, opset_imports={"": 18}, name="nodes")
    model = ir.serde.serialize_model(ir.Model(graph, ir_version=10))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return torch.from_numpy(session.run(None, {"x": points.numpy()})[0])


def test_directions_are_those_of_torch():
    """In every quadrant, on both axes, with both zeros, near nothing and far away; NaN stays alone."""
    numbers = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-6, -0.3, 0.3, 1.0, -1.0, 7.5, -1e15, math.nan])
    points = torch.cartesian_prod(numbers, numbers)
    around = torch.linspace(0, 2 * math.pi, 101)
    points = torch.cat([points, torch.stack([around.cos(), around.sin()], 1)])
    net, _ = network("lenet4", "D(4)-C-R4 closed")
    found = run_nodes(lambda op, x: _Lowering(op, net.conv2, False).direction(x), points)
    expected = direction(points)
    assert torch.equal(found.isnan(), expected.isnan())
    apart = (found - expected).nan_to_num().abs()
    assert torch.minimum(apart, 1 - apart).max() < 1e-7


def ask_wrongly(net, some):
    """Calls that a network or its export refuses, each with what the sentence says."""
    right = torch.full((len(some),), 90.0)
    for call, complaint in (
        (lambda: net(some), r"the condition 'angle' is missing: call the network as net\(images, angle\)"),
        (lambda: net(some, right + 300), "the condition 'angle' lies between 0 and 360, got 390"),
        (lambda: net(some, right[:1]), r"the condition 'angle' has shape \(3,\) for this batch, got \(1,\)"),
        (lambda: net(some, {"angel": right}), "unknown condition 'angel', choose from angle"),
        (lambda: net(some, "north"), "the condition 'angle' is a tensor or a number, got str"),
    ):
        with pytest.raises(ValueError, match=f"^{complaint}$"):
            call()


def test_a_file_refuses_what_the_network_refuses(tmp_path):
    net, some, given = told_network("X")
    ask_wrongly(net, some[:3])
    for purpose in ("latency", "throughput"):
        sn.export(net, (some, given), tmp_path / "net.onnx", purpose=purpose)
        exported = sn.load_export(tmp_path / "net.onnx")
        ask_wrongly(exported, some[:3])
        with pytest.raises(ValueError, match="unknown condition 'angel', choose from angle"):
            exported(some, angle=90, angel=3)
        with torch.no_grad():
            torch.testing.assert_close(exported(some, 90), net(some, angle=90), rtol=1e-5, atol=1e-5)
    plain, _ = network("lenet4")
    sn.export(plain, some, tmp_path / "plain.onnx")
    with pytest.raises(ValueError, match="this network takes images alone"):
        sn.load_export(tmp_path / "plain.onnx")(some, 90)


@pytest.mark.parametrize("purpose", [slow("latency"), "throughput"])
def test_no_number_spoils_its_own_sample_alone(purpose, tmp_path):
    net, some, given = told_network("X closed")
    sn.export(net, (some, given), tmp_path / "net.onnx", purpose=purpose)
    angles = given["angle"].clone()
    angles[5] = math.nan
    with torch.no_grad():
        expected, found = net(some, angles), sn.load_export(tmp_path / "net.onnx")(some, angles)
    assert found[5].isnan().all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_other_runtimes_give_conditions_by_name(tmp_path):
    net, some, given = told_network("surface")
    sn.export(net, (some, given), tmp_path / "net.onnx", purpose="throughput")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    assert [each.name for each in session.get_inputs()] == ["images", "angle", "noise"]
    about = json.loads(session.get_modelmeta().custom_metadata_map[KEY])["conditions"]
    assert about == {"angle": {"low": 0, "high": 360, "size": 1}, "noise": {"low": 1.0, "high": 0.25, "size": 1}}
    outside = {"angle": given["angle"] + 1000, "noise": given["noise"] + 5}  # which nobody checks here
    (logits,) = session.run(["logits"], {n: x.numpy() for n, x in {"images": some, **outside}.items()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(logits), net(some, angle=360, noise=1.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("knots", [slow("bf16"), "int8"])
def test_smaller_knots(knots, tmp_path):
    net, some, given = told_network("mixed")
    exported = sn.export(net, (some, given), tmp_path / "net.onnx", knots=knots)
    deployed = sn.deploy(net, (some, given), knots=knots)
    with torch.no_grad():
        torch.testing.assert_close(exported(some, given), deployed(some, given), rtol=1e-5, atol=1e-5)


def test_files_with_conditions_that_make_no_sense(tmp_path):
    net, some, given = told_network("X")
    path = tmp_path / "net.onnx"
    sn.export(net, (some, given), path)
    model = onnx.load(path)
    entry, digest = model.metadata_props
    model.metadata_props.remove(digest)
    honest = json.loads(entry.value)
    for described, reason in (
        ({"angle": {"low": 0, "high": 0, "size": 1}}, "two finite ends that differ"),
        ({"angle": {"low": [0, 1], "high": [1, 2], "size": 1}}, "a range for 2"),
        ({"no word": {"low": 0, "high": 1, "size": 1}}, "a condition's name is a word"),
        ({"angle": {"low": 0}}, "high"),
        ({"angle": 3}, ""),
        ([1], ""),
    ):
        entry.value = json.dumps({**honest, "conditions": described})
        path.write_bytes(seal(model.SerializeToString(), onnx_file.tail))
        with pytest.raises(ValueError, match=rf"net\.onnx is damaged or not an export of this package.*{reason}"):
            sn.load_export(path)


def test_names_that_an_export_cannot_have(tmp_path):
    net, some = network("lenet4", "D(3)-X-R4")
    with pytest.raises(ValueError, match="cannot be called 'images'"):
        sn.export(sn.condition(net, name="images"), (some, 0.5), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="the condition 'angle' is missing"):
        sn.export(sn.condition(net, name="angle"), some, tmp_path / "net.onnx")


@pytest.mark.parametrize("threads", [1, 2])
def test_filters_stay_only_while_the_network_is_told_the_same(threads, tmp_path):
    net, some, given = told_network("mixed")
    sn.export(net, (some, given), tmp_path / "net.native", purpose="throughput")
    exported, angle = sn.load_export(tmp_path / "net.native", threads=threads), given["angle"]
    expected = net(some, angle)
    for at in ([0], [0], [3], [0], [0, 3, 3, 0, 5], [5], [5], [1, 1], [1], [1, 1]):
        torch.testing.assert_close(exported(some[at], angle[at]), expected[at], rtol=0, atol=1e-5)
        other = [(i + 7) % len(some) for i in at]  # other images, told the same
        torch.testing.assert_close(exported(some[other], angle[at]), net(some[other], angle[at]), rtol=0, atol=1e-5)
