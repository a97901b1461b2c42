"""Floats of 8 bits in NumPy, and as helpers of emitted modules: every number of 8 bits, and rounding between them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Access, Cast, Dot, Elementwise, GridAxis, Int, Kernel, Program, Slice, Store, Tensor
from neptune_lab.htile.rounding import round_to
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile_to_triton import emit
from neptune_lab.runtime import call_on_arrays, load
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.tensor_spec import TensorSpec

EIGHTS = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def numbers(dtype: str) -> np.ndarray:
    """Every value of a dtype of 8 bits, in float32."""
    return np.arange(256, dtype=np.uint8).view(EIGHTS[dtype]).astype(np.float32)


def between(dtype: str) -> np.ndarray:
    """Numbers, the middles between neighbours, and numbers a little beside these; within the dtype's range."""
    known = np.unique(numbers(dtype)[np.isfinite(numbers(dtype))])
    middle = (known[1:] + known[:-1]) / 2
    return np.concatenate([known, middle, middle * np.float32(1 + 2e-7), middle * np.float32(1 - 2e-7)])


@pytest.mark.parametrize("dtype", EIGHTS)
def test_rounds_as_ml_dtypes_does(dtype: str):
    x = between(dtype)
    np.testing.assert_array_equal(round_to(x, dtype), x.astype(EIGHTS[dtype]).astype(np.float32))


@pytest.mark.parametrize(("dtype", "largest"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
def test_saturates_and_keeps_nan(dtype: str, largest: float):
    found = round_to([np.inf, -np.inf, 1e30, np.nan, -0.0], dtype)
    np.testing.assert_array_equal(found, [largest, -largest, largest, np.nan, -0.0])
    assert np.signbit(found[4])


def copied(source: str, target: str, size: int) -> Program:
    """out[0:size] = x[0:size], converted."""
    tile = (Slice(Int(0), size, "n"),)
    x, out = Tensor("x", (size,), source, "input"), Tensor("out", (size,), target, "output")
    value = Access("x", tile) if source == target else Cast(Access("x", tile), target)
    store = Store("s", Access("out", tile), value, "out")
    return Program("copied", (x, out), ("x",), ("out",), (Kernel("k", "copied", (GridAxis("g", 1),), (store,)),))


def run(program: Program, x: np.ndarray) -> np.ndarray:
    module = emit(program)
    inputs, outputs = (
        tuple(TensorSpec(n, program.tensor(n).shape, program.tensor(n).dtype) for n in names)
        for names in (program.inputs, program.outputs)
    )
    return call_on_arrays(load(KernelSpec(program.name, module.entry, module.text, inputs, outputs)), [x])[0]


@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", EIGHTS)
def test_a_kernel_reads_every_number(dtype: str, wide: str):
    x = np.arange(256, dtype=np.uint8).view(EIGHTS[dtype])
    np.testing.assert_array_equal(run(copied(dtype, wide, 256), x), numbers(dtype).astype(np.float64))


@pytest.mark.parametrize("dtype", EIGHTS)
def test_a_kernel_rounds_as_numpy_does(dtype: str):
    x = np.concatenate([between(dtype), np.float32([np.inf, -np.inf, 1e30, np.nan, 1e-30, -0.0])])
    x = np.resize(x, 1 << (len(x) - 1).bit_length()).astype(np.float32)
    np.testing.assert_array_equal(run(copied("float32", dtype, len(x)), x), round_to(x, dtype).astype(np.float64))


def test_nothing_else_is_computed_in_8_bits():
    e4m3 = Tensor("x", (16, 16), "float8_e4m3fn", "input")
    program = Program("p", (e4m3,), ("x",), (), ())
    x = Access("x", (Slice(Int(0), 16, "i"), Slice(Int(0), 16, "j")))
    assert dtype_of(Dot(x, x), program) == "float32"
    with pytest.raises(TileError, match="nothing is computed in floats of 8 bits"):
        dtype_of(Elementwise("add", (x, x), "float8_e4m3fn"), program)
    with pytest.raises(TileError, match="dot of float8_e4m3fn and float16"):
        dtype_of(Dot(x, Cast(x, "float16")), program)
