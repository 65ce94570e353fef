"""``splinenets serve``: pictures in, classes out."""

from __future__ import annotations

import base64
import binascii
import time
from urllib.parse import SplitResult, parse_qsl

import torch
from torch import Tensor

from .. import web
from ..data import prepare
from ..data.decoding import read_picture
from ..exporting import Exported
from ..exporting.capture import Inputs
from ..files import Json
from .batching import Batcher
from .metrics import Metrics

MOST_IMAGES = 64  # in a request


class Server(web.Server):
    """An exported network and the queue before it. ``POST /classify`` answers, ``GET /`` says what is served."""

    def __init__(self, exported: Exported, name: str, *, host: str = web.OWN_NAMES[0], port: int = 0) -> None:
        about = exported.metadata
        if "preparation" not in about or len(about["input"]) != 3:
            raise ValueError(
                f"{name} does not say how pictures become what the network sees: exports of runs do, and so does "
                'sn.export(..., metadata={"preparation": {"kind": "normalise", "mean": [...], "std": [...]}})'
            )
        self.exported, self.name, self.metrics = exported, name, Metrics()
        self.batcher, self.began = Batcher(exported), time.monotonic()
        super().__init__(Handler, host, port)

    def server_close(self) -> None:
        """Stop, when everybody has their answer."""
        super().server_close()
        self.batcher.close()

    def describe(self) -> Json:
        """What is served."""
        about = self.exported.metadata
        known: Json = {name: about[name] for name in ("model", "network", "data", "classes", "input") if name in about}
        return {"file": self.name, **known, "conditions": self.exported.conditions.described()}

    def classify(self, pictures: list[bytes], conditions: dict[str, Tensor]) -> list[Json]:
        """An answer for each picture."""
        about = self.exported.metadata
        pixels = torch.stack([read_picture(content, tuple(about["input"])) for content in pictures])
        given = [conditions] if conditions or self.exported.conditions else []
        samples = Inputs.of(self.exported.conditions, prepare(pixels, about["preparation"]), *given)
        return [self._answer(logits) for logits in self.batcher(samples)]

    def _answer(self, logits: Tensor) -> Json:
        chances = logits.softmax(0).nan_to_num()
        number = int(chances.argmax())
        classes = self.exported.metadata.get("classes") or [str(i) for i in range(len(chances))]
        by_class = {str(name): round(float(chance), 6) for name, chance in zip(classes, chances, strict=True)}
        return {"class": classes[number], "number": number, "chances": by_class}


class Handler(web.Handler):
    """The requests of a ``Server``."""

    largest = 20_000_000
    server: Server

    def get(self, address: SplitResult) -> web.Answer:
        """What there is to know."""
        server = self.server
        if address.path == "/":
            return web.as_json(server.describe())
        if address.path == "/health":
            return web.as_json({"status": "ok", "seconds": round(time.monotonic() - server.began, 3)})
        if address.path == "/metrics":
            waiting, batches = ("gauge", server.batcher.queued), ("counter", server.batcher.batches)
            text = server.metrics.text({"waiting_images": waiting, "batches_total": batches})
            return text.encode(), "text/plain; version=0.0.4"
        return super().get(address)

    def post(self, address: SplitResult) -> web.Answer:
        """Pictures: one as it is, or several as JSON, {"images": [base64, ...], "conditions": {name: [...]}}."""
        if address.path != "/classify":
            return super().post(address)
        began, content = time.monotonic(), self.body()
        for_all, pictures, conditions = _numbers(address.query), [content], dict[str, Tensor]()
        if self.headers.get_content_type() == "application/json":
            pictures, conditions = _several(content)
        conditions = {name: values.expand(len(pictures), -1) for name, values in for_all.items()} | conditions
        answers = self.server.classify(pictures, conditions)
        self.server.metrics.answered(len(answers), time.monotonic() - began)
        return web.as_json({"answers": answers})

    def done(self, status: int) -> None:
        """Count it."""
        self.server.metrics.done(status)


def _numbers(query: str) -> dict[str, Tensor]:
    """Conditions of a query, ``angle=30&place=0.5,1``: (1, size) each, the same for all images."""
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
        found = {name: torch.tensor([[float(number) for number in value.split(",")]]) for name, value in given}
        if not all(bool(values.isfinite().all()) for values in found.values()):
            raise ValueError("not a number")
    except ValueError:
        raise ValueError(f"conditions are numbers such as ?angle=30, got {query[:100]!r}") from None
    return found


def _several(content: bytes) -> tuple[list[bytes], dict[str, Tensor]]:
    """Pictures and conditions out of JSON."""
    try:
        asked = web.from_json(content)
        pictures = [base64.b64decode(image, validate=True) for image in asked["images"]]
        conditions = {str(name): torch.tensor(values) for name, values in asked.get("conditions", {}).items()}
    except binascii.Error as error:
        raise ValueError(f"images are not base64: {error}") from None
    except (TypeError, KeyError, AttributeError, OverflowError, RuntimeError):
        raise ValueError('send {"images": [picture files in base64], "conditions": {name: [a number each]}}') from None
    if not 1 <= len(pictures) <= MOST_IMAGES:
        raise ValueError(f"a request has 1 to {MOST_IMAGES} images, got {len(pictures)}")
    return pictures, conditions
