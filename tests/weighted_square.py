"""An operator of a user whose repair the pages of tests show."""

from __future__ import annotations

from tvm import te

import neptune_lab as nl
from neptune_lab.operators import custom


def weighted_square() -> nl.operators.Operator:
    """A sum whose repair is right over the reals alone, so that the template leaves it in a loop of its own."""
    x = te.placeholder((4, 16), "float32", name="x")
    j, k = te.reduce_axis((0, 16), name="j"), te.reduce_axis((0, 16), name="k")
    top = te.compute((4,), lambda i: te.max(x[i, j], axis=j), name="top")
    total = te.compute((4,), lambda i: te.sum(te.exp(x[i, k] - top[i]) * x[i, k] * x[i, k], axis=k), name="total")
    return custom("weighted_square", [x], [total])
