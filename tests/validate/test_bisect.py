"""Numeric bisection finds bugs of the compiler's own kinds at the statement and the element where numbers depart."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fuzz.battery import battery
from fuzz.find_mutants import in_a_copy
from fuzz.mutants import mutations

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.htile import nodes as ir
from neptune_lab.operators import attention, rows

ALL = {m.name: m for m in mutations()}

TRANSLATED = "the program of tiles as translated"
PARTITIONED = "the program of tiles after partition_masked_loops"
TRITON = "the emitted Triton"

# Mutation -> an operator of the battery, the first form that is wrong then, and the statement that departs there.
PLACES = {
    "accumulators": ("causal", TRITON, "acc = tl.dot("),
    "bounds_of_masks": ("a gap, remainder", TRANSLATED, "s_max_tile[b, h, i0*4:i0*4+4, j0] = reduce(max, score["),
    "dimensions_not_permuted": ("causal", TRANSLATED, "permute(k[b, h, j0*4:j0*4+4, 0:4], (0, 1))"),
    "ends_of_tensors": ("causal with remainders", TRITON, "q_tile = tl.load("),
    "exponents_overflow": ("bias", "the program of tiles after exponentials_to_base_two", "s_exp["),
    "folded_past_the_end": ("a gap, remainder", TRANSLATED, "s_max_tile[b, h, i0*4:i0*4+4, j0] = reduce(max, score["),
    "identity_of_reductions": ("causal", TRITON, "s_max_tile = _max(tl.where(in_4[None, :], score, 0.0)"),
    "lost_nan": ("largest and norm", TRITON, "y_max_chip = tl.maximum("),
    "no_infinities": (
        "softmax",
        "the loop program after rolling_update('s_sum', 's_max.j0')",
        "s_sum[i0 * 4 + i1] = (",
    ),
    "operand_past_the_end": ("a gap, remainder", TRANSLATED, "acc_tile[b, h, i0*4:i0*4+4, j0, 0:4] = dot("),
    "padding_in_loads": ("causal", TRITON, "q_tile = tl.load("),
    "padding_is_zero": ("causal", TRITON, "s_sum_tile = tl.sum(s_exp, axis=1)"),
    "partition_one_long": ("causal", PARTITIONED, "score[b, h, i0*4:i0*4+4, j0*4:j0*4+4] = qk["),
    "partition_one_short": ("causal", PARTITIONED, "s_max_0[b, h, i0*4:i0*4+4] = -inf"),
    "partition_true_too_far": ("causal", PARTITIONED, "score[b, h, i0*4:i0*4+4, j0*4:j0*4+4] = qk["),
    "partition_unions": ("two masks", PARTITIONED, "score[b, h, i0*4:i0*4+4, j0*4:j0*4+4] = qk["),
    "products_of_powers": ("powers", TRITON, "o_chip = tl.sum("),
    "split_repair_left_out": (
        "split",
        "the loop program after split_k_update('s_sum', 'qk.js')",
        "s_sum[b, h, i] += s_sum_local[b, h, i, j0]",
    ),
    "stale_tag": ("causal", "the loop program after retire_tags('s_max')", "s_sum[b, h, i0 * 4 + i1] = ( exp("),
    "start_of_a_maximum": ("causal with remainders", TRANSLATED, "s_max_tile[b, h, i0*4:i0*4+4, j0] = reduce( max"),
    "strides": ("causal with remainders", TRITON, "q_tile = tl.load("),
}

# One of each kind of place; the others are for the night.
DAILY = {"accumulators", "dimensions_not_permuted", "padding_in_loads", "partition_one_short", "stale_tag"}


@pytest.mark.one_in(6)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="planting needs fork")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in DAILY else [pytest.mark.nightly]) for n in PLACES])
def test_a_planted_bug_is_found_at_its_statement(name: str):
    operator, stage, statement = PLACES[name]

    def look() -> str:
        found = nl.bisect(battery(validate="none")[operator]())
        return "nothing" if found is None else f"{found.stage}\n{found.statement}\n{found}"

    said = in_a_copy(look, ALL[name])
    assert said.splitlines()[0] == stage, said
    assert statement in said.splitlines()[1], said


@pytest.fixture(scope="module")
def causal() -> nl.Kernel:
    return nl.compile(attention.causal(seq=12, head_dim=4), block_q=4, block_kv=4, validate="none")


def test_nothing_departs_in_a_right_kernel(causal: nl.Kernel):
    assert nl.bisect(causal) is None


def _one_more(program: ir.Program, name: str) -> ir.Program:
    """The program with 1 added to what it stores to a tensor, by the first store to it."""
    done = []

    def body(stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(changed(s) for s in stmts)

    def changed(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.For):
            return replace(stmt, body=body(stmt.body))
        if stmt.target.tensor == name and not done:
            done.append(stmt)
            return replace(stmt, value=ir.Elementwise("add", (stmt.value, ir.Literal(1.0, "float32")), "float32"))
        return stmt

    return replace(program, kernels=tuple(replace(k, body=body(k.body)) for k in program.kernels))


@pytest.mark.parametrize("tensor", ["s_sum_tile", "s_exp", "qk"])
def test_two_programs_of_tiles(causal: nl.Kernel, tensor: str):
    found = nl.bisect(_one_more(causal.htile, tensor), causal.htile)
    assert found is not None
    assert (found.stage, found.before, found.tensor) == ("the program", "the reference", tensor)
    assert found.found == pytest.approx(found.expected + 1)
    assert found.statement.startswith(f"{tensor}[")
    assert nl.bisect(causal.htile, causal.htile) is None


def test_two_loop_programs():
    scheduled = nl.compile(rows.softmax(4, 6), "rolling_update", block_kv=2, validate="none").schedule
    assert nl.bisect(scheduled.program, scheduled.definition) is None
    naive = next(p.program for a in scheduled.history for p in a.outcome.phases if p.wrong)
    found = nl.bisect(naive, scheduled.definition)
    assert found is not None
    assert found.tensor == "s_sum"
    assert found.statement.startswith("s_sum[")


def test_a_reference_of_ones_own(causal: nl.Kernel):
    def softmax_without_a_mask(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / 2
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v.astype(float)

    def causally(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / 2
        scores = np.where(np.tri(12) > 0, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v.astype(float)

    found = nl.bisect(causal, softmax_without_a_mask, causal.operator.random_inputs(0))
    assert found is not None
    assert found.stage == "the definition"
    assert found.element == (0, 0, 0, 0)  # the last row alone sees every key
    assert nl.bisect(causal, causally, causal.operator.random_inputs(0)) is None


@pytest.mark.nightly
def test_the_text_says_where_and_what():
    said = in_a_copy(partial(lambda: str(nl.bisect(battery(validate="none")["causal"]()))), ALL["partition_one_short"])
    assert said.splitlines()[0].endswith(
        "is the first form that is wrong; the program of tiles after drop_dead_tiles is right."
    )
    assert "is written once, before 4 times" in said
    assert said.splitlines()[-1].startswith("  result: out[0, 0, 0, 0] is nan, expected ")


def test_what_is_refused(causal: nl.Kernel):
    with pytest.raises(ScheduleError, match="input 'v' has shape None; expected"):
        nl.bisect(causal, inputs={name: a for name, a in causal.operator.random_inputs(0).items() if name != "v"})
    with pytest.raises(ScheduleError, match="given a Program and None"):
        nl.bisect(causal.htile)
    with pytest.raises(ScheduleError, match="not a Program"):
        nl.bisect(causal, causal.htile)
    large = nl.compile(attention.causal(seq=2048, head_dim=64), validate="none")
    with pytest.raises(ScheduleError, match="bisect runs at most 200,000") as refused:
        nl.bisect(large)
    help = str(refused.value.help)
    assert "at smaller sizes than q_len=2048, kv_len=2048, head_dim=64" in help
    assert "nl.bisect(nl.compile(op, block_q=16, block_kv=16" in help
    small = attention.causal(heads=1, seq=32, head_dim=8)  # what the help says to do
    assert nl.bisect(nl.compile(small, block_q=16, block_kv=16, validate="none")) is None
