"""Writes start values outside of a reduction's bounds: a reduction over no element is its identity.

A block writes its start value at the first of its reduced elements.  In a tile past the end of a dimension, there is no
first element, and native code would write nothing.  In the loop-scalar IR, as in tiles, such a reduction *is* its
identity; this rewrite makes native code do the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.iteration_domain import Extents, extents_of
from neptune_lab.loop_ir.names import fresh
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Iter, Op, Program, Var
from neptune_lab.loop_ir.reach import as_sum, upper_limit
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.walks import bound_loops, folded_loops, variables


def explicit_start_values(program: Program) -> Program:
    """Before => after, for a block whose bounds depend on a reduced loop:

    for i, j:                         for i: X[i] = 0
        if j0 * 4 + j < 10:      =>   for i, j:
            X[i] (= 0) += e               if j0 * 4 + j < 10:
                                              X[i] += e

    A tile that is entirely past the end (`if j0 < 3`) gets its start value too.
    """
    for block in tree.blocks(program):
        if block.init is None:
            continue
        folded = folded_loops(block)
        _, _, loops = tree.find_block(program, block.name)
        whole = tile_loops(block, extents_of(loops))
        tiles = [p for p in block.predicates if block.role in PARTIAL and variables(p) <= whole]
        if tiles or any(variables(p) & folded for p in block.predicates):
            depth = next((n for n, loop in enumerate(loops) if loop.var in folded), len(loops))
            known = {b.name for b in tree.blocks(program)}
            program = start_before(program, block, depth)
            start = next(b for b in tree.blocks(program) if b.name not in known)
            kept = tuple(p for p in start.predicates if p not in tiles)
            program = tree.replace_block(program, start.name, replace(start, predicates=kept))
    return program


def tile_loops(block: Block, loops: Extents) -> set[str]:
    """The loops over the tiles of a privatised reduction for which its buffer has an element per iteration."""
    held = {it.binding.name: it.extent for it in block.iters if it.kind == "spatial" and isinstance(it.binding, Var)}
    return {var for var, extent in loops if extent <= held.get(var, 0)}


def start_before(program: Program, block: Block, depth: int) -> Program:
    """The program with the start value of a reduction written by a separate block, `<block>_start`.

    Formal statement: the start value is written at every element whose indices are in range, and at no other.  So a
    bound on folded loops is dropped; if that leaves an index unbounded (rows and columns are fused to one loop, with
    one bound on both), the index gets a bound of its own.

    Args:
        program: any program.
        block: a reduction with a start value.
        depth: the new block goes before the loop with this number, which `block` folds along, or inside which it folds.
    """
    path, _, loops = tree.find_block(program, block.name)
    folded = folded_loops(block)
    kept = tuple(it for it in block.iters if it.kind == "spatial")
    used = bound_loops(kept)
    inner = [(loop.var, loop.extent) for loop in loops[depth:] if loop.var in used]
    assert block.init is not None
    predicates = tuple(p for p in block.predicates if not variables(p) & folded)
    extents = {loop.var: loop.extent for loop in loops}
    start = Block(
        fresh(program, f"{block.name}_start"),
        kept,
        block.init,
        None,
        (*predicates, *(bound for it in kept if (bound := _bound(it, extents, predicates)) is not None)),
        block.origin,
        Role.INITIAL,
    )
    program = tree.replace_block(program, block.name, replace(block, init=None))
    return tree.insert_before(program, path[: depth + 1], (tree.loop_nest(inner, start),))


def _bound(it: Iter, extents: Mapping[str, int], predicates: tuple[Expr, ...]) -> Expr | None:
    """The bound that an iteration variable needs in addition to `predicates`; None if it is in range anyway."""
    wanted = Op("lt", (it.binding, Const(it.extent)))
    limits = bounds(it.binding, extents)
    if wanted in predicates or (limits is not None and limits[1] < it.extent):
        return None
    for predicate in predicates:
        limit, own = upper_limit(predicate), as_sum(it.binding)
        if limit is not None and own == limit[0] and limit[1] <= it.extent:
            return None
    return wanted


__all__ = ["explicit_start_values", "start_before", "tile_loops"]
