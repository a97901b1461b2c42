"""One row more in the table of scalar operations is all that a new function needs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import by_name
import numpy as np
import pytest
import sympy
import torch
from scalar_readers import (
    LOOP,
    LOOP_READERS,
    TILE_READERS,
    N,
    inputs_of,
    loops,
    tiles,
)

import neptune_lab as nl
from neptune_lab import scalar_ops
from neptune_lab.errors import NeptuneError, RepairError
from neptune_lab.htile.nodes import Access, Arith, Elementwise, Int, Name, Slice
from neptune_lab.htile.printer import to_text as tile_text
from neptune_lab.htile_passes.keep_exact import keep_exact
from neptune_lab.loop_ir.nodes import Const, Load, Op, Var
from neptune_lab.loop_ir.render import as_figure
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_to_repair.read import read_term
from neptune_lab.operators import custom
from neptune_lab.operators import math as mod_math
from neptune_lab.repair.condition import check_nonnegative, nonneg
from neptune_lab.repair.expression_text import parse
from neptune_lab.repair.guard import zeros
from neptune_lab.repair.prove import check_real, direction
from neptune_lab.runtime.named import Named, elementwise
from neptune_lab.scalar_ops import NUMPY, OPERATIONS, ScalarOp

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


@pytest.mark.nightly
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
    margin: Any = nonneg(r - 1)
    assert term == sympy.acosh(margin + 1)
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
