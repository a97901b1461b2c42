"""HTile IR to warp-specialised Gluon, for Hopper.

`emit(program)` returns a module that needs torch and Triton only.  A kernel becomes a producer, one warp that copies
tiles to ring buffers in shared memory, and consumers, which compute: of four warps and 64 rows each, or one of eight
warps and 128 rows with two relays (relay.py).
"""

from __future__ import annotations

from neptune_lab.htile_to_gluon.module import emit, why_unsupported
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.untuned import (
    SHORT_LOOP,
    fits_registers,
    moves_no_weights,
    reads_pairs,
    suits_persistence,
    suits_tie,
    suits_wide_tiles,
    visited_tiles,
)

__all__ = [
    "SHORT_LOOP",
    "GluonOptions",
    "emit",
    "fits_registers",
    "moves_no_weights",
    "reads_pairs",
    "suits_persistence",
    "suits_tie",
    "suits_wide_tiles",
    "visited_tiles",
    "why_unsupported",
]
