"""Emitted kernels against float64, in Triton's interpreter (or on a GPU where there is one)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from htile_programs import CASES, F16, F32, NEW, at, lit, op, randn, tile

from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import (
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    GridAxis,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    Permute,
    Program,
    Reduce,
    Scalar,
    Slice,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile_passes import run as run_passes
from neptune_lab.htile_to_triton import emit


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
def test_case(name, passes, run_triton):
    case = CASES[name]()
    program = run_passes(case.program) if passes else case.program
    halves = any(program.tensor(output).dtype == F16 for output in program.outputs)
    found = run_triton(program, case.inputs)
    for output, expected in case.expected().items():
        assert relative_error(found[output], expected) < (1e-3 if halves else 1e-6)


def one_store(
    value: TileExpr, inputs: dict[str, str], dtype: str, n: int = 11, shape: tuple[int, ...] | None = None
) -> Program:
    """`y[...] = value` over whole tensors of `n` elements."""
    dims = (n,) if shape is None else shape
    index = tuple(Slice(Int(0), extent, f"d{k}") for k, extent in enumerate(dims))
    tensors = [Tensor(name, (n,), t, "input") for name, t in inputs.items()]
    store = Store("s", at("y", *index), value, "y")
    return Program(
        "one",
        (*tensors, Tensor("y", dims, dtype, "output")),
        tuple(inputs),
        ("y",),
        (Kernel("k", "one", (), (store,)),),
    )


I = Slice(Int(0), 11, "i")
UNARY = [
    "neg",
    "abs",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "erf",
    "floor",
    "ceil",
]
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype, run_triton):
    program = one_store(op(name, at("x", I), dtype=dtype), {"x": dtype}, dtype)
    x = np.linspace(0.25, 2.5, 11) * (1 if name in ("log", "log2", "sqrt", "rsqrt") else np.tile([1, -1], 6)[:11])
    x = x.astype(np.float16) if dtype == "float16" else np.asarray(np.round(x * 16) / 16)
    expected = interpret(program, {"x": x}, dtype="float64")["y"]
    found = run_triton(program, {"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=2e-7)


@pytest.mark.parametrize("x", [-200.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 200.0])
def test_tanh_and_sigmoid_stay_finite(x, run_triton):
    for name, f in (("tanh", math.tanh), ("sigmoid", lambda v: 1 / (1 + math.exp(min(-v, 700))))):
        program = one_store(op(name, at("x", I)), {"x": F32}, F32)
        found = run_triton(program, {"x": np.full(11, x)})["y"]
        np.testing.assert_allclose(found, np.full(11, f(x)), atol=2e-7)


@pytest.mark.parametrize("x", [1e-20, -1e-30, 2e-4, -0.0])
def test_tanh_of_small_numbers_keeps_its_digits(x, run_triton):
    program = one_store(op("tanh", at("x", I)), {"x": F32}, F32)
    np.testing.assert_allclose(run_triton(program, {"x": np.full(11, x)})["y"], math.tanh(x), rtol=2e-7)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min"])
@pytest.mark.parametrize("with_literal", [False, True])
def test_binary(name, dtype, with_literal, run_triton):
    second = Literal(0.1, dtype) if with_literal else at("b", I)
    program = one_store(op(name, at("a", I), second, dtype=dtype), {"a": dtype, "b": dtype}, dtype)
    a, b = np.arange(11) * 0.25 - 1, np.arange(11) * 0.125 + 0.5
    expected = interpret(program, {"a": a, "b": b}, dtype="float64")["y"]
    np.testing.assert_allclose(run_triton(program, {"a": a, "b": b})["y"], expected, rtol=TOLERANCE[dtype], atol=1e-12)


def test_a_rounding_is_a_cast_and_nothing_else_rounds(run_triton):
    """float16 sums round after each operator, as the program states."""
    total = op("add", op("add", at("a", I), lit(2048.0, F16), dtype=F16), lit(1.0, F16), dtype=F16)
    program = one_store(total, {"a": F16}, F16)
    a = np.ones(11, np.float16)
    assert (run_triton(program, {"a": a})["y"] == interpret(program, {"a": a})["y"]).all()


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, -2.0, 0.5, 1.7, 1.0])
def test_power(exponent, run_triton):
    program = one_store(op("pow", at("a", I), lit(exponent)), {"a": F32}, F32)
    a = np.linspace(0.5, 3, 11)
    np.testing.assert_allclose(run_triton(program, {"a": a})["y"], a**exponent, rtol=3e-6)


def test_integer_division_floors(run_triton):
    shifted = op("sub", Iota((I,)), lit(5, "int32"), dtype="int32")
    for name, expected in (("floordiv", (np.arange(11) - 5) // 3), ("floormod", (np.arange(11) - 5) % 3)):
        program = one_store(op(name, shifted, lit(3, "int32"), dtype="int32"), {"x": F32}, "int32")
        assert (run_triton(program, {"x": np.zeros(11)})["y"] == expected).all()
        plain = one_store(op(name, Iota((I,)), lit(3, "int32"), dtype="int32"), {"x": F32}, "int32")
        assert (
            run_triton(plain, {"x": np.zeros(11)})["y"]
            == getattr(np, {"floordiv": "floor_divide"}.get(name, "mod"))(np.arange(11), 3)
        ).all()


def test_logic_and_masks_of_bools(run_triton):
    a, b = at("a", I), at("b", I)
    cond = op(
        "or",
        op("and", a, op("not", b, dtype="bool"), dtype="bool"),
        op("ge", Iota((I,)), lit(9, "int32"), dtype="bool"),
        dtype="bool",
    )
    program = one_store(cond, {"a": "bool", "b": "bool"}, "bool")
    x, y = np.arange(11) % 2 == 0, np.arange(11) % 3 == 0
    assert (run_triton(program, {"a": x, "b": y})["y"] == (x & ~y | (np.arange(11) >= 9))).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("reducer", ["sum", "max", "min", "prod"])
def test_reduce_ignores_padded_lanes(reducer, dtype, run_triton):
    """11 elements stand in a tile of 16: the other 5 hold the reducer's identity."""
    shifted = op("sub", at("x", I), Literal(8, dtype), dtype=dtype)
    program = one_store(Reduce(reducer, shifted, 0), {"x": dtype}, dtype, shape=())
    x = np.arange(1, 12) // 8 + (4 if reducer == "max" else 10)
    expected = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[reducer](x - 8)
    assert run_triton(program, {"x": x})["y"] == expected


def test_reduce_of_bools(run_triton):
    found = {}
    for reducer in ("max", "min"):
        program = one_store(Reduce(reducer, at("x", I), 0), {"x": "bool"}, "bool", shape=())
        found[reducer] = bool(run_triton(program, {"x": np.arange(11) > 4})["y"])
    assert found == {"max": True, "min": False}


I12 = Slice(Int(0), 12, "d0")
SPECIAL = (-math.inf, -2.5, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf, math.nan)


@pytest.mark.parametrize(
    "exponent",
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 33.0, 65.0, 66.0, 1.5, 2.5, -1.0, -2.0, -3.0, -5.0, -66.0, -1.5],
)
def test_powers_have_the_signs_and_nan_of_c(exponent, run_triton):
    """At every special base, also where the exponent is a tile and not a constant."""
    bases = np.array(SPECIAL)
    constant = one_store(op("pow", at("x", I12), lit(exponent)), {"x": F32}, F32, 12)
    tile = one_store(op("pow", at("x", I12), at("n", I12)), {"x": F32, "n": F32}, F32, 12)
    with np.errstate(all="ignore"):
        expected = np.power(bases, exponent).astype(np.float32)
    for program, inputs in ((constant, {}), (tile, {"n": np.full(12, exponent)})):
        found = run_triton(program, {"x": bases, **inputs})["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("base", [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0])
def test_powers_of_a_constant(base, run_triton):
    exponents = np.array([-math.inf, -2.5, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, math.inf, math.nan])
    program = one_store(op("pow", lit(base), at("n", I12)), {"n": F32}, F32, 12)
    with np.errstate(all="ignore"):
        expected = np.power(base, exponents)
    np.testing.assert_allclose(run_triton(program, {"n": exponents})["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_keep_nan(name, dtype, run_triton):
    """Of two numbers and along an axis, NaN first, last and alone; NumPy and PyTorch agree on it."""
    x = np.where(np.arange(11) == 4, math.nan, np.arange(11))
    two = one_store(Elementwise(name, (at("x", I), Literal(5, dtype)), dtype), {"x": dtype}, dtype)
    along = one_store(Reduce(name, at("x", I), 0), {"x": dtype}, dtype, shape=())
    function = {"max": np.maximum, "min": np.minimum}[name]
    np.testing.assert_array_equal(run_triton(two, {"x": x})["y"], function(x, 5))
    for values in (x, x[::-1].copy(), np.full(11, math.nan)):
        assert np.isnan(run_triton(along, {"x": values})["y"])
    assert run_triton(along, {"x": np.full(11, -math.inf)})["y"] == -math.inf


def three_axes() -> tuple[Slice, Slice, Slice]:
    return Slice(Int(0), 3, "a"), Slice(Int(0), 5, "b"), Slice(Int(0), 4, "c")


@pytest.mark.parametrize("through_chip", [False, True])
def test_permute_three_dimensions(through_chip, run_triton):
    a, b, c = three_axes()
    read = at("t", a, b, c) if through_chip else at("x", a, b, c)
    body = [Store("s2", at("y", c, a, b), Permute(read, (2, 0, 1)), "y")]
    if through_chip:
        body.insert(0, Store("s1", at("t", a, b, c), op("mul", at("x", a, b, c), lit(2.0)), "t"))
    tensors = [
        Tensor("x", (3, 5, 4), F32, "input"),
        Tensor("y", (4, 3, 5), F32, "output"),
        Tensor("t", (3, 5, 4), F32, "chip"),
    ]
    program = Program("p", tuple(tensors), ("x",), ("y",), (Kernel("k", "p", (), tuple(body)),))
    x = randn(0, 3, 5, 4)
    np.testing.assert_allclose(run_triton(program, {"x": x})["y"], x.transpose(2, 0, 1) * (2 if through_chip else 1))


def test_permute_of_a_tile_with_new_axes(run_triton):
    a, b, _ = three_axes()
    body = (
        Store("s1", at("t", a), at("x", a), "t"),
        Store("s2", at("y", b, a), op("mul", Permute(at("t", a, NEW), (1, 0)), at("w", b, NEW)), "y"),
    )
    tensors = (
        Tensor("x", (3,), F32, "input"),
        Tensor("w", (5,), F32, "input"),
        Tensor("y", (5, 3), F32, "output"),
        Tensor("t", (3,), F32, "chip"),
    )
    program = Program("p", tensors, ("x", "w"), ("y",), (Kernel("k", "p", (), body),))
    x, w = randn(0, 3), randn(1, 5)
    np.testing.assert_allclose(run_triton(program, {"x": x, "w": w})["y"], np.outer(w, x), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("with_acc", [False, True])
def test_dot_dtypes_and_padding(dtype, with_acc, run_triton):
    """m, k, n of 20, 12, 6: padded to 32, 16, 16; the operands' padded lanes do not count."""
    m, k, n = Slice(Int(0), 20, "m"), Slice(Int(0), 12, "k"), Slice(Int(0), 6, "n")
    left = Elementwise("add", (at("a", m, k), Literal(1.0, dtype)), dtype)
    acc = op("add", Cast(Iota((m, NEW)), F32), Cast(Iota((NEW, n)), F32)) if with_acc else None
    tensors = (
        Tensor("a", (20, 12), dtype, "input"),
        Tensor("b", (12, 6), dtype, "input"),
        Tensor("y", (20, 6), F32, "output"),
    )
    store = Store("s", at("y", m, n), Dot(left, at("b", k, n), acc), "y")
    program = Program("p", tensors, ("a", "b"), ("y",), (Kernel("k", "p", (), (store,)),))
    a, b = np.round(randn(0, 20, 12) * 4) / 4, np.round(randn(1, 12, 6) * 4) / 4
    expected = (a + 1) @ b + (np.arange(20)[:, None] + np.arange(6) if with_acc else 0)
    np.testing.assert_allclose(run_triton(program, {"a": a, "b": b})["y"], expected, rtol=1e-6, atol=1e-5)


def test_window_reads_before_the_start(run_triton):
    """A slice may start at a negative index: reads there give 0."""
    i = tile("i0", 4, "i")
    left = Slice(Arith("-", Arith("*", Name("i0"), Int(4)), Int(3)), 4, "i")
    value = op("add", at("x", i), at("x", left))
    tensors = (Tensor("x", (10,), F32, "input"), Tensor("y", (10,), F32, "output"))
    kernel = Kernel("k", "p", (GridAxis("i0", 3),), (Store("s", at("y", i), value, "y"),))
    x = randn(0, 10)
    expected = x + np.concatenate([np.zeros(3), x[:-3]])
    program = Program("p", tensors, ("x",), ("y",), (kernel,))
    np.testing.assert_allclose(interpret(program, {"x": x}, dtype="float64")["y"], expected)
    np.testing.assert_allclose(run_triton(program, {"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(("start", "size", "left_out"), [(0, 10, True), (1, 10, False), (0, 9, False), (0, 11, False)])
def test_a_condition_that_a_load_has_already_is_left_out(start, size, left_out, run_triton):
    """Elements past the end read as 0: `where(i < end, x, 0)` is `x` for the positions and the end of that load."""
    loaded, compared = (Slice(Arith("+", Arith("*", Name("i0"), Int(4)), Int(first)), 4, "i") for first in (0, start))
    inside = Elementwise("lt", (Iota((compared,)), Literal(size, "int32")), "bool")
    value = op("where", inside, at("x", loaded), lit(0.0))
    tensors = (Tensor("x", (10,), F32, "input"), Tensor("y", (12,), F32, "output"))
    kernel = Kernel("k", "p", (GridAxis("i0", 3),), (Store("s", at("y", loaded), value, "y"),))
    program = Program("p", tensors, ("x",), ("y",), (kernel,))
    assert ("tl.where" not in emit(program).text) == left_out
    x, places = np.arange(1.0, 11.0, dtype=np.float32), np.arange(12)
    expected = np.where(places + start < size, np.append(x, [0, 0]), 0)
    np.testing.assert_array_equal(run_triton(program, {"x": x})["y"], expected)


def test_masked_stores(run_triton):
    """A mask keeps the old value: of a global tensor, and of an on-chip tile."""
    even = op("eq", op("floormod", Iota((I,)), lit(2, "int32"), dtype="int32"), lit(0, "int32"), dtype="bool")
    body = (
        Store("s1", at("t", I), lit(7.0), "t"),
        Store("s2", at("t", I), at("x", I), "t", even),
        Store("s3", at("y", I), lit(-1.0), "y"),
        Store("s4", at("y", I), at("t", I), "y", op("lt", Iota((I,)), lit(6, "int32"), dtype="bool")),
    )
    tensors = (Tensor("x", (11,), F32, "input"), Tensor("y", (11,), F32, "output"), Tensor("t", (11,), F32, "chip"))
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (), body),))
    x = randn(0, 11).astype(np.float64)
    n = np.arange(11)
    expected = np.where(n < 6, np.where(n % 2 == 0, x, 7.0), -1.0)
    np.testing.assert_allclose(interpret(program, {"x": x}, dtype="float64")["y"], expected)
    np.testing.assert_allclose(run_triton(program, {"x": x})["y"], expected, rtol=1e-6)


def test_scalars_indices_and_clipped_loops(run_triton):
    """Index arithmetic with //, %, min and max; indices as values; a loop that may not run."""
    h = Name("h")
    i, ones = Slice(Int(0), 6, "i"), Slice(Int(2), 1, "u")
    group = Arith("//", h, Int(2))
    value = op("mul", at("x", group, i), Cast(Scalar(Arith("%", h, Int(2))), F32))
    loop = For(
        "l", "j", Arith("max", Arith("-", h, Int(2)), Int(0)), Arith("min", h, Int(2)),
        (Store("s2", at("t", h, i), op("add", at("t", h, i), Cast(Scalar(Name("j")), F32)), "t"),), "t",
    )  # fmt: skip
    body = (
        Store("s1", at("t", h, i), value, "t"),
        loop,
        Store("s3", at("y", h, i), op("add", at("t", h, i), at("x", group, ones)), "y"),
    )
    tensors = (Tensor("x", (2, 6), F32, "input"), Tensor("y", (4, 6), F32, "output"), Tensor("t", (4, 6), F32, "chip"))
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (GridAxis("h", 4),), body),))
    x = randn(0, 2, 6)
    expected = interpret(program, {"x": x}, dtype="float64")["y"]
    loops = [sum(range(max(h - 2, 0), min(h, 2))) for h in range(4)]
    np.testing.assert_allclose(expected, [x[h // 2] * (h % 2) + loops[h] + x[h // 2, 2] for h in range(4)], rtol=1e-6)
    np.testing.assert_allclose(run_triton(program, {"x": x})["y"], expected, rtol=1e-6)


def test_a_kernel_reads_what_it_wrote(run_triton):
    """Through global memory, inside one kernel: the threads wait for each other."""
    i = Slice(Int(0), 11, "i")
    body = (
        Store("s1", at("g", i), op("mul", at("x", i), lit(2.0)), "g"),
        Store("s2", at("y", i), op("add", at("g", i), at("g", Int(3))), "y"),
    )
    tensors = (Tensor("x", (11,), F32, "input"), Tensor("y", (11,), F32, "output"), Tensor("g", (11,), F32, "global"))
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (), body),))
    x = randn(0, 11)
    np.testing.assert_allclose(run_triton(program, {"x": x})["y"], 2 * x + 2 * x[3], rtol=1e-6)


def test_extents_of_one(run_triton):
    """Slices of extent 1 keep their dimension; a tile of one element is still a tile."""
    r, i = Slice(Int(1), 1, "r"), Slice(Int(0), 5, "i")
    body = (
        Store("s1", at("t", r, i), at("x", r, i), "t"),
        Store("s2", at("one", r), Reduce("sum", at("t", r, i), 1), "one"),
        Store("s3", at("y", r, i), op("div", at("t", r, i), at("one", r, NEW)), "y"),
        Store("s4", at("z", r), at("one", r), "z"),
    )
    tensors = (
        Tensor("x", (3, 5), F32, "input"), Tensor("y", (3, 5), F32, "output"), Tensor("z", (3,), F32, "output"),
        Tensor("t", (3, 5), F32, "chip"), Tensor("one", (3,), F32, "chip"),
    )  # fmt: skip
    program = Program("p", tensors, ("x",), ("y", "z"), (Kernel("k", "p", (), body),))
    x = np.abs(randn(0, 3, 5))
    found = run_triton(program, {"x": x})
    np.testing.assert_allclose(found["y"][1], x[1] / x[1].sum(), rtol=1e-6)
    np.testing.assert_allclose(found["z"][1], x[1].sum(), rtol=1e-6)
