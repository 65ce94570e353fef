"""Networks that ship with the package: they load offline, and do as well as their cards say."""

import copy
import random
import shutil
import sys

import pytest
import torch

import splinenets as sn
from splinenets.shipped import FOLDER, file_name, names, save

NAME = "fashion-mnist/D(5)-D-R3"


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
    assert all(path.stat().st_size < 5e6 for path in FOLDER.iterdir())


def test_fashion_on_the_images_that_ship():
    net, data = sn.pretrained(NAME), sn.data.load()
    assert net.classes == data.classes
    with torch.inference_mode():
        logits, positions = sn.trace(net, net.prepare(data.test.images))
    right = (logits.argmax(1) == data.test.labels).double().mean()
    assert abs(right - net.card["test_accuracy"]) < 0.03  # 1,000 of the 10,000 test images
    assert len(positions) == 3


def test_unknown_names_are_told_what_there_is():
    with pytest.raises(ValueError, match=r"there is no trained network 'mnist/X', choose from .*fashion-mnist/D\(5\)"):
        sn.pretrained("mnist/X")


def test_a_network_that_shipped_once_says_what_to_do():
    with pytest.raises(ValueError, match=r"is no longer shipped: .* splinenets train mnist-lenet --model"):
        sn.pretrained("mnist/H(4)-D-R3")


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


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_refused(seed, tmp_path, monkeypatch):
    """A flip anywhere, half of them in the header, where other names, shapes and places could load in silence."""
    shutil.copytree(FOLDER, tmp_path / "trained")
    monkeypatch.setattr(sys.modules["splinenets.shipped"], "FOLDER", tmp_path / "trained")
    path = tmp_path / "trained" / file_name(NAME)
    content, chance = bytearray(path.read_bytes()), random.Random(seed)
    length = 8 + int.from_bytes(content[:8], "little")
    content[chance.randrange(length if seed % 2 else len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged, it does not have the SHA-256 .*: install the package again"):
        sn.pretrained(NAME)
    path.unlink()
    with pytest.raises(ValueError, match="is missing: install the package again"):
        sn.pretrained(NAME)


def test_damaged_digests_are_refused(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "trained")
    monkeypatch.setattr(sys.modules["splinenets.shipped"], "FOLDER", tmp_path / "trained")
    path = tmp_path / "trained/digests.json"
    path.write_text(path.read_text().replace("a", "b", 1))
    with pytest.raises(ValueError, match=r"digests.json is damaged"):
        sn.pretrained(NAME)


def test_every_file_is_sealed():
    assert {path.name for path in FOLDER.glob("*.safetensors")} == {file_name(name) for name in names()}
