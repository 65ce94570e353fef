"""What a server has done, as text that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Metrics:
    """Requests by status, images, and a histogram of the seconds that answers took."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[int] = Counter()
        self.within = [0] * (len(BOUNDS) + 1)
        self.seconds, self.images = 0.0, 0

    def answered(self, images: int, seconds: float) -> None:
        """Images were answered, in this time."""
        with self.lock:
            self.within[bisect_left(BOUNDS, seconds)] += 1
            self.seconds += seconds
            self.images += images

    def done(self, status: int) -> None:
        """A request has ended with this status."""
        with self.lock:
            self.requests[status] += 1

    def text(self, more: Mapping[str, tuple[str, int]]) -> str:
        """Everything; ``more`` has further numbers by name, each with its type."""
        with self.lock:
            lines = ["# TYPE splinenets_requests_total counter"]
            lines += [f'splinenets_requests_total{{status="{s}"}} {n}' for s, n in sorted(self.requests.items())]
            lines += ["# TYPE splinenets_answer_seconds histogram"]
            total = 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.within, strict=True):
                total += count
                lines.append(f'splinenets_answer_seconds_bucket{{le="{bound}"}} {total}')
            lines += [f"splinenets_answer_seconds_sum {self.seconds:.6f}", f"splinenets_answer_seconds_count {total}"]
            numbers = {"images_total": ("counter", self.images), **more}
        for name, (kind, number) in numbers.items():
            lines += [f"# TYPE splinenets_{name} {kind}", f"splinenets_{name} {number}"]
        return "\n".join(lines) + "\n"
