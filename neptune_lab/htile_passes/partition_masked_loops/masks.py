"""The masks of one loop: conditions of `where` and of stores, and the ends of the tensors that it loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neptune_lab.htile.affine import affine, is_at_most
from neptune_lab.htile.bounds import loop_interval
from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Elementwise,
    For,
    Gather,
    Int,
    Iota,
    Name,
    NewAxis,
    Program,
    Scalar,
    Slice,
    TileExpr,
)
from neptune_lab.htile.walk import accesses, conjuncts, names_of_index, stores, subexpressions
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
    """One condition of a mask, or one end of a tensor (`condition` is None), and where it is true on whole tiles."""

    condition: TileExpr | None
    formula: Formula
    true_on: IterationRange
    moves: bool  # whether the loop's variable moves it


@dataclass(frozen=True, slots=True)
class Mask:
    """A whole condition; outside `visited` it is false on whole tiles."""

    condition: TileExpr
    owner: str  # the tile that is masked
    visited: IterationRange


@dataclass(frozen=True, slots=True)
class Masks:
    """Everything in the body of a loop that asks for positions."""

    masks: tuple[Mask, ...]
    conjuncts: tuple[Conjunct, ...]

    def false_outside(self, visited: IterationRange, span: Span) -> frozenset[TileExpr]:
        """The conditions that are false on every whole tile outside `visited`."""
        return frozenset(m.condition for m in self.masks if span.covers(visited, m.visited))

    def true_on(self, at: IterationRange, span: Span) -> frozenset[TileExpr]:
        """The conditions, each one operand of `and`, that are true on every whole tile of `at`."""
        found = (c.condition for c in self.conjuncts if c.condition is not None and span.covers(c.true_on, at))
        return frozenset(found)


def find_masks(loop: For, span: Span, program: Program) -> Masks:
    """The masks of `loop`, each condition once."""
    masks: dict[TileExpr, Mask] = {}
    parts: dict[TileExpr | Formula, Conjunct] = {}
    for owner, condition in _conditions(loop):
        if condition in masks or not _is_mask(condition, program):
            continue
        masks[condition] = Mask(condition, owner, somewhere(formula_of(condition), span))
        for part in conjuncts(condition):
            if part not in parts:
                formula = formula_of(part)
                parts[part] = Conjunct(part, formula, everywhere(formula, span), depends_on(formula, span.var))
    for formula in _ends(loop, span, program):
        parts.setdefault(formula, Conjunct(None, formula, everywhere(formula, span), True))
    return Masks(tuple(masks.values()), tuple(parts.values()))


def _conditions(loop: For) -> Iterator[tuple[str, TileExpr]]:
    for store in stores(loop.body):
        for expr in subexpressions(store.value):
            if isinstance(expr, Elementwise) and expr.op == "where":
                yield store.target.tensor, expr.args[0]
        if store.mask is not None:
            yield store.target.tensor, store.mask


def _is_mask(condition: TileExpr, program: Program) -> bool:
    """Whether a condition is on positions or inputs; a guard such as `m == -inf` is on tiles alone."""
    return any(
        isinstance(e, Iota | Scalar | Gather) or (isinstance(e, Access) and program.tensor(e.tensor).space != "chip")
        for e in subexpressions(condition)
    )


def _ends(loop: For, span: Span, program: Program) -> Iterator[Formula]:
    """`position < size` for each slice, moved by the loop, that may reach past the end of a tensor off chip."""
    inside = {**span.env, span.var: loop_interval(loop, span.env)}
    for store in stores(loop.body):
        for access in (store.target, *accesses(store.value), *accesses(store.mask)):
            tensor = program.tensor(access.tensor)
            if tensor.space == "chip":
                continue
            dims = [index for index in access.index if not isinstance(index, NewAxis)]
            for index, size in zip(dims, tensor.shape, strict=True):
                if not isinstance(index, Slice) or span.var not in names_of_index(index.start):
                    continue
                end = Arith("+", index.start, Int(index.extent))
                if not is_at_most(end, Int(size), inside):
                    lane = Lane(f"lane.0.{index.extent}", index.extent)
                    form = affine(Int(size - 1)) - affine(index.start) - affine(Name(lane.name))
                    yield Atom(form, (lane,))
