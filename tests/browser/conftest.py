"""A real JupyterLab and a real Chromium, with the network shut: every request that leaves the machine is aborted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from in_lab import TOKEN

ROOT = Path(__file__).parents[2]


def chromium() -> str | None:
    """A browser on PATH, or the one that Playwright fetched for itself."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        own = p.chromium.executable_path
    return own if own and Path(own).exists() else None


@pytest.fixture(scope="session")
def browser():
    """Chromium; without one the test is skipped with a line that says so, and fails where CI=true."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        reason = "no Chromium here: install Debian's chromium, or run `playwright install chromium`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    arguments = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's sandbox refuses root
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


@dataclass
class Lab:
    """A running JupyterLab: its address, the folder it serves, and what tried to leave the machine."""

    address: str
    folder: Path
    left: list[str] = field(default_factory=list)

    def shut(self, route) -> None:
        """Aborts every request that is not to this server or inside the page."""
        if route.request.url.startswith((self.address, "blob:", "data:")):
            route.continue_()
        else:
            self.left.append(route.request.url)
            route.abort()


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """JupyterLab on a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = tmp_path_factory.mktemp("settings")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--ServerApp.port_retries=0"]
    command += [f"--LabServerApp.workspaces_dir={settings}", f"--LabServerApp.user_settings_dir={settings}"]
    log = (settings / "log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TRITON_INTERPRET": "1"})
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}")
                break
            except OSError:
                time.sleep(0.25)
        else:
            pytest.fail(f"JupyterLab did not start: {(settings / 'log').read_text()[-2000:]}")
        yield Lab(address, folder)
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture
def page(browser, lab) -> Iterator:
    """A page with the network shut; the test fails if anything tried to leave, or the page threw an error."""
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.route("**/*", lab.shut)
    lab.left.clear()
    yield opened
    opened.close()
    assert not lab.left, f"requests left the machine: {lab.left}"
    assert not errors, f"errors in the page: {errors}"
