"""A cache of `float_range`'s results: most compiles check the same loop again.

The key leaves out sizes, names of tensors and indices of elements. The result does not depend on them, since values
are drawn by the kind of each leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op, Previous, Var
from neptune_lab.loop_schedule.range_samples import kind_of, leaves_of
from neptune_lab.loop_schedule.scalar_loop import ScalarLoop

_cache: OrderedDict[str, str] = OrderedDict()
_MOST = 512


def cached(loop: ScalarLoop, check: Callable[[ScalarLoop], str]) -> str:
    """`check(loop)`, from the cache if a loop with the same key was checked before. Refusals are not cached."""
    key = cache_key(loop)
    known = _cache.pop(key, None)
    if known is None:
        known = check(loop)
    _cache[key] = known
    if len(_cache) > _MOST:
        _cache.popitem(last=False)
    return known


def clear_ranges() -> None:
    """Empties the cache, for tests that change the compiler."""
    _cache.clear()


def cache_key(loop: ScalarLoop) -> str:
    """Everything that the result for a loop depends on, as text (1, 1.0 and True are equal in Python, their texts not).

    Formal statement: loops with the same text draw the same values for their leaves, in the same order, and compute
    the same results from them.
    """
    leaves = {leaf: Var(f"leaf {n}") for n, leaf in enumerate(leaves_of(loop))}
    moved = [_with_numbered_leaves(h, leaves) for h in loop.moved]
    folds = {
        buffer: (reducer, _with_numbered_leaves(element, leaves)) for buffer, (reducer, element) in loop.folds.items()
    }
    return repr(
        (
            [kind_of(loop, leaf) for leaf in leaves],
            (loop.reducer, [_with_numbered_leaves(term, leaves) for term in loop.terms], loop.carried, moved),
            (dict(loop.places), dict(loop.points), sorted(loop.estimates), folds, loop.told),
        )
    )


def _with_numbered_leaves(expr: Expr, leaves: Mapping[Expr, Expr]) -> Expr:
    """The expression with numbered leaves, and producers without indices."""
    if expr in leaves:
        return leaves[expr]
    match expr:
        case Load(buffer, _) | Previous(buffer, _, _):
            return Load(buffer, ())
        case Op(name, args):
            return Op(name, tuple(_with_numbered_leaves(arg, leaves) for arg in args))
        case Cast(dtype, arg):
            return Cast(dtype, _with_numbered_leaves(arg, leaves))
    return expr


__all__ = ["cache_key", "cached", "clear_ranges"]
