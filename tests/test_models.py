import pytest
import torch

import splinenets as sn


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_lenet(channels, size):
    net = sn.models.lenet(8, in_channels=channels, image_size=size, classes=7)
    assert net(torch.randn(2, channels, size, size)).shape == (2, 7)
    convolutions = 8 * (25 * channels + 1) + 16 * (25 * 8 + 1)
    dense = 32 * (16 * (size // 4) ** 2 + 1) + 7 * 33
    assert count(net) == convolutions + dense


@pytest.mark.parametrize(
    ("depth", "parameters"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018), (110, 1_727_962)]
)
def test_resnet_has_the_size_its_authors_report(depth, parameters):
    # 0.27, 0.46, 0.66, 0.85 and 1.7 million in table 6 of He et al. 2015
    assert count(sn.models.resnet(depth)) == parameters


@pytest.mark.parametrize("shortcut", ["pad", "projection"])
def test_resnet(shortcut):
    net = sn.models.resnet(8, shortcut=shortcut, classes=5)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    assert net(torch.randn(2, 3, 20, 28)).shape == (2, 5)
    layers = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 8 + (2 if shortcut == "projection" else 0)


def test_the_parameter_free_shortcut_copies_pixels():
    block = sn.models.resnet(8).stages[1][0]
    x = torch.randn(1, 16, 4, 4)
    y = block.shortcut(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert not y[:, 16:].any()


def test_by_name():
    assert isinstance(sn.models.build("lenet32", in_channels=1, image_size=28), sn.models.LeNet)
    assert isinstance(sn.models.build("ResNet-20"), sn.models.ResNet)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sn.models.resnet(33), "6n \\+ 2.*got 33"),
        (lambda: sn.models.resnet(2), "got 2"),
        (lambda: sn.models.resnet(8, shortcut="none"), "'none', choose from"),
        (lambda: sn.models.lenet(0), "got 0"),
        (lambda: sn.models.lenet(4, image_size=3), "got 3"),
        (lambda: sn.models.build("vgg16"), "'vgg16'"),
        (lambda: sn.models.build(""), "''"),
    ],
)
def test_bad_input_is_named(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
