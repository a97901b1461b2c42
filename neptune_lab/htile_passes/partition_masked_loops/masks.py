"""The masks of one loop: conditions of `where` and of stores, and the ends of the tensors that it loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, is_at_most
from neptune_lab.htile.bounds import loop_interval
from neptune_lab.htile.walk import accesses, conjuncts, names_of_index, region, stores, subexpressions
from neptune_lab.htile_passes.partition_masked_loops.formula import Atom, Formula, Lane, formula_of
from neptune_lab.htile_passes.partition_masked_loops.ranges import (
    IterationRange,
    Span,
    depends_on,
    everywhere,
    somewhere,
)


@dataclass(frozen=True, slots=True)
class Conjunct:
    """One condition of a mask, or the end of a tensor (`condition` is None).

    Args:
        formula: the condition's meaning.
        true_on: iterations in which it is true on the whole tile.
        moves: whether it depends on the loop's variable.
    """

    condition: ir.TileExpr | None
    formula: Formula
    true_on: IterationRange
    moves: bool


@dataclass(frozen=True, slots=True)
class Mask:
    """A whole condition.

    Args:
        owner: the tile that it masks.
        visited: outside this range, the condition is false on the whole tile.
    """

    condition: ir.TileExpr
    owner: str
    visited: IterationRange


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks of a loop's body, and their conditions one by one."""

    masks: tuple[Mask, ...]
    conjuncts: tuple[Conjunct, ...]

    def false_outside(self, visited: IterationRange, span: Span) -> frozenset[ir.TileExpr]:
        """The conditions that are false on the whole tile in every iteration outside `visited`."""
        return frozenset(m.condition for m in self.masks if span.covers(visited, m.visited))

    def true_on(self, at: IterationRange, span: Span) -> frozenset[ir.TileExpr]:
        """The conditions, each one operand of `and`, that are true on the whole tile in every iteration of `at`."""
        return frozenset(c.condition for c in self.conjuncts if c.condition is not None and span.covers(c.true_on, at))


def find_masks(loop: ir.For, span: Span, program: ir.Program) -> Masks:
    """The masks of `loop`, each condition once."""
    masks: dict[ir.TileExpr, Mask] = {}
    parts: dict[ir.TileExpr | Formula, Conjunct] = {}
    for owner, condition in _conditions(loop):
        if condition in masks or not is_mask(condition, program):
            continue
        masks[condition] = Mask(condition, owner, somewhere(formula_of(condition), span))
        for part in conjuncts(condition):
            if part not in parts:
                formula = formula_of(part)
                parts[part] = Conjunct(part, formula, everywhere(formula, span), depends_on(formula, span.var))
    for formula in _tensor_ends(loop, span, program):
        parts.setdefault(formula, Conjunct(None, formula, everywhere(formula, span), True))
    return Masks(tuple(masks.values()), tuple(parts.values()))


def _conditions(loop: ir.For) -> Iterator[tuple[str, ir.TileExpr]]:
    for store in stores(loop.body):
        for expr in subexpressions(store.value):
            if isinstance(expr, ir.Elementwise) and expr.op == "where":
                yield store.target.tensor, expr.args[0]
        if store.mask is not None:
            yield store.target.tensor, store.mask


def is_mask(condition: ir.TileExpr, program: ir.Program) -> bool:
    """Whether a condition depends on positions or inputs; a guard such as `m == -inf` depends on tiles only."""
    return any(
        isinstance(e, ir.Iota | ir.Scalar | ir.Gather)
        or (isinstance(e, ir.Access) and program.tensor(e.tensor).space != "chip")
        for e in subexpressions(condition)
    )


def _tensor_ends(loop: ir.For, span: Span, program: ir.Program) -> Iterator[Formula]:
    """`position < size` for each slice that depends on the loop and may reach past the end of a global tensor."""
    inside = {**span.env, span.var: loop_interval(loop, span.env)}
    for store in stores(loop.body):
        for access in (store.target, *accesses(store.value), *accesses(store.mask)):
            tensor = program.tensor(access.tensor)
            if tensor.space == "chip":
                continue
            for index, size in zip(region(access), tensor.shape, strict=True):
                if not isinstance(index, ir.Slice) or span.var not in names_of_index(index.start):
                    continue
                end = ir.Arith("+", index.start, ir.Int(index.extent))
                if not is_at_most(end, ir.Int(size), inside):
                    lane = Lane(f"lane.0.{index.extent}", index.extent)
                    form = affine(ir.Int(size - 1)) - affine(index.start) - affine(ir.Name(lane.name))
                    yield Atom(form, (lane,))
