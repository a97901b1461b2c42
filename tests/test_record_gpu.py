"""Recording a notebook on a GPU and keeping it, with a GPU that is only said to be there."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from modules_by_path import module_at
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]

# Makes the kernel believe in a GPU, as far as `course.measured` asks.
PRETEND = """
import neptune_lab.bench.device as device
import neptune_lab.runtime as runtime
runtime.has_gpu = lambda: True
device.describe = lambda: {"name": "NVIDIA pretended"}
"""
MEASURE = """
from IPython.display import display
from neptune_lab import course
shown = display({"text/plain": "timing"}, raw=True, display_id=True)
shown.update({"text/plain": ""}, raw=True)
run = course.measured("00_small", lambda: {"us": 12.5})
course.show_figure({"data": [{"type": "bar", "y": [run.data["us"]]}], "layout": {"width": 300, "height": 200}}, "a bar")
run
"""


@pytest.fixture(scope="module")
def script():
    return module_at(ROOT / "scripts" / "record_gpu.py")


@pytest.fixture
def notebooks(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    cells = [new_markdown_cell("# Small"), new_code_cell(PRETEND.strip()), new_code_cell(MEASURE.strip())]
    nbformat.write(new_notebook(cells=cells), folder / "00_small.ipynb")
    return folder


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr("neptune_lab.runtime.has_gpu", lambda: True)


@pytest.mark.nightly
@pytest.mark.usefixtures("gpu")
def test_recorded_and_kept(script, notebooks, tmp_path):
    pytest.importorskip("kaleido")
    out = tmp_path / "out"
    (made,) = script.record(["00_small"], out, "python scripts/record_gpu.py 00_small", notebooks)
    assert made == out / "00_small.ipynb"
    record = json.loads((out / "recorded" / "00_small.json").read_text(encoding="utf-8"))
    assert record["data"] == {"us": 12.5}
    assert (record["device"], record["command"]) == ("NVIDIA pretended", "python scripts/record_gpu.py 00_small")
    assert record["versions"]["torch"]
    assert not (notebooks / "recorded").exists(), "recording leaves the checkout alone"

    (kept,) = script.keep(out, notebooks)
    assert (notebooks / "recorded" / "00_small.json").read_text(encoding="utf-8") == json.dumps(
        record, indent=1, ensure_ascii=False
    ) + "\n"
    *_, cell = nbformat.read(kept, as_version=4).cells
    figure, run = cell.outputs  # and no status line
    assert figure.data["image/svg+xml"].startswith("<svg")
    assert run.data["text/plain"].startswith("Measured on: NVIDIA pretended")
    assert cell.execution_count == 2


def test_without_a_gpu_nothing_is_recorded(script, notebooks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("neptune_lab.runtime.has_gpu", lambda: False)
    assert script.main(["-o", str(tmp_path / "out")]) == 1
    assert "there is no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("gpu")
def test_a_notebook_that_there_is_not(script, notebooks, tmp_path):
    with pytest.raises(script.NotRecorded, match="no notebook '99_none'"):
        script.record(["99_none"], tmp_path / "out", "a test", notebooks)


class TestWhatIsNotKept:
    """Nothing of the checkout changes then."""

    def refused(self, script, notebooks, tmp_path, cells, why):
        out = tmp_path / "out"
        out.mkdir()
        nbformat.write(new_notebook(cells=cells), out / "00_small.ipynb")
        before = (notebooks / "00_small.ipynb").read_text(encoding="utf-8")
        with pytest.raises(script.NotRecorded, match=why):
            script.keep(out, notebooks)
        assert (notebooks / "00_small.ipynb").read_text(encoding="utf-8") == before

    def test_an_empty_folder(self, script, notebooks, tmp_path):
        with pytest.raises(script.NotRecorded, match="holds no notebook"):
            script.keep(tmp_path, notebooks)

    def test_one_that_failed(self, script, notebooks, tmp_path):
        failed = new_output("error", ename="MeasureError", evalue="no time", traceback=[])
        cells = [new_code_cell("1", outputs=[failed], execution_count=1)]
        self.refused(script, notebooks, tmp_path, cells, "failed with MeasureError: no time")

    def test_one_that_was_not_run(self, script, notebooks, tmp_path):
        self.refused(script, notebooks, tmp_path, [new_code_cell("1")], "was not run to its end")

    def test_one_that_has_another_source_by_now(self, script, notebooks, tmp_path):
        self.refused(script, notebooks, tmp_path, [new_code_cell("1", execution_count=1)], "record it again")
