"""Positions neither saturate nor die: on real images, at the start and after training."""

import pytest
import torch
import torch.nn.functional as F

import splinenets as sn

SPECS = ["D(5)-C-R3", "D(5)-D-R3", "H(5)-C-R3", "H(5)-D-R3"]
LENET, RESNET = (sn.models.lenet, 32, {}), (sn.models.resnet, 32, {"in_channels": 1})


@pytest.fixture(scope="module")
def data():
    train = sn.data.load("embedded").train
    images = train.images.float() / 255
    return (images - images.mean()) / images.std(), train.labels


def start(model, spec, images):
    build, size, options = model
    return sn.convert(build(size, **options), spec, example=images[:50], spread=0.1)


@torch.no_grad()
def check(net, images):
    for training in (False, True):
        _, positions = sn.trace(net.train(training), images)
        for name, position in positions.items():
            deviation = position.std().item()
            ends = ((position < 0.01) | (position > 0.99)).float().mean().item()
            assert 0.05 < deviation < 0.35, f"{name}: standard deviation {deviation:.3f}, training={training}"
            assert ends < 0.02, f"{name}: {ends:.1%} at the ends, training={training}"
            assert position.std(0).min() > 0.02, f"{name}: a spline that hardly moves, training={training}"


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("model", [LENET, RESNET], ids=["lenet", "resnet"])
def test_at_the_start(model, spec, data):
    images, _ = data
    check(start(model, spec, images), images[1000:1100])


def test_gradients_do_not_grow_along_a_hierarchy(data):
    images, labels = (part[:32] for part in data)
    norms = {}
    for spec in ("D(5)-C-R3", "H(5)-C-R3"):
        net = start(RESNET, spec, images)
        F.cross_entropy(net(images), labels).backward()
        norms[spec] = torch.nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
    assert norms["H(5)-C-R3"] < 2 * norms["D(5)-C-R3"]


def train(net, data, steps, batch=64):
    """The mean loss of the last 50 steps; guessing has 2.3."""
    images, labels = data
    losses = []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        pick = torch.randint(len(images), (batch,), generator=generator)
        loss = F.cross_entropy(net(images[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-50:]) / 50


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["H(5)-D-R3", *SPECS[:3]])
def test_lenet_after_training(spec, data):
    net = start(LENET, spec, data[0])
    assert train(net, data, 200) < 1.5
    check(net, data[0][1000:1250])


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_resnet_after_training(spec, data):
    net = start(RESNET, spec, data[0])
    assert train(net, data, 200, batch=32) < 1.9  # it learns; what matters here is where its samples are
    check(net, data[0][1000:1250])
