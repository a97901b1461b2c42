"""The exercises in which students write NumPy: online softmax, its join, and FlashAttention's loop (notebook 01).

Every right number is read from the compiler's record: the student's function is compared with a native run of a
scheduled program, and mistakes are recognised by the runs of the record's wrong phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.written import (
    array_of,
    check_function,
    constant,
    numbers_once,
    peak_of,
    result_of,
    tiles_once,
)

if TYPE_CHECKING:
    from neptune_lab import Schedule

ROWS = ((1, 3, 2, 4), (4, 1, 2, 3), (-1000, 1000, 998, 1001))  # of `online`
LONG = 2000  # numbers of the row on which `online` is watched
PARTS = (1, 3, 2, 4, 2, 0, 5, 1)  # of `join`: two parts, then four
QUERIES, KEYS, TILE, WIDTH = 16, 512, 16, 8  # of `flash`
FEW = 64  # keys of `flash` where only the numbers matter
SCALE = WIDTH**-0.5
_MANY = 60  # lines for each number or each tile


# -- online softmax ---------------------------------------------------------------------------------------------


@exercise(
    "Write online softmax: the largest number and the sum, in one loop",
    hints=(
        "In each iteration: the new maximum, the factor, the sum. Section 1 does it by hand.",
        "`new = max(m, x)`. The sum so far is multiplied by `np.exp(m - new)`; what does the new number add?",
        "`s = np.exp(m - new) * s + np.exp(x - new)`, and then `m = new`.",
    ),
)
def online(function: Callable[..., Any]) -> str:
    """Right if the function gives the maximum and the sum that the repaired program holds after each number.

    Args:
        function: takes numbers that can be read once, and returns two numbers: the maximum, and the sum of
            exp(number - maximum).
    """
    check_function(function, "def online(numbers): …")
    for row in ROWS:
        right, naive = _tables(row)
        for n in range(1, len(row) + 1):
            pair = _pair(_online(function, row[:n]), "the result")
            _compare_online(row[:n], pair, right[n - 1], naive[n - 1])
    long = np.random.default_rng(0).normal(size=LONG).tolist()
    held = peak_of(lambda: _online(function, long))
    if held > 8 * LONG:
        raise NotYet(
            f"on {LONG:,} numbers it holds {held:,} bytes at once: it keeps the numbers or their exponentials. "
            "Only two numbers need to be kept"
        )
    return f"one loop and two numbers; on three rows it agrees with every column of the tag table's `xsum[0]`, {_SAME}"


_SAME = "which comes from the compiler's native run"


def _online(function: Callable[..., Any], numbers: Sequence[float]) -> Any:
    lines = _MANY * len(numbers) + 100
    slow = (
        f"on {len(numbers):,} numbers it executes more than {lines:,} lines: it goes over earlier numbers again, "
        "or does not end. A few lines for each number are enough"
    )
    return result_of(function, numbers_once(numbers), lines=lines, slow=slow)


def _compare_online(seen: Sequence[float], pair: np.ndarray, right: np.ndarray, naive: np.ndarray) -> None:
    where = f"after the numbers {', '.join(map(str, seen))}" if len(seen) > 1 else f"after the number {seen[0]}"
    largest, total = pair
    if not np.isclose(largest, right[0]):
        raise NotYet(f"{where} the largest number is {right[0]:.4g}, and the first result is {largest:.4g}")
    if np.isclose(total, right[1], rtol=1e-5):
        return
    if not np.isfinite(total):
        why = "subtract the largest number in every exponential" if max(map(abs, seen)) > 99 else _INVERTED
        raise NotYet(f"{where} the sum is {total}: {why}")
    if np.isclose(total, naive[1], rtol=1e-5):
        raise NotYet(
            f"{where} the sum is {total:.4g}, as naive fusion gives it: terms made with older maxima stay as is"
        )
    if np.isclose(total * np.exp(-largest), right[1], rtol=1e-5):
        raise NotYet(f"{where} the sum is {total:.4g}: it is the sum of exp(number), without the maximum subtracted")
    if len(seen) == 1 and total == 0:
        raise NotYet(f"{where} the sum is 0: the new term is multiplied by the factor too. Multiply first, then add")
    raise NotYet(f"{where} the sum is {total:.4g}, and the repaired program holds {right[1]:.4g}")


_OVERFLOW = "Subtract the maximum so far, of each query's own scores, in every exponential"
_INVERTED = "before the first number the maximum is -inf, and exp(old - new) is 0, while exp(new - old) is infinite"


@cache
def _tables(row: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The maximum and the sum after each number: of the repaired program and of naive fusion; (numbers, 2) each."""
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    sch = Schedule(softmax.figure1(rows=1, cols=len(row)))
    sch.rolling_update("s_sum", "s_max.j")
    inputs = {"inp": np.array([row], dtype="float32")}
    tables = (sch.tag_table("j", inputs=inputs), sch.tag_table("j", phase="naive", inputs=inputs))

    def values(table: Any, label: str) -> list[float]:
        return [cell.value for cell in table.row(label).cells if cell is not None]

    repaired, naive = (np.array([values(t, "xmax[0]"), values(t, "xsum[0]")]).T for t in tables)
    return repaired, naive


# -- the join of two parts --------------------------------------------------------------------------------------


@exercise(
    "Write the join of two parts",
    hints=(
        "Each part has its own maximum. Which maximum does the whole have?",
        "Both sums must be repaired to the maximum of the whole, then added. One of the two factors is 1.",
        "`m = max(a[0], b[0])`; the sum of part a is multiplied by `np.exp(a[0] - m)`, that of part b likewise.",
    ),
)
def join(function: Callable[..., Any]) -> str:
    """Right if the function makes of two parts' maxima and sums those of the whole, as the split program does.

    Args:
        function: takes two pairs (maximum, sum of exp(number - maximum)), and returns such a pair.
    """
    check_function(function, "def join(a, b): …")
    for numbers in (PARTS, PARTS[::-1]):
        parts, whole, naive = _parts(numbers, 2)
        _compare_join(parts, _join(function, *parts), whole, naive)
    parts, whole, naive = _parts(PARTS, 4)
    for order in (parts, parts[::-1]):
        if not np.allclose(joined := reduce(lambda a, b: _join(function, a, b), order), whole, rtol=1e-5):
            raise NotYet(f"four parts, joined one after the other, give {_text(joined)}; the whole is {_text(whole)}")
    far, whole, _ = _parts((-1000, -999, 1000, 999), 2)
    if not np.allclose(joined := _join(function, *far), whole, rtol=1e-5):
        raise NotYet(f"parts with the maxima -999 and 1000 give {_text(joined)}; the whole is {_text(whole)}")
    empty = (-np.inf, 0.0)
    if not np.allclose(joined := _join(function, empty, parts[0]), parts[0]):
        raise NotYet(f"joined with a part that has seen no number, (-inf, 0), a part becomes {_text(joined)}")
    return f"two parts and four, in both orders, give the maximum and the sum of the split program, {_SAME}"


def _join(function: Callable[..., Any], a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    slow = "on two parts it executes more than 200 lines: a few lines are enough"
    return tuple(_pair(result_of(function, tuple(a), tuple(b), lines=200, slow=slow), "the join").tolist())


def _compare_join(
    parts: Sequence[tuple[float, float]], found: tuple[float, float], whole: tuple[float, float], naive: float
) -> None:
    if np.allclose(found, whole, rtol=1e-5):
        return
    (m, s), told = found, f"parts {_text(parts[0])} and {_text(parts[1])}"
    if not np.isclose(m, whole[0]):
        raise NotYet(f"{told}: the maximum of the whole is not {m:.4g}")
    if np.isclose(s, naive, rtol=1e-5):
        raise NotYet(f"{told}: {s:.4g} adds the two sums as they are, but they were made with different maxima")
    if not np.isfinite(s) or s > naive:
        raise NotYet(
            f"{told}: the sum is {s:.4g}, more than both sums together. A factor exp(own - whole) is at most 1"
        )
    raise NotYet(
        f"{told}: the sum is {s:.4g}, and the split program gives {whole[1]:.4g}. Each sum needs the factor from its "
        "own maximum to that of the whole"
    )


@cache
def _parts(row: tuple[float, ...], count: int) -> tuple[tuple[tuple[float, float], ...], tuple[float, float], float]:
    """The parts' pairs, the pair of the whole, and the sum that naive fusion gives: runs of the split program."""
    from neptune_lab.loop_ir.run import as_float64, run
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    sch = Schedule(softmax.figure1(rows=1, cols=len(row)))
    sch.split("s_max.j", (count, None))
    sch.split_k_update("s_sum", "s_max.j0")
    inputs = {"inp": np.array([row], dtype="float32")}
    values = run(as_float64(sch.program), inputs)
    naive = run(as_float64(next(p.program for p in sch.phases if p.key == "naive")), inputs)
    local = zip(values["xmax_local"][0].tolist(), values["xsum_local"][0].tolist(), strict=True)
    whole = (float(values["xmax"][0]), float(values["xsum"][0]))
    return tuple(local), whole, float(naive["xsum"][0])


# -- FlashAttention's loop --------------------------------------------------------------------------------------


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
        f"{8 * QUERIES * KEYS // 1024}; its output is that of FlashAttention's program, {_SAME}"
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
    lines = _MANY * tiles + 100
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
            return f"if {case.told}, the output is not finite: an exponential overflows. {_OVERFLOW}"
        return f"if {case.told}, the output is not finite: {_INVERTED}"
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


def _pair(value: Any, what: str) -> np.ndarray:
    try:
        array = np.array([float(x) for x in value], dtype="float64")
    except (TypeError, ValueError):
        raise NotYet(f"{what} should be two numbers, the maximum and the sum, found {value!r}") from None
    if array.shape != (2,):
        raise NotYet(f"{what} should be two numbers, the maximum and the sum, found {value!r}")
    return array


def _text(pair: Sequence[float]) -> str:
    return f"({pair[0]:.4g}, {pair[1]:.4g})"
