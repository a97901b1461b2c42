"""Programs with sizes that are known at the launch, at given sizes: the programs that the compiler makes for these."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import evaluate

Sample = Mapping[str, int]

# Of a constant and a size.
_OPERATIONS: Mapping[str, Callable[[float, int], float]] = {"div_rn": operator.truediv, "mul": operator.mul}
# Literals above this, such as the largest float32, stand for themselves.
_LARGE = 1e30


def at(program: ir.Program, sample: Sample) -> ir.Program:
    """`program` at given sizes: a program without `sizes`.

    Raises:
        KeyError: `sample` lacks a size.
    """
    return AtSample(sample).program(program) if program.sizes else program


def folded(op: str, constant: float, size: int) -> float:
    """The literal of float32 that an operation of a constant and a size is at one sample."""
    return _rounded(_OPERATIONS[op](constant, size))


def _rounded(value: float) -> float:
    """A literal of float32, to the 15 digits that algebra has of a number: what was simplified before and what is
    computed at a sample may differ in the last bit of a double.  Numbers near the limits of float32 stay."""
    return float(f"{value:.15g}") if abs(value) < _LARGE else value


class AtSample:
    """Replaces sizes by numbers, and folds what becomes constant only there, so that the tree is the compiler's."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        # By identity, since equal nodes may be of different types (True and 1).  The node stays alive with its entry.
        self._made: dict[int, tuple[Any, Any]] = {}

    def program(self, program: ir.Program) -> ir.Program:
        return replace(self.node(replace(program, sizes=())), sizes=())

    def node(self, node: Any) -> Any:
        if not isinstance(node, tuple) and not hasattr(node, "__dataclass_fields__"):
            return node
        known = self._made.get(id(node))
        if known is None:
            known = self._made[id(node)] = node, self._node(node)
        return known[1]

    def _node(self, node: Any) -> Any:
        """A node with numbers in place of sizes; the same object if it has none."""
        match node:
            case ir.Name(name=name) if name in self.sample:
                return ir.Int(self.sample[name])
            case ir.Arith(op=op, a=a, b=b) if self.constant(node):
                return ir.Int(evaluate(node, self.sample))
            case ir.Arith(op=op, a=a, b=b):
                return ir.Arith(op, self.node(a), self.node(b))
            case ir.Scalar(value=value) if self.constant(value):
                return ir.Literal(evaluate(value, self.sample), "int32")
            case ir.Cast(arg=ir.Scalar(value=value), dtype=dtype) if self.constant(value):
                number = evaluate(value, self.sample)
                return ir.Literal(float(number) if "float" in dtype else number, dtype)
            case ir.Elementwise(op=op, args=(ir.Literal(value=constant), ir.Cast(arg=ir.Scalar(value=value)))) if (
                op in _OPERATIONS and self.constant(value) and not isinstance(value, ir.Int)
            ):
                assert isinstance(constant, int | float)
                return ir.Literal(folded(op, constant, evaluate(value, self.sample)), node.dtype)
            case ir.Literal(value=float(value), dtype="float32") if _rounded(value) != value == value:
                return replace(node, value=_rounded(value))
            case ir.Tensor(sizes=sizes, steps=steps) if sizes is not None:
                shape = tuple(evaluate(size, self.sample) for size in sizes)
                strides = node.strides if steps is None else tuple(evaluate(step, self.sample) for step in steps)
                return replace(node, shape=shape, strides=strides, sizes=None, steps=None)
            case ir.GridAxis(size=size) if size is not None:
                return replace(node, extent=evaluate(size, self.sample), size=None)
            case tuple():
                made = tuple(self.node(item) for item in node)
                return node if all(a is b for a, b in zip(made, node, strict=True)) else made
        new = {name: self.node(getattr(node, name)) for name in field_names(type(node))}
        return node if all(getattr(node, name) is value for name, value in new.items()) else type(node)(**new)

    def constant(self, expr: ir.IndexExpr) -> bool:
        """Whether an expression has sizes, and nothing else that varies."""
        match expr:
            case ir.Int():
                return True
            case ir.Name(name=name):
                return name in self.sample
            case ir.Arith(a=a, b=b):
                return self.constant(a) and self.constant(b)


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return tuple(field.name for field in fields(kind))


__all__ = ["AtSample", "Sample", "at", "field_names", "folded"]
