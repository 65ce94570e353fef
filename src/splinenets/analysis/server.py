"""The explorer as a web page, for this machine alone. It keeps nothing and writes nothing."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult

import torch
from torch import Tensor

from .. import web
from ..files import Json
from .explorer import Explorer, packed
from .text import PAGE, png

LARGEST = 5_000_000  # bytes that a page may send
SCRIPTS = ("draw", "explore", "flow", "compare", "told", "pad", "tour")
FILES = {
    "/": ("explore.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
    **{f"/{name}.css": (f"{name}.css", "text/css; charset=utf-8") for name in ("base", "explore")},
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Server(web.Server):
    """A page of an explorer, for this machine alone."""

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.working = threading.Lock()  # held by a thread that computes
        super().__init__(Handler, port=port)


class Handler(web.Handler):
    """Files of the page, what there is to explore, images, and answers to what is chosen by hand."""

    largest = LARGEST
    extra_headers = HEADERS
    server: Server

    def get(self, address: SplitResult) -> web.Answer:
        """Files of the page, what there is to explore, and images."""
        path = address.path
        if path in FILES:
            name, kind = FILES[path]
            return (PAGE / name).read_bytes(), kind
        if path == "/state":
            with self.server.working:
                return web.as_json(self.server.explorer.describe())
        if found := re.fullmatch(r"/images/(train|test)/(\d{1,9})\.png", path):
            images = self.server.explorer.split(found[1]).images
            if int(found[2]) < len(images):
                with self.server.working:
                    return png(images[int(found[2])]), "image/png"
        return super().get(address)

    def post(self, address: SplitResult) -> web.Answer:
        """An image and positions chosen by hand; or a file."""
        work = {
            "/upload": self._upload,
            "/answer": self._answer,
            "/turning": self._turning,
            "/parting": self._parting,
            "/strip": self._strip,
        }.get(address.path)
        if work is None:
            return super().post(address)
        body = self.body()
        with self.server.working:
            return web.as_json(work(body))

    def _upload(self, body: bytes) -> dict[str, object]:
        pixels = self.server.explorer.read(body)
        return {"pixels": packed(pixels), "unlike": self.server.explorer.unlike(pixels)}

    def _answer(self, body: bytes) -> dict[str, object]:
        return self.server.explorer.answer(**self._question(body, self._asked))

    def _turning(self, body: bytes) -> dict[str, list[float]]:
        return self.server.explorer.turning(**self._question(body, self._shown))

    def _parting(self, body: bytes) -> list[dict[str, object]]:
        return self.server.explorer.parting(**self._question(body, self._two))

    def _strip(self, body: bytes) -> list[dict[str, object]]:
        return self.server.explorer.strip(
            **self._question(body, lambda asked: {"name": str(asked["layer"]), "spline": int(asked["spline"])})
        )

    def _question(self, body: bytes, read: Callable[[Any], Json]) -> Json:
        """Arguments out of JSON."""
        try:
            return read(web.from_json(body))
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise ValueError("this request does not fit the page") from None

    def _shown(self, asked: Any) -> Json:
        """An image, and what is done to it."""
        return {"pixels": self._pixels(asked["image"]), "done": _number(asked.get("done"))}

    def _two(self, asked: Any) -> Json:
        """Two images, and what is done to each."""
        second = self._shown({"image": asked["other"], "done": asked.get("other_done")})
        return self._shown(asked) | {"other": second["pixels"], "other_done": second["done"]}

    def _asked(self, asked: Any) -> Json:
        """The arguments of ``Explorer.answer``."""
        return self._shown(asked) | {
            "chosen": {str(name): [*map(_number, values)] for name, values in asked["chosen"].items()},
            "look": str(asked["look"]),
            "picked": {str(name): int(spline) for name, spline in asked.get("picked", {}).items()},
            "told": _number(asked.get("told")),
        }

    def _pixels(self, image: Any) -> Tensor:
        """{"test": number} or {"pixels": bytes in base64} -> (C, H, W)."""
        explorer = self.server.explorer
        if "test" in image:
            images = explorer.split("test").images
            if not 0 <= int(image["test"]) < len(images):
                raise ValueError(f"there are {len(images)} test images, got number {image['test']}")
            return images[int(image["test"])]
        try:
            content = base64.b64decode(image["pixels"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"pixels are not base64: {error}") from None
        channels, height, width = explorer.shape
        if len(content) != channels * height * width:
            raise ValueError(f"an image here has {channels} x {height} x {width} bytes, got {len(content)}")
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(channels, height, width)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
