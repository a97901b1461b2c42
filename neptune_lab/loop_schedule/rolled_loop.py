"""A consumer's rolling loop in scalar expressions, as `float_range` runs it: g, h, and what the producers fold."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Program, bound_loops, walk
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_schedule.special_values import Point, tells_infinity
from neptune_lab.loop_schedule.vanishing import folded_element, in_loops, without_maps


@dataclass(frozen=True, slots=True)
class Rolled:
    """A consumer's loop in scalar expressions.

    Args:
        reducer: f.
        terms: g with every map written out, over loop variables, and the companions of a vector repair behind it.
        carried: what stands for the partial result of each term. moved: h of each, over `carried`, and (before, now) of
            each producer's buffer.
        points: the producers' guards. estimates: producers that are read through running estimates (`estimate`).
        folds: for each incomplete reduction, its reducer and the element that it folds, as `term`, in an order in which
            none reads a later one.
        inner: the loops that the reductions fold over.
        told: an output tells which of NaN and the infinities the result is: x / inf is 0 (`tells_infinity`).
    """

    program: Program
    reducer: str
    terms: tuple[Expr, ...]
    carried: tuple[Expr, ...]
    moved: tuple[Expr, ...]
    places: Mapping[str, tuple[Expr, Expr]]
    points: Mapping[str, tuple[Point, ...]]
    estimates: frozenset[str]
    folds: Mapping[str, tuple[str, Expr]]
    inner: frozenset[str]
    told: bool


def rolled(
    program: Program,
    consumer: Block,
    reducer: str,
    terms: Sequence[Expr],
    carried: Sequence[Expr],
    moved: Sequence[Expr],
    places: Mapping[str, tuple[Expr, Expr]],
    points: Mapping[str, tuple[Point, ...]],
    estimates: Iterable[str] = (),
) -> Rolled:
    """The loop of `consumer` (its local block), in whose iterations the terms are given.

    Raises:
        RepairError: step "range": what a producer folds is not found, as in a combine step that sums up splits.
    """
    folds: dict[str, tuple[str, Expr]] = {}
    for producer in places:
        _add_fold(program, producer, folds, places)
        if producer not in folds:
            raise RepairError(
                f"the program does not show which elements {producer!r} folds, so the loop cannot be tried in float32",
                step="range",
                expression=", ".join(expression(h) for h in moved),
                help=f"fuse the stages before {producer!r} is split and combined, or keep them apart",
            )
    inner = frozenset(bound_loops(it for it in consumer.iters if it.kind == "reduce"))
    placed = tuple(in_loops(program, consumer, without_maps(program, term)) for term in terms)
    return Rolled(
        program,
        reducer,
        placed,
        tuple(carried),
        tuple(moved),
        places,
        points,
        frozenset(estimates),
        folds,
        inner,
        tells_infinity(program, consumer),
    )


def _add_fold(program: Program, buffer: str, folds: dict[str, tuple[str, Expr]], producers: Container[str]) -> None:
    """Adds the fold of `buffer`, after the folds that its element reads."""
    found = folded_element(program, buffer)
    if buffer in folds or found is None:
        return
    block, reducer, element = found
    element = in_loops(program, block, without_maps(program, element))
    whole = writer_of(program, buffer)
    repair = block.repair or (whole or block).repair
    repaired_by = () if repair is None else repair.by
    for read in walk(element):
        source = writer_of(program, read.buffer) if isinstance(read, Load) else None
        if source is None or not isinstance(read, Load) or read.buffer == buffer:
            continue
        if source.origin in repaired_by or read.buffer in producers:
            _add_fold(program, read.buffer, folds, producers)
    folds[buffer] = (reducer, element)


__all__ = ["Rolled", "rolled"]
