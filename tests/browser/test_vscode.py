"""A real VS Code, if code-server is installed: a saved notebook shows the explorer's static form, without extensions.

Its Jupyter extension, which runs cells and shows widgets, comes from a marketplace and is not tested (docs/limits.md).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_lab import LONG
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a code-server on a folder with the tour as it is saved."""
    command = shutil.which("code-server")
    if command is None:
        pytest.skip("no code-server on PATH (npm install code-server, with Node.js 24)")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(ROOT / "notebooks" / "00_tour.ipynb", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ["--user-data-dir", tmp_path / "data", "--extensions-dir", tmp_path / "ext", "--config", tmp_path / "c.yaml"]
    options = ["--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [command, "--bind-addr", f"127.0.0.1:{port}", *own, *options, folder],
            stdout=file,
            stderr=file,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        )
    try:
        _wait(f"http://127.0.0.1:{port}/healthz", server, log)
        yield f"http://127.0.0.1:{port}/?folder={folder}"
    finally:
        server.terminate()
        server.wait(60)


def _wait(address: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + LONG / 1000
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=10).close()
        except OSError:  # not yet listening
            time.sleep(0.2)
            continue
        return
    pytest.fail(f"code-server did not start: {log.read_text()[-2000:]}")


def test_a_saved_notebook_shows_the_static_form(address, new_page):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(LONG)
    notebook, text = page.locator(".notebookOverlay"), page.locator(".editor-instance .view-line").first
    page.goto(address)
    while True:  # until VS Code's own extensions are there, a notebook opens as text
        page.get_by_role("treeitem", name="00_tour.ipynb").dblclick()
        notebook.or_(text).first.wait_for()
        if notebook.count():
            break
        page.keyboard.press("Control+k")
        page.keyboard.press("Control+w")
        text.wait_for(state="detached")
    outputs = page.frame_locator("iframe.webview.ready").last.frame_locator("iframe#active-frame")
    expect(outputs.locator(".neptune-static").first).to_contain_text("ttention")
