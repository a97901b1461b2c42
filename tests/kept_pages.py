"""What is kept of a browser test that fails: screenshot, HTML, console, and what the server says of its kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from in_lab import LONG
from playwright.sync_api import Browser, BrowserContext, Error, Page

# Milliseconds for each thing that is kept: a page may hang.
PATIENCE = 30_000


@dataclass
class Watched:
    """The pages that one test has opened, and what they said.

    Args:
        contexts: those that were made for this test alone.
        lab: the server behind them (`conftest.Lab`), if there is one.
        kept: the test failed, and its pages are on disk.
    """

    pages: list[Page] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lab: Any = None
    kept: bool = False

    def new_page(self, browser: Browser, **options: Any) -> Page:
        """A page in a context of its own, with the context's options."""
        context = browser.new_context(**options)
        self.contexts.append(context)
        return self.new_page_in(context)

    def new_page_in(self, context: BrowserContext) -> Page:
        """A page in a context that other tests have too, with waits that end only where something is wrong."""
        context.set_default_timeout(LONG)
        context.set_default_navigation_timeout(LONG)
        page = context.new_page()
        self.pages.append(page)
        page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("crash", lambda: self.errors.append("the page crashed"))
        return page

    def close(self) -> None:
        for closed in (*self.pages, *self.contexts):
            closed.close()


def keep(watched: Watched, under: Path, name: str) -> Path:
    """Writes what is known of a test's pages into a folder named after it; the folder.

    Never raises: what cannot be had is replaced by a line that says why.
    """
    folder = under / re.sub(r"[^\w.-]+", "-", name).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    watched.kept = True
    lines = [*watched.console, *(f"uncaught: {error}" for error in watched.errors)]
    _write(folder / "console.txt", lambda: "\n".join(lines))
    for n, page in enumerate(p for p in watched.pages if not p.is_closed()):
        suffix = f"-{n}" if n else ""
        _write(folder / f"page{suffix}.png", lambda page=page: page.screenshot(timeout=PATIENCE))
        page.set_default_timeout(PATIENCE)
        _write(folder / f"page{suffix}.html", lambda page=page: page.content())
    if watched.lab is not None:
        lab = watched.lab
        _write(folder / "kernels.json", lambda: json.dumps([lab.api("sessions"), lab.api("kernels")], indent=2))
        _write(folder / "server.log", lambda: lab.log.read_text(errors="replace")[-100_000:])
    return folder


def _write(path: Path, content: Callable[[], str | bytes]) -> None:
    try:
        found = content()
    except (Error, OSError, ValueError) as error:
        found = f"could not be had: {error}"
        path = path.with_suffix(".txt") if path.suffix == ".png" else path
    path.write_bytes(found if isinstance(found, bytes) else found.encode())
