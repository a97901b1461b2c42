"""Small programs for tests of passes, and what two programs of one meaning compute."""

from __future__ import annotations

import numpy as np
from htile_programs import F16, F32, NEW, at, op, tile

from neptune_lab.htile import interpret, verify
from neptune_lab.htile.nodes import (
    Cast,
    GridAxis,
    Int,
    Kernel,
    Program,
    Reduce,
    Slice,
    Stmt,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile.walk import stores

I, J = tile("i0", 16, "i"), Slice(Int(0), 16, "j")
TENSORS = (
    Tensor("x", (32, 16), F32, "input"), Tensor("y", (32, 16), F32, "output"), Tensor("z", (32, 16), F16, "output"),
    Tensor("s", (32, 16), F32, "chip"), Tensor("m", (32,), F32, "chip"),
)  # fmt: skip
X, Y, Z, S, M = at("x", I, J), at("y", I, J), at("z", I, J), at("s", I, J), at("m", I)


def program(*body: Stmt) -> Program:
    """Two program instances of 16 rows; `z` is stored last so that every program has both outputs."""
    stored = {s.target.tensor for s in stores(body)}
    rest = tuple(
        Store(f"rest_{t}", at(t, I, J), X if t == "y" else Cast(X, F16), t) for t in ("y", "z") if t not in stored
    )
    out = Program("p", TENSORS, ("x",), ("y", "z"), (Kernel("k", "p", (GridAxis("i0", 2),), (*body, *rest)),))
    verify(out)
    return out


def store(node: str, target, value) -> Store:
    return Store(node, target, value, f"block_{node}")


def value_of(after: Program, node: str):
    return next(s.value for s in stores(after.kernels[0].body) if s.node_id == node)


def same_numbers(before: Program, after: Program, tolerance: float = 1e-12) -> None:
    verify(after)
    x = np.random.default_rng(3).standard_normal((32, 16))
    a, b = (interpret(p, {"x": x}, dtype="float64") for p in (before, after))
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=tolerance, atol=tolerance)


def rows_of_softmax(score: TileExpr) -> Program:
    """The exponentials of scores relative to the maximum of their row."""
    return program(
        store("s1", S, score),
        store("s2", M, Reduce("max", S, 1)),
        store("s3", Y, op("exp", op("sub", S, at("m", I, NEW)))),
    )
