"""Results of producers that a consumer rounds: h must be right of the rounded value, or the rounding must not matter.

The algebra drops conversions between floats, so h moves a partial result by the unrounded values of a producer, while
the terms were computed with the rounded ones. The definition rounds once. As a factor, the rounding is an error of
that size in either, but in an exponential or a difference it is common to all terms: in the quotient of the sums of
exp(x - m) * v and of exp(x - m), it cancels if every m is bfloat16(max x), and does not if each tile has another m.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.dtypes import dtype_of
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op, Program
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.strict.dtypes import HALVES

# Binary digits of each float.
_DIGITS = {"float8_e5m2": 3, "float8_e4m3fn": 4, "bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
# Operations that keep a relative error as small as it is, or halve it, and those that round nothing.
_FACTORS = frozenset({"mul", "div", "neg", "abs", "sqrt", "rsqrt", "max", "min"})
_EXACT = frozenset({"neg", "abs", "max", "min", "select", "guard"})


def check_rounding(
    program: Program, consumer: str, term: Expr, named: Mapping[Expr, str], reads: Mapping[str, tuple[Expr, ...]]
) -> None:
    """Raises RepairError, step "read", if a rounded result of a producer is more than a factor of the term.

    Formal statement: on the way from the term to a value of the row that is rounded and that reads a producer, there
    are only products, quotients, roots, absolute values, choices, extrema, and sums of numbers of one sign.

    Args:
        program: the program after naive fusion.
        consumer: the block of the term.
        term: the term, with the maps between inlined.
        named: each read of a producer in the term, and the producer's buffer.
        reads: for each producer's buffer, the index at which the term reads it.
    """
    of_row = {name for index in reads.values() for e in index for name in variables(e)}
    for rounded in _beside_factors(program, term):
        read = loads(rounded)
        mine = [named[e] for e in read if e in named]
        if mine and all(e in named or variables(e) <= of_row for e in read):
            dtype = dtype_of(rounded, program)
            raise RepairError(
                f"the term reads {mine[0]!r} rounded to {dtype}, in {expression(rounded)}, and not as a factor: each "
                "tile would have a rounding of its own, where the definition has one for all terms",
                step="read",
                expression=expression(rounded),
                node=consumer,
                help=f"read {mine[0]!r} in {program.buffer(mine[0]).dtype} in the term, and convert it after the loop; "
                "or leave the reduction in a loop of its own",
            )


def _beside_factors(program: Program, expr: Expr, factor: bool = True) -> Iterator[Expr]:
    """Roundings in `expr` that are no factors of the term; `factor`: whether `expr` is one."""
    if not factor and _rounds(program, expr):
        yield expr
    match expr:
        case Cast(_, arg):
            yield from _beside_factors(program, arg, factor)
        case Op("select", (condition, *branches)):
            yield from _beside_factors(program, condition, False)
            for branch in branches:
                yield from _beside_factors(program, branch, factor)
        case Op("guard", (arg, _, _)):
            yield from _beside_factors(program, arg, factor)
        case Op("pow", (base, Const())):
            yield from _beside_factors(program, base, factor)
        case Op(name, args):
            keeps = name in _FACTORS or (name in ("add", "sub") and _one_sign(program, args, name == "sub"))
            for arg in args:
                yield from _beside_factors(program, arg, factor and keeps)


def _rounds(program: Program, expr: Expr) -> bool:
    match expr:
        case Cast(dtype, arg):
            return _DIGITS.get(dtype, 99) < _DIGITS.get(dtype_of(arg, program), 0)
        case Op(name, _):
            return name not in _EXACT and dtype_of(expr, program) in HALVES
    return False


def _one_sign(program: Program, terms: Collection[Expr], negated: bool) -> bool:
    """Whether a sum of two terms, the second one negated or not, has no terms of two signs."""
    a, b = (range_of(program, term) for term in terms)
    lows, highs = (-b.high, -b.low) if negated else (b.low, b.high)
    return (a.low >= 0 and lows >= 0) or (a.high <= 0 and highs <= 0)


__all__ = ["check_rounding"]
