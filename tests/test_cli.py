"""The command line, as a person calls it."""

from __future__ import annotations

import errno
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import neptune_lab
from neptune_lab.cli import main
from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes import ALL_PASSES
from neptune_lab.trace import SCHEMA

CAUSAL = ["attention.causal", "--batch", "1", "--heads", "2", "--seq", "32", "--head-dim", "16"]


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a command: (exit status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["neptune-lab", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return run


def test_a_command_ends_with_its_reader(call, monkeypatch):
    """`neptune-lab list | head -1`: typer exits with status 1, and the message was of a user's function."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("typer.echo", closed)
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # which is closed
    assert call("list") == (0, "", "")


def test_ctrl_c_is_told(call, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.echo", interrupted)
    assert call("list") == (130, "", "neptune-lab: interrupted\n")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("emit", "expected"),
    [
        ("definition", "s_max[b, h, i] = max(score[b, h, i, j] for j in range(32))"),
        ("loops", "block s_max("),
        ("htile", "kernel attention_causal  grid"),
        ("outline", "loads    q[b, h, "),
        ("triton", "@triton.jit"),
        pytest.param("resources", "attention_causal_kernel for sm_90", marks=pytest.mark.nightly),
        ("traffic", "bound by\ndefinition"),
        ("trace", f'"schema":{SCHEMA}'),
    ],
)
def test_compile_emits_each_stage(call, emit, expected):
    status, out, err = call("compile", *CAUSAL, "--emit", emit)
    assert (status, err) == (0, "")
    assert expected in out


@pytest.mark.nightly
def test_the_trace_says_how_to_make_it_again(call, tmp_path):
    path = tmp_path / "trace.json"
    assert call("compile", *CAUSAL, "--emit", "trace", "-o", str(path))[:2] == (0, "")
    assert json.loads(path.read_text(encoding="utf-8"))["command"].startswith("neptune-lab compile attention.causal")


@pytest.mark.parametrize("command", ["compile", "bundle", "records"])
def test_help_fits_a_terminal_of_80_columns(call, command: str):
    status, out, _ = call(command, "--help")
    assert (status, [line for line in out.splitlines() if len(line) > 80]) == (0, [])


@pytest.mark.nightly
def test_the_examples_of_the_help_run(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    commands = re.findall(r"neptune-lab (compile rows.*|explain .*?)(?:  +#|\n)", call("--help")[1])
    assert len(commands) == 2
    for command in commands:
        assert call(*command.split())[::2] == (0, "")


@pytest.mark.parametrize("named", ["attention.causal", "causal_pf"])
def test_a_length_that_is_missing_is_named_as_an_option(call, named):
    status, _, err = call("compile", named)
    assert (status, f"{named} needs --seq; help: for example --seq 128" in err) == (2, True)


@pytest.mark.nightly
def test_templates_and_tiles(call):
    status, out, _ = call("compile", *CAUSAL, "--template", "split_k_update", "--block-kv", "16")
    assert status == 0
    assert "attention_causal_combine" in out


def test_passes_run_on_a_text_as_documented(call, tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "using" / "command_line.md").read_text(encoding="utf-8")
    before, after = re.findall(r"```text\n(program .*?)```", page, re.DOTALL)
    (line,) = re.findall(r"`neptune-lab (opt --pass .*?)`", page)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "product.htile").write_text(before, encoding="utf-8")
    assert call(*line.split()) == (0, after, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(before.encode())))
    assert call(*line.replace("product.htile", "-").split()) == (0, after, "")
    assert call("opt", "product.htile") == (0, before, "")


def test_passes_run_in_the_order_given(call, tmp_path):
    """The loop that the first pass unrolls is none for the second."""
    (tmp_path / "f.htile").write_text(ONE_ITERATION, encoding="utf-8")
    passes = ["--pass", "unroll_single_iterations", "--pass", "hoist_invariant_loads"]
    forward = call("opt", *passes, str(tmp_path / "f.htile"))
    backward = call("opt", *passes[2:], *passes[:2], str(tmp_path / "f.htile"))
    assert ("x_tile[" in forward[1], "x_tile[" in backward[1]) == (False, True)


ONE_ITERATION = """\
program f(x) -> y
  input   x  float32[i: 4]
  output  y  float32[i: 4]

kernel f  grid ()
    for n in range(1):
        y[0:4] = x[0:4] * 2.0
"""


def test_passes_are_listed(call):
    status, out, err = call("opt", "--list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(ALL_PASSES)
    assert "longest_first Starts program instances with the longest loops first" in re.sub(" +", " ", out)


def test_passes_on_a_wrong_text_say_where(call, tmp_path):
    path = tmp_path / "f.htile"

    def said(text: str, *arguments: str) -> str:
        path.write_text(text, encoding="utf-8")
        status, out, err = call("opt", *arguments, str(path))
        assert (status, out, err.count("\n")) == (2, "", 1)
        return err

    assert f"{path}: line 7, column 18: found 'z', expected a tensor" in said(ONE_ITERATION.replace("= x", "= z"))
    assert f"{path}: line 7: store to y: value of shape (2,)" in said(ONE_ITERATION.replace("= x[0:4]", "= x[0:2]"))
    assert f"{path}: output y is never stored" in said(ONE_ITERATION.partition("    for")[0])
    assert "there is no pass 'longest_frist'; help: did you mean longest_first?" in said(
        ONE_ITERATION, "--pass", "longest_frist"
    )
    path.write_bytes(b"\xff")
    assert call("opt", str(path))[2].endswith(
        "not UTF-8 text (byte 0); help: give a file with the text of a tile program, in UTF-8\n"
    )
    assert "cannot read" in call("opt", str(tmp_path / "none.htile"))[2]
    assert "opt needs FILE" in call("opt")[2]


def test_a_pass_that_makes_a_program_that_is_not_valid_is_named(call, tmp_path, monkeypatch):
    def wrong(program: Program) -> Program:
        return replace(program, outputs=())

    monkeypatch.setattr("neptune_lab.pipeline.opt.ALL_PASSES", {"wrong": wrong})
    (tmp_path / "f.htile").write_text(ONE_ITERATION, encoding="utf-8")
    status, _, err = call("opt", "--pass", "wrong", str(tmp_path / "f.htile"))
    assert status == 2
    assert "wrong made a program that is not valid: program lists the outputs ()" in err


def test_explain_tells_the_derivation(call):
    status, out, _ = call("explain", "softmax.figure1", "--cols", "200")
    assert status == 0
    for text in ("wrong on purpose", "Prove Eq. 3", "Prove Eq. 4", "h is additive in t", "equals the definition"):
        assert text in out


def test_run_prints_the_error(call):
    status, out, _ = call("run", *CAUSAL)
    assert status == 0
    assert "relative to float64 (within 0.001)" in out


@pytest.mark.nightly
def test_explain_and_list_print_json_for_scripts(call):
    status, out, _ = call("explain", "softmax.figure1", "--cols", "200", "--json")
    found = json.loads(out)
    assert (status, found["operator"]) == (0, "softmax_figure1")
    (rolled,) = (step for step in found["steps"] if step["primitive"] == "rolling_update")
    assert [phase["key"] for phase in rolled["phases"] if phase["wrong"]] == ["naive", "repair"]
    (derivation,) = (p["derivation"] for p in rolled["phases"] if p["derivation"] is not None)
    assert derivation["accepted"]
    assert "exp(" in derivation["term"]
    assert not any("program" in phase for step in found["steps"] for phase in step["phases"])
    _, out, _ = call("explain", "softmax.figure1", "--cols", "200", "--json", "--programs")
    assert all(phase["program"] for step in json.loads(out)["steps"] for phase in step["phases"])
    listed, text = json.loads(call("list", "--json")[1]), call("list")[1]
    assert set(listed) == {"operators", "presets", "templates", "primitives"}
    for entry in (entry for entries in listed.values() for entry in entries):
        assert f"  {entry['name']}" in text


def test_run_prints_json_for_scripts(call):
    status, out, _ = call("run", *CAUSAL, "--json")
    found = json.loads(out)
    assert (status, found["ok"], found["operator"]) == (0, True, "attention_causal")
    assert found["error"] <= found["tolerance"] == 1e-3
    assert found["kernels"][0]["name"] == "attention_causal_kernel"
    status, out, _ = call("run", *CAUSAL, "--json", "--tolerance", "1e-9")
    assert (status, json.loads(out)["ok"]) == (1, False)


@pytest.mark.nightly
def test_traffic_and_resources_are_printed_as_json(call):
    status, out, _ = call("compile", *CAUSAL, "--emit", "traffic", "--target", "a100", "--json")
    found = json.loads(out)
    assert (status, found["target"], found["forms"][0]["name"]) == (0, "a100", "definition")
    status, out, _ = call("compile", *CAUSAL, "--emit", "resources", "--target", "sm_80", "--json")
    (kernel,) = json.loads(out)["kernels"]
    assert status == 0
    assert kernel["registers"] > 0
    assert kernel["occupancy"]["blocks"] > 0
    status, _, err = call("compile", *CAUSAL, "--emit", "loops", "--json")
    assert status == 2
    assert "--json is for traffic and resources, not for --emit loops" in err


def test_presets_compile_and_run(call):
    small = ["--seq", "24", "--heads", "4", "--kv-heads", "2", "--head-dim", "16"]
    status, out, _ = call("run", "gqa_pf", *small, "--dtype", "bfloat16", "--return-lse")
    assert status == 0
    assert "relative to float64 (within 0.008)" in out
    status, out, _ = call("compile", "window_pf", *small, "--window", "5", "--emit", "definition")
    assert status == 0
    assert "k[b, h // 2, j, d]" in out
    status, out, _ = call("compile", "s4", "--emit", "definition")
    assert "for j in range(256)" in out


def test_run_fails_where_the_error_is_too_large(call):
    status, out, _ = call("run", *CAUSAL, "--tolerance", "1e-9")
    assert status == 1
    assert "ABOVE" in out


def test_list_and_env(call):
    _, out, _ = call("list")
    for name in (
        "attention.causal",
        "attention.alibi",
        "window_pf",
        "s9",
        "softmax.figure1",
        "rolling_update",
        "split_k_update",
        "retire_tags",
        "split",
    ):
        assert name in out
    _, out, _ = call("env", "--json")
    assert {"versions", "device"} == set(json.loads(out))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", "attention.causl"], "there is no operator 'attention.causl'"),
        (["compile", "attention.causal", "--rows", "3"], "has no option --rows"),
        (["compile", "attention.general", "--heads", "3"], "attention.general needs --batch"),
        (["compile", *CAUSAL, "--template", "rollin"], "did you mean 'rolling_update'"),
        (["compile", *CAUSAL, "--emit", "cubin"], "cubin"),
        (["compile", *CAUSAL, "--emit", "htile", "--target", "sm_80"], "not for --emit htile"),
        (["compile", *CAUSAL, "--emit", "sass", "--target", "sm_35"], "expected an architecture"),
        (["compile", *CAUSAL, "--heads", "0"], "--heads"),
        (["compile", *CAUSAL, "--heads", "two"], "'two'"),
        (["compile", *CAUSAL, "--dtype", "int8"], "int8"),
        (["compil"], "Did you mean 'compile'?; help: neptune-lab --help lists the commands"),
        (["compile", *CAUSAL, "--sqe", "3"], "help: neptune-lab compile --help lists the arguments"),
        (["compile", "attention.causl"], "help: did you mean 'attention.causal'?"),
        (["frobnicate"], "frobnicate"),
        (["run"], "OPERATOR"),
    ],
)
def test_bad_arguments_are_one_clear_line_and_exit_2(call, arguments, message):
    status, out, err = call(*arguments)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("neptune-lab: ")
    assert "; help: " in err


def test_without_a_command_the_commands_are_listed(call):
    status, out, err = call()
    assert (status, err) == (0, "")
    assert "\n  compile " in out
    assert call("--version") == (0, f"neptune_lab {neptune_lab.__version__}\n", "")


def test_the_package_runs_as_a_module():
    found = subprocess.run([sys.executable, "-m", "neptune_lab", "--help"], capture_output=True, text=True, check=True)
    assert "compile" in found.stdout
