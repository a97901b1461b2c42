"""How far an index reaches inside of loops whose ends depend on each other's variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neptune_lab.htile.affine import Affine, affine, expression
from neptune_lab.htile.bounds import Env, interval
from neptune_lab.htile.nodes import Arith, For, IndexExpr, Int, Name
from neptune_lab.htile.substitute import substitute_index
from neptune_lab.htile.walk import names_of_index


def highest(expr: IndexExpr, env: Env, loops: Sequence[For]) -> int:
    """A number that no value of `expr` exceeds in the bodies of `loops`; at most `interval(expr, env).hi`.

    A split of 12 tiles, the last of which has fewer: where `interval` sees the last tile of the last split,

        for j0 in range(min(12, 93 - js*12)):
            x[js*768 + j0*64 : ... + 64]

    `j0 <= 92 - js*12` gives `js*768 + j0*64 <= 92*64`, since the terms of `js` cancel.

    Tiles that are dealt to 12 splits in turn end at a division: `j0 <= (92 - js) // 12` gives
    `j0*768 + js*64 <= 92*64`.

    Args:
        expr: an index.
        env: the intervals of all variables; those of `loops` included.
        loops: the loops around the place, each of which runs at least once wherever the place is reached.

    Raises:
        TileError: a variable is not in `env`, or a divisor may be 0 or negative.

    >>> from neptune_lab.htile.bounds import Interval
    >>> js, j0 = Name("js"), Name("j0")
    >>> stop = Arith("min", Int(12), Arith("-", Int(93), Arith("*", js, Int(12))))
    >>> loop = For("for:j0", "j0", Int(0), stop, (), "k")
    >>> index = Arith("+", Arith("*", js, Int(768)), Arith("*", j0, Int(64)))
    >>> env = {"js": Interval(0, 7), "j0": Interval(0, 11)}
    >>> interval(index, env).hi, highest(index, env, [loop])
    (6080, 5888)
    >>> loop = For("for:j0", "j0", Int(0), Arith("//", Arith("-", Int(104), js), Int(12)), (), "k")
    >>> dealt = Arith("+", Arith("*", js, Int(64)), Arith("*", j0, Int(768)))
    >>> env = {"js": Interval(0, 11), "j0": Interval(0, 7)}
    >>> interval(dealt, env).hi, highest(dealt, env, [loop])
    (6080, 5888)
    """
    # Products with a variable that has one value are linear.  The loops' own stay: an end takes their place.
    own = {loop.var for loop in loops}
    values = {name: Int(it.lo) for name, it in env.items() if it.lo == it.hi and name not in own}
    form = affine(_with_values(expr, values))
    return min([interval(expr, env).hi, *(n for loop in loops for n in _bounds_at_loop_ends(form, loop, env, values))])


def _bounds_at_loop_ends(form: Affine, loop: For, env: Env, values: Mapping[str, Int]) -> Iterator[int]:
    """Bounds of the form with each end of the loop in place of its variable."""
    var = Name(loop.var)
    step, rest = form.coefficient(var), form.without(var)
    if step <= 0 or loop.var in names_of_index(expression(rest)):
        return
    for end in _arms_of_minimum(loop.stop):
        last = affine(_with_values(end, values)) + -1
        yield interval(expression(_without_divisions(last * step + rest)), env).hi


def _without_divisions(form: Affine) -> Affine:
    """A form that is nowhere below, in which terms of a division's dividend may cancel.

    Formal statement: d * (a // d) <= a for positive d.
    """
    for atom, k in form.terms:
        match atom:
            case Arith(op="//", a=a, b=Int(value=divisor)) if divisor > 0 and k > 0 and k % divisor == 0:
                form = form.without(atom) + affine(a) * (k // divisor)
            case _:
                pass
    return form


def _arms_of_minimum(stop: IndexExpr) -> Iterator[IndexExpr]:
    """Expressions none of which is below `stop`: the arms of a minimum."""
    match stop:
        case Arith(op="min", a=a, b=b):
            yield from _arms_of_minimum(a)
            yield from _arms_of_minimum(b)
        case _:
            yield stop


def _with_values(expr: IndexExpr, values: Mapping[str, Int]) -> IndexExpr:
    for name in names_of_index(expr) & values.keys():
        expr = substitute_index(expr, name, values[name])
    return expr


__all__ = ["highest"]
