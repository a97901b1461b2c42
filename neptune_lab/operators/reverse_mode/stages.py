"""Stages of a definition as plain values, from a loop-scalar program and back to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Buffer, Expr, Iter, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.reduction import OPERATORS, identity, match_reduction
from neptune_lab.loop_ir.walks import distinct_reads, transform

Axis: TypeAlias = tuple[str, int]
"""An iteration variable and its extent."""


@dataclass(frozen=True)
class Stage:
    """One stage: a map `name[axes] = term`, or a reduction `name[axes] = reducer over folded of term`.

    Args:
        name: of the tensor that it makes.
        axes: the tensor's axes, in order.
        folded: the axes that a reduction folds; empty for a map.
        reducer: "sum", "max", "min", "prod", "any" or "all"; None for a map.
        term: over the axes.
        dtype: the tensor's.
    """

    name: str
    axes: tuple[Axis, ...]
    folded: tuple[Axis, ...]
    reducer: str | None
    term: Expr
    dtype: str

    @property
    def place(self) -> tuple[Expr, ...]:
        """The tensor's element at the stage's own axes."""
        return tuple(Var(name) for name, _ in self.axes)

    def at(self, indices: Sequence[Expr]) -> dict[str, Expr]:
        """The index along each axis, by the axis's name, where the tensor is read at `indices`."""
        return dict(zip((name for name, _ in self.axes), indices, strict=True))

    @property
    def element(self) -> Load:
        """A read of the tensor at the stage's own axes."""
        return Load(self.name, self.place)

    @property
    def extents(self) -> dict[str, int]:
        """Extents of all axes, by name."""
        return dict((*self.axes, *self.folded))

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(extent for _, extent in self.axes)

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.shape)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names of the tensors that the term reads; found once, as a large term takes long to search or to compare."""
        return frozenset(read.buffer for read in distinct_reads(self.term))


def stages_of(program: Program) -> tuple[Stage, ...]:
    """The stages of a definition, in order.

    Args:
        program: a definition, before any step of a schedule.

    Returns:
        A stage per block.

    Raises:
        ScheduleError: a block folds axes in another way than by a reducer.
    """
    return tuple(_stage(block, program) for block in tree.blocks(program))


def _stage(block: Block, program: Program) -> Stage:
    spatial, folded = (
        tuple((it.name, it.extent) for it in block.iters if it.kind == kind) for kind in ("spatial", "reduce")
    )
    reduction = match_reduction(block) if folded else None
    # A tensor's axes are in the order of the store.
    order = [index.name for index in block.body.indices if isinstance(index, Var)]
    axes = tuple(sorted(spatial, key=lambda axis: order.index(axis[0])))
    return Stage(
        block.writes,
        axes,
        folded,
        None if reduction is None else reduction.reducer,
        block.body.value if reduction is None else reduction.term,
        program.buffer(block.body.buffer).dtype,
    )


def program_of(name: str, inputs: Sequence[Buffer], stages: Sequence[Stage], outputs: Sequence[str]) -> Program:
    """A definition with these stages.

    Args:
        name: the program's.
        inputs: in the order of its parameters.
        stages: each after those that it reads.
        outputs: names of the stages that are its results, in the order of its parameters.

    Returns:
        A program with a block per stage.
    """
    made = {stage.name: Buffer(stage.name, stage.shape, stage.dtype) for stage in stages}
    internal = tuple(buffer for buffer in made.values() if buffer.name not in outputs)
    return Program(
        name,
        (*(b.name for b in inputs), *outputs),
        tuple(outputs),
        (*inputs, *(made[o] for o in outputs), *internal),
        tuple(tree.loop_nest([*stage.axes, *stage.folded], _block(stage)) for stage in stages),
    )


def _block(stage: Stage) -> Block:
    own = tuple(Iter(axis, extent, "spatial", Var(axis)) for axis, extent in stage.axes)
    iters = (*own, *(Iter(axis, extent, "reduce", Var(axis)) for axis, extent in stage.folded))
    if stage.reducer is None:
        return Block(stage.name, iters, Store(stage.name, stage.place, stage.term), origin=stage.name)
    value = Op(OPERATORS[stage.reducer], (stage.element, stage.term))
    start = Store(stage.name, stage.place, identity(stage.reducer, stage.dtype))
    return Block(stage.name, iters, Store(stage.name, stage.place, value), start, origin=stage.name)


def with_term(stage: Stage, rule: Callable[[Expr], Expr]) -> Stage:
    """The stage with each node of its term replaced by `rule(node)`, bottom-up; the same object if none changes."""
    term = transform(stage.term, rule)
    return stage if term is stage.term else replace(stage, term=term)


def renamed(stage: Stage, names: Mapping[str, str]) -> Stage:
    """The stage with other names for itself and for tensors that it reads."""

    def rule(node: Expr) -> Expr:
        return Load(names[node.buffer], node.indices) if isinstance(node, Load) and node.buffer in names else node

    return replace(with_term(stage, rule), name=names.get(stage.name, stage.name))


def in_order(stages: Sequence[Stage], after: Mapping[str, str] = MappingProxyType({})) -> tuple[Stage, ...]:
    """The stages sorted so that each comes after those that it reads, and after the one that `after` names for it;
    otherwise they keep their order."""
    by_name = {stage.name: stage for stage in stages}
    done: dict[str, Stage] = {}

    def visit(stage: Stage) -> None:
        if stage.name in done:
            return
        for name in by_name:
            if name in stage.reads or name == after.get(stage.name):
                visit(by_name[name])
        done[stage.name] = stage

    for stage in stages:
        visit(stage)
    return tuple(done.values())


def needed(stages: Sequence[Stage], results: Sequence[str], given: frozenset[str] = frozenset()) -> tuple[Stage, ...]:
    """The stages that these results depend on, except those that are given and what only they need."""
    by_name = {stage.name: stage for stage in stages}
    found: set[str] = set()
    waiting = list(results)
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found and name not in given:
            found.add(name)
            waiting.extend(by_name[name].reads)
    return tuple(stage for stage in stages if stage.name in found)


__all__ = ["Axis", "Stage", "in_order", "needed", "program_of", "renamed", "stages_of", "with_term"]
