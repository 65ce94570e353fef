"""A network of transformers with weights on splines, in the Trainer of transformers. Needs ``transformers``."""

import sys
import tempfile

from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

import splinenets as sn

data = sn.data.load("embedded")
images, tests = ((split.images.float() - 73) / 90 for split in (data.train, data.test))
train = [{"pixel_values": x, "labels": y} for x, y in zip(images, data.train.labels, strict=True)]
test = [{"pixel_values": x, "labels": y} for x, y in zip(tests, data.test.labels, strict=True)]
config = ResNetConfig(num_channels=1, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
config.num_labels = 10
plain = ResNetForImageClassification(config)  # type: ignore[no-untyped-call]
model = sn.Regularized(sn.convert(plain, "D(5)-C-R3", example=images[:100]), 10)
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder, max_steps=5 if "--quick" in sys.argv else 240, learning_rate=3e-3, report_to=[]
    )
    settings.per_device_train_batch_size, settings.remove_unused_columns = 100, False
    settings.dataloader_pin_memory = False
    trainer = Trainer(model, settings, train_dataset=train, eval_dataset=test)
    trainer.train()
    print(trainer.evaluate())
    sn.save(model, f"{folder}/net.safetensors")  # splines and architecture, in one file
    print(sn.load(f"{folder}/net.safetensors").conversion)
