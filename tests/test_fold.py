import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import zoo
from torch import nn
from torch.nn.utils import parametrize

import splinenets as sn


def trained(net, x, steps=3):
    """Batch norms that have seen something, and affine parts that do something."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) and not parametrize.is_parametrized(module):
            module.momentum = 0.5
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    with torch.no_grad():
        for _ in range(steps):
            net.train()(x)
    return net.eval()


def norms(net):
    return sum(isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d) for m in net.modules())


@pytest.mark.parametrize("spec", ["static", "D(5)-C-R3", "H(5)-D-R3", "H(3)-C-G4 independent dims=2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("by_example", [True, False])
def test_folding_is_exact_in_eval_mode(spec, dtype, tolerance, by_example):
    x = torch.randn(8, 3, 12, 12, dtype=dtype)
    net = sn.models.resnet(14, shortcut="projection").to(dtype)
    if spec != "static":
        net = sn.convert(net, spec, example=x, spread=0.3)
    trained(net, x)
    folded = sn.fold_batchnorm(net, example=x[:2] if by_example else None)
    assert norms(net) == 15
    assert norms(folded) == 0
    expected = net(x)
    torch.testing.assert_close(folded(x), expected, rtol=0, atol=tolerance * expected.abs().max().item() * 10)


def test_only_what_follows_directly_is_folded():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm_a = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.b, self.norm_b = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.c = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.a(x)
            y = self.norm_a(y) + y  # used twice
            return self.c(self.norm_b(self.b(y)).relu())

    x = torch.randn(4, 3, 5, 5)
    net = trained(sn.convert(Both(), "D(3)-C-R3", spread=0.5), x)
    for example in (None, x):
        folded = sn.fold_batchnorm(net, example=example)
        assert isinstance(folded.norm_a, nn.BatchNorm2d)
        assert isinstance(folded.norm_b, nn.Identity)
        torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


def test_a_layer_that_is_called_twice_is_not_folded():
    layer, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    net = trained(sn.convert(nn.Sequential(layer, norm, layer), "D(3)-C-R4"), torch.randn(4, 3, 5, 5))
    assert norms(sn.fold_batchnorm(net)) == 1


def test_networks_that_decide_while_they_run_need_an_example():
    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x)) if x.sum() > -1e9 else x

    x = torch.randn(4, 3, 5, 5)
    net = trained(sn.convert(Deciding(), "D(3)-C-R4", spread=1.0), x)
    with pytest.raises(ValueError, match="pass an example"):
        sn.fold_batchnorm(net)
    folded = sn.fold_batchnorm(net, example=x)
    assert norms(folded) == 0
    torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ResNet", "MobileNetV2", "RegNet"])
def test_networks_from_elsewhere(name):
    model, images = zoo.build(name)
    net = sn.convert(model, "H(3)-C-R3", example=images, spread=0.2).eval()
    folded = sn.fold_batchnorm(net, example=images)
    assert norms(folded) < norms(net) / 2
    torch.testing.assert_close(folded(images)[0], net(images)[0], rtol=1e-9, atol=1e-9)


class BatchNormAct2d(nn.BatchNorm2d):
    """Norm and activation in one module, as timm has it."""

    def forward(self, x):
        return super().forward(x).relu()


class Renamed(nn.BatchNorm2d):
    """Another name for the same."""


def with_own_forward(norm):
    plain = norm.forward
    norm.forward = lambda x: plain(x).relu()
    return norm


def with_hook(norm):
    norm.register_forward_hook(lambda module, args, output: output.relu())
    return norm


def with_pre_hook(norm):
    norm.register_forward_pre_hook(lambda module, args: (args[0].relu(),))
    return norm


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def with_parametrisation(norm):
    parametrize.register_parametrization(norm, "weight", Doubled())
    return norm


NORMS = {
    "own class": (BatchNormAct2d, False),
    "own forward": (lambda f: with_own_forward(nn.BatchNorm2d(f)), False),
    "hook": (lambda f: with_hook(nn.BatchNorm2d(f)), False),
    "pre-hook": (lambda f: with_pre_hook(nn.BatchNorm2d(f)), False),
    "parametrised": (lambda f: with_parametrisation(nn.BatchNorm2d(f)), False),
    "no statistics": (lambda f: nn.BatchNorm2d(f, track_running_stats=False), False),
    "another name": (Renamed, True),
    "torch's own": (nn.BatchNorm2d, True),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("spec", [None, "D(3)-C-R3"])
def test_what_a_module_is_decides(name, spec):
    """Twelve blocks of convolution and norm, as initialised: so little is left at the end that nothing would show."""
    build, folds = NORMS[name]
    x = torch.randn(4, 3, 8, 8)
    blocks = [part for i in range(12) for part in (nn.Conv2d(8 if i else 3, 8, 3, padding=1), build(8))]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()
    if spec is not None:
        net = sn.convert(net, spec, example=x, spread=0.1)
    folded = sn.fold_batchnorm(net, example=x[:1])
    assert norms(folded) == (0 if folds else 12)
    if name not in ("own class", "another name"):  # which torch.fx looks into
        assert norms(sn.fold_batchnorm(net)) == (0 if folds else 12)
    for images in (x, 100 * torch.randn(4, 3, 8, 8)):
        torch.testing.assert_close(folded(images), net(images), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("change", [with_hook, lambda conv: legacy_weight_norm(conv), with_parametrisation])
def test_what_a_layer_is_decides(change):
    x = torch.randn(4, 3, 5, 5)
    net = trained(nn.Sequential(change(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)), x)
    for example in (None, x):
        assert norms(sn.fold_batchnorm(net, example)) == 1


def legacy_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


class Block(nn.Module):
    """A convolution and its norm, whose output or weight somebody else may read, a little."""

    def __init__(self, reads):
        super().__init__()
        self.conv, self.norm, self.after = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
        self.reads = reads

    def forward(self, x):
        y = self.conv(x)
        z = self.after(self.norm(y))
        return self.reads(self, y, z)


READS = {
    "output": lambda net, y, z: z + 1e-9 * y,
    "in place": lambda net, y, z: z + 1e-9 * y.mul_(2),
    "a view": lambda net, y, z: z + 1e-9 * y[:, :1],
    "returned": lambda net, y, z: (z, y),
    "a layer": lambda net, y, z: z + 1e-9 * net.after2(y),
    "one number": lambda net, y, z: z + 1e-9 * y.mean().item(),
}


@pytest.mark.parametrize("name", READS)
def test_an_output_that_somebody_else_reads_is_left(name):
    x = torch.randn(4, 3, 5, 5)
    net = Block(READS[name])
    net.after2 = sn.SplineConv2d(3, 3, 1)
    net = trained(net, x)
    folded = sn.fold_batchnorm(net, example=x)
    assert norms(folded) == 1
    torch.testing.assert_close(folded(x), net(x))


def test_a_weight_that_somebody_else_reads_is_left():
    x = torch.randn(4, 3, 5, 5)
    net = trained(Block(lambda net, y, z: z + F.conv2d(z, net.conv.weight)), x)
    for example in (None, x):
        folded = sn.fold_batchnorm(net, example)
        assert norms(folded) == 1
        torch.testing.assert_close(folded(x), net(x))


def test_layers_that_share_a_weight_do_not_share_a_norm():
    x = torch.randn(4, 3, 5, 5)
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.ReLU())
    net[3].weight = net[0].weight
    net = trained(net, x)
    for example in (None, x):
        folded = sn.fold_batchnorm(net, example)
        assert norms(folded) == 0
        torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


class Kept(nn.Module):
    """Holds its norm a second time, where torch does not see it, and calls that."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.order = [self.conv, self.norm]

    def forward(self, x):
        for module in self.order:
            x = module(x)
        return x


def test_a_norm_is_folded_wherever_it_is_kept():
    x = torch.randn(4, 3, 5, 5)
    net = trained(Kept(), x)
    for example in (None, x):
        folded = sn.fold_batchnorm(net, example)
        assert norms(folded) == 0
        torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "left"), [((8, 6), 0), ((8, 5, 6), 1)])
def test_features_of_a_linear_layer_may_be_rows(shape, left):
    """With as many rows as features, the shapes of a batch norm of rows fit that of features."""
    x = torch.randn(shape)
    net = trained(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), x)
    assert norms(sn.fold_batchnorm(net)) == 1
    folded = sn.fold_batchnorm(net, x)
    assert norms(folded) == left
    torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


def test_networks_that_insist_on_their_numbers():
    class Insists(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x.float()))

    x = torch.randn(4, 3, 5, 5)
    net = trained(Insists(), x)
    folded = sn.fold_batchnorm(net, example=x)
    assert norms(folded) == 0
    torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["D(5)-C-R3", "H(4)-D-G2 dims=2", "H(3)-D-R4 independent"])
def test_collapse_at_a_position(spec):
    x = torch.randn(4, 3, 12, 12)
    net = sn.convert(sn.models.resnet(8), spec, example=x, spread=0.5).eval()
    plain = sn.collapse(net, 0.3)
    assert not any(isinstance(m, sn.SplineLayer) for m in plain.modules())
    assert type(plain.conv) is nn.Conv2d
    assert not plain._forward_hooks
    assert plain.state_dict().keys() == sn.models.resnet(8).state_dict().keys()
    position = torch.full((1, net.conv.coordinates), 0.3)
    torch.testing.assert_close(plain.conv.weight, net.conv.weights_at(position)[0])
    assert plain(x).shape == (4, 10)


def test_collapse_of_constant_positions_changes_nothing():
    x = torch.randn(4, 3, 12, 12)
    net = sn.convert(sn.models.resnet(8), "D(5)-C-R3", example=x, spread=0.5).eval()
    for module in net.modules():
        if isinstance(module, sn.SplineLayer):
            nn.init.zeros_(module.projection.weight)
            nn.init.normal_(module.projection.running_mean)
    y, positions = sn.trace(net, x)
    torch.testing.assert_close(sn.collapse(net, positions)(x), y, rtol=1e-4, atol=1e-5)


def test_collapse_refuses_what_it_cannot_do():
    x = torch.randn(4, 3, 12, 12)
    net = sn.convert(sn.models.resnet(8), "D(5)-C-R3", spread=0.5).eval()
    _, positions = sn.trace(net, x)
    with pytest.raises(ValueError, match="'conv' are not constant: they differ by up to"):
        sn.collapse(net, positions)
    with pytest.raises(ValueError, match="no positions for layer 'conv'"):
        sn.collapse(net, {})
    with pytest.raises(ValueError, match="got 2"):
        sn.collapse(net, 2)
    with pytest.raises(ValueError, match="no spline layers"):
        sn.collapse(nn.Linear(2, 2))
