"""Steps that TVM's own schedule makes: names translated both ways, and what TVM accepts by mistake refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import early_read, incomplete_read
from neptune_lab.loop_ir.names import loop_names
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tvm_compat import TvmRefusal, apply
from neptune_lab.loop_schedule.fusion import loop_ref, restore_unit_loops


def apply_in_tvm(
    program: Program,
    primitive: str,
    node: str,
    action: Callable[[Any], Any],
    *,
    absent: Collection[str] = (),
    help: str = "print the schedule: names, order and kinds of loops must be as it shows",
) -> Program:
    """The program after a step of TVM's schedule.

    Args:
        program: before the step.
        primitive: its name, for messages.
        node: the block or the loop that it is applied to, for messages.
        action: the step itself, on a `tvm.s_tir.Schedule`.
        absent: the blocks that TVM's refusal would name by numbers.
        help: what usually helps if TVM's own check refuses; TVM's message names no block.

    Raises:
        ScheduleError: TVM refuses, or a block would read a value too early.
    """
    try:
        result = tree.rename_loops(restore_unit_loops(apply(program, action)), loop_names(*program.body))
        known = {b: b for b in tree.blocks(program)}  # a block that stays is the same object: caches compare it at once
        result = tree.map_blocks(result, lambda b: known.get(b, b))
    except TvmRefusal as error:
        twice = _written_twice(program)
        if "not a stage pipeline" in error.reason and twice:
            raise ScheduleError(
                f"{primitive} on {node!r}: TVM moves nothing among blocks that share a buffer to write: {twice}",
                node=node.partition(".")[0],
                help=f"{primitive} before retire_tags and decompose_reduction, which add start values; fuse_under can "
                "still move a block behind them",
            ) from error
        reason, listed, numbers = error.reason.partition(" However, there ")
        reason += f" Not there: {', '.join(absent)}." if listed and absent else listed + numbers
        raise ScheduleError(
            f"{primitive} on {node!r}: TVM refuses: {reason}", node=node.partition(".")[0], help=help
        ) from error
    # TVM moves a producer behind its consumers where these stand before the target loop.
    early = early_read(result)
    if early is not None and early_read(program) is None:
        reader, buffer, writer = early
        raise ScheduleError(
            f"{primitive} on {node!r}: {reader!r} would read {buffer!r} before {writer!r} writes it",
            node=node.partition(".")[0],
            help=f"bring {reader!r} under that loop first, or name a loop that comes before it",
        )
    # TVM takes a reduction for complete inside a loop that it folds along, where an inner loop has one iteration.
    incomplete = incomplete_read(result)
    if incomplete is not None:
        reader, writer, var = incomplete
        raise ScheduleError(
            f"{primitive} on {node!r}: {reader!r} would read {writer!r} inside loop {var!r}, which {writer!r} still "
            "folds along",
            node=node.partition(".")[0],
            help=f"use rolling_update or split_k_update to fuse across {writer!r}",
        )
    return result


def _written_twice(program: Program) -> str:
    """The buffers that several blocks write, each with the blocks."""
    writers: dict[str, list[str]] = {}
    for block in tree.blocks(program):
        writers.setdefault(block.writes, []).append(block.name)
    return "; ".join(f"{name} by {' and '.join(found)}" for name, found in writers.items() if len(found) > 1)


def handle_of(schedule: Any, program: Program, ref: str) -> Any:
    """TVM's handle of "block.loop"."""
    block, var = loop_ref(ref)
    _, _, around = tree.find_loop(program, block, var)
    return schedule.get_loops(schedule.get_sblock(block))[len(around)]


__all__ = ["apply_in_tvm", "handle_of"]
