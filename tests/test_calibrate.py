import pytest
import torch
from tests.helpers.runs import recipe, tiny_task, train
from torch import nn

import splinenets as sn
from splinenets.projection import Projection
from splinenets.training.evaluation import calibrate_on


def network(spec="H(5)-D-R3"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 5)).double()
    return sn.convert(model, spec, example=images(8, 0), spread=0.5)


def images(count, seed):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1


def statistics(net):
    return {name: value for name, value in net.state_dict().items() if "running" in name and "projection" in name}


def test_statistics_are_those_of_the_responses():
    net = network("D(5)-D-R3")
    layer, x = net[0], images(30, 1)
    sn.calibrate(net, x)
    raw = x.flatten(1) @ layer.projection.weight.mT
    torch.testing.assert_close(layer.projection.running_mean, raw.mean(0))
    torch.testing.assert_close(layer.projection.running_var, raw.var(0, correction=0))


def test_batches_count_alike():
    net = network("D(5)-D-R3")
    x = images(60, 1)
    sn.calibrate(net, x.split(3))  # more batches than a running mean remembers
    raw = (x.flatten(1) @ net[0].projection.weight.mT).unflatten(0, (20, 3))
    torch.testing.assert_close(net[0].projection.running_mean, raw.mean((0, 1)))
    torch.testing.assert_close(net[0].projection.running_var, raw.var(1, correction=0).mean(0))


def test_decisions_are_standardised_on_the_examples():
    net, x = network().eval(), images(64, 2) * 4 - 9
    _, before = sn.trace(net, x)
    sn.calibrate(net, x)
    _, after = sn.trace(net, x)
    assert max(p.std() for p in before.values()) > 0.33 or max((p.mean() - 0.5).abs() for p in before.values()) > 0.1
    for positions in after.values():
        assert 0.2 < positions.std() < 0.33
        assert (positions.mean() - 0.5).abs() < 0.1


def test_nothing_else_changes():
    net = network()
    net[1].eval()
    modes, before, state = [m.training for m in net.modules()], net.state_dict(), torch.get_rng_state()
    before = {name: value.clone() for name, value in before.items()}
    sn.calibrate(net, [images(9, 3), (images(9, 4),)])
    assert [m.training for m in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == set(statistics(net))
    assert all("momentum" not in vars(m) for m in net.modules() if isinstance(m, Projection))


def test_training_gathers_anew():
    net, x = network().train(), images(20, 5)
    sn.calibrate(net, images(20, 6) * 100)
    net(x)
    raw = x.flatten(1) @ net[0].projection.weight.mT
    torch.testing.assert_close(net[0].projection.running_mean, raw.mean(0))


def test_a_plain_network_is_left_alone():
    sn.calibrate(nn.Linear(3, 3), iter(()))
    raw = network("D(5)-D-R3 raw")
    before = {name: value.clone() for name, value in raw.state_dict().items()}
    sn.calibrate(raw, images(5, 0))
    assert all(torch.equal(value, before[name]) for name, value in raw.state_dict().items())


def test_no_examples():
    net = network()
    before = {name: value.clone() for name, value in statistics(net).items()}
    with pytest.raises(ValueError, match="calibrate needs a batch of examples or more, got none"):
        sn.calibrate(net, [])
    assert all(torch.equal(value, before[name]) for name, value in statistics(net).items())


def test_an_example_that_does_not_fit_leaves_a_network_that_works():
    net = network().train()
    with pytest.raises(ValueError, match="input_size"):
        sn.calibrate(net, torch.zeros(2, 3, 9, 9, dtype=torch.float64))
    assert all(m.training and m.momentum == 0.1 for m in net.modules() if isinstance(m, Projection))


def test_a_run_learns_the_same_weights_with_it_and_without(tmp_path):
    """It is part of testing alone; and it is there: statistics are those of undistorted images."""
    chosen = recipe(epochs=2, calibrate=50)
    on, off = (train(recipe(epochs=2, calibrate=n), tmp_path / f"{n}").net for n in (50, 0))
    for (name, left), right in zip(on.named_parameters(), off.parameters(), strict=True):
        assert torch.equal(left, right), name
    found = {name: value.clone() for name, value in statistics(on).items()}
    assert not all(torch.equal(value, statistics(off)[name]) for name, value in found.items())
    calibrate_on(off, tiny_task(chosen), 50, torch.device("cpu"))
    assert all(torch.equal(value, statistics(off)[name]) for name, value in found.items())
