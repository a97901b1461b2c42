"""What a loop may be bound to, and what its annotations say."""

from __future__ import annotations

# Kinds of loops whose iterations are programs of a kernel.
GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
# Of a loop that runs in order. Without it, a loop around a single block is a dimension of its tile.
SEQUENTIAL = "sequential"
# Launch hints: they change no number.
HINTS = ("num_warps", "num_stages")

__all__ = ["GRID", "HINTS", "SEQUENTIAL"]
