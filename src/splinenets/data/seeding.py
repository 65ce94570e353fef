"""Random numbers as a function of what they are for and when: nothing random is ever stored."""

from __future__ import annotations

import hashlib

import torch


def seeded(use: str, *when: int) -> torch.Generator:
    """A generator for one use at one moment, such as ``seeded("augment", seed, epoch, step, rank)``.

    The moments' seeds are scattered by a hash, so that neighbouring seeds, epochs and steps have nothing in common.
    """
    key = hashlib.sha256(f"{use} {' '.join(map(str, when))}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
