"""The explorer as a web page, for this machine alone. It keeps nothing and writes nothing."""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from .explorer import Explorer, packed
from .text import PAGE, png

LARGEST = 5_000_000  # bytes that a page may send
PATIENCE = 10  # seconds that the end waits for an answer
OWN_NAMES = ("127.0.0.1", "localhost")
SCRIPTS = ("draw", "explore", "flow", "told", "pad", "tour")
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


class RefusedError(ValueError):
    """A request that is answered with one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """Listens on the loopback address only."""

    daemon_threads = True

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.working = threading.Lock()  # held by a thread that computes
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ValueError(f"port {port} cannot be used ({error.strerror}): choose another with --port") from None

    @property
    def address(self) -> str:
        """What to type into a browser."""
        return f"http://127.0.0.1:{self.server_port}/"

    def server_close(self) -> None:
        """Stop, but not in the middle of an answer: Python would end its thread inside torch, which is a crash."""
        super().server_close()
        self.working.acquire(timeout=PATIENCE)  # and nobody begins another

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A browser that hangs up is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the page's own requests, and nobody else's."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    wbufsize = -1  # head and body leave together, and at once: otherwise an answer waits 40 ms for the other side
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        """Files of the page, what there is to explore, and images."""
        self._respond(self._get)

    def do_POST(self) -> None:
        """An image and positions chosen by hand; or a file."""
        self._respond(self._post)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _respond(self, work: Callable[[str], tuple[bytes, str]]) -> None:
        try:
            self._check_sender()
            content, kind = work(urlsplit(self.path).path)
            self._send(200, content, kind)
        except ValueError as error:
            status = getattr(error, "status", 400)
            self.close_connection = status != 400  # its body may not have been read
            self._send(status, json.dumps({"error": str(error)}).encode(), "application/json")

    def _check_sender(self) -> None:
        """Refuse pages of other hosts, also those whose name was made to lead here."""
        host = self.headers.get("Host", "")
        if host.partition(":")[0] not in OWN_NAMES:
            raise RefusedError(403, "this server answers its own page only")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        if origin not in (None, f"http://{host}") or site not in ("none", "same-origin"):
            raise RefusedError(403, "this server answers its own page only")

    def _get(self, path: str) -> tuple[bytes, str]:
        if path in FILES:
            name, kind = FILES[path]
            return (PAGE / name).read_bytes(), kind
        if path == "/state":
            with self.server.working:
                return _json(self.server.explorer.describe())
        if found := re.fullmatch(r"/images/(train|test)/(\d{1,9})\.png", path):
            images = self.server.explorer.split(found[1]).images
            if int(found[2]) < len(images):
                with self.server.working:
                    return png(images[int(found[2])]), "image/png"
        raise RefusedError(404, "there is nothing here")

    def _post(self, path: str) -> tuple[bytes, str]:
        work = {"/upload": self._upload, "/answer": self._answer, "/turning": self._turning}.get(path)
        if work is None:
            raise RefusedError(404, "there is nothing here")
        body = self._body()
        with self.server.working:
            return _json(work(body))

    def _upload(self, body: bytes) -> dict[str, object]:
        pixels = self.server.explorer.read(body)
        return {"pixels": packed(pixels), "unlike": self.server.explorer.unlike(pixels)}

    def _answer(self, body: bytes) -> dict[str, object]:
        return self.server.explorer.answer(**self._question(body, self._asked))

    def _turning(self, body: bytes) -> dict[str, object]:
        return self.server.explorer.turning(**self._question(body, self._shown))

    def _question(self, body: bytes, read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Arguments out of JSON."""
        try:
            return read(json.loads(body, parse_constant=_refuse_constant))
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise ValueError("this question makes no sense here") from None

    def _shown(self, asked: Any) -> dict[str, Any]:
        """An image, and what is done to it."""
        return {"pixels": self._pixels(asked["image"]), "done": _number(asked.get("done"))}

    def _asked(self, asked: Any) -> dict[str, Any]:
        """The arguments of ``Explorer.answer``."""
        return self._shown(asked) | {
            "chosen": {str(name): [*map(_number, values)] for name, values in asked["chosen"].items()},
            "look": str(asked["look"]),
            "spline": int(asked["spline"]),
            "told": _number(asked.get("told")),
        }

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(411, "a request must say how long it is")
        if int(length) > LARGEST:
            self._discard(int(length))
            raise RefusedError(413, f"a file may have {LARGEST // 1_000_000} MB at most")
        return self.rfile.read(int(length))

    def _discard(self, length: int) -> None:
        """Read a while what nobody wants, so that the sender hears the answer."""
        left = min(length, 10 * LARGEST)
        while left and (part := self.rfile.read1(min(left, 65536))):
            left -= len(part)

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

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _json(value: object) -> tuple[bytes, str]:
    return json.dumps(value, allow_nan=False).encode(), "application/json"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that can be used here")
