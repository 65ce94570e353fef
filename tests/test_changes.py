"""Images changed by a number for each, against slow versions of the same; recipes that tell a network the number."""

import math

import pytest
import torch

import splinenets as sn
from splinenets.conditions import Conditioned
from splinenets.data import seeded
from splinenets.data.changes import CHANGES, changed
from splinenets.training import Recipe, train
from splinenets.training.build import build_network, load_task
from splinenets.training.loop import Stopped
from splinenets.training.run import load_run

PIXELS = torch.randint(0, 256, (4, 2, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
SMALL = {"data": "embedded", "images": 300, "width": 2, "batch": 50, "epochs": 1, "precision": "float32"}


def apply(name, images, *values):
    return CHANGES[name](images, torch.tensor(values, dtype=torch.float32), seeded("test", 0))


def test_a_quarter_turn_is_exact():
    turned = apply("angle", PIXELS, 0, 90, 180, 270)
    for number in range(4):
        expected = PIXELS[number].rot90(number, (1, 2))
        assert torch.equal(turned[number], expected), number


@pytest.mark.parametrize("degrees", [10.0, 123.0])
def test_any_turn_is_bilinear(degrees):
    """Each pixel is what stood at its place turned back, one pixel after the other."""
    turned = apply("angle", PIXELS[:1], degrees)[0, 0]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    for row in range(9):
        for column in range(9):
            x, y = column - 4, row - 4
            at = (cosine * x - sine * y + 4, sine * x + cosine * y + 4)
            value = 0.0
            for left, top in ((math.floor(at[0]) + i, math.floor(at[1]) + j) for i in (0, 1) for j in (0, 1)):
                if 0 <= left < 9 and 0 <= top < 9:
                    share = (1 - abs(at[0] - left)) * (1 - abs(at[1] - top))
                    value += share * float(PIXELS[0, 0, top, left])
            assert abs(float(turned[row, column]) - value) < 0.51


def test_zoom_blur_exposure_and_noise():
    assert torch.equal(apply("scale", PIXELS[:1], 1.0), PIXELS[:1])
    dot = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    dot[0, 0, 4, 4] = 255
    assert apply("scale", dot, 0.4)[0, 0].count_nonzero() == 1
    assert apply("scale", dot, 1.6)[0, 0].count_nonzero() > 4
    assert torch.equal(apply("blur", PIXELS[:1], 0.0), PIXELS[:1])
    soft = apply("blur", dot, 1.0)[0, 0].float()
    expected = torch.exp(-0.5 * (torch.arange(9) - 4.0) ** 2)
    expected /= expected.sum()
    assert (soft - 255 * torch.outer(expected, expected)).abs().max() < 1.5
    assert torch.equal(apply("exposure", PIXELS[:1], 0.5), (PIXELS[:1] * 0.5).round().to(torch.uint8))
    grey = torch.full((1, 1, 100, 100), 128, dtype=torch.uint8)
    assert torch.equal(apply("noise", grey, 0.0), grey)
    assert abs(apply("noise", grey, 20.0).float().std() - 20) < 0.5


def test_what_is_changed_once_is_the_same_everywhere():
    split = sn.data.load("embedded").test
    first, again = (changed(split, CHANGES["angle"], "test") for _ in range(2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, changed(split, CHANGES["angle"], "other").values)
    assert 0 <= first.values.min() < 10
    assert 350 < first.values.max() <= 360


@pytest.mark.parametrize("condition", CHANGES)
@pytest.mark.parametrize(
    ("told", "model"),
    [
        ("nobody", "static"),
        ("channels", "static"),
        ("scales", "static"),
        ("curves", "D(4)-X-R4"),
        ("nobody", "D(3)-C-R3"),
    ],
)
def test_networks_are_told_what_their_images_are_changed_by(condition, told, model):
    recipe = Recipe(name="told", condition=condition, told=told, model=model, **SMALL)
    task = load_task(recipe)
    net = build_network(recipe, task).eval()
    inputs = task.show(task.data.test, slice(8))
    assert len(inputs) == (1 if told == "nobody" else 2)
    with torch.no_grad():
        expected = net(*inputs)
        for module in net.modules():  # FiLM starts without any effect
            if told == "scales" and hasattr(module, "scales"):
                for parameter in module.scales.parameters():
                    parameter.add_(0.1)
        if told != "nobody":
            low, high = task.change.low, task.change.high
            there, here = (net(inputs[0], torch.full_like(inputs[1], v)) for v in (low, (low + high) / 2))
            assert not torch.allclose(there, here)
    assert expected.shape == (8, 10)


def test_told_runs_resume_to_the_bit(tmp_path):
    recipe = Recipe(
        name="told", condition="angle", told="curves", model="D(4)-X-R4 closed", **SMALL | {"epochs": 2}, log_every=1
    )
    whole = train(recipe, tmp_path / "whole")
    stops = iter([0] * 7 + [15] * 100)
    with pytest.MonkeyPatch.context() as patch:
        from splinenets.training import runner

        patch.setattr(runner.Loop, "run", _stopping_after(runner.Loop.run, stops))
        with pytest.raises(Stopped):
            train(recipe, tmp_path / "cut")
    again = train(recipe, tmp_path / "cut", resume=True)
    for (name, p), q in zip(whole.net.named_parameters(), again.net.parameters(), strict=True):
        assert torch.equal(p, q), name
    net, task, *_ = load_run(tmp_path / "cut")
    assert isinstance(net, Conditioned)
    assert net(*task.show(task.data.test, slice(3))).shape == (3, 10)


def _stopping_after(run, stops):
    def stopping(self, stop):
        return run(self, lambda: next(stops))

    return stopping


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"condition": "tilt"}, "unknown condition 'tilt', choose from angle, scale, blur, exposure, noise, value"),
        ({"condition": "angle", "between": (30.0, 10.0)}, "between must be two numbers, the lower one first"),
        ({"condition": "angle", "between": (0.0, 400.0)}, "angle lies between 0 and 360, got 0 to 400"),
        ({"condition": "angle", "told": "everybody"}, "unknown told 'everybody', choose from nobody, curves"),
        ({"condition": "angle", "model": "D(4)-X-R4"}, "told='nobody' does not go with model='D.4.-X-R4'"),
        ({"condition": "angle", "told": "curves"}, "told='curves' does not go with model='D.5.-D-R3'"),
        ({"told": "channels", "model": "static"}, "told='channels' needs a condition, one of angle"),
        ({"condition": "angle", "told": "scales"}, "told='scales' is for static networks, got model='D.5.-D-R3'"),
        ({"condition": "angle", "told": "scales", "model": "static", "mixup": 0.5}, "does not go with mixup=0.5"),
    ],
)
def test_wrong_recipes(keys, complaint):
    with pytest.raises(ValueError, match=complaint):
        Recipe(name="wrong", **keys)


def test_data_without_numbers():
    recipe = Recipe(name="wrong", condition="value", told="curves", model="D(4)-X-R4", data="embedded")
    with pytest.raises(ValueError, match="needs a number for each image, and embedded has none"):
        load_task(recipe)
