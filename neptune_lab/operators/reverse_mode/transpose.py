"""The transpose of a read: which iterations of a reader read a given element of a tensor.

A stage that reads x[f(i)] in iteration i passes to x[k] the cotangents of all i with f(i) = k.  Where f can be
inverted, i is an expression of k and of axes that are summed over; what is left is a condition f(i) = k.  So the
transpose of a gather is a sum over all iterations under a condition, in an order of its own: deterministic, without
atomic additions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var
from neptune_lab.loop_ir.reach import Sum, as_sum
from neptune_lab.loop_ir.walks import substitute, variables
from neptune_lab.operators.reverse_mode.stages import Axis


@dataclass(slots=True)
class Transposed:
    """The iterations that read the element at the target's axes.

    Args:
        values: the reader's iteration variables as expressions of the target's axes and of `free`.
        free: axes to sum over, with names of their own.
        conditions: which of them count.
    """

    values: dict[str, Expr] = field(default_factory=dict)
    free: list[Axis] = field(default_factory=list)
    conditions: list[Expr] = field(default_factory=list)

    def at(self, expr: Expr) -> Expr:
        """An expression of the reader's iteration at these iterations."""
        return substitute(expr, self.values)


def is_permutation(index: Sequence[Expr], axes: Sequence[Axis], extents: Mapping[str, int]) -> bool:
    """Whether each dimension is read by a variable of its own, along its whole extent.

    Args:
        index: of the read.
        axes: of the tensor that is read.
        extents: of the reader's variables.
    """
    names = [e.name for e in index if isinstance(e, Var)]
    return (
        len(names) == len(axes)
        and len(set(names)) == len(names)
        and all(extents[name] == extent for name, (_, extent) in zip(names, axes, strict=True))
    )


def transposed(index: Sequence[Expr], target: Sequence[Axis], extents: Mapping[str, int]) -> Transposed:
    """The transpose of `x[index]`, read in every iteration of a reader.

    Formal statement: for each element k of x, the iterations i with index(i) = k are those values of `values`, for all
    `free`, at which `conditions` hold, each once.  Under the conditions all values are within `extents`.

    Args:
        index: expressions of the reader's variables, one per dimension of x.
        target: the axes of x; their names are not among the reader's variables.
        extents: of the reader's variables.

    >>> from neptune_lab.loop_ir.render import expression
    >>> found = transposed([Op("floordiv", (Var("h"), Const(4)))], [("x0", 2)], {"h": 8, "i": 3})
    >>> {name: expression(value) for name, value in found.values.items()}, found.free, found.conditions
    ({'h': 'x0 * 4 + h_part', 'i': 'i'}, [('h_part', 4), ('i', 3)], [])
    """
    made = Transposed()
    taken = {name for name, _ in target} | set(extents)
    waiting = list(zip(index, target, strict=True))
    # Plain variables first: what they give makes the other dimensions' expressions known.
    waiting.sort(key=lambda pair: not isinstance(pair[0], Var))
    solved = _solve_digits(made, waiting, extents)
    for expr, (axis, extent) in waiting:
        if axis not in solved:
            _invert(made, expr, Var(axis), extent, extents, taken)
    for name, extent in extents.items():
        if name not in made.values:
            _free(made, name, extent)
    return made


def _invert(
    made: Transposed,
    expr: Expr,
    axis: Var,
    extent: int,
    extents: Mapping[str, int],
    taken: set[str],
) -> None:
    """Solves `expr = axis` for a variable of the reader that has no value yet, or makes it a condition."""
    unknown = sorted(variables(expr) - made.values.keys())
    match expr:
        case Const(int(value)) if extent == 1 and value == 0:
            return
        case Var(name) if name in unknown:
            made.values[name] = axis
            if extents[name] < extent:
                made.conditions.append(_below(axis, extents[name]))
            return
        case Op("floordiv", (Var(name), Const(int(size)))) if name in unknown and size > 0:
            part = unique(f"{name}_part", taken)
            taken.add(part)
            made.free.append((part, min(size, extents[name])))
            value = Op("add", (Op("mul", (axis, Const(size))), Var(part)))
            made.values[name] = value
            if extent * size > extents[name] or extents[name] % size:
                made.conditions.append(_below(value, extents[name]))
            return
        case Op("floormod", (Var(name), Const(int(size)))) if name in unknown and size > 0:
            whole = unique(f"{name}_whole", taken)
            taken.add(whole)
            count = -(-extents[name] // size)
            made.free.append((whole, count))
            value = Op("add", (Op("mul", (Var(whole), Const(size))), axis))
            made.values[name] = value
            if extent > size:
                made.conditions.append(_below(axis, size))
            if extents[name] < count * size:
                made.conditions.append(_below(value, extents[name]))
            return
    total = as_sum(expr)
    # The reader's last axis, so that neighbours of the target come from neighbours in the reader's memory.
    last_first = [name for name in reversed([*extents]) if name in unknown]
    chosen = None if total is None else next((v for v in last_first if abs(total.factor(v)) == 1), None)
    for name in unknown:
        if name != chosen:
            _free(made, name, extents[name])
    if total is None or chosen is None:
        made.conditions.append(Op("eq", (made.at(expr), axis)))
        return
    # factor * chosen + others = axis, and the factor is 1 or -1.
    factor = total.factor(chosen)
    others = total.plus(Sum(((chosen, factor),), 0), -1)
    value = made.at(_written(Sum((), 0).plus(Sum(((axis.name, 1),), 0).plus(others, -1), factor)))
    made.values[chosen] = value
    made.conditions += [Op("ge", (value, Const(0))), _below(value, extents[chosen])]


def _solve_digits(made: Transposed, reads: Sequence[tuple[Expr, Axis]], extents: Mapping[str, int]) -> frozenset[str]:
    """Solves reads of all digits of a variable together: of x[i // 12, i // 4 % 3, i % 4], i is x0 * 12 + x1 * 4 + x2.

    Returns:
        The axes of these reads.
    """
    solved: set[str] = set()
    plain = {expr.name for expr, _ in reads if isinstance(expr, Var)}
    found: dict[str, list[tuple[int, int | None, Axis]]] = {}
    for expr, axis in reads:
        digit = _digit(expr)
        if digit is not None and digit[0] in extents.keys() - plain:
            found.setdefault(digit[0], []).append((*digit[1:], axis))
    for name, digits in found.items():
        digits.sort(key=lambda digit: digit[0])
        following = 1
        for step, count, _ in digits:
            following = 0 if step != following else extents[name] if count is None else step * count
        # Formal statement: each digit begins where the one below it ends, and the last one reaches the extent.
        if len(digits) < 2 or following < extents[name] or any(count is None for _, count, _ in digits[:-1]):
            continue
        terms = Sum(tuple(sorted((axis, step) for step, _, (axis, _) in digits)), 0)
        made.values[name] = value = _written(terms)
        most = sum(step * (extent - 1) for step, _, (_, extent) in digits)
        made.conditions += [_below(Var(axis), count) for _, count, (axis, extent) in digits if count and extent > count]
        if most >= extents[name]:
            made.conditions.append(_below(value, extents[name]))
        solved |= {axis for _, _, (axis, _) in digits}
    return frozenset(solved)


def _digit(expr: Expr) -> tuple[str, int, int | None] | None:
    """(v, s, n) of an expression that is v // s % n, and v // s if n is None; None for another one.

    >>> _digit(Op("floordiv", (Op("floormod", (Var("i"), Const(12))), Const(4))))
    ('i', 4, 3)
    """
    match expr:
        case Var(name):
            return name, 1, None
        case Op("floordiv" | "floormod" as operation, (inner, Const(int(size)))) if size > 0:
            digit = _digit(inner)
            if digit is None:
                return None
            name, step, count = digit
            if count is not None and count % size:
                return None
            if operation == "floormod":
                return name, step, size
            return name, step * size, None if count is None else count // size
    return None


def _free(made: Transposed, name: str, extent: int) -> None:
    """A variable that every value of which counts; it keeps its name."""
    made.values[name] = Var(name)
    made.free.append((name, extent))


def _below(expr: Expr, limit: int) -> Expr:
    return Op("lt", (expr, Const(limit)))


def _written(total: Sum) -> Expr:
    """A sum of multiples as an expression: what is added first, then what is subtracted.

    >>> from neptune_lab.loop_ir.render import expression
    >>> expression(_written(Sum((("i", -1), ("j", 4)), 3))), expression(_written(Sum((("i", -2),), 0)))
    ('j * 4 + 3 - i', '0 - i * 2')
    """
    parts = [(Var(name) if abs(k) == 1 else Op("mul", (Var(name), Const(abs(k)))), k) for name, k in total.terms]
    parts += [(Const(abs(total.constant)), total.constant)] if total.constant else []
    added, taken = [part for part, k in parts if k > 0], [part for part, k in parts if k < 0]
    start: Expr = reduce(lambda a, b: Op("add", (a, b)), added) if added else Const(0)
    return reduce(lambda a, b: Op("sub", (a, b)), taken, start)


__all__ = ["Transposed", "is_permutation", "transposed"]
