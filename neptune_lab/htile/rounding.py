"""Narrow floats that NumPy lacks, as float32 arrays of their values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neptune_lab.strict.dtypes import LARGEST_FINITE

# Explicit bits of the mantissa, and the exponent of the least normal number, of floats of 8 bits.
_EIGHTS = {"float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}
# Dtypes whose values are held in float32.
AS_FLOAT32 = ("bfloat16", *_EIGHTS)


def round_to(array: Any, dtype: str) -> NDArray[Any]:
    """Values rounded to the nearest of a dtype of `AS_FLOAT32`, ties to even, as float32; NaN stays NaN.

    A conversion to 8 bits saturates, as a GPU's does: what is larger than the largest number, and infinity, becomes
    that number.

    >>> round_to([1.0625, 1.1875, 500.0, 0.001, float("-inf")], "float8_e4m3fn").tolist()
    [1.0, 1.25, 448.0, 0.001953125, -448.0]
    """
    if dtype == "bfloat16":
        return round_to_bfloat16(array)
    (digits, least), largest = _EIGHTS[dtype], LARGEST_FINITE[dtype]
    wide = np.asarray(array, np.float64)
    finite = np.clip(np.where(np.isnan(wide), 0.0, wide), -largest, largest)
    exponent = np.maximum(np.frexp(finite)[1] - 1, least)
    rounded = np.ldexp(np.rint(np.ldexp(finite, digits - exponent)), exponent - digits)
    return np.where(np.isnan(wide), np.float32(np.nan), rounded.astype(np.float32))


def round_to_bfloat16(array: Any) -> NDArray[Any]:
    """float32 values rounded to the nearest bfloat16 (ties to even); NaN stays NaN."""
    bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(array), np.float32(np.nan), rounded)


__all__ = ["AS_FLOAT32", "round_to", "round_to_bfloat16"]
