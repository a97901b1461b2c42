"""The dataflow graph of loop nests: blocks as nodes, tensors on the edges (paper, Figures 4 and 14)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import networkx as nx

from neptune_lab.loop_ir.nodes import Block, Buffer, Loop, Previous, Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.tree import blocks, statements
from neptune_lab.loop_ir.walks import loads, reads, variables


@dataclass(frozen=True, slots=True)
class Node:
    """An input, or a block; `kind` is "input", "map" or "reduce", `detail` the shape or the reducer."""

    name: str
    kind: str
    detail: str
    buffer: str
    role: Role = Role.DEFINED


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` reads `tensor`, which `source` writes; `previous`: it reads the value at the previous tag."""

    source: str
    target: str
    tensor: str
    previous: bool


def graph(program: Program) -> nx.DiGraph:
    """The graph of a program: nodes have the attribute `node: Node`, edges `edge: Edge`.

    Inputs are nodes too.  A block that reads its own buffer has no edge to itself.
    """
    result = nx.DiGraph()
    nodes, edges = nodes_and_edges(program)
    for node in nodes:
        result.add_node(node.name, node=node)
    for edge in edges:
        result.add_edge(edge.source, edge.target, edge=edge)
    return result


def reached(flow: nx.DiGraph, names: Iterable[str], *, against: bool = False) -> set[str]:
    """The nodes that a path from one of `names` leads to, these among them.

    Args:
        flow: from `graph`.
        names: where paths begin.
        against: whether paths go against the edges, to what the nodes need.
    """
    following = flow.pred if against else flow.succ
    found = set(names)
    waiting = [*found]
    while waiting:
        new = following[waiting.pop()].keys() - found
        found |= new
        waiting += new
    return found


def nodes_and_edges(program: Program) -> tuple[list[Node], list[Edge]]:
    """The nodes of `graph`, inputs first, and its edges by source; equal ones of several programs are one object."""
    inputs = dict.fromkeys(program.inputs)
    buffers = {buffer.name: buffer for buffer in program.buffers}
    nodes = [_input_node(buffers[name]) for name in inputs]
    writers: dict[str, list[tuple[int, Block]]] = {}
    for at, block in enumerate(blocks(program)):
        nodes.append(_node(block))
        writers.setdefault(block.writes, []).append((at, block))
    edges: dict[str, list[Edge]] = {node.name: [] for node in nodes}
    for at, block in enumerate(blocks(program)):
        found: dict[str, tuple[str, bool]] = {}
        for buffer, previous in _reads(block):
            sources = _sources(writers[buffer], at) if buffer in writers else [buffer] if buffer in inputs else []
            for source in sources:
                found[source] = buffer, previous or (source in found and found[source][1])
        for source, (buffer, previous) in found.items():
            edges[source].append(_edge(source, block.name, buffer, previous))
    return nodes, [edge for leaving in edges.values() for edge in leaving]


def _sources(writers: list[tuple[int, Block]], reader: int) -> list[str]:
    """The writers of a buffer whose values the block number `reader` may read, itself left out.

    A start value reaches what folds it, and readers before that: behind the loop, they read what was folded.
    """
    others = [at for at, writer in writers if writer.role is not Role.INITIAL and at < reader]
    return [
        writer.name
        for at, writer in writers
        if at != reader and not (writer.role is Role.INITIAL and any(at < other for other in others))
    ]


@lru_cache(maxsize=4096)
def _input_node(buffer: Buffer) -> Node:
    return Node(buffer.name, "input", f"{' × '.join(map(str, buffer.shape))} {buffer.dtype}", buffer.name)


@lru_cache(maxsize=4096)
def _node(block: Block) -> Node:
    reducer = reducer_of(block)
    over = ", ".join(it.name for it in block.iters if it.kind == "reduce")
    detail = f"{reducer} over {over}" if over and reducer else ("map" if reducer is None else f"{reducer} by tags")
    return Node(block.name, "map" if reducer is None else "reduce", detail, block.writes, block.role)


@lru_cache(maxsize=4096)
def _reads(block: Block) -> tuple[tuple[str, bool], ...]:
    """The buffers that a block reads, and whether it reads them at the previous tag."""
    return tuple(dict.fromkeys((read.buffer, isinstance(read, Previous)) for read in loads(block.body.value)))


_edge = lru_cache(maxsize=16384)(Edge)


def writer_of(program: Program, buffer: str) -> Block | None:
    """The block that computes `buffer`, after a block that writes its start value, if any; None if none does."""
    return _last_writers(program).get(buffer)


@lru_cache(maxsize=128)
def _last_writers(program: Program) -> dict[str, Block]:
    return {b.writes: b for b in blocks(program)}


def inputs_behind(program: Program, buffer: str) -> frozenset[str]:
    """The inputs of a definition that a buffer is computed from, through any number of blocks."""
    found: set[str] = set()
    left = [buffer]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [read for block in blocks(program) if block.writes == name for read, _ in _reads(block)]
    return frozenset(found & set(program.inputs))


def early_read(program: Program) -> tuple[str, str, str] | None:
    """(reader, buffer, writer) of a block that is before one that writes what it reads; None if there is none.

    A previous value (role "retire") does not count: its readers read what the previous iteration wrote.
    """
    order = {b.name: n for n, b in enumerate(blocks(program))}
    writers: dict[str, list[Block]] = {}
    for block in blocks(program):
        if block.role is not Role.RETIRE:
            writers.setdefault(block.writes, []).append(block)
    for block in blocks(program):
        for read in loads(block.body.value):
            for writer in writers.get(read.buffer, []):
                if order[writer.name] > order[block.name] and read.buffer != block.writes:
                    return block.name, read.buffer, writer.name
    return None


def incomplete_read(program: Program) -> tuple[str, str, str] | None:
    """(reader, writer, loop) of a block that reads a reduction inside a loop along which that still folds; None if
    none.

    A scan buffer is read at a tag, so it is never incomplete.
    """
    around = [(stmt, loops) for _, stmt, loops in statements(program) if isinstance(stmt, Block)]
    writers: dict[str, list[tuple[Block, tuple[Loop, ...]]]] = {}
    for block, loops in around:
        writers.setdefault(block.writes, []).append((block, loops))
    for reader, loops in around:
        for read in loads(reader.body.value):
            for writer, others in writers.get(read.buffer, ()):
                if writer.name == reader.name:
                    continue
                shared = {a.var for a, b in zip(loops, others, strict=False) if a is b}
                for it in writer.iters:
                    if it.kind == "reduce" and shared & variables(it.binding):
                        return reader.name, writer.name, min(shared & variables(it.binding))
    return None


def readers_of(program: Program, buffer: str) -> tuple[Block, ...]:
    """Blocks, other than its writers, that read `buffer`."""
    return tuple(b for b in blocks(program) if b.writes != buffer and reads(b, buffer))
