"""The exercises of `01_rolling_update`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise, numbers_of

if TYPE_CHECKING:
    from neptune_lab import Schedule
    from neptune_lab.loop_ir.tag_table import TagTable

ROW = (2, 5, 1, 7)  # of the first exercise
SCORES, VALUES = (2, 5), (30, 10)  # of the second
ROWS, COLS, TILE = 3, 8, 4  # of the third


@exercise(
    "The factors that repair the sum of the row 2, 5, 1, 7",
    hints=(
        "Write down the largest number so far, before and after each iteration.",
        "The factor is `exp(before - after)`, of the maxima and not of the numbers themselves.",
        "The maxima are 2, 5, 5, 7.",
    ),
)
def factors(answer: Sequence[float]) -> str:
    """Right where the numbers are the tag table's at j = 1, 2, 3, to 1 %."""
    given = numbers_of(answer, 3)
    right = _values(_rolled(ROW), "repair of xsum[0]")[1:]
    wrong = ~np.isclose(given, right, rtol=1e-2, atol=1e-4)
    if not wrong.any():
        return "the maximum grows twice, where the sum shrinks; in between it does not change, and the factor is 1"
    if np.allclose(given, 1 / right, rtol=1e-2):
        raise NotYet("these are one over the factors: the sum would grow where the maximum does, but its terms shrink")
    if np.allclose(given, np.log(right), atol=1e-2):
        raise NotYet("these are the exponents; the sum is multiplied by `exp` of them")
    if np.allclose(given, np.exp(np.subtract(ROW[:-1], ROW[1:])), rtol=1e-2):
        raise NotYet("these compare each number with the one before it; compare the largest so far, before and after")
    j = int(np.argmax(wrong)) + 1
    raise NotYet(f"at j = {j} the factor is not {given[j - 1]:.4g}: what are the maxima before and after?")


@exercise(
    "What the accumulator holds",
    hints=(
        "After key 0 the maximum is the score of key 0: which weight does its value have?",
        "At key 1 the maximum grows from 2 to 5: repair what was accumulated, then add the value of key 1, weight 1.",
        "The output is the accumulator over the sum of weights, which is repaired too: `exp(2 - 5) * 1 + 1`.",
    ),
)
def accumulator(answer: Sequence[float]) -> str:
    """Right where the numbers are acc after key 0, acc after key 1 and out, of the repaired program, to 1 %."""
    given = numbers_of(answer, 3)
    table = _attention(SCORES, VALUES)
    first, second = _values(table, "acc[0, 0, 0, 0]")[:2]
    out = _values(table, "out[0, 0, 0, 0]")[-1]
    near = np.isclose(given, [first, second, out], rtol=1e-2)
    if near.all():
        return "and `out` is what the definition gives: mostly the value of key 1, whose score is larger by 3"
    if not near[0]:
        raise NotYet(f"after key 0 the accumulator is not {given[0]:.4g}: the only key so far has weight exp(2 - 2)")
    if not near[1]:
        unrepaired = np.isclose(given[1], sum(VALUES), rtol=1e-2)
        why = "that is the accumulator without a repair" if unrepaired else "repair what it held, then add"
        raise NotYet(f"after key 1 the accumulator is not {given[1]:.4g}: {why}")
    undivided = np.isclose(given[2], second, rtol=1e-3)
    why = "it still has to be divided" if undivided else "divide the accumulator by the repaired sum of the weights"
    raise NotYet(f"the output is not {given[2]:.4g}: {why}")


@exercise(
    "Online softmax over two tiles of four columns",
    hints=(
        "Three primitives, in the order in which this notebook introduced them to Figure 1 with tiles.",
        "After `sch.split('s_max.j', (None, 4))` the outer of the two loops is called `s_max.j0`.",
        "`sch.rolling_update('s_sum', …)` fuses under that loop; `sch.retire_tags(…)` takes the block that has tags.",
    ),
)
def tiled(build: Callable[[Schedule], object]) -> str:
    """Right where the maximum and the sum share one loop over two tiles of four, no tags are kept, and it is correct.

    Args:
        build: is given a fresh schedule of Figure 1 with 8 columns, and changes it.
    """
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    if not callable(build):
        raise NotYet(f"expected a function that takes a schedule, found {build!r}")
    sch = Schedule(softmax.figure1(rows=ROWS, cols=COLS))
    build(sch)
    if problem := _not_tiled(sch):
        raise NotYet(problem)
    if not (verdict := sch.check()):
        raise NotYet(str(verdict))
    return f"one loop over the tiles carries a maximum and a sum, and it {verdict}"


def _not_tiled(sch: Schedule) -> str | None:
    """What is missing of online softmax over tiles; None where nothing is."""
    from neptune_lab.pipeline.facts import block_facts

    if not sch.steps:
        return "the schedule was not changed: call primitives on the argument `sch`"
    blocks = {block.name: block for block in block_facts(sch.program)}
    if "s_sum_tile" not in blocks:
        extents = {extent for block in blocks.values() for _, extent, _ in block.loops}
        if COLS in extents:
            return "the loop over the columns is not split, at least in a part of the program"
        return "`s_sum` still has its own loop: it is not fused with the tiles of `s_max`"
    if any(buffer.tagged for buffer in sch.program.buffers):
        return "`xmax` still keeps the value of every tile"
    largest, total = blocks["s_max_tile"], blocks["s_sum_tile"]
    shared = next(n for n, (a, b) in enumerate(zip(largest.nest, total.nest, strict=True)) if a != b)
    tiles = [extent for _, extent, _ in total.loops[:shared] if extent != ROWS]
    columns = [extent for _, extent, _ in total.loops[shared:]]
    if tiles != [COLS // TILE] or TILE not in columns:
        return f"expected {COLS // TILE} tiles of {TILE} columns, found {tiles} of {columns}"
    return None


def _rolled(row: Sequence[float]) -> TagTable:
    """The tag table of Figure 1, repaired, on one row."""
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    sch = Schedule(softmax.figure1(rows=1, cols=len(row)))
    sch.rolling_update("s_sum", "s_max.j")
    return sch.tag_table("j", inputs={"inp": np.array([row], dtype="float32")})


def _attention(scores: Sequence[float], values: Sequence[float]) -> TagTable:
    """The tag table of attention with one query, whose score with each key is the key, after three rolling updates."""
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import attention

    keys = len(scores)
    sch = Schedule(attention.full(batch=1, heads=1, q_len=1, kv_len=keys, head_dim=1, dtype="float32"))
    sch.reverse_compute_at("score", "qk.j")
    for block in ("s_max", "s_sum", "acc"):
        sch.rolling_update(block, "qk.j")
    k, v = (np.array(x, dtype="float32").reshape(1, 1, keys, 1) for x in (scores, values))
    return sch.tag_table("j", inputs={"q": np.ones((1, 1, 1, 1), dtype="float32"), "k": k, "v": v})


def _values(table: TagTable, label: str) -> np.ndarray:
    """A row's values, where it has any; "repair of x" is the row of the repair of x."""
    kind, name = ("repair", label.removeprefix("repair of ")) if label.startswith("repair of ") else ("value", label)
    return np.array([cell.value for cell in table.row(name, kind).cells if cell is not None], dtype="float64")
