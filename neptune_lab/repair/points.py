"""Seeded random points for the numerical checks: the same in every run, and with every version of Python."""

from __future__ import annotations

from sympy import Symbol

from neptune_lab.repair.column import Column

SEED = 20240607
# State and increment that PCG64 has after NumPy seeded it with SEED.
_STATE = 0x4FD40AD5AEA0EF1CC19EC1DA30E8B120
_INCREMENT = 0x5405232820D346843421BEDE1EA48079
_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645
_ALL = {bits: (1 << bits) - 1 for bits in (32, 64, 128)}


class Generator:
    """PCG64 (O'Neill 2014, XSL-RR 128/64), which draws what `numpy.random.default_rng(SEED)` draws, without NumPy.

    >>> draw = Generator()
    >>> draw.whole(8), draw.fraction()
    (5, 0.4093016413203383)
    """

    __slots__ = ("_half", "_state")

    def __init__(self) -> None:
        self._state = _STATE
        self._half: int | None = None

    def _bits(self) -> int:
        """The next 64 bits."""
        self._state = state = (self._state * _FACTOR + _INCREMENT) & _ALL[128]
        mixed, turn = (state >> 64) ^ (state & _ALL[64]), state >> 122
        return (mixed >> turn | mixed << (64 - turn)) & _ALL[64]

    def _half_bits(self) -> int:
        """The next 32 bits: the lower half of the next 64, and the other half the next time."""
        if self._half is not None:
            half, self._half = self._half, None
            return half
        both = self._bits()
        self._half = both >> 32
        return both & _ALL[32]

    def fraction(self) -> float:
        """A number of [0, 1)."""
        return (self._bits() >> 11) * 2.0**-53

    def whole(self, end: int) -> int:
        """A whole number of [0, end), without bias (Lemire 2019)."""
        while True:
            product = self._half_bits() * end
            if product & _ALL[32] >= (_ALL[32] + 1 - end) % end:
                return product >> 32


def sample(symbol: Symbol, count: int, draw: Generator) -> Column:
    """Random values of a symbol that satisfy its assumptions and are away from 0.

    >>> r = Symbol("r", negative=True)
    >>> all(value < 0 for value in sample(r, 3, Generator()))
    True
    """
    if symbol.is_integer:
        size = Column(1.0 + draw.whole(3) for _ in range(count))
    else:
        size = Column(0.3 + (2.0 - 0.3) * draw.fraction() for _ in range(count))
    if symbol.is_nonnegative:
        return size
    if symbol.is_nonpositive:
        return -size
    return size * Column((-1.0, 1.0)[draw.whole(2)] for _ in range(count))


def samples(symbol: Symbol, rows: int, count: int, draw: Generator) -> tuple[Column, ...]:
    """Rows of random values of a symbol."""
    values = sample(symbol, rows * count, draw)
    return tuple(values.at(range(start, start + count)) for start in range(0, rows * count, count))
