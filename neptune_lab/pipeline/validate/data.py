"""The inputs that a program is validated on: ordinary numbers, and rows of special ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from neptune_lab.htile.rounding import AS_FLOAT32, round_to
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program, Var
from neptune_lab.loop_ir.positions import positions_below
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.strict.dtypes import EIGHTS

Arrays = dict[str, np.ndarray]

ORDINARY = "ordinary numbers"
_BELOW = 4  # integers that are no positions are below it
_FAR = 2**31  # no axis is that long


def data_sets(definition: Program, captured: Mapping[str, np.ndarray], most: int) -> list[tuple[str, Arrays]]:
    """(kind, inputs) for each set: ordinary numbers first, then each float input in turn with special rows.

    Args:
        captured: values that are known for some inputs; whole numbers among them are kept, as they may be positions.
        most: how many sets at most.
    """
    base = {name: _ordinary(definition, name, captured, n) for n, name in enumerate(definition.inputs)}
    sets = [(ORDINARY, base)]
    floats = [name for name in definition.inputs if base[name].dtype.kind == "f"]
    # Inputs that take part as they are come first: a matrix product of infinities is NaN whatever is done to it.
    factors = {name for name in floats if _in_product(definition, name)}
    floats.sort(key=lambda name: name in factors)
    columns = {name: _column(definition, name) for name in floats}
    # The other factors of a product are not negative, so that rows far below 0 make rows of products far below 0.
    positive = {name: np.abs(base[name]) for name in factors}
    # An input of few rows takes several sets to have rows of every kind.
    for turn, name in itertools.product(range(most), floats):
        kinds = _FINITE_KINDS if name in factors else _KINDS
        first = turn * _rows(base[name], columns[name])
        if first < len(kinds) and base[name].ndim and len(sets) < most:
            others = {**base, **positive} if name in factors else base
            special = _special(base[name], columns[name], kinds[first:] + kinds[:first])
            sets.append((f"special rows in {name}" + f", set {turn + 1}" * (turn > 0), {**others, name: special}))
    return [(kind, {name: _held(definition, name, array) for name, array in made.items()}) for kind, made in sets]


def _held(definition: Program, name: str, array: np.ndarray) -> np.ndarray:
    """What a tensor of 8-bit floats holds of the values: they are too coarse for a reference that does not round."""
    dtype = definition.buffer(name).dtype
    return round_to(array, dtype) if dtype in EIGHTS else array


def _ordinary(definition: Program, name: str, captured: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    buffer = definition.buffer(name)
    rng = np.random.default_rng(seed)
    if "float" in buffer.dtype:
        dtype = "float32" if buffer.dtype in AS_FLOAT32 else buffer.dtype
        below = positions_below(definition, name, _FAR)
        if below < _FAR:  # positions that are computed of floats
            return rng.uniform(0, below, buffer.shape).astype(dtype)
        return rng.standard_normal(buffer.shape).astype(dtype)
    if name in captured and np.shape(captured[name]) == buffer.shape:
        return np.asarray(captured[name])
    below = 2 if buffer.dtype == "bool" else positions_below(definition, name, _BELOW)
    return rng.integers(0, below, buffer.shape).astype(buffer.dtype)


def _in_product(definition: Program, name: str) -> bool:
    """Whether a reduction multiplies the input by something that other iterations run along (a matrix product)."""
    for block in tree.blocks(definition):
        if not block.is_reduction or not any(r.buffer == name for r in loads(block.body.value)):
            continue
        own = {v for r in loads(block.body.value) if r.buffer == name for i in r.indices for v in variables(i)}
        if {it.name for it in block.iters if it.kind == "spatial"} - own:
            return True
    return False


def _column(definition: Program, name: str) -> int:
    """The axis of the input that a reduction folds; the last one if there is none."""
    for block in tree.blocks(definition):
        folded = {it.name for it in block.iters if it.kind == "reduce"}
        for read in loads(block.body.value):
            if read.buffer == name:
                for axis, index in enumerate(read.indices):
                    if isinstance(index, Var) and index.name in folded:
                        return axis
    return -1


_LOW = float(np.finfo(np.float32).min)


# The kinds of rows that `_special` makes: all of them, and those for a factor of a matrix product.
_KINDS = tuple(range(14))
_FINITE_KINDS = (0, 3, 4, 5, 6, 7)


def _rows(array: np.ndarray, column: int) -> int:
    return max(1, array.size // array.shape[column]) if array.ndim else 1


def _special(ordinary: np.ndarray, column: int, kinds: Sequence[int]) -> np.ndarray:
    """Rows of `kinds` in turn, each along axis `column`: a jump from far below and back, large numbers, equal
    ones, zeros, a running maximum or sum that is 0 on the way, and -inf and the least finite number in part of a row
    and in all of it."""
    wide = np.moveaxis(np.array(ordinary, np.float64), column, -1)
    shape = wide.shape
    rows = wide.reshape(-1, shape[-1])
    n = shape[-1]
    first = max(1, n // 2)
    for r, row in enumerate(rows):
        match kinds[r % len(kinds)]:
            case 0:
                row[:first] -= 120.0
            case 1:
                row[:first] = -np.inf
            case 2:
                row[:] = -np.inf
            case 3:
                row -= 300.0
            case 4:
                row[:] = 0.0
            case 5:
                row[first:] -= 120.0
            case 6:
                row[:] = row[0]
            case 7:
                row[:first] = 0.0
            case 8:
                row[:first] = _LOW
            case 9:
                row *= 1000.0
            case 10:
                row[::2] = -np.inf
            case 11:
                row += 80.0
            case 12:
                row[:first] = -np.abs(row[:first])
                row[first - 1] = 0.0
                row[first:] = np.abs(row[first:])
            case 13:
                row[1::2] = -row[: n - n % 2 : 2]
    made = np.moveaxis(rows.reshape(shape), -1, column)
    if ordinary.dtype == np.float16:
        largest = float(np.finfo(np.float16).max)
        made = np.where(np.isinf(made), made, np.clip(made, -largest, largest))
    return np.ascontiguousarray(made.astype(ordinary.dtype))
