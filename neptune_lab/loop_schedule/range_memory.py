"""What `float_range` has run, remembered by what decides the outcome: most compiles ask about the same loop again.

Sizes, names of tensors and places of elements decide nothing: the values are drawn by the kind of each leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op, Previous, Var
from neptune_lab.loop_schedule.range_samples import kind_of, leaves_of
from neptune_lab.loop_schedule.rolled_loop import Rolled

_found: OrderedDict[str, str] = OrderedDict()
_MOST = 512


def remembered(loop: Rolled, check: Callable[[Rolled], str]) -> str:
    """`check(loop)`, or what it said of a loop like this one; a refusal is not remembered."""
    key = likeness(loop)
    known = _found.pop(key, None)
    if known is None:
        known = check(loop)
    _found[key] = known
    if len(_found) > _MOST:
        _found.popitem(last=False)
    return known


def forget_ranges() -> None:
    """Every loop is run again: for tests that change the compiler."""
    _found.clear()


def likeness(loop: Rolled) -> str:
    """All that decides the outcome for a loop, as text: Python takes 1, 1.0 and True for equal, and 0.0 and -0.0.

    Formal statement: loops of one text draw the same values for their leaves, in the same order, and compute the same
    with them.
    """
    leaves = {leaf: Var(f"leaf {n}") for n, leaf in enumerate(leaves_of(loop))}
    folds = {buffer: (reducer, _placed(element, leaves)) for buffer, (reducer, element) in loop.folds.items()}
    return repr(
        (
            [kind_of(loop, leaf) for leaf in leaves],
            (loop.reducer, [_placed(term, leaves) for term in loop.terms], loop.carried, loop.moved),
            (dict(loop.places), dict(loop.points), sorted(loop.estimates), folds, loop.told),
        )
    )


def _placed(expr: Expr, leaves: Mapping[Expr, Expr]) -> Expr:
    """An expression over leaves and producers alone."""
    if expr in leaves:
        return leaves[expr]
    match expr:
        case Load(buffer, _) | Previous(buffer, _, _):
            return Load(buffer, ())
        case Op(name, args):
            return Op(name, tuple(_placed(arg, leaves) for arg in args))
        case Cast(dtype, arg):
            return Cast(dtype, _placed(arg, leaves))
    return expr


__all__ = ["forget_ranges", "likeness", "remembered"]
