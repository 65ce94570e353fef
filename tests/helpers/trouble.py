"""Something goes wrong at the n-th thing that is done to a disk."""

import io
import os
import sys
from functools import cache
from pathlib import Path

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")  # as Python's audit hooks call them


class Trouble:
    """Inside a with block, ``happen()`` at the n-th write, fsync, rename, removal or new folder; n = 0: never.

    A write is cut in the middle. Afterwards ``met`` says how many there were, ``last`` what kind the n-th was.
    """

    active = None

    def __init__(self, at=0, happen=lambda: None):
        self.at, self.happen, self.met, self.last = at, happen, 0, ""

    def __enter__(self):
        listen()
        self.open, self.fsync = Path.open, os.fsync
        Path.open, os.fsync = self._open(), self._fsync
        Trouble.active = self
        return self

    def __exit__(self, *error):
        Trouble.active = None
        Path.open, os.fsync = self.open, self.fsync

    def due(self, what):
        self.met += 1
        if self.met == self.at:
            self.last = what
        return self.met == self.at

    def notice(self, what):
        if self.due(what):
            self.happen()

    def _fsync(self, file):
        self.notice("fsync")
        return self.fsync(file)

    def _open(self):
        opened, trouble = self.open, self

        class Slow(io.FileIO):
            def write(self, content):
                if trouble.due("write"):
                    super().write(content[: len(content) // 2])
                    trouble.happen()
                return super().write(content)

            def truncate(self, size=None):
                trouble.notice("truncate")
                return super().truncate(size)

        def patched(path, mode="r", *args, **kwargs):
            writes = "b" in mode and set(mode) & set("wax+")
            return Slow(str(path), mode) if writes else opened(path, mode, *args, **kwargs)

        return patched


@cache
def listen():
    """Hear of everything that changes a folder; a hook cannot be taken back, so there is one, and it asks."""

    def heard(event, args):
        if event in CHANGES and Trouble.active is not None:
            try:
                Trouble.active.notice(event)
            except OSError as error:
                error.filename = os.fsdecode(args[0])  # the system says what it could not change
                raise

    sys.addaudithook(heard)
