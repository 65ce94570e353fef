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


def test_resnet_of_other_widths():
    net = sn.models.resnet(8, widths=(4, 4, 12))
    assert [stage[0].conv1.out_channels for stage in net.stages] == [4, 4, 12]
    assert net(torch.randn(2, 3, 16, 16)).shape == (2, 10)
    assert sn.models.resnet(8, widths=(12, 6, 4), shortcut="projection")(torch.randn(2, 3, 16, 16)).shape == (2, 10)


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


def test_air():
    net = sn.models.air((4, 6, 8), classes=5)
    for size in (9, 32, 40):
        assert net(torch.randn(2, 3, size, size)).shape == (2, 5)
    learned = sum(p.numel() for p in net.parameters() if p.requires_grad)
    filters = 9 * (24 * 4 + 4 * 4 + 4 * 6 + 6 * 6 + 6 * 8 + 8 * 8)
    assert learned == 24 + filters + 2 * (4 + 6 + 8) + 5 * (8 + 1)
    assert len([m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]) == 8
    assert 53e6 < sn.cost(sn.models.air(), torch.zeros(1, 3, 32, 32)).macs < 55e6


def test_air_whitens_patches():
    """Whatever the images, the first layer's answers to them are uncorrelated and have a variance of 1."""
    net = sn.models.air((4, 4, 4), in_channels=2).double()
    images = torch.randn(200, 2, 9, 9, dtype=torch.float64).cumsum(2) * 3
    images[:, 1] += images[:, 0]
    images -= images.mean()
    net.whiten(images)
    with torch.no_grad():
        net.whitening.bias.zero_()
    answers = net.whitening(images).movedim(1, -1).reshape(-1, 16)
    torch.testing.assert_close(answers[:, 8:], -answers[:, :8])
    covariance = answers[:, :8].T @ answers[:, :8] / len(answers)
    torch.testing.assert_close(covariance, torch.eye(8, dtype=torch.float64), atol=0.02, rtol=0)


def test_air_begins_by_handing_its_channels_on():
    group = sn.models.air((32, 32, 32)).groups[1]
    x = torch.randn(2, 32, 8, 8)
    torch.testing.assert_close(group.conv1(x), x)


def test_by_name():
    assert sn.models.build("air4-6-8").groups[2].conv2.out_channels == 8
    assert isinstance(sn.models.build("lenet32", in_channels=1, image_size=28), sn.models.LeNet)
    assert isinstance(sn.models.build("ResNet-20"), sn.models.ResNet)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sn.models.resnet(33), "6n \\+ 2.*got 33"),
        (lambda: sn.models.resnet(2), "got 2"),
        (lambda: sn.models.resnet(8, widths=(16, 8, 64)), "three growing widths, such as 16, 32, 64, got 16, 8, 64"),
        (lambda: sn.models.resnet(8, widths=(16, 32)), "got 16, 32"),
        (lambda: sn.models.resnet(8, shortcut="none"), "'none', choose from"),
        (lambda: sn.models.lenet(0), "got 0"),
        (lambda: sn.models.lenet(4, image_size=3), "got 3"),
        (lambda: sn.models.air((4, 4)), "widths of 3 groups.*got \\(4, 4\\)"),
        (lambda: sn.models.air((4, 0, 4)), "got \\(4, 0, 4\\)"),
        (lambda: sn.models.build("air16"), "'air16'"),
        (lambda: sn.models.build("lenet16-4"), "'lenet16-4'"),
        (lambda: sn.models.build("vgg16"), "'vgg16'"),
        (lambda: sn.models.build(""), "''"),
    ],
)
def test_bad_input_is_named(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
