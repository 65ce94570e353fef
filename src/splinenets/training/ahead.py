"""Batches made in advance, so that training does not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Made = TypeVar("Made")


def ahead(make: Callable[[int], Made], first: int, last: int) -> Generator[Made, None, None]:
    """make(first), .., make(last - 1), each begun in another thread while the one before is in use."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(make, first)
        for step in range(first, last):
            made = coming.result()
            if step + 1 < last:
                coming = pool.submit(make, step + 1)
            yield made
