"""What holds of every notebook of the course: it runs, its outputs are this compiler's, it teaches, and it is clean.

A test file a notebook, so that they run side by side:

    class TestTour(EveryNotebook):
        name = "00_tour"

`pytest tests/notebooks --update-golden` runs the notebooks and writes their outputs, without times or machine names,
and draws every plotly figure as SVG and PNG beside it, since GitHub shows no other forms.
"""

from __future__ import annotations

import base64
import os
import platform
import re
from collections.abc import Iterable
from functools import cache
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import nbformat
import pytest
from nbclient import NotebookClient
from neptune_widgets.course.show import DRAWN_WIDTH
from small_png import small

from neptune_lab.files import write_text

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
PLOTLY = "application/vnd.plotly.v1+json"
SVG, PNG = "image/svg+xml", "image/png"
CODE_IN_ANSWER = re.compile(r"```python\n(.*?)```", re.DOTALL)
VERDICTS = {"✓": "right", "✗": "wrong", "○": "open"}
# Absolute times, which mean nothing without their device.
TIME = re.compile(r"\d\s?(?:µs|us|ms|TFLOP/s|GB/s)\b")
DEVICE = re.compile(r"NVIDIA|H200|A100|estimate|Recorded run", re.IGNORECASE)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def tagged(cell: Any, tag: str) -> bool:
    return tag in cell.metadata.get("tags", ())


@cache
def executed(path: Path) -> Any:
    """The notebook after a run in a fresh kernel; the code of its answers runs too, each where it stands."""
    notebook = read(path)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if tagged(cell, "answer") and (found := CODE_IN_ANSWER.search(cell.source)):
            cells.append(nbformat.v4.new_code_cell(found[1], metadata={"solution": True}))
    notebook.cells = cells
    # No GPU, so that the outputs are the same everywhere; the notebook itself must find Triton's interpreter.
    # Under pytest the kernel would keep what libraries write to standard error to itself, which a reader sees.
    hidden = ("TRITON_INTERPRET", "PYTEST_CURRENT_TEST")
    env = {k: v for k, v in os.environ.items() if k not in hidden} | {"CUDA_VISIBLE_DEVICES": ""}
    client = NotebookClient(
        notebook,
        timeout=1200,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # what a cell prints is one output, however the kernel sent it
        allow_errors=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=env)
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if not is_live(out)]
    return notebook


def is_live(out: Any) -> bool:
    """A running widget, which is gone when the notebook is opened again, and the HTML beside it is what stays; or the
    line that was shown while an explorer was made, which is empty then."""
    data = out.get("data", {})
    return "application/vnd.jupyter.widget-view+json" in data or (bool(data) and not any(data.values()))


def solutions(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if "solution" in cell.metadata]


def without_solutions(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if "solution" not in cell.metadata]


def texts(cell: Any) -> str:
    """What a cell shows, drawings aside: printed text run together, then each display's forms."""
    printed = "".join(out.text for out in cell.get("outputs", ()) if out.output_type == "stream")
    shown = [
        str(form)
        for out in cell.get("outputs", ())
        for mime, form in sorted(out.get("data", {}).items())
        if mime not in (SVG, PNG, PLOTLY)  # another version of graphviz or plotly draws a little differently
    ]
    return "\n".join([printed, *shown])


# Words of prose that a reader takes in per minute, and minutes for a cell and what it shows: with these, notebooks 00
# to 02 take as long as a reader of their first edition took (20, 32 and 44 minutes).
WORDS_A_MINUTE, MINUTES_A_CELL = 130, 0.4


def reading_minutes(cells: Iterable[Any]) -> float:
    """How long cells take to read: prose by its words, without code and addresses, and each code cell a moment."""
    words, code = 0, 0
    for cell in cells:
        if cell.cell_type == "code":
            code += 1
        elif not tagged(cell, "answer"):
            text = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
            words += len(re.sub(r"\]\([^)]*\)|<[^>]*>", "]", text).split())
    return words / WORDS_A_MINUTE + code * MINUTES_A_CELL


# Between releases the version names the commit, so it is another one after every commit.
COMMIT = re.compile(r"(neptune-lab \d+\.\d+\.\d+)\.dev\d+[\w.+]*")


def without_noise(text: str) -> str:
    """Rounding errors and file sizes differ a little from machine to machine; without `dot`, graphs are printed, and
    drawings in HTML have other places."""
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    found = re.sub(r"\b\d\.\d+e[-+]\d+\b|\b\d+ kB\b", "#", COMMIT.sub(r"\1", text))
    return re.sub(r"\n+", "\n", found).strip()


# A line of `course.show_changes`.
_COLOURED = re.compile(r'(?:<pre>)?<span style="display:inline-block[^"]*">(.*)</span>')


def unfolded(text: str) -> str:
    """Messages that `course.show_text` printed, each in one line."""
    return re.sub(r"(\S.{52,}) *\n {4,6}(?=\S)", r"\1 ", text)


def shown_by(notebook: Any, source: str) -> str:
    """What the cells show whose source contains `source`; lines of a diff as they are read, without their colours."""
    found = [
        _COLOURED.sub(lambda line: unescape(line[1]), texts(cell))
        for cell in notebook.cells
        if cell.cell_type == "code" and source in cell.source
    ]
    assert found, f"no cell with {source!r}"
    return "\n".join(found)


def drawn(output: Any, before: Any | None) -> None:
    """Puts drawings beside a plotly figure, and makes the PNG of a graph small.

    If what they are drawn from is the same as in `before`, the committed output, its drawings stay.
    """
    import plotly.graph_objects as go

    data, old = output.get("data", {}), {} if before is None else before.get("data", {})
    drawn_from = PLOTLY if PLOTLY in data else SVG
    if drawn_from not in data:
        return
    if old.get(drawn_from) == data[drawn_from] and {SVG, PNG} <= set(old):
        data.update({form: old[form] for form in (SVG, PNG)})
        return
    if drawn_from == PLOTLY:
        figure = go.Figure(data[PLOTLY])
        width, height = figure.layout.width or DRAWN_WIDTH, figure.layout.height or 420
        data[SVG] = figure.to_image("svg", width=width, height=height).decode()
        data[PNG] = base64.b64encode(figure.to_image("png", width=width, height=height)).decode()
    elif PNG in data:
        data[PNG] = base64.b64encode(small(base64.b64decode(data[PNG]))).decode()


def write_clean(path: Path, cells: list[Any]) -> None:
    """The notebook with these cells: counted from 1, figures drawn, and nothing about the machine."""
    notebook = read(path)
    before = {cell.source: cell.get("outputs", []) for cell in notebook.cells}
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    notebook.cells = cells
    for number, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        old = before.get(cell.source, [])
        for n, out in enumerate(cell.outputs):
            if "execution_count" in out:
                out.execution_count = number
            drawn(out, old[n] if n < len(old) else None)
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number:02d}"
    write_text(path, COMMIT.sub(r"\1", nbformat.writes(notebook)).rstrip("\n") + "\n")


class EveryNotebook:
    """The tests of one notebook; a subclass gives its `name` and adds what only that notebook shows."""

    name: ClassVar[str]

    @property
    def path(self) -> Path:
        return NOTEBOOKS / f"{self.name}.ipynb"

    @property
    def run(self) -> Any:
        return executed(self.path)

    def shown_by(self, source: str) -> str:
        return shown_by(self.run, source)

    # -- it runs ------------------------------------------------------------------------------------------------

    def test_runs(self):
        for cell in self.run.cells:
            for out in cell.get("outputs", ()):
                if out.output_type == "error":
                    pytest.fail("\n".join([f"{self.name}:", cell.source, *out.traceback]), pytrace=False)
                assert out.get("name") != "stderr", f"a warning in {self.name}:\n{cell.source}\n{out.text}"

    def test_answers_are_right(self):
        for cell in solutions(self.run):
            assert "✓" in texts(cell), f"{cell.source}\n{texts(cell)}"
            assert "✗" not in texts(cell), f"{cell.source}\n{texts(cell)}"

    def test_a_step_that_is_called_the_last_is_the_last(self):
        cells = read(self.path).cells
        for before, cell in pairwise(cells):
            if before.cell_type == "markdown" and (found := re.search(r"last of the steps, (\d+)", before.source)):
                assert f"Schedule: {found[1]} steps" in texts(cell)

    def test_outputs_are_up_to_date(self, request: pytest.FixtureRequest):
        fresh = without_solutions(self.run)
        if request.config.getoption("--update-golden"):
            write_clean(self.path, fresh)
        for old, new in zip(read(self.path).cells, fresh, strict=True):
            if old.cell_type == "code":
                help = f"{self.name} shows something else now; if that is meant: pytest tests/notebooks --update-golden"
                assert without_noise(texts(old)) == without_noise(texts(new)), f"{help}\n{old.source}"

    # -- it teaches ---------------------------------------------------------------------------------------------

    def test_opens_with_what_the_reader_will_be_able_to_do(self):
        first = read(self.path).cells[0]
        assert first.cell_type == "markdown"
        assert first.source.startswith("# ")
        assert "you will be able to" in first.source

    def test_ends_with_exercises(self):
        cells = read(self.path).cells
        (begin,) = [n for n, cell in enumerate(cells) if re.match(r"##.* Exercises", cell.source)]
        answers = [n for n, cell in enumerate(cells) if tagged(cell, "answer")]
        assert len(answers) >= 2
        assert min(answers) > begin, "exercises stand at the end"
        for n in answers:
            assert cells[n].source.startswith("<details><summary>Answer</summary>")
            assert cells[n].source.rstrip().endswith("</details>")
            assert CODE_IN_ANSWER.search(cells[n].source), "an answer is code that the verdict calls right"
            assert tagged(cells[n - 1], "exercise"), "the exercise's cell stands before its answer"
        for cell in cells:
            if cell.cell_type == "code" and tagged(cell, "exercise"):
                assert "○" in texts(cell), f"an exercise is committed unanswered, and says so:\n{cell.source}"
                assert "<summary>Hint" in texts(cell), f"no hints:\n{cell.source}"

    # -- it reads well where there is no kernel, and it is clean ----------------------------------------------------

    def test_figures_need_no_kernel(self):
        for cell in read(self.path).cells:
            for out in cell.get("outputs", ()):
                assert (SVG in out.get("data", {})) == (PNG in out.get("data", {})), f"SVG and PNG:\n{cell.source}"
                if PLOTLY in out.get("data", {}):
                    assert SVG in out.data, f"no drawing beside the figure (make notebooks):\n{cell.source}"
                    assert out.data["text/plain"].strip(), f"no words beside the figure:\n{cell.source}"

    def test_something_is_drawn(self):
        outputs = [out for cell in read(self.path).cells for out in cell.get("outputs", ())]
        assert any(SVG in out.get("data", {}) for out in outputs), "no drawing that is seen without a kernel"

    def test_times_are_marked_with_their_device(self):
        for cell in read(self.path).cells:
            shown = texts(cell) if cell.cell_type == "code" else cell.source
            if TIME.search(shown):
                assert DEVICE.search(shown), f"a time without its device:\n{cell.source}"

    def test_committed_file_is_clean(self):
        text = self.path.read_text(encoding="utf-8")
        notebook = read(self.path)
        nbformat.validate(notebook)
        assert len(text) < 1_000_000
        assert "Traceback" not in text
        folders = [f"/{name}/" for name in ("home", "root", "tmp", "usr", "work", "Users")]
        for place in (*folders, "C:\\\\", str(ROOT)):
            assert place not in text, f"{self.name} contains {place}"
        if len(platform.node()) > 5:
            assert platform.node() not in text
        assert set(notebook.metadata) <= {"kernelspec", "language_info"}
        assert notebook.metadata.kernelspec.name == "python3"
        for cell in notebook.cells:
            assert "execution" not in cell.metadata, "execution times are recorded"
            if cell.cell_type == "code":
                assert cell.execution_count, f"not run:\n{cell.source}"
