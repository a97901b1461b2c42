"""TVM's schedule and its LLVM backend, applied to loop-scalar programs."""

# TVM's type annotations are narrower than what its functions accept.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule as TvmSchedule
from tvm.s_tir import ScheduleError

from neptune_lab.errors import NeptuneError
from neptune_lab.loop_ir.nodes import Block, Program, Stmt
from neptune_lab.loop_ir.start_values import explicit_start_values
from neptune_lab.loop_ir.tvm_compat.inward import from_tvm
from neptune_lab.loop_ir.tvm_compat.outward import to_tvm
from neptune_lab.loop_ir.tvm_compat.words import first_line
from neptune_lab.loop_ir.verify import verify_bounds


class TvmRefusal(NeptuneError):
    """TVM's schedule refused a primitive; the message is TVM's reason, shortened."""


def apply(program: Program, action: Callable[[Any], None], nest: int | None = None) -> Program:
    """The program after `action` on a TVM schedule of it.

    Args:
        program: the program.
        action: applies primitives.
        nest: the statement of the program that `action` changes; TVM sees this one alone. None: it sees all.

    Raises:
        TvmRefusal: TVM refused the action.
    """
    seen = program if nest is None else replace(program, body=(program.body[nest],))
    schedule = TvmSchedule(tvm.IRModule({"main": to_tvm(seen)}), debug_mask=0, error_render_level="detail")
    try:
        action(schedule)
    except (ScheduleError, RuntimeError, TypeError, ValueError) as error:
        raise TvmRefusal(first_line(error)) from error
    made = from_tvm(schedule.mod["main"], name=program.name, outputs=program.outputs, like=program)
    if nest is None:
        return made
    return replace(made, body=(*program.body[:nest], *made.body, *program.body[nest + 1 :]))


@lru_cache(maxsize=64)
def _compiled(program: Program) -> Any:
    unbound = replace(program, body=tuple(_unbind(s) for s in program.body))
    started = explicit_start_values(unbound)
    verify_bounds(started)  # native code must stay in its buffers
    module = tvm.IRModule({"main": to_tvm(started, native=True)})
    # Most programs run once or twice, and small: LLVM's second level takes longer than it saves.
    return tvm.compile(module, target=tvm.target.Target({"kind": "llvm", "opt-level": 1}))["main"]


def _unbind(stmt: Stmt) -> Stmt:
    """The statement with thread axes as serial loops and without annotations, which have no meaning on a CPU."""
    if isinstance(stmt, Block):
        return stmt
    return replace(stmt, kind="serial", annotations=(), body=tuple(_unbind(s) for s in stmt.body))


def run_native(program: Program, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compiles a program with LLVM and runs it.

    Args:
        program: any legal program.
        arrays: one array for each buffer, by name, in the buffer's dtype.

    Returns:
        All buffers after the run, by name.

    Raises:
        ScheduleError: an access cannot be shown to stay in its buffer.
    """
    order = [*program.params, *(b.name for b in program.buffers if b.name not in program.params)]
    values = [tvm.runtime.tensor(np.asarray(arrays[n], order="C")) for n in order]
    _compiled(program)(*values)
    return {n: v.numpy() for n, v in zip(order, values, strict=True)}
