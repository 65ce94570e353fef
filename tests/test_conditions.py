"""Positions from outside: what a network is told, checked and handed to its layers, in every state it can be in."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.problems import LAYERS, make, plain
from tests.helpers.problems import basis as slow_basis
from tests.helpers.states import Net
from torch import nn

import splinenets as sn

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ANGLES = torch.tensor([0.0, 45.0, 90.0, 200.0, 359.0, 360.0])


def told(spec="D(5)-X-R4", **settings):
    torch.manual_seed(0)
    net = sn.convert(Net(), spec, example=IMAGES, spread=0.5)
    return sn.condition(net, 0, 360, name="angle", **settings).eval()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("spec", ["D(5)-X-R4", "D(4)-X-R3 degree=3 closed", "D(3)-X-G2 degree=1 independent"])
def test_layers_stand_where_they_are_told(name, spec):
    torch.manual_seed(0)
    layer, shape = make(name, spec)
    net = sn.condition(nn.Sequential(layer))
    x, position = torch.randn(4, *shape, dtype=torch.float64), torch.tensor([0.0, 0.3, 0.85, 1.0], dtype=torch.float64)
    for number in range(4):
        values = slow_basis(position[number], layer.spec.knots, layer.spec.spline_degree, layer.spec.closed)
        weight = torch.tensordot(values, layer.control_points(), 1)
        expected = plain(layer, x[number : number + 1], weight)[0]
        torch.testing.assert_close(net(x, position)[number], expected)


def test_what_it_is_told_may_be_written_in_several_ways():
    net, angle = told(), ANGLES
    expected = net(IMAGES, angle)
    for inputs, named in (
        ((IMAGES, {"angle": angle}), {}),
        ((IMAGES,), {"angle": angle}),
        ((IMAGES, angle.unsqueeze(1)), {}),
        ((IMAGES, angle.double()), {}),
        ((), {"images": IMAGES, "angle": angle}),
    ):
        assert torch.equal(net(*inputs, **named), expected)
    assert torch.equal(net(IMAGES, 90), net(IMAGES, torch.full((6,), 90)))
    assert torch.equal(net(IMAGES, 90)[2], expected[2])


def test_ranges():
    net = told()
    expected = net(IMAGES, ANGLES)
    same = sn.condition(net.net, -1, 1)
    torch.testing.assert_close(same(IMAGES, ANGLES / 180 - 1), expected)
    backwards = sn.condition(net.net, 360, 0)
    torch.testing.assert_close(backwards(IMAGES, 360 - ANGLES), expected)
    with pytest.raises(ValueError, match=r"call what sn.condition\(net\) returned last"):
        net(IMAGES, ANGLES)


def test_closed_curves_end_where_they_begin():
    net = told("D(5)-X-R4 closed")
    torch.testing.assert_close(net(IMAGES, 0), net(IMAGES, 360), rtol=1e-5, atol=1e-6)
    open_ended = told("D(5)-X-R4")
    assert not torch.allclose(open_ended(IMAGES, 0), open_ended(IMAGES, 360), atol=1e-3)


def test_a_gradient_for_the_condition():
    net = told("D(5)-X-R4 closed").double()
    angle = ANGLES[:5].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: net(IMAGES[:5].double(), a + 0.5), (angle,))


def test_mixed_networks():
    """Some layers are told, some decide, some inherit, and some are plain."""
    specs = {"stem": "D(4)-X-R4", "body.0": "H(3)-C-R3", "body.3": "D(3)-C-R4", "head": None}
    torch.manual_seed(0)
    net = sn.condition(sn.convert(Net(), specs, example=IMAGES, spread=0.5), 0, 360, name="angle").eval()
    _, positions = sn.trace(net, IMAGES, ANGLES)
    assert positions.given == {"net.stem"}
    torch.testing.assert_close(positions["net.stem"].flatten(), ANGLES / 360)
    moved = sn.trace(net, IMAGES, 360 - ANGLES)[1]
    assert not torch.allclose(moved["net.body.0"], positions["net.body.0"])  # it inherits from what was told
    assert set(positions.inferred()) == {"net.body.0", "net.body.3"}
    report = sn.health(sn.trace(net, IMAGES.repeat(10, 1, 1, 1), ANGLES.repeat(10))[1])
    assert {layer.layer for layer in report.layers} == {"net.body.0", "net.body.3"}


def test_several_conditions():
    specs = {"stem": "D(4)-X-R4", "body.*": "D(3)-X-R4 dims=2", "head": "D(3)-X-R4"}
    torch.manual_seed(0)
    net = sn.convert(Net(), specs, example=IMAGES, spread=0.5).eval()
    both = sn.condition(net, angle=sn.Condition(0, 360, layers="[sb]*"), noise=sn.Condition(0, 50, layers="[hb]*"))
    noise = torch.linspace(0, 50, 6)
    _, positions = sn.trace(both, IMAGES, angle=ANGLES, noise=noise)
    torch.testing.assert_close(positions["net.stem"], (ANGLES / 360).unsqueeze(1))
    torch.testing.assert_close(positions["net.head"], (noise / 50).unsqueeze(1))
    torch.testing.assert_close(positions["net.body.0"], torch.stack([ANGLES / 360, noise / 50], 1).unsqueeze(1))
    assert torch.equal(both(IMAGES, {"angle": ANGLES, "noise": noise}), both(IMAGES, angle=ANGLES, noise=noise))
    surface = sn.condition(sn.convert(Net(), "D(3)-X-R4 dims=2", example=IMAGES), (0, 0), (360, 50), name="both")
    assert surface(IMAGES, torch.stack([ANGLES, noise], 1)).shape == (6, 3)


def test_not_a_number_touches_its_own_sample_alone():
    net = told()
    angle = ANGLES.clone()
    angle[2] = float("nan")
    expected, found = net(IMAGES, ANGLES), net(IMAGES, angle)
    assert found[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], expected[others])


SURFACE = {"stem": "D(3)-X-R4 dims=2", "*": None}


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: told()(IMAGES), "the condition 'angle' is missing: call the network as net.images, angle."),
        (lambda: told().net(IMAGES), "nobody gave angle: call what sn.condition"),
        (lambda: told()(IMAGES, 400), "'angle' lies between 0 and 360, got 400"),
        (lambda: told()(IMAGES, ANGLES - 1), "'angle' lies between 0 and 360, got -1"),
        (lambda: told()(IMAGES, float("inf")), "'angle' lies between 0 and 360, got inf"),
        (lambda: told()(IMAGES, ANGLES[:5]), r"'angle' has shape \(6,\) for this batch, got \(5,\)"),
        (lambda: told()(IMAGES, torch.zeros(6, 2)), r"'angle' has shape \(6,\) for this batch, got \(6, 2\)"),
        (lambda: told()(IMAGES, "north"), "'angle' is a tensor or a number, got str"),
        (lambda: told()(IMAGES, {"angel": ANGLES}), "unknown condition 'angel', choose from angle"),
        (lambda: sn.condition(Net()), "Net has no layer with X in its spec, such as D"),
        (lambda: sn.condition(told().net, 3, 3), "'condition' needs two finite ends that differ, got 3 and 3"),
        (lambda: sn.condition(told().net, 0, float("nan")), "needs two finite ends that differ"),
        (lambda: sn.condition(told().net, name="an angle"), "name is a word, as variables have it, got 'an angle'"),
        (lambda: sn.condition(told().net, angle=3), r"'angle' is an sn.Condition\(low, high\), got int"),
        (lambda: sn.condition(told().net, angle=sn.Condition(layers="stem")), "no condition fits the layer 'body.0'"),
        (lambda: sn.condition(told().net, a=sn.Condition(), b=sn.Condition(layers="c*")), "no X layer listens to 'b'"),
        (
            lambda: sn.condition(told().net, a=sn.Condition(), b=sn.Condition(layers="stem")),
            "'stem' has one position, and a and b fit it",
        ),
        (
            lambda: sn.condition(sn.convert(Net(), SURFACE, example=IMAGES), (0, 0, 0), (1, 1, 1)),
            "is 2 numbers to its layers, got a range for 3",
        ),
        (lambda: sn.SplineSpec.parse("H(5)-X-R4"), "nothing decides on them: no H"),
        (lambda: sn.SplineSpec.parse("D(5)-X-R4 diffusion=0.5"), "nothing decides on them: no H, diffusion"),
        (lambda: sn.SplineSpec.parse("D(5)-C-R3 degree=0 closed"), "a closed spline needs degree 1 or more"),
        (lambda: sn.MutualInformation(classes=3)({}, ANGLES.long()), "position"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


def trained():
    net = told("D(5)-X-R4 closed").train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        logits, positions = sn.trace(net, IMAGES, ANGLES)
        loss = F.cross_entropy(logits, torch.arange(6) % 3) + sn.MutualInformation(classes=3)(
            positions, torch.arange(6) % 3
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def loaded():
    net, file = told("D(5)-X-R4 closed"), io.BytesIO()
    torch.save(trained().state_dict(), file)
    file.seek(0)
    net.load_state_dict(torch.load(file, weights_only=True))
    return net.eval()


STATES = {
    "loaded": loaded,
    "copied": lambda: copy.deepcopy(trained()),
    "folded": lambda: sn.fold_batchnorm(trained(), (IMAGES, ANGLES)),
    "deployed": lambda: sn.deploy(trained(), (IMAGES, ANGLES)),
    "connected": lambda: sn.connect(trained(), IMAGES, ANGLES),
    "compiled": lambda: torch.compile(trained(), fullgraph=True, backend="eager"),
    "strategy bank": trained,
}


@pytest.mark.parametrize("state", STATES)
def test_every_state_gives_the_same_answers(state):
    expected = trained()(IMAGES, ANGLES)
    net = STATES[state]()
    with torch.no_grad(), sn.strategy("bank" if state == "strategy bank" else "auto"):
        torch.testing.assert_close(net(IMAGES, ANGLES), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net(IMAGES[:2], ANGLES[:2]), expected[:2], rtol=1e-4, atol=1e-5)
        assert sn.trace(net, IMAGES, ANGLES)[1].given
        assert sn.cost(net, (IMAGES[:1], ANGLES[:1])).macs > 0


def test_nothing_is_decided_so_nothing_is_paid_for():
    price = sn.cost(told(), (IMAGES[:1], ANGLES[:1]))
    assert price.total.projection == price.total.decision == 0
    assert price.total.weights > 0


def test_training_compiled_is_training():
    twins = [told("D(5)-X-R4 closed").train() for _ in range(2)]
    calls = [twins[0], torch.compile(twins[1], fullgraph=True, backend="aot_eager")]
    for call, net in zip(calls, twins, strict=True):
        call(IMAGES, ANGLES).square().sum().backward()
        call(IMAGES[:3], ANGLES[:3]).square().sum().backward()
        assert all(p.grad is not None for p in net.parameters())
    for p, q in zip(*(net.parameters() for net in twins), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def test_gradient_checkpointing():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, images):
            x = checkpoint(self.body, torch.relu(self.stem(images)), use_reentrant=False)
            return self.head(x.mean((2, 3)))

    gradients = []
    for kind in (Net, Checkpointed):
        torch.manual_seed(0)
        net = sn.condition(sn.convert(kind(), "D(4)-X-R4", example=IMAGES, spread=0.5), 0, 360)
        net(IMAGES, ANGLES).square().sum().backward()
        gradients.append([p.grad for p in net.parameters()])
    for p, q in zip(*gradients, strict=True):
        torch.testing.assert_close(p, q)


def test_the_regulariser_leaves_what_is_given_alone():
    net = told().train()
    _, positions = sn.trace(net, IMAGES, ANGLES)
    assert sn.MutualInformation(classes=3)(positions, torch.arange(6) % 3) == 0
    assert not sn.health(positions).layers
