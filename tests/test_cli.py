"""The command line, as a person calls it."""

from __future__ import annotations

import json
import sys

import pytest

from neptune_lab.cli import main

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


@pytest.mark.parametrize(
    ("emit", "expected"),
    [
        ("definition", "s_max[b, h, i] = max(score[b, h, i, j] for j in range(32))"),
        ("loops", "# s_max"),
        ("htile", "kernel attention_causal  grid"),
        ("outline", "loads    q[b, h, "),
        ("triton", "@triton.jit"),
        ("trace", '"schema":2'),
    ],
)
def test_compile_emits_each_stage(call, emit, expected):
    status, out, err = call("compile", *CAUSAL, "--emit", emit)
    assert (status, err) == (0, "")
    assert expected in out


def test_the_trace_says_how_to_make_it_again(call, tmp_path):
    path = tmp_path / "trace.json"
    assert call("compile", *CAUSAL, "--emit", "trace", "-o", str(path))[:2] == (0, "")
    assert json.loads(path.read_text(encoding="utf-8"))["command"].startswith("neptune-lab compile attention.causal")


def test_templates_and_tiles(call):
    status, out, _ = call("compile", *CAUSAL, "--template", "split_k_update", "--block-kv", "16")
    assert status == 0
    assert "attention_causal_combine" in out


def test_explain_tells_the_derivation(call):
    status, out, _ = call("explain", "softmax.figure1", "--cols", "200")
    assert status == 0
    for text in ("wrong on purpose", "Prove Eq. 3", "Prove Eq. 4", "h is additive in t", "equals the definition"):
        assert text in out


def test_run_prints_the_error(call):
    status, out, _ = call("run", *CAUSAL)
    assert status == 0
    assert "relative to float64 (within 0.001)" in out


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", "attention.causl"], "there is no operator 'attention.causl'"),
        (["compile", "attention.causal", "--rows", "3"], "has no option --rows"),
        (["compile", "attention.general", "--heads", "3"], "attention.general needs --batch"),
        (["compile", *CAUSAL, "--template", "rollin"], "did you mean 'rolling_update'"),
        (["compile", *CAUSAL, "--emit", "ptx"], "ptx"),
        (["compile", *CAUSAL, "--heads", "0"], "--heads"),
        (["compile", *CAUSAL, "--dtype", "int8"], "int8"),
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
