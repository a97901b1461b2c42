"""Functions of a user's file on the command line: `FILE.py:NAME --inputs "…"`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from neptune_lab.cli import main

MODEL = """\
import torch
from beside import SCALE


def attention(q, k, v, scale=1.0):
    scores = q @ k.mT * scale * SCALE
    return torch.softmax(scores, -1) @ v


def best(x):
    return torch.sort(x).values


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


class Wide(torch.nn.Module):
    def __init__(self, width):
        super().__init__()


def ends(x):
    raise SystemExit(0)


number = 3
"""
QKV = "q=float16[1,2,32,16] k=float16[1,2,32,16] v=float16[1,2,32,16] scale=0.25"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs a command beside model.py: (exit status, standard output, standard error)."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "beside.py").write_text("SCALE = 0.5\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n", encoding="utf-8")
    (tmp_path / "ends.py").write_text("import sys\nsys.exit()\n", encoding="utf-8")
    (tmp_path / "torn.py").write_text("x = (\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["neptune-lab", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    yield run
    for name in ("model", "beside", "broken", "ends", "neptune_lab_user_file"):
        sys.modules.pop(name, None)


@pytest.mark.nightly
def test_a_function_compiles_and_runs(call):
    status, out, err = call("run", "model.py:attention", "--inputs", QKV)
    assert (status, err) == (0, "")
    assert "kernels   attention_kernel(" in out
    assert "(within 0.001)" in out


def test_a_class_of_modules_is_made(call):
    status, out, err = call("compile", "model.py:Model", "--inputs", "x=float32[4,8]", "--emit", "definition")
    assert (status, err) == (0, "")
    assert "softmax" in out


REFUSED = {
    ("model.py:best", "--inputs", "x=float32[4,8]"): "torch's sort is not supported, in ",
    ("model.py:bets", "--inputs", "x=float32[4]"): "model.py defines no 'bets'; help: it has best",
    ("model.py:best",): "needs --inputs; help: add the shape and the dtype of each, as in --inputs",
    ("model.py", "--inputs", "x=float32[4]"): "model.py names no function",
    ("model.py:number", "--inputs", "x=float32[4]"): "'number' of model.py is an int, expected a function",
    ("model.py:Wide", "--inputs", "x=float32[4]"): "Wide of model.py cannot be made without arguments",
    ("model.py:best", "--inputs", "y=float32[4]"): "best has no parameter 'y'; its parameters: x",
    (
        "model.py:best",
        "--inputs",
        "x=float3[4]",
    ): "--inputs, line 1, column 3: there is no dtype 'float3'; help: did you mean",
    ("model.py:best", "--inputs", "x=float32[4]", "--seq", "3"): "model.py:best has no option --seq",
    ("none.py:f", "--inputs", "x=float32[4]"): "there is no file none.py",
    ("none.py",): "there is no file none.py",
    ("none.py:f",): "there is no file none.py",
    ("broken.py:f", "--inputs", "x=float32[4]"): "broken.py, line 2: ZeroDivisionError: division by zero",
    ("torn.py:f", "--inputs", "x=float32[4]"): "torn.py, line 1: SyntaxError: '(' was never closed; help: ",
    ("ends.py:f", "--inputs", "x=float32[4]"): "ends.py, line 2: the file ends the program (sys.exit)",
    ("model.py:ends", "--inputs", "x=float32[4]"): "the function ended the program: sys.exit(0)",
    ("softmax.figure1", "--inputs", "x=float32[4]"): "softmax.figure1 has no option --inputs",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refusals_are_one_line_with_a_help(call, arguments: tuple[str, ...]):
    status, out, err = call("compile", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert REFUSED[arguments] in err
    assert "; help: " in err


@pytest.mark.nightly
def test_explain_shows_regions_and_what_is_apart(call, tmp_path: Path):
    arguments = ("explain", "model.py:attention", "--inputs", QKV)
    (partition,) = json.loads(call(*arguments, "--json")[1])["partitions"]
    assert len(partition["regions"]) == 1
    status, out, err = call(*arguments, "--html", "page.html")
    assert (status, err) == (0, "")
    assert "1 region fused, which moves " in out
    assert "fused  attention: " in out
    assert "line 7: `return torch.softmax(scores, -1) @ v`" in out
    assert "<title>attention - neptune_lab</title>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    status, out, err = call("explain", "model.py:best", "--inputs", "x=float32[4,8]")
    assert (status, err) == (0, "")
    assert "No region was fused" in out
    assert "sort is not supported: take the part that sorts out" in out
    for wrong in (("--programs",), ("--template", "rolling_update")):
        assert call(*arguments, *wrong)[0] == 2
    assert "--html is for FILE.py:NAME" in call("explain", "softmax.figure1", "--html", "page.html")[2]


@pytest.mark.parametrize(
    "command",
    [
        "accuracy --json",
        "bench --tiny --html",
        "bench --tiny --markdown",
        "compile rows.softmax --output",
        "explain model.py:best --html",
        "report . --export",
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(call, command: str):
    status, out, error = call(*command.split(), "missing/file")
    assert (status, out) == (2, "")
    reason, _, help = error.partition("; help: ")
    assert reason == "neptune-lab: cannot write 'missing/file': No such file or directory"
    assert help == "make the folder first: mkdir -p missing\n"
    assert "Is a directory" in call(*command.split(), ".")[2]


def test_results_of_a_bundle_that_was_not_run(call, tmp_path):
    (tmp_path / "my bundle").mkdir()
    (tmp_path / "my bundle" / "manifest.json").write_text("{}")
    status, _, error = call("report", str(tmp_path / "my bundle"))
    assert status == 2
    assert f"help: python '{tmp_path}/my bundle/run.py' writes it, on a machine with a GPU" in error
    assert "is this a bundle's folder?" in call("report", str(tmp_path))[2]


@pytest.mark.parametrize("option", [["--kernels", "nodir"], ["--device", "nosuch"]])
def test_a_benchmark_that_is_refused_leaves_no_results(call, option: list[str]):
    status, _, error = call("bench", "--tiny", "--only", "g1", *option)
    assert status == 2
    assert "; help: " in error
    assert not Path("bench.json").exists()


def test_a_folder_of_kernels_is_no_file(call, tmp_path):
    path = tmp_path / "kernels"
    path.write_text("")
    error = call("bench", "--tiny", "--only", "g1", "--export-kernels", str(path))[2]
    assert error == f"neptune-lab: {path} is a file; help: give the path of a folder, which may be new\n"


@pytest.mark.parametrize("text", ["", "text", "[]", '{"schema": 1}'])
@pytest.mark.parametrize("command", ["bench --report --results", "bench --drawn-report", "records --load"])
def test_a_file_of_something_else_is_refused_with_help(call, command: str, text: str, tmp_path):
    path = tmp_path / "odd.json"
    path.write_text(text)
    status, out, error = call(*command.split(), str(path))
    assert (status, out) == (2, "")
    assert str(path) in error
    assert "; help: " in error
    assert "NoneType" not in error


def test_a_bundle_is_for_a_known_gpu(call):
    status, _, error = call("bundle", "rows.softmax", "--output", "out", "--device", "nosuch")
    assert status == 2
    assert "device='nosuch': not a GPU whose figures are known; help: one of a100, h100" in error
