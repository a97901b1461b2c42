"""Public functions refuse arguments of a wrong type with an error of ours that names the argument."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab import cli, records, repair, trace
from neptune_lab.errors import DefinitionError, NeptuneError
from neptune_lab.operators import attention, backward, rows, softmax, training
from neptune_lab.runtime import bundle


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoEq:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __repr__(self) -> str:
        return "NoEq()"


# No argument below takes any of these.
WRONG: tuple[Any, ...] = (
    3.5, math.nan, 10**400, b"x", object, NoRepr(), NoEq(), [4], {4: 4}, [[[]]], np.array(4), np.array([1, 2]),
    torch.tensor(4), torch.tensor([1, 2]), 4 + 0j, range(3),
)  # fmt: skip


def figure1() -> nl.Schedule:
    sch = nl.Schedule(softmax.figure1(4, 8))
    sch.split("s_max.j", (None, 4))
    return sch


OP = softmax.figure1(4, 8)
Q = torch.zeros(1, 1, 4, 8)
CALLS: dict[str, Callable[[Any], object]] = {
    "reducer": lambda x: repair.solve(x, "exp(c - r)", "r"),
    "producers": lambda x: repair.solve("sum", "exp(c - r)", x),
    "assumptions": lambda x: repair.solve("sum", "exp(c - r)", "r", assumptions=x),
    "constants": lambda x: repair.solve("sum", "exp(c - r)", "r", constants=x),
    "solver's producers": lambda x: nl.solver(producers=x),
    "solver's g": nl.solver,
    "program of bisect": nl.bisect,
    "op of best": records.best,
    "device of best": lambda x: records.best(OP, x),
    "store of best": lambda x: records.best(OP, "NVIDIA H200", store=x),
    "path of Store": records.Store,
    "record of put": lambda x: records.Store("x.sqlite").put(x),
    "workload of find": lambda x: records.Store("x.sqlite").find(workload=x),
    "records of export": lambda x: records.Store("x.sqlite").export("x.json", x),
    "store of tune": lambda x: nl.tune(OP, store=x),
    "name of from_torch": lambda x: nl.from_torch(torch.neg, torch.zeros(4), name=x),
    "wrt": lambda x: backward(rows.softmax(4, 8), x),
    "keep": lambda x: backward(rows.softmax(4, 8), keep=x),
    "grouped": lambda x: training(rows.softmax(4, 8), grouped=x),
    "heads": lambda x: attention.general(1, x, 4, 4, 8, kv_heads=1),
    "preset": attention.preset,
    "weights_dtype": lambda x: nl.attention(Q, Q, Q, weights_dtype=x),
    "dropout_p": lambda x: nl.scaled_dot_product_attention(Q, Q, Q, dropout_p=x),
    "links": trace.links,
    "back_to": lambda x: figure1().back_to(x),
    "adopt": lambda x: figure1().adopt(x),
    "name of fuse": lambda x: figure1().fuse("s_exp", "i", "j", name=x),
    "proved": lambda x: figure1().rolling_update("s_sum", "s_max.j0", proved=x),
    "factors": lambda x: figure1().split("s_max.i", x),
    "steps": lambda x: nl.Schedule.replay(OP, x),
}


@pytest.mark.parametrize("argument", CALLS)
def test_an_argument_of_a_wrong_type_is_refused(argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    for value in WRONG:
        with pytest.raises(NeptuneError) as refused:
            CALLS[argument](value)
        assert str(refused.value).strip()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["repetitions", "warmup", "flush_l2", "against"])
def test_timing_refuses_wrong_arguments(name: str) -> None:
    kernel = nl.compile(OP, validate="none")
    for value in (None, math.nan, "x", [4]):
        with pytest.raises(NeptuneError):
            nl.time(kernel, **dict[str, Any]({name: value}))


def test_bisect_refuses_inputs_and_references_that_do_not_fit() -> None:
    kernel = nl.compile(OP, block_q=4, block_kv=4, validate="none")
    with pytest.raises(NeptuneError, match="inputs=True: expected an array for each input"):
        nl.bisect(kernel, inputs=True)  # type: ignore[arg-type]
    with pytest.raises(NeptuneError, match=r"returns arrays of shapes \[\(\)\]; expected"):
        nl.bisect(kernel, lambda x: 1)


def test_a_wrong_name_of_a_producer_is_refused() -> None:
    with pytest.raises(NeptuneError, match="a producer is 'r1, r2', which is no name"):
        repair.solve("sum", "exp(c - r1)/r2", "r1, r2")


def test_errors_print_no_control_characters() -> None:
    error = DefinitionError("no \x1b[2J here", help="nor\x00there")
    assert str(error) == "no \\x1b[2J here\n  help: nor\\x00there"


def test_copies_of_schedules_and_kernels_are_independent() -> None:
    sch = figure1()
    for made in (copy.copy(sch), copy.deepcopy(sch)):
        made.undo()
        assert (len(made.steps), len(sch.steps)) == (0, 1)
    kernel = nl.compile(OP, validate="none")
    assert copy.copy(kernel) is copy.deepcopy(kernel) is kernel


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("compile softmax.figure1 -O num_warps=--4", "num_warps='--4', expected a power of two"),
        ("compile softmax.figure1 -O num_warps=²", "num_warps='²', expected a power of two"),
        ("compile softmax.figure1 -O num_warps=4 -O num_warps=8", "num_warps is given twice"),
        ("compile softmax.figure1 -O block_q=4 --block-q 8", "block_q is given twice"),
        ("compile softmax.figure1 --template rolling", "--template: there is no template 'rolling'"),
        ("compile softmax.figure1 --emit foo", "'--emit': 'foo' is not one of"),
        ("bundle causal_pf:seq=16,seq=32 -o b", "seq is given twice"),
        ("bench --tiny --seed 3", "--seed, --tune-drawn and --peer-limit are for --drawn"),
        ("bench --tiny --results x.json", "--results is for --report"),
    ],
)
def test_commands_refuse_options_that_they_would_ignore(
    command: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["neptune-lab", *command.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--gpus=a", "--gpus=-1", "--gpus=0,0", "--gpus=", "--jobs=-2"])
def test_the_runner_of_a_bundle_refuses_numbers_in_one_line(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bundle.main(Path(), [given])
    assert ended.value.code == 2
    assert "error: argument --" in capsys.readouterr().err
