"""A real browser for tests that look at pages: Chromium, without a window and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or a skipped test that says what is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pages are looked at through playwright, which is missing"
    )
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("pages are looked at in Chromium, which is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=path,
            args=[
                *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                "--disable-sync",
            ],
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, url: str, *, width: int = 1200) -> Iterator[Any]:
    """A new page, as of :func:`visited`."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        with visited(page, url):
            yield page
    finally:
        page.close()


@contextmanager
def visited(page: Any, url: str) -> Iterator[None]:
    """Lets a page, which may have been elsewhere before, ask for nothing but itself, nor fail."""
    asked: list[str] = []
    errors: list[str] = []
    listeners = {
        "request": lambda request: asked.append(request.url),
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda m: errors.append(m.text) if m.type == "error" else None,
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.set_default_timeout(120_000)  # whatever else a machine is doing
    try:
        page.goto(url)
        yield
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    origin = "file:" if url.startswith("file:") else url.split("?")[0].rsplit("/", 1)[0]
    assert all(other.startswith((origin, "data:", "blob:")) for other in asked), asked
    assert not errors, errors
