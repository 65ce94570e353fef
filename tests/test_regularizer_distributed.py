"""Two processes with half the batch each give the loss and the gradient of one with all of it."""

import itertools

import torch
import torch.distributed as dist
from tests.helpers.runs import fork, outcome
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import splinenets as sn

CASES = [
    {"estimator": "bins"},
    {"estimator": "bins", "exact_gradient": True},
    {"estimator": "bins", "full_gradient": True},
    {"estimator": "bins", "full_gradient": True, "exact_gradient": True},
    {"estimator": "kernel", "full_gradient": True, "bandwidth": 0.1},
    {"estimator": "bins", "views": 2},
    {"estimator": "kernel", "views": 2, "full_gradient": True, "exact_gradient": True},
]
SHARES = ((10, 10), (6, 14), (2, 18))  # samples of either rank


def network():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 4)).double()
    return sn.convert(plain, "H(4)-D-R3 diffusion=0.7", example=torch.rand(4, 1, 9, 9).double(), spread=0.3)


def batch(views):
    torch.manual_seed(1)
    images, labels = torch.rand(20, 1, 9, 9).double(), torch.arange(20) % 3  # of 4 classes, so that one is absent
    return images.view(views, 20 // views, 1, 9, 9), labels.view(views, 20 // views)


def run(net, case, first, last):
    """Loss and parts of the samples first..last of the batch; gradients stay on the net."""
    views = case.get("views", 1)
    images, labels = (t[:, first // views : last // views].flatten(0, 1) for t in batch(views))
    regularizer = sn.MutualInformation(4, utilization=0.2, specialization=0.1, **case)
    logits, positions = sn.trace(net, images)
    parts = regularizer.parts(positions, None if views > 1 else labels)
    (parts.loss + 0 * logits.sum()).backward()  # DDP waits for a gradient of every parameter
    return {"loss": parts.loss.detach(), "entropy": parts.entropy.detach(), "told": parts.mutual_information.detach()}


def answers(net, case, first, last, named):
    numbers = run(net, case, first, last)
    return numbers | {name: p.grad for name, p in named.named_parameters() if p.grad is not None}


def rank(number, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=number, world_size=2)
    results = {}
    for share in SHARES:
        first, last = ((0, share[0]), (share[0], 20))[number]
        for i, case in enumerate(CASES):
            net = network()
            results[f"{share}/{i}"] = answers(DistributedDataParallel(net), case, first, last, net)
    torch.save(results, f"{folder}/rank{number}.pt")
    dist.destroy_process_group()


def test_two_ranks_equal_one(tmp_path):
    children = [fork(lambda number=number: rank(number, tmp_path)) for number in range(2)]
    assert [outcome(child) for child in children] == [0, 0]
    ranks = [torch.load(tmp_path / f"rank{number}.pt", weights_only=True) for number in range(2)]
    for i, case in enumerate(CASES):
        net = network()
        expected = answers(net, case, 0, 20, net)
        assert any(g.abs().max() > 1e-4 for name, g in expected.items() if ".projection." in name)
        for share, result in itertools.product(SHARES, ranks):
            found = result[f"{share}/{i}"]
            assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=lambda m, c=(case, share): f"{c}: {m}")
