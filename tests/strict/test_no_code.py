"""Data never becomes code: options from records, a command line or Python, names of a program, emitted modules.

Each payload would write a file if Python ran it; every test looks for that file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import by_name
import pytest
import torch

import neptune_lab as nl
from neptune_lab import records
from neptune_lab.choice import CodeOptions
from neptune_lab.cli import main
from neptune_lab.errors import EmitError, MeasureError, ScheduleError, TileError
from neptune_lab.htile.nodes import For, Literal, Program, Store
from neptune_lab.htile_to_gluon import GluonOptions
from neptune_lab.htile_to_triton import EmitOptions, emit
from neptune_lab.operators import attention
from neptune_lab.records import Record, workload_key
from neptune_lab.runtime import device_facts
from neptune_lab.strict.emitted import ADD_OUT, check_emitted
from neptune_lab.target import Target

SIZES = {"heads": 2, "seq": 32, "head_dim": 16}
TILES = {"block_q": 16, "block_kv": 16}


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that must not appear, and an empty cache."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "canary"


def statements(path: Path) -> str:
    return f"import pathlib\npathlib.Path({str(path)!r}).touch()\n"


def payloads(path: Path) -> dict[str, str]:
    """Texts that become code if they are written into a loop, a call, a docstring or a comment."""
    call = f"__import__('pathlib').Path({str(path)!r}).touch()"
    return {
        "expression": call,
        "statement in a loop": f"1):\n        pass\n{statements(path)}def _f():\n    for _ in range(1",
        "statement in a call": f"1)\n{statements(path)}(1",
        "docstring": f'x"""\n{statements(path)}"""',
        "comment": f"x\n{statements(path)}",
    }


KINDS = tuple(payloads(Path()))
OPTIONS = (
    "loads", "tanh", "loop_stages", "dependent_launch", "combine", "interleave", "hidden_tiles", "rounded_weights",
    "disable_passes", "code", "ring_stages", "ping_pong", "tie", "persistent", "ahead", "heads_together",
    "deterministic", "one_consumer",
    "block_q", "block_kv", "block_out", "splits", "num_warps", "num_stages", "pad_rows", "multiprocessors",
    "target", "tuned", "op", "template", "x\nimport os",
)  # fmt: skip


def record_of(op, /, **options) -> Record:
    """A record whose choice is set behind the back of the reader, which would refuse it."""
    made = Record(
        workload=workload_key(op),
        operator=op.name,
        params=op.params,
        device=device_facts().name,
        capability="",
        torch=device_facts().torch,
        triton=device_facts().triton,
        source="aaaa",
        candidate={"template": "rolling_update", "options": TILES},
        cold=False,
        us=1.0,
    )
    object.__setattr__(made, "candidate", {"template": "rolling_update", "options": {**TILES, **options}})
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_code_cannot_be_read(canary, kind):
    text = payloads(canary)[kind]
    made = record_of(attention.causal(**SIZES))
    for options in ({"loop_stages": text}, {text: 1}, {"splits": [text]}, {"loads": "f()"}):
        with pytest.raises(MeasureError, match=r"record\.candidate\.options"):
            Record.from_json({**made.to_json(), "candidate": {"template": "rolling_update", "options": options}})
    assert not canary.exists()


@pytest.mark.one_in(18)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_record_runs_no_code(canary, monkeypatch, option):
    """The record is put into the program as if a store had handed it out, so every check behind the reader is tried."""
    op = attention.causal(**SIZES)
    right: set[str] = set()  # equal sources have equal numbers
    for text in payloads(canary).values():
        monkeypatch.setattr(records, "nearest", lambda *_, text=text, **__: record_of(op, **{option: text}))
        kernel = nl.compile(op, tuned=True)
        assert kernel.source in right or kernel.relative_error() < 1e-2
        right.add(kernel.source)
        assert text not in kernel.source
    assert not canary.exists()


@pytest.mark.nightly
def test_a_record_runs_no_code_in_attention(canary, monkeypatch):
    q = torch.randn(1, 2, 32, 16, dtype=torch.float16)
    calls = []
    for n, text in enumerate(payloads(canary).values()):
        choice = record_of(attention.causal(**SIZES), loop_stages=text)
        monkeypatch.setattr(records, "best", lambda *_, choice=choice, **__: calls.append(1) or choice)
        with pytest.warns(UserWarning, match="the tuned kernel cannot be compiled.*loop_stages="):
            nl.attention(q, q, q, scale=0.5 + n)
    assert calls
    assert not canary.exists()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_runs_no_code(canary, monkeypatch, capsys, kind):
    sizes = ["--heads", "2", "--seq", "32", "--head-dim", "16", "--block-q", "16", "--block-kv", "16"]
    for name in ("loop_stages", "num_stages", "loads", "disable_passes", "op", "target", "tuned"):
        option = f"{name}={payloads(canary)[kind]}"
        monkeypatch.setattr(sys, "argv", ["neptune-lab", "run", "attention.causal", *sizes, "-O", option])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert name in said
        assert "Traceback" not in said
    assert not canary.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [EmitOptions, CodeOptions, GluonOptions])
def test_no_options_with_text_exist(canary, kind, options):
    fields = [name for name in options.__dataclass_fields__ if name != "emit"]
    for name in fields:
        for value in (payloads(canary)[kind], [1], 1.5, 10**400, b"1", float("nan")):
            with pytest.raises((EmitError, ScheduleError), match=name):
                options(**{name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_closed(canary, kind):
    text = payloads(canary)[kind]
    for arguments in (
        (text,),
        ("cuda", text),
        ("cuda", (9, text)),
        ("cuda", (True, 0)),
        ("hip", (9, 0)),
        ("cuda", (9,)),
    ):
        with pytest.raises(EmitError):
            Target(*arguments)


def tiles() -> Program:
    return by_name.compile(attention.causal(**SIZES), "rolling_update", **TILES).htile


def with_body(program: Program, change) -> Program:
    def body(stmts):
        return tuple(replace(s, body=body(s.body)) if isinstance(s, For) else s for s in map(change, stmts))

    return replace(program, kernels=tuple(replace(k, body=body(k.body)) for k in program.kernels))


def with_kernel(program: Program, **changes) -> Program:
    return replace(program, kernels=tuple(replace(k, **changes) for k in program.kernels))


def for_loops(**changes):
    return lambda stmt: replace(stmt, **changes) if isinstance(stmt, For) else stmt


def for_stores(**changes):
    return lambda stmt: replace(stmt, **changes) if isinstance(stmt, Store) else stmt


def with_literal(program: Program, text: str) -> Program:
    def change(stmt):
        if isinstance(stmt, Store) and isinstance(stmt.value, Literal):
            return replace(stmt, value=replace(stmt.value, value=text))
        return stmt

    return with_body(program, change)


SPELLINGS = {
    "program": lambda p, text: replace(p, name=text),
    "kernel": lambda p, text: with_kernel(p, name=text),
    "num_warps": lambda p, text: with_kernel(p, num_warps=text),
    "num_stages": lambda p, text: with_kernel(p, num_stages=text),
    "origin of a store": lambda p, text: with_body(p, for_stores(origin=text)),
    "origin of a loop": lambda p, text: with_body(p, for_loops(origin=text)),
    "part of a loop": lambda p, text: with_body(p, for_loops(part=text)),
    "literal": with_literal,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", SPELLINGS)
def test_names_and_numbers_of_a_program_are_checked_before_they_are_written(canary, place):
    program = tiles()
    for text in payloads(canary).values():
        changed = SPELLINGS[place](program, text)
        assert changed != program
        with pytest.raises((TileError, EmitError)):
            emit(changed)


GOOD = "import torch\nimport triton\nimport triton.language as tl\n\n\n{}\n"
BAD = {
    "an import": "import os",
    "an import by another name": "import triton.language as torch",
    "a part of torch": "def f(q):\n    return torch.load(q)",
    "a part of triton": "def f(q):\n    return triton.os.system(q)",
    "a module behind the language": "def f(q):\n    return tl.core.os.system(q)",
    "a builtin": "def f(q):\n    return eval(q)",
    "a private attribute": "def f(q):\n    return q.__class__",
    "a private attribute of a call": "def f(q):\n    return f(q).__globals__",
    "an import in a function": "def f(q):\n    import os",
    "a call at the top": "f(1)",
    "a loop at the top": "for x in [1]:\n    pass",
    "a default": "def f(q, r=torch.load('x')):\n    return q",
    "a decorator": "@torch.load\ndef f(q):\n    return q",
    "a class": "class A:\n    pass",
    "a lambda": "f = lambda: 1",
    "a comprehension": "def f(q):\n    return [x for x in q]",
    "a walrus": "def f(q):\n    return (x := q)",
    "a module under another name": "def f(q):\n    torch = q\n    return torch.load",
    "no Python": "def f(",
    "NUL": "def f(q):\n    return '\0'",
    "deep": "x = " + "(" * 5000 + "1" + ")" * 5000,
}


@pytest.mark.parametrize("what", BAD)
def test_modules_that_no_emitter_writes_are_refused(what):
    check_emitted(
        GOOD.format("def f(q):\n    return torch.empty((1,), dtype=torch.float16, device=q.device)"), EmitError
    )
    with pytest.raises(EmitError, match="an emitted module"):
        check_emitted(GOOD.format(BAD[what]), EmitError)


INSIDE = (
    "from triton._C.libtriton import ir as compiler_ir\nfrom triton.experimental.gluon.language._core import builtin\n"
)


def test_only_a_known_function_reaches_into_the_compiler_of_triton():
    module = GOOD.format(f"{INSIDE}\n\n{ADD_OUT}")
    check_emitted(module, EmitError)
    for old, new in (
        ("rows.handle", "rows.__class__"),
        ("_add_out", "_another"),
        ("    at = ", "    compiler_ir.anything()\n    at = "),
    ):
        with pytest.raises(EmitError, match="an emitted module"):
            check_emitted(module.replace(old, new), EmitError)
    for text in ("def f(q):\n    return compiler_ir", "def f(q):\n    return builtin(q)", "x = builtin"):
        with pytest.raises(EmitError, match="the name"):
            check_emitted(GOOD.format(f"{INSIDE}\n\n{text}"), EmitError)
    for text in ("from triton._C.libtriton import ir", "from triton._C.libtriton import passes as compiler_ir"):
        with pytest.raises(EmitError, match="an import"):
            check_emitted(GOOD.format(text), EmitError)
