"""The function that sums a tile of a warp group along its diagonals, in registers."""

from __future__ import annotations

# Rows are 16 w + 8 n + g, columns 8 k + c: a thread has w, g, two of c, and all n and k. So it adds rows that are 8
# apart first. Of what is left, an element (g, c) of a square is on the diagonal c - g, and with c < g on one of the
# square before.
_COLUMNS_APART = '''@gluon.jit
def _columns_apart(x):
    """The eight parts of eight columns of [4, 8, 8, 8]."""
    even, odd = gl.split(gl.permute(gl.reshape(x, [4, 8, 4, 2, 8]), (0, 1, 2, 4, 3)))
    a, b = gl.split(gl.permute(gl.reshape(even, [4, 8, 2, 2, 8]), (0, 1, 2, 4, 3)))
    c, d = gl.split(gl.permute(gl.reshape(odd, [4, 8, 2, 2, 8]), (0, 1, 2, 4, 3)))
    k0, k4 = gl.split(gl.permute(a, (0, 1, 3, 2)))
    k2, k6 = gl.split(gl.permute(b, (0, 1, 3, 2)))
    k1, k5 = gl.split(gl.permute(c, (0, 1, 3, 2)))
    k3, k7 = gl.split(gl.permute(d, (0, 1, 3, 2)))
    return k0, k1, k2, k3, k4, k5, k6, k7
'''

_STORE_SQUARES = '''@gluon.jit
def _store_squares(before, after, fits, source, pointers):
    """Stores the sums of eight diagonals of squares of eight rows: of one where `fits`, of the next elsewhere."""
    turned = gl.gather(gl.where(fits, before, after), source, axis=1)
    gl.store(pointers, gl.sum(turned, axis=2))
'''

_PLACES_OF_SQUARES = '''@gluon.jit
def _places_of_squares(like, NUMBERS: gl.constexpr):
    """Of squares of eight rows of each warp: the row that is moved to each, so that diagonals become rows; where that
    is on the square's own diagonals; places of sums; and zeros."""
    warp = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, like.type.layout)))
    row = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, like.type.layout)))[None, :]
    column = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, like.type.layout)))[None, None, :]
    zeros = (warp[:, None, None] + row[:, :, None] + column) * 0
    source = ((column + 8 - row[:, :, None]) & 7) + zeros
    return source, column >= row[:, :, None], warp[:, None] * NUMBERS + row, zeros.to(gl.float32)
'''

_STORE_DIAGONALS = '''@gluon.jit
def _store_diagonals(x, pointer, NUMBERS: gl.constexpr):
    """Stores sums of [64, 64] along column - row, of sixteen rows each, from column - row = -16 on; NUMBERS apart."""
    upper, lower = gl.split(gl.permute(gl.reshape(x, [4, 2, 8, 8, 8]), (0, 2, 3, 4, 1)))
    a0, a1, a2, a3, a4, a5, a6, a7 = _columns_apart(upper)
    b0, b1, b2, b3, b4, b5, b6, b7 = _columns_apart(lower)
    source, fits, place, zero = _places_of_squares(a0, NUMBERS)
    at = pointer + place
    _store_squares(zero, b0, fits, source, at)
    a0 = a0 + b1
    _store_squares(b0, a0, fits, source, at + 8)
    a1 = a1 + b2
    _store_squares(a0, a1, fits, source, at + 16)
    a2 = a2 + b3
    _store_squares(a1, a2, fits, source, at + 24)
    a3 = a3 + b4
    _store_squares(a2, a3, fits, source, at + 32)
    a4 = a4 + b5
    _store_squares(a3, a4, fits, source, at + 40)
    a5 = a5 + b6
    _store_squares(a4, a5, fits, source, at + 48)
    a6 = a6 + b7
    _store_squares(a5, a6, fits, source, at + 56)
    _store_squares(a6, a7, fits, source, at + 64)
    _store_squares(a7, zero, fits, source, at + 72)
'''

# Each follows those that it calls; the second entry lists these.
DIAGONAL_HELPERS = {
    "_columns_apart": (_COLUMNS_APART, ()),
    "_store_squares": (_STORE_SQUARES, ()),
    "_places_of_squares": (_PLACES_OF_SQUARES, ()),
    "_store_diagonals": (_STORE_DIAGONALS, ("_columns_apart", "_store_squares", "_places_of_squares")),
}

__all__ = ["DIAGONAL_HELPERS"]
