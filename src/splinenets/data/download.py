"""Downloads over HTTP that resume, check lengths and digests, and never leave a half-written file under its name."""

from __future__ import annotations

import http.client
import re
import ssl
import time
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..files import file_digest, naming, rename_durably

CHUNK = 1 << 16
PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers worth asking again
OUT_OF_RANGE = 416
NETWORK_ERRORS = (URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)  # not the disk's


class DownloadWatcher:
    """Hears what happens and how many bytes of a file are there. This one keeps silent; the command line shows both."""

    def note(self, text: str) -> None:
        """One sentence on what happens."""

    def progress(self, file: str, done: int, total: int) -> None:
        """``done`` of ``total`` bytes of a file are there."""


class DownloadError(OSError):
    """A download that failed, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When to give up: ``attempts`` in a row that bring nothing new, or ``requests`` in all."""

    attempts: int = 3
    requests: int = 100
    pause: float = 1.0  # seconds before the second attempt, doubled for each further one
    timeout: float = 30.0  # seconds without a byte


class HttpsOnly(HTTPRedirectHandler):
    """Follows redirects to https alone."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """The request to make instead."""
        if urlsplit(newurl).scheme != "https":
            fp.close()
            raise DownloadError(
                f"{req.full_url} redirects to {one_line(newurl)}, which is refused because it is not https"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def download(
    url: str,
    path: Path,
    *,
    size: int,
    sha256: str,
    watcher: DownloadWatcher | None = None,
    patience: Patience | None = None,
) -> None:
    """Bring ``url`` to ``path``. The bytes gather in ``path``.part, which a later call continues.

    ``path`` appears only when it is whole: of the right size, with the right digest, and on disk.
    """
    watcher, patience = watcher or DownloadWatcher(), patience or Patience()
    if path.exists() and file_digest(path) == sha256:
        return
    part = path.with_name(f"{path.name}.part")
    if transfer(url, part, size, watcher, patience) and file_digest(part) != sha256:
        # an old piece may be damaged, or the server's file may have changed between two pieces
        watcher.note(f"the pieces of {path.name} do not fit together, starting again")
        part.unlink()
        transfer(url, part, size, watcher, patience)
    if (digest := file_digest(part)) != sha256:
        part.unlink()
        raise DownloadError(f"{url} holds something else: its SHA-256 is {digest[:12]}..., expected {sha256[:12]}...")
    rename_durably(part, path)


def transfer(url: str, part: Path, size: int, watcher: DownloadWatcher, patience: Patience) -> bool:
    """Ask until ``part`` holds ``size`` bytes; whether several answers, or an earlier call, had a share in them."""
    in_pieces, fruitless, reason = length(part) > 0, 0, ""
    for _ in range(patience.requests):
        before = length(part)
        reason = attempt(url, part, size, watcher, patience.timeout)
        if not reason:
            return in_pieces
        in_pieces |= length(part) > 0
        fruitless = 0 if length(part) > before else fruitless + 1
        if fruitless == patience.attempts:
            break
        if fruitless:
            time.sleep(patience.pause * 2 ** (fruitless - 1))
    raise DownloadError(f"{url} could not be downloaded: {reason} with {length(part)} of {size} bytes there")


def attempt(url: str, part: Path, size: int, watcher: DownloadWatcher, timeout: float) -> str:
    """Ask once for what is missing; the reason why something still is, in words, or nothing."""
    have = length(part)
    try:
        if have != size:
            request(url, part, have, size, watcher, timeout)
    except HTTPError as error:
        error.close()
        answer = f"{error.code} {one_line(error.reason)}"
        if error.code == OUT_OF_RANGE and have:
            part.unlink()  # what is there is not the beginning of what the server has
        elif error.code not in PASSING:
            raise DownloadError(f"{url} answers {answer}") from None
        return f"the answer is {answer}"
    except NETWORK_ERRORS as error:
        return one_line(getattr(error, "reason", error)) or type(error).__name__
    return "" if length(part) == size else "the connection was cut off"


def request(url: str, part: Path, have: int, size: int, watcher: DownloadWatcher, timeout: float) -> None:
    """One request for the bytes after the first ``have``; whatever comes before a failure stays in ``part``."""
    headers = {"User-Agent": "splinenets", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with build_opener(HttpsOnly).open(Request(url, headers=headers), timeout=timeout) as response:
        start, total = extent(response, url)
        if total is not None and total != size:
            raise DownloadError(f"{url} announces {total} bytes, expected {size}")
        if start not in (0, have):
            raise DownloadError(f"{url} answers with the bytes from {start} on, asked from {have} on")
        with naming(part), part.open("r+b" if start else "wb") as file:
            done = file.seek(start)
            while chunk := response.read(CHUNK):
                done += len(chunk)
                if done > size:
                    raise DownloadError(f"{url} sends more than the {size} bytes expected")
                file.write(chunk)
                watcher.progress(part.stem, done, size)


def extent(response: http.client.HTTPResponse, url: str) -> tuple[int, int | None]:
    """The position of an answer's first byte in the file, and the file's length where the answer tells it."""
    if response.status == http.client.PARTIAL_CONTENT:
        announced = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", announced.strip())
        if match is None:
            raise DownloadError(f"{url} answers with a part of the file but says {announced!r} of its place in it")
        start, last, total = match.groups()
        return int(start), int(last) + 1 if total == "*" else int(total)
    announced = response.headers.get("Content-Length", "")
    return 0, int(announced) if announced.isdecimal() else None


def one_line(text: object) -> str:
    """What others say, fit to stand in a sentence and safe to print."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())[:200]


def length(path: Path) -> int:
    """The length of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0
