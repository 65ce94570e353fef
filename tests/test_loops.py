"""Training loops that nobody here wrote: Regularized, gradient accumulation, averages, Lightning, the Trainer."""

import copy
import runpy

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import zoo
from tests.helpers.pages import ROOT
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import splinenets as sn

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 4


def network(spec="H(3)-C-R3", **options):
    return sn.convert(sn.models.resnet(8, classes=4), spec, example=IMAGES, spread=0.2, **options)


def test_the_loss_is_cross_entropy_and_regulariser():
    net, regularizer = network(), sn.MutualInformation(4, utilization=0.3, specialization=lambda progress: progress)
    twin = copy.deepcopy(net)
    loss, logits = sn.Regularized(net, regularizer)(IMAGES, labels=LABELS, progress=0.5)
    expected, positions = sn.trace(twin, IMAGES)
    assert torch.equal(logits, expected)
    assert torch.equal(loss, F.cross_entropy(expected, LABELS) + regularizer(positions, LABELS, 0.5))
    loss.backward()
    assert all(p.grad is not None for p in net.parameters())


def test_without_labels_it_is_the_network():
    net = network().eval()
    assert torch.equal(sn.Regularized(net, 4)(IMAGES), net(IMAGES))


@pytest.mark.parametrize("regularizer", [4, None])
def test_a_static_twin_has_the_criterion_alone(regularizer):
    net = sn.models.resnet(8, classes=4).eval()
    loss, logits = sn.Regularized(net, regularizer)(IMAGES, labels=LABELS)
    assert torch.equal(loss, F.cross_entropy(logits, LABELS))


def test_mixup():
    """Mixed images and labels go through the same line; labels that are not mixed give what class numbers give."""
    net = network().eval()
    model, shares = sn.Regularized(net, 4), F.one_hot(LABELS, 4).float()
    assert_close(model(IMAGES, labels=shares)[0], model(IMAGES, labels=LABELS)[0])
    order, share = torch.randperm(24), 0.3
    mixed, labels = IMAGES.lerp(IMAGES[order], share), shares.lerp(shares[order], share)
    loss, logits = model(mixed, labels=labels)
    expected = (1 - share) * F.cross_entropy(logits, LABELS) + share * F.cross_entropy(logits, LABELS[order])
    _, positions = sn.trace(net, mixed)
    assert_close(loss, expected + sn.MutualInformation(4)(positions, labels))


def test_gradients_accumulate():
    """Two halves leave the sum of their gradients, and statistics gathered from both."""
    net = network()
    model, alone = sn.Regularized(net, 4), copy.deepcopy(net)
    halves = list(zip(IMAGES.split(12), LABELS.split(12), strict=True))
    separate = []
    for images, labels in halves:
        alone.zero_grad()
        sn.Regularized(alone, 4)(images, labels=labels)[0].backward()
        separate.append([p.grad.clone() for p in alone.parameters()])
        model(images, labels=labels)[0].backward()
    for parameter, first, second in zip(net.parameters(), *separate, strict=True):
        assert_close(parameter.grad, first + second)
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), alone.buffers(), strict=True))


def test_averaged_networks():
    """An average has weights and statistics of its own, and travels, calibrates and deploys as its network does."""
    net = network()
    model, optimizer = sn.Regularized(net, 4), torch.optim.SGD(net.parameters(), lr=0.1)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    seen = [{n: p.detach().clone() for n, p in net.named_parameters()}]
    average.update_parameters(net)
    for images, labels in zip(IMAGES.split(12), LABELS.split(12), strict=True):
        optimizer.zero_grad()
        model(images, labels=labels)[0].backward()
        optimizer.step()
        average.update_parameters(net)
        seen.append({n: p.detach().clone() for n, p in net.named_parameters()})
    for name, parameter in average.module.named_parameters():
        assert_close(parameter, 0.25 * seen[0][name] + 0.25 * seen[1][name] + 0.5 * seen[2][name])
    before = net.stages[0][0].conv1.projection.running_mean.clone()
    update_bn(DataLoader(TensorDataset(IMAGES), 12), average)
    sn.calibrate(average, IMAGES)
    assert torch.equal(net.stages[0][0].conv1.projection.running_mean, before)
    expected = average.module.stages[0][0].conv1.projection
    with torch.no_grad():
        logits, positions = sn.trace(average.eval(), IMAGES)
    assert len(positions) == len(net.conversion.converted)
    assert logits.isfinite().all()
    twin = copy.deepcopy(average.module)
    sn.calibrate(twin, IMAGES)
    assert_close(expected.running_mean, twin.stages[0][0].conv1.projection.running_mean)
    assert_close(sn.deploy(average.module, IMAGES)(IMAGES), logits, rtol=1e-3, atol=1e-3)


# Health, batch by batch


def test_health_of_batches_is_health_of_all():
    net, metric = network().eval(), sn.HealthMetric(samples=20)
    with torch.no_grad():
        _, positions = sn.trace(net, IMAGES)
    whole = sn.health({name: p[:20] for name, p in positions.items()}, LABELS[:20])
    for part in torch.arange(24).split(7):
        metric.update({name: p[part] for name, p in positions.items()}, LABELS[part])
    assert str(metric.report()) == str(whole)
    numbers = metric.compute()
    assert numbers["entropy/conv"] == whole["conv"].entropy
    assert not any("drift" in name for name in numbers)
    metric.reset()
    assert metric.compute() == {}
    metric.update({name: 1 - p for name, p in positions.items()})
    numbers = metric.compute()
    assert (
        numbers["drift/conv"] == sn.health({n: 1 - p[:20] for n, p in positions.items()}, history=[whole])["conv"].drift
    )
    assert not any("information" in name for name in numbers)


def test_too_few_samples_have_no_health():
    metric = sn.HealthMetric()
    for count, known in ((15, False), (16, True)):
        metric.update({"conv": torch.rand(count, 2)})
        assert bool(metric.compute()) == known
        metric.reset()
        assert len(metric.history) == known


def test_health_of_what_is_told_is_nobodys_business():
    net = sn.condition(network("D(3)-X-R4"))
    metric = sn.HealthMetric()
    metric.update(sn.trace(net, IMAGES, torch.rand(24))[1])
    assert metric.compute() == {}
    with pytest.raises(ValueError, match="16 or more"):
        sn.HealthMetric(samples=1)


# Loops of others


@pytest.mark.parametrize("name", ["lightning_module", "huggingface_trainer"])
def test_examples_are_short(name):
    lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 30


SPECS = ["H(3)-C-R3", "D(3)-X-R4"]
ANGLES = torch.rand(24, generator=torch.Generator().manual_seed(1))


def told(net, spec):
    return sn.condition(net, name="angle") if "X" in spec else net


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("spec", SPECS)
def test_lightning(spec, tmp_path):
    """A run that goes on from a checkpoint has the bits of one that never stopped, and they are the network's."""
    lightning = pytest.importorskip("lightning")
    kind = runpy.run_path(str(ROOT / "examples/lightning_module.py"))["Module"]
    inputs = (IMAGES, ANGLES) if "X" in spec else (IMAGES,)
    batches = DataLoader(TensorDataset(*inputs, LABELS), 6)

    def start():
        torch.manual_seed(0)
        return kind(told(network(spec), spec), 4)

    def fit(module, epochs, checkpoint=None):
        options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        options |= {"default_root_dir": tmp_path, "accumulate_grad_batches": 2, "enable_checkpointing": False}
        trainer = lightning.Trainer(max_epochs=epochs, **options)
        trainer.fit(module, batches, batches, ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return trainer

    whole, cut, resumed, again = start(), start(), start(), start()
    trainer = fit(whole, 2)
    assert trainer.global_step == 4
    assert ("entropy/conv" in trainer.callback_metrics) == (spec == SPECS[0])
    fit(cut, 1)
    fit(resumed, 2, tmp_path / "last.ckpt")
    assert any(not torch.equal(a, b) for a, b in zip(cut.parameters(), whole.parameters(), strict=True))
    again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"])
    sn.save(whole.model, tmp_path / "net")
    with torch.no_grad():
        expected = whole.eval().model(*inputs)
        for module in (resumed.eval().model, again.eval().model, sn.load(tmp_path / "net")):
            assert torch.equal(module(*inputs), expected)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # those of others
@pytest.mark.parametrize("spec", SPECS)
def test_the_trainer_of_transformers(spec, tmp_path):
    """Its steps are ours; it goes on from a checkpoint to the same bits; and what it saved is the network."""
    from transformers import Trainer, TrainingArguments

    columns = {"pixel_values": IMAGES, "labels": LABELS} | ({"angle": ANGLES} if "X" in spec else {})
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def train(folder, net, resume=None, steps=4):
        settings = TrainingArguments(
            tmp_path / folder, max_steps=steps, save_steps=2, per_device_train_batch_size=6, report_to=[], seed=3,
            gradient_accumulation_steps=2, remove_unused_columns=False, dataloader_pin_memory=False, use_cpu=True,
            learning_rate=1e-2, disable_tqdm=True, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = Trainer(sn.Regularized(net, 4), settings, train_dataset=rows, eval_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    plain, images = zoo.build("ResNet")
    plain = plain.float()

    def start():
        torch.manual_seed(0)
        return told(sn.convert(plain, spec, example=images.float(), spread=0.1), spec)

    whole = train("whole", start())
    train("cut", start(), steps=2)
    resumed = train("cut", start(), resume=True)
    for (key, a), b in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    assert whole.evaluate()["eval_loss"] == resumed.evaluate()["eval_loss"]
    sn.save(whole.model, tmp_path / "net")
    with torch.no_grad():
        inputs = {name: values for name, values in columns.items() if name != "labels"}
        found, expected = sn.load(tmp_path / "net")(**inputs).logits, whole.model.eval()(**inputs).logits
    assert torch.equal(found, expected)
