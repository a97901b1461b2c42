"""Seeded random points for the numerical checks: the same in every run, and with every version of Python."""

from __future__ import annotations

from functools import lru_cache

from sympy import Symbol

from neptune_lab.repair.column import Column

SEED = 20240607
# State and increment that PCG64 has after NumPy seeded it with SEED.
_STATE = 0x4FD40AD5AEA0EF1CC19EC1DA30E8B120
_INCREMENT = 0x5405232820D346843421BEDE1EA48079
_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645
_CHUNK = 1024
_ALL = {bits: (1 << bits) - 1 for bits in (32, 64, 128)}


# Every check starts at the same seed, so the first numbers are computed once.
@lru_cache(maxsize=16)
def _chunk(state: int) -> tuple[tuple[int, ...], int]:
    """The 64-bit numbers that follow a state, and the state after them."""
    numbers = []
    low, all_bits = _ALL[64], _ALL[128]
    for _ in range(_CHUNK):
        state = (state * _FACTOR + _INCREMENT) & all_bits
        mixed, turn = (state >> 64) ^ (state & low), state >> 122
        numbers.append((mixed >> turn | mixed << (64 - turn)) & low)
    return tuple(numbers), state


class Generator:
    """PCG64 (O'Neill 2014, XSL-RR 128/64), which draws what `numpy.random.default_rng(SEED)` draws, without NumPy.

    >>> draw = Generator()
    >>> draw.whole(8), draw.fraction(), draw.wholes(8, 3)
    (5, 0.4093016413203383, [1, 7, 3])
    """

    __slots__ = ("_at", "_half", "_next", "_numbers")

    def __init__(self) -> None:
        self._numbers, self._next = _chunk(_STATE)
        self._at = 0
        self._half: int | None = None

    def _bits(self, count: int) -> list[int]:
        """The next numbers of 64 bits."""
        found: list[int] = []
        while True:
            end = self._at + count - len(found)
            found += self._numbers[self._at : end]
            if end <= _CHUNK:
                self._at = end
                return found
            (self._numbers, self._next), self._at = _chunk(self._next), 0

    def _half_bits(self, count: int) -> list[int]:
        """The next numbers of 32 bits: the lower half of the next 64, then the other half."""
        halves = [] if self._half is None else [self._half]
        low = _ALL[32]
        for both in self._bits((count - len(halves) + 1) // 2):
            halves += (both & low, both >> 32)
        self._half = halves.pop() if len(halves) > count else None
        return halves

    def fractions(self, count: int) -> list[float]:
        """Numbers of [0, 1)."""
        return [(bits >> 11) * 2.0**-53 for bits in self._bits(count)]

    def fraction(self) -> float:
        """A number of [0, 1)."""
        return self.fractions(1)[0]

    def wholes(self, end: int, count: int) -> list[int]:
        """Whole numbers of [0, end), without bias (Lemire 2019)."""
        low = _ALL[32]
        least, found = (low + 1 - end) % end, []
        while len(found) < count:
            products = [half * end for half in self._half_bits(count - len(found))]
            found += [product >> 32 for product in products if product & low >= least]
        return found

    def whole(self, end: int) -> int:
        """A whole number of [0, end)."""
        return self.wholes(end, 1)[0]


def sample(symbol: Symbol, count: int, draw: Generator) -> Column:
    """Random values of a symbol that satisfy its assumptions and are away from 0.

    >>> r = Symbol("r", negative=True)
    >>> all(value < 0 for value in sample(r, 3, Generator()))
    True
    """
    if symbol.is_integer:
        size = Column([1.0 + number for number in draw.wholes(3, count)])
    else:
        size = Column([0.3 + (2.0 - 0.3) * number for number in draw.fractions(count)])
    if symbol.is_nonnegative:
        return size
    if symbol.is_nonpositive:
        return -size
    return size * Column([(-1.0, 1.0)[number] for number in draw.wholes(2, count)])


def samples(symbol: Symbol, rows: int, count: int, draw: Generator) -> tuple[Column, ...]:
    """Rows of random values of a symbol."""
    values = sample(symbol, rows * count, draw)
    return tuple(values.at(range(start, start + count)) for start in range(0, rows * count, count))
