"""Rewrites of HTile programs, one a file, in one ordered list; the meaning of the program stays.

    from neptune_lab.htile_passes import PASSES, run

    better = run(program)                      # all of them
    for name, rewrite in PASSES.items():       # or one by one, to record each
        done = apply(rewrite, program)         # done.program, and done.notes where the pass proves something

A pass that changes nothing returns the same object.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes.convert_positions_as_vectors import convert_positions_as_vectors
from neptune_lab.htile_passes.divide_by_multiplying import divide_by_multiplying
from neptune_lab.htile_passes.drop_dead_tiles import drop_dead_tiles
from neptune_lab.htile_passes.exponentials_to_base_two import exponentials_to_base_two
from neptune_lab.htile_passes.fold_constant_factors import fold_constant_factors
from neptune_lab.htile_passes.fold_dot_accumulate import fold_dot_accumulate
from neptune_lab.htile_passes.fold_initial_values import fold_initial_values
from neptune_lab.htile_passes.hoist_invariant_loads import hoist_invariant_loads
from neptune_lab.htile_passes.interleave_rows import interleave_rows
from neptune_lab.htile_passes.keep_exact import keep_exact
from neptune_lab.htile_passes.keep_stored_tiles import keep_stored_tiles
from neptune_lab.htile_passes.longest_first import longest_first
from neptune_lab.htile_passes.partition_masked_loops import partition_masked_loops
from neptune_lab.htile_passes.rewrite import Pass, Rewrite, apply, summary
from neptune_lab.htile_passes.scale_after_maximum import scale_after_maximum
from neptune_lab.htile_passes.share_common_tiles import share_common_tiles
from neptune_lab.htile_passes.unroll_single_iterations import unroll_single_iterations

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "unroll_single_iterations": unroll_single_iterations,
        "keep_stored_tiles": keep_stored_tiles,
        "fold_initial_values": fold_initial_values,
        "fold_dot_accumulate": fold_dot_accumulate,
        "share_common_tiles": share_common_tiles,
        "hoist_invariant_loads": hoist_invariant_loads,
        "drop_dead_tiles": drop_dead_tiles,
        "partition_masked_loops": partition_masked_loops,  # it copies bodies: the ones before find things in one
        "convert_positions_as_vectors": convert_positions_as_vectors,
        "keep_exact": keep_exact,  # before any pass that rounds in another way
        "fold_constant_factors": fold_constant_factors,
        "scale_after_maximum": scale_after_maximum,
        "exponentials_to_base_two": exponentials_to_base_two,
        "divide_by_multiplying": divide_by_multiplying,
        "unroll_single_parts": unroll_single_iterations,
        "longest_first": longest_first,
    }
)


# Those that always run, and those that are asked for.
ALL_PASSES: Mapping[str, Pass] = MappingProxyType({**PASSES, "interleave_rows": interleave_rows})


def run(program: Program, without: Collection[str] = ()) -> Program:
    """`program` after every pass, in the order of `PASSES`, but for those named in `without`."""
    for name, rewrite in PASSES.items():
        if name not in without:
            program = apply(rewrite, program).program
    return program


__all__ = [
    "ALL_PASSES",
    "PASSES",
    "Pass",
    "Rewrite",
    "apply",
    "convert_positions_as_vectors",
    "divide_by_multiplying",
    "drop_dead_tiles",
    "exponentials_to_base_two",
    "fold_constant_factors",
    "fold_dot_accumulate",
    "fold_initial_values",
    "hoist_invariant_loads",
    "interleave_rows",
    "keep_exact",
    "keep_stored_tiles",
    "longest_first",
    "partition_masked_loops",
    "run",
    "scale_after_maximum",
    "share_common_tiles",
    "summary",
    "unroll_single_iterations",
]
