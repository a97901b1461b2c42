"""Programs with rolling updates of masked rows, and the terms of their masks."""

from __future__ import annotations

from collections.abc import Callable

from htile_programs import F16, F32, NEW, at, lit, op

from neptune_lab.htile.nodes import (
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    GridAxis,
    IndexExpr,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    Program,
    Reduce,
    Scalar,
    Slice,
    Store,
    Tensor,
    TileExpr,
)

INF = float("inf")
B = 4  # rows and columns of a tile


def start(var: str, extent: int = B, offset: IndexExpr | None = None) -> IndexExpr:
    at_tile = Arith("*", Name(var), Int(extent))
    return at_tile if offset is None else Arith("+", offset, at_tile)


ROWS, COLUMNS = Slice(start("i0"), B, "i"), Slice(start("j0"), B, "j")
Q, KV, H = Iota((ROWS, NEW)), Iota((NEW, COLUMNS)), Scalar(Name("h"))


def holds(name: str, *args: TileExpr) -> Elementwise:
    return op(name, *args, dtype="bool")


def number(n: int) -> Literal:
    return Literal(n, "int32")


def integer(name: str, *args: TileExpr) -> Elementwise:
    return op(name, *args, dtype="int32")


def rolling(
    condition: TileExpr,
    masked: float = -INF,
    first: float = -INF,
    n: int = 14,
    guarded: bool = True,
    loop: tuple[IndexExpr, IndexExpr] | None = None,
    columns: Slice = COLUMNS,
    outer: Callable[[For], For] = lambda inner: inner,
) -> Program:
    """Softmax of masked rows times v: the rolling update, its repair guarded or not."""
    row, tail = at("m", ROWS), holds("lt", Iota((NEW, columns)), number(n))

    def guard(x: TileExpr) -> TileExpr:
        return op("where", holds("eq", x, lit(-INF)), lit(0.0), x) if guarded else x

    score = op("where", condition, at("x", ROWS, columns), lit(masked))
    folded = Reduce("max", op("where", tail, at("s", ROWS, columns), lit(-INF)), 1)
    p = op("exp", op("sub", at("s", ROWS, columns), guard(at("m_new", ROWS, NEW))))
    repair = op("exp", op("sub", guard(row), guard(at("m_new", ROWS))))
    repair_rows = op("exp", op("sub", guard(at("m", ROWS, NEW)), guard(at("m_new", ROWS, NEW))))
    kept = op("where", tail, at("p", ROWS, columns), lit(0.0))
    width = Slice(Int(0), 4, "d")
    body = (
        Store("a", at("s", ROWS, columns), score, "s"),
        Store("b", at("m_new", ROWS), op("max", row, folded), "m_new"),
        Store("c", at("p", ROWS, columns), p, "p"),
        Store("d", at("sum", ROWS), op("add", op("mul", at("sum", ROWS), repair), Reduce("sum", kept, 1)), "sum"),
        Store(
            "e",
            at("acc", ROWS, width),
            Dot(Cast(kept, F16), Cast(at("v", columns, width), F16), op("mul", repair_rows, at("acc", ROWS, width))),
            "acc",
        ),
        Store("f", at("m", ROWS), at("m_new", ROWS), "m"),
    )
    tensors = (
        Tensor("x", (n, n), F32, "input"), Tensor("v", (n, 4), F32, "input"), Tensor("doc", (n,), "int32", "input"),
        Tensor("out", (n, 4), F32, "output"), Tensor("s", (n, n), F32, "chip"), Tensor("p", (n, n), F32, "chip"),
        Tensor("m", (n,), F32, "chip"), Tensor("m_new", (n,), F32, "chip"), Tensor("sum", (n,), F32, "chip"),
        Tensor("acc", (n, 4), F32, "chip"),
    )  # fmt: skip
    tiles = -(-n // B)
    lo, hi = loop or (Int(0), Int(tiles))
    quotient = op("div", at("acc", ROWS, width), at("sum", ROWS, NEW))
    kernel = (
        Store("1", at("m", ROWS), lit(first), "m"),
        Store("2", at("sum", ROWS), lit(0.0), "sum"),
        Store("3", at("acc", ROWS, width), lit(0.0), "acc"),
        outer(For("l", "j0", lo, hi, body, "s")),
        Store("4", at("out", ROWS, width), quotient, "out"),
    )
    grid = (GridAxis("i0", tiles), GridAxis("h", 2))
    return Program("rolling", tensors, ("x", "v", "doc"), ("out",), (Kernel("k", "rolling", grid, kernel),))


CAUSAL = holds("le", KV, Q)
WINDOW = holds("lt", integer("sub", Q, KV), number(8))
DOCUMENT = holds("eq", at("doc", ROWS, NEW), at("doc", NEW, COLUMNS))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "causal": lambda: rolling(CAUSAL),
    "window": lambda: rolling(holds("and", CAUSAL, WINDOW)),
    "two-sided window": lambda: rolling(holds("lt", integer("abs", integer("sub", Q, KV)), number(3))),
    "prefix": lambda: rolling(holds("or", CAUSAL, holds("lt", KV, number(6)))),
    "heads": lambda: rolling(holds("or", holds("lt", H, number(1)), CAUSAL)),
    "documents": lambda: rolling(holds("and", DOCUMENT, CAUSAL)),
    "nothing seen": lambda: rolling(holds("lt", KV, number(0))),
    "rows without keys": lambda: rolling(holds("le", KV, integer("sub", Q, number(7)))),
}
