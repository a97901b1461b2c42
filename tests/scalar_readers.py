"""One operation of the table on small arrays: by torch in float64, and by everything that reads the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import Access, Arith, Elementwise, GridAxis, Int, Kernel, Name, Slice
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.nodes import Store as TileStore
from neptune_lab.htile.nodes import Tensor as Tile
from neptune_lab.htile_to_triton import emit
from neptune_lab.loop_ir import run_in_python, tags
from neptune_lab.loop_ir.iteration_domain import evaluate
from neptune_lab.loop_ir.nodes import Block, Buffer, Iter, Load, Loop, Op, Program, Store, Var
from neptune_lab.loop_ir.tvm_compat.inward import from_tvm
from neptune_lab.loop_ir.tvm_compat.outward import to_tvm
from neptune_lab.loop_to_repair.evaluate import compute
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.loop_to_repair.read import read_term
from neptune_lab.operators import custom
from neptune_lab.operators.operations import operate
from neptune_lab.pipeline.validate import reference, triton_numpy
from neptune_lab.runtime.named import Named, elementwise
from neptune_lab.scalar_ops import NUMPY, ScalarOp, rows

LOOP = {row.name: row for row in rows("loop")}
HTILE = {row.htile or row.name: row for row in rows("htile")}
OPERANDS = ("x", "y", "z")
N = 4


def inputs_of(row: ScalarOp) -> dict[str, np.ndarray]:
    """Four values of each operand, of the kind that the operation takes."""
    first = np.array([0.5, 2.5, 0.25, 3.0], np.float32)
    second = np.array([1.5, 2.5, 0.125, -2.0], np.float32)
    arrays = [first, second, first + 4]
    if row.kind == "logic":
        arrays = [np.array([False, False, True, True]), np.array([False, True, False, True])]
    if row.kind == "bits":
        second = [3, 3, 2, 5] if row.name in ("shl", "shr") else [3, -6, 12, 5]
        arrays = [np.array([7, -7, 6, -1], np.int32), np.array(second, np.int32)]
    if row.kind == "integer":
        arrays = [np.array([7, -7, 6, -1], np.int32), np.array([3, 3, 2, 5], np.int32)]
    if row.name == "select":
        arrays = [np.array([True, False, False, True]), first, second]
    return dict(zip(OPERANDS, arrays[: row.arity], strict=False))


def expected(row: ScalarOp) -> np.ndarray:
    """The values by torch, in float64."""
    wide = [torch.from_numpy(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in inputs_of(row).values()]
    if row.name == "guard":
        return torch.where(wide[0] == wide[1], wide[2], wide[0]).numpy()
    name = {"div_rn": "true_divide", "sqrt_rn": "sqrt"}.get(row.name, row.torch)
    return getattr(torch, name)(*wide).numpy()


def result_dtype(row: ScalarOp, inputs: Mapping[str, np.ndarray] | None = None) -> str:
    given = inputs or inputs_of(row)
    return "bool" if row.kind in ("comparison", "logic") else str(list(given.values())[-1].dtype)


def applied(row: ScalarOp) -> Op:
    """The operation on one element of each operand."""
    return Op(row.name, tuple(Load(name, (Var("i"),)) for name in inputs_of(row)))


def loops(row: ScalarOp) -> Program:
    """The operation on every element, in the loop-scalar IR."""
    inputs = inputs_of(row)
    buffers = [Buffer(name, (N,), str(a.dtype)) for name, a in inputs.items()]
    block = Block("out", (Iter("i", N, "spatial", Var("i")),), Store("out", (Var("i"),), applied(row)))
    buffers.append(Buffer("out", (N,), result_dtype(row)))
    return Program("f", (*inputs, "out"), ("out",), tuple(buffers), (Loop("i", N, (block,)),))


def tiles(row: ScalarOp, inputs: Mapping[str, np.ndarray] | None = None) -> TileProgram:
    """The operation on every element, in HTile IR, in tiles of two; of the row's own inputs if none are given."""
    inputs = inputs or inputs_of(row)
    index = (Slice(Arith("*", Name("n"), Int(2)), 2, "i"),)
    value = Elementwise(row.htile or row.name, tuple(Access(name, index) for name in inputs), result_dtype(row, inputs))
    tensors = [Tile(name, (N,), str(a.dtype), "input") for name, a in inputs.items()]
    tensors.append(Tile("out", (N,), result_dtype(row, inputs), "output"))
    kernel = Kernel("k", "k", (GridAxis("n", N // 2),), (TileStore("out", Access("out", index), value, "out"),))
    return TileProgram("f", tuple(tensors), tuple(inputs), ("out",), (kernel,))


# -- readers: each computes the values of a row ------------------------------------------------------------------


def by_table(row: ScalarOp) -> np.ndarray:
    return NUMPY[row.name](*inputs_of(row).values())


def by_reference(row: ScalarOp) -> np.ndarray:
    return reference.evaluate(loops(row), inputs_of(row))["out"]


def by_compute(row: ScalarOp) -> np.ndarray:
    return compute(applied(row), dict(zip(applied(row).args, inputs_of(row).values(), strict=True)), "float32")


def by_tags(row: ScalarOp) -> np.ndarray:
    return tags.record(loops(row), inputs_of(row)).values["out"]


def by_python(row: ScalarOp) -> np.ndarray:
    return run_in_python.run_in_python(loops(row), inputs_of(row))["out"]


def by_points(row: ScalarOp) -> np.ndarray:
    inputs = inputs_of(row)
    return evaluate(Op(row.name, tuple(Var(name) for name in inputs)), inputs)


def by_torch(row: ScalarOp) -> np.ndarray:
    given = inputs_of(row).values()
    wide = [Named(("i",), torch.from_numpy(a.astype(np.float64) if a.dtype.kind == "f" else a)) for a in given]
    return elementwise(row.name, wide).tensor.numpy()


def by_tvm(row: ScalarOp) -> np.ndarray:
    program = loops(row)
    back = from_tvm(to_tvm(program), name="f", outputs=("out",), like=program)
    return reference.evaluate(back, inputs_of(row))["out"]


def by_sympy(row: ScalarOp) -> np.ndarray:
    expr = applied(row)
    reading = read_term(expr, {})
    back = lower(reading.term, dict(reading.reads), "float32")
    return compute(back, dict(zip(expr.args, inputs_of(row).values(), strict=True)), "float32")


def by_a_mod_in_numpy(row: ScalarOp) -> np.ndarray:
    return operate(row.name, list(inputs_of(row).values()))


def by_a_mod_in_tvm(row: ScalarOp) -> np.ndarray:
    from tvm import te

    inputs = inputs_of(row)
    given = [te.placeholder((N,), str(a.dtype), name=name) for name, a in inputs.items()]
    out = te.compute((N,), lambda i: operate(row.name, [t(i) for t in given]), name="out")
    return reference.evaluate(custom("f", given, [out]).program, inputs)["out"]


def by_tiles(row: ScalarOp) -> np.ndarray:
    return interpret(tiles(row), inputs_of(row))["out"]


def by_triton(row: ScalarOp) -> np.ndarray:
    return emitted(row, inputs_of(row))


def emitted(row: ScalarOp, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    dtypes = {name: str(a.dtype) for name, a in inputs.items()}
    return triton_numpy.run(emit(tiles(row, inputs)), inputs, dtypes, tuple(inputs))[0]


LOOP_READERS: dict[str, Callable[[ScalarOp], np.ndarray]] = {
    "table": by_table, "reference": by_reference, "compute": by_compute, "tags": by_tags, "python": by_python,
    "points": by_points, "torch": by_torch, "tvm": by_tvm, "sympy": by_sympy, "mod, numpy": by_a_mod_in_numpy,
    "mod, tvm": by_a_mod_in_tvm,
}  # fmt: skip
TILE_READERS = {"table": by_table, "tiles": by_tiles, "triton": by_triton}
FLOATS = {row.name for row in LOOP.values() if row.kind == "float"}
# What a reader does not take, and why.
LEFT_OUT: Mapping[str, set[str]] = {
    "points": FLOATS,  # loops and conditions on them are whole numbers
    # The algebra is over the reals; `read_term` makes an input, or a `Piecewise`, of the rest.
    "sympy": {"round", *(row.name for row in LOOP.values() if row.kind not in ("number", "float"))},
    "mod, numpy": {"guard"},  # only a primitive makes one
    "mod, tvm": {"guard"},
}
