"""What a person does in JupyterLab: open a notebook, run its cells, save it, find a cell.

Each waits for what must be true, which JupyterLab's own model says (`window.jupyterapp`, exposed by the `lab` fixture),
never for a while. A wait that cannot end, because the kernel died or a run was lost, fails at once and says so.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page
from playwright.sync_api import TimeoutError as Late

TOKEN = "neptune"
# Milliseconds; the end of every wait in a page. A test that passes never waits so long, however busy its machine.
LONG = 300_000
# Milliseconds until a press is repeated that had no effect.
AGAIN = 15_000


_PANEL = "window.jupyterapp?.shell.currentWidget"

# A kernel's replies are promises that a dead kernel rejects.
_ANSWERS = f"""async () => {{
    const session = {_PANEL}.sessionContext;
    await session.ready;
    const kernel = session.session?.kernel;
    if (!kernel) throw new Error('the notebook has no kernel');
    await kernel.requestExecute({{code: '', silent: true, store_history: false}}).done;
}}"""

# The states of the notebook's code cells and its kernel.
_STATE = f"""() => {{
    const panel = {_PANEL}, session = panel.sessionContext;
    const cells = panel.content.widgets.filter(cell => cell.model.type === 'code' && cell.model.sharedModel.source);
    return {{
        kernel: session.session?.kernel?.status ?? 'none',
        asked: cells.filter(cell => cell.model.executionState === 'running').length,
        done: cells.filter(cell => cell.model.executionState !== 'running' && cell.model.executionCount).length,
        failed: cells.flatMap(cell => cell.model.outputs.toJSON()).flatMap(out => out.evalue ?? []),
        cells: cells.length,
    }};
}}"""


def write_notebook(path: Path, *sources: str) -> None:
    """A notebook of code cells, for a test of its own."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def open_notebook(page: Page, lab, name: str) -> None:
    """Opens it alone, and waits until its kernel has answered: JupyterLab drops a run that has no kernel yet."""
    page.goto(f"{lab.address}/lab/tree/{name}?reset&token={TOKEN}")
    page.wait_for_function(f"name => {_PANEL}?.context?.path === name && {_PANEL}.context.isReady", arg=name)
    page.evaluate(_ANSWERS)


def run_all(page: Page) -> None:
    """Run > Run All Cells, until the kernel has begun with them; does not wait for the end."""
    for _ in range(LONG // AGAIN):
        page.get_by_role("menuitem", name="Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).first.click()
        try:
            page.wait_for_function(f"() => {{ const s = ({_STATE})(); return s.asked || s.done }}", timeout=AGAIN)
        except Late:
            continue
        return
    raise AssertionError(f"Run All Cells ran nothing: {page.evaluate(_STATE)}")


def wait_until_run(page: Page) -> None:
    """Until every code cell has run; fails as soon as one has raised, or the kernel is gone or done with cells left."""
    page.wait_for_function(
        f"() => {{ const s = ({_STATE})(); return !s.asked || ['dead', 'none'].includes(s.kernel) }}"
    )
    state = page.evaluate(_STATE)
    assert not state["failed"], f"a cell raised: {state}"
    assert state["done"] == state["cells"], f"some cells have not run: {state}"


def save(page: Page) -> None:
    """Ctrl+S, until the server has the notebook."""
    for _ in range(LONG // AGAIN):
        page.keyboard.press("Control+s")
        try:
            page.wait_for_function(f"() => !{_PANEL}.context.model.dirty", timeout=AGAIN)
        except Late:
            continue
        return
    raise AssertionError("the notebook could not be saved")


def scrolled_to(page: Page, source: str) -> Locator:
    """The cell whose code contains `source`, in view; JupyterLab draws others late or not at all."""
    found = page.evaluate(
        f"""async source => {{
            const notebook = {_PANEL}.content;
            const at = notebook.widgets.findIndex(cell => cell.model.sharedModel.source.includes(source));
            if (at >= 0) await notebook.scrollToItem(at, 'start');
            return at >= 0;
        }}""",
        source,
    )
    assert found, f"no cell has {source!r}"
    cell = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=source)).first
    cell.wait_for()
    return cell
