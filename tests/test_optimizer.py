"""Optimizers, averages of weights and losses of recipes, each beside an obvious version."""

import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.runs import files, recipe, tiny_task, train
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.testing import assert_close

import splinenets as sn
from splinenets.training import Watcher, load_run
from splinenets.training.build import build_network
from splinenets.training.loop import Batch, blend, learning_rate, summed_entropy
from splinenets.training.optimizer import build_optimizer

AIR = {"network": "air", "widths": (2, 3, 4), "model": "D(3)-C-R3", "plain": ("whitening",), "augment": "shift-flip"}


def moved(chosen, steps=3):
    """A network and its gradients, before and after some steps of a recipe's optimizer."""
    net = build_network(chosen, tiny_task(chosen))
    optimizer = build_optimizer(chosen, net)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    grads = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        for p in net.parameters():
            if p.requires_grad:
                p.grad = torch.randn_like(p)
        grads.append({name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()})
        optimizer.step()
    return net, before, grads


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "muon"])
def test_optimizers_are_torchs(name):
    """One of torch's for each parameter alone; filters, and knots, are rows of a matrix for Muon."""
    chosen = recipe(optimizer=name, learning_rate=0.01, weight_decay=0.1, momentum=0.8, **AIR)
    net, before, grads = moved(chosen)
    for key, parameter in net.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter, before[key])
            continue
        decay = 0.1 if parameter.dim() > 1 else 0.0
        rows = (-1, parameter.shape[-1]) if key.endswith("knots") else (len(parameter), -1)
        shape = rows if name == "muon" and parameter.dim() > 1 else parameter.shape
        alone = torch.nn.Parameter(before[key].reshape(shape).clone())
        rule = {
            "sgd": lambda p, d: torch.optim.SGD([p], lr=0.01, momentum=0.8, weight_decay=d),
            "nesterov": lambda p, d: torch.optim.SGD([p], lr=0.01, momentum=0.8, weight_decay=d, nesterov=True),
            "adamw": lambda p, d: torch.optim.AdamW([p], lr=0.01, weight_decay=d),
            "muon": lambda p, d: torch.optim.Muon(
                [p], lr=0.01, momentum=0.8, weight_decay=d, adjust_lr_fn="match_rms_adamw"
            ),
        }["adamw" if name == "muon" and parameter.dim() == 1 else name](alone, decay)
        for grad in grads:
            alone.grad = grad[key].reshape(shape)
            rule.step()
        assert_close(parameter.detach(), alone.detach().view_as(parameter), msg=key)


class Stops(Watcher):
    def step(self, step, loss, accuracy):
        if step == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["nesterov", "adamw", "muon"])
def test_resume_is_bit_exact(name, tmp_path):
    chosen = recipe(optimizer=name, average=0.9, mixup=0.4, label_smoothing=0.1, calibrate=20, **AIR)
    train(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path / "cut", watcher=Stops())
    train(chosen, tmp_path / "cut", resume=True)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_the_average_is_tested_and_kept(tmp_path, monkeypatch):
    """Against a list of all weights: each step keeps 0.8 of the average, and the first few count alike."""
    chosen = recipe(average=0.8, calibrate=0, epochs=2, precision="float64")
    seen = []

    class Looks(Watcher):
        def step(self, step, loss, accuracy):
            seen.append({name: p.detach().clone() for name, p in state[0].net.named_parameters()})

    state = []
    from splinenets.training import runner

    build = runner.State
    monkeypatch.setattr(runner, "State", lambda *parts: state.append(build(*parts)) or state[0])
    train(chosen, tmp_path / "run", watcher=Looks())
    expected = dict(seen[0])
    for step, weights in enumerate(seen[1:], 2):
        share = max(0.2, 1 / step)
        expected = {name: (1 - share) * old + share * weights[name] for name, old in expected.items()}
    monkeypatch.setattr("splinenets.training.run.load_task", tiny_task)
    net, *_ = load_run(tmp_path / "run")
    for name, parameter in net.named_parameters():
        assert_close(parameter, expected[name], msg=name)
        assert not torch.equal(parameter, seen[-1][name]) or name.startswith("matching")


def test_mixup_and_label_smoothing():
    images, labels = torch.randn(6, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    generator = torch.Generator().manual_seed(1)
    batch = blend(Batch((images,), labels), 0.5, generator)
    assert 0 < batch.share < 0.5
    rest = (batch.inputs[0] - (1 - batch.share) * images) / batch.share  # the images that were blended in
    for image, other in zip(rest, batch.others, strict=True):
        (found,) = ((images - image).abs().amax((1, 2, 3)) < 1e-9).nonzero()
        assert labels[found] == other
    logits = torch.randn(6, 3, dtype=torch.float64)
    one_hot = torch.lerp(F.one_hot(labels, 3).double(), F.one_hot(batch.others, 3).double(), batch.share)
    wanted = 0.9 * one_hot + 0.1 / 3
    assert_close(summed_entropy(logits, batch, 0.1), -(wanted * logits.log_softmax(1)).sum())


def test_a_triangle_of_rates():
    chosen = recipe(anneal="triangular", learning_rate=2.0, warmup=0.25)
    rates = [learning_rate(chosen, step, 20) for step in range(20)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert rates[5:] == pytest.approx([2 * (20 - step) / 15 for step in range(5, 20)])


def test_muon_is_one_of_torchs_optimizers():
    """It follows a schedule, and goes on from its state to the bit."""

    def network():
        torch.manual_seed(0)
        return sn.convert(sn.models.air((2, 3, 4)), "H(3)-C-R3", example=torch.randn(8, 3, 32, 32))

    def train(net, optimizer, schedule, steps):
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            net(torch.randn(8, 3, 32, 32)).square().mean().backward()
            optimizer.step()
            schedule.step()

    def begun(net):
        optimizer = sn.Muon(net, lr=0.02)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=6)

    whole, cut, resumed = network(), network(), network()
    train(whole, *begun(whole), range(6))
    optimizer, schedule = begun(cut)
    train(cut, optimizer, schedule, range(3))
    later, on = begun(resumed)
    resumed.load_state_dict(cut.state_dict())
    later.load_state_dict(deepcopy(optimizer.state_dict()))
    on.load_state_dict(schedule.state_dict())
    train(resumed, later, on, range(3, 6))
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_muon_moves_weights_in_any_order_of_memory():
    net = torch.nn.Conv2d(3, 5, 3)
    other = deepcopy(net).to(memory_format=torch.channels_last)
    assert not other.weight.is_contiguous()
    for each in (net, other):
        optimizer = sn.Muon(each)
        for _ in range(3):
            optimizer.zero_grad()
            each(torch.ones(2, 3, 8, 8)).square().mean().backward()
            optimizer.step(lambda: None)
    assert_close(net.weight, other.weight)
    assert not other.weight.is_contiguous()


def test_muon_asks_for_the_network():
    with pytest.raises(TypeError, match=r"Muon needs the network, .* got generator"):
        sn.Muon(torch.nn.Linear(2, 2).parameters())


def small():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    )
    return sn.convert(net, "D(3)-C-R3", example=torch.randn(4, 3, 6, 6))


def stepped(net, optimizer, steps=2):
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def copied(net, optimizer):
    return deepcopy((net, optimizer))


def pickled(net, optimizer):
    return pickle.loads(pickle.dumps((net, optimizer)))


def replaced(net, optimizer):
    for p, memory in list(optimizer.state.items()):
        optimizer.state[p] = dict(memory)
    return net, optimizer


@pytest.mark.parametrize("otherwise", [copied, pickled, replaced])
def test_muon_goes_on_after(otherwise):
    net = small()
    optimizer = sn.Muon(net)
    stepped(net, optimizer)
    plain = deepcopy(net)
    again = sn.Muon(plain)
    again.load_state_dict(deepcopy(optimizer.state_dict()))
    other = otherwise(net, optimizer)
    for a, b in zip(stepped(plain, again), stepped(*other), strict=True):
        assert torch.equal(a, b)
    assert all(other[1].state[p] for p in other[0].parameters())


def test_muon_in_distributed_checkpoints():
    net = small()
    found = get_optimizer_state_dict(net, sn.Muon(net))["state"]
    assert {key for memory in found.values() for key in memory} == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}


def test_muon_moves_what_is_unfrozen_later_and_autograd_sees_it():
    net = small()
    net[0].requires_grad_(False)
    optimizer = sn.Muon(net)
    before = net[0].knots.clone(), net[0].knots._version
    stepped(net, optimizer)
    assert torch.equal(net[0].knots, before[0])
    net[0].requires_grad_(True)
    stepped(net, optimizer)
    assert not torch.equal(net[0].knots, before[0])
    assert net[0].knots._version > before[1]


def test_muon_refuses_other_parameters():
    net = small()
    optimizer = sn.Muon(net)
    with pytest.raises(ValueError, match="takes no further parameters"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(2, 2))  # as FSDP does
    with pytest.raises(ValueError, match="were replaced by others"):
        optimizer.step()


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"lr": float("nan")}, {"momentum": -2.0}, {"weight_decay": -1.0}])
def test_muon_refuses_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=r"lr|rate|momentum|weight.decay"):
        sn.Muon(small(), **wrong)


def test_muon_leaves_embeddings_to_adamw():
    net = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 3))
    net.empty = torch.nn.Parameter(torch.empty(0, 3))
    assert [*sn.Muon(net).matrices] == [net[1].weight]
