"""Rewrites a softmax so that its derivative needs one statistic per row: the log-sum-exp.

    m[r] = max over c of x[r, c]                        m, s, lse[r] = m[r] + log(s[r])
    e[r, c] = exp(x[r, c] - m[r])                ⇒      w[r, c] = exp2(x[r, c] * log2(e) - lse[r] * log2(e))
    s[r] = sum over c of e[r, c]
    e[r, c] / s[r]                                      w[r, c]
    (sum over c of e[r, c] * y[c, d]) / s[r]            sum over c of w[r, c] * y[c, d]
    m[r] + log(s[r])                                    lse[r]

Both sides are equal over the reals.  The log-sum-exp is rounded to about 1e-7 of its size, and so is the logarithm of
every weight of its row.  The weights are powers of two, which is what a GPU computes, and the row holds lse times
log2(e), so that a weight takes one multiplication and one subtraction.  A row whose largest element is -inf has lse =
-inf on both sides; there `w` reads 0 in place of lse, and is 0, where e / s is NaN.  FlashAttention's backward pass
keeps the log-sum-exp too (Dao 2023, 3.1).  Where a row may have nothing but scores near a large number, from which the
logarithm of the sum is rounded away (`fits_one_number`), two numbers are kept:

    w[r, c] = exp2((x[r, c] - m[r]) * log2(e) - log2(s[r]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op
from neptune_lab.loop_ir.walks import reads_buffer, substitute, transform, walk
from neptune_lab.operators.reverse_mode.softmaxes import Softmax, is_infinite, without_casts
from neptune_lab.operators.reverse_mode.stages import Stage, in_order, with_term
from neptune_lab.strict.dtypes import FLOATS, LARGEST_FINITE

LOG2E = math.log2(math.e)


def in_weights(stages: Sequence[Stage], softmax: Softmax) -> tuple[Stage, ...]:
    """The stages with this softmax as weights; before and after are in the module's docstring.

    Args:
        stages: of a definition.
        softmax: from `find_softmaxes`, for these stages.

    Returns:
        The stages in an order in which each comes after those that it reads. Stages that nothing reads any more stay.
    """
    changed = [_rewritten(stage, softmax) for stage in stages]
    averages = {stage.name: averaged for stage in stages if (averaged := _average(stage, stages, softmax)) is not None}
    changed = [_divided(stage, averages, softmax) for stage in changed]
    made = [made for pair in averages.values() for made in pair]
    known = {stage.name for stage in stages}
    statistics = [stage for stage in _statistics(softmax, stages) if stage.name not in known]
    every = [*changed, *statistics, *dict.fromkeys(made)]
    return in_order(every)


def _statistics(softmax: Softmax, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages lse, top, shift and w."""
    total, exponential = softmax.total, softmax.exponential
    lowest = Const(float("-inf"), total.dtype)
    sum_here = total.element
    largest = Load(softmax.largest.name, total.place)
    value: Expr = Op("add", (largest, Op("log", (sum_here,))))
    if _gives_infinities(softmax, stages):
        value = Op("select", (is_infinite(largest, total.dtype), largest, value))
    else:
        value = Op("select", (Op("eq", (largest, lowest)), lowest, value))
    lse = Stage(softmax.lse, total.axes, (), None, value, total.dtype)
    zero = Const(0.0, total.dtype)
    scaled_lse = _finite(Op("mul", (lse.element, Const(LOG2E, total.dtype))), total.dtype)
    row = _row(softmax)
    if softmax.top:
        empty = Op("eq", (largest, lowest))
        log2 = Op("mul", (Op("log", (sum_here,)), Const(LOG2E, total.dtype)))
        shift = Stage(softmax.shift, total.axes, (), None, Op("select", (empty, zero, log2)), total.dtype)
        top = Stage(softmax.top, total.axes, (), None, Op("select", (empty, zero, largest)), total.dtype)
        above = Op("sub", (_inlined(softmax.scores, stages), Load(softmax.top, row)))
        logarithm = Op("sub", (Op("mul", (above, Const(LOG2E, total.dtype))), Load(softmax.shift, row)))
        return lse, top, shift, replace(exponential, name=softmax.weights, term=Op("exp2", (logarithm,)))
    held = Op("select", (Op("eq", (lse.element, lowest)), zero, scaled_lse))
    shift = Stage(softmax.shift, total.axes, (), None, held, total.dtype)
    scores = _scaled(_inlined(softmax.scores, stages), total.dtype)
    weight = Op("exp2", (Op("sub", (scores, Load(shift.name, row))),))
    return lse, shift, replace(exponential, name=softmax.weights, term=weight)


def _gives_infinities(softmax: Softmax, stages: Sequence[Stage]) -> bool:
    """Whether the log-sum-exp is the maximum where that is infinite, as torch.logsumexp; weights e / s are NaN."""
    found = False
    for node in (node for stage in stages for node in walk(stage.term)):
        match node:
            case Op("div", (_, Load(name, _))) if name == softmax.total.name:
                return False
            case Op("eq", (Op("abs", (Load(name, _) as m,)), _)) if name == softmax.largest.name:
                found |= node == is_infinite(m, softmax.total.dtype)
    return found


def _finite(x: Expr, dtype: str) -> Expr:
    """The expression, and the least float where it is less: a row of scores that are all the least float has a finite
    log-sum-exp, and a score that is -inf after the multiplication has weight 0, not NaN."""
    least = Const(-LARGEST_FINITE[dtype], dtype)
    return Op("select", (Op("lt", (x, least)), least, x))


def _inlined(scores: Expr, stages: Sequence[Stage]) -> Expr:
    """The scores, as the stage that makes them computes them if that is a map."""
    made = next((s for s in stages if isinstance(scores, Load) and s.name == scores.buffer), None)
    if made is None or made.reducer is not None or made.dtype not in ("float32", "float64"):
        return scores
    assert isinstance(scores, Load)
    return substitute(made.term, made.at(scores.indices))


def _scaled(expr: Expr, dtype: str) -> Expr:
    """The expression times log2(e), which is put into a constant factor that it has already."""
    match expr:
        case Op("select", (condition, a, b)):
            return Op("select", (condition, _scaled(a, dtype), _scaled(b, dtype)))
        case Const(float(value)) if math.isfinite(value):
            return Const(max(-LARGEST_FINITE[dtype], min(LARGEST_FINITE[dtype], value * LOG2E)), dtype)
        case Const(float()):
            return expr  # an infinity stays one
        case Op("mul", (x, Const(float(value)))):
            return Op("mul", (x, Const(value * LOG2E, dtype)))
    return Op("mul", (expr, Const(LOG2E, dtype)))


def _row(softmax: Softmax) -> tuple[Expr, ...]:
    """The indices with which e reads m."""
    match softmax.exponential.term:
        case Op("exp", (Op("sub", (_, Load(_, at))),)):
            return tuple(at)
    raise AssertionError("find_softmaxes matched this term")


def _rewritten(stage: Stage, softmax: Softmax) -> Stage:
    """m + log(s), m == -inf and e / s by lse and w."""
    lowest = Const(float("-inf"), softmax.total.dtype)
    m, s, e = softmax.largest.name, softmax.total.name, softmax.exponential.name

    def rule(node: Expr) -> Expr:
        match node:
            case Op("add", (Load(a, at), Op("log", (Load(b, same),)))) if (a, b) == (m, s) and at == same:
                return Load(softmax.lse, at)
            case Op("add", (Op("log", (Load(b, same),)), Load(a, at))) if (a, b) == (m, s) and at == same:
                return Load(softmax.lse, at)
            case Op("eq", (Load(a, at), bound)) if a == m and bound == lowest:
                return Op("eq", (Load(softmax.lse, at), bound))
            case Op("select", (condition, Load(a, at) as largest, Load(b, same) as lse)) if (
                (a, b) == (m, softmax.lse) and at == same and condition == is_infinite(largest, softmax.total.dtype)
            ):
                return lse
            case Op("select", (Op("eq", (Load(a, at), bound)), same_bound, Load(b, same))) if (
                a == b == softmax.lse and bound == same_bound == lowest and at == same
            ):
                return Load(softmax.lse, at)
            case Op("div", (top, Load(b, at))) if b == s and _same_row(softmax, top, at):
                read = without_casts(top)
                assert isinstance(read, Load)
                return Load(softmax.weights, read.indices)
        return node

    return stage if stage.name in (m, s, e, softmax.lse) else with_term(stage, rule)


def _same_row(softmax: Softmax, top: Expr, at: tuple[Expr, ...]) -> bool:
    """Whether `top` is e at the row `at` of the sum."""
    read = without_casts(top)
    if not isinstance(read, Load) or read.buffer != softmax.exponential.name:
        return False
    here = softmax.exponential.at(read.indices)
    return tuple(substitute(index, here) for index in _row(softmax)) == at


def _average(stage: Stage, stages: Sequence[Stage], softmax: Softmax) -> tuple[Stage, ...] | None:
    """For a sum of e times something else, possibly of e rounded: the same sum of w, and w rounded."""
    if stage.reducer != "sum" or stage.name == softmax.total.name:
        return None
    match stage.term:
        case Op("mul", (a, b)):
            pass
        case _:
            return None
    for factor, other in ((a, b), (b, a)):
        read = without_casts(factor)
        if not isinstance(read, Load) or _reads_any(other, softmax):
            continue
        rounded = next((s for s in stages if s.name == read.buffer), None)
        if rounded is not None and rounded.name != softmax.exponential.name:
            inner = without_casts(rounded.term)
            if rounded.reducer is not None or inner != _element_of(softmax.exponential, rounded):
                continue
            weights = Load(softmax.weights, inner.indices) if isinstance(inner, Load) else inner
            term = _with_read(rounded.term, inner, weights)
            own = replace(rounded, name=_rounded(softmax, rounded.dtype), term=term)
            new_read, made = Load(own.name, read.indices), (own,)
        elif read.buffer == softmax.exponential.name:
            new_read, made = Load(softmax.weights, read.indices), ()
        else:
            continue
        term = _with_read(stage.term, read, new_read)
        return (*made, replace(stage, name=f"{stage.name}_average", term=term))
    return None


def _rounded(softmax: Softmax, dtype: str) -> str:
    """The name of the stage of the weights in a dtype."""
    return f"{softmax.weights}_in_{dtype}"


def _with_read(expr: Expr, old: Expr, new: Expr) -> Expr:
    return transform(expr, lambda node: new if node == old else node)


def _element_of(exponential: Stage, rounded: Stage) -> Load | None:
    """The read of e at the axes of a stage that has the same ones."""
    if len(exponential.axes) != len(rounded.axes):
        return None
    return Load(exponential.name, rounded.place)


def _reads_any(expr: Expr, softmax: Softmax) -> bool:
    return any(reads_buffer(expr, s.name) for s in (softmax.exponential, softmax.total, softmax.largest))


def _divided(stage: Stage, averages: dict[str, tuple[Stage, ...]], softmax: Softmax) -> Stage:
    """acc / s by the average; and a result that is 0 where lse is -inf, and else the average, by the average, which is
    0 there too, since the weights are."""
    lowest = Const(float("-inf"), softmax.total.dtype)

    def rule(node: Expr) -> Expr:
        match node:
            case Op("div", (Load(name, at), Load(b, row))) if name in averages and b == softmax.total.name:
                # The row of the sum must be the one whose weights the average has.
                stage = averages[name][-1]
                here = stage.at(at)
                if _row_in(stage, softmax, here) == row:
                    return Load(stage.name, at)
            case Op("select", (Op("eq", (Load(lse, row), bound)), Const(zero), other)) if (
                lse == softmax.lse and bound == lowest and zero == 0
            ):
                read = without_casts(other)
                own = next(
                    (p[-1] for p in averages.values() if isinstance(read, Load) and p[-1].name == read.buffer), None
                )
                if own is not None and isinstance(read, Load):
                    here = own.at(read.indices)
                    if _row_in(own, softmax, here) == row:
                        return other
        return node

    return stage if stage.name == softmax.total.name else with_term(stage, rule)


def _row_in(stage: Stage, softmax: Softmax, here: dict[str, Expr]) -> tuple[Expr, ...] | None:
    """The row of the softmax that an average reads at its element `here`."""
    assert isinstance(stage.term, Op)
    for factor in stage.term.args:
        read = without_casts(factor)
        if isinstance(read, Load) and read.buffer in (softmax.weights, *(_rounded(softmax, dtype) for dtype in FLOATS)):
            axes = softmax.exponential.at(read.indices)
            row = tuple(substitute(index, axes) for index in _row(softmax))
            return tuple(substitute(index, here) for index in row)
    return None


__all__ = ["in_weights"]
