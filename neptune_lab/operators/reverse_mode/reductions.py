"""Derivatives of reductions other than sums, whose derivative with respect to a term is 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var, add, mul
from neptune_lab.loop_ir.walks import substitute, walk
from neptune_lab.operators.reverse_mode.derivatives import Arithmetic
from neptune_lab.operators.reverse_mode.stages import Stage
from neptune_lab.operators.ties import LAST_NAN, NAN_AMONG_EQUALS, OF_EXTREMA, WITHOUT_FILLING, Ties
from neptune_lab.scalar_ops import OPERATIONS

# Terms within this part of a maximum count as equal to it if they are rounded: 16 roundings of float32.
ROUNDINGS = 2.0**-20


@dataclass(frozen=True)
class Terms:
    """What is known of the terms of a maximum or minimum.

    Args:
        exact: whether no operation between the inputs and the terms rounds; otherwise a kernel may compute a term again
            with another rounding.  Then the extremum is found again, of the terms of the backward pass, and terms that
            are equal up to rounding count: that of the forward pass may differ from all of them by any number of
            roundings, as that of exponentials does.
        marks: of the stage (`operators.ties`).
        compared: the term; NaN, which equals nothing, where it only fills up.
    """

    exact: bool
    marks: frozenset[Expr]
    compared: Expr


def terms_of(stage: Stage, stages: Sequence[Stage], ties: Ties) -> Terms:
    """The terms of a maximum or minimum.

    Args:
        stage: the reduction.
        stages: of the definition.
        ties: of the stage (`operators.ties`).
    """
    marks, compared = OF_EXTREMA.intersection(ties), stage.term
    if WITHOUT_FILLING in marks:
        identity = -math.inf if stage.reducer == "max" else math.inf
        compared = _without_filling(stage.term, identity, {s.name: s for s in stages})
    return Terms(is_exact(stage.term, stages), marks, compared)


def of_extremum(
    stage: Stage,
    cotangent: Expr,
    a: Arithmetic,
    fresh: Callable[[str], str],
    terms: Terms,
) -> tuple[tuple[Stage, ...], Expr]:
    """The cotangent of each term of a maximum or minimum: all terms that are equal to it share its cotangent, as of
    torch.amax (derivatives.yaml: scale_grad_by_count).  If one of them is NaN, every term gets NaN, or those that are
    NaN share the cotangent, as of torch.max(x) (evenly_distribute_backward).

    Args:
        stage: the reduction.
        cotangent: its cotangent, at its own axes.
        a: arithmetic.
        fresh: makes a name of a stage.
        terms: of the stage.

    Returns:
        The stages of the extremum, if it is found again, and of the number of terms; and the cotangent of a term.
    """
    again, reached = _equals_extremum(stage, a, fresh, terms)
    among = NAN_AMONG_EQUALS in terms.marks
    reached = Op("or", (reached, _is_nan(stage.term))) if among else reached
    one = Op("select", (reached, a.number(1), a.number(0)))
    count = Stage(fresh(f"{stage.name}_ties"), stage.axes, stage.folded, "sum", one, a.dtype)
    share = a.div(cotangent, count.element)
    if not among:  # no term equals NaN, so that PyTorch divides by 0 and each term gets NaN
        share = a.select(_is_nan(stage.element), a.wide(stage.element), share)
        reached = Op("or", (reached, _is_nan(stage.element)))
    chosen = a.select(reached, share, None)
    assert chosen is not None
    return (*again, count), chosen


def of_first(
    stage: Stage,
    cotangent: Expr,
    a: Arithmetic,
    fresh: Callable[[str], str],
    terms: Terms,
) -> tuple[tuple[Stage, ...], Expr]:
    """The cotangent of each term of a maximum or minimum whose position is a result too, as of torch.max(x, dim): the
    first of the terms that are equal to it, or are NaN, gets its cotangent (derivatives.yaml:
    value_selecting_reduction_backward); of a pooling's window, the last NaN does.

    Args:
        stage: the reduction.
        cotangent: its cotangent, at its own axes.
        a: arithmetic.
        fresh: makes a name of a stage.
        terms: of the stage.

    Returns:
        The stages of the extremum, if it is found again, and of the position; and the cotangent of a term.
    """
    again, reached = _equals_extremum(stage, a, fresh, terms)
    reached = Op("or", (reached, _is_nan(stage.term)))  # (the extremum of terms with NaN is the first NaN)
    place: Expr = Const(0)
    for name, extent in stage.folded:
        place = add(mul(place, extent), Var(name))
    if LAST_NAN in terms.marks:  # numbers below 0, of which the last NaN has the least
        place = Op("select", (_is_nan(stage.term), Op("sub", (Const(-1), place)), place))
    found = Op("select", (reached, place, Const(prod(stage.extents[n] for n, _ in stage.folded))))
    position = Stage(fresh(f"{stage.name}_place"), stage.axes, stage.folded, "min", found, "int32")
    chosen = a.select(Op("eq", (place, position.element)), cotangent, None)
    assert chosen is not None
    return (*again, position), chosen


def _is_nan(x: Expr) -> Expr:
    return Op("ne", (x, x))


def _equals_extremum(
    stage: Stage, a: Arithmetic, fresh: Callable[[str], str], terms: Terms
) -> tuple[tuple[Stage, ...], Expr]:
    """The stage that finds the extremum again, if there is one; and whether a term equals it, or up to rounding."""
    if terms.exact:
        return (), Op("eq", (terms.compared, stage.element))
    again = replace(stage, name=fresh(f"{stage.name}_again"))
    element: Expr = again.element if again.dtype == a.dtype else Cast(a.dtype, again.element)
    term = a.wide(terms.compared)
    bound = Op("mul", (Op("abs", (element,)), a.number(ROUNDINGS)))
    # (less, and not at most: every number is at most an infinity away from an infinite extremum)
    near = Op("lt", (Op("abs", (Op("sub", (term, element)),)), bound))
    return (again,), Op("or", (Op("eq", (terms.compared, again.element)), near))


def _without_filling(term: Expr, identity: float, by_name: Mapping[str, Stage]) -> Expr:
    """The term, and NaN, which equals nothing, where its choices give the identity."""
    match term:
        case Const(value, dtype) if value == identity:
            return Const(math.nan, dtype)
        case Cast(dtype, inner):
            return Cast(dtype, _without_filling(inner, identity, by_name))
        case Load(name, at) if name in by_name and by_name[name].reducer is None:
            stage = by_name[name]
            inner = substitute(stage.term, stage.at(at))
            changed = _without_filling(inner, identity, by_name)
            return term if changed == inner else changed
        case Op("select", (condition, yes, no)):
            sides = (_without_filling(x, identity, by_name) for x in (yes, no))
            return Op("select", (condition, *sides))
    return term


def is_exact(expr: Expr, stages: Sequence[Stage]) -> bool:
    """Whether no operation between the inputs and an expression rounds.

    Args:
        expr: over tensors of a definition.
        stages: of the definition.
    """
    by_name = {stage.name: stage for stage in stages}

    def of(part: Expr) -> bool:
        match part:
            case Load(name, _):  # (the index is of whole numbers)
                stage = by_name.get(name)
                return stage is None or (stage.reducer in (None, "max", "min") and of(stage.term))
            case Op(name, args):
                return _of_positions(part) or (OPERATIONS[name].exact and all(map(of, args)))
            case Cast(_, arg):
                return of(arg)
        return True

    return of(expr)


def _of_positions(expr: Expr) -> bool:
    """Whether an expression is whole numbers or conditions of positions alone."""
    return not any(isinstance(node, Load) or "float" in getattr(node, "dtype", "") for node in walk(expr))


def of_product(
    stage: Stage, cotangent: Expr, a: Arithmetic, fresh: Callable[[str], str]
) -> tuple[tuple[Stage, ...], Expr]:
    """The cotangent of each term of a product: the cotangent times the product of all others, also if some terms are 0
    (derivatives.yaml: prod).

    Args:
        stage: the reduction.
        cotangent: its cotangent, at its own axes.
        a: arithmetic.
        fresh: makes a name of a stage.

    Returns:
        The stages of the number of zeros and of the product of the other terms, and the cotangent of a term.
    """
    is_zero = Op("eq", (a.wide(stage.term), a.number(0)))
    others = Op("select", (is_zero, a.number(1), a.wide(stage.term)))
    one = Op("select", (is_zero, a.number(1), a.number(0)))
    zeros = Stage(fresh(f"{stage.name}_zeros"), stage.axes, stage.folded, "sum", one, a.dtype)
    rest = Stage(fresh(f"{stage.name}_rest"), stage.axes, stage.folded, "prod", others, a.dtype)
    none, single = (Op("eq", (zeros.element, a.number(n))) for n in (0, 1))
    # 0 times the others beside a further zero: NaN if one of them is NaN or infinite
    nothing = Op("mul", (rest.element, a.number(0)))
    of_zero = a.select(single, rest.element, nothing)
    of_others = a.select(none, a.div(rest.element, others), nothing)
    chosen = a.mul(cotangent, a.select(is_zero, of_zero, of_others))
    assert chosen is not None
    return (zeros, rest), chosen


__all__ = ["Terms", "is_exact", "of_extremum", "of_first", "of_product", "terms_of"]
