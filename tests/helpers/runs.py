"""Tiny training runs, and children that train and die."""

import os
import signal
import socket
import sys
import warnings

from accelerate.state import AcceleratorState, PartialState

import splinenets.training.build as build
import splinenets.training.runner as training
from splinenets.data import Dataset, Split, augmentation, load
from splinenets.training import Recipe

EVERYTHING_ON = {
    "width": 4,
    "model": "H(4)-D-R3 diffusion=0.9",
    "augment": "affine-elastic",
    "dropout": 0.5,
    "batch": 30,
    "epochs": 3,
    "calibrate": 50,
    "checkpoint_every": 2,
    "log_every": 1,
    "precision": "float32",
    "weight_decay": 1e-3,
    "learning_rate": 0.05,
}


def recipe(**changes):
    return Recipe(name="tiny", **(EVERYTHING_ON | changes))


def tiny_task(recipe, train=103, test=41):
    """The first images of the embedded set."""
    whole = load("embedded")
    data = Dataset(
        name="tiny",
        train=Split(whole.train.images[:train], whole.train.labels[:train]),
        test=Split(whole.test.images[:test], whole.test.labels[:test]),
        classes=whole.classes,
    )
    dtype = build.DTYPES.get(recipe.precision, build.torch.float32)
    return build.Task(data=data, augment=augmentation(recipe.augment), dtype=dtype)


def train(chosen, out, **options):
    training.load_task = tiny_task
    try:
        return training.train(chosen, out, **options)
    finally:
        training.load_task = build.load_task


def fork(work):
    """Do ``work`` in a child process; its id. The child ends with 0, or with 1 after an exception."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forking beside threads
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"child: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def outcome(child):
    """The exit code of a child, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_after(events):
    """SIGKILL this process after so many calls of Python functions: any moment at all, and the same every time."""
    left, own = events, os.getpid()

    def count(frame, event, arg):
        nonlocal left
        if event == "call" and os.getpid() == own:  # and not a process that this one has started
            left -= 1
            if left == 0:
                os.kill(own, signal.SIGKILL)

    sys.setprofile(count)


def count_calls(work):
    """How many calls of Python functions there are in ``work``, which is done in a child."""
    read, write = os.pipe()

    def counted():
        calls = 0

        def count(frame, event, arg):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        work()
        sys.setprofile(None)
        os.write(write, str(calls).encode())

    assert outcome(fork(counted)) == 0
    os.close(write)
    with os.fdopen(read) as pipe:
        return int(pipe.read())


def as_rank(rank, world, port, work):
    """Do ``work`` as one of several ranks, as a launcher would start it."""

    def ranked():
        PartialState._reset_state()
        AcceleratorState._reset_state(True)
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        work()

    return fork(ranked)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def files(folder):
    """What must be equal bit for bit: metrics, weights, momentum."""
    kept = [*sorted((folder / "checkpoints").iterdir()), folder / "metrics.jsonl"]
    return {path.name: path.read_bytes() for path in kept}
