"""Stages that each read the one before twice: as a tree, the last term has 2^30 nodes, of which about 60 differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.loop_ir.nodes import Expr, Load, Op, Var
from neptune_lab.loop_ir.walks import distinct_reads, substitute, transform, walk_once
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_to_repair.evaluate import compute, leaves

STAGES = 30


def doubled(name: str, index: str = "i") -> Expr:
    """x + x / 2, again and again."""
    found: Expr = Load(name, (Var(index),))
    for _ in range(STAGES):
        found = Op("add", (found, Op("half", (found,))))
    return found


def test_expressions_are_compared_and_rewritten_by_the_nodes_that_differ():
    x = doubled("x")
    assert x == doubled("x")
    assert x != doubled("y")
    assert len(list(walk_once(x))) == 2 * STAGES + 2
    assert distinct_reads(x) == (Load("x", (Var("i"),)),)
    renamed = transform(x, lambda e: Load("y", e.indices) if isinstance(e, Load) else e)
    assert renamed == doubled("y")
    assert substitute(x, {"i": Var("j")}) == doubled("x", "j")
    assert substitute(x, {"j": Var("i")}) is x


def test_an_expression_is_evaluated_by_the_nodes_that_differ():
    one = transform(doubled("x"), lambda e: Op("mul", (e.args[0], e.args[0])) if isinstance(e, Op) else e)
    (leaf,) = leaves(one)
    assert leaves(one, {one}) == []
    assert compute(one, {leaf: np.array([1.0, -1.0])}).tolist() == [1.0, 1.0]


@pytest.mark.nightly
def test_a_reduction_is_repaired_before_and_behind_such_a_chain():
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(STAGES):
            x = x + torch.sin(x)
        return x

    def before(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(chain(x), -1)

    def behind(x: torch.Tensor) -> torch.Tensor:
        return chain(torch.softmax(x, -1))

    for function in (before, behind):
        sch = Schedule(nl.from_torch(function, torch.zeros(2, 4)))
        sch.rolling_update("softmax_sum", "softmax_max.j")
        derivations = [phase.derivation for phase in sch.phases if phase.derivation is not None]
        assert [d.as_record()["h"] for d in derivations] == ["t*exp(softmax_max - softmax_max')"]
