"""Rewrites of HTile programs, one a file, in one ordered list; the meaning of the program stays.

    from neptune_lab.htile_passes import PASSES, run

    better = run(program)                      # all of them
    for name, rewrite in PASSES.items():       # or one by one, to record each
        program = rewrite(program)

A pass that changes nothing returns the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes.drop_dead_tiles import drop_dead_tiles
from neptune_lab.htile_passes.fold_dot_accumulate import fold_dot_accumulate
from neptune_lab.htile_passes.fold_initial_values import fold_initial_values
from neptune_lab.htile_passes.hoist_invariant_loads import hoist_invariant_loads
from neptune_lab.htile_passes.keep_stored_tiles import keep_stored_tiles
from neptune_lab.htile_passes.share_common_tiles import share_common_tiles

PASSES: Mapping[str, Callable[[Program], Program]] = MappingProxyType(
    {
        "keep_stored_tiles": keep_stored_tiles,
        "fold_initial_values": fold_initial_values,
        "fold_dot_accumulate": fold_dot_accumulate,
        "share_common_tiles": share_common_tiles,
        "hoist_invariant_loads": hoist_invariant_loads,
        "drop_dead_tiles": drop_dead_tiles,
    }
)


def run(program: Program) -> Program:
    """`program` after every pass, in the order of `PASSES`."""
    for rewrite in PASSES.values():
        program = rewrite(program)
    return program


__all__ = [
    "PASSES",
    "drop_dead_tiles",
    "fold_dot_accumulate",
    "fold_initial_values",
    "hoist_invariant_loads",
    "keep_stored_tiles",
    "run",
    "share_common_tiles",
]
