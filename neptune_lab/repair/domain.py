"""The domain of the producers' values without singular points, as symbols with stronger assumptions.

Proofs need signs: 1/r is positive for r > 0, but SymPy knows no sign for r >= 0.  Since a guard replaces a singular
value of a producer, the algebra may exclude that point.
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
    # Copy only what is true: what is not known to be positive may follow from the new assumption.
    known = {word: True for word, value in own.items() if value}
    return Dummy(symbol.name, **(known | {"real": True, "nonzero": True}))


class Domain:
    """The points that are excluded so far; the only mutable state of a derivation.

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
        """r of each producer, with the strongest assumptions."""
        return tuple(self._narrow[: self._count])

    @property
    def current(self) -> tuple[Symbol, ...]:
        """r' of each producer, with the strongest assumptions."""
        return tuple(self._narrow[self._count :])

    @property
    def moves(self) -> dict[Symbol, Symbol]:
        """r -> r'."""
        return dict(zip(self.previous, self.current, strict=True))

    @property
    def narrowing(self) -> dict[Symbol, Symbol]:
        """Every symbol that has represented a producer -> the one with the strongest assumptions."""
        latest = dict(zip(self._wide, self._narrow, strict=True))
        return {symbol: latest[original] for symbol, original in self._original.items()}

    @property
    def wide(self) -> dict[Symbol, Symbol]:
        """Every symbol that has represented a producer -> the original one."""
        return dict(self._original)

    @property
    def caveats(self) -> tuple[str, ...]:
        """The excluded points, in words."""
        return tuple(f"{symbol.name} != {text(p)}" for symbol, points in self.points.items() for p in points)

    def narrow(self, expr: Expr) -> Expr:
        """The same expression over the symbols with the strongest assumptions."""
        return cast(Expr, expr.xreplace(self.narrowing))

    def exclude(self, points: Mapping[Symbol, Sequence[Expr]]) -> None:
        """Excludes these values of producers, for r and r'."""
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
