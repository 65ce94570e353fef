"""A small HTTP server: an answer or one sentence for every request, and nobody holds it up."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from socket import SHUT_RD, SHUT_RDWR, socket
from typing import Any
from urllib.parse import SplitResult, urlsplit

OWN_NAMES = ("127.0.0.1", "localhost")
Answer = tuple[bytes, str]  # content and its type


class RefusedError(ValueError):
    """A request that is answered with one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """A thread for each of at most ``connections`` callers; on the loopback address unless told otherwise."""

    daemon_threads = False  # one that Python ends inside torch is a crash
    request_queue_size = 128
    connections = 256

    def __init__(self, handler: type[Handler], host: str = OWN_NAMES[0], port: int = 0) -> None:
        self.deadlines: dict[socket, float] = {}
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise ValueError(f"port {port} cannot be used ({error.strerror}): choose another with --port") from None

    @property
    def address(self) -> str:
        """What to type into a browser."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread; beyond the limit a caller is turned away at once."""
        if len(self.deadlines) >= self.connections:
            self.shutdown_request(request)
            return
        self.deadlines[request] = time.monotonic() + Handler.timeout
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A caller has gone."""
        self.deadlines.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop, but not in the middle of an answer: callers get theirs, and are asked for nothing more."""
        for request in list(self.deadlines):
            with suppress(OSError):
                request.shutdown(SHUT_RD)  # a thread that waits for its caller wakes up, and ends
        super().server_close()  # waits for all threads

    def service_actions(self) -> None:
        """Drop callers who have not sent a whole request, or taken their answer, in time."""
        now = time.monotonic()
        for request, deadline in list(self.deadlines.items()):
            if now > deadline:
                with suppress(OSError):
                    request.shutdown(SHUT_RDWR)  # its thread wakes up, and ends

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A caller who hangs up is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers requests, those of pages of other hosts excepted."""

    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds in which a request has come whole, or its answer is taken
    wbufsize = -1  # head and body leave together, and at once: otherwise an answer waits 40 ms for the other side
    disable_nagle_algorithm = True
    largest = 5_000_000  # bytes that a request may have
    extra_headers: Mapping[str, str] = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    server: Server

    def get(self, address: SplitResult) -> Answer:
        """What a GET is answered with."""
        raise RefusedError(404, "there is nothing here")

    def post(self, address: SplitResult) -> Answer:
        """What a POST is answered with."""
        raise RefusedError(404, "there is nothing here")

    def do_GET(self) -> None:
        """Answer it."""
        self._respond(self.get)

    def do_POST(self) -> None:
        """Answer it."""
        self._respond(self.post)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def done(self, status: int) -> None:
        """A request has been answered with this status."""

    def _respond(self, work: Callable[[SplitResult], Answer]) -> None:
        self._allow(self.timeout)
        try:
            self._check_sender()
            status, (content, kind) = 200, work(urlsplit(self.path))
        except ValueError as error:
            status = getattr(error, "status", 400)
            self.close_connection = self.close_connection or status != 400  # its body may not have been read
            content, kind = json.dumps({"error": str(error)}).encode(), "application/json"
        self._allow(self.timeout)
        self._send(status, content, kind)
        self.done(status)
        if status == 413:
            self._discard()

    def _allow(self, seconds: float) -> None:
        self.server.deadlines[self.connection] = time.monotonic() + seconds

    def _check_sender(self) -> None:
        """Refuse pages of other hosts, also those whose name was made to lead here."""
        host = self.headers.get("Host", "")
        if self.server.server_address[0] in OWN_NAMES and host.partition(":")[0] not in OWN_NAMES:
            raise RefusedError(403, "this server answers its own page only")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        if origin not in (None, f"http://{host}") or site not in ("none", "same-origin"):
            raise RefusedError(403, "this server answers its own page only")

    def body(self) -> bytes:
        """What came with a request; afterwards there is all the time to work on it."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise RefusedError(411, "a request must say how long it is")
        if int(length) > self.largest:
            raise RefusedError(413, f"a file may have {self.largest // 1_000_000} MB at most")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise ConnectionError("the caller hung up")
        self._allow(inf)
        return content

    def _discard(self) -> None:
        """Read a while what nobody wants, so that whoever still sends it hears the answer."""
        self.wfile.flush()
        left = min(int(self.headers["Content-Length"]), 10 * self.largest)
        while left and (part := self.rfile.read1(min(left, 65536))):
            left -= len(part)

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in self.extra_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def as_json(value: object) -> Answer:
    """A value as an answer."""
    return json.dumps(value, allow_nan=False).encode(), "application/json"


def from_json(content: bytes) -> Any:
    """A value out of a request."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("this request is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that can be used here")
