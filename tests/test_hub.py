"""Folders of the hub, without a network; and networks of transformers, whose own methods keep their splines."""

import copy
import json
import sys

import pytest
import torch
import transformers
from tests.helpers import zoo

import splinenets as sn
from splinenets.structure import METHOD

hub = sn.hub


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.disable_progress_bar()


def converted(spec="H(3)-D-R3"):
    plain, images = sn.models.lenet(2, image_size=8, classes=3), torch.randn(5, 1, 8, 8)
    return sn.convert(plain, spec, example=images, spread=0.2).eval(), images


@torch.no_grad()
@pytest.mark.parametrize("spec", ["H(3)-D-R3", "D(4)-X-R4 closed"])
def test_a_folder_and_back(spec, tmp_path):
    net, images = converted(spec)
    inputs, angles = (images,), torch.linspace(0, 360, 5)
    if "X" in spec:
        net, inputs = sn.condition(net, 0, 360, name="angle"), (images, angles)
    example = tuple(part[:1] for part in inputs)
    shared = hub.Shared(net, classes=["a", "b", "c"], card={"accuracy": 0.5}, example=example)
    shared.save_pretrained(tmp_path / "folder")
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == [
        "README.md",
        "config.json",
        "splinenets.safetensors",
    ]
    found = hub.Shared.from_pretrained(tmp_path / "folder")
    assert torch.equal(found(*inputs), net(*inputs))
    assert torch.equal(sn.load(tmp_path / "folder")(*inputs), net(*inputs))
    assert found.net.classes == ("a", "b", "c")
    found.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/splinenets.safetensors").read_bytes() == (
        tmp_path / "folder/splinenets.safetensors"
    ).read_bytes()


def test_the_page_and_the_configuration_say_what_it_is(tmp_path):
    net, images = converted()
    hub.Shared(net, classes=["a", "b", "c"], card={"accuracy": 0.5}, example=images[:1]).save_pretrained(tmp_path)
    page, config = (tmp_path / "README.md").read_text(), json.loads((tmp_path / "config.json").read_text())
    assert config["splinenets"]["layers"] == dict.fromkeys(("conv1", "conv2", "dense1", "dense2"), "H(3)-D-R3")
    assert "library_name: splinenets" in page
    assert "| accuracy | 0.5 |" in page
    assert f"| cost, macs | {sn.cost(net, images[:1]).macs:,} |" in page
    assert "| conv1 | `H(3)-D-R3` |" in page
    assert "Classes: a, b, c." in page


def test_a_strangers_folder_runs_no_code(tmp_path):
    net, _ = converted()
    hub.Shared(net, builder="somebody:build").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="trust=True"):
        hub.Shared.from_pretrained(tmp_path)
    found = hub.Shared.from_pretrained(tmp_path, net=sn.models.lenet(2, image_size=8, classes=3))
    assert found.net.dense2.out_features == 3


def test_pushing_uploads_that_folder(tmp_path, monkeypatch):
    """What would be sent, with a stand-in for the hub's own calls."""
    sent = {}

    class Api:
        def __init__(self, *args, **kwargs):
            pass

        def create_repo(self, repo_id, **kwargs):
            return type("Repo", (), {"repo_id": repo_id})()

        def upload_folder(self, *, repo_id, folder_path, **kwargs):
            sent[repo_id] = sorted(p.name for p in folder_path.iterdir())

    monkeypatch.setattr(sys.modules["huggingface_hub.hub_mixin"], "HfApi", Api)
    hub.Shared(converted()[0]).push_to_hub("me/net")
    assert sent == {"me/net": ["README.md", "config.json", "splinenets.safetensors"]}


# Networks of transformers


@torch.no_grad()
@pytest.mark.parametrize("name", ["ResNet", "Swin", "ViT"])
@pytest.mark.parametrize("spec", ["H(3)-C-R3 diffusion=0.5", "D(4)-D-R4 closed"])
def test_their_own_methods_keep_splines(name, spec, tmp_path):
    model, images = zoo.build(name)
    net = sn.convert(model, spec, example=images, spread=0.1).eval()
    found = net
    for turn in range(2):
        found.save_pretrained(tmp_path / str(turn))
        found = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / str(turn))
    assert torch.equal(found(images)[0], net(images)[0])
    _, positions = sn.trace(found, images)
    assert len(positions) >= len(net.conversion.converted)
    found.train()(images)  # a network like any other
    assert not found.is_quantized


@torch.no_grad()
@pytest.mark.parametrize("name", ["ResNet", "ViT"])
def test_their_own_methods_keep_splines_that_are_told(name, tmp_path):
    """What is told is the wrapper's business; the network inside is theirs, and is told anew once it is loaded."""
    model, images = zoo.build(name)
    plain = sn.convert(model, {"classifier*": "H(3)-D-R4", "*": "D(4)-X-R4 closed"}, example=images, spread=0.1)
    net, angles = sn.condition(plain.eval(), 0, 360, name="angle"), torch.linspace(0, 360, len(images))
    net.net.save_pretrained(tmp_path)
    found = sn.condition(type(model).from_pretrained(tmp_path), 0, 360, name="angle")
    assert torch.equal(found(images, angles).logits, net(images, angles).logits)
    assert not torch.equal(found(images, 0).logits, net(images, angles).logits)


@torch.no_grad()
@pytest.mark.parametrize("knots", ["float32", "bf16", "int8"])
def test_deployed_networks_too(knots, tmp_path):
    model, images = zoo.build("ResNet")
    images = images.float()
    net = sn.deploy(sn.convert(model.float(), "H(3)-C-R3", example=images, spread=0.1), images, knots=knots)
    net.save_pretrained(tmp_path)
    found = type(net).from_pretrained(tmp_path)
    torch.testing.assert_close(found(images)[0], net(images)[0], rtol=0, atol=0)


def test_what_is_written_follows_the_network(tmp_path):
    model, images = zoo.build("ViT")
    assert not hasattr(model.config, "quantization_config")
    net = sn.convert(model, "H(3)-C-R3", example=images)
    twin = copy.deepcopy(net)
    assert twin.config.quantization_config.net() is twin
    assert copy.deepcopy(net.config).quantization_config.net() is net
    plain = sn.collapse(net)
    plain.save_pretrained(tmp_path)
    assert "splinenets" not in (tmp_path / "config.json").read_text()
    assert not hasattr(model.config, "quantization_config")


def test_whoever_does_not_know_splines_is_told(tmp_path, monkeypatch, caplog):
    """Without splinenets.hub, transformers itself says that there is something it does not know, and what it is."""
    from transformers.quantizers import auto

    model, images = zoo.build("ViT")
    sn.convert(model, "D(3)-C-R3", example=images).save_pretrained(tmp_path)
    monkeypatch.delitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, METHOD)
    monkeypatch.setattr(auto.logger, "propagate", True)
    monkeypatch.setattr(transformers.logging.get_logger("transformers"), "propagate", True)
    type(model).from_pretrained(tmp_path)
    assert "its layers are splines: import splinenets.hub before you load it, or use sn.save" in caplog.text
