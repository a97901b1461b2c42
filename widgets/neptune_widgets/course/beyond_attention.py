"""Exercises of notebook 08_beyond_attention; its facts about fusions are in `fusions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

import neptune_lab as nl
from neptune_lab.operators import Operator, custom, norms
from neptune_lab.operators.base import tensor_expressions
from neptune_lab.pipeline import Kernel
from neptune_lab.pipeline.facts import block_facts
from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.fusions import (
    Fusion,
    Recorded,
    Repair,
    bytes_figure,
    bytes_moved,
    each_alone,
    fusion,
    loops,
    ratios_figure,
    recorded,
    recorded_ways,
    repairs,
    run,
)

TEMPERATURE = 2.0
_CLOSE = 1e-4


@exercise(
    "Log-sum-exp with a temperature",
    hints=(
        "Begin with the log-sum-exp of section 5: its three stages are a maximum, a sum of exponentials, and a map.",
        "Divide inside the exponential, after subtracting the maximum: `te.exp((x[i, j] - peak[i]) / T)`.",
        (
            "A factor exp(peak/T) was taken out of the sum. Its logarithm is added again, and T multiplies all of it: "
            "`T * log(total) + peak`."
        ),
    ),
)
def tempered(x: Any, out: Any) -> str:
    """Judges `out` (rows,), made of the placeholder `x` (rows, cols), by compiling it and by its numbers."""
    op = custom("tempered", [x], [out])
    (spec,), (rows, *rest) = op.inputs, op.inputs[0].shape
    if len(rest) != 1 or op.outputs[0].shape != (rows,):
        raise NotYet(f"expected one number per row: x (rows, cols) to out (rows,), got {op}")
    cols = rest[0]
    block_kv = max(1, cols // 4)
    kernel = nl.compile(op, "rolling_update", block_q=min(rows, 16), block_kv=block_kv)
    small = np.random.default_rng(0).standard_normal(spec.shape).astype(spec.dtype)
    _tempered_numbers(run(kernel, small), small)
    large = (small + 1000).astype(spec.dtype)
    if not np.allclose(run(kernel, large), _tempered(large), rtol=1e-3):
        raise NotYet(
            "right where x is near 0, and not finite where x is near 1000: exp(x) is beyond float32. "
            "The definition in section 5 says what to subtract first"
        )
    if loops(kernel) != (1,):
        said = " ".join(kernel.remarks[1:])
        raise NotYet(f"the numbers are right, but the kernel has {sum(loops(kernel))} loops, not one. {said}")
    found = repairs(kernel)
    told = "".join(f"; {r.block} is repaired by `h = {r.h}`" for r in found) or "; nothing had to be repaired"
    return f"one loop over {-(-cols // block_kv)} tiles, and right near 0 and near 1000{told}"


def _tempered(x: np.ndarray, inner: float = TEMPERATURE, outer: float = TEMPERATURE) -> np.ndarray:
    """outer*log(sum(exp((x - max)/inner))) + max in float64."""
    wide = x.astype(np.float64)
    peak = wide.max(axis=1)
    return outer * np.log(np.exp((wide - peak[:, None]) / inner).sum(axis=1)) + peak


def _tempered_numbers(got: np.ndarray, x: np.ndarray) -> None:
    """Raises NotYet where `got` is not the answer, with what it is instead."""
    right, t = _tempered(x), TEMPERATURE
    if np.allclose(got, right, rtol=_CLOSE, atol=_CLOSE):
        return
    wide = x.astype(np.float64)
    others = (
        (_tempered(x, 1, 1), f"this is the log-sum-exp without a temperature; T is {t:g}"),
        (_tempered(x, t, 1), "the temperature is inside the exponential, but is missing before the logarithm"),
        (_tempered(x, 1, t), "the temperature is before the logarithm, but is missing inside the exponential"),
        (_tempered(x) / t, "the temperature is missing before the whole: this is log(sum(exp(x/T)))"),
        (_tempered(x) - wide.max(axis=1), "the maximum that was subtracted is not added again"),
        (_tempered(x) + (t - 1) * wide.max(axis=1), "the maximum is added T times; it is in units of x already"),
        (_tempered(x, 1 / t, 1 / t), "this is the temperature 1/T: x is multiplied by T where it should be divided"),
    )
    for value, reason in others:
        if np.allclose(got, value, rtol=_CLOSE, atol=_CLOSE):
            raise NotYet(reason)
    shown = f"{float(got[0]):.4f}, where T*log(sum(exp(x/T))) in float64 is {right[0]:.4f}"
    raise NotYet(f"for standard normal x, row 0 gives {shown}")


def row_statistics(rows: int = 32, cols: int = 256) -> Operator:
    """`x` (rows, cols) to `lse`, `square` and `deviation`, all (rows,): its log-sum-exp, the sum of (x - mean)**2, and
    the sum of |x - mean|; float32.  Five reductions: top, total, x_sum, square, deviation."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    top = te.compute((rows,), lambda i: te.max(x[i, j], axis=j), name="top")
    total = te.compute((rows,), lambda i: te.sum(te.exp(x[i, j] - top[i]), axis=j), name="total")
    x_sum = te.compute((rows,), lambda i: te.sum(x[i, j], axis=j), name="x_sum")

    def away(i: Any) -> Any:
        return x[i, j] - x_sum[i] / cols

    square = te.compute((rows,), lambda i: te.sum(away(i) * away(i), axis=j), name="square")
    deviation = te.compute((rows,), lambda i: te.sum(te.abs(away(i)), axis=j), name="deviation")
    lse = te.compute((rows,), lambda i: top[i] + te.log(total[i]), name="lse")
    return custom("row_statistics", [x], [lse, square, deviation])


def loop_groups(kernel: Kernel, column: str = "j0") -> frozenset[frozenset[str]]:
    """Which reductions of the definition share a loop along the tiles `column` in the kernel's loop program."""
    wanted = {b.name for b in block_facts(kernel.operator.program) if b.reduces}
    found: dict[tuple[int, ...], set[str]] = {}
    for block in block_facts(kernel.program):
        names = [name for name, _, _ in block.loops]
        if block.name in wanted and column in names:
            found.setdefault(block.nest[: names.index(column) + 1], set()).add(block.name)
    return frozenset(map(frozenset, found.values()))


@exercise(
    "Which reductions share a loop?",
    hints=(
        (
            "A reduction that reads no other one's result can stand in any loop. Of each other one ask: if the result "
            "that it reads changes from r to r', can its sum so far be moved along?"
        ),
        (
            "exp(x - r): each term changes by the same factor. (x - r)**2: section 4 repairs it with two more sums. "
            "|x - r|: terms on the two sides of r move in opposite directions."
        ),
        "Only one of the five has no repair, neither alone nor with companions.",
    ),
)
def shared_loops(groups: Sequence[Sequence[str]]) -> str:
    """Judges a partition of the reductions of `row_statistics` into loops by compiling it."""
    kernel = nl.compile(row_statistics(), "rolling_update", block_q=16, block_kv=64)
    right = loop_groups(kernel)
    names = sorted(set().union(*right))
    if isinstance(groups, str) or any(isinstance(g, str) for g in groups):
        raise NotYet('expected a list of loops, each a list of names, such as [["top"], ["total", "x_sum"]]')
    given = [name for group in groups for name in group]
    if unknown := [name for name in given if name not in names]:
        raise NotYet(f"{unknown[0]!r} is not one of the reductions {', '.join(names)}")
    if sorted(given) != names:
        odd = next((n for n in names if given.count(n) != 1), "")
        raise NotYet(f"`{odd}` stands in {given.count(odd)} loops; each reduction is in one")
    found = frozenset(frozenset(group) for group in groups if group)
    if found == right:
        why = next((r for r in kernel.remarks if "a loop of its own" in r), kernel.remarks[-1])
        return f"{len(right)} loops. The record says why: {why}"
    if len(found) == 1:
        raise NotYet("the compiler makes more than one loop: one of the terms could not be repaired")
    if len(found) == len(names):
        raise NotYet("that is one loop for each, as without repairs; most of them share one")
    for group in right:
        for pair in ((a, b) for a in sorted(group) for b in sorted(group) if a < b):
            if not any(set(pair) <= given for given in found):
                raise NotYet(f"`{pair[0]}` and `{pair[1]}` share a loop in the compiled program, and not in the answer")
    raise NotYet("two reductions share a loop in the answer that do not in the compiled program")


def p_norm(power: int, rows: int = 4, cols: int = 64) -> Operator:
    """`x` (rows, cols) to `out` (rows,), float32: the norm (sum |x|**power)**(1/power) of each row, scaled by the row's
    maximum `x_max`; its sum is `s_sum`."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    x_max = te.compute((rows,), lambda i: te.max(te.abs(x[i, j]), axis=j), name="x_max")

    def term(i: Any) -> Any:
        return prod([te.abs(x[i, j]) / x_max[i]] * (power - 1), start=te.abs(x[i, j]) / x_max[i])

    s_sum = te.compute((rows,), lambda i: te.sum(term(i), axis=j), name="s_sum")
    root = te.const(1 / power, "float32")
    out = te.compute((rows,), lambda i: x_max[i] * te.exp(te.log(s_sum[i]) * root), name="out")
    return custom("p_norm", [x], [out])


POWER = 3


@exercise(
    "The repair term of another norm",
    hints=(
        "In the sum each |x| is divided by the old maximum r. Which factor turns |x|/r into |x|/new?",
        (
            "|x|/new = (|x|/r) * (r/new). The terms of this sum are third powers of that, and the factor is the same "
            "in all of them."
        ),
    ),
)
def p_norm_repair(h: Callable[[float, float, float], float]) -> str:
    """Judges h(t, r, new) of the sum of (|x|/r)**3 by folding a row with it, and against the compiler's own."""
    if not callable(h):
        raise NotYet("expected a function of three numbers, such as lambda t, r, new: t")
    row = np.abs(np.random.default_rng(2).standard_normal(12)) * np.linspace(0.2, 3, 12)
    peak = total = 0.0
    for value in map(float, row):
        new = max(peak, value)
        try:
            moved = float(h(total, peak, new)) if peak else 0.0
        except Exception as error:
            raise NotYet(f"h({total:.4g}, {peak:.4g}, {new:.4g}) raised {type(error).__name__}: {error}") from error
        peak, total = new, moved + (value / new) ** POWER
    right = float(((row / row.max()) ** POWER).sum())
    if isfinite(total) and abs(total - right) < 1e-9 * right and _as_power(h, POWER):
        (found,) = repairs(nl.compile(p_norm(POWER), "rolling_update", block_q=4, block_kv=16))
        return f"the reduced sum is {total:.6f}, as it should be; the compiler derives `h = {found.h}`"
    reasons = (
        (0, "h returns t, so nothing is repaired: terms that were divided by an older maximum are unchanged"),
        (2, "that is the factor of the L2 norm, whose terms are squares"),
        (1, "that repairs a sum of first powers; these are third powers"),
        (-POWER, "the fraction is upside down: where the maximum grows, each old term has to become smaller"),
        (-1, "the fraction is upside down: where the maximum grows, each old term has to become smaller"),
    )
    reason = next((text for power, text in reasons if _as_power(h, power)), "")
    shown = f"folding a row of 12 numbers with it gives {total:.4f}; the sum is {right:.4f}"
    raise NotYet(f"{reason}; {shown}" if reason else shown)


def _as_power(h: Callable[[float, float, float], float], power: int) -> bool:
    """Whether h is t*(r/new)**power, at some points with r < new, and t where the two are the same."""
    points = ((2.0, 0.5, 1.5), (0.7, 1.0, 4.0), (3.0, 1.25, 1.25))
    try:
        return all(np.isclose(float(h(t, r, new)), t * (r / new) ** power) for t, r, new in points)
    except (ArithmeticError, ValueError, TypeError):
        return False


ROWS, COLS = 4096, 8192


@exercise(
    "Bytes of a quantized row",
    hints=(
        "Follow one element of x: how often is it loaded, how wide is it, and what is stored for it?",
        "It is loaded once in each of the two loops, 2 bytes each time. What is stored is one int8.",
    ),
)
def quantize_bytes(answer: float) -> str:
    """Judges the bytes that the fused `rms_norm_quantize` moves at ROWS by COLS in float16, by compiling it."""
    try:
        answer = float(answer)
    except (TypeError, ValueError) as error:
        raise NotYet("expected a number of bytes, such as 3 * 4096 * 8192") from error
    kernel = nl.compile(
        norms.rms_norm_quantize(ROWS, COLS, dtype="float16"), "rolling_update", block_q=16, block_kv=256
    )
    elements, moved = ROWS * COLS, bytes_moved(kernel)
    each = moved / elements
    if abs(answer - moved) <= 0.01 * moved:
        return f"{moved} bytes by the compiler's count: {each:.3f} per element, in {loops(kernel)[0]} loops"
    if abs(answer - each) <= 0.01 * each:
        raise NotYet("that is for one element; the question is about the whole matrix")
    reasons = (
        (2, "that is one load of x and nothing else"),
        (3, "that is one load of x and one store of q: this would be right for a single pass over the row"),
        (4, "that is two loads of x (or a load and a store of 2 bytes); q is stored too, and is int8"),
        (6, "q has one byte per element, not two"),
        (9, "x has two bytes per element, not four"),
    )
    for bytes_each, reason in reasons:
        if abs(answer / elements - bytes_each) <= 0.01 * bytes_each:
            raise NotYet(reason)
    raise NotYet(
        f"that is {answer / elements:.3g} bytes per element; count what the two loops of its outline load and store"
    )


__all__ = [
    "POWER",
    "TEMPERATURE",
    "Fusion",
    "Recorded",
    "Repair",
    "bytes_figure",
    "bytes_moved",
    "each_alone",
    "fusion",
    "loop_groups",
    "loops",
    "p_norm",
    "p_norm_repair",
    "quantize_bytes",
    "ratios_figure",
    "recorded",
    "recorded_ways",
    "repairs",
    "row_statistics",
    "run",
    "shared_loops",
    "tempered",
]
