"""Samples of several callers as one batch: whatever has come while the network was busy is computed together."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field

from torch import Tensor

from ..exporting import Exported
from ..exporting.capture import Inputs
from ..tables import first_line
from ..web import RefusedError


@dataclass(frozen=True)
class Work:
    """Samples of one caller, and where their answer is put."""

    samples: Inputs
    answer: Future[Tensor] = field(default_factory=Future)


class Batcher:
    """One thread that computes, and a queue before it. Nobody waits for a batch to fill.

    largest  samples in a batch
    waiting  samples in the queue; beyond that callers are refused
    """

    def __init__(self, exported: Exported, *, largest: int = 64, waiting: int = 512) -> None:
        self.exported, self.largest, self.waiting = exported, largest, waiting
        self.queue: deque[Work] = deque()
        self.queued = self.batches = 0  # samples in the queue, batches computed
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._compute, name="batches", daemon=True)
        self.thread.start()

    def __call__(self, samples: Inputs, patience: float = 30) -> Tensor:
        """Logits of some samples, (N, classes), in the batch after the one that is being computed."""
        work = Work(samples)
        with self.changed:
            if self.closed or self.queued + len(samples) > self.waiting:
                raise RefusedError(503, f"{self.queued} images are waiting already: try again later")
            self.queue.append(work)
            self.queued += len(samples)
            self.changed.notify()
        try:
            return work.answer.result(patience)
        except LateError:
            raise RefusedError(503, f"no answer within {patience:g} seconds: try again later") from None

    def close(self) -> None:
        """Finish what is being computed, and refuse the rest."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def _compute(self) -> None:
        while works := self._take():
            self._answer(works)

    def _answer(self, works: list[Work]) -> None:
        """One batch; if the network fails its callers hear of it, and the next batch has another chance."""
        try:
            batch = works[0].samples
            for work in works[1:]:
                batch = batch.join(work.samples)
            logits = batch.call(self.exported).split([len(work.samples) for work in works])
        except Exception as error:
            for work in works:
                work.answer.set_exception(RefusedError(500, f"the network failed: {first_line(error)}"))
        else:
            for work, answer in zip(works, logits, strict=True):
                work.answer.set_result(answer)

    def _take(self) -> list[Work]:
        """The next batch, as soon as there is one; [] at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.queue or self.closed)
            if self.closed:
                for work in self.queue:
                    work.answer.set_exception(RefusedError(503, "this server is being ended"))
                return []
            works = [self.queue.popleft()]
            count = len(works[0].samples)
            while self.queue and count + len(self.queue[0].samples) <= self.largest:
                works.append(self.queue.popleft())
                count += len(works[-1].samples)
            self.queued -= count
            self.batches += 1
            return works
