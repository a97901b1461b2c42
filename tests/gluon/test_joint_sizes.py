"""One kernel of both nests of a backward pass for all lengths: numbers, simulated, and which programs are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import neptune_lab as nl
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.sizes import at, generalized
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.by_sizes import joint_by_sizes
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.operators import Operator, attention, training
from neptune_lab.pipeline import joint
from neptune_lab.pipeline.for_sizes import compile_for_sizes
from neptune_lab.pipeline.joint import QUERIES
from neptune_lab.pytorch.length_plans import Plan
from neptune_lab.pytorch.length_training import _joint
from neptune_lab.target import Target

KINDS = {
    "causal": attention.causal,
    "full": attention.full,
    "window": lambda *sizes, **more: attention.window(*sizes, window=200, **more),
    "soft cap": lambda *sizes, **more: attention.softcap(*sizes, cap=2.0, **more),
}
SAMPLES = (900, 1100, 1500, 2200)


def backward(kind: str, width: int, heads: int, sample: Mapping[str, int], dtype: str = "float16") -> Operator:
    return training(KINDS[kind](1, heads, sample["n"], width, dtype=dtype), ("q", "k", "v")).backward


def for_all(kind: str, width: int, code: nl.CodeOptions, dtype: str = "float16") -> nl.Kernel:
    def make(heads: int) -> Any:
        return lambda sample, **_: backward(kind, width, heads, sample, dtype)

    return compile_for_sizes(
        make(4),
        {"n": "both"},
        {"n": 4096},
        template="rolling_update",
        config=nl.TileConfig(block_q=128, block_kv=QUERIES[width]),
        code=code,
        small=make(1),
        several=make(2),
        target=Target.known("h100"),
        shown=False,
        farthest=512,
    )


@cache
def programs() -> tuple[ir.Program, ...]:
    config = nl.TileConfig(block_q=128, block_kv=128)

    def program(length: int) -> ir.Program:
        op = backward("causal", 64, 1, {"n": length})
        return nl.compile(op, "rolling_update", config=config, target="h100", validate="none").htile

    return tuple(map(program, SAMPLES))


def sized(change: Any = lambda program: program) -> ir.Program:
    return generalized(list(map(change, programs())), [{"n": n} for n in SAMPLES], [128])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "width", "dtype", "deterministic"),
    [("causal", 128, "bfloat16", True), ("causal", 64, "float16", False), ("full", 128, "float16", False),
     ("full", 64, "bfloat16", True), ("window", 64, "float16", True), ("window", 64, "float16", False),
     ("soft cap", 128, "float16", True)],
)  # fmt: skip
def test_one_kernel_for_all_lengths(kind: str, width: int, dtype: str, deterministic: bool):
    """It is simulated at lengths of every kind, and compared with the definition."""
    kernel = for_all(kind, width, nl.CodeOptions(code="gluon", joint=True, deterministic=deterministic), dtype)
    assert kernel.least == {"n": 128}
    assert "_adder" in kernel.source
    assert ("_heads_in_order" in kernel.source) == deterministic
    assert "Gluon" in str(kernel.validated)


@pytest.mark.nightly
def test_the_nests_of_all_lengths_are_those_of_each():
    program = sized()
    found = joint_by_sizes(program)
    assert found.queries == found.keys == ir.Name("n")
    for length in (128, 257, 1000):
        own = joint_of(at(program, {"n": length}))
        assert (own.row, own.in_turn, own.from_first) == (found.row, found.in_turn, found.from_first)
    total = joined(program, in_order=True)
    assert total.program.tensor(total.total).sizes == (ir.Int(1), ir.Int(1), ir.Name("n"), ir.Int(64))


@pytest.mark.nightly
def test_nests_have_to_be_one_kernel_at_every_length():
    """From 500 positions on, a nest leaves out the first tile of each row block."""
    program = sized()
    kernel = joint_by_sizes(program).kernel
    loop = next(stmt for stmt in kernel.body if isinstance(stmt, ir.For))
    far = ir.Arith("min", ir.Arith("//", ir.Name("n"), ir.Int(500)), ir.Int(1))
    later = replace(loop, start=ir.Arith("+", loop.start, far))
    body = tuple(later if stmt is loop else stmt for stmt in kernel.body)
    changed = replace(kernel, body=body)
    program = replace(program, kernels=tuple(changed if k is kernel else k for k in program.kernels))
    assert joint_of(at(program, {"n": 256})).value
    with pytest.raises(UnsupportedKernel, match=r"at n = 511, .*does not visit all pairs"):
        joint_by_sizes(program)


def test_short_lengths_and_two_lengths_have_kernels_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Target, "current", lambda otherwise=None: Target.known("h100"))
    monkeypatch.setattr(joint, "FASTER_FOR_LENGTHS", {key: {128} for key in (True, False)})
    op = backward("causal", 128, 1, {"n": 4096})
    long = Plan("n", "n", (), long=True)
    for deterministic in (True, False):
        choice = _joint(op, long, deterministic=deterministic)
        assert choice is not None
        assert (choice.code.joint, choice.code.deterministic) == (True, deterministic)
        assert _joint(op, replace(long, long=False), deterministic=deterministic) is None
        assert _joint(op, replace(long, q="m"), deterministic=deterministic) is None
