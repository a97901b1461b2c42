"""Every public function refuses what is not its argument, with one of our errors that names it."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.cli import main
from neptune_lab.errors import DefinitionError, LaunchError, NeptuneError, ScheduleError, TuneError
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import OPERATORS, attention, find, softmax
from neptune_lab.strict.console import printable
from neptune_lab.tuning.workers import local

OP = softmax.figure1(4, 8)
WRONG = (
    None, True, -1, 0, 1.5, float("nan"), float("inf"), 2**31, 10**400, "", "no", "\0", b"x", [], {}, (), object(), [1],
    np.float64(2.0), np.zeros(3),
)  # fmt: skip
Q = torch.randn(1, 2, 16, 16, dtype=torch.float16)


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(OP)


def scheduled() -> Schedule:
    sch = Schedule(OP)
    sch.split("s_max.j", (None, 4))
    return sch


ENTRANCES = {
    **{
        f"compile({name}=)": lambda v, name=name: nl.compile(OP, **{name: v})
        for name in ("tuned", "target", "config", "code", "block_q", "block_kv", "disable_passes", "validate")
    },
    **{
        f"TileConfig({name}=)": lambda v, name=name: nl.compile(OP, config=nl.TileConfig(**{name: v}))
        for name in ("block_q", "block_out", "num_stages", "num_warps", "pad_rows", "multiprocessors")
    },
    "SplitKConfig(splits=)": lambda v: nl.SplitKConfig(splits=v),
    **{
        f"CodeOptions({name}=)": lambda v, name=name: nl.CodeOptions(**{name: v})
        for name in ("loads", "persistent", "disable_passes", "code", "interleave", "heads_together")
    },
    "compile(op)": nl.compile,
    "compile(template=)": lambda v: nl.compile(OP, v) if v is not None else nl.compile(v),
    **{
        f"tune({name}=)": lambda v, name=name: nl.tune(OP, **{"seconds": 0.01, "trials": 1, "progress": False, name: v})
        for name in ("seconds", "trials", "scheduler", "gpus", "cold", "seed")
    },
    "tune(op)": nl.tune,
    "load_trace": nl.load_trace,
    "Schedule.replay": lambda v: Schedule.replay(OP, v),
    "Schedule.check(seed=)": lambda v: scheduled().check(seed=v),
    "Schedule.check(tolerance=)": lambda v: scheduled().check(tolerance=v),
    "Schedule.run": lambda v: scheduled().run(inp=v),
    "Schedule.tag_table": lambda v: scheduled().tag_table(v),
    "Schedule.tag_table(phase=)": lambda v: scheduled().tag_table("j0", phase=v),
    "Schedule.tag_table(inputs=)": lambda v: scheduled().tag_table("j0", inputs=v),
    "Schedule.tag_table(where=)": lambda v: scheduled().tag_table("j0", where=v),
    "Schedule.loops": lambda v: scheduled().loops(v),
    "Schedule.apply": lambda v: scheduled().apply(v),
    "Operator.reference": OP.reference,
    "Operator.random_inputs": OP.random_inputs,
    "find": find,
    "attention(enable_gqa=)": lambda v: nl.attention(Q, Q, Q, enable_gqa=v),
    "attention(scale=)": lambda v: nl.attention(Q, Q, Q, scale=v),
    "time": nl.time,
}  # fmt: skip


@pytest.mark.one_in(9)
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_wrong_arguments_are_refused_by_us(entrance, monkeypatch, tmp_path):
    """Some of the values are right for some of the arguments; none may raise anything but our errors."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    refused = 0
    for value in WRONG:
        found: NeptuneError | None = None
        try:
            ENTRANCES[entrance](value)
        except NeptuneError as error:
            found = error
        refused += found is not None
        assert len(str(found)) < 1500, "a value is shown whole"
    assert refused > len(WRONG) // 2


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_refuse_wrong_arguments(name):
    import inspect

    sizes = {"batch": 1, "heads": 2, "q_len": 16, "kv_len": 16, "head_dim": 16} if name == "attention.general" else {}
    sizes |= {"seq": 16} if name.startswith("attention") and not sizes else {}
    make = OPERATORS[name]
    for argument in inspect.signature(make).parameters:
        if argument in ("live", "score_mod", "mask_mod"):
            continue
        refused = 0
        for value in WRONG:
            try:
                make(**{**sizes, argument: value})
            except DefinitionError:
                refused += 1
        assert refused > len(WRONG) // 2, argument


def test_a_kernels_entrances(kernel):
    seeds = [v for v in WRONG if type(v) is int and 0 <= v < 2**63]
    names = [v for v in WRONG if v is None or (isinstance(v, str) and v.isidentifier())]
    for act, right in ((kernel.relative_error, seeds), (kernel.as_torch_op, names), (kernel, []), (kernel.export, [])):
        for value in WRONG:
            if any(value is r for r in right) or (act == kernel.export and isinstance(value, str)):
                continue
            with pytest.raises(NeptuneError):
                act(value)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: nl.compile(OP, target="sm90"), NeptuneError, r"target='sm90': expected a Target(.|\n)*.*\(9, 0\)"),
        (lambda: nl.CodeOptions(persistent="no"), NeptuneError, "persistent='no': expected True or False"),
        (lambda: nl.TileConfig(num_stages=10**9), ScheduleError, "num_stages=1000000000, .* of at most 16"),
        (lambda: nl.attention(Q, Q, Q, enable_gqa="no"), LaunchError, "enable_gqa='no': expected True or False"),
        (lambda: nl.tune(OP, gpus=[-1]), TuneError, r"gpus=\[-1\]: expected the numbers of GPUs from 0 on"),
        (lambda: local([0, 0]), TuneError, r"gpus=\[0, 0\]: .*each once"),
        (lambda: attention.causal(seq=2**31), DefinitionError, "seq=2147483648: expected at most 2147483647"),
        (lambda: attention.causal(heads=2**20, seq=2**20), DefinitionError, "more than 1099511627776 elements"),
        (lambda: attention.causal(seq=10**400), DefinitionError, "seq=an integer of 1329 bits"),
        (lambda: attention.gqa(seq=16, causal="no"), DefinitionError, "causal='no': expected True or False"),
        (lambda: attention.causal(sequence=16), DefinitionError, "'sequence'(.|\n)*did you mean 'seq'"),
        (lambda: OP.at(n=3), DefinitionError, r'no size \'n\'(.|\n)*nl.dim\("n"\)'),
        (lambda: nl.operators.backward(5), DefinitionError, "expected an operator, got 5"),  # type: ignore[arg-type]
        (lambda: nl.templates.rolling_update(OP), ScheduleError, "takes a Schedule, got"),  # type: ignore[arg-type]
        (lambda: OP.random_inputs(-1), DefinitionError, "seed=-1: expected an integer from 0"),
    ],
)  # fmt: skip
def test_the_message_names_the_argument_the_value_and_what_is_allowed(act, error, message):
    with pytest.raises(error, match=message):
        act()


# -- the command line -------------------------------------------------------------------------------------------------

SMALL = ["softmax.figure1", "--cols", "8"]
COMMANDS = {
    "an option of compile's own": (["compile", *SMALL, "-O", "what=1"], "there is no option 'what'"),
    "an option that runs no template": (["compile", *SMALL, "-O", "tuned=true"], "there is no option 'tuned'"),
    "a tolerance that is none": (["run", *SMALL, "--tolerance", "nan"], "--tolerance=nan: expected a positive"),
    "a negative tolerance": (["run", *SMALL, "--tolerance", "-1"], "--tolerance=-1.0: expected a positive"),
    "a tolerance of text": (["run", *SMALL, "--tolerance", "abc"], "--tolerance"),
    "a negative seed": (["run", *SMALL, "--seed", "-1"], "--seed"),
    "a huge seed": (["run", *SMALL, "--seed", str(10**30)], "seed="),
    "a huge size": (["compile", "softmax.figure1", "--cols", str(10**30)], "cols="),
    "a folder for a file": (["compile", *SMALL, "-o", "FOLDER"], "cannot write"),
    "no folder": (["compile", *SMALL, "-o", "FOLDER/none/x"], "cannot write"),
    "a file for a bundle": (["report", "FOLDER/a.txt"], "cannot read"),
    "no bundle": (["report", "FOLDER"], "cannot read"),
    "a folder for records": (["records", "--load", "FOLDER"], "cannot read"),
    "a folder for a database": (["records", "--records", "FOLDER"], "FOLDER"),
    "nothing to export": (
        ["records", "--records", "FOLDER/r.sqlite", "--export", "FOLDER/e.json"],
        "nothing to export",
    ),
    "a bad GPU": (["tune", *SMALL, "--gpus", "-1"], "gpus="),
    "no time": (["tune", *SMALL, "--seconds", "nan"], "seconds=nan"),
    "a folder for tensors": (["accuracy", "--inputs", "FOLDER/x.npz"], "no .npz file"),
    "an escape": (["compile", "\x1b[31mred"], "there is no operator"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_line_says_in_one_line_what_is_wrong(case, monkeypatch, capsys, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "x.npz").mkdir()
    arguments, message = (
        [a.replace("FOLDER", str(tmp_path)) for a in x] if isinstance(x, list) else x for x in COMMANDS[case]
    )
    monkeypatch.setattr(sys, "argv", ["neptune-lab", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert (stop.value.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert str(message).replace("FOLDER", str(tmp_path)) in said.err
    assert "; help: " in said.err
    assert printable(said.err) == said.err


def test_shipped_records_are_exported(monkeypatch, capsys, tmp_path):
    target = tmp_path / "e.json"
    arguments = ["records", "--records", str(tmp_path / "r.sqlite"), "--shipped", "--export", str(target)]
    monkeypatch.setattr(sys, "argv", ["neptune-lab", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert nl_records(target)


def nl_records(path: os.PathLike[str]) -> int:
    from neptune_lab.records import read

    return len(read(path))
