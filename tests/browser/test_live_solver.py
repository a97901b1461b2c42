"""The gallery's live page with the network shut, from a file server and from disk: Python in it solves and refuses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from axe import SERIOUS, violations
from in_lab import LONG
from neptune_widgets import live
from playwright.sync_api import Locator, Page, expect

SLOW = "(c + r)**300"


class Quiet(SimpleHTTPRequestHandler):
    """A plain file server, as `python -m http.server` is."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The live page; skipped where npm has no Pyodide, which fails where CI=true."""
    folder = tmp_path_factory.mktemp("gallery")
    try:
        live.write(folder)
    except live.NoPyodide as error:
        pytest.fail(str(error)) if os.environ.get("CI") == "true" else pytest.skip(str(error))
    return folder


@pytest.fixture
def address(folder: Path, request) -> Iterator[str]:
    """Of the page, on disk or on a server."""
    if request.param == "disk":
        yield (folder / "live.html").as_uri()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/live.html"
        server.shutdown()


def opened(new_page, address: str) -> tuple[Page, list[str]]:
    """The page, and what it asked for that is not beside it, and its errors."""
    page = new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(LONG)
    root, wrong = address.rpartition("/")[0], []
    page.on("request", lambda asked: asked.url.startswith((root, "blob:", "data:")) or wrong.append(asked.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    return page, wrong


def answer(panel: Locator, term: str, **fields: str) -> Locator:
    """Writes a term; the panel's status."""
    names = {"producers": "results r", "assumptions": "what is known"}
    for name, words in fields.items():
        panel.get_by_label(names[name]).fill(words)
    panel.get_by_label("term g(r, c)").fill(term)
    return panel.get_by_role("status")


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("address", ["disk", "server"], indirect=True)
def test_three_repairs_a_refusal_and_a_stop(new_page, address, front_end_packages):
    page, wrong = opened(new_page, address)
    panel = page.locator(".ns")
    status = panel.get_by_role("status")
    expect(status).to_contain_text("t*exp(r - r')")  # before Python is there
    expect(page.locator(".loading")).to_contain_text("Python 3.13")

    status = answer(panel, "exp(c - r1)*v/r2", producers="r1, r2")
    expect(status).to_contain_text("t*r2*exp(r1 - r1')/r2'")
    numbers = panel.locator("details.step", has_text="Check by numbers")
    numbers.locator("summary").click()
    expect(numbers.locator(".rows")).to_contain_text("at 64 random points")
    expect(answer(panel, "(c/r)**2", producers="r", assumptions="r >= 0")).to_contain_text("t*r**2/r'**2")
    expect(answer(panel, "(c - r)**2", assumptions="")).to_contain_text("a family of sums has one")
    expect(answer(panel, "max(c, r)")).to_contain_text("There is no repair")
    expect(panel.locator(".refusal").first).to_contain_text("max forgets all but its largest argument")

    # The panel's headings are of the level that they have in a notebook.
    assert violations(page, "html", impacts=("moderate", *SERIOUS), left_out=("heading-order",)) == []

    answer(panel, SLOW)
    expect(panel.get_by_text("deriving …")).to_be_visible()
    panel.get_by_role("button", name="Stop").click()
    expect(panel.get_by_text("the derivation was stopped").first).to_be_visible()
    expect(answer(panel, "c/r")).to_contain_text("t*r/r'")
    assert not wrong


def test_a_missing_part_is_an_error_in_the_page(new_page, folder: Path, tmp_path: Path):
    (tmp_path / "live.html").write_bytes((folder / "live.html").read_bytes())
    page, _ = opened(new_page, (tmp_path / "live.html").as_uri())
    failed = page.get_by_role("alert")
    expect(failed).to_contain_text("live/part-00.js is not beside this page")
    expect(failed).to_contain_text("python -m http.server")
    expect(page.locator(".ns").get_by_role("status")).to_contain_text("t*exp(r - r')")
