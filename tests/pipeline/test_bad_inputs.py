"""NaN and infinities in the inputs: the scheduled program and its kernels give them where the unfused program does.

Compared are the scheduled program, run natively in float64, and the kernels, with the unscheduled program in float64.
Two things are left open on purpose.  Tiles of keys that are masked for every row of a tile of queries are not read, so
what is in their values does not show.  And a maximum that is an output itself may keep or drop a NaN, since the program
that it is compared with depends on the order there; one that feeds a sum loses nothing, since the sum has the NaN.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from by_turns import in_turn

import neptune_lab as nl
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.run import as_float64, run
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, norms, rows, softmax
from neptune_lab.operators.base import Operator
from neptune_lab.runtime import call_on_arrays

INF, NAN = np.inf, np.nan
EACH = pytest.mark.parametrize("template", TEMPLATES)
Inputs = dict[str, np.ndarray]


@cache
def compiled(op: Operator, template: str, block: int) -> tuple[nl.Kernel, Program, Program]:
    """A kernel, and the operator's program and its own in float64."""
    kernel = nl.compile(op, template, block_q=block, block_kv=block)
    return kernel, as_float64(op.program), as_float64(kernel.program)


def outputs(op: Operator, template: str, inputs: Inputs, block: int = 2) -> dict[str, list[np.ndarray]]:
    """By output: the unscheduled program's, then the scheduled program's, then the kernels'."""
    kernel, *programs = compiled(op, template, block)
    with np.errstate(all="ignore"):
        want, ours = (run(program, inputs) for program in programs)
        found = call_on_arrays(kernel._loaded, tuple(inputs.values()))
    return {o.name: [want[o.name], ours[o.name], k] for o, k in zip(op.outputs, found, strict=True)}


def assert_same(op: Operator, template: str, inputs: Inputs, block: int = 2) -> None:
    for want, *found in outputs(op, template, inputs, block).values():
        for values in found:
            np.testing.assert_allclose(values, want, rtol=2e-3, atol=2e-3)  # NaN and signs of infinities too


@cache
def queries(mask: str = "full") -> Operator:
    return getattr(attention, mask)(1, 1, q_len=6, kv_len=6, head_dim=16)


def poisoned(op: Operator, name: str, where: tuple[int, int], value: float) -> Inputs:
    inputs = op.random_inputs(0)
    inputs[name][0, 0][where] = value
    return inputs


@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    ("row", "name", "value", "template"), in_turn([0, 3, 5], ["q", "k", "v"], [NAN, INF, -INF], TEMPLATES, every=3)
)
def test_attention(template: str, name: str, row: int, value: float):
    assert_same(queries(), template, poisoned(queries(), name, (row, 1), value))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "value", "template"),
    in_turn([("q", 0), ("q", 5), ("k", 0), ("k", 5), ("v", 0)], [NAN, INF, -INF], TEMPLATES, every=3),
)
def test_causal_attention(template: str, place: tuple[str, int], value: float):
    """Masked keys do not show in any program; of values, only the first is seen by every row."""
    name, row = place
    assert_same(queries("causal"), template, poisoned(queries("causal"), name, (row, 1), value))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_values_of_tiles_that_are_masked_for_every_row_are_not_read(value: float):
    """0 * inf and 0 * NaN are NaN in the unfused program; the rolling loop ends before the last tile of keys."""
    op = queries("causal")
    want, ours, found = outputs(op, "rolling_update", poisoned(op, "v", (5, 1), value))["out"]
    assert np.isnan(want[0, 0, :5, 1]).all()
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(want))  # the loop program reads every tile
    assert np.isfinite(
        found[0, 0, :4]
    ).all()  # rows 0 to 3: the tile of keys 4 and 5 is masked for all of a tile's rows
    np.testing.assert_allclose(found[0, 0, 4:], want[0, 0, 4:], rtol=2e-3, atol=2e-3)  # row 4 shares a tile with row 5


@pytest.mark.one_in(2)
@EACH
def test_a_row_of_scores_of_minus_infinity(template: str):
    op = queries()
    inputs = op.random_inputs(0)
    inputs["q"][0, 0, 2, 0] = -INF
    inputs["k"][..., 0] = 1
    out = outputs(op, template, inputs)["out"]
    for values in out:
        assert np.isnan(values[0, 0]).all(axis=1).tolist() == [False, False, True, False, False, False]


# Inputs of one row each; the tiles are of two.
ROWS = {
    "inf first": [INF, 1, 2, 3, 4, 5],
    "inf last": [0, 1, 2, 3, 4, INF],
    "-inf first": [-INF, 1, 2, 3, 4, 5],
    "-inf in a tile": [0, 1, 2, 3, -INF, 5],
    "NaN first": [NAN, 1, 2, 3, 4, 5],
    "NaN last": [0, 1, 2, 3, 4, NAN],
    "all inf": [INF] * 6,
    "all -inf": [-INF] * 6,
    "all NaN": [NAN] * 6,
    "zeros": [0] * 6,
    "zeros first": [0, 0, 0, 0, 4, 5],
    "both infinities": [INF, 1, 2, 3, -INF, 5],
    "NaN, then inf": [NAN, 1, 1, INF, 4, 5],
    "inf, then NaN": [INF, 1, 1, 1, NAN, 5],
    "large": [6e4] * 6,
    "large and negative": [-6e4] * 6,
}
ROW_OPERATORS = {
    "figure1": softmax.figure1,
    "softmax": rows.softmax,
    "log_sum_exp": rows.log_sum_exp,
    "l2_norm": norms.l2_norm,
    "layer_norm": norms.layer_norm,
}


def row_inputs(op: Operator, named: dict[str, list[float]]) -> Inputs:
    inputs = op.random_inputs(0)
    first = op.inputs[0]
    inputs[first.name] = np.array(list(named.values()), dtype=first.dtype)
    return inputs


@pytest.mark.one_in(12)
@EACH
@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_rows(template: str, name: str):
    # A maximum drops NaN, so the log-sum-exp of nothing but NaN may come out as that of nothing at all, -inf.
    tried = {row: x for row, x in ROWS.items() if (name, row) != ("log_sum_exp", "all NaN")}
    op = ROW_OPERATORS[name](len(tried), 6)
    assert_same(op, template, row_inputs(op, tried))


@pytest.mark.one_in(6)
@EACH
@pytest.mark.parametrize("name", ["log_sum_exp", "l2_norm", "layer_norm"])
def test_sums_that_overflow_float16(template: str, name: str):
    """Six numbers of 6e4, and their squares, are past the largest float16; the sums are in float32."""
    op = ROW_OPERATORS[name](2, 6, dtype="float16")
    inputs = row_inputs(op, {"large": [6e4] * 6, "both signs": [6e4, -6e4] * 3})
    assert_same(op, template, inputs)
    with np.errstate(over="ignore"):
        assert np.isinf(inputs[op.inputs[0].name].sum(axis=1, dtype=np.float16)[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_first_tiles_that_are_masked_are_repaired(template: str, mask: str):
    """A maximum of -inf that a mask makes is guarded: what comes after it counts, also where scores are very low."""
    options = {"window": 2} if mask == "window" else {}
    op = getattr(attention, mask)(**options, heads=1, q_len=6, kv_len=6, head_dim=16)
    inputs = op.random_inputs(0)
    inputs["q"][:], inputs["k"][:] = 20, -20
    assert_same(op, template, inputs)


@pytest.mark.one_in(4)
@EACH
@pytest.mark.parametrize("name", ["softmax", "log_sum_exp"])
def test_a_first_tile_of_minus_infinity_in_the_input(template: str, name: str):
    """exp(-inf - -inf) of the first tile is no number: the guard takes 0 for the maximum until it has met something."""
    op = ROW_OPERATORS[name](1, 6)
    assert_same(op, template, row_inputs(op, {"-inf in the first tile": [-INF, -INF, 2, 3, 4, 5]}))
