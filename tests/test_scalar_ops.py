"""The table of scalar operations: every reader knows every row, its facts hold, and a new row is all that is needed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import by_name
import numpy as np
import pytest
import sympy
import torch

import neptune_lab as nl
from neptune_lab import scalar_ops
from neptune_lab.errors import NeptuneError, RepairError, TileError
from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import Access, Arith, Elementwise, GridAxis, Int, Kernel, Literal, Name, Slice
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.nodes import Store as TileStore
from neptune_lab.htile.nodes import Tensor as Tile
from neptune_lab.htile.printer import to_text as tile_text
from neptune_lab.htile.shapes import arity
from neptune_lab.htile_passes.keep_exact import keep_exact
from neptune_lab.htile_passes.partition_masked_loops.simplify import infinities
from neptune_lab.htile_to_triton import emit
from neptune_lab.loop_ir import run_in_python, tags
from neptune_lab.loop_ir.nodes import Block, Buffer, Const, Iter, Load, Loop, Op, Program, Store, Var
from neptune_lab.loop_ir.render import as_figure
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_ir.tvm_compat.inward import from_tvm
from neptune_lab.loop_ir.tvm_compat.outward import to_tvm
from neptune_lab.loop_ir.visits import evaluate
from neptune_lab.loop_to_repair.evaluate import compute
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.loop_to_repair.read import read_term
from neptune_lab.operators import custom
from neptune_lab.operators import math as mod_math
from neptune_lab.operators.operations import operate
from neptune_lab.pipeline.validate import reference, triton_numpy
from neptune_lab.repair.condition import check_nonnegative, nonneg
from neptune_lab.repair.functions import SYMPY, start_of
from neptune_lab.repair.guard import zeros
from neptune_lab.repair.prove import check_real, direction
from neptune_lab.repair.read import parse
from neptune_lab.runtime.named import Named, elementwise
from neptune_lab.scalar_ops import NUMPY, OPERATIONS, ScalarOp, rows

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


def result_dtype(row: ScalarOp) -> str:
    return "bool" if row.kind in ("comparison", "logic") else str(list(inputs_of(row).values())[-1].dtype)


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


def tiles(row: ScalarOp) -> TileProgram:
    """The operation on every element, in HTile IR, in tiles of two."""
    inputs = inputs_of(row)
    index = (Slice(Arith("*", Name("n"), Int(2)), 2, "i"),)
    value = Elementwise(row.htile or row.name, tuple(Access(name, index) for name in inputs), result_dtype(row))
    tensors = [Tile(name, (N,), str(a.dtype), "input") for name, a in inputs.items()]
    tensors.append(Tile("out", (N,), result_dtype(row), "output"))
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
    return triton_numpy.run(emit(tiles(row)), inputs, dtypes, tuple(inputs))[0]


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


@pytest.mark.parametrize("name", LOOP)
def test_every_reader_of_loops_computes_every_row(name: str):
    for reader, values in LOOP_READERS.items():
        if name not in LEFT_OUT.get(reader, ()):
            found = values(LOOP[name])
            np.testing.assert_allclose(found, expected(LOOP[name]), rtol=2e-6, atol=1e-7, err_msg=reader)


@pytest.mark.parametrize("name", HTILE)
def test_every_reader_of_tiles_computes_every_row(name: str):
    for reader, values in TILE_READERS.items():
        found = values(HTILE[name])
        np.testing.assert_allclose(found, expected(HTILE[name]), rtol=2e-6, atol=3e-7, err_msg=reader)


@pytest.mark.parametrize("name", [name for name, row in HTILE.items() if row.kind == "float" and row.arity == 1])
def test_small_values_keep_their_digits_unless_the_row_says_that_they_do_not(name: str):
    row = HTILE[name]
    small = np.array([1e-2, 1e-3, 1e-5, 1e-6], np.float32)
    found = emitted(row, {"x": small})
    tolerance = {"atol": 2e-7, "rtol": 0.0} if row.absolute_error else {"rtol": 2e-6}
    np.testing.assert_allclose(found, NUMPY[name](small.astype(np.float64)), **tolerance)


@pytest.mark.parametrize("name", LOOP)
def test_every_row_is_printed(name: str):
    row = LOOP[name]
    pattern = {1: f"{row.symbol}x[i]", 2: f"x[i] {row.symbol} y[i]"}.get(row.arity, "")
    call = f"{row.htile or name}({', '.join(f'{operand}[i]' for operand in inputs_of(row))})"
    assert f"out[i] = {pattern if row.symbol else call}\n" in as_figure(loops(row))


@pytest.mark.parametrize("name", HTILE)
def test_every_row_is_printed_in_tiles(name: str):
    row = HTILE[name]
    x, y, z = (f"{operand}[n*2:n*2+2]" for operand in OPERANDS)
    call = f"{name}({', '.join((x, y, z)[: row.arity])})"
    text = call if not row.symbol else f"{row.symbol}{x}" if row.arity == 1 else f"{x} {row.symbol} {y}"
    assert f"out[n*2:n*2+2] = {text}  @" in tile_text(tiles(row))


def test_no_name_is_taken_twice():
    names = [name for row in scalar_ops._ROWS for name in {row.name, row.htile or row.name}]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    assert {"select", "guard"} & HTILE.keys() == {"div_rn", "where"} & LOOP.keys() == set()
    for unknown in ("guard", "select", "nowhere"):
        with pytest.raises(TileError, match=f"'{unknown}' is not an elementwise operator of HTile IR"):
            arity(unknown)


# -- facts ------------------------------------------------------------------------------------------------------


ENDS = np.array([-np.inf, -1e30, -90.0, -2.5, -1.0, -0.3, 0.0, 0.3, 0.5, 1.0, 2.5, 90.0, 1e30, np.inf])


@pytest.mark.parametrize("name", [name for name, row in LOOP.items() if row.kind in ("number", "float")])
def test_the_facts_of_a_row_hold(name: str):
    row = LOOP[name]
    with np.errstate(all="ignore"):
        values = NUMPY[name](*np.meshgrid(*[ENDS] * row.arity, indexing="ij"))
        zero = float(NUMPY[name](*np.zeros(row.arity)))
    low, high = row.within
    assert ((low <= values) & (values <= high) | np.isnan(values)).all()
    if row.arity == 1:
        inside = np.isfinite(ENDS)
        assert (np.isnan(values) == (row.start > ENDS))[inside].all()
    for axis in range(row.arity) if row.rising else ():
        along = np.moveaxis(values, axis, 0)
        assert not (along[1:] < along[:-1]).any()
    assert row.zero == (zero == 0)
    if row.exact:
        assert np.isin(
            values[~np.isnan(values)], [*ENDS, *-ENDS, *np.rint(ENDS), *np.floor(ENDS), *np.ceil(ENDS)]
        ).all()


@pytest.mark.parametrize("name", [name for name, row in LOOP.items() if row.kind in ("number", "float")])
def test_ranges_hold_the_values(name: str):
    row = LOOP[name]
    program = loops(row)
    for arguments in np.stack(np.meshgrid(*[ENDS] * row.arity), axis=-1).reshape(-1, row.arity):
        found = range_of(program, Op(name, tuple(Const(float(a), "float32") for a in arguments)))
        with np.errstate(all="ignore"):
            value = NUMPY[name](*arguments)
        slack = 1e-12 * abs(value) if np.isfinite(value) else 0.0  # of a quotient as a product with 1 / y
        assert np.isnan(value) or found.low - slack <= value <= found.high + slack, (arguments, found)


@pytest.mark.parametrize("name", [name for name, row in HTILE.items() if row.kind in ("number", "float")])
def test_infinities_are_foretold(name: str):
    """Finite operands give infinities at poles only: no finite sum, product or power overflows."""
    row = HTILE[name]
    ends = ENDS[np.isinf(ENDS) | (np.abs(ENDS) < 10)]
    for arguments in np.stack(np.meshgrid(*[ends] * row.arity), axis=-1).reshape(-1, row.arity):
        with np.errstate(all="ignore"):
            value = NUMPY[name](*arguments)
        found = infinities(Elementwise(name, tuple(Literal(float(a), "float32") for a in arguments), "float32"), {})
        assert not np.isinf(value) or value in found, (arguments, found)


@pytest.mark.parametrize("name", [row.name for row in LOOP.values() if row.sympy and row.kind == "float"])
def test_the_algebra_knows_every_pole(name: str):
    """What it has under a name of SymPy's is finite inside the domain; a function with other poles is for a formula."""
    x = sympy.Symbol("x", real=True)
    if LOOP[name].arity == 1:
        poles = sympy.singularities(SYMPY[name](x), x)
        start = start_of(LOOP[name])
        assert poles.is_subset(sympy.S.EmptySet if start is None else sympy.FiniteSet(start))


@pytest.mark.parametrize("language", ["triton.language", "triton.experimental.gluon.language"])
def test_emitted_names_exist(language: str):
    module = importlib.import_module(language)
    for row in HTILE.values():
        if row.triton.startswith("tl.") and (row.gluon or language == "triton.language"):
            assert hasattr(module, row.triton.removeprefix("tl.")), row.name


# -- one row more ------------------------------------------------------------------------------------------------

_ACOSH = ("log", ("add", "x", ("sqrt", ("sub", ("mul", "x", "x"), 1))))
_SINH = ("div", ("sub", ("exp", "x"), ("exp", ("neg", "x"))), 2)
NEW = {
    "sinh": scalar_ops._function("sinh", triton="", formula=_SINH, rising=True, zero=True),
    # In no library: x where it is larger than y, and the mean of both elsewhere.
    "leading": ScalarOp(
        "leading", 2, "float", formula=("select", ("gt", "x", "y"), "x", ("mul", ("add", "x", "y"), 0.5))
    ),
}
GLUON = {"block_q": 128, "block_kv": 64, "validate": "none"}
WANTED = {"sinh": np.sinh, "leading": lambda x, y: np.where(x > y, x, (x + y) / 2)}


@pytest.mark.parametrize("name", NEW)
def test_a_new_row_is_all_that_a_function_needs(name: str, monkeypatch: pytest.MonkeyPatch):
    row = NEW[name]
    monkeypatch.setitem(OPERATIONS, name, row)
    wanted = WANTED[name](*(a.astype(np.float64) for a in inputs_of(row).values()))
    for reader in {**LOOP_READERS, **TILE_READERS}:
        if reader != "points":
            found = {**LOOP_READERS, **TILE_READERS}[reader](row)
            np.testing.assert_allclose(found, wanted, rtol=2e-6, err_msg=reader)
    assert f"out[i] = {name}(x[i]" in as_figure(loops(row))
    assert f"out[n*2:n*2+2] = {name}(x[n*2:n*2+2]" in tile_text(tiles(row))
    values = [a[:1].item() for a in inputs_of(row).values()]
    found = range_of(loops(row), Op(name, tuple(Const(value, "float32") for value in values)))
    assert found.low <= WANTED[name](*map(np.float64, values)) <= found.high
    assert getattr(mod_math, name)(*(mod_math.Scalar(a) for a in inputs_of(row).values())).value.shape == (N,)


def test_a_function_of_a_new_row_compiles_from_tvm_and_from_torch(monkeypatch: pytest.MonkeyPatch):
    """From a tensor expression and from a mod through every phase; validation runs the emitted kernel."""
    from tvm import te

    x = te.placeholder((3, 5), "float32", name="x")
    sinh = te.compute((3, 5), lambda i, j: te.sinh(x[i, j]), name="y")
    monkeypatch.delitem(OPERATIONS, "sinh", raising=False)
    with pytest.raises(NeptuneError, match="sinh"):
        custom("f", [x], [sinh])
    monkeypatch.setitem(OPERATIONS, "sinh", NEW["sinh"])
    kernel = nl.compile(custom("f", [x], [sinh]))
    assert "sinh(x[" in kernel.htile_text
    assert "(tl.exp(" in kernel.source
    assert kernel.relative_error() < 1e-6
    op = nl.operators.attention.general(
        batch=1, heads=1, q_len=5, kv_len=7, head_dim=8, score_mod=lambda s, b, h, q, kv: torch.sinh(s * 0.1)
    )
    assert nl.compile(op, block_q=16, block_kv=16).relative_error() < 1e-3
    op = nl.operators.attention.causal(heads=1, seq=256, head_dim=64)
    assert "gl.exp(" not in by_name.compile(op, "rolling_update", code="gluon", **GLUON).source
    op = nl.operators.attention.general(
        batch=1, heads=1, q_len=256, kv_len=256, head_dim=64, score_mod=lambda s, b, h, q, kv: torch.sinh(s * 0.1)
    )
    assert "(gl.exp(" in by_name.compile(op, "rolling_update", code="gluon", **GLUON).source


def test_a_choice_in_a_formula_is_none_of_the_algebra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPERATIONS, "leading", NEW["leading"])
    x, y = Load("x", (Var("i"),)), Load("y", (Var("i"),))
    with pytest.raises(RepairError, match=r"a reduction result inside op leading\(x\[i\], y\[i\]\)"):
        read_term(Op("leading", (x, y)), {x: "r"})
    monkeypatch.setitem(OPERATIONS, "hard", replace(NEW["leading"], name="hard", arity=1, formula=("max", "x", 0)))
    assert parse("hard(x)") == sympy.Max(sympy.Symbol("x"), 0)
    monkeypatch.setitem(OPERATIONS, "step", replace(NEW["leading"], name="step", arity=1, formula=("gt", "x", 0)))
    with pytest.raises(RepairError, match="calls 'step', which is not a known function"):
        parse("step(x)")


def test_a_domain_of_a_new_row_is_kept_to(monkeypatch: pytest.MonkeyPatch):
    """acosh(r) is real for r >= 1 only, and a running value need not be there yet."""
    row = scalar_ops._function("acosh", triton="", formula=_ACOSH, rising=True, start=1.0, within=(0.0, math.inf))
    r, p = sympy.Symbol("r", real=True), sympy.Symbol("p", positive=True)
    monkeypatch.delitem(OPERATIONS, "acosh", raising=False)
    assert direction(sympy.acosh(p + 1), p) is None
    monkeypatch.setitem(OPERATIONS, "acosh", row)
    assert (direction(sympy.acosh(p + 1), p), direction(sympy.acosh(r), r)) == (1, None)
    check_real(sympy.acosh(p + 1), (p,))
    with pytest.raises(RepairError, match="r - 1 may be negative"):
        check_real(sympy.acosh(r), (r,))
    assert zeros(sympy.acosh(r), [r]) == {r: ()}  # acosh(1) is 0
    monkeypatch.setitem(OPERATIONS, "acosh", replace(row, within=(-math.inf, math.inf)))
    assert zeros(sympy.acosh(r), [r]) == {r: (1,)}
    read = Load("x", (Var("i"),))
    term = read_term(Op("acosh", (read,)), {read: "r"}).term
    assert term == sympy.acosh(nonneg(r - 1) + 1)
    with pytest.raises(RepairError, match="r - 1 may be negative on the way"):
        check_nonnegative(term, [r])


def test_what_a_new_row_cuts_is_rounded_exactly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPERATIONS, "trunc", scalar_ops._rounding("trunc"))
    index = (Slice(Arith("*", Name("n"), Int(2)), 2, "i"),)
    quotient = Elementwise("div", (Access("x", index), Access("y", index)), "float32")
    program = tiles(LOOP["div"])
    (kernel,) = program.kernels
    (store,) = kernel.body
    cut = replace(store, value=Elementwise("trunc", (quotient,), "float32"))
    exact = keep_exact(replace(program, kernels=(replace(kernel, body=(cut,)),)))
    assert "trunc(div_rn(x[" in tile_text(exact)
    assert keep_exact(program) is program


def test_a_library_without_the_function_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPERATIONS, "nowhere", ScalarOp("nowhere", 1, "float"))
    with pytest.raises(KeyError, match="nowhere"):
        NUMPY["nowhere"]
    with pytest.raises(NeptuneError, match="the reference has no operation 'nowhere'"):
        elementwise("nowhere", [Named((), torch.ones(()))])
