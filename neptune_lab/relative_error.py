"""The relative error of computed outputs."""

from __future__ import annotations

import numpy as np


def relative_error(computed: np.ndarray, wanted: np.ndarray) -> float:
    """The Frobenius norm of the difference over that of `wanted`, both in float64.

    Infinite if a NaN or infinity is in one of the two only, or if an infinity has another sign. Elements that are not
    finite in both count for nothing, and a reference without other elements than 0 counts as 1.

    >>> relative_error(np.array([3.0, np.nan]), np.array([4.0, np.nan]))
    0.25
    """
    computed, wanted = computed.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(computed), finite):
        return float("inf")
    if not np.array_equal(computed[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    scale = float(np.linalg.norm(wanted[finite])) or 1.0
    return float(np.linalg.norm(computed[finite] - wanted[finite])) / scale


__all__ = ["relative_error"]
