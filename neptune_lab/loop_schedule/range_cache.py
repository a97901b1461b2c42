"""A cache of `float_range`'s results: most compiles check the same loop again.

The key leaves out sizes, names of tensors and indices of elements. The result does not depend on them, since values
are drawn by the kind of each leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from neptune_lab.hashed import full_text
from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op, Previous
from neptune_lab.loop_schedule.range_samples import kind_of, leaves_of, may_hide_nan
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
    leaves = leaves_of(loop)
    numbered = _Numbered({leaf: f"leaf {n}" for n, leaf in enumerate(leaves)})
    moved = [numbered.of(h) for h in loop.moved]
    folds = {buffer: (reducer, numbered.of(element)) for buffer, (reducer, element) in loop.folds.items()}
    terms = [numbered.of(term) for term in loop.terms]
    return full_text(
        (
            [kind_of(loop, leaf) for leaf in leaves],
            may_hide_nan(loop),
            (loop.reducer, terms, loop.carried, moved),
            (dict(loop.places), dict(loop.points), sorted(loop.estimates), folds, loop.told),
            list(numbered.numbers),
        )
    )


@dataclass(slots=True)
class _Numbered:
    """Expressions as numbers of their nodes, each with the numbers of its operands: leaves are numbered, and producers
    have no indices. Written out, a term that several stages share would be as many times in the text as it is read."""

    leaves: Mapping[Expr, str]
    numbers: dict[str, int] = field(default_factory=dict)
    _known: dict[int, int] = field(default_factory=dict)

    def of(self, expr: Expr) -> int:
        """The number of an expression: equal ones have the same."""
        found = self._known.get(id(expr))
        if found is None:
            found = self._known[id(expr)] = self.numbers.setdefault(self._text(expr), len(self.numbers))
        return found

    def _text(self, expr: Expr) -> str:
        if expr in self.leaves:
            return self.leaves[expr]
        match expr:
            case Load(buffer, _) | Previous(buffer, _, _):
                return f"load {buffer!r}"
            case Op(name, args):
                return f"{name} {[self.of(arg) for arg in args]}"
            case Cast(dtype, arg):
                return f"cast {dtype} {self.of(arg)}"
        return full_text(expr)


__all__ = ["cache_key", "cached", "clear_ranges"]
