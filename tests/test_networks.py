"""Networks from elsewhere, by the command line: built, given weights, converted, trained, rebuilt from their runs."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.commands import call
from tests.helpers.stubs import pictures, real, stub  # noqa: F401

import splinenets as sn
from splinenets.layers import SplineLayer
from splinenets.models import resnet
from splinenets.training import load_recipe, load_run
from splinenets.training.build import build_network, build_twin, load_task
from splinenets.training.networks import first_convolution, later_stages, stage_of

RESNET = 'arguments={embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"}'
NETWORKS = {  # package -> settings
    "timm": ["network=timm:tiny", "arguments={width=3}"],
    "torchvision": ["network=torchvision:tiny"],
    "transformers": ["network=transformers:resnet", RESNET],
    "mine": ["network=mine.models:build", "arguments={width=3}"],
}
QUICK = ["epochs=2", "batch=5", "image_size=32", "precision=float32"]


def options(*settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture
def folder(tmp_path):
    return pictures(tmp_path / "pictures")


@pytest.mark.parametrize("package", NETWORKS)
def test_a_network_from_elsewhere_trains_and_is_rebuilt(package, stub, folder, tmp_path):  # noqa: F811
    stub(package)
    words = ["train", f"folder:{folder}", *options(*NETWORKS[package], *QUICK), "--out", tmp_path / "run"]
    code, out, err = call(*words)
    assert code == 0, err
    assert "layers are splines" in err
    assert "times" in err  # what it costs stands there before the first epoch
    assert err.index("times") < err.index("epoch   1")
    code, again, _ = call(*words, "--resume")
    assert (code, again) == (0, out)
    net, task, recipe, _ = load_run(tmp_path / "run")
    assert any(isinstance(module, SplineLayer) for module in net.modules())
    assert net(*task.example(3)).shape == (3, 2)
    assert recipe.plain == first_convolution(build_twin(recipe, task))
    assert call("evaluate", tmp_path / "run")[0] == 0


@pytest.mark.parametrize(
    ("package", "to"),
    [
        ("timm", "native"),
        ("transformers", "native"),
        *(pytest.param("transformers", to, marks=pytest.mark.slow) for to in ("onnx", "pt2")),
    ],
)
def test_a_network_from_elsewhere_is_exported(package, to, stub, folder, tmp_path):  # noqa: F811
    stub(package)
    assert call("train", f"folder:{folder}", *options(*NETWORKS[package], *QUICK), "--out", tmp_path / "run")[0] == 0
    code, out, err = call("export", tmp_path / "run", "--to", to)
    assert code == 0, err
    assert "the same answer on 2 of 2" in out
    assert call("evaluate", tmp_path / f"run/latency.{to}")[0] == 0


def test_grey_images_are_rgb_for_networks_of_other_packages(tmp_path, stub):  # noqa: F811
    for package in ("timm", "torchvision", "mine"):
        stub(package)
    data = f"folder:{pictures(tmp_path / 'grey', mode='L')}"
    for network, channels in (("torchvision:tiny", 3), ("timm:tiny", 3), ("mine.models:build", 1)):
        recipe = load_recipe(data, overrides=[f"network={network}", *QUICK])
        task = load_task(recipe)
        assert task.data.train.images.shape[1] == channels
        assert build_network(recipe, task)(*task.example(2)).shape == (2, 2)
    code, _, err = call("train", data, *options("network=torchvision:tiny", *QUICK), "--out", tmp_path / "run")
    assert code == 0, err
    assert call("export", tmp_path / "run", "--to", "native")[0] == 0
    assert call("evaluate", tmp_path / "run/latency.native")[0] == 0


# Given weights


def trained_like(recipe, task, seed=5):
    """The plain network of a recipe with other weights, batch norms' averages included."""
    torch.manual_seed(seed)
    net = build_twin(recipe, task)
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor + 0.2 * torch.rand_like(tensor))
    return net.eval()


def wrapped(state):
    return {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}


SAVED = {
    "weights.safetensors": lambda state, path: save_file(state, path),
    "weights.pt": torch.save,
    "checkpoint.pth": lambda state, path: torch.save(wrapped(state), path),
}


@pytest.mark.parametrize(
    ("package", "file"),
    [*((package, "weights.safetensors") for package in NETWORKS), ("timm", "weights.pt"), ("timm", "checkpoint.pth")],
)
def test_given_weights_are_where_both_twins_start(package, file, stub, folder, tmp_path):  # noqa: F811
    stub(package)
    overrides = [*NETWORKS[package], *QUICK, "precision=float64"]
    recipe = load_recipe(f"folder:{folder}", overrides=overrides)
    task = load_task(recipe)
    source = trained_like(recipe, task)
    SAVED[file](source.state_dict(), tmp_path / file)
    images = task.example(5)
    for model in ("static", "D(4)-C-R3", "H(4)-D-R3"):
        given = load_recipe(f"folder:{folder}", overrides=overrides, model=model, weights=str(tmp_path / file))
        net = build_network(given, task).eval()
        torch.testing.assert_close(net(*images), source(*images), rtol=1e-9, atol=1e-9)


NAMED = {  # settings, and those that make the package's own network quick
    "timm": (["network=timm:mobilenetv3_small_100"], []),
    "torchvision": (["network=torchvision:resnet18"], ["layers=layer1.*"]),
}


@pytest.mark.parametrize("package", NAMED)
def test_networks_of_the_packages_themselves(package, stub, folder, tmp_path):  # noqa: F811
    """The real packages where they can be imported: given weights, converted, trained, saved and loaded."""
    settings, quick = NAMED[package]
    if real(package):
        settings = [*settings, *quick]
    else:
        stub(package)
    data, file, settings = f"folder:{folder}", tmp_path / "weights.safetensors", [*settings, *QUICK, "epochs=1"]
    recipe = load_recipe(data, overrides=[*settings, "precision=float64"])
    task = load_task(recipe)
    source = trained_like(recipe, task)
    save_file(source.float().state_dict(), file)
    source = source.double()
    given = load_recipe(data, overrides=[*settings, "precision=float64"], weights=str(file), model="H(3)-C-R3")
    net = build_network(given, task).eval()
    assert any(isinstance(module, SplineLayer) for module in net.modules())
    torch.testing.assert_close(net(*task.example(5)), source(*task.example(5)), rtol=1e-9, atol=1e-9)
    words = ["train", data, "--from", file, "--model", "H(3)-C-R3", *options(*settings), "--out", tmp_path / "run"]
    code, out, err = call(*words)
    assert code == 0, err
    assert "layers are splines" in err
    assert out.count("best test accuracy") == 2  # its static twin trained on beside it
    net, task, _, _ = load_run(tmp_path / "run")
    sn.save(net, tmp_path / "net.safetensors")  # which says how to build it
    assert torch.equal(sn.load(tmp_path / "net.safetensors")(*task.example(3)), net(*task.example(3)))


def test_upgrading_a_run_trains_its_twin_beside_it(folder, tmp_path):
    lenet = options("network=lenet", "width=3", *QUICK)
    assert call("train", f"folder:{folder}", "--model", "static", *lenet, "--out", tmp_path / "plain")[0] == 0
    before = load_run(tmp_path / "plain")[0]
    words = ["train", f"folder:{folder}", "--from", tmp_path / "plain", *lenet, "--out", tmp_path / "run"]
    code, out, err = call(*words)
    assert code == 0, err
    assert "best test accuracy" in out
    for row in ("accuracy", "parameters", "MACs"):
        assert f"\n{row} " in out
    _, task, recipe, _ = load_run(tmp_path / "run")
    assert (recipe.weights, recipe.spread) == (str(tmp_path / "plain"), 0.0)
    start = build_network(recipe, task).eval()
    torch.testing.assert_close(start(*task.example(4)), before(*task.example(4)))
    assert load_run(tmp_path / "run-twin")[2].model == "static"
    # runs no longer need what they were made from
    (tmp_path / "plain").rename(tmp_path / "gone")
    assert call("evaluate", tmp_path / "run")[0] == 0
    assert call(*words, "--resume", "--no-twin")[0] == 0


def test_an_output_layer_for_other_classes_starts_anew(tmp_path, folder):
    torch.save(resnet(8, classes=1000).state_dict(), tmp_path / "w.pt")
    words = ["train", f"folder:{folder}", "--from", tmp_path / "w.pt", *options("network=resnet", "depth=8", *QUICK)]
    code, _, err = call(*words, "--no-twin", "--out", tmp_path / "run")
    assert code == 0
    assert "dense.weight and dense.bias start from random weights" in err
    recipe = load_recipe(f"folder:{folder}", overrides=["network=resnet", "depth=8"], weights=str(tmp_path / "w.pt"))
    net, state = build_twin(recipe, load_task(recipe)), torch.load(tmp_path / "w.pt", weights_only=True)
    assert torch.equal(net.get_parameter("conv.weight"), state["conv.weight"])


class Trap:
    """Something that a file of weights must not hold."""

    def __reduce__(self):
        return print, ("caught",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (lambda: {"weight": Trap()}, "cannot be read as weights"),
        (lambda: {"epoch": 3}, "holds no state dict"),
        (lambda: [torch.ones(1)], "holds no state dict, but list"),
        (lambda: {"x.y": torch.ones(1)}, "another network: it does not have 'conv.weight', which the network has"),
        (lambda: resnet(14).state_dict(), "it has 'stages.0.1.conv1.weight', but the network does not"),
        (lambda: resnet(8, in_channels=1).state_dict(), "'conv.weight' is (16, 1, 3, 3) there, (16, 3, 3, 3) here"),
    ],
)
def test_weights_that_do_not_fit(content, complaint, folder, tmp_path, capsys):
    torch.save(content(), tmp_path / "w.pt")
    network = options("network=resnet", "depth=8", *QUICK)
    code, out, err = call("train", f"folder:{folder}", "--from", tmp_path / "w.pt", *network, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert complaint in err
    assert "caught" not in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["network=timm:other"], "network 'timm:other' cannot be built: Unknown model (other)"),
        (["network=timm:"], "unknown network 'timm:', choose from lenet, resnet, air, or one of another package"),
        (["network=timm:tiny", "arguments={wings=2}"], "cannot be built: "),
        (["network=nowhere.models:build"], "there is no module 'nowhere': is it installed?"),
        (["network=mine.models:other"], "has no attribute 'other'"),
        (["network=mine.models:text"], "cannot be built"),
        (["network=mine.models:picky"], "no such luck"),
        (
            ["network=mine.models:fixed"],
            "answers 2 images with (2, 7), and should answer with (2, 2), a logit for each class",
        ),
        (["network=timm:tiny", "arguments={in_chans=4}"], "does not take images of 3 x 32 x 32"),
        (["network=timm:tiny", "layers=stage9.*"], "the pattern 'stage9.*' fits no layer"),
        (["network=resnet", "arguments={depth=8}"], "arguments are for networks of other packages"),
        (["network=timm:tiny", "arguments=3"], "arguments must be a table"),
        (["network=lenet", "weights=/nowhere.pt"], "there are no weights at /nowhere.pt"),
    ],
)
def test_networks_that_are_wrong(settings, complaint, stub, folder, tmp_path):  # noqa: F811
    stub("timm")
    stub("mine")
    code, _, err = call("train", f"folder:{folder}", *options(*settings, *QUICK), "--out", tmp_path / "run")
    assert code == 2
    assert complaint in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


# Which layers become splines


@pytest.mark.parametrize(
    ("layer", "stage"),
    [
        ("layer4.1.conv2", "layer4"),
        ("resnet.encoder.stages.1.layers.0.layer.0.convolution", "resnet.encoder.stages.1"),
        ("blocks.11.attn.qkv", "blocks.11"),
        ("conv1", "conv1"),
        ("classifier", "classifier"),
    ],
)
def test_stages(layer, stage):
    assert stage_of(layer) == stage


def test_large_networks_have_splines_in_later_stages_alone():
    assert later_stages(resnet(20)) == ("*",)
    large = torch.nn.Sequential(*(torch.nn.Linear(600, 600) for _ in range(4)))
    assert later_stages(large) == ("2", "3")
    assert first_convolution(large) == ()
    assert first_convolution(resnet(8)) == ("conv",)


def test_layers_by_name(stub, folder, tmp_path):  # noqa: F811
    stub("timm")
    words = options("network=timm:tiny", "layers=3,8", "plain=8", *QUICK)
    assert call("train", f"folder:{folder}", *words, "--out", tmp_path / "run")[0] == 0
    net = load_run(tmp_path / "run")[0]
    assert [name for name, module in net.named_modules() if isinstance(module, SplineLayer)] == ["3"]
    recorded = json.loads((tmp_path / "run/run.json").read_text())["content"]["recipe"]
    assert (recorded["network"], recorded["layers"]) == ("timm:tiny", ["3", "8"])
