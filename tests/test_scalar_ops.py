"""The table of scalar operations: every reader knows every row, and its facts hold."""

from __future__ import annotations

import importlib
from itertools import product

import numpy as np
import pytest
import sympy
from scalar_readers import (
    HTILE,
    LEFT_OUT,
    LOOP,
    LOOP_READERS,
    OPERANDS,
    TILE_READERS,
    emitted,
    expected,
    inputs_of,
    loops,
    tiles,
)

from neptune_lab import scalar_ops
from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Elementwise, Literal, Name, Scalar
from neptune_lab.htile.printer import to_text as tile_text
from neptune_lab.htile.shapes import arity
from neptune_lab.htile_passes.magnitudes import Magnitudes
from neptune_lab.htile_passes.partition_masked_loops.simplify import infinities
from neptune_lab.loop_ir.nodes import Const, Op, Var
from neptune_lab.loop_ir.render import as_figure
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.repair.functions import SYMPY, start_of
from neptune_lab.scalar_ops import NUMPY, OPERATIONS


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LOOP)
def test_every_reader_of_loops_computes_every_row(name: str):
    for reader, values in LOOP_READERS.items():
        if name not in LEFT_OUT.get(reader, ()):
            found = values(LOOP[name])
            np.testing.assert_allclose(found, expected(LOOP[name]), rtol=2e-6, atol=1e-7, err_msg=reader)


@pytest.mark.one_in(2)
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
    rtol, atol = (0.0, 2e-7) if row.absolute_error else (2e-6, 0.0)
    np.testing.assert_allclose(found, NUMPY[name](small.astype(np.float64)), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", [name for name, row in HTILE.items() if row.kind in ("float", "number", "comparison")])
def test_the_numpy_form_of_triton_computes_float64_as_float64(name: str):
    row = HTILE[name]
    inputs = {operand: a.astype(np.float64) + 1e-9 for operand, a in inputs_of(row).items()}
    found = emitted(row, inputs)
    digits = 1e-6 if row.kind == "float" else 1e-14
    np.testing.assert_allclose(found, NUMPY[name](*inputs.values()), rtol=digits, atol=digits)


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


@pytest.mark.parametrize("name", [name for name, row in LOOP.items() if row.kind in ("integer", "bits")])
def test_bounds_of_integers_hold_the_values(name: str):
    """Over every box of two variables from 0, and of their differences from a constant."""
    counts = name in ("shl", "shr")
    for (m, n), (s, t) in product(product((1, 2, 5, 9), repeat=2), product((0, 1, 3, 8), repeat=2)):
        x, y = (Op("sub", (Var(v), Const(k))) for v, k in (("x", s), ("y", 0 if counts else t)))
        y = Const(t + 1) if name in ("floordiv", "floormod") else y
        points = np.array(list(product(range(m), range(n))))
        right = points[:, 1] - t if not counts else points[:, 1]
        right = np.full(len(points), t + 1) if isinstance(y, Const) else right
        values = NUMPY[name](points[:, 0] - s, right)
        found = bounds(Op(name, (x, y)), {"x": m, "y": n})
        assert found is not None, (m, n, s, t)
        assert found[0] <= values.min() <= values.max() <= found[1], (m, n, s, t, found)


@pytest.mark.parametrize("name", [name for name, row in HTILE.items() if row.kind == "bits"])
def test_magnitudes_of_bits_over_the_grid(name: str):
    program = tiles(HTILE[name])
    expr = Elementwise(name, (Scalar(Name("n")), Literal(3, "int32")), "int32")
    wanted = max(abs(int(NUMPY[name](n, 3))) for n in range(2))
    assert Magnitudes(program)(Elementwise("mul", (expr, Literal(1.0, "float32")), "float32")) == wanted


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
