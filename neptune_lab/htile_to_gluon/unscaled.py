"""Softmax weights of 8 bits in fewer operations: row work on products that are not scaled.

Attention with products of 8 bits spends more time on row work than on products.  Between a score and its weight of 8
bits, the general form has five operations per element: a scale that is known at run time only, two products, their
difference, and the factor of the weights.  Here there are two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import accesses, names_of_access, rewrite, rewrite_store
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure, Unscaled
from neptune_lab.strict.dtypes import EIGHTS, LARGEST_FINITE

LOG2_E = math.log2(math.e)
# In place of a scale of 0, with which a masked score, -inf, would become NaN. Products of 8 bits times it are 0 to all
# digits of an exponent.
TINY = 1e-30
# Of scores times log2(e): the largest whose rounding, 2^-8, is no matter for weights of 8 bits.
SMALL = 2.0**16
_LOWEST = ir.Literal(-math.inf, "float32")


@dataclass(frozen=True, slots=True)
class _Softmax:
    """The tiles of a rolling softmax, by role; `finite` is `largest`, or what stands for it where that is -inf.

    All are compared between the parts of a loop, which are rewritten only if each has the same softmax.
    """

    product: str
    score: str
    of_tile: str
    largest: str
    before: str
    finite: str
    weight: str
    repair: str
    sum_of_tile: str
    total: str
    scale: ir.TileExpr
    factor: float


def unscaled(program: ir.Program, structure: Structure) -> tuple[ir.Program, Structure]:
    """Before => after, for a scalar s, and F(m) that is log2(e), or another factor for large m:

        score = qk * s                          =>  score = qk
        tile = max(score)                       =>  tile = max(score)
        m1 = max(m0, tile)                      =>  m1 = max(m0, tile)
        e = exp2(score * F(m1) - m1 * F(m1))    =>  e = exp2((score - m1) * t + 8)
        r = exp2((m0 - m1) * log2(e))           =>  r = exp2((m0 - m1) * t)
        l = r * l + sum(e)                      =>  l = r * l + sum(e)
        z = e4m3(e * 256) @ v                   =>  z = e4m3(e) @ v
        after the loop: m0, l                   =>  m0 * u, l / 256

    Formal statement: let u = max(|s|, TINY), t = u * log2(e), and q be negated if s < 0, so that qk * u is the former
    score unless s is 0.  Rounding is monotone, so max(qk * u) = max(qk) * u, and m0 * u is the former m0.  No
    score - m1 exceeds 0, so no weight exceeds 256; for the largest score it is 0, whatever its size, so F is not
    needed.  Each e has the factor 256 = 2^8, and so has l.  If s is 0, products times t are 0, and -inf times t is
    -inf.  NaN stays NaN, and where m0 * u is +inf, l becomes NaN as it was.

    If u is so small that no score times log2(e) exceeds SMALL, since products of floats of 8 bits are bounded, e and r
    are, with c = 8 - m1 * t and c0 = 8 - m0 * t,

        e = exp2(score * t + c)
        r = exp2(c - c0)

    Formal statement: the rounding of c is a factor of the row's e, at most 2^(2^-8), of l, z and r alike.  So a weight
    exceeds 256 by less than half of the distance of the next float of 8 bits.

    Returns:
        The program and the structure in that form; as given if it is no such softmax.
    """
    found = _softmax(program, structure)
    if found is None:
        return program, structure
    taken = {tensor.name for tensor in program.tensors}
    scale, unit, rate = (_fresh(name, taken) for name in ("scale", "unit", "rate"))
    model = structure.first.middle[0]

    def scalar(name: str, value: ir.TileExpr) -> ir.Store:
        return replace(model, target=ir.Access(name, ()), value=value, mask=None)

    size = ir.Elementwise("abs", (ir.Access(scale, ()),), "float32")
    before = (
        *structure.before,
        scalar(scale, found.scale),
        scalar(unit, _float("max", size, ir.Literal(TINY, "float32"))),
        scalar(rate, _float("mul", ir.Access(unit, ()), ir.Literal(LOG2_E, "float32"))),
    )
    after = tuple(rewrite_store(stmt, _outside(found, unit)) for stmt in structure.after)

    def form(*, small: bool) -> Structure:
        first, *parts = (_rewritten_part(part, found, rate, small) for part in (structure.first, *structure.parts))
        return replace(structure, before=before, first=first, parts=tuple(parts), after=after)

    limit = SMALL / (LOG2_E * _largest_product(program, structure.first.leading[0]))
    made = replace(form(small=False), unscaled=Unscaled(scale, found.weight, unit, limit, small=form(small=True)))
    tensors = (*program.tensors, *(ir.Tensor(name, (), "float32", "chip") for name in (scale, unit, rate)))
    return replace(program, tensors=tensors), made


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _float(op: str, *args: ir.TileExpr) -> ir.Elementwise:
    return ir.Elementwise(op, args, "float32")


# -- the new form -----------------------------------------------------------------------------------------------


def _largest_product(program: ir.Program, product: Product) -> float:
    """A bound of the magnitude of an element of the product."""
    return shape_of(product.a, program)[1] * LARGEST_FINITE[dtype_of(product.b, program)] ** 2


def _rewritten_part(part: LoopPart, found: _Softmax, rate: str, small: bool) -> LoopPart:
    middle = tuple(replace(stmt, value=_value(stmt, found, rate, small)) for stmt in part.middle)
    return replace(part, middle=middle, trailing=tuple(_trailing(product, found) for product in part.trailing))


def _value(stmt: ir.Store, found: _Softmax, rate: str, small: bool) -> ir.TileExpr:
    t, eight = ir.Access(rate, ()), ir.Literal(math.log2(found.factor), "float32")

    def offset(largest: ir.TileExpr) -> ir.TileExpr:
        return _float("sub", eight, _float("mul", largest, t))

    match stmt.target.tensor:
        case found.score:
            return _without_scale(stmt.value, found.product)
        case found.weight:
            score, finite = _difference(stmt.value, found.score, found.finite)
            if small:
                return _float("exp2", _float("add", _float("mul", score, t), offset(finite)))
            return _float("exp2", _float("add", _float("mul", _float("sub", score, finite), t), eight))
        case found.repair:
            before, finite = _difference(stmt.value, found.before, found.finite)
            if small:
                return _float("exp2", _float("sub", offset(finite), offset(before)))
            return _float("exp2", _float("mul", _float("sub", before, finite), t))
        case _:
            return stmt.value


def _without_scale(value: ir.TileExpr, product: str) -> ir.TileExpr:
    match value:
        case ir.Elementwise(op="where", args=(condition, inner, other)):
            return replace(value, args=(condition, _without_scale(inner, product), other))
        case _:
            return next(access for access in accesses(value) if access.tensor == product)


def _difference(value: ir.TileExpr, *names: str) -> list[ir.Access]:
    """The first access to each of these tiles."""
    return [next(access for access in accesses(value) if access.tensor == name) for name in names]


def _trailing(product: Product, found: _Softmax) -> Product:
    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Elementwise(op="mul", args=(ir.Access(tensor=found.weight) as weight, ir.Literal())):
                return weight
            case _:
                return expr

    return replace(product, a=rewrite(product.a, visit))


def _outside(found: _Softmax, unit: str) -> Callable[[ir.TileExpr], ir.TileExpr]:
    """What the statements after the loop read in place of the largest score and of the sum."""

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Access) or expr.tensor not in (found.before, found.total):
            return expr
        largest = _float("mul", ir.Access(found.before, expr.index), ir.Access(unit, ()))
        if expr.tensor == found.before:
            return largest
        total = _float("mul", expr, ir.Literal(1.0 / found.factor, "float32"))
        return _float("add", total, _float("sub", largest, largest))  # NaN if the largest is infinite

    return visit


# -- the form that is looked for --------------------------------------------------------------------------------


def _softmax(program: ir.Program, structure: Structure) -> _Softmax | None:
    """The softmax of a structure, the same in all its parts, if the loop consists of nothing else."""
    found = {_in_part(program, structure, part) for part in (structure.first, *structure.parts)}
    return found.pop() if len(found) == 1 else None


def _in_part(program: ir.Program, structure: Structure, part: LoopPart) -> _Softmax | None:
    """The roles of the values of one part, if it is a softmax of scores times a constant; else None."""
    values = {stmt.target.tensor: stmt.value for stmt in part.middle}
    weights = [_of_weights(product.a) for product in part.trailing]
    if len(part.leading) != 1 or len(weights) != 1 or weights[0] is None or len(values) != len(part.middle):
        return None
    weight, factor = weights[0]
    product = part.leading[0].target
    scores = [(name, s) for name, value in values.items() if (s := _scale_of(program, value, product)) is not None]
    if len(scores) != 1 or not _is_constant(structure, scores[0][1]):
        return None
    score, scale = scores[0]
    of_tile = _only(values, lambda v: _is_reduction(v, "max", score))
    sum_of_tile = _only(values, lambda v: _is_reduction(v, "sum", weight))
    largest = _only(values, lambda v: isinstance(v, ir.Elementwise) and v.op == "max" and of_tile in _names(v))
    if of_tile is None or sum_of_tile is None or largest is None or weight not in values:
        return None
    before = next((stmt.target.tensor for stmt in part.after if _names(stmt.value) == {largest}), None)
    total = _only(values, lambda v: sum_of_tile in _names(v))
    finite = _only(values, lambda v: _is_finite(v, largest)) or largest
    if before is None or total is None or _names(values[largest]) != {before, of_tile}:
        return None
    repair = _only(values, lambda v: _is_exponential(v, before, finite, {before, finite}, factored=False))
    if repair is None or _names(values[total]) != {repair, total, sum_of_tile}:
        return None
    if not _is_exponential(values[weight], score, finite, {score, finite}, factored=True):
        return None
    roles = (product, score, of_tile, largest, before, finite, weight, repair, sum_of_tile, total)
    if set(values) != {*roles} - {product, before} or len(part.after) != 1:
        return None
    promoted = {name for p in part.trailing if p.promotion is not None for name in _names(p.promotion.value)}
    if promoted - {repair, *(p.target for p in part.trailing), *(p.accumulator for p in part.trailing)}:
        return None
    return _Softmax(*roles, scale=scale, factor=factor)


def _names(expr: ir.TileExpr) -> set[str]:
    return {access.tensor for access in accesses(expr)}


def _only(values: dict[str, ir.TileExpr], holds: Callable[[ir.TileExpr], bool]) -> str | None:
    """The only tile whose value has a property."""
    found = [name for name, value in values.items() if holds(value)]
    return found[0] if len(found) == 1 else None


def _of_weights(a: ir.TileExpr) -> tuple[str, float] | None:
    """The tile that is rounded to 8 bits, and its factor, a power of two."""
    match _past_the_end(a, 0.0):
        case ir.Cast(arg=ir.Elementwise(op="mul", args=(ir.Access(tensor=name), ir.Literal(value=value))), dtype=dtype):
            factor = float(value)
            if dtype in EIGHTS and factor > 0 and math.frexp(factor)[0] == 0.5:
                return name, factor
    return None


def _scale_of(program: ir.Program, value: ir.TileExpr, product: str) -> ir.TileExpr | None:
    """s, if a score is `product * s`, or that where it is not masked."""
    match value:
        case ir.Elementwise(op="where", args=(condition, inner, other)) if other == _LOWEST:
            return None if product in _names(condition) else _scale_of(program, inner, product)
        case ir.Elementwise(op="mul", args=(ir.Access(tensor=name), s)) if name == product:
            return s if shape_of(s, program) == () and _reads_any(s) else None
        case ir.Elementwise(op="mul", args=(s, ir.Access(tensor=name))) if name == product:
            return s if shape_of(s, program) == () and _reads_any(s) else None
        case _:
            return None


def _reads_any(expr: ir.TileExpr) -> bool:
    """Whether it reads a tensor."""
    return any(True for _ in accesses(expr))


def _is_constant(structure: Structure, scale: ir.TileExpr) -> bool:
    """Whether a scalar is the same in all iterations: it reads what statements before the loop store, or tensors at
    places that no loop moves."""
    variables = {part.loop.var for part in structure.parts if part.loop is not None}
    stored = {stmt.target.tensor for part in structure.parts for stmt in (*part.middle, *part.after)}
    return not any(variables & names_of_access(access) or access.tensor in stored for access in accesses(scale))


def _is_reduction(value: ir.TileExpr, op: str, name: str) -> bool:
    match value:
        case ir.Reduce(op=found, arg=arg, dim=1):
            tile = _past_the_end(arg, -math.inf if op == "max" else 0.0)
            return found == op and isinstance(tile, ir.Access) and tile.tensor == name
        case _:
            return False


def _past_the_end(expr: ir.TileExpr, identity: float) -> ir.TileExpr:
    """A tile of which the columns past the end of the keys are replaced by `identity`, without that."""
    match expr:
        case ir.Elementwise(op="where", args=(condition, inner, ir.Literal(value=other))) if other == identity:
            return expr if _names(condition) else inner
        case _:
            return expr


def _is_finite(value: ir.TileExpr, largest: str) -> bool:
    """Whether it is `largest`, or 0 where that is -inf."""
    match value:
        case ir.Elementwise(
            op="where",
            args=(
                ir.Elementwise(op="eq", args=(ir.Access(tensor=a), lowest)),
                ir.Literal(value=0),
                ir.Access(tensor=b),
            ),
        ):
            return a == b == largest and lowest == _LOWEST
        case _:
            return False


def _is_exponential(value: ir.TileExpr, x: str, m: str, may_read: set[str], *, factored: bool) -> bool:
    """Whether it is exp(x - m): exp2((x - m) * F), or with `factored` exp2(x * F - m * F)."""
    match value:
        case ir.Elementwise(op="exp2", args=(ir.Elementwise(op="sub", args=(a, b)),)) if factored:
            rates = [_factor_beside(term, name) for term, name in ((a, x), (b, m))]
            return rates[0] is not None and rates[0] == rates[1] and _is_rate(rates[0], {m})
        case ir.Elementwise(op="exp2", args=(ir.Elementwise(op="mul", args=(ir.Elementwise(op="sub") as d, rate)),)):
            if factored:
                return False
            plain = all(isinstance(arg, ir.Access) for arg in d.args)
            return plain and [a.tensor for a in accesses(d)] == [x, m] and _is_rate(rate, may_read)
        case _:
            return False


def _factor_beside(term: ir.TileExpr, name: str) -> ir.TileExpr | None:
    match term:
        case ir.Elementwise(op="mul", args=(ir.Access(tensor=tensor), factor)) if tensor == name:
            return factor
        case ir.Elementwise(op="mul", args=(factor, ir.Access(tensor=tensor))) if tensor == name:
            return factor
        case _:
            return None


def _is_rate(expr: ir.TileExpr, may_read: set[str]) -> bool:
    """Whether it is log2(e), or another number under conditions on the largest score: a form of exp(x - m) for m so
    large that log2(e) * m is not exact enough."""
    match expr:
        case ir.Literal(value=value):
            return math.isclose(float(value), LOG2_E, rel_tol=1e-6)
        case ir.Elementwise(op="where", args=(_, _, other)):
            return _names(expr) <= may_read and _is_rate(other, may_read)
        case _:
            return False


__all__ = ["unscaled"]
