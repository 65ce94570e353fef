"""Networks that ship with the package: they load offline, and do as well as their cards say."""

import copy
import sys

import pytest
import torch

import splinenets as sn
from splinenets.shipped import FOLDER, names, save


@pytest.mark.parametrize("name", names())
def test_a_shipped_network_is_small_and_knows_its_kind(name):
    net = sn.pretrained(name)
    assert not net.training
    assert net.card["name"] == name
    images = torch.zeros(2, net.card["channels"], net.card["image_size"], net.card["image_size"], dtype=torch.uint8)
    assert net(net.prepare(images)).shape == (2, len(net.classes))
    found = sn.cost(net, net.prepare(images[:1]))
    assert (found.parameters, found.macs) == (net.card["parameters"], net.card["macs"])
    copy.deepcopy(net)


def test_all_of_them_are_small():
    assert all(path.stat().st_size < 10e6 for path in FOLDER.iterdir())


def test_fashion_on_the_images_that_ship():
    net, data = sn.pretrained("fashion-mnist/D(5)-D-R3"), sn.data.load()
    assert net.classes == data.classes
    with torch.inference_mode():
        logits, positions = sn.trace(net, net.prepare(data.test.images))
    right = (logits.argmax(1) == data.test.labels).double().mean()
    assert abs(right - net.card["test_accuracy"]) < 0.03  # 1,000 of the 10,000 test images
    assert len(positions) == 3


def test_unknown_names_are_told_what_there_is():
    with pytest.raises(ValueError, match=r"there is no trained network 'mnist/X', choose from .*fashion-mnist/D\(5\)"):
        sn.pretrained("mnist/X")


def test_static_networks_can_be_shipped_too(tmp_path, monkeypatch):
    twin = sn.models.lenet(2)
    card = {"name": "x/static", "network": "lenet2", "model": "static", "plain": [], "channels": 1, "image_size": 28}
    card |= {"classes": [str(i) for i in range(10)], "augment": "none", "mean": [0.1], "std": [0.3]}
    save(card, twin.state_dict(), tmp_path)
    monkeypatch.setattr(sys.modules["splinenets.shipped"], "FOLDER", tmp_path)
    net = sn.pretrained("x/static")
    images = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    expected = twin.eval()((images / 255 - 0.1) / 0.3)
    torch.testing.assert_close(net(net.prepare(images)), expected)
