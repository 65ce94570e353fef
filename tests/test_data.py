import hashlib
import io
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.helpers import tiny

import splinenets as sn
from splinenets.data import Batches, get, in_order, load, load_csv, load_folder, seeded, status, store
from splinenets.data.dataset import FETCHED, KNOWN
from splinenets.data.formats import parse_binary, parse_idx, parse_labels, parse_strip
from splinenets.data.listing import list_images
from splinenets.data.store import data_root, read_stored, stored_path, write_stored

# Data sets by name


def test_embedded_is_the_default():
    data = sn.data.load()
    assert data.name == "embedded"
    assert data.train.images.shape == (6000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert data.train.labels.bincount().tolist() == [600] * 10
    assert data.test.labels.bincount().tolist() == [100] * 10
    assert len(data.classes) == 10


def test_stored_set_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setitem(KNOWN, "cifar10", tiny.CIFAR)
    write_stored(tiny.CIFAR, tiny.COLOUR, "web", tmp_path)
    data = load("cifar10", tmp_path)
    assert torch.equal(data.train.images, tiny.COLOUR["train_images"])
    assert torch.equal(data.test.labels, tiny.COLOUR["test_labels"].long())
    monkeypatch.setenv("SPLINENETS_DATA", str(tmp_path))
    assert torch.equal(load("cifar10").test.images, data.test.images)


def test_several_sets_are_one(tmp_path, monkeypatch):
    """All classes side by side, grey and small as the first; every image keeps its label, in an order that is fixed."""
    monkeypatch.setitem(KNOWN, "mnist", tiny.MNIST)
    monkeypatch.setitem(KNOWN, "cifar10", tiny.CIFAR)
    write_stored(tiny.MNIST, tiny.GREY, "web", tmp_path)
    write_stored(tiny.CIFAR, tiny.COLOUR, "web", tmp_path)
    data = load("mnist+cifar10", tmp_path)
    assert (data.name, len(data.classes)) == ("mnist+cifar10", 20)
    assert data.classes[10] == "cifar10 0"  # digits name classes of both, so each says whose it is
    assert data.train.images.shape == (40, 1, 28, 28)
    digits, pictures = data.train.labels < 10, data.train.labels >= 10
    first = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(tiny.GREY["train_images"], tiny.GREY["train_labels"], strict=True)
    }
    found = {
        image.numpy().tobytes(): int(label)
        for image, label in zip(data.train.images[digits], data.train.labels[digits], strict=True)
    }
    assert found == first
    assert sorted(data.train.labels[pictures].sub(10).tolist()) == sorted(tiny.COLOUR["train_labels"].tolist())
    means = tiny.COLOUR["test_images"].float().mean((1, 2, 3)).sort().values
    grey = data.test.images[data.test.labels >= 10].float().mean((1, 2, 3)).sort().values
    assert torch.allclose(means, grey, atol=2)
    assert not torch.equal(digits, digits.sort(descending=True).values)  # mixed, so that a part of it has both
    assert torch.equal(load("mnist+cifar10", tmp_path).train.images, data.train.images)


def test_root(monkeypatch):
    monkeypatch.setenv("SPLINENETS_DATA", "/somewhere")
    assert data_root() == Path("/somewhere")
    assert data_root("/else") == Path("/else")
    monkeypatch.delenv("SPLINENETS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_root() == Path("/cache/splinenets")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "splinenets"


def test_a_set_that_the_first_version_stored_is_found(tmp_path, monkeypatch):
    """It kept data sets in ~/.cache even where $XDG_CACHE_HOME names another folder."""
    monkeypatch.delenv("SPLINENETS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setitem(KNOWN, "cifar10", tiny.CIFAR)
    (tmp_path / ".cache/splinenets").mkdir(parents=True)
    old = write_stored(tiny.CIFAR, tiny.COLOUR, "web", tmp_path / ".cache/splinenets")
    assert torch.equal(load("cifar10").train.images, tiny.COLOUR["train_images"])
    assert get("cifar10") == old
    assert status("cifar10").path == old
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(FileNotFoundError):
        load("cifar10", tmp_path / "mine")  # a folder that is named means that folder
    old.write_bytes(b"damaged")
    new = write_stored(tiny.CIFAR, tiny.COLOUR, "web", tiny.write(tmp_path / "elsewhere/splinenets", {}))
    assert new.parent == data_root()
    assert status("cifar10").path == new
    assert old.read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        (
            "mnits",
            {},
            "unknown data set 'mnits', choose from cifar10, embedded, fashion-mnist, mnist, several of these",
        ),
        ("", {}, "unknown data set ''"),
        ("MNIST", {}, "unknown data set 'MNIST'"),
        ("embedded", {"size": 32}, "got size=32 for 'embedded'"),
        ("folder:/no/such/place", {}, "there is no folder /no/such/place"),
        ("folder:/", {"size": 0}, "size must be at least 1 pixel, got 0"),
    ],
)
def test_wrong_names(name, extra, message):
    with pytest.raises(ValueError, match=message):
        load(name, **extra)


@pytest.mark.parametrize("name", FETCHED)
def test_missing_set_names_the_command(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"splinenets data get {name}"):
        load(name, tmp_path)


def test_every_flipped_or_missing_byte_is_noticed(tmp_path):
    """A file of a small data set with each of its bytes changed in turn, and cut off at many places."""
    arrays = {key: array[:2, :, :3, :3] if array.dim() == 4 else array[:2] for key, array in tiny.GREY.items()}
    known = tiny.known("mnist", arrays)
    path = write_stored(known, arrays, "npm", tmp_path)
    whole = path.read_bytes()
    flipped = (whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole)))
    cut = (whole[:at] for at in range(0, len(whole), 5))
    count = 0
    for copy in (*flipped, *cut, whole + b"\0", b""):
        path.write_bytes(copy)
        with pytest.raises(ValueError) as caught:
            read_stored(known, tmp_path)
        assert str(path) in str(caught.value)
        count += 1
    assert count > 400
    path.write_bytes(whole)
    assert tiny.same(read_stored(known, tmp_path)[0], arrays)


@pytest.mark.parametrize(
    "changed",
    [
        {"train_images": tiny.GREY["train_images"].int()},
        {"train_images": tiny.GREY["train_images"].flatten(2)},
        {"test_labels": tiny.GREY["test_labels"][:-1]},
        {"test_labels": tiny.GREY["test_labels"].flip(0)},
    ],
    ids=["type", "shape", "length", "order"],
)
def test_other_content_is_not_stored(tmp_path, changed):
    with pytest.raises(ValueError, match="not mnist"):
        write_stored(tiny.MNIST, tiny.GREY | changed, "web", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_set_stored_under_another_name_is_refused(tmp_path):
    path = write_stored(tiny.MNIST, tiny.GREY, "web", tmp_path)
    path.rename(stored_path("cifar10", tmp_path))
    with pytest.raises(ValueError, match="is not cifar10"):
        read_stored(tiny.CIFAR, tmp_path)


def test_damaged_embedded_set(tmp_path, monkeypatch):
    files = {path.name: path.read_bytes() for path in store.EMBEDDED_FOLDER.iterdir()}
    monkeypatch.setattr(store, "EMBEDDED_FOLDER", tmp_path)
    name = "test-images-idx3-ubyte.gz"
    middle = len(files[name]) // 2
    for copy in (files[name][:middle], files[name][:middle] + b"\0\0\0" + files[name][middle + 3 :], b"", b"rubbish"):
        tiny.write(tmp_path, files | {name: copy})
        with pytest.raises(ValueError, match="test-images-idx3-ubyte"):
            load()
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match="has no test-images-idx3-ubyte"):
        load()


# Formats


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_idx_round_trip(shape, random):
    array = torch.tensor([random.randrange(256) for _ in range(numpy.prod(shape))], dtype=torch.uint8).view(shape)
    assert torch.equal(parse_idx(tiny.idx_bytes(array), "file"), array)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\0\0\x08" + tail))
@pytest.mark.parametrize("parse", [parse_idx, parse_binary, parse_strip, parse_labels])
def test_parsers_refuse_rubbish_by_name(parse, content):
    try:
        parse(content, "this file")
    except ValueError as error:
        message = str(error)
    else:
        message = "this file could be read"  # short, but not rubbish
        assert parse in (parse_idx, parse_labels)
    assert message.startswith("this file ")


@pytest.mark.parametrize(
    ("parse", "content", "message"),
    [
        (parse_binary, bytes(3072), "records of 3073 bytes, got 3072 bytes"),
        (parse_binary, b"", "got 0 bytes"),
        (parse_strip, tiny.png(numpy.zeros((2, 1023, 3), numpy.uint8)), "got RGB rows of 1023"),
        (parse_strip, tiny.png(numpy.zeros((2, 1024), numpy.uint8)), "got L rows of 1024"),
        (parse_labels, b"[1, 2, 256]", "list of class numbers"),
        (parse_labels, b"[1, true]", "list of class numbers"),
        (parse_labels, b"[" * 100_000, "is damaged"),
        (parse_labels, b'{"a": 1}', "list of class numbers"),
        (parse_idx, b"\0\0\x0d\x01\0\0\0\x01\0", "not an IDX file of unsigned bytes"),
        (parse_idx, b"\0\0\x08\x03\0\0\0\x01", "ends within its header"),
        (parse_idx, b"\0\0\x08\x01\0\0\0\x02\0", "should hold 2 bytes"),
        (parse_idx, b"\0\0\x08\x01\0\0\0\0", "is empty"),
    ],
)
def test_parsers_say_what_is_wrong(parse, content, message):
    with pytest.raises(ValueError, match=message):
        parse(content, "file")


# Folders of images

COLOURS = {"apple": (200, 30, 40), "banana": (220, 210, 20), "plum": (90, 20, 130)}


def paint(path, colour, size=(40, 30), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)


@pytest.fixture
def fruit(tmp_path):
    for name, colour in COLOURS.items():
        for number in range(10):
            paint(tmp_path / "fruit" / name / f"{number}.png", colour, size=(20 + number, 50 - number))
    return tmp_path / "fruit"


def test_folder(fruit):
    data = load(f"folder:{fruit}")
    assert data.classes == ("apple", "banana", "plum")
    assert data.train.images.shape == (24, 3, 32, 32)
    assert data.test.images.shape == (6, 3, 32, 32)
    assert sorted(data.train.labels.tolist()) == [0] * 8 + [1] * 8 + [2] * 8
    assert sorted(data.test.labels.tolist()) == [0, 0, 1, 1, 2, 2]
    assert set(data.train.labels[:8].tolist()) == {0, 1, 2}  # the first few are a fair sample
    for split in (data.train, data.test):
        for image, label in zip(split.images, split.labels, strict=True):
            expected = torch.tensor(list(COLOURS.values())[label], dtype=torch.uint8).view(3, 1, 1)
            assert torch.equal(image, expected.expand_as(image))


def test_folder_split_depends_on_names_alone(fruit, tmp_path):
    for index, path in enumerate(sorted(fruit.glob("*/*.png"), reverse=True)):
        shade = (index, 2 * index, 3 * index)
        paint(path, shade)
        paint(tmp_path / "copy" / path.relative_to(fruit), shade)
    first, second = load_folder(fruit), load_folder(tmp_path / "copy")
    assert torch.equal(first.test.images, second.test.images)
    shades = torch.cat((first.train.images, first.test.images))[:, :, 0, 0]
    assert len(shades.unique(dim=0)) == 30  # no image in both halves
    (fruit / "apple" / "new.png").write_bytes((fruit / "apple" / "1.png").read_bytes())
    kept = load_folder(fruit).test.images[:, :, 0, 0].tolist()
    assert sum(shade in kept for shade in first.test.images[:, :, 0, 0].tolist()) >= 5


@pytest.mark.parametrize(("held_out", "expected"), [(0.5, 15), (0.01, 3), (0.99, 27)])
def test_folder_share_held_out(fruit, held_out, expected):
    assert len(load_folder(fruit, held_out=held_out).test.labels) == expected


@pytest.mark.parametrize(
    ("first", "second"), [("train", "test"), ("train", "val"), ("Train", "Test"), ("training", "validation")]
)
def test_folder_with_its_own_split(tmp_path, first, second):
    for split, count in ((first, 3), (second, 1)):
        for name, colour in COLOURS.items():
            for number in range(count):
                paint(tmp_path / split / name / f"{number}.jpg", colour)
    data = load_folder(tmp_path, 16)
    assert data.train.images.shape == (9, 3, 16, 16)
    assert sorted(data.test.labels.tolist()) == [0, 1, 2]


def test_folder_with_training_images_alone(fruit, tmp_path):
    (tmp_path / "whole").mkdir()
    fruit.rename(tmp_path / "whole/train")
    data = load_folder(tmp_path / "whole")
    assert data.classes == tuple(COLOURS)
    assert (len(data.train.labels), len(data.test.labels)) == (24, 6)


def test_a_class_may_be_called_train(fruit):
    (fruit / "plum").rename(fruit / "train")
    assert load_folder(fruit).classes == ("apple", "banana", "train")


def test_folder_is_read_however_deep_images_lie(fruit):
    """Nothing is left out in silence, and what lay on top stays where it was."""
    before = load_folder(fruit)
    for number in range(5):
        paint(fruit / f"plum/more/and more {number}/{number}.jfif", COLOURS["plum"], format="JPEG")
    paint(fruit / "plum/.thumbnails/0.png", (0, 0, 0))
    paint(fruit / "__MACOSX/plum/._0.png", (0, 0, 0))
    after = load_folder(fruit)
    assert after.classes == before.classes
    assert len(after.train.labels) + len(after.test.labels) == 35
    paths = [{file.name for file in list_images(f"folder:{fruit}").test if file.label == name} for name in COLOURS]
    assert paths[0] == paths[1]
    assert len(paths[2]) == 3


def test_folder_keeps_the_middle_and_the_shape(tmp_path):
    """A wide image of three squares: red, green, blue. Its middle is green."""
    wide = numpy.zeros((8, 24, 3), numpy.uint8)
    for square in range(3):
        wide[:, 8 * square : 8 * square + 8, square] = 255
    for name in "ab":
        for number in "12":
            tiny.write(tmp_path / name, {f"{number}.png": tiny.png(wide)})
    data = load_folder(tmp_path, 8)
    assert data.train.images[0].amax((1, 2)).tolist() == [0, 255, 0]
    assert load_folder(tmp_path, (4, 12)).train.images.shape == (2, 3, 4, 12)
    whole = load_folder(tmp_path, (8, 24)).train.images[0]
    assert torch.equal(whole, torch.from_numpy(wide).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_folder_of_grey_images_stays_grey(tmp_path, mode):
    for name, shade in (("dark", 0), ("light", 255)):
        for number in range(2):
            paint(tmp_path / name / f"{number}.png", (shade,) * 3, mode=mode)
    data = load_folder(tmp_path)
    assert data.train.images.shape == (2, 1, 32, 32)
    assert torch.equal(data.train.images, (255 * data.train.labels).byte().view(-1, 1, 1, 1).expand(-1, 1, 32, 32))


def test_folder_of_16_bits(tmp_path):
    for name, shade in (("dark", 0x1234), ("light", 0xABCD)):
        for number in range(2):
            content = io.BytesIO()
            Image.fromarray(numpy.full((9, 9), shade, numpy.uint16)).save(content, "PNG")
            tiny.write(tmp_path / name, {f"{number}.png": content.getvalue()})
    train = load_folder(tmp_path).train
    assert train.images[train.labels.argsort(), 0, 0, 0].tolist() == [0x12, 0xAB]


def test_folder_of_many_kinds_becomes_rgb(tmp_path):
    for number, (mode, suffix) in enumerate(
        (("RGB", "png"), ("L", "png"), ("P", "png"), ("RGBA", "png"), ("CMYK", "tif"), ("RGB", "bmp"), ("P", "gif"))
    ):
        paint(tmp_path / "grey" / f"{number}.{suffix}", (102, 102, 102), mode=mode)
        paint(tmp_path / "black" / f"{number}.{suffix}", (0, 0, 0), mode=mode)
    data = load_folder(tmp_path)
    images = torch.cat((data.train.images, data.test.images)).float()
    labels = torch.cat((data.train.labels, data.test.labels))
    assert images.shape == (14, 3, 32, 32)
    assert images[labels == 0].max() <= 2
    assert (images[labels == 1] - 102).abs().max() <= 2


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "PA"])
def test_what_is_transparent_is_grey(tmp_path, mode):
    """A black square, in the middle of pixels that nobody can see and that are white or black."""
    for name, hidden in (("a", 255), ("b", 0)):
        for number in "12":
            image = Image.new("RGBA", (12, 12), (hidden, hidden, hidden, 0))
            image.paste((0, 0, 0, 255), (4, 4, 8, 8))
            saved = image.convert(mode)
            options = {}
            if mode == "RGB":  # a PNG file can name one colour that is transparent
                saved = Image.new("RGB", (12, 12), (9, 9, 9))
                saved.paste((0, 0, 0), (4, 4, 8, 8))
                options["transparency"] = (9, 9, 9)
            (tmp_path / name).mkdir(exist_ok=True)
            saved.save(tmp_path / name / f"{number}.{'tif' if mode == 'PA' else 'png'}", **options)
    images = load_folder(tmp_path, 12).train.images
    assert (images[:, :, 0, 0] == 128).all()
    assert (images[:, :, 6, 6] == 0).all()


# CSV files

CSV = """file,label,split,value,author
plum/1.png,sweet,train,0.5,me
plum/2.png,sweet,test,1,you
banana/1.png,mild,train,-3,me
banana/2.png,mild,test,2e1,you
apple/1.png,sour,val,7,me
"""


def test_csv(fruit):
    (fruit / "list.csv").write_text(CSV, encoding="utf-8-sig")
    data = load(f"csv:{fruit / 'list.csv'}", size=16)
    assert data.classes == ("mild", "sweet")  # there is a test part, so val is left alone
    for part, numbers in ((data.train, {0: -3, 1: 0.5}), (data.test, {0: 20, 1: 1})):
        assert part.images.shape == (2, 3, 16, 16)
        assert dict(zip(part.labels.tolist(), part.values.tolist(), strict=True)) == numbers
    colours = dict(zip(data.train.labels.tolist(), data.train.images[:, :, 0, 0].tolist(), strict=True))
    assert colours == {0: list(COLOURS["banana"]), 1: list(COLOURS["plum"])}


@pytest.mark.parametrize("columns", [2, 3])
def test_csv_without_a_head_and_without_a_split(fruit, columns):
    """Labels that are numbers count; a fifth of each class is held out, as of a folder."""
    names = {"apple": 10, "banana": 2, "plum": 33}
    rows = [[f"{name}/{n}.png", names[name], n][:columns] for name in names for n in range(10)]
    (fruit / "list.csv").write_text("".join(f"{','.join(map(str, row))}\n\n" for row in rows))
    data = load_csv(fruit / "list.csv")
    assert data.classes == ("2", "10", "33")
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    assert (data.train.values is None) == (columns == 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must begin with a line that names its columns"),
        ("plum/1.png\n", "must begin with a line that names its columns"),
        ("plum/1.png;sweet\n", "at least 2 classes"),
        (
            "plum/1.png|sweet\n",
            "must begin with a line that names its columns, such as file,label, got plum/1.png|sweet",
        ),
        (
            "image,label\nplum/1.png,sweet\n",
            "line 1: there is no file .*; a line that names columns has file and label",
        ),
        ("file,label\nplum/1.png,sweet\nplum/2.png,\n", "line 3: plum/2.png has no label"),
        ("file,file,label\n", "must begin with a line that names its columns"),
        ("file,label\nplum/1.png,sweet\nplum/2.png\n", r"line 3: needs 2 cells \(file, label\), got 1"),
        ("file,label\nplum/1.png,sweet\nplum/x.png,sour\n", "line 3: there is no file .*plum/x.png"),
        ("file,label\nplum/1.png,sweet\nplum/2.png,sweet\n", "at least 2 classes"),
        ("plum/1.png,a\nplum/1.png,b\n", "lists 'plum/1.png' twice"),
        ("plum/1.png,a,1\nplum/2.png,b,nan\n", "line 2: value must be a finite number, got 'nan'"),
        ("plum/1.png,a\nplum/2.png,b\n", "class 'a' in .* has 1 image"),
        ("file,label,split\nplum/1.png,a,yes\n", "line 2: split is train, test or val, got 'yes'"),
        ("file,label,split\nplum/1.png,a,train\nplum/2.png,b,test\n", "but only train has 'a'"),
        ("\xff", "is not a CSV file in UTF-8"),
    ],
)
def test_a_csv_file_that_is_wrong(fruit, content, message):
    (fruit / "list.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        load_csv(fruit / "list.csv")
    with pytest.raises(ValueError, match="there is no file"):
        load_csv(fruit / "nowhere.csv")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_csv_of_other_spreadsheets(fruit, mark):
    rows = [f"{name}/{n}.png,{name},{'Validation' if n > 7 else 'training'}" for name in COLOURS for n in range(10)]
    (fruit / "list.csv").write_text("\n".join(["File,Label,Split", *rows]).replace(",", mark))
    data = load_csv(fruit / "list.csv")
    assert data.classes == tuple(COLOURS)
    assert (len(data.train.labels), len(data.test.labels)) == (24, 6)


def test_what_is_not_there_is_said_with_what_is(fruit, monkeypatch):
    monkeypatch.chdir(fruit)
    (fruit / "list.csv").write_text(CSV)
    for name, message in (
        ("folder:nowhere", f"there is no folder nowhere in {fruit}$"),
        ("csv:nowhere.csv", f"there is no file nowhere.csv in {fruit}$"),
        ("folder:list.csv", "list.csv is a file, not a folder of folders; a CSV file is csv:list.csv"),
        (f"csv:{fruit}", f"is a folder: say folder:{fruit}"),
        (f"folder:{fruit / 'plum'}", "got 0; for images in one folder, write a CSV file with the columns file,label"),
    ):
        with pytest.raises(ValueError, match=message):
            load(name)


def test_folder_turns_photos_upright(tmp_path):
    upright = numpy.zeros((8, 8), numpy.uint8)
    upright[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    for name in "ab":
        for number in "12":
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(numpy.rot90(upright)).save(tmp_path / name / f"{number}.png", exif=exif)
    assert torch.equal(load_folder(tmp_path, 8).train.images[0, 0], torch.from_numpy(upright))


def test_folder_ignores_other_files(fruit):
    (fruit / "README.txt").write_text("hello")
    (fruit / ".hidden").mkdir()
    (fruit / "plum" / "notes.txt").write_text("hello")
    (fruit / "plum" / ".hidden.png").write_text("hello")
    assert len(load_folder(fruit).train.labels) == 24


def empty_class(fruit):
    for path in (fruit / "banana").iterdir():
        path.unlink()


def lone_image(fruit):
    for path in (fruit / "banana").glob("[1-9].png"):
        path.unlink()


def other_classes(fruit):
    for split, names in (("train", "ab"), ("test", "abc")):
        for name in names:
            paint(fruit / split / name / "1.png", (0, 0, 0))


BROKEN = {
    "empty class": (empty_class, "class 'banana' is empty: .*banana has no images"),
    "lone image": (lone_image, "class 'banana' in .* has 1 image"),
    "other classes": (other_classes, "must hold the same classes, but only test has 'c'"),
    "broken image": (
        lambda fruit: (fruit / "plum" / "3.png").write_bytes(b"\x89PNG rubbish"),
        r"plum/3\.png cannot be read as an image",
    ),
    "empty image": (lambda fruit: (fruit / "plum" / "3.png").write_bytes(b""), r"plum/3\.png cannot be read"),
    "folder in place of an image": (lambda fruit: (fruit / "plum" / "x.png").mkdir(), r"plum/x\.png cannot be read"),
    "floating point": (
        lambda fruit: Image.new("F", (4, 4)).save(fruit / "plum" / "x.tif"),
        r"plum/x\.tif cannot be read as an image: its pixels are 'F', which is not read here: save it with 8 or 16 bits",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_folder_is_named(fruit, spoil, message):
    spoil(fruit)
    with pytest.raises(ValueError, match=message):
        load_folder(fruit)


def test_truncated_images_are_named(tmp_path):
    """Each of 40 lengths of a PNG and of a JPEG file short of the whole."""
    pixels = numpy.random.default_rng(0).integers(0, 256, (16, 16, 3), numpy.uint8)
    for suffix in ("png", "jpg"):
        for name in "ab":
            for number in "12":
                paint(tmp_path / suffix / name / f"{number}.{suffix}", (1, 2, 3))
        path = tmp_path / suffix / "a" / f"1.{suffix}"
        Image.fromarray(pixels).save(path)
        whole = path.read_bytes()
        for length in range(0, len(whole) - 20, len(whole) // 40):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=rf"1\.{suffix} cannot be read as an image"):
                load_folder(tmp_path / suffix)


def test_folder_needs_two_classes(tmp_path):
    paint(tmp_path / "only" / "1.png", (0, 0, 0))
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        load_folder(tmp_path)
    with pytest.raises(ValueError, match=r"held_out must be between 0 and 1, got 1\.0"):
        load_folder(tmp_path, held_out=1.0)


# Batches

counts = st.integers(1, 300)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(counts, st.integers(1, 64), st.integers(0, 99), st.integers(0, 9), st.integers(1, 5))
def test_batches_cover_each_sample_once(samples, batch, seed, epoch, world):
    batches = Batches(samples=samples, batch=batch, seed=seed)
    steps = range(len(batches))
    assert len(batches) == -(-samples // batch)
    sizes = [batches.size(step) for step in steps]
    assert max(sizes) <= batch
    assert max(sizes) - min(sizes) <= 1
    if min(sizes) < world:
        with pytest.raises(ValueError, match=f"too small for {world} ranks"):
            batches.indices(epoch, 0, 0, world)
        return
    alone = [batches.indices(epoch, step) for step in steps]
    assert torch.cat(alone).sort().values.tolist() == list(range(samples))
    for step in steps:
        shares = [batches.indices(epoch, step, rank, world) for rank in range(world)]
        assert torch.equal(torch.cat(shares), alone[step])
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 300), st.integers(1, 64), st.integers(1, 5))
def test_evaluation_sees_each_sample_once_and_in_order(samples, batch, world):
    everything = torch.arange(samples)
    shares = [everything[part] for rank in range(world) for part in in_order(samples, batch, rank, world)]
    assert all(0 < len(share) <= batch for share in shares)
    assert torch.equal(torch.cat([*shares, everything[:0]]), everything)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=300), st.integers(1, 64), st.integers(0, 9), st.integers(1, 3))
def test_each_class_equally_often(labels, batch, epoch, world):
    labels = torch.tensor(labels)
    batches = Batches(samples=len(labels), batch=batch, labels=labels)
    drawn = torch.cat([batches.indices(epoch, step) for step in range(len(batches))])
    assert len(drawn) == len(labels)
    often = labels[drawn].bincount()[labels.unique()]
    assert often.max() - often.min() <= 1
    for label, count in zip(labels.unique(), often, strict=True):
        each = drawn[labels[drawn] == label].bincount(minlength=len(labels))[labels == label]
        assert each.sum() == count
        assert each.max() - each.min() <= 1  # no image comes again before the others have come
    if min(batches.size(step) for step in range(len(batches))) >= world:
        shares = [batches.indices(epoch, 0, rank, world) for rank in range(world)]
        assert torch.equal(torch.cat(shares), batches.indices(epoch, 0))
    assert torch.equal(drawn, Batches(samples=len(labels), batch=batch, labels=labels.clone()).order(epoch))


def test_many_images_of_a_class_have_their_turns():
    labels = torch.tensor([0] * 90 + [1] * 10)
    batches = Batches(samples=100, batch=10, labels=labels)
    seen = torch.cat([batches.order(epoch) for epoch in range(12)]).unique()
    assert len(seen) == 100
    assert not torch.equal(batches.order(0), batches.order(1))


def test_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return Batches(samples=1000, batch=1000, seed=seed).indices(epoch, 0).tolist()

    first = order(0, 0)
    torch.rand(5)  # what else happens makes no difference
    assert order(0, 1) != first
    assert order(1, 0) != first
    assert order(0, 2) != order(0, 1)
    assert order(0, 0) == first
    assert first != sorted(first)
    assert first[:5] == [760, 675, 215, 450, 20]  # elsewhere and later too: a run resumed there goes on in this order


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Batches(samples=0, batch=1), "samples must be at least 1, got 0"),
        (lambda: Batches(samples=1, batch=0), "batch must be at least 1, got 0"),
        (lambda: Batches(samples=10, batch=5).indices(0, 2), "step must be from 0 to 1, got 2"),
        (lambda: Batches(samples=10, batch=5).indices(0, -1), "step must be from 0 to 1, got -1"),
        (lambda: Batches(samples=10, batch=5).indices(0, 0, 2, 2), "got rank=2, world=2"),
        (lambda: in_order(10, 0), "batch must be at least 1, got 0"),
        (lambda: in_order(10, 1, -1, 2), "got rank=-1, world=2"),
    ],
)
def test_wrong_batches(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_seeded_generators_are_scattered():
    keys = [("a", 0, 0, 0), ("a", 0, 0, 1), ("a", 0, 1, 0), ("a", 1, 0, 0), ("b", 0, 0, 0), ("a", 1, 1), ("a", 11)]
    assert len({float(torch.rand((), generator=seeded(*key))) for key in keys}) == len(keys)
    assert seeded("a", 1).initial_seed() == seeded("a", 1).initial_seed()


# The real thing, where it has been got


def real(name):
    if not stored_path(name, data_root()).exists():
        pytest.skip(f"{name} is not in {data_root()}: run 'splinenets data get {name}'")
    return load(name)


@pytest.mark.parametrize(("name", "shape", "train"), [("mnist", (1, 28, 28), 60_000), ("cifar10", (3, 32, 32), 50_000)])
def test_real_sets(name, shape, train):
    data = real(name)
    assert data.train.images.shape == (train, *shape)
    assert data.test.images.shape == (10_000, *shape)
    assert data.train.labels.unique().tolist() == list(range(10))


def test_mnist_has_the_published_md5():
    data = real("mnist")
    content = tiny.idx_bytes(data.train.images.squeeze(1)), tiny.idx_bytes(data.test.labels.byte())
    assert [hashlib.md5(part).hexdigest() for part in content] == [
        "6bbc9ace898e44ae57da46a324031adb",
        "27ae3e4e09519cfbb04c329615203637",
    ]


def test_fashion_has_the_published_md5_and_embedded_is_its_beginning():
    data, part = real("fashion-mnist"), load()
    content = tiny.idx_bytes(data.train.images.squeeze(1))
    assert hashlib.md5(content).hexdigest() == "f4a8712d7a061bf5bd6d2ca38dc4d50a"
    for whole, beginning, count in ((data.train, part.train, 600), (data.test, part.test, 100)):
        chosen = torch.cat([(whole.labels == label).nonzero()[:count, 0] for label in range(10)]).sort().values
        assert torch.equal(whole.images[chosen], beginning.images)
        assert torch.equal(whole.labels[chosen], beginning.labels)
