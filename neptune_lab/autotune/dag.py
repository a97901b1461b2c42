"""Places each load, computation and store of a tiling expression in a loop (MCFuser, section III-B).

Loops and statements form a graph.  A *scope* edge from a loop to a statement means that the loop indexes one of the
statement's tensors, so that the statement must be inside it; an *order* edge between statements gives their order.  A
loop of one iteration is dead: its node is removed with its edges, and statements that only it held move outwards.  Each
statement is then placed in the innermost loop that still has a scope edge to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Literal

import networkx as nx

from neptune_lab.autotune.expressions import Chain, Operand, Tiling

Kind = Literal["L", "C", "S"]


@dataclass(frozen=True, slots=True)
class TileStatement:
    """A load ("L"), computation ("C") or store ("S") of a tile of `tensor`, inside the loops `scope`, outermost first;
    `computation` is the number of the computation that it belongs to."""

    kind: Kind
    tensor: Operand
    computation: int
    scope: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}_{self.tensor.name}"


def trip_counts(chain: Chain, tiles: Mapping[str, int]) -> dict[str, int]:
    """The number of tiles of each loop; a loop without a tile has a tile of 1."""
    return {loop: -(-extent // min(tiles.get(loop, 1), extent)) for loop, extent in chain.extents}


def statements(chain: Chain) -> tuple[TileStatement, ...]:
    """Loads, computation and store of each computation, in order; intermediate tensors are neither loaded nor
    stored, and a tensor is loaded for the first computation that reads it."""
    made: list[TileStatement] = []
    loaded: set[str] = set()
    for n, computation in enumerate(chain.computations):
        fresh = [o for o in computation.operands if o.name not in chain.computed | loaded]
        loaded |= {o.name for o in fresh}
        made += [TileStatement("L", operand, n) for operand in fresh]
        made.append(TileStatement("C", computation.output, n))
        if computation.output.name not in chain.intermediates:
            made.append(TileStatement("S", computation.output, n))
    return tuple(made)


def flow(chain: Chain, tiling: Tiling) -> nx.DiGraph:
    """The graph of an expression: loops (text) and statements (`TileStatement`) as nodes, edges of kind "nest", "scope"
    and "order"."""
    graph = nx.DiGraph()
    for loop in tiling.loops:
        graph.add_node(loop)
        around = tiling.around(loop)
        if len(around) > 1:
            graph.add_edge(around[-2], loop, kind="nest")
    computed: dict[str, TileStatement] = {}
    for stmt in statements(chain):
        graph.add_node(stmt)
        loops = chain.computations[stmt.computation].loops if stmt.kind == "C" else stmt.tensor.related
        graph.add_edges_from((loop, stmt) for loop in loops if loop in tiling.loops)
        nx.set_edge_attributes(graph, dict.fromkeys(graph.in_edges(stmt), "scope"), "kind")
        if stmt.kind == "C":
            operands = {o.name for o in chain.computations[stmt.computation].operands}
            before = [s for s in computed.values() if s.tensor.name in operands]
            graph.add_edges_from(((s, stmt) for s in before), kind="order")
        if stmt.kind == "S":
            graph.add_edge(computed[stmt.tensor.name], stmt, kind="order")
        else:
            computed[stmt.tensor.name] = stmt
    return graph


def without_dead_loops(graph: nx.DiGraph, dead: Collection[str]) -> nx.DiGraph:
    """The graph without the loops `dead`, of one iteration; the loops around and inside such a loop nest directly."""
    if not dead:
        return graph
    kept = graph.copy()
    for loop in dead:
        outer = [n for n in kept.predecessors(loop) if kept.edges[n, loop]["kind"] == "nest"]
        inner = [n for n in kept.successors(loop) if kept.edges[loop, n]["kind"] == "nest"]
        kept.add_edges_from(((a, b) for a in outer for b in inner), kind="nest")
        kept.remove_node(loop)
    return kept


def place(
    chain: Chain, tiling: Tiling, trips: Mapping[str, int], grid: Collection[str] = ()
) -> tuple[TileStatement, ...]:
    """The statements of an expression, each with the loops around it.

    A load or computation is in the innermost live loop that has a scope edge to it, and in the loops around that.  A
    store follows its whole reduction: it is outside the loops that its computation folds, and loops of its own tensor
    that are inside them are run again after them (a flat expression keeps all their tiles).

    Args:
        chain: the computations.
        tiling: the expression, with the grid's loops.
        trips: iterations of each loop (`trip_counts`).
        grid: loops that are bound to thread blocks: each block executes every statement, so they are around all of
            them.
    """
    return _place(chain, tiling, frozenset(loop for loop in tiling.loops if trips[loop] == 1), frozenset(grid))


@lru_cache(maxsize=4096)
def _place(chain: Chain, tiling: Tiling, dead: frozenset[str], grid: frozenset[str]) -> tuple[TileStatement, ...]:
    """`place`, which depends only on which loops are dead: a search needs few different results many times."""
    graph = without_dead_loops(flow(chain, tiling), dead)
    live = [loop for loop in tiling.loops if loop in graph]
    placed = []
    for stmt in statements(chain):
        held = {n for n in graph.predecessors(stmt) if graph.edges[n, stmt]["kind"] == "scope"} | (grid & {*live})
        inside = [{*tiling.around(loop)} & {*live} for loop in held]
        scope = [loop for loop in live if any(loop in around for around in inside)]
        if stmt.kind == "S":
            scope = _behind(scope, chain.computations[stmt.computation].reduced, held)
        placed.append(replace(stmt, scope=tuple(scope)))
    return tuple(placed)


def _behind(scope: list[str], reduced: tuple[str, ...], held: set[str]) -> list[str]:
    first = next((n for n, loop in enumerate(scope) if loop in reduced), len(scope))
    return scope[:first] + [loop for loop in scope[first:] if loop in held and loop not in reduced]


def executions(stmt: TileStatement, trips: Mapping[str, int]) -> int:
    """The number of executions of a statement, over all thread blocks."""
    return prod(trips[loop] for loop in stmt.scope)


def text(placed: tuple[TileStatement, ...]) -> str:
    """The expression with its statements, as the paper writes it.

    >>> from neptune_lab.autotune.expressions import gemm_chain
    >>> chain, trips = gemm_chain(64, 64, 64, 64), {"m": 4, "n": 4, "k": 4, "h": 4}
    >>> text(place(chain, Tiling(("m", "h", "n", "k")), trips))
    'mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)'
    """
    return _scope(placed, 0)


def _scope(members: tuple[TileStatement, ...], depth: int) -> str:
    """Statements that share the first `depth` loops, in an order in which they can be executed."""
    groups: dict[str | TileStatement, tuple[TileStatement, ...]] = {}
    for stmt in members:
        key = stmt.scope[depth] if len(stmt.scope) > depth else stmt
        groups[key] = (*groups.get(key, ()), stmt)
    parts = []
    for key in sorted(groups, key=lambda k: _turn(groups[k], isinstance(k, str))):
        if isinstance(key, TileStatement):
            parts.append(str(key))
            continue
        inner, next_loops = _scope(groups[key], depth + 1), {stmt.scope[depth + 1 : depth + 2] for stmt in groups[key]}
        only_a_loop = len(next_loops) == 1 and next_loops != {()}
        parts.append(f"{key}{inner}" if only_a_loop else f"{key}({inner})")
    return ",".join(parts)


def _turn(members: tuple[TileStatement, ...], loop: bool) -> tuple[bool, int, int]:
    """Computations in order, each after its loads; stores last."""
    computed = [stmt.computation for stmt in members if stmt.kind != "S"]
    rank = 1 if loop else {"L": 0, "C": 2, "S": 3}[members[0].kind]
    return not computed, min(computed, default=0), rank
