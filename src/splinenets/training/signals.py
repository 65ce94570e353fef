"""Ctrl-C and SIGTERM ask a run to stop at the next step; a second Ctrl-C does not ask."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Which signal asked to stop, 0 for none."""

    signal = 0


@contextmanager
def stopping() -> Iterator[Stop]:
    """Turn signals into a wish; outside the main thread signals are somebody else's."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def wish(number: int, frame: FrameType | None) -> None:
        if stop.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
