"""Applies steps with TVM's schedule: restores this package's loop names, and refuses illegal results of TVM."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import networkx as nx

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import early_read, graph, incomplete_read
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.names import loop_names
from neptune_lab.loop_ir.nodes import Block, Program, Var, add, mul
from neptune_lab.loop_ir.overwritten import escaped_read
from neptune_lab.loop_ir.tvm_compat import TvmRefusal, apply
from neptune_lab.loop_ir.walks import bound_loops, variables
from neptune_lab.loop_schedule.affine import affine_terms
from neptune_lab.loop_schedule.alignment import accesses
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.tvm_reasons import in_words


def apply_in_tvm(
    program: Program,
    primitive: str,
    node: str,
    action: Callable[[Any], Any],
    *,
    absent: Collection[str] = (),
    nest: int | None = None,
    help: str = "print the schedule: names, order and kinds of loops must be as it shows",
) -> Program:
    """The program after a step of TVM's schedule.

    Args:
        program: the program before the step.
        primitive: its name, for messages.
        node: the block or loop that it is applied to, for messages.
        action: applies the step to a `tvm.s_tir.Schedule`.
        nest: the statement of the program that `action` changes, if its legality depends on no other: TVM takes time
            for each statement. None: any.
        absent: the blocks that are not under the target loop, by name; TVM's message would only number them.
        help: the help of the error if TVM's own check refuses; TVM's message names no block.

    Returns:
        The new program, with this package's loop names.

    Raises:
        ScheduleError: TVM refuses, or a block would read a value before it is written or complete.
    """
    try:
        result = tree.rename_loops(restore_unit_loops(apply(program, action, nest)), loop_names(*program.body))
        known = {b: b for b in tree.blocks(program)}  # an unchanged block stays the same object, for fast comparisons
        result = tree.map_blocks(result, lambda b: known.get(b, b))
    except TvmRefusal as error:
        raise _refused(program, primitive, node, error, absent, help) from error
    _check_reads(program, result, primitive, node)
    return result


def _refused(
    program: Program, primitive: str, node: str, error: TvmRefusal, absent: Collection[str], help: str
) -> ScheduleError:
    """The error of a step that TVM refuses, with names where TVM has numbers; the arguments as for `apply_in_tvm`."""
    twice = _written_twice(program)
    if "not a stage pipeline" in error.reason and twice:
        return ScheduleError(
            f"{primitive} on {node!r}: TVM moves no block if several blocks write the same buffer: {twice}",
            node=node.partition(".")[0],
            help=f"apply {primitive} before retire_tags and decompose_reduction, which add start values; after "
            "them, use fuse_under",
        )
    reason, listed, numbers = error.reason.partition(" However, there ")
    reason += f" Not there: {', '.join(absent)}." if listed and absent else listed + numbers
    reason = in_words(reason, node)
    return ScheduleError(f"{primitive} on {node!r}: TVM refuses: {reason}", node=node.partition(".")[0], help=help)


def _check_reads(program: Program, result: Program, primitive: str, node: str) -> None:
    """Raises ScheduleError if a block of the result reads a value before it is written or complete, which TVM does not
    see."""
    # TVM moves a producer after its consumers if these come before the target loop.
    early = early_read(result)
    if early is not None and early_read(program) is None:
        reader, buffer, writer = early
        raise ScheduleError(
            f"{primitive} on {node!r}: {reader!r} would read {buffer!r} before {writer!r} writes it",
            node=node.partition(".")[0],
            help=f"move {reader!r} under that loop first, or name a loop that comes before it",
        )
    # If an inner loop has one iteration, TVM treats a reduction along an outer loop as complete inside that outer loop.
    incomplete = incomplete_read(result)
    if incomplete is not None:
        reader, writer, var = incomplete
        raise ScheduleError(
            f"{primitive} on {node!r}: {reader!r} would read {writer!r} inside loop {var!r}, which {writer!r} still "
            "folds along",
            node=node.partition(".")[0],
            help=_complete_elsewhere(program, reader, writer, var),
        )
    # TVM takes a block for complete that writes the same elements in each iteration of a loop.
    escaped = escaped_read(program, result)
    if escaped is not None:
        raise ScheduleError(
            f"{primitive} on {node!r}: {escaped.reader!r} would read {escaped.buffer!r} after loop {escaped.loop!r}, "
            f"in each iteration of which {escaped.writer!r} overwrites it",
            node=node.partition(".")[0],
            help=f"leave {escaped.reader!r} inside that loop",
        )


def _complete_elsewhere(program: Program, reader: str, writer: str, var: str) -> str:
    """What helps a block that would read a reduction inside the loop `var` that it folds along: a repair if it folds
    that dimension too; otherwise a loop outside, and the reduction that the block would be fused with by a repair."""
    _, folding, loops = tree.find_block(program, writer)
    fused = f"use rolling_update or split_k_update to fuse across {writer!r}"
    dims = dimensions(program)
    axes = {dims.of(folding, it.name) for it in folding.iters if it.kind == "reduce" and var in variables(it.binding)}
    blocks = {b.name: b for b in tree.blocks(program)}
    alike = {name for name, b in blocks.items() if axes & {*dims.all_of(b, "reduce")}}
    if reader in alike:
        return fused
    names = [loop.var for loop in loops]
    outer = names[names.index(var) - 1] if var in names[1:] else None
    outside = f"name a loop outside it, such as {f'{writer}.{outer}'!r}" if outer else ""
    readers = [name for name in nx.descendants(graph(program), reader) if name in alike and name != writer]
    first = min(readers, key=[*blocks].index, default=None)
    repaired = f"use rolling_update or split_k_update on {first!r}, which takes {reader!r} along" if first else ""
    return "; or ".join(filter(None, (outside, repaired))) or fused


def _written_twice(program: Program) -> str:
    """The buffers that several blocks write, as text: "X by a and b; Y by c and d"."""
    writers: dict[str, list[str]] = {}
    for block in tree.blocks(program):
        writers.setdefault(block.writes, []).append(block.name)
    return "; ".join(f"{name} by {' and '.join(blocks)}" for name, blocks in writers.items() if len(blocks) > 1)


def handle_of(schedule: Any, program: Program, ref: str) -> Any:
    """TVM's handle of a loop.

    Args:
        schedule: a `tvm.s_tir.Schedule` of `program`.
        program: the program.
        ref: the loop, as "block.loop".

    Returns:
        A `LoopRV` of `schedule`.

    Raises:
        ScheduleError: there is no such loop.
    """
    block, var = loop_ref(ref)
    _, _, around = tree.find_loop(program, block, var)
    return schedule.get_loops(schedule.get_sblock(block))[len(around)]


def restore_unit_loops(program: Program) -> Program:
    """Puts loops of extent 1 back into bindings. TVM omits them when it moves a block under such a loop.

    `j = j1` under `for j0 in range(1)` becomes `j = j0 * 64 + j1`, as in the other blocks under that loop. The value is
    the same, and a rolling loop of one iteration is still recognized as a rolling loop.

    Args:
        program: the program that TVM returned.

    Returns:
        The program; the same object if no binding changes.
    """
    places = [(path, stmt, loops) for path, stmt, loops in tree.statements(program) if isinstance(stmt, Block)]
    for path, block, loops in places:
        changed = block
        for depth, loop in enumerate(loops):
            if loop.extent != 1 or loop.var in bound_loops(changed.iters):
                continue
            others = [b for p, b, _ in places if p[: depth + 1] == path[: depth + 1] and b.name != block.name]
            changed = _along_unit(changed, loop.var, others)
        if changed is not block:
            program = tree.replace_block(program, block.name, changed)
    return program


def _along_unit(block: Block, loop: str, others: list[Block]) -> Block:
    """The block with `loop`, of extent 1, added to the binding of one of its variables; the same object if none fits.

    The variable that fits indexes a dimension of a buffer that one of `others` indexes along `loop`.
    """
    for other in others:
        steps = {i.name: split[0] for i in other.iters if (split := affine_terms(i.binding, loop)) and split[0] > 0}
        theirs = {(b, d): i.name for b, d, i in accesses(other) if isinstance(i, Var) and i.name in steps}
        for buffer, dim, index in accesses(block):
            if isinstance(index, Var) and (buffer, dim) in theirs:
                step = steps[theirs[buffer, dim]]
                iters = tuple(
                    replace(i, binding=add(mul(Var(loop), step), i.binding)) if i.name == index.name else i
                    for i in block.iters
                )
                return replace(block, iters=iters)
    return block


__all__ = ["apply_in_tvm", "handle_of", "restore_unit_loops"]
