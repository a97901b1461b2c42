"""Start values that are written whatever the bounds say: a reduction over no element is its identity.

A block writes its start value at the first of its reduced elements.  Where a tile lies past the end of a dimension,
there is no first element, and natively nothing would be written.  In the loop-scalar IR, as in tiles, such a
reduction *is* its identity; this rewrite says so to a backend that goes by the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Expr, Loop, Program, Var, bound_loops, variables


def explicit_start_values(program: Program) -> Program:
    """Before => after, for a block whose bounds touch a reduced loop:

    for i, j:                         for i: X[i] = 0
        if j0 * 4 + j < 10:      =>   for i, j:
            X[i] (= 0) += e               if j0 * 4 + j < 10:
                                              X[i] += e

    A tile that is past the end as a whole (`if j0 < 3`, where the tiles are full) gets its start value too.
    """
    for block in tree.blocks(program):
        if block.init is None:
            continue
        folded = bound_loops(it for it in block.iters if it.kind == "reduce")
        _, _, loops = tree.find_block(program, block.name)
        tiles = [p for p in block.predicates if _bounds_tiles(p, block, loops)]
        if tiles or any(variables(p) & folded for p in block.predicates):
            depth = next(n for n, loop in enumerate(loops) if loop.var in folded)
            program = start_before(program, block, depth)
            _, start, _ = tree.find_block(program, f"{block.name}_start")
            kept = tuple(p for p in start.predicates if p not in tiles)
            program = tree.replace_block(program, start.name, replace(start, predicates=kept))
    return program


def _bounds_tiles(predicate: Expr, block: Block, loops: Iterable[Loop]) -> bool:
    """Whether it bounds the tiles that a privatised reduction has a value of, all of which its buffer holds."""
    held = {it.binding.name: it.extent for it in block.iters if it.kind == "spatial" and isinstance(it.binding, Var)}
    whole = {loop.var for loop in loops if loop.extent <= held.get(loop.var, 0)}
    return block.role in ("tile", "local") and variables(predicate) <= whole


def start_before(program: Program, block: Block, depth: int) -> Program:
    """The start value of a reduction written by a block of its own, `<block>_start`, before its loop number `depth`,
    along which, or inside which, it folds."""
    path, _, loops = tree.find_block(program, block.name)
    folded = bound_loops(it for it in block.iters if it.kind == "reduce")
    kept = tuple(it for it in block.iters if it.kind == "spatial")
    used = bound_loops(kept)
    inner = [(loop.var, loop.extent) for loop in loops[depth:] if loop.var in used]
    assert block.init is not None
    start = Block(
        f"{block.name}_start",
        kept,
        block.init,
        None,
        tuple(p for p in block.predicates if not variables(p) & folded),
        block.origin,
        "initial",
    )
    program = tree.replace_block(program, block.name, replace(block, init=None))
    return tree.insert_before(program, path[: depth + 1], (tree.nest(inner, start),))


__all__ = ["explicit_start_values", "start_before"]
