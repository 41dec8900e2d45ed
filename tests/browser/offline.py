"""A written page in a browser that must not complain about it, and must not ask the network for anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, Page


@contextmanager
def opened_offline(chromium: BrowserContext, path: Path) -> Iterator[Page]:
    """Open the file in a page of its own; whatever it complains about, or asks the network for, is an error at the end.

    Raises:
        AssertionError: a message in the console, an error of a script, a request for anything but the file.
    """
    page = chromium.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    yield page
    page.close()
    assert complaints == []
