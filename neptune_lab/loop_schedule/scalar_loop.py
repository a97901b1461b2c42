"""A consumer's rolling loop as scalar expressions, which `float_range` runs: g, h, and what the producers fold."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Program
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import bound_loops, folded_loops, reads, walk_once
from neptune_lab.loop_schedule.identity_at_point import folded_element, in_loops, without_maps
from neptune_lab.loop_schedule.singular_points import Point, tells_infinity


@dataclass(frozen=True, slots=True)
class ScalarLoop:
    """A consumer's loop as scalar expressions.

    Args:
        program: the program.
        reducer: f.
        terms: g with every map inlined, over loop variables; then the companions of a vector repair.
        carried: the variable for the partial result of each term.
        moved: h of each term, with every map inlined too, over `carried`, the values in `places`, and reads of the
            terms that are constant in a row.
        places: for each producer's buffer, the variables for its previous and its current value.
        points: the producers' guarded points.
        estimates: producers that are read through running estimates (`estimate`).
        folds: for each incomplete reduction, its reducer and the element that it folds, over loop variables; none reads
            a later one.
        inner: the loops that the reductions fold over.
        told: whether an output shows which of NaN and the infinities the result is: x / inf is 0 (`tells_infinity`).
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


def scalar_loop(
    program: Program,
    consumer: Block,
    reducer: str,
    terms: Sequence[Expr],
    carried: Sequence[Expr],
    moved: Sequence[Expr],
    places: Mapping[str, tuple[Expr, Expr]],
    points: Mapping[str, tuple[Point, ...]],
    estimates: Iterable[str] = (),
) -> ScalarLoop:
    """The loop of `consumer` (its local block); the terms are over its iteration variables.

    Args: as in `ScalarLoop`.

    Raises:
        RepairError: step "range": the elements that a producer folds are not found, as in a kernel that combines
            splits.
    """
    folds: dict[str, tuple[str, Expr]] = {}
    for producer in places:
        _add_fold(program, producer, folds, places)
        if producer not in folds:
            raise RepairError(
                f"the program does not show which elements {producer!r} folds, so the loop cannot be tested in float32",
                step="range",
                expression=", ".join(expression(h) for h in moved),
                help=f"fuse the stages before {producer!r} is split and combined, or keep them in separate kernels",
            )
    inner = _varying_loops(program, consumer)
    placed = tuple(in_loops(program, consumer, without_maps(program, term)) for term in terms)
    return ScalarLoop(
        program,
        reducer,
        placed,
        tuple(carried),
        tuple(in_loops(program, consumer, without_maps(program, h), guards=True) for h in moved),
        places,
        points,
        frozenset(estimates),
        folds,
        inner,
        tells_infinity(program, consumer),
    )


def _varying_loops(program: Program, consumer: Block) -> frozenset[str]:
    """The loops along which a reduction runs: those that its local block folds, and those of its tags and splits, as
    in x[i, j0] if a tile has one element along j, or shares one scale."""
    folded = {consumer.name: consumer}
    tags: set[str] = set()
    for block in (b for b in tree.blocks(program) if b.origin == consumer.origin):
        if block.name not in folded and any(reads(block, part.writes) for part in folded.values()):
            folded[block.name] = block
            tags |= {it.name for it in block.iters if it.kind == "reduce"}
    return folded_loops(consumer) | bound_loops(it for it in consumer.iters if it.name in tags)


def _add_fold(program: Program, buffer: str, folds: dict[str, tuple[str, Expr]], producers: Container[str]) -> None:
    """Adds the fold of `buffer`, after the folds that its element reads."""
    folded = folded_element(program, buffer)
    if buffer in folds or folded is None:
        return
    block, reducer, element = folded
    element = in_loops(program, block, without_maps(program, element))
    whole = writer_of(program, buffer)
    repair = block.repair or (whole or block).repair
    repaired_by = () if repair is None else repair.by
    for read in walk_once(element):
        source = writer_of(program, read.buffer) if isinstance(read, Load) else None
        if source is None or not isinstance(read, Load) or read.buffer == buffer:
            continue
        if source.origin in repaired_by or read.buffer in producers:
            _add_fold(program, read.buffer, folds, producers)
    folds[buffer] = (reducer, element)


__all__ = ["ScalarLoop", "scalar_loop"]
