"""Finds the softmaxes of a definition: a maximum, exponentials of differences to it, and their sum."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var, children
from neptune_lab.loop_ir.walks import loads, substitute
from neptune_lab.operators.reverse_mode.stages import Axis, Stage

# The largest number in scores of which a log-sum-exp is kept: its rounding to float32 changes a weight by 1e-3.
LARGEST_SHIFT = 1e4


@dataclass(frozen=True, slots=True)
class Softmax:
    """The stages of one softmax.

    Args:
        largest, exponential, total: m, e and s.
        scores: the expression x, over the axes of `exponential`.
        folded: the axes c of `exponential`.
        lse: the name of the stage of the log-sum-exp.
        shift: the name of the stage that is lse times log2(e), or log2(s), and 0 where m is -inf.
        top: the name of the stage that is m, and 0 where that is -inf; "" if lse stands for both.
        weights: the name of the stage w.
    """

    largest: Stage
    exponential: Stage
    total: Stage
    scores: Expr
    folded: tuple[Axis, ...]
    lse: str
    shift: str
    weights: str
    top: str = ""


def find_softmaxes(stages: Sequence[Stage], inputs: Collection[str]) -> tuple[Softmax, ...]:
    """Each softmax among the stages.

    Args:
        stages: of a definition.
        inputs: names of its inputs, which no new stage gets.

    Returns:
        One for each sum of exponentials of differences to the maximum over the same axes.
    """
    by_name = {stage.name: stage for stage in stages}
    taken = {*by_name, *inputs}
    found: list[Softmax] = []
    for stage in stages:
        softmax = _softmax(stage, by_name, taken)
        if softmax is not None:
            if not fits_one_number(softmax, stages):
                names = [(word, f"{stage.name}_{word}") for word in ("log2_sum", "top")]
                shift, top = (word if word not in taken else unique(long, taken, "_") for word, long in names)
                softmax = replace(softmax, shift=shift, top=top)
            found.append(softmax)
            taken |= {softmax.lse, softmax.shift, softmax.weights, softmax.top}
    return tuple(found)


def fits_one_number(softmax: Softmax, stages: Sequence[Stage]) -> bool:
    """Whether the log-sum-exp may stand for the maximum and the sum.

    Formal statement: no number above `LARGEST_SHIFT` is in the scores, other than in conditions and indices, and no
    element of an input is added in them or chosen in place of others: it may be a mask of such numbers.  A row whose
    scores are all near such a number has a log-sum-exp from which the logarithm of the sum was rounded away.
    """
    by_name = {stage.name: stage for stage in stages}
    return _largest_number(softmax.scores, by_name, set()) <= LARGEST_SHIFT and not _adds_an_input(
        softmax.scores, by_name, added=False
    )


def _adds_an_input(expr: Expr, by_name: Mapping[str, Stage], added: bool) -> bool:
    """Whether an element of a float input is a summand of a value, or stands in place of another one; or is the value,
    and that is `added`."""
    match expr:
        case Load(name, _):
            made = by_name.get(name)
            if made is not None:
                return made.reducer is None and _adds_an_input(made.term, by_name, added)
            return added
        case Op("add" | "sub", args):
            return any(_adds_an_input(x, by_name, added=True) for x in args)
        case Op("select", (_, a, b)):
            added |= not isinstance(a, Const) and not isinstance(b, Const)  # one of them hides the other
            return any(_adds_an_input(x, by_name, added) for x in (a, b))
        case Cast(dtype, arg) if "float" in dtype:
            return _adds_an_input(arg, by_name, added)
        case Op("mul", (a, b)) if any(not isinstance(x, Const) and not any(loads(x)) for x in (a, b)):
            return False  # slopes times distances
        case Op("mul" | "neg" | "max" | "min" | "div", args):
            return any(_adds_an_input(x, by_name, added) for x in args)
    return False


def _largest_number(expr: Expr, by_name: Mapping[str, Stage], seen: set[str]) -> float:
    """The largest magnitude of a finite number in a value, and in the maps that it reads."""
    match expr:
        case Const(bool()):
            return 0.0
        case Const(value):
            return abs(float(value)) if math.isfinite(value) else 0.0
        case Load(name, _):
            made = by_name.get(name)
            if made is None or made.reducer is not None or name in seen:
                return 0.0
            return _largest_number(made.term, by_name, seen | {name})
        case Op("select", (_, a, b)):
            return max(_largest_number(x, by_name, seen) for x in (a, b))
    return max((_largest_number(x, by_name, seen) for x in children(expr)), default=0.0)


def _softmax(total: Stage, by_name: dict[str, Stage], taken: Collection[str]) -> Softmax | None:
    """The softmax whose sum is this stage."""
    read = without_casts(total.term)
    if total.reducer != "sum" or not isinstance(read, Load) or read.buffer not in by_name:
        return None
    exponential = by_name[read.buffer]
    # The sum reads e[r, c] in e's order of axes.
    own = exponential.at(read.indices)
    back = {index.name: Var(axis) for axis, index in own.items() if isinstance(index, Var)}
    if len(back) != len(own):
        return None
    match exponential.term:
        case Op("exp", (Op("sub", (scores, Load(name, at))),)) if exponential.reducer is None and name in by_name:
            largest = by_name[name]
        case _:
            return None
    folded = tuple(axis for axis in exponential.axes if own[axis[0]] in [Var(name) for name, _ in total.folded])
    row = tuple(back.get(name, Var(name)) for name, _ in total.axes)
    if largest.reducer != "max" or tuple(at) != row or len(largest.folded) != len(folded):
        return None
    mine = [axis for axis, _ in (*largest.axes, *largest.folded)]
    names = dict(zip(mine, (*at, *(Var(a) for a, _ in folded)), strict=True))
    if substitute(largest.term, names) != scores or [e for _, e in largest.folded] != [e for _, e in folded]:
        return None
    names = [(word, f"{total.name}_{word}") for word in ("lse", "lse2", "weights")]
    lse, shift, weights = (word if word not in taken else unique(long, taken, "_") for word, long in names)
    own_lse = (s.name for s in by_name.values() if s.reducer is None and _is_lse(s, largest, total))
    lse = next(own_lse, lse)
    return Softmax(largest, exponential, total, scores, folded, lse, shift, weights)


def _is_lse(stage: Stage, largest: Stage, total: Stage) -> bool:
    """Whether a stage is m + log(s), -inf where m is, or m where it is infinite."""
    at, lowest = stage.place, Const(float("-inf"), total.dtype)
    if stage.dtype != total.dtype or stage.shape != total.shape:
        return False
    m, log = Load(largest.name, at), Op("log", (Load(total.name, at),))
    sums = (Op("add", (m, log)), Op("add", (log, m)))
    guards = ((Op("eq", (m, lowest)), lowest), (is_infinite(m, total.dtype), m))
    return any(stage.term in (x, *(Op("select", (*guard, x)) for guard in guards)) for x in sums)


def is_infinite(x: Expr, dtype: str) -> Expr:
    """The condition under which torch.logsumexp is the maximum itself."""
    return Op("eq", (Op("abs", (x,)), Const(math.inf, dtype)))


def without_casts(expr: Expr) -> Expr:
    """The expression under conversions between floats."""
    while isinstance(expr, Cast) and "float" in expr.dtype:
        expr = expr.arg
    return expr
