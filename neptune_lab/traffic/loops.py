"""Traffic and operations of a loop program, each top-level loop nest taken for a kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.iteration_domain import evaluate
from neptune_lab.loop_ir.nodes import Block, Cast, Expr, Load, Loop, Op, Previous, Program
from neptune_lab.loop_ir.walks import loads, substitute, variables, walk
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.traffic.record import StageTraffic, TensorTraffic, Traffic
from neptune_lab.traffic.regions import Formula, Region, Span, TooMany, constant, distinct, touched


@dataclass(frozen=True, eq=False)
class _Access:
    """One access of a block: its buffer, nest, loops, whether it stores, and whether it only accumulates.

    `region` is None if an index is data.
    """

    buffer: str
    nest: int
    loops: tuple[Loop, ...]
    region: Region | None
    stores: bool
    accumulates: bool
    runs: int


def of_loops(program: Program, name: str, step: int, phase: str, shared_memory: int) -> Traffic:
    """Counts what a loop program moves and computes.

    Each nest is taken for a kernel that reads each tensor from HBM once.  A tensor that only one nest uses stays on
    chip if what one iteration of its users' common loops touches fits into shared memory, or if its scope says so.

    Args:
        program: any loop program.
        name, step, phase: see `Traffic`.
        shared_memory: bytes that one block can have.
    """
    accesses, stages = _accesses(program)
    by_buffer: dict[str, list[_Access]] = defaultdict(list)
    for access in accesses:
        by_buffer[access.buffer].append(access)
    tensors = []
    for buffer, users in by_buffer.items():
        if _on_chip(program, buffer, users, shared_memory):
            bytes_ = sum(a.runs for a in users) * itemsize(program.buffer(buffer).dtype)
            stages[users[0].nest] = _sum_of_stages(stages[users[0].nest], StageTraffic("", chip=bytes_))
        else:
            tensors.append(_of_hbm(program, buffer, users, stages))
    order = {b.name: n for n, b in enumerate(program.buffers)}
    tensors.sort(key=lambda t: order[t.name])
    nests = tuple(stages.values())
    chip, operations = sum(s.chip for s in nests), sum(s.operations for s in nests)
    return Traffic(name, step, phase, tuple(tensors), chip, 0, operations, nests)


def _sum_of_stages(stage: StageTraffic, more: StageTraffic) -> StageTraffic:
    """The first stage, and the bytes of the second one."""
    fields = ("read", "written", "moved", "chip")
    return replace(stage, **{name: getattr(stage, name) + getattr(more, name) for name in fields})


def operations(expr: Expr) -> int:
    """Operations on values; indices, conditions and casts do not count."""
    match expr:
        case Op("select", (_, yes, no)):
            return operations(yes) + operations(no)
        case Op(_, args):
            return 1 + sum(operations(a) for a in args)
        case Cast(_, arg):
            return operations(arg)
    return 0


def _accesses(program: Program) -> tuple[list[_Access], dict[int, StageTraffic]]:
    """Every access of every block; and the nests, by position, with their operations but without bytes yet."""
    out: list[_Access] = []
    stages: dict[int, StageTraffic] = {}
    for path, block, loops in tree.statements(program):
        if isinstance(block, Block):
            runs, touches = _of_block(block, tuple((loop.var, loop.extent) for loop in loops))
            nest = stages.get(path[0], StageTraffic(""))
            names = [*filter(None, [nest.name]), block.name]
            count = nest.operations + runs * operations(block.body.value)
            stages[path[0]] = replace(nest, name=", ".join(names), operations=count)
            out += [_Access(t.buffer, path[0], loops, t.region, t.stores, t.accumulates, runs) for t in touches]
    return out, stages


class _Touch(NamedTuple):
    """What one access of a block touches, wherever the block is."""

    buffer: str
    region: Region | None
    stores: bool
    accumulates: bool


@lru_cache(maxsize=2048)
def _of_block(block: Block, loops: tuple[tuple[str, int], ...]) -> tuple[int, tuple[_Touch, ...]]:
    """How often a block runs, and its accesses; most blocks of a program are those of the phase before."""
    spans = tuple(Span(name, constant(0), constant(extent)) for name, extent in loops)
    conditions = tuple(map(_formula, block.predicates))
    bindings = {it.name: it.binding for it in block.iters}
    body = block.body

    def touch(buffer: str, indices: Iterable[Expr], stores: bool, accumulates: bool) -> _Touch:
        return _Touch(buffer, _region(spans, indices, bindings, conditions), stores, accumulates)

    touches = [touch(body.buffer, body.indices, True, block.is_reduction)]
    for load in loads(body.value):
        own = isinstance(load, Load) and (load.buffer, load.indices) == (body.buffer, body.indices)
        touches.append(touch(load.buffer, load.indices, False, own))
    return touched(Region(spans, (), conditions), ()), tuple(touches)


def _region(
    spans: tuple[Span, ...], indices: Iterable[Expr], bindings: Mapping[str, Expr], conditions: tuple[Formula, ...]
) -> Region | None:
    bound = [substitute(index, bindings) for index in indices]
    if any(isinstance(node, Load | Previous | Cast) for index in bound for node in walk(index)):
        return None
    return Region(spans, tuple((_formula(index), 1) for index in bound), conditions)


def _formula(expr: Expr) -> Formula:
    return Formula(frozenset(variables(expr)), lambda values: evaluate(expr, values))


def _distinct(program: Program, buffer: str, accesses: Iterable[_Access]) -> tuple[int, bool]:
    """Bytes that at least one of the accesses touches, and whether that is known exactly."""
    found = program.buffer(buffer)
    whole = prod(found.shape) * itemsize(found.dtype)
    regions = [a.region for a in accesses]
    known = [r for r in regions if r is not None]
    if len(known) < len(regions):
        return whole, False
    try:
        return _elements(tuple(known), found.shape) * itemsize(found.dtype), True
    except TooMany:
        return whole, False


# Regions are told apart by identity, and `_of_block` gives the same ones for the same block.
_elements = lru_cache(maxsize=4096)(distinct)


def _on_chip(program: Program, buffer: str, users: list[_Access], shared_memory: int) -> bool:
    found = program.buffer(buffer)
    if buffer in program.params or len({a.nest for a in users}) > 1:
        return False
    if found.scope != "global":
        return True
    common = users[0].loops
    for user in users[1:]:
        common = tuple(a for a, b in zip(common, user.loops, strict=False) if a is b)
    names = {loop.var for loop in common}
    once = [replace(a, region=None if a.region is None else _first(a.region, frozenset(names))) for a in users]
    return bool(common) and _distinct(program, buffer, once)[0] <= shared_memory


@lru_cache(maxsize=2048)
def _first(region: Region, names: frozenset[str]) -> Region:
    """The region, of whose loops those called `names` run once."""
    return replace(region, loops=tuple(replace(x, stop=constant(1)) if x.name in names else x for x in region.loops))


def _of_hbm(program: Program, buffer: str, users: list[_Access], stages: dict[int, StageTraffic]) -> TensorTraffic:
    """The traffic of a tensor in HBM, which is added to its nests; accumulating into it is traffic on chip."""
    item = itemsize(program.buffer(buffer).dtype)
    traffic = TensorTraffic(buffer, prod(program.buffer(buffer).shape) * item)
    for nest in dict.fromkeys(a.nest for a in users):
        here = [a for a in users if a.nest == nest]
        reads = [a for a in here if not a.stores and not a.accumulates]
        stores = [a for a in here if a.stores]
        read, known = _distinct(program, buffer, reads) if reads else (0, True)
        written, sure = _distinct(program, buffer, stores) if stores else (0, True)
        loaded = sum(a.runs for a in reads) * item
        stored = sum(a.runs for a in stores if not a.accumulates) * item
        if any(a.accumulates for a in stores):
            stored += written
        traffic = replace(
            traffic,
            loaded=traffic.loaded + loaded,
            stored=traffic.stored + stored,
            read=traffic.read + read,
            written=traffic.written + written,
            exact=traffic.exact and known and sure,
        )
        chip = sum(a.runs for a in here if a.accumulates) * item
        stages[nest] = _sum_of_stages(stages[nest], StageTraffic("", read, written, loaded + stored, chip))
    return traffic
