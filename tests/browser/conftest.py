"""A real JupyterLab and a real Chromium, with the network shut: a request that leaves the machine finds no host.

The pages of a test that fails are kept under build/browser-failures (`kept.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from in_lab import LONG, TOKEN
from kept_pages import Watched, keep
from live_page import LivePage
from playwright.sync_api import BrowserContext, Page, Request, expect

import neptune_lab
from neptune_lab import Kernel
from neptune_lab.operators import attention

ROOT = Path(__file__).parents[2]
# Chromium finds no host but this machine. Playwright's `route` would do it too, but turns the browser's cache off.
SHUT = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
# For each window Chromium draws two popups of its address bar in a process of their own, which took more CPU than a
# page of ours, and it keeps a process ready for another page. The other names are those that Playwright turns off:
# Chromium reads the last of two such lists.
OFF = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
    *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
    *("ThirdPartyStoragePartitioning",),
)
WATCHED = pytest.StashKey[Watched]()


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
    arguments += [SHUT, f"--disable-features={','.join(OFF)}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's sandbox refuses root
    expect.set_options(timeout=LONG)
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


@dataclass
class Lab:
    """A running JupyterLab: its address, the folder it serves, its log, and what tried to leave the machine."""

    address: str
    folder: Path
    log: Path
    left: list[str] = field(default_factory=list)

    def asked(self, request: Request) -> None:
        """Notes a request that is not to this server or inside the page."""
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.left.append(request.url)

    def api(self, path: str, method: str = "GET") -> Any:
        """What the server's REST API says, such as of "kernels"; None if that is nothing."""
        asked = urllib.request.Request(f"{self.address}/api/{path}?token={TOKEN}", method=method)
        with urllib.request.urlopen(asked, timeout=LONG / 1000) as answer:
            return json.loads(answer.read() or "null")

    def end_kernels(self) -> None:
        """Ends every kernel, so that what one failing test left there does not reach the next."""
        for session in self.api("sessions"):
            self.api(f"sessions/{session['id']}", "DELETE")


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """JupyterLab on a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    settings = tmp_path_factory.mktemp("settings")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--allow-root"]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}", "--expose-app-in-browser"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--ServerApp.port_retries=1000"]
    command += [f"--LabServerApp.workspaces_dir={settings}", f"--LabServerApp.user_settings_dir={settings}"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "JUPYTER_RUNTIME_DIR": str(settings)}
    log = settings / "log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        yield Lab(_address(server, settings, log), folder, log)
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    """Where the server answers: it writes the port that it found free into a file of its own."""
    end = time.monotonic() + LONG / 1000
    while time.monotonic() < end and server.poll() is None:
        try:
            port = json.loads((runtime / f"jpserver-{server.pid}.json").read_text())["port"]
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={TOKEN}", timeout=30)
        except (OSError, ValueError):  # not yet there, half written, or not yet listening
            time.sleep(0.1)
            continue
        return f"http://127.0.0.1:{port}"
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def kernel() -> Kernel:
    """Causal attention, of which most tests show something."""
    return neptune_lab.compile(attention.causal(1, 4, 256, head_dim=64), validate="none")


@pytest.fixture
def new_page(browser, request) -> Iterator[Callable[..., Page]]:
    """Opens a page in a context of its own, with the context's options; kept if the test fails, and closed."""
    watched = request.node.stash[WATCHED] = Watched()

    def opened(**options) -> Page:
        return watched.new_page(browser, **options)

    yield opened
    watched.close()


@pytest.fixture
def live(new_page, request) -> Iterator[Callable[..., LivePage]]:
    """Draws an explorer in a bare page: `live(what, view, width=1440)`; the test fails if the page threw an error."""
    from neptune_widgets.explorer import explore

    def opened(what: Any, view: dict[str, Any] | None = None, *, width: int = 1440, **options: Any) -> LivePage:
        page = new_page(viewport={"width": width, "height": 900}, **options)
        drawn = LivePage(page, explore(what))
        drawn.open(view)
        return drawn

    yield opened
    watched = request.node.stash[WATCHED]
    assert not watched.errors, f"errors in the page: {watched.errors}"


# anywidget gives a widget 2 s to start, in which a busy machine may not load its code: a hundred times as long.
UNHURRIED = "const within = AbortSignal.timeout; AbortSignal.timeout = ms => within.call(AbortSignal, 100 * ms)"


@pytest.fixture(scope="session")
def contexts(browser) -> list[BrowserContext]:
    """The context that pages of JupyterLab share, once there is one: its cache has JupyterLab's code.

    The browser closes it: at the session's end another test may be the last, and Playwright's loop is set aside then.
    """
    return []


@pytest.fixture
def page(browser, contexts, new_page, lab, request) -> Iterator[Page]:
    """A page with the network shut; the test fails if anything tried to leave, or the page threw an error."""
    lab.left.clear()
    watched = request.node.stash[WATCHED]
    watched.lab = lab
    if not contexts:
        contexts.append(browser.new_context(viewport={"width": 1440, "height": 900}))
        contexts[0].add_init_script(UNHURRIED)
    page = watched.new_page_in(contexts[0])
    page.on("request", lab.asked)
    yield page
    page.close()
    if watched.kept:  # what is wrong with it may not reach the next test
        lab.end_kernels()
        contexts.pop().close()
    assert not lab.left, f"requests left the machine: {lab.left}"
    assert not watched.errors, f"errors in the page: {watched.errors}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Keeps the pages of a test that failed, while they are open, and says where."""
    report = yield
    watched = item.stash.get(WATCHED, None)
    if report.failed and watched is not None and not watched.kept:
        folder = keep(watched, ROOT / "build" / "browser-failures", item.name)
        report.sections.append(("the page is kept in", str(folder.relative_to(ROOT))))
    return report
