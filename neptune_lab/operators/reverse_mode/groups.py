"""Sums over a group of heads inside of the sum over queries, so that no head's share goes through memory.

    d_k_of_qk[h, j, d] = sum over i of d_qk[h, j, i] * q[h, i, d]
    d_k[x, j, d] = sum over g of d_k_of_qk[x * G + g, j, d]
    ⇒
    d_k[x, j, d] = sum over i, g of d_qk[x, g, j, i] * q[x * G + g, i, d]

The heads h of what the nest computes become the pairs (x, g), so that one nest runs over keys of a group.  A sum in
another order is rounded differently, in float32, and in the same way each time.

With few keys and groups, a program per group and tile of keys would leave multiprocessors idle: then the shares of the
heads stay apart (`FEWEST_ROWS`, and twice as many if a mask compares positions).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.positions import compares_positions
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.walks import loads, substitute, transform, variables
from neptune_lab.operators.reverse_mode.stages import Axis, Stage

# The fewest rows of all groups together: 256 programs of 64 rows, two for each multiprocessor of a Hopper GPU.
FEWEST_ROWS = 256 * 64
# If a mask compares positions, programs have different amounts of work, and as many again even them out: on an H200,
# the backward pass of 1 x 32/4 x 4096 x 128, causal, takes 799 us with heads apart, and 1266 us with groups summed.
UNEVEN = 2


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over groups.

    Args:
        total: the stage that sums.
        part: the stage that it reads, of which nothing else does.
        at: the dimension of `part` whose groups are summed.
        size: of a group.
        group, member: the axes of `total` that number groups, and what is summed in each.
    """

    total: Stage
    part: Stage
    at: int
    size: int
    group: str
    member: str


def with_groups_summed(
    stages: Sequence[Stage], results: Collection[str], grouped: bool | None = None
) -> tuple[Stage, ...]:
    """The stages of a part with its sums over groups folded into the sums that they read.

    Args:
        stages: of a part, each after those that it reads.
        results: names of stages that keep their axes.
        grouped: whether groups are summed; None: if that leaves enough programs.

    Returns:
        The stages; the same ones if there is no such sum, or something else than these sums needs the heads apart.
    """
    sums = [found for stage in stages if (found := _sum(stage, stages)) is not None]
    if grouped is None:
        masked = any(compares_positions(stage.term) for stage in stages)
        least = FEWEST_ROWS * UNEVEN if masked else FEWEST_ROWS
        grouped = all(prod(found.total.shape[:-1]) >= least for found in sums)
    if not grouped:
        return tuple(stages)
    if not sums or len({found.size for found in sums}) > 1:
        return tuple(stages)
    heads = _heads(stages, sums)
    if heads is None or heads.keys() & set(results) or any(found.total.name in heads for found in sums):
        return tuple(stages)
    split = {stage.name: _split(stage, heads, sums[0].size) for stage in stages}
    merged = {found.total.name: _merged(found, split[found.part.name], heads) for found in sums}
    parts = {found.part.name for found in sums}
    return tuple(merged.get(stage.name, split[stage.name]) for stage in stages if stage.name not in parts)


def _sum(total: Stage, stages: Sequence[Stage]) -> _Sum | None:
    """The sum over groups that a stage is; None if it is no such sum of a sum that nothing else reads."""
    if total.reducer != "sum" or not isinstance(total.term, Load) or len(total.folded) != 1:
        return None
    read = total.term
    part = next((stage for stage in stages if stage.name == read.buffer), None)
    readers = [stage for stage in stages if read.buffer in stage.reads]
    if part is None or part.reducer != "sum" or readers != [total]:
        return None
    ((member, size),) = total.folded
    for at, index in enumerate(read.indices):
        rest = [i for n, i in enumerate(read.indices) if n != at]
        match index:
            case Op("add", (Op("mul", (Var(group), Const(factor))), Var(name))) if (name, factor) == (member, size):
                plain = all(isinstance(i, Var) for i in rest) and len(set(rest)) == len(rest)
                whole = part.shape[at] == total.extents[group] * size
                if plain and whole and Var(group) not in rest:
                    return _Sum(total, part, at, size, group, member)
    return None


def _heads(stages: Sequence[Stage], sums: Sequence[_Sum]) -> dict[str, str] | None:
    """By stage, its axis of heads: of the parts that are summed, and of all that reads or is read along it. None if a
    stage is read along its heads in another way, or has two such axes."""
    by_name = {stage.name: stage for stage in stages}
    heads = {found.part.name: found.part.axes[found.at][0] for found in sums}
    waiting = list(heads)
    while waiting:
        stage = by_name[waiting.pop()]
        for reader in [stage, *(s for s in stages if stage.name in s.reads)]:
            for read in loads(reader.term):
                assert isinstance(read, Load), "a definition has no tags"
                if read.buffer not in by_name or (read.buffer != stage.name and reader is not stage):
                    continue
                made = _along(reader, by_name[read.buffer], read, heads, sums)
                if made is None:
                    return None
                waiting += [name for name in made if name not in heads]
                heads |= made
    return heads


def _along(
    reader: Stage, stage: Stage, read: Load, heads: Mapping[str, str], sums: Sequence[_Sum]
) -> dict[str, str] | None:
    """The heads of a stage and its reader, as far as one follows from the other; None if they do not agree."""
    if any(reader is found.total for found in sums):
        return {}
    if stage.name in heads:
        at = [axis for axis, _ in stage.axes].index(heads[stage.name])
        index = read.indices[at]
        if not isinstance(index, Var) or index.name not in {axis for axis, _ in reader.axes}:
            return None
        own = index.name
        return {reader.name: own} if heads.get(reader.name, own) == own else None
    if reader.name in heads:
        places = [n for n, index in enumerate(read.indices) if heads[reader.name] in variables(index)]
        if not places:
            return {}
        if len(places) > 1 or read.indices[places[0]] != Var(heads[reader.name]):
            return None
        return {stage.name: stage.axes[places[0]][0]}
    return {}


def _member(stage: Stage, head: str) -> str:
    """A name for the axis within a group."""
    return unique(f"{head}_part", stage.extents, "_")


def _split(stage: Stage, heads: Mapping[str, str], size: int) -> Stage:
    """The stage over pairs of a group and a member in place of heads."""
    head = heads.get(stage.name)
    if head is None:
        return stage
    member = _member(stage, head)
    extents = {**stage.extents, head: stage.extents[head] // size, member: size}
    whole = Op("add", (Op("mul", (Var(head), Const(size))), Var(member)))

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Load):
            return node
        if node.buffer in heads:
            # `whole` is the index along heads, which `_along` has checked.
            pair = (Var(head), Var(member))
            return Load(node.buffer, tuple(x for i in node.indices for x in (pair if i == whole else (i,))))
        return Load(node.buffer, tuple(simplify(i, extents) for i in node.indices))

    axes: list[Axis] = []
    for axis, extent in stage.axes:
        axes += [(axis, extent // size), (member, size)] if axis == head else [(axis, extent)]
    return replace(stage, axes=tuple(axes), term=transform(substitute(stage.term, {head: whole}), rule))


def _merged(found: _Sum, part: Stage, heads: Mapping[str, str]) -> Stage:
    """The sum over both, at the axes of the total; the group's members are the last that it folds."""
    total, head = found.total, heads[found.part.name]
    assert isinstance(total.term, Load)
    names: dict[str, Expr] = {}
    for (axis, _), index in zip(found.part.axes, total.term.indices, strict=True):
        names[axis] = Var(found.group) if axis == head else index
    names[_member(found.part, head)] = Var(found.member)
    folded: list[Axis] = []
    for axis, extent in part.folded:
        new = unique(axis, {*total.extents, *(name for name, _ in folded)}, "_")
        names[axis] = Var(new)
        folded.append((new, extent))
    return replace(total, folded=(*folded, (found.member, found.size)), term=substitute(part.term, names))


__all__ = ["with_groups_summed"]
