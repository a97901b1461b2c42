"""Exercises in which students write FlashAttention: its loop in NumPy, and the schedule that makes it (notebook 01).

The right output, and the runs by which mistakes are recognised, are read from the compiler's record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.written import (
    INVERTED,
    MANY,
    OVERFLOW,
    SAME,
    array_of,
    check_function,
    constant,
    peak_of,
    result_of,
    tiles_once,
)

if TYPE_CHECKING:
    from neptune_lab import Schedule

QUERIES, KEYS, TILE, WIDTH = 16, 512, 16, 8
FEW = 64  # keys where only the numbers matter
SCALE = WIDTH**-0.5


@exercise(
    "Write FlashAttention's loop",
    hints=(
        "In each iteration: the scores of this tile, the new maxima, the factor, then both repairs.",
        "`score = q @ keys.T * scale`, one row for each query. `np.maximum(m, score.max(axis=1))` is the new maximum.",
        "The weights are `np.exp(score - new[:, None])`. The sum gets their sum over `axis=1`, `acc` gets `@ values`.",
        "The sum and `acc` are multiplied by the same factor `np.exp(m - new)`; for `acc` it is `factor[:, None]`.",
    ),
)
def flash(function: Callable[..., Any]) -> str:
    """Right if the function gives the output of FlashAttention's program, from one loop that keeps no scores.

    Args:
        function: takes queries (16, 8), tiles that can be read once, each a pair of keys and values (16, 8), and a
            number that scores are multiplied by; returns the output (16, 8).
    """
    check_function(function, "def flash(q, tiles, scale): …")
    for case in _cases():
        out = array_of(_flash(function, *case.arrays), (QUERIES, WIDTH), "the output")
        right = _program("repaired", *case.arrays)["out"]
        if not np.allclose(out, right, rtol=1e-6, atol=1e-9):
            raise NotYet(_named(case, out, right, function))
    q, k, v = _random(KEYS, 1)
    held = peak_of(lambda: _flash(function, q, k, v))
    if held > 8 * QUERIES * KEYS // 2:
        raise NotYet(
            f"on {KEYS} keys it holds {held:,} bytes at once. A tile of scores has {8 * QUERIES * TILE:,}, all scores "
            f"have {8 * QUERIES * KEYS:,}: it keeps the scores, or the tiles, of all keys"
        )
    return (
        f"one loop over {KEYS // TILE} tiles, which holds {held / 1024:.0f} KiB where all scores take "
        f"{8 * QUERIES * KEYS // 1024}; its output is that of FlashAttention's program, {SAME}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """Inputs that are right or wrong together: what they are, in words, and q, k, v."""

    told: str
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]


def _program(phase: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """A native run of FlashAttention's program: "repaired", or "naive", before the accumulator is repaired."""
    from neptune_lab.loop_ir.run import run

    inputs = {name: x[None, None].astype("float32") for name, x in zip("qkv", (q, k, v), strict=True)}
    return {name: x[0, 0] for name, x in run(_flash_programs()[phase], inputs).items()}


@cache
def _flash_programs() -> dict[str, Any]:
    from neptune_lab.loop_ir.run import as_float64
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import attention

    op = attention.full(batch=1, heads=1, q_len=QUERIES, kv_len=FEW, head_dim=WIDTH, dtype="float32")
    sch = Schedule(op)
    sch.tile("qk", i=QUERIES, j=TILE)
    sch.reverse_compute_at("score", "qk.j0")
    for reduction in ("s_max", "s_sum", "acc"):
        sch.rolling_update(reduction, "qk.j0")
    phases = {phase.key: as_float64(phase.program) for phase in sch.phases}
    return {key: phases[key] for key in ("naive", "repaired")}


def _random(keys: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values whose values float32 holds exactly."""
    rng = np.random.default_rng(seed)

    def drawn(rows: int) -> np.ndarray:
        return rng.normal(size=(rows, WIDTH)).astype("float32").astype("float64")

    return drawn(QUERIES), drawn(keys), drawn(keys)


@cache
def _cases() -> tuple[_Case, ...]:
    q, k, v = _random(FEW, 0)
    # Every number of a query is positive and a key has one number eight times: scores fall along the keys.
    q_ones = np.abs(q) + 0.5
    falling = np.repeat(np.linspace(2, -2, FEW, dtype="float32").astype("float64")[:, None], WIDTH, axis=1)
    return (
        _Case("the largest score comes first", (q_ones, falling, v)),
        _Case("the largest score comes last", (q_ones, falling[::-1].copy(), v)),
        _Case("the numbers are random", (q, k, v)),
        _Case("scores are near 3,000", (q_ones, 1000 + 64 * falling, v)),
    )


def _flash(function: Callable[..., Any], q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
    tiles = len(k) // TILE
    lines = MANY * tiles + 100
    slow = (
        f"on {tiles} tiles it executes more than {lines:,} lines: it loops over single rows or scores, or does not "
        "end. Each line should work on a whole tile"
    )
    return result_of(function, constant(q), tiles_once((k, v), TILE), SCALE, lines=lines, slow=slow)


def _named(case: _Case, out: np.ndarray, right: np.ndarray, function: Callable[..., Any]) -> str:
    """What the mistake is, by runs of the record that show the same numbers."""
    q, k, v = case.arrays
    found = f"if {case.told}, the output of query 0 begins with {out[0, 0]:.4g}, and right is {right[0, 0]:.4g}"
    if not np.isfinite(out).all():
        if "3,000" in case.told:
            return f"if {case.told}, the output is not finite: an exponential overflows. {OVERFLOW}"
        return f"if {case.told}, the output is not finite: {INVERTED}"
    held = _program("repaired", q, k, v)
    if np.allclose(out, held["acc"], rtol=1e-6):
        return f"{found}: that is the accumulator, which still has to be divided by the sum"
    if np.allclose(out, _program("repaired", q / SCALE, k, v)["out"], rtol=1e-4):
        return f"{found}: the scores are not multiplied by `scale`"
    if np.allclose(out, _program("naive", q, k, v)["out"], rtol=1e-6):
        return f"{found}: the sum is repaired and the accumulator is not, as in naive fusion"
    ones = array_of(_flash(function, q, k, np.ones_like(v)), out.shape, "the output")
    if np.allclose(ones, 1):
        return (
            f"{found}. If all values are 1 the output is 1, so the sum and the accumulator are treated alike: neither "
            "is repaired, or the factor is not that of the maximum"
        )
    if (ones < 1).any() and (ones <= 1 + 1e-9).all():
        return f"{found}. If all values are 1 the output is below 1: the sum is too large for the accumulator"
    return (
        f"{found}. If all values are 1 the output is {ones[0, 0]:.4g} and not 1: the sum does not fit the accumulator"
    )


# -- and the schedule that makes it -----------------------------------------------------------------------------


@exercise(
    "The schedule that makes your loop",
    hints=(
        "Primitives: `tile`, `reverse_compute_at`, `rolling_update`, `retire_tags`. Section 10 has three of them.",
        "`sch.tile('qk', i=16, j=16)` makes tiles; then the loop over tiles of keys is called `qk.j0`.",
        "`score` moves under `qk.j0`. Which three reductions follow by `rolling_update`, and in which order?",
    ),
)
def flash_schedule(build: Callable[[Schedule], object]) -> str:
    """Right if one loop over tiles of keys carries the maximum, the sum and the accumulator, and only two maxima.

    Args:
        build: is given a fresh schedule of attention with 32 queries and 64 keys, and changes it.
    """
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import attention

    check_function(build, "def my_schedule(sch): …")
    op = attention.full(batch=1, heads=1, q_len=2 * QUERIES, kv_len=FEW, head_dim=WIDTH, dtype="float32")
    sch = Schedule(op)
    build(sch)
    if problem := _not_flash(sch):
        raise NotYet(problem)
    if not (verdict := sch.check()):
        raise NotYet(str(verdict))
    return f"one loop over {FEW // TILE} tiles of keys carries a maximum, a sum and an accumulator, and it {verdict}"


def _not_flash(sch: Schedule) -> str | None:
    """What is missing of FlashAttention's loop; None if nothing is."""
    from neptune_lab.pipeline.facts import block_facts

    if not sch.steps:
        return "the schedule was not changed: call primitives on the argument `sch`"
    blocks = {block.name: block for block in block_facts(sch.program)}
    keys = [(var, extent) for var, extent, _ in blocks["qk"].loops if var.startswith("j")]
    if [extent for _, extent in keys] != [FEW // TILE, TILE]:
        return f"expected {FEW // TILE} tiles of {TILE} keys; the loops over keys around `qk` are {keys or 'none'}"
    own = blocks["qk"].nest[: [var for var, _, _ in blocks["qk"].loops].index(keys[0][0]) + 1]
    for name in ("score", "s_max", "s_sum", "acc"):
        if blocks[name].nest[: len(own)] != own:
            return f"`{name}` is not in the loop over tiles of keys, `qk.{keys[0][0]}`: it has its own loop"
    if any(buffer.tagged for buffer in sch.program.buffers):
        return "`s_max` still keeps the maximum of every tile; the loop needs only the last two"
    rows = [extent for var, extent, _ in blocks["qk"].loops if var.startswith("i")]
    if rows != [2, QUERIES]:
        return f"expected 2 tiles of {QUERIES} queries, found loops of {rows}"
    return None
