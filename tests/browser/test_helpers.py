"""The helpers of these tests: no run is lost where the kernel is slow to start, and a failing test's page is kept."""

from __future__ import annotations

import json

import pytest
from in_lab import open_notebook, run_all, save, wait_until_run, write_notebook
from kept_pages import Watched, keep

# The kernel comes seconds after JupyterLab shows its idle sign, as on a busy machine.
SLOW_SESSIONS = """
const plain = window.fetch;
window.fetch = async (input, init) => {
    const [url, method] = input instanceof Request ? [input.url, input.method] : [String(input), init?.method];
    if (method === 'POST' && url.includes('/api/sessions')) await new Promise(go => setTimeout(go, 4000));
    return plain(input, init);
};
"""


@pytest.mark.nightly
def test_a_run_is_not_lost_where_the_kernel_is_slow_to_start(page, lab):
    path = lab.folder / "slow_kernel.ipynb"
    write_notebook(path, "print(1 + 1)", "", "print(2 + 2)")
    page.add_init_script(SLOW_SESSIONS)
    open_notebook(page, lab, path.name)
    run_all(page)
    wait_until_run(page)
    save(page)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert ["".join(o["text"]) for c in cells for o in c["outputs"]] == ["2\n", "4\n"]


@pytest.mark.nightly
def test_a_cell_that_raises_ends_the_wait(page, lab):
    write_notebook(lab.folder / "raises.ipynb", "raise ValueError('so it is')", "print('not run')")
    open_notebook(page, lab, "raises.ipynb")
    run_all(page)
    with pytest.raises(AssertionError, match="so it is"):
        wait_until_run(page)


@pytest.mark.nightly
def test_a_kernel_that_dies_ends_the_wait(page, lab):
    write_notebook(lab.folder / "dies.ipynb", "import os\nos._exit(1)", "print('not run')")
    open_notebook(page, lab, "dies.ipynb")
    run_all(page)
    with pytest.raises(AssertionError, match="some cells have not run"):
        wait_until_run(page)


@pytest.mark.nightly
def test_the_page_of_a_failing_test_is_kept(browser, lab, tmp_path):
    watched = Watched(lab=lab)
    page = watched.new_page(browser)
    page.set_content("<h1>as it was</h1><script>console.warn('a warning')</script>")
    page.wait_for_selector("h1")
    folder = keep(watched, tmp_path, "test_a[b/c-../d]")
    watched.close()
    assert watched.kept
    assert folder == tmp_path / "test_a-b-c-..-d"
    assert sorted(p.name for p in folder.iterdir()) == [
        "console.txt",
        "kernels.json",
        "page.html",
        "page.png",
        "server.log",
    ]
    assert (folder / "page.png").read_bytes().startswith(b"\x89PNG")
    assert "as it was" in (folder / "page.html").read_text()
    assert "a warning" in (folder / "console.txt").read_text()
    assert len(json.loads((folder / "kernels.json").read_text())) == 2


def test_what_cannot_be_kept_hides_nothing(browser, tmp_path):
    class Gone:
        def api(self, path):
            raise ConnectionRefusedError("nobody answers")

        log = tmp_path / "no log"

    watched = Watched(lab=Gone())
    watched.new_page(browser).set_content("<p>still here</p>")
    folder = keep(watched, tmp_path, "test")
    watched.close()
    assert "nobody answers" in (folder / "kernels.json").read_text()
    assert "No such file" in (folder / "server.log").read_text()
    assert "still here" in (folder / "page.html").read_text()
