"""States that a network can be in, public functions that take one, and what does not work: one sentence says what does."""

import copy
import io

import torch
import torch.nn.functional as F
from torch import nn

import splinenets as sn

SPEC = "H(3)-C-R3 diffusion=0.5"
IMAGES, LABELS = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


class Net(nn.Module):
    """A root of its own, with batch norm, a layer that stays plain and layers of different sizes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.head = nn.Linear(4, 3)

    def forward(self, images):
        return self.head(self.body(torch.relu(self.stem(images))).mean((2, 3)))


def by_hand():
    layers = sn.SplineConv2d(3, 8, 3, padding=1, spec=SPEC), nn.ReLU(), sn.SplineConv2d(8, 4, 1, spec=SPEC)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), sn.SplineLinear(4, 3, spec=SPEC))


def converted(spec=SPEC):
    return sn.convert(Net(), spec, example=IMAGES, spread=0.3)


def trained(spec=SPEC):
    net = converted(spec)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        logits, positions = sn.trace(net, IMAGES)
        loss = F.cross_entropy(logits, LABELS) + 0.1 * sn.MutualInformation(classes=3)(positions, LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def loaded():
    net, file = converted(), io.BytesIO()
    torch.save(trained().state_dict(), file)
    file.seek(0)
    net.load_state_dict(torch.load(file, weights_only=True))
    return net


def compiled():
    return torch.compile(trained(), fullgraph=True, backend="eager")


STATES = {
    "plain": Net,
    "fresh layers": by_hand,
    "connected": lambda: sn.connect(by_hand(), IMAGES),
    "converted": converted,
    "independent": lambda: trained("H(3)-C-R3 independent raw"),
    "trained": trained,
    "loaded": loaded,
    "copied": lambda: copy.deepcopy(trained()),
    "folded": lambda: sn.fold_batchnorm(trained(), IMAGES),
    "deployed": lambda: sn.deploy(trained(), IMAGES),
    "deployed bf16": lambda: sn.deploy(trained(), IMAGES, knots="bf16"),
    "deployed int8": lambda: sn.deploy(trained(), IMAGES, knots="int8"),
    "deployed twice": lambda: sn.deploy(sn.deploy(trained(), IMAGES), IMAGES),
    "collapsed": lambda: sn.collapse(trained(), 0.3),
    "compiled": compiled,
}


def call(net):
    with torch.no_grad():
        return net(IMAGES)


def trace(net):
    logits, positions = sn.trace(net.eval(), IMAGES)
    assert set(positions) == {
        n for n, m in getattr(net, "_orig_mod", net).named_modules() if isinstance(m, sn.SplineLayer)
    }
    return logits


def steer(net):
    layers = {n: m for n, m in getattr(net, "_orig_mod", net).named_modules() if isinstance(m, sn.SplineLayer)}
    with sn.steer(net.eval(), {name: torch.zeros(layer.splines) for name, layer in layers.items()}):
        _, positions = sn.trace(net, IMAGES)
    assert all(not p.any() for p in positions.values())


def unsteered(net):
    """A network steered to where it goes by itself is the network itself."""
    with torch.no_grad():
        logits, positions = sn.trace(net.eval(), IMAGES)
        with sn.steer(net, positions):
            torch.testing.assert_close(net(IMAGES), logits)


def cost(net):
    found = sn.cost(net, IMAGES[:1])
    assert found.macs > 0
    assert found.bytes_read > 0
    assert str(found)


def connect(net):
    """Connecting anew changes no answer of a network that was connected, as all are but fresh layers."""
    sn.connect(net, IMAGES)
    expected = call(net.eval())
    torch.testing.assert_close(call(sn.connect(net, IMAGES)), expected, rtol=1e-4, atol=1e-5)


def health(net):
    _, positions = sn.trace(net.eval(), IMAGES.repeat(3, 1, 1, 1))
    assert str(sn.health(positions, LABELS.repeat(3)))


def regularize(net):
    _, positions = sn.trace(net, IMAGES)
    assert sn.MutualInformation(classes=3)(positions, LABELS).isfinite()


def calibrate(net):
    sn.calibrate(net, IMAGES)
    return net.eval()(IMAGES)


def same_after(change):
    def action(net):
        expected = call(net.eval())
        torch.testing.assert_close(call(change(net).eval()), expected, rtol=1e-3, atol=1e-4)

    return action


def collapse(net):
    plain = sn.collapse(net, 0.5)
    assert not any(isinstance(m, sn.SplineLayer) for m in plain.modules())
    return call(plain.eval())


def save_and_load(net):
    file, twin = io.BytesIO(), copy.deepcopy(net)
    torch.save(net.state_dict(), file)
    file.seek(0)
    for tensor in twin.state_dict().values():
        tensor.zero_()
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(call(twin.eval()), call(net.eval()))


def learn(net):
    net.train()
    F.cross_entropy(net(IMAGES), LABELS).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def compile_(net):
    torch._dynamo.reset()
    found = torch.compile(net.eval(), fullgraph=True, backend="eager")
    torch.testing.assert_close(call(found), call(net), rtol=1e-3, atol=1e-4)


def export(net):
    program = torch.export.export(net.eval(), (IMAGES,))
    torch.testing.assert_close(call(program.module()), call(net), rtol=1e-3, atol=1e-4)


ACTIONS = {
    "call": call,
    "learn": learn,
    "trace": trace,
    "steer": steer,
    "steer to itself": unsteered,
    "cost": cost,
    "connect": connect,
    "health": health,
    "regularize": regularize,
    "calibrate": calibrate,
    "convert": same_after(lambda net: sn.convert(net, "D(3)-C-R3", example=IMAGES)),
    "fold": same_after(lambda net: sn.fold_batchnorm(net, IMAGES)),
    "deploy": same_after(lambda net: sn.deploy(net, IMAGES)),
    "collapse": collapse,
    "copy": same_after(copy.deepcopy),
    "save and load": save_and_load,
    "compile": compile_,
    "torch.export": export,
}
DEPLOYED = ("deployed", "deployed bf16", "deployed int8", "deployed twice")
WITHOUT_SPLINES = ("plain", "collapsed")
ALREADY = "nothing to convert: is a spline layer already"
# what does not work: (action, state) -> what the one sentence says
REFUSED = {
    **{("convert", state): ALREADY for state in STATES if state not in WITHOUT_SPLINES},
    **{("collapse", state): "no spline layers to collapse" for state in WITHOUT_SPLINES},
    **{("health", state): "no positions" for state in WITHOUT_SPLINES},
    **{("regularize", state): "no positions" for state in WITHOUT_SPLINES},
    **{
        ("learn", state): "does not require grad" for state in DEPLOYED
    },  # torch's own sentence: nothing is left to learn
}
