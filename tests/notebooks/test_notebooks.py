"""Every notebook runs, and its committed outputs are those of this compiler.

`pytest tests/notebooks --update-golden` runs the notebooks and writes their outputs, without times or machine names.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
TOUR = NOTEBOOKS / "00_tour.ipynb"
SOLUTION = re.compile(r"<details>\s*<summary>Solution</summary>\s*```python\n(.*?)```", re.DOTALL)

every_notebook = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


@cache
def executed(path: Path) -> Any:
    """The notebook after a run in a fresh kernel; the solutions of its exercises run too, each where it stands."""
    notebook = read(path)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "markdown" and (found := SOLUTION.search(cell.source)):
            cells.append(nbformat.v4.new_code_cell(found[1], metadata={"solution": True}))
    notebook.cells = cells
    # No GPU, so that the outputs are the same everywhere; the notebook itself must find Triton's interpreter.
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    client = NotebookClient(
        notebook,
        timeout=300,
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
    """A running widget: it is gone when the notebook is opened again, and the HTML beside it is what stays."""
    return "application/vnd.jupyter.widget-view+json" in out.get("data", {})


def solutions(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if "solution" in cell.metadata]


def without_solutions(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if "solution" not in cell.metadata]


def texts(cell: Any) -> str:
    """What a cell shows, drawings aside: printed text run together, then each display's forms."""
    printed = "".join(out.text for out in cell.get("outputs", ()) if out.output_type == "stream")
    shown = [
        form
        for out in cell.get("outputs", ())
        for mime, form in sorted(out.get("data", {}).items())
        if mime != "image/svg+xml"  # another version of graphviz draws a little differently
    ]
    return "\n".join([printed, *shown])


def without_noise(text: str) -> str:
    """Rounding errors and file sizes differ a little from machine to machine; without `dot`, graphs are printed."""
    return re.sub(r"\n+", "\n", re.sub(r"\b\d\.\de[-+]\d+\b|\b\d+ kB\b", "#", text)).strip()


def shown_by(notebook: Any, source: str) -> str:
    """What the cells show whose source contains `source`."""
    found = [texts(cell) for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    assert found, f"no cell with {source!r}"
    return "\n".join(found)


def write_clean(path: Path, cells: list[Any]) -> None:
    """The notebook with these cells: counted from 1, and nothing about the machine."""
    notebook = read(path)
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    notebook.cells = cells
    for number, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        for out in cell.outputs:
            if "execution_count" in out:
                out.execution_count = number
    nbformat.write(notebook, path)


# -- every notebook ----------------------------------------------------------------------------------------------


def test_there_is_a_tour():
    assert TOUR in PATHS


@every_notebook
def test_runs(path: Path):
    for cell in executed(path).cells:
        for out in cell.get("outputs", ()):
            if out.output_type == "error":
                pytest.fail("\n".join([f"{path.name}:", cell.source, *out.traceback]), pytrace=False)
            assert out.get("name") != "stderr", f"a warning in {path.name}:\n{cell.source}\n{out.text}"


@every_notebook
def test_solutions_solve(path: Path):
    for cell in solutions(executed(path)):
        assert "✓" in texts(cell), texts(cell)


@every_notebook
def test_outputs_are_up_to_date(path: Path, request: pytest.FixtureRequest):
    fresh = without_solutions(executed(path))
    if request.config.getoption("--update-golden"):
        write_clean(path, fresh)
    for old, new in zip(read(path).cells, fresh, strict=True):
        if old.cell_type == "code":
            help = f"{path.name} shows something else now; if that is meant: pytest tests/notebooks --update-golden"
            assert without_noise(texts(old)) == without_noise(texts(new)), f"{help}\n{old.source}"


@every_notebook
def test_committed_file_is_clean(path: Path):
    text = path.read_text(encoding="utf-8")
    notebook = read(path)
    nbformat.validate(notebook)
    assert len(text) < 300_000
    assert "Traceback" not in text
    folders = [f"/{name}/" for name in ("home", "root", "tmp", "usr", "work", "Users")]
    for place in (*folders, "C:\\\\", str(NOTEBOOKS.parent)):
        assert place not in text, f"{path.name} contains {place}"
    if len(platform.node()) > 5:
        assert platform.node() not in text
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert "execution" not in cell.metadata, "execution times are recorded"
        if cell.cell_type == "code":
            assert cell.execution_count, f"not run:\n{cell.source}"
            assert len(str(cell.outputs)) < 40_000, f"a long output:\n{cell.source}"


# -- the tour ----------------------------------------------------------------------------------------------------


def test_tag_tables_show_signs_beside_colours():
    naive = shown_by(executed(TOUR), 'tag_table("j", phase="naive"')
    for expected in ('class="early"', "1</b> <span>!</span>", "← xmax⟨0⟩ !", "3.368", "≠ 1.553"):
        assert expected in naive, expected
    tables = shown_by(executed(TOUR), "sch.tag_table(")
    for expected in (
        'class="repaired"',
        "repair of xsum[0]",
        "0.1353</b> <span>↻</span>",
        "1.553</b> <span>↻ ✓</span>",
    ):
        assert expected in tables, expected


def test_naive_fusion_is_wrong_and_the_repair_is_right():
    shown = shown_by(executed(TOUR), "naive = run(")
    assert "row 0: naive fusion 3.3679, right 1.5530  ✗ wrong" in shown
    assert "row 1: naive fusion 1.6386, right 1.6386  ✓" in shown
    checks = re.findall(r"(equals|does NOT equal) the definition", shown_by(executed(TOUR), "print(sch.check())"))
    assert checks == ["equals"] * 2
    assert "equals the definition" in shown_by(executed(TOUR), "print(split.check())")


def test_the_derivation_is_shown():
    shown = shown_by(executed(TOUR), "show_maths(term)")
    assert "h(t, r, r') = t*exp(xmax - xmax')" in shown
    for step in ("Separate", "Invert", "Derive", "Prove Eq. 3", "Prove Eq. 4", "Guard"):
        assert f"**{step}" in shown, step
    assert r"t e^{\mathit{xmax} - \mathit{xmax}'}" in shown
    refused = shown_by(executed(TOUR), '"c - r"')
    assert "refused at step: prove Eq. 4" in refused
    assert "is not additive" in refused


def test_figure_1c_comes_out():
    shown = shown_by(executed(TOUR), 'sch.retire_tags("s_max")\nprint')
    assert "xsum[i] = exp(xmax_0[i] - xmax_1[i]) * xsum[i] + exp(inp[i, j] - xmax_1[i])" in shown


def test_relative_errors_are_small():
    compared = [float(x) for x in re.findall(r": +(\S+e-\d+)$", shown_by(executed(TOUR), "theirs ="), re.MULTILINE)]
    errors = re.findall(r"^relative error (\S+)$", shown_by(executed(TOUR), ".error()"), re.MULTILINE)
    assert (len(compared), len(errors)) == (3, 2)
    for error in (*compared, *map(float, errors)):
        assert 0 < error < 1e-3


def test_attention_loops_over_interior_and_right_edge_without_a_score_matrix():
    tiles = shown_by(executed(TOUR), 'after["partition_masked_loops"]')
    assert re.findall(r"^ +for .*# (.*)$", tiles, re.MULTILINE) == ["interior", "right edge"]
    assert tiles.count("iota[NewAxis") == 1, "the mask stands in the right edge alone"
    source = shown_by(executed(TOUR), "show_code(kernel.source)")
    assert re.findall(r"^ +for .*# (.*)$", source, re.MULTILINE) == ["interior"]
    assert len(re.findall(r"^ +for ", source, re.MULTILINE)) == 1
    assert source.count("tl.dot(") == 4, "the right edge is one tile, straight code behind the loop"
    assert source.count("tl.store(") == 1
    decode = shown_by(executed(TOUR), "show_code(decode.source)")
    assert decode.count("@triton.jit") == 2


def test_an_incomplete_schedule_is_refused_with_help():
    assert "help: apply retire_tags" in shown_by(executed(TOUR), "nl.compile(incomplete)")


def test_the_record_opens_without_the_compiler():
    assert "loaded: []" in shown_by(executed(TOUR), "subprocess")


def test_unsolved_exercises_say_what_is_missing():
    for source in ("check_factors(factors)", "check_schedule(my_schedule)"):
        cells = [cell for cell in without_solutions(executed(TOUR)) if cell.cell_type == "code"]
        (shown,) = [texts(cell) for cell in cells if source in cell.source]
        assert shown.startswith("not yet: ")
    assert len(solutions(executed(TOUR))) == 2


def test_graphs_are_text_without_dot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import neptune_lab as nl
    from neptune_lab.operators import softmax

    (helpers,) = [cell.source for cell in read(TOUR).cells if "def show_graph(" in cell.source]
    names: dict[str, Any] = {}
    exec(helpers, names)
    monkeypatch.setattr("shutil.which", lambda name: None)
    sch = nl.Schedule(softmax.figure1())
    sch.rolling_update("s_sum", "s_max.j", maps="keep")
    names["show_graph"](names["steps_record"](sch)[-1].phases[1].graph)
    assert "s_max → s_exp: xmax (read too early) !" in capsys.readouterr().out
