"""Small HTile programs written by hand, each with its inputs and a float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neptune_lab.htile.nodes import (
    Access,
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
    NewAxis,
    Permute,
    Program,
    Reduce,
    Scalar,
    Slice,
    Store,
    Tensor,
    TileExpr,
)

F32, F16 = "float32", "float16"
NEW = NewAxis()
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program, inputs of its dtypes, and what it computes, in float64."""

    program: Program
    inputs: Arrays
    reference: Callable[[Arrays], Arrays]

    def expected(self) -> Arrays:
        return self.reference({name: np.asarray(x, np.float64) for name, x in self.inputs.items()})


def tile(var: str, extent: int, axis: str) -> Slice:
    """`var*extent : var*extent + extent`."""
    return Slice(Arith("*", Name(var), Int(extent)), extent, axis)


def op(name: str, *args: TileExpr, dtype: str = F32) -> Elementwise:
    return Elementwise(name, args, dtype)


def lit(value: float, dtype: str = F32) -> Literal:
    return Literal(value, dtype)


def at(tensor: str, *index: IndexExpr | Slice | NewAxis) -> Access:
    return Access(tensor, index)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def randn(seed: int, *shape: int, dtype: str = F32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax(rows: int = 10, cols: int = 77, block: int = 4, dtype: str = F32) -> Case:
    """Rows of a softmax: one kernel, whole rows (77 is no power of two), row tiles that do not divide."""
    i, j = tile("i0", block, "i1"), Slice(Int(0), cols, "j")
    tensors = (
        Tensor("x", (rows, cols), dtype, "input"),
        Tensor("out", (rows, cols), dtype, "output"),
        Tensor("x_max", (rows,), F32, "chip"),
        Tensor("x_exp", (rows, cols), F32, "chip"),
        Tensor("x_sum", (rows,), F32, "chip"),
    )
    x: TileExpr = at("x", i, j) if dtype == F32 else Cast(at("x", i, j), F32)
    quotient = op("div", at("x_exp", i, j), at("x_sum", i, NEW))
    body = (
        Store("s1", at("x_max", i), Reduce("max", x, 1), "x_max"),
        Store("s2", at("x_exp", i, j), op("exp", op("sub", x, at("x_max", i, NEW))), "x_exp"),
        Store("s3", at("x_sum", i), Reduce("sum", at("x_exp", i, j), 1), "x_sum"),
        Store("s4", at("out", i, j), quotient if dtype == F32 else Cast(quotient, dtype), "normalized"),
    )
    kernel = Kernel("k", "softmax", (GridAxis("i0", ceil_div(rows, block)),), body)

    def reference(a: Arrays) -> Arrays:
        e = np.exp(a["x"] - a["x"].max(1, keepdims=True))
        return {"out": e / e.sum(1, keepdims=True)}

    return Case(
        Program("softmax", tensors, ("x",), ("out",), (kernel,)), {"x": randn(0, rows, cols, dtype=dtype)}, reference
    )


def matmul(
    m: int = 40, k: int = 50, n: int = 24, blocks: tuple[int, int, int] = (16, 16, 16), dtype: str = F16
) -> Case:
    """a @ b.T in tiles that do not divide; the product goes through a tile of its own."""
    i, j, p = tile("i0", blocks[0], "i1"), tile("j0", blocks[1], "j1"), tile("p0", blocks[2], "p1")
    tensors = (
        Tensor("a", (m, k), dtype, "input"),
        Tensor("b", (n, k), dtype, "input"),
        Tensor("c", (m, n), F32, "output"),
        Tensor("acc", (m, n), F32, "chip"),
        Tensor("product", (m, n), F32, "chip"),
    )
    loop = For(
        "l1",
        "p0",
        Int(0),
        Int(ceil_div(k, blocks[2])),
        (
            Store("s2", at("product", i, j), Dot(at("a", i, p), Permute(at("b", j, p), (1, 0))), "product"),
            Store("s3", at("acc", i, j), op("add", at("acc", i, j), at("product", i, j)), "acc"),
        ),
        "acc",
    )
    body = (
        Store("s1", at("acc", i, j), lit(0.0), "acc_init"),
        loop,
        Store("s4", at("c", i, j), at("acc", i, j), "c"),
    )
    grid = (GridAxis("i0", ceil_div(m, blocks[0])), GridAxis("j0", ceil_div(n, blocks[1])))
    inputs = {"a": randn(1, m, k, dtype=dtype), "b": randn(2, n, k, dtype=dtype)}
    program = Program("matmul", tensors, ("a", "b"), ("c",), (Kernel("k", "matmul", grid, body, num_warps=4),))
    return Case(program, inputs, lambda x: {"c": x["a"] @ x["b"].T})


def attention(q_len: int = 200, kv_len: int = 77, head_dim: int = 64, block_q: int = 64, block_kv: int = 32) -> Case:
    """Online softmax over key tiles (the paper's rolling update): running maximum, sum and accumulator."""
    heads = 2
    h, i, j, d = Name("h"), tile("i0", block_q, "i1"), tile("j0", block_kv, "j1"), Slice(Int(0), head_dim, "d")
    iota = Iota((NEW, j))
    tensors = (
        Tensor("q", (1, heads, q_len, head_dim), F16, "input"),
        Tensor("k", (1, heads, kv_len, head_dim), F16, "input"),
        Tensor("v", (1, heads, kv_len, head_dim), F16, "input"),
        Tensor("out", (1, heads, q_len, head_dim), F16, "output"),
        *(Tensor(name, (1, heads, q_len, kv_len), F32, "chip") for name in ("score", "p")),
        *(Tensor(name, (1, heads, q_len), F32, "chip") for name in ("s_max", "s_max_prev", "s_sum")),
        Tensor("acc", (1, heads, q_len, head_dim), F32, "chip"),
        Tensor("pv", (1, heads, q_len, head_dim), F32, "chip"),
    )
    b = Name("b")
    row = (b, h, i)
    scaled = op("mul", Dot(at("q", *row, d), Permute(at("k", b, h, j, d), (1, 0))), lit(head_dim**-0.5))
    valid = op("lt", iota, lit(kv_len, "int32"), dtype="bool")

    def masked(name: str, identity: float) -> TileExpr:
        # Lanes past the end of an on-chip tile are unspecified: a fold masks them.
        return op("where", valid, at(name, *row, j), lit(identity))

    repair = op("exp", op("sub", at("s_max_prev", *row), at("s_max", *row)))
    repair_new = op("exp", op("sub", at("s_max_prev", *row, NEW), at("s_max", *row, NEW)))
    loop = (
        Store("s4", at("score", *row, j), scaled, "score"),
        Store("s5", at("s_max_prev", *row), at("s_max", *row), "s_max_prev"),
        Store(
            "s6",
            at("s_max", *row),
            op("max", at("s_max", *row), Reduce("max", masked("score", float("-inf")), 1)),
            "s_max",
        ),
        Store("s7", at("p", *row, j), op("exp", op("sub", at("score", *row, j), at("s_max", *row, NEW))), "p"),
        Store(
            "s8",
            at("s_sum", *row),
            op("add", op("mul", at("s_sum", *row), repair), Reduce("sum", masked("p", 0.0), 1)),
            "s_sum",
        ),
        Store("s9", at("pv", *row, d), Dot(Cast(masked("p", 0.0), F16), at("v", b, h, j, d)), "pv"),
        Store(
            "s10", at("acc", *row, d), op("add", op("mul", at("acc", *row, d), repair_new), at("pv", *row, d)), "acc"
        ),
    )
    body = (
        Store("s1", at("s_max", *row), lit(float("-inf")), "s_max_init"),
        Store("s2", at("s_sum", *row), lit(0.0), "s_sum_init"),
        Store("s3", at("acc", *row, d), lit(0.0), "acc_init"),
        For("l1", "j0", Int(0), Int(ceil_div(kv_len, block_kv)), loop, "score"),
        Store("s11", at("out", *row, d), Cast(op("div", at("acc", *row, d), at("s_sum", *row, NEW)), F16), "out"),
    )
    grid = (GridAxis("i0", ceil_div(q_len, block_q)), GridAxis("h", heads), GridAxis("b", 1))
    kernel = Kernel("k", "attention", grid, body, num_warps=4, num_stages=2)

    def reference(a: Arrays) -> Arrays:
        s = a["q"] @ a["k"].swapaxes(-1, -2) * head_dim**-0.5
        e = np.exp(s - s.max(-1, keepdims=True))
        return {"out": e / e.sum(-1, keepdims=True) @ a["v"]}

    inputs = {
        "q": randn(3, 1, heads, q_len, head_dim, dtype=F16),
        "k": randn(4, 1, heads, kv_len, head_dim, dtype=F16),
        "v": randn(5, 1, heads, kv_len, head_dim, dtype=F16),
    }
    return Case(Program("attention", tensors, ("q", "k", "v"), ("out",), (kernel,)), inputs, reference)


def split_k(rows: int = 5, splits: int = 3, cols: int = 50, n: int = 12) -> Case:
    """y[r, n] = sum_k x[r, k] * w[k, n] in two kernels: 3-D tiles summed to partial results, then their sum."""
    width = ceil_div(cols, splits)
    r, s = tile("r0", 2, "r1"), Name("s")
    k, j = Slice(Arith("*", s, Int(width)), width, "k"), Slice(Int(0), n, "j")
    all_splits = Slice(Int(0), splits, "s1")
    tensors = (
        Tensor("x", (rows, cols), F32, "input"),
        Tensor("w", (cols, n), F32, "input"),
        Tensor("y", (rows, n), F32, "output"),
        Tensor("partial", (splits, rows, n), F32, "global"),
        Tensor("product", (rows, cols, n), F32, "chip"),
    )
    product = op("mul", at("x", r, k, NEW), at("w", NEW, k, j))
    local = (
        Store("a1", at("product", r, k, j), product, "product"),
        # Lanes past the end of an on-chip tile are unspecified: mask them before the sum.
        Store("a2", at("partial", s, r, j), Reduce("sum", _masked(at("product", r, k, j), k, cols), 1), "partial"),
    )
    combine = (Store("b1", at("y", r, j), Reduce("sum", at("partial", all_splits, r, j), 0), "y"),)
    row_tiles = GridAxis("r0", ceil_div(rows, 2))
    kernels = (
        Kernel("ka", "split_k_local", (row_tiles, GridAxis("s", splits)), local),
        Kernel("kb", "split_k_combine", (row_tiles,), combine),
    )
    inputs = {"x": randn(6, rows, cols), "w": randn(7, cols, n)}
    return Case(Program("split_k", tensors, ("x", "w"), ("y",), kernels), inputs, lambda a: {"y": a["x"] @ a["w"]})


def _masked(access: Access, k: Slice, cols: int) -> TileExpr:
    inside = op("lt", Iota((NEW, k, NEW)), lit(cols, "int32"), dtype="bool")
    return op("where", inside, access, lit(0.0))


def norm(n: int = 70, block: int = 32) -> Case:
    """A scalar result, in one pass: the numerically stable L2 norm with a running maximum of rank 0."""
    j = tile("j0", block, "j1")
    tensors = (
        Tensor("x", (n,), F32, "input"),
        Tensor("scale", (), F32, "input"),
        Tensor("out", (1,), F32, "output"),
        Tensor("m", (), F32, "chip"),
        Tensor("m_prev", (), F32, "chip"),
        Tensor("s", (), F32, "chip"),
    )
    magnitude = op("abs", op("mul", at("x", j), at("scale")))
    ratio = op("div", magnitude, at("m"))
    loop = (
        Store("s3", at("m_prev"), at("m"), "m_prev"),
        Store("s4", at("m"), op("max", at("m"), Reduce("max", magnitude, 0)), "m"),
        Store(
            "s5",
            at("s"),
            op(
                "add",
                op("mul", at("s"), op("pow", op("div", at("m_prev"), at("m")), lit(2.0))),
                Reduce("sum", op("mul", ratio, ratio), 0),
            ),
            "s",
        ),
    )
    body = (
        Store("s1", at("m"), lit(0.0), "m_init"),
        Store("s2", at("s"), lit(0.0), "s_init"),
        For("l1", "j0", Int(0), Int(ceil_div(n, block)), loop, "m"),
        Store("s6", at("out", Int(0)), op("mul", at("m"), op("sqrt", at("s"))), "out"),
    )
    program = Program("norm", tensors, ("x", "scale"), ("out",), (Kernel("k", "norm", (), body),))
    inputs = {"x": randn(8, n), "scale": np.asarray(0.5, np.float32)}
    return Case(program, inputs, lambda a: {"out": np.atleast_1d(np.sqrt(((a["x"] * a["scale"]) ** 2).sum()))})


def causal_rows(n: int = 40, block: int = 16) -> Case:
    """out[i] = sum of x[j] for j <= i: a loop bound that depends on the grid, two loops over one tile name."""
    i, j, dj = tile("i0", block, "i1"), tile("j0", block, "j1"), tile("j2", block, "j3")
    tensors = (
        Tensor("x", (n,), F32, "input"),
        Tensor("out", (n,), F32, "output"),
        Tensor("t", (n, n), F32, "chip"),
        Tensor("acc", (n,), F32, "chip"),
    )

    def step(node: str, part: Slice, mask: TileExpr) -> tuple[Store, Store]:
        inside = op("lt", Iota((NEW, part)), lit(n, "int32"), dtype="bool")
        update = op("add", at("acc", i), Reduce("sum", op("where", inside, at("t", i, part), lit(0.0)), 1))
        return (
            Store(f"{node}a", at("t", i, part), op("where", mask, at("x", NEW, part), lit(0.0)), "t"),
            Store(f"{node}b", at("acc", i), update, "acc"),
        )

    def below(part: Slice) -> TileExpr:
        return op("le", Iota((NEW, part)), Iota((i, NEW)), dtype="bool")

    always = op("ge", Iota((NEW, j)), op("sub", Scalar(Name("i0")), Scalar(Name("i0")), dtype="int32"), dtype="bool")
    body = (
        Store("s1", at("acc", i), lit(0.0), "acc_init"),
        For("l1", "j0", Int(0), Name("i0"), step("p", j, always), "acc"),
        For("l2", "j2", Name("i0"), Arith("+", Name("i0"), Int(1)), step("q", dj, below(dj)), "acc"),
        Store("s2", at("out", i), at("acc", i), "out"),
    )
    program = Program(
        "causal_rows",
        tensors,
        ("x",),
        ("out",),
        (Kernel("k", "causal_rows", (GridAxis("i0", ceil_div(n, block)),), body),),
    )
    return Case(program, {"x": randn(9, n)}, lambda a: {"out": np.cumsum(a["x"])})


CASES: dict[str, Callable[[], Case]] = {
    "softmax": softmax,
    "softmax_half": lambda: softmax(9, 33, dtype=F16),
    "matmul": matmul,
    "matmul_float32": lambda: matmul(20, 40, 36, (16, 32, 32), F32),
    "matmul_small_tiles": lambda: matmul(10, 12, 9, (4, 8, 8)),
    "matmul_row": lambda: matmul(3, 40, 20, (1, 16, 32)),
    "matmul_odd": lambda: matmul(24, 40, 30, (24, 10, 20)),
    "attention_64": attention,
    "attention_80": lambda: attention(head_dim=80),
    "split_k": split_k,
    "norm": norm,
    "causal_rows": causal_rows,
}
