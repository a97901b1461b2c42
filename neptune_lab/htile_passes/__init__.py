"""Rewrites of HTile programs, one a file, in one ordered list; the meaning of the program stays.

    from neptune_lab.htile_passes import PASSES, run

    better = run(program)                      # all of them
    for name, rewrite in PASSES.items():       # or one by one, to record each
        done = apply(rewrite, program)         # done.program, and done.notes where the pass proves something

A pass that changes nothing returns the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes.drop_dead_tiles import drop_dead_tiles
from neptune_lab.htile_passes.fold_dot_accumulate import fold_dot_accumulate
from neptune_lab.htile_passes.fold_initial_values import fold_initial_values
from neptune_lab.htile_passes.hoist_invariant_loads import hoist_invariant_loads
from neptune_lab.htile_passes.keep_stored_tiles import keep_stored_tiles
from neptune_lab.htile_passes.partition_masked_loops import partition_masked_loops
from neptune_lab.htile_passes.rewrite import Pass, Rewrite, apply
from neptune_lab.htile_passes.share_common_tiles import share_common_tiles

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "keep_stored_tiles": keep_stored_tiles,
        "fold_initial_values": fold_initial_values,
        "fold_dot_accumulate": fold_dot_accumulate,
        "share_common_tiles": share_common_tiles,
        "hoist_invariant_loads": hoist_invariant_loads,
        "drop_dead_tiles": drop_dead_tiles,
        "partition_masked_loops": partition_masked_loops,  # last: it copies bodies
    }
)


def run(program: Program) -> Program:
    """`program` after every pass, in the order of `PASSES`."""
    for rewrite in PASSES.values():
        program = apply(rewrite, program).program
    return program


__all__ = [
    "PASSES",
    "Pass",
    "Rewrite",
    "apply",
    "drop_dead_tiles",
    "fold_dot_accumulate",
    "fold_initial_values",
    "hoist_invariant_loads",
    "keep_stored_tiles",
    "partition_masked_loops",
    "run",
    "share_common_tiles",
]
