"""Simplifies tile expressions by the identities of reducers and of arithmetic with infinities.

A result holds for every element: a constant tile becomes a `Literal`, whatever its shape.  Assumptions of the
identities that do not follow from the program are collected as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import operation
from neptune_lab.htile.walk import accesses, rewrite, stores, subexpressions
from neptune_lab.scalar_ops import NUMPY, ScalarOp
from neptune_lab.strict.dtypes import FLOATS

INF = math.inf
Infinities = frozenset[float]
NEITHER: Infinities = frozenset()
BOTH: Infinities = frozenset((-INF, INF))

FINITE_INPUTS = "inputs are finite and no finite sum or product overflows"
ZERO_TIMES = "0 times {} counts as 0, so {} is finite"


def infinities_of_tensors(program: ir.Program, inputs: Infinities = NEITHER) -> dict[str, Infinities]:
    """The infinities that an element of each tensor may be: if inputs are finite, only literals bring them in.

    What an earlier kernel stored is one of the values that its stores give.

    Args:
        inputs: those that an element of an input may be.
    """
    every = [store for kernel in program.kernels for store in stores(kernel.body)]
    stored = {store.target.tensor for store in every}
    tensors = {t.name: NEITHER if t.name in stored else inputs for t in program.tensors}
    while True:
        before = dict(tensors)
        for store in every:
            tensors[store.target.tensor] |= infinities(store.value, tensors)
        if tensors == before:
            return tensors


def infinities(expr: ir.TileExpr, tensors: Mapping[str, Infinities]) -> Infinities:
    """The infinities that an element of `expr` may be, given those of the tensors; it may also be NaN."""
    match expr:
        case ir.Literal(value=value):
            return frozenset((value,)) & BOTH
        case ir.Access(tensor=name) | ir.Gather(tensor=name):
            return tensors[name]
        case ir.Iota() | ir.Scalar():
            return NEITHER
        case ir.Cast(arg=arg) | ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
            return infinities(arg, tensors)
        case ir.Dot(a=a, b=b, acc=acc):
            factors = infinities(a, tensors) | infinities(b, tensors)
            return (BOTH if factors else NEITHER) | (NEITHER if acc is None else infinities(acc, tensors))
        case ir.Elementwise(op="where", args=(ir.Elementwise(op="eq", args=(x, ir.Literal(value=value))), a, b)) if (
            b == x
        ):
            return infinities(a, tensors) | (infinities(b, tensors) - {value})  # a guard against one value of b
        case ir.Elementwise(op=op, args=args):
            return _infinities_of(op, [infinities(arg, tensors) for arg in args], args)
        case _:
            assert_never(expr)


def _infinities_of(op: str, args: list[Infinities], operands: tuple[ir.TileExpr, ...]) -> Infinities:
    match op, args:
        case "where", [_, a, b]:
            return a | b
        case "max", [a, b]:
            return ((a | b) & {INF}) | (a & b & {-INF})
        case "min", [a, b]:
            return ((a | b) & {-INF}) | (a & b & {INF})
        case "add", [a, b]:
            return a | b
        case "sub", [a, b]:
            return a | _negated(b)
        case "neg", [a]:
            return _negated(a)
        case "mul", [a, b]:
            return BOTH if a | b else NEITHER
        case "abs", [a]:
            return frozenset((INF,)) if a else NEITHER
        case (("div" | "div_rn"), [a, b]) if isinstance(operands[1], ir.Literal) and operands[1].value != 0:
            return a if operands[1].value > 0 else _negated(a)
        case _:
            return _by_facts(operation(op), args)


def _by_facts(row: ScalarOp, args: list[Infinities]) -> Infinities:
    low, high = row.within
    if not row.rising or row.arity > 1:
        return frozenset(row.within) & BOTH
    # If the domain has a least operand, that operand, which is finite, gives the least value.
    least = {low} if math.isfinite(row.start) or -INF in args[0] else set()
    return frozenset(least | ({high} if INF in args[0] else set())) & BOTH


def _negated(values: Infinities) -> Infinities:
    return frozenset(-value for value in values)


@dataclass
class Simplifier:
    """Simplifies expressions, given the infinities of tensors.

    Args:
        tensors: the infinities that each tensor's elements may be.
        assumptions: output: the assumptions of the identities used so far, as text, in order.
    """

    tensors: Mapping[str, Infinities]
    assumptions: dict[str, None] = field(default_factory=dict)

    def __call__(self, expr: ir.TileExpr) -> ir.TileExpr:
        """`expr` after the identities of this module, operands first."""
        return rewrite(expr, self._step)

    def _step(self, expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Elementwise(op=op, args=args, dtype=dtype):
                return _folded(op, args, dtype) or self._identity(expr)
            case ir.Cast(arg=ir.Literal(value=value), dtype=dtype) if value in (0, 1, -INF, INF):
                return ir.Literal(_typed(value, dtype), dtype)
            case ir.Permute(arg=ir.Literal() as constant):
                return constant
            case ir.Reduce(op="max" | "min", arg=ir.Literal() as constant):
                return constant
            case ir.Reduce(op="sum", arg=ir.Literal(value=0) as zero):
                return zero
            case ir.Reduce(op="prod", arg=ir.Literal(value=1) as one):
                return one
            case ir.Dot(a=ir.Literal(value=0), b=other, acc=acc) | ir.Dot(a=other, b=ir.Literal(value=0), acc=acc):
                self._zero_times(other)
                return ir.Literal(0.0, "float32") if acc is None else acc
            case _:
                return expr

    def _identity(self, expr: ir.Elementwise) -> ir.TileExpr:
        """An operation of which an operand is a literal or both are equal, by an identity that holds for floats."""
        dtype = expr.dtype
        match expr.op, expr.args:
            case "where", (_, a, b) if a == b:
                return a
            case "where", (ir.Literal(value=value), a, b):
                return a if value else b
            case ("max", (x, ir.Literal(value=v)) | (ir.Literal(value=v), x)) if v == -INF:
                return x
            case ("min", (x, ir.Literal(value=v)) | (ir.Literal(value=v), x)) if v == INF:
                return x
            case ("add", (x, ir.Literal(value=0)) | (ir.Literal(value=0), x)) | ("sub", (x, ir.Literal(value=0))):
                return x
            case ("mul", (x, ir.Literal(value=1)) | (ir.Literal(value=1), x)) | ("div", (x, ir.Literal(value=1))):
                return x
            case ("mul", (x, ir.Literal(value=0)) | (ir.Literal(value=0), x)):
                if infinities(x, self.tensors):
                    return expr
                self._zero_times(x)
                return ir.Literal(_typed(0, dtype), dtype)
            case "add", (x, ir.Literal(value=v)) | (ir.Literal(value=v), x) if v in BOTH and self._never(x, -v):
                return ir.Literal(v, dtype)
            case "sub", (ir.Literal(value=v), x) if v in BOTH and self._never(x, v):
                return ir.Literal(v, dtype)
            case "sub", (x, y) if x == y and dtype in FLOATS and self._never(x, -INF, INF):
                return ir.Literal(0.0, dtype)
            case "sub", (x, y) if x == y and dtype not in FLOATS:
                return ir.Literal(0, dtype)
            case ("eq", (x, ir.Literal(value=v)) | (ir.Literal(value=v), x)) if v in BOTH and self._never(x, v):
                return ir.Literal(False, "bool")
            case _:
                return expr

    def _never(self, expr: ir.TileExpr, *values: float) -> bool:
        if infinities(expr, self.tensors) & frozenset(values):
            return False
        if any(isinstance(e, ir.Access | ir.Gather) for e in subexpressions(expr)):
            self.assumptions[FINITE_INPUTS] = None
        return True

    def _zero_times(self, expr: ir.TileExpr) -> None:
        names = ", ".join(dict.fromkeys(access.tensor for access in accesses(expr)))
        if names:
            self.assumptions[ZERO_TIMES.format(names, names)] = None


def _folded(op: str, args: tuple[ir.TileExpr, ...], dtype: str) -> ir.Literal | None:
    """An operator on constants, computed; None if an operand is not constant, or the result is NaN."""
    values = [arg.value for arg in args if isinstance(arg, ir.Literal)]
    if len(values) < len(args):
        return None
    with np.errstate(all="ignore"):
        value = np.asarray(NUMPY[op](*(np.asarray(v) for v in values))).item()
    return None if value != value else ir.Literal(_typed(value, dtype), dtype)


def _typed(value: float | int | bool, dtype: str) -> float | int | bool:
    return float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)
