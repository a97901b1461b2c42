"""The producers' values without singular points, as narrower symbols.

Signs decide proofs: 1/r has one for r > 0, and none that SymPy will state for r >= 0.  As a guard keeps a producer off
a singular point, the algebra may leave that point out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from sympy import Dummy, Expr, Symbol

from neptune_lab.repair.render import text

SIGNS = ("positive", "nonnegative", "negative", "nonpositive", "nonzero")


def without_zero(symbol: Symbol) -> Dummy:
    """A symbol of the same name and assumptions that is not 0.

    >>> without_zero(Symbol("r", nonnegative=True)).is_positive
    True
    """
    own = {word: getattr(symbol, f"is_{word}") for word in (*SIGNS, "integer")}
    # What is only not known to be positive may still turn out so: copy what is true, and the plain "is not".
    known = {word: True for word, value in own.items() if value}
    return Dummy(symbol.name, **(known | {"real": True, "nonzero": True}))


class Domain:
    """Which points have been left out so far; the only state of a derivation that grows.

    >>> r, q = Dummy("r", nonnegative=True), Dummy("r'", nonnegative=True)
    >>> domain = Domain((r,), (q,))
    >>> domain.exclude({r: (0,)})
    >>> (1 / r).is_positive, domain.narrow(1 / r).is_positive, domain.caveats
    (None, True, ('r != 0',))
    """

    def __init__(self, previous: Sequence[Symbol], current: Sequence[Symbol]) -> None:
        self._wide = (*previous, *current)
        self._count = len(previous)
        self._narrow = list(self._wide)
        self._original: dict[Symbol, Symbol] = {symbol: symbol for symbol in self._wide}
        self.points: dict[Symbol, tuple[Expr, ...]] = dict.fromkeys(previous, ())

    @property
    def previous(self) -> tuple[Symbol, ...]:
        """r of each producer, narrow."""
        return tuple(self._narrow[: self._count])

    @property
    def current(self) -> tuple[Symbol, ...]:
        """r' of each producer, narrow."""
        return tuple(self._narrow[self._count :])

    @property
    def moves(self) -> dict[Symbol, Symbol]:
        """r -> r'."""
        return dict(zip(self.previous, self.current, strict=True))

    @property
    def narrowing(self) -> dict[Symbol, Symbol]:
        """Any symbol that has stood for a producer -> the narrowest."""
        latest = dict(zip(self._wide, self._narrow, strict=True))
        return {symbol: latest[original] for symbol, original in self._original.items()}

    @property
    def wide(self) -> dict[Symbol, Symbol]:
        """Any symbol that has stood for a producer -> the first."""
        return dict(self._original)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What was left out, in words."""
        return tuple(f"{symbol.name} != {text(p)}" for symbol, points in self.points.items() for p in points)

    def narrow(self, expr: Expr) -> Expr:
        """The same expression over the narrowest symbols."""
        return cast(Expr, expr.xreplace(self.narrowing))

    def exclude(self, points: Mapping[Symbol, Sequence[Expr]]) -> None:
        """Leave these values of a producer out, of r and r' alike."""
        for symbol, values in points.items():
            place = self._wide.index(self._original[symbol]) % self._count
            producer = self._wide[place]
            self.points[producer] = tuple(dict.fromkeys((*self.points[producer], *values)))
            if 0 in self.points[producer]:
                self._drop_zero(place)
                self._drop_zero(place + self._count)

    def _drop_zero(self, place: int) -> None:
        if not self._narrow[place].is_nonzero:
            self._narrow[place] = without_zero(self._wide[place])
            self._original[self._narrow[place]] = self._wide[place]
