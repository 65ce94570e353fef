"""Images on disk: what is decoded, whenever and by whomever, is what images in memory are, bit for bit."""

import io
import json
import os
import random
import signal
import tarfile

import numpy
import pytest
import torch
from PIL import Image
from tests.helpers import tiny
from tests.helpers.marks import slow
from tests.helpers.runs import as_rank, count_calls, die_after, files, fork, free_port, outcome

import splinenets as sn
from splinenets.data import Stream, in_batches, load, streams
from splinenets.data.dataset import KNOWN
from splinenets.data.store import write_stored
from splinenets.training import Recipe, checkpoint, load_recipe, load_run, train
from splinenets.training.build import load_task, shape_of
from splinenets.training.networks import build_plain

SIZE = 12


def picture(generator, number):
    """A small image of some size, grey or coloured."""
    pixels = generator.integers(0, 256, (14 + number % 5, 13, 3), dtype=numpy.uint8)
    image = Image.fromarray(pixels)
    return image.convert("L") if number % 3 == 0 else image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 3 classes with a test part."""
    folder, generator = tmp_path_factory.mktemp("pictures"), numpy.random.default_rng(0)
    for part, count in (("train", 17), ("test", 6)):
        for label in ("cat", "dog", "eel"):
            (folder / part / label).mkdir(parents=True)
            for number in range(count):
                picture(generator, number).save(folder / part / label / f"{number}.png")
    return folder


def both(name, **options):
    return (load(name, size=SIZE, stream=stream, **options) for stream in ("never", "always"))


def test_a_stream_is_what_a_tensor_is(pictures):
    memory, disk = both(f"folder:{pictures}")
    assert isinstance(disk.train.images, Stream)
    assert disk.classes == memory.classes
    for a, b in ((memory.train, disk.train), (memory.test, disk.test)):
        assert a.images.shape == b.images.shape == (len(b.images), 3, SIZE, SIZE)
        assert torch.equal(a.labels, b.labels)
        for chosen in (
            slice(None),
            slice(3, 9),
            slice(-4, None),
            torch.tensor([7, 0, 7]),
            torch.tensor([], dtype=torch.long),
            5,
        ):
            assert torch.equal(a.images[chosen], b.images[chosen])
        assert torch.equal(torch.cat(list(b.images.split(5))), a.images)
        assert torch.equal(a.narrow(slice(2, 7)).images, b.narrow(slice(2, 7)).images[slice(None)])
        assert torch.equal(a.part(slice(1, 3)).images, b.part(slice(1, 3)).images)
    assert disk.train.narrow(slice(4)).images.files == disk.train.images.files[:4]


def test_grey_images_alone_have_one_channel(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("L", (9, 9), 60 * number).save(tmp_path / label / f"{number}.png")
    memory, disk = both(f"folder:{tmp_path}")
    assert disk.train.images.shape[1] == 1
    assert torch.equal(disk.in_colour().train.images[:], memory.in_colour().train.images)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_their_order_whoever_decodes(pictures, workers):
    memory, disk = both(f"folder:{pictures}")
    wanted = [torch.randperm(51)[:count] for count in (5, 1, 20, 7, 3, 8)]
    before = torch.random.get_rng_state()
    found = list(in_batches(disk.train.images, wanted, workers))
    assert all(torch.equal(a, memory.train.images[b]) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_exceeds_memory_stays_on_disk(pictures, monkeypatch):
    assert isinstance(load(f"folder:{pictures}", size=SIZE).train.images, torch.Tensor)
    monkeypatch.setattr(streams, "SHARE", 1e-12)
    assert isinstance(load(f"folder:{pictures}", size=SIZE).train.images, Stream)
    assert isinstance(load(f"folder:{pictures}", size=SIZE, stream="never").train.images, torch.Tensor)
    with pytest.raises(ValueError, match="unknown choice 'often', choose from auto, always, never"):
        load(f"folder:{pictures}", size=SIZE, stream="often")


# Training


def recipe(pictures, **changes):
    values = {
        "data": f"folder:{pictures}", "image_size": SIZE, "stream": "always", "network": "lenet", "width": 2, "batch": 12,
        "epochs": 2, "model": "H(3)-D-R3", "augment": "crop-flip", "precision": "float32", "checkpoint_every": 2,
        "log_every": 1, "calibrate": 20, "learning_rate": 0.02,
    }  # fmt: skip
    return Recipe(name="pictures", **(values | changes))


@pytest.fixture(scope="module")
def undisturbed(pictures, tmp_path_factory):
    """What a run with images in memory leaves, and how many calls one with images on disk makes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(recipe(pictures, stream="never"), folder / "memory")
    calls = count_calls(lambda: train(recipe(pictures), folder / "disk"))
    expected = files(folder / "memory")
    assert files(folder / "disk") == expected
    return expected, calls


def test_nobody_can_tell_where_images_were(undisturbed, pictures, tmp_path):
    expected, _ = undisturbed
    for workers in (0, 1):
        train(recipe(pictures, workers=workers), tmp_path / str(workers))
        assert files(tmp_path / str(workers)) == expected


def survives(moment, pictures, folder, expected):
    def die():
        die_after(moment)
        train(recipe(pictures), folder)

    assert outcome(fork(die)) == -signal.SIGKILL
    # what is not seen in the outcome may change on the way
    assert outcome(fork(lambda: train(recipe(pictures, workers=1), folder, resume=True))) == 0
    assert files(folder) == expected


@pytest.mark.parametrize(("count", "seed"), [(2, 0), pytest.param(30, 1, marks=pytest.mark.slow)])
def test_resume_is_bit_exact_after_sigkill(undisturbed, pictures, tmp_path, count, seed):
    expected, calls = undisturbed
    for number, moment in enumerate(random.Random(seed).sample(range(1, calls * 9 // 10), count)):
        survives(moment, pictures, tmp_path / str(number), expected)


def test_two_ranks_equal_one(pictures, tmp_path):
    exact = recipe(
        pictures, precision="float64", augment="none", dropout=0.0, learning_rate=1e-6, checkpoint_every=1, keep=100
    )
    assert outcome(fork(lambda: train(exact, tmp_path / "one"))) == 0
    port = free_port()
    children = [as_rank(rank, 2, port, lambda: train(exact, tmp_path / "two")) for rank in range(2)]
    assert [outcome(child) for child in children] == [0, 0]
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    for left, right in zip(*lines, strict=True):
        for key, value in json.loads(left).items():
            assert key == "layers" or json.loads(right)[key] == pytest.approx(value, abs=1e-10), key
    for step in checkpoint.steps(tmp_path / "one/checkpoints"):
        one, two = (checkpoint.read(tmp_path / name / "checkpoints", step).tensors for name in ("one", "two"))
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("compiled", [False, slow(True)])
def test_data_sets_put_together(compiled, tmp_path, monkeypatch):
    """They are in memory whatever ``stream`` says; a network from elsewhere is told how many classes they have."""
    for known, content in ((tiny.MNIST, tiny.GREY), (tiny.CIFAR, tiny.COLOUR)):
        monkeypatch.setitem(KNOWN, known.name, known)
        write_stored(known, content, "web", tmp_path)
    monkeypatch.setenv("SPLINENETS_DATA", str(tmp_path))
    together = {"data": "mnist+cifar10", "augment": "none", "epochs": 1, "batch": 20, "checkpoint_every": 0}
    for stream in ("always", "never"):
        train(recipe("", stream=stream, **together), tmp_path / stream)
    assert files(tmp_path / "always") == files(tmp_path / "never")
    net, task, _, _ = load_run(tmp_path / "always")
    images = task.show(task.data.test, slice(5))
    expected = net(*images).detach()
    assert expected.shape == (5, 20)
    if compiled:
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(*images), expected)
    sn.export(net, images[0], tmp_path / "net.native")
    torch.testing.assert_close(sn.load_export(tmp_path / "net.native")(*images), expected, rtol=1e-4, atol=1e-4)
    small = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    (tmp_path / "both.toml").write_text('data = "mnist+cifar10"\nnetwork = "transformers:resnet"')
    stranger = load_recipe(str(tmp_path / "both.toml"), arguments=small)
    assert build_plain(stranger, shape_of(stranger, load_task(stranger)))(torch.zeros(2, 3, 28, 28)).shape == (2, 20)


# Files that cannot be read


@pytest.fixture
def broken(pictures, tmp_path):
    """A copy of the folder in which one training image breaks off, behind a head that is whole; and that image."""
    for file in sorted(pictures.rglob("*.png")):
        copied = tmp_path / "pictures" / file.relative_to(pictures)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(file.read_bytes())
    file = tmp_path / "pictures/train/dog/8.png"
    file.write_bytes(file.read_bytes()[:80])
    return file


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_and_stops_the_run(broken, workers, tmp_path, monkeypatch):
    folder, whole = broken.parents[2], (broken.parent / "9.png").read_bytes()
    monkeypatch.setattr("splinenets.training.build.MEASURED", 5)
    monkeypatch.setattr("splinenets.training.build.EXAMPLES", 5)
    chosen = recipe(folder, workers=workers, calibrate=0)
    with pytest.raises(ValueError, match=r"8\.png cannot be read as an image") as raised:
        train(chosen, tmp_path / "run")
    assert len(str(raised.value).splitlines()) == 1
    broken.write_bytes(whole)  # mended, it goes on
    train(chosen, tmp_path / "run", resume=True)
    train(chosen, tmp_path / "other")
    assert files(tmp_path / "run") == files(tmp_path / "other")


@pytest.mark.parametrize("stream", ["always", "never"])
def test_a_broken_image_is_left_out_if_that_is_chosen(broken, stream):
    folder = broken.parents[2]
    with pytest.warns(UserWarning, match=r"8\.png cannot be read as an image: .*; it is left out"):
        data = load(f"folder:{folder}", size=SIZE, stream=stream, broken="skip")
    assert len(data.train.labels) == 50
    assert data.train.images[:].shape == (50, 3, SIZE, SIZE)
    for file in broken.parent.iterdir():
        file.write_bytes(b"")
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="too few images of 'dog'"):
        load(f"folder:{folder}", size=SIZE, stream=stream, broken="skip")


def test_a_worker_that_is_lost_is_one_sentence(pictures, monkeypatch):
    disk = load(f"folder:{pictures}", size=SIZE, stream="always").train.images
    monkeypatch.setattr(Stream, "decode", lambda self, index: os._exit(1))
    with pytest.raises(ChildProcessError, match="a process that decodes images was lost: continue with --resume"):
        list(in_batches(disk, [torch.arange(4)] * 4, 1))


# Tar archives


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def pack(folder, target, shards=2):
    """The images of a folder as WebDataset has them, labels as numbers."""
    target.mkdir()
    for part in ("train", "test"):
        found = sorted((folder / part).rglob("*.png"))
        for shard in range(shards):
            with tarfile.open(target / f"{part}-{shard:06d}.tar", "w") as archive:
                for number, file in enumerate(found[shard::shards]):
                    add(archive, f"{number:05d}.cls", str(["cat", "dog", "eel"].index(file.parent.name)).encode())
                    add(archive, f"{number:05d}.json", b"{}")
                    add(archive, f"{number:05d}.png", file.read_bytes())


def contents(split):
    return sorted(
        (int(label), image.numpy().tobytes()) for image, label in zip(split.images[:], split.labels, strict=True)
    )


@pytest.mark.parametrize("stream", ["always", "never"])
def test_archives_hold_what_folders_hold(pictures, tmp_path, stream):
    pack(pictures, tmp_path / "shards")
    plain, packed = load(f"folder:{pictures}", size=SIZE), load(f"tar:{tmp_path / 'shards'}", size=SIZE, stream=stream)
    assert packed.classes == ("0", "1", "2")
    assert contents(packed.train) == contents(plain.train)
    assert contents(packed.test) == contents(plain.test)
    one = load(f"tar:{tmp_path / 'shards/train-000000.tar'}", size=SIZE)  # alone, it holds out a fifth of itself
    assert (len(one.train.labels), len(one.test.labels)) == (20, 6)


def test_training_on_archives(pictures, tmp_path):
    pack(pictures, tmp_path / "shards")
    for stream in ("always", "never"):
        train(recipe("", data=f"tar:{tmp_path / 'shards'}", stream=stream, epochs=1), tmp_path / stream)
    assert files(tmp_path / "always") == files(tmp_path / "never")


def test_archives_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"holds no \.tar files"):
        load(f"tar:{tmp_path}")
    with pytest.raises(ValueError, match="there is no tar archive"):
        load(f"tar:{tmp_path / 'x.tar'}")
    (tmp_path / "x.tar").write_bytes(b"nothing of that kind" * 100)
    with pytest.raises(ValueError, match=r"x\.tar cannot be read as an archive"):
        load(f"tar:{tmp_path / 'x.tar'}")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "1.png", b"")
    with pytest.raises(ValueError, match=r"1\.png in .*x\.tar has no label: a file beside it"):
        load(f"tar:{tmp_path / 'x.tar'}")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name in ("a", "b", "c", "d"):
            add(archive, f"{name}.jpg", b"no image")
            add(archive, f"{name}.cls", b"1" if name < "c" else b"2")
    with pytest.raises(ValueError, match=r"\w\.jpg in .*x\.tar cannot be read as an image"):
        load(f"tar:{tmp_path / 'x.tar'}")
