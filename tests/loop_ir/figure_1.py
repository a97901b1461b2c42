"""The paper's Figure 1 (a) to (c) as loop programs, written by hand."""

from __future__ import annotations

import numpy as np

from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Op,
    Previous,
    Program,
    Stmt,
    Store,
    Var,
)
from neptune_lab.loop_ir.roles import RepairInfo, Role

INP = np.array([[1, 3, 2, 5], [4, 1, 0, 2]], dtype="float32")
LOWEST, ZERO = Const(float("-inf"), "float32"), Const(0.0, "float32")


def at(buffer: str, *names: str) -> Load:
    return Load(buffer, tuple(Var(n) for n in names))


def op(name: str, *args: Expr) -> Op:
    return Op(name, args)


def stage(name: str, target: Load, value: Expr, *, reduce: bool = False, init: Const | None = None, **extra) -> Block:
    iters = (
        Iter("i", 2, "spatial", Var("i")),
        Iter("j", 4, "reduce" if reduce else "spatial", Var("j")),
    )
    start = None if init is None else Store(target.buffer, target.indices, init)
    origin = extra.pop("origin", name)
    return Block(name, iters, Store(target.buffer, target.indices, value), start, origin=origin, **extra)


S_MAX = stage("s_max", at("xmax", "i"), op("max", at("xmax", "i"), at("inp", "i", "j")), reduce=True, init=LOWEST)
S_EXP = stage("s_exp", at("xexp", "i", "j"), op("exp", op("sub", at("inp", "i", "j"), at("xmax", "i"))))
S_SUM = stage("s_sum", at("xsum", "i"), op("add", at("xsum", "i"), at("xexp", "i", "j")), reduce=True, init=ZERO)


def nest(*body: Stmt) -> Loop:
    return Loop("i", 2, (Loop("j", 4, body),))


def program(*body: Stmt, buffers: tuple[Buffer, ...] = ()) -> Program:
    base = (Buffer("inp", (2, 4), "float32"), Buffer("xsum", (2,), "float32"))
    inner = buffers or (Buffer("xmax", (2,), "float32"), Buffer("xexp", (2, 4), "float32"))
    return Program("figure1", ("inp", "xsum"), ("xsum",), (*base, *inner), body)


FIGURE_1A = program(nest(S_MAX), nest(S_EXP), nest(S_SUM))
FIGURE_1B = program(nest(S_MAX, S_EXP, S_SUM))


def one(name: str, target: Load, value: Expr, *, role: Role = Role.DEFINED, inner: bool = False, **extra) -> Block:
    """A block over i, or i and j, of the stage s_max."""
    iters = (Iter("i", 2, "spatial", Var("i")), *((Iter("j", 4, "spatial", Var("j")),) if inner else ()))
    return Block(name, iters, Store(target.buffer, target.indices, value), role=role, origin="s_max", **extra)


def figure_1c() -> Program:
    """Two values of xmax in turn, as the figure has them."""
    before, now = at("xmax_0", "i"), at("xmax_1", "i")
    factor = op("exp", op("sub", before, now))
    term = op("exp", op("sub", at("inp", "i", "j"), now))
    value = op("add", op("mul", factor, at("xsum", "i")), term)
    body = (
        one("s_max_start", before, LOWEST, role=Role.INITIAL),
        Loop(
            "j",
            4,
            (
                one("s_max", now, op("max", before, at("inp", "i", "j")), role=Role.CURRENT, inner=True),
                stage("s_sum", at("xsum", "i"), value, reduce=True, init=ZERO, repair=RepairInfo()),
                one("s_max_next", before, now, role=Role.RETIRE),
            ),
        ),
    )
    return program(Loop("i", 2, body), buffers=(Buffer("xmax_0", (2,), "float32"), Buffer("xmax_1", (2,), "float32")))


def figure_1c_tagged() -> Program:
    """The same with every tag of xmax kept in a scan buffer, and s_exp a block of its own."""
    before, now = Previous("xmax", (Var("j"), Var("i")), LOWEST), at("xmax", "j", "i")
    value = op("add", op("mul", op("exp", op("sub", before, now)), at("xsum", "i")), at("xexp", "i", "j"))
    body = nest(
        stage("s_max", now, op("max", before, at("inp", "i", "j")), role=Role.SCAN),
        stage("s_exp", at("xexp", "i", "j"), op("exp", op("sub", at("inp", "i", "j"), now)), role=Role.ROLLED),
        stage("s_sum", at("xsum", "i"), value, reduce=True, init=ZERO, repair=RepairInfo()),
    )
    return program(body, buffers=(Buffer("xmax", (4, 2), "float32", tagged=True), Buffer("xexp", (2, 4), "float32")))
