"""Start values that are written whatever the bounds say: a reduction over no element is its identity.

A block writes its start value at the first of its reduced elements.  Where a tile lies past the end of a dimension,
there is no first element, and natively nothing would be written.  In the loop-scalar IR, as in tiles, such a
reduction *is* its identity; this rewrite says so to a backend that goes by the bounds.
"""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Program, bound_loops, variables


def explicit_start_values(program: Program) -> Program:
    """Before => after, for a block whose bounds touch a reduced loop:

    for i, j:                         for i: X[i] = 0
        if j0 * 4 + j < 10:      =>   for i, j:
            X[i] (= 0) += e               if j0 * 4 + j < 10:
                                              X[i] += e
    """
    for block in tree.blocks(program):
        if block.init is None:
            continue
        folded = bound_loops(it for it in block.iters if it.kind == "reduce")
        if any(variables(p) & folded for p in block.predicates):
            _, _, loops = tree.find_block(program, block.name)
            depth = next(n for n, loop in enumerate(loops) if loop.var in folded)
            program = start_before(program, block, depth)
    return program


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
