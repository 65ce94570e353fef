"""Exports that need no Python: built by make, run on a picture, equal to what the engine answers here."""

import shutil
import subprocess

import pytest
import torch
from tests.helpers.exports import network

import splinenets as sn
from splinenets.exporting import export_c, load_export
from splinenets.exporting.c_folder import preparation

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="needs make and cc"),
    pytest.mark.slow,  # a C compiler has to build the runtime anew
]
NORMALISE = {"kind": "normalise", "mean": [0.3], "std": [0.35]}


def picture(path, image):
    """Bytes (C, H, W) as PGM or PPM."""
    channels, height, width = image.shape
    head = f"P{5 if channels == 1 else 6}\n{width} {height}\n255\n".encode()
    path.write_bytes(head + image.permute(1, 2, 0).contiguous().numpy().tobytes())


def answers(folder, *words, emulator=None):
    command = [*([emulator] if emulator else []), "./classify", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.tensor([float(line) for line in done.stdout.splitlines()[:-1]])


def test_the_folder_answers_as_python_does_to_the_bit(tmp_path):
    net, some = network("lenet4", "H(5)-D-R3")
    folder = tmp_path / "net"
    export_c(net, some, folder, metadata={"preparation": NORMALISE})
    subprocess.run(["make", "-s"], cwd=folder, check=True, capture_output=True)
    exported = load_export(folder / "network.native")
    pixels = sn.data.load("embedded").test.images[:3]
    for image in pixels:
        picture(folder / "picture.pgm", image)
        expected = exported(sn.data.prepare(image[None], NORMALISE))[0]
        assert torch.equal(answers(folder, "network.native", "picture.pgm"), expected)
    (folder / "picture.pgm").write_bytes(b"something else")
    for words in (["network.native", "picture.pgm"], ["picture.pgm", "picture.pgm"], ["nothing", "nothing"], []):
        done = subprocess.run(["./classify", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


CROSS = ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc", "qemu-aarch64")


@pytest.mark.slow
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in CROSS), reason=f"needs {', '.join(CROSS)}")
def test_a_folder_for_another_processor(tmp_path):
    net, some = network("lenet4", "H(5)-D-R3")
    folder = tmp_path / "net"
    export_c(net, some, folder, metadata={"preparation": NORMALISE})
    compilers = (f"CXX={CROSS[0]} -static", f"CC={CROSS[1]}", "ARCH=armv8-a")
    subprocess.run(["make", "-s", *compilers], cwd=folder, check=True, capture_output=True)
    exported = load_export(folder / "network.native")
    for image in sn.data.load("embedded").test.images[:3]:
        picture(folder / "picture.pgm", image)
        expected = exported(sn.data.prepare(image[None], NORMALISE))[0]
        found = answers(folder, "network.native", "picture.pgm", emulator=CROSS[2])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_folder_is_new_and_whole(tmp_path):
    net, some = network("lenet4")
    (tmp_path / "net").mkdir()
    with pytest.raises(FileExistsError, match="is there already"):
        export_c(net, some, tmp_path / "net")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        export_c(net, some, tmp_path / "none" / "net")
    with pytest.raises(ValueError, match="cannot be exported"):
        export_c(torch.nn.Softmax(1), some, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_whitening_in_c(tmp_path):
    image = sn.data.load("embedded").test.images[0]
    source = (
        "#include <stdio.h>\nint main(void) { unsigned char bytes[784]; float image[784];\n"
        "  if (fread(bytes, 1, 784, stdin) != 784) return 1;\n  prepare(bytes, image, 1, 784);\n"
        '  for (int i = 0; i < 784; i++) printf("%.9g\\n", image[i]);\n  return 0; }\n'
    )
    (tmp_path / "main.c").write_text(preparation({"preparation": {"kind": "whiten"}, "input": [1, 28, 28]}) + source)
    subprocess.run(["cc", "-std=c99", "main.c", "-o", "main", "-lm"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, input=image.numpy().tobytes(), capture_output=True, check=True)
    found = torch.tensor([float(line) for line in done.stdout.split()])
    torch.testing.assert_close(found, sn.data.prepare(image[None], {"kind": "whiten"}).flatten(), rtol=1e-5, atol=1e-5)
