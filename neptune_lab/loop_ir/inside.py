"""Checks that every name is bound and every access is inside its buffer, as a native run requires."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.guards import Guarded, guarded_reads
from neptune_lab.loop_ir.index_range import range_of
from neptune_lab.loop_ir.integral import not_boolean, not_integral
from neptune_lab.loop_ir.iteration_domain import (
    LIMIT,
    Extents,
    IterationDomain,
    Points,
    extents_of,
    iteration_domain,
    points,
)
from neptune_lab.loop_ir.nodes import Block, Buffer, Const, Expr, Load, Loop, Previous, Program, Var
from neptune_lab.loop_ir.positions import may_be_outside
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds_where
from neptune_lab.loop_ir.walks import bound_loops, loads, substitute, variables, walk


def verify_bounds(program: Program) -> None:
    """Checks rules 1 and 2 of `verify`, so that a native run stays in its memory.

    Raises:
        ScheduleError: a rule is broken; the message has the block, the access and its values.
    """
    shapes: dict[str, Buffer] = {}
    for buffer in program.buffers:
        if buffer.name in shapes:
            raise ScheduleError(
                f"two buffers are called {buffer.name!r}", help="this is a mistake of the compiler: please report it"
            )
        shapes[buffer.name] = buffer
    seen: set[str] = set()
    inputs = frozenset(program.inputs)
    for _, stmt, loops in tree.statements(program):
        if isinstance(stmt, Loop):
            if any(loop.var == stmt.var for loop in loops):
                raise ScheduleError(
                    f"loop {stmt.var!r} is inside another loop {stmt.var!r}", help="give one of them another name"
                )
            continue
        if stmt.name in seen:
            raise ScheduleError(f"two blocks are called {stmt.name!r}", node=stmt.name, help="rename one of the stages")
        seen.add(stmt.name)
        accessed = _accessed(stmt)
        missing = [name for name in accessed if name not in shapes]
        if missing:
            raise ScheduleError(
                f"block {stmt.name!r} touches {missing[0]!r}, which is no buffer",
                node=stmt.name,
                help="undo the step, and try another order of steps",
            )
        if stmt.writes in inputs:
            raise ScheduleError(
                f"block {stmt.name!r} writes the input {stmt.writes!r}",
                node=stmt.name,
                help="undo the step, and try another order of steps",
            )
        _check_block_bounds(stmt, extents_of(loops), tuple(shapes[name] for name in accessed))


@lru_cache(maxsize=4096)
def _accessed(block: Block) -> tuple[str, ...]:
    stores = [s for s in (block.body, block.init) if s is not None]
    return tuple(dict.fromkeys([block.writes, *(r.buffer for s in stores for r in loads(s.value))]))


@lru_cache(maxsize=4096)
def reads_of(block: Block) -> tuple[Guarded, ...]:
    """The distinct reads of a block's body, with the conditions under which each happens."""
    return tuple(dict.fromkeys(guarded_reads(block.body.value)))


@lru_cache(maxsize=4096)
def _check_block_bounds(block: Block, loops: Extents, buffers: tuple[Buffer, ...]) -> None:
    """Raises ScheduleError unless a block's iterations are bound to loops around it and run inside their extents, and
    all that it reads and writes is inside the buffers."""
    names = {it.name for it in block.iters}
    around = {var for var, _ in loops}
    if len(names) != len(block.iters):
        raise ScheduleError(
            f"block {block.name!r} has two iterations of one name",
            node=block.name,
            help="undo the step, and try another order of steps",
        )
    free = (bound_loops(block.iters) | {v for p in block.predicates for v in variables(p)}) - around
    if free:
        raise ScheduleError(
            f"block {block.name!r} is not inside the loop {min(free)!r} that it runs along",
            node=block.name,
            help=f"the loops around it: {', '.join(var for var, _ in loops) or 'none'}",
        )
    by_name = {b.name: b for b in buffers}
    for index in (it.binding for it in block.iters):
        _check_integral(block, index, by_name)
    for predicate in block.predicates:
        if not_boolean(predicate):
            raise ScheduleError(
                f"block {block.name!r} runs if {expression(predicate)}, which is not a comparison",
                node=block.name,
                help="write a bound such as j0 * 2 + j1 < 5",
            )
    domain = iteration_domain(block.iters, block.predicates, loops)
    _check_iters(block, domain)
    for store in (block.body, block.init):
        if store is None:
            continue
        free = {v for e in (*store.indices, store.value) for v in variables(e)} - names
        if free:
            raise ScheduleError(
                f"block {block.name!r} uses {min(free)!r}, which is none of its iterations",
                node=block.name,
                help="undo the step: it removed the loop of a read",
            )
        _check_access(block, Load(store.buffer, store.indices), (), by_name, domain, loops)
        for read, conditions in dict.fromkeys(guarded_reads(store.value)):
            _check_access(block, read, conditions, by_name, domain, loops)


def _check_iters(block: Block, domain: IterationDomain) -> None:
    """Formal statement: every iteration variable takes values in range(its extent) only."""
    if domain.unknown:
        raise _not_provable(block, f"which values {', '.join(domain.unknown)} takes")
    for it in block.iters:
        limits = domain.range(it.name)
        assert limits is not None
        if limits[0] < 0 or limits[1] >= it.extent:
            raise ScheduleError(
                f"block {block.name!r} would run {it.name!r} from {limits[0]} to {limits[1]}, of {it.extent} values",
                node=block.name,
                help="a bound is missing: undo the step, and split loops by sizes that divide before they are fused",
            )


def _check_access(
    block: Block,
    access: Load | Previous,
    conditions: tuple[Expr, ...],
    buffers: Mapping[str, Buffer],
    domain: IterationDomain,
    loops: Extents,
) -> None:
    """Raises ScheduleError unless an access is inside its buffer at every iteration at which `conditions` hold."""
    shape = buffers[access.buffer].shape
    if len(shape) != len(access.indices):
        raise ScheduleError(
            f"block {block.name!r} accesses {access.buffer!r} with {len(access.indices)} indices; it has {len(shape)} "
            "dimensions",
            node=block.name,
            help="undo the step, and try another order of steps",
        )
    if isinstance(access, Previous) and not buffers[access.buffer].tagged:
        raise ScheduleError(
            f"block {block.name!r} reads a previous tag of {access.buffer!r}, which keeps none",
            node=block.name,
            help="undo the step, and try another order of steps",
        )
    for dim, (index, size) in enumerate(zip(access.indices, shape, strict=True)):
        _check_integral(block, index, buffers)
        match index:
            case Var(name) if (limits := domain.range(name)) is not None and limits[0] >= 0 and limits[1] < size:
                continue
            case Const(int(value)) if 0 <= value < size:
                continue
        if may_be_outside(index):
            _check_float_index(block, access, index, conditions, size, domain)
            continue
        limits = _limits(block, index, conditions, (0, size - 1), domain, loops)
        if limits is None:
            raise _not_provable(block, f"that {expression(access)} is inside {access.buffer!r}")
        if limits[0] < 0 or limits[1] >= size:
            raise ScheduleError(
                f"block {block.name!r} accesses {expression(access)} outside: index {expression(index)} runs from "
                f"{limits[0]} to {limits[1]}, dimension {dim} of {access.buffer!r} has {size} elements",
                node=block.name,
                help="undo the step, and split loops by sizes that divide before they are fused",
            )


def _check_float_index(
    block: Block, access: Load | Previous, index: Expr, conditions: tuple[Expr, ...], size: int, domain: IterationDomain
) -> None:
    """Formal statement: where positions alone make the index, it is inside at every position that can be enumerated."""
    if any(isinstance(e, Load | Previous) for e in walk(index)):
        return  # data
    own = {name: limits for name in variables(index) if (limits := domain.range(name)) is not None}
    given = tuple(c for c in conditions if variables(c) <= own.keys())
    limits = range_of(index, given, {name: most + 1 for name, (least, most) in own.items() if least == 0})
    if limits is not None and (limits[0] < 0 or limits[1] >= size):
        raise ScheduleError(
            f"block {block.name!r} accesses {expression(access)} outside: index {expression(index)} runs from "
            f"{limits[0]} to {limits[1]}, on an axis of {size} elements",
            node=block.name,
            help="make the tensor longer, or clamp the index",
        )


def _check_integral(block: Block, index: Expr, buffers: Mapping[str, Buffer]) -> None:
    part = not_integral(index, lambda name: buffers[name].dtype if name in buffers else "")
    if part is not None:
        raise ScheduleError(
            f"block {block.name!r} has the index {expression(index)}, in which {expression(part)} is no integer",
            node=block.name,
            help="convert it, such as int32(floor(x[i]))",
        )


def _limits(
    block: Block,
    index: Expr,
    conditions: tuple[Expr, ...],
    allowed: tuple[int, int],
    domain: IterationDomain,
    loops: Extents,
) -> tuple[int, int] | None:
    """Least and greatest value of an index: the bounds by intervals, which comparisons narrow, if they are within
    `allowed`, else the exact ones."""
    ranges: dict[str, int] = {}
    for name in variables(index):
        limits = domain.range(name)
        if limits is not None and limits[0] == 0:
            ranges[name] = limits[1] + 1
    rough = bounds_where(conditions, index, ranges)
    if rough is not None and allowed[0] <= rough[0] and rough[1] <= allowed[1]:
        return rough
    env = {it.name: it.binding for it in block.iters}
    value = substitute(index, env)
    extents = dict(loops)
    names = variables(value)
    holding = [*block.predicates, *(substitute(c, env) for c in conditions)]
    predicates = [p for p in holding if variables(p) & names]
    table = _points(value, predicates, extents)
    if table is None and conditions:
        # A condition is no arithmetic of loops, or adds too many of them: without the conditions, the range is larger.
        table = _points(value, [p for p in block.predicates if variables(p) & names], extents)
    if table is None:
        return range_of(index, tuple(c for c in conditions if variables(c) <= ranges.keys()), ranges)
    return (0, 0) if not len(table) else (int(table.min()), int(table.max()))


def _points(value: Expr, predicates: list[Expr], extents: Mapping[str, int]) -> Points | None:
    used = variables(value).union(*(variables(p) for p in predicates))
    return points([value], predicates, {name: extents[name] for name in extents if name in used})


def _not_provable(block: Block, what: str) -> ScheduleError:
    return ScheduleError(
        f"block {block.name!r}: it cannot be shown {what}",
        node=block.name,
        help=f"at most {LIMIT:,} points of connected loops are enumerated: split loops by sizes that divide, and do "
        "not fuse loops of a dimension that is bounded",
    )


__all__ = ["reads_of", "verify_bounds"]
