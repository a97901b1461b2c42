"""Extrema that a repair may not move, since what reads them tells a rounded one from an exact one.

max and min return one of their elements to the last bit, so that `x / s == max(x / s)` holds somewhere, x / s - max is
0 there, and the root of max - x / s is no NaN.  What h moves was rounded twice, and equals no element.  So after an
extremum that is repaired:

- its value, and what depends on it through any stages, is compared with nothing, and becomes no whole number by floor,
  ceil or a conversion;
- the nearest whole number, a root, a logarithm and a quotient of it have no edge where an element is the extremum.

Three comparisons hold of a moved one as well: with an infinity, of a value with itself, and with 0, where h is a
factor, of products and quotients, whose signs a factor does not change.  A comparison for equality that is joined by
`|` with one that allows for rounding, as in gradients of ties, is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Previous, Program, Var, children
from neptune_lab.loop_ir.positions import COMPARISONS
from neptune_lab.loop_ir.reduction import match_reduction, reducer_of
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import loads, walk
from neptune_lab.loop_to_repair.evaluate import POINTS, Array, compute, draw, generator

# For each function that ends or jumps at 0, the operand that may not be 0.
_EDGE_AT_ZERO = {"sqrt": 0, "rsqrt": 0, "log": 0, "log2": 0, "pow": 0, "div": 1}
_WHOLE = ("floor", "ceil", "round")
# What keeps the sign of each operand, and is 0 only if one is.
_KEEPS_SIGN = ("mul", "div", "abs", "neg", "sqrt")
_NEAR = 1e-9


def check_ties(program: Program, name: str, consumer: Block, *, by_factor: bool) -> None:
    """Refuses to move an extremum where a stage tells that it was rounded.

    Args:
        program: after naive fusion.
        name: of the reduction.
        consumer: its local block.
        by_factor: whether h multiplies by a number, so that 0 stays 0.

    Raises:
        RepairError: step "range".
    """
    if reducer_of(consumer) not in ("max", "min"):
        return
    stages = _Stages(program, name, consumer)
    for block in stages.blocks.values():
        if block.writes in stages.moved or not stages.depends(block.writes):
            continue
        for told in _told(block.body.value, stages, by_factor):
            raise RepairError(
                f"block {block.name!r} compares {name!r} with numbers, or has an edge where an element is equal to it, "
                "and a moved extremum is rounded: it equals none of its elements",
                step="range",
                expression=expression(told),
                help="read the extremum before it depends on another reduction, or keep the stages in separate kernels",
            )


class _Stages:
    """The blocks that depend on a moved extremum, and their values where an element is the extremum."""

    def __init__(self, program: Program, name: str, consumer: Block) -> None:
        self.program = program
        self.blocks = {b.writes: b for b in tree.blocks(program) if b.role not in (Role.RETIRE, Role.INITIAL)}
        self.moved = {b.writes for b in self.blocks.values() if b.name in (name, consumer.name)}
        self.term = match_reduction(consumer).term
        self._depends = dict.fromkeys(self.moved, True)
        self._values: dict[str, Array] = {}
        self._random = generator()
        self._position = self._random.integers(0, 4, (2, POINTS))

    def depends(self, buffer: str) -> bool:
        """Whether a buffer's value depends on the extremum."""
        if buffer not in self._depends:
            block = self.blocks.get(buffer)
            self._depends[buffer] = False  # its own previous value
            self._depends[buffer] = block is not None and self.varies(block.body.value)
        return self._depends[buffer]

    def varies(self, expr: Expr) -> bool:
        """Whether an expression's value depends on the extremum."""
        return any(self.depends(read.buffer) for read in loads(expr))

    def at_tie(self, expr: Expr) -> Array:
        """The value where every element of a tensor is the same random number, so that each is the extremum."""
        at: dict[Expr, Array] = {}
        for leaf in _outermost(expr):
            at[leaf] = self._position if isinstance(leaf, Var) else self._of(leaf.buffer)
        return np.broadcast_to(compute(expr, at), (2, POINTS))

    def _of(self, buffer: str) -> Array:
        block = self.blocks.get(buffer)
        key = buffer if block is None else block.origin
        if buffer in self._values:
            return self._values[buffer]
        if buffer in self.moved:
            value = self.at_tie(self.term)
        elif block is not None and reducer_of(block) is None and not _reads_previous(block):
            value = self.at_tie(block.body.value)
        elif (
            block is not None and reducer_of(block) in ("max", "min") and block.repair is None and self.depends(buffer)
        ):
            value = self.at_tie(match_reduction(block).term)
        else:  # the whole reduction and its part have one value
            names = tuple(Var(f"{n}") for n in range(len(self.program.buffer(buffer).shape)))
            value = self._values.setdefault(f"{key} as a whole", draw(self.program, Load(buffer, names), self._random))
        self._values[buffer] = value
        return value


def _reads_previous(block: Block) -> bool:
    return any(isinstance(read, Previous) or read.buffer == block.writes for read in loads(block.body.value))


def _outermost(expr: Expr) -> list[Load | Previous | Var]:
    if isinstance(expr, Load | Previous | Var):
        return [expr]
    return [leaf for part in children(expr) for leaf in _outermost(part)]


def _told(expr: Expr, stages: _Stages, by_factor: bool) -> Iterator[Expr]:
    """The parts of a stage that tell a rounded extremum from an exact one."""
    left_out = _allowed_ties(expr)
    for part in walk(expr):
        if part in left_out or not stages.varies(part):
            continue
        if isinstance(part, Cast):
            if "float" not in part.dtype and not _is_whole(part.arg, stages):
                yield part
        elif isinstance(part, Op):
            if part.name in COMPARISONS:
                if not _holds_of_moved(part, stages, by_factor):
                    yield part
            elif part.name in ("floor", "ceil"):
                yield part
            elif part.name == "round":
                value = stages.at_tie(part.args[0])
                if np.any(np.abs(value - np.floor(value) - 0.5) < _NEAR * (1 + np.abs(value))):
                    yield part
            elif part.name in _EDGE_AT_ZERO:
                operand = part.args[_EDGE_AT_ZERO[part.name]]
                if stages.varies(operand) and np.any(np.abs(stages.at_tie(operand)) < _NEAR):
                    yield part


def _holds_of_moved(comparison: Op, stages: _Stages, by_factor: bool) -> bool:
    a, b = comparison.args
    if a == b:
        return True
    for value, other in ((a, b), (b, a)):
        if isinstance(other, Const):
            if math.isinf(other.value):
                return True
            return by_factor and other.value == 0 and _keeps_sign(value, stages)
    return False


def _keeps_sign(expr: Expr, stages: _Stages) -> bool:
    """Whether an expression's sign is that of the extremum, up to what does not depend on it."""
    if not stages.varies(expr):
        return True
    if isinstance(expr, Cast):
        return "float" in expr.dtype and _keeps_sign(expr.arg, stages)
    if isinstance(expr, Op):
        return expr.name in _KEEPS_SIGN and all(_keeps_sign(arg, stages) for arg in expr.args)
    if not isinstance(expr, Load) or expr.buffer in stages.moved:
        return isinstance(expr, Load)
    block = stages.blocks[expr.buffer]
    if reducer_of(block) is not None:
        return False
    return _keeps_sign(block.body.value, stages)


def _is_whole(expr: Expr, stages: _Stages) -> bool:
    """Whether an expression is a whole number already, or does not depend on the extremum."""
    if isinstance(expr, Op):
        choices = expr.args[1:] if expr.name == "select" else expr.args if expr.name in ("max", "min") else ()
        is_condition = expr.name in COMPARISONS or expr.name in ("and", "or", "not")
        return expr.name in _WHOLE or is_condition or (bool(choices) and all(_is_whole(c, stages) for c in choices))
    if isinstance(expr, Cast):
        return "float" not in expr.dtype or _is_whole(expr.arg, stages)
    if isinstance(expr, Load) and stages.depends(expr.buffer) and expr.buffer not in stages.moved:
        if "float" not in stages.program.buffer(expr.buffer).dtype:
            return True
        block = stages.blocks[expr.buffer]
        return reducer_of(block) is None and _is_whole(block.body.value, stages)
    return not stages.varies(expr)


def _allowed_ties(expr: Expr) -> set[Expr]:
    """Comparisons of two numbers for equality, and the ones beside them that allow for rounding of the same two."""
    found: set[Expr] = set()
    for part in walk(expr):
        if not isinstance(part, Op) or part.name != "or":
            continue
        exact, *others = sorted(part.args, key=lambda arg: not (isinstance(arg, Op) and arg.name == "eq"))
        if not isinstance(exact, Op) or exact.name != "eq":
            continue
        for near in (node for other in others for node in walk(other)):
            match near:
                case Op("le" | "lt", (Op("abs", (Op("sub") as distance,)), bound)):
                    if set(loads(distance)) == set(loads(exact)) and not isinstance(bound, Const):
                        found |= {exact, near}
    return found


__all__ = ["check_ties"]
