"""Sizes that are known at the launch: read from the shapes of the arguments, and refused with the argument's name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.sized import check_sizes, shape_at, sizes_in
from neptune_lab.tensor_spec import TensorSpec

X = TensorSpec("x", (16, 32), "float32", sizes=("rows", "columns"))
W = TensorSpec("w", (32, 4), "float32", sizes=("columns", ""))
SPEC: Any = SimpleNamespace(name="norm", inputs=(X, W), ranges=(("rows", 1, 8), ("columns", 3, 100)))


def test_sizes_by_name():
    assert sizes_in(SPEC, [(8, 5), (5, 4)]) == {"rows": 8, "columns": 5}
    assert check_sizes(SPEC, [np.zeros((1, 3)), np.zeros((3, 4))]) == {"rows": 1, "columns": 3}
    assert shape_at(W, {"rows": 8, "columns": 5}) == (5, 4)


@pytest.mark.parametrize(
    ("shapes", "error", "help"),
    [
        (((8, 5), (6, 4)), r"argument w has shape \(6, 4\); expected \(columns, 4\)", "columns is 5 in x"),
        (((8, 5), (5, 3)), r"argument w has shape \(5, 3\)", "only the sizes with names are free"),
        (((8, 5), (5, 4, 1)), r"argument w has shape \(5, 4, 1\)", "the number of dimensions is not"),
        (((9, 5), (5, 4)), "size rows is 9; norm takes 1 to 8", "compile the operator for this size"),
        (((8, 2), (2, 4)), "size columns is 2; norm takes 3 to 100", "compile the operator for this size"),
    ],
)
def test_shapes_that_are_not_those_of_the_kernel(shapes: Any, error: str, help: str):
    assert sizes_in(SPEC, shapes) is None
    with pytest.raises(LaunchError, match=error) as refused:
        check_sizes(SPEC, [np.zeros(shape) for shape in shapes])
    assert help in str(refused.value.help)
