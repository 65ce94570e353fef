"""A headless Chromium that remembers what went wrong."""

import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 120_000  # milliseconds; a busy machine is slow, and waiting ends when what is waited for is there


@contextmanager
def chromium(profile):
    """A page, and ``seen``: its errors and the addresses it asked for."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no Chromium here: 'make browser' installs Debian's, as root")
    with playwright.sync_playwright() as started:
        context = started.chromium.launch_persistent_context(
            profile, executable_path=program, args=ARGUMENTS, viewport={"width": 1250, "height": 1000}, timeout=PATIENCE
        )
        context.set_default_timeout(PATIENCE)
        page = context.pages[0]
        seen = SimpleNamespace(errors=[], requests=[])
        page.on("console", lambda message: message.type == "error" and seen.errors.append(message.text))
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("dialog", lambda dialog: (seen.errors.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: seen.requests.append(request.url))
        try:
            yield page, seen
        finally:
            context.close()
