"""Which packed sequence each token belongs to, and where in it it is, by one small kernel.

PyTorch's functions for it are five launches, which take the host longer than the attention that they are for.
"""

# A launch `kernel[grid](...)` and its numbers confuse type checkers.
# pyright: reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

from neptune_lab.runtime.direct import launch_function
from neptune_lab.runtime.launch_memory import maker
from neptune_lab.runtime.native_launch import Argument, native_launch

TOKENS = tl.constexpr(256)  # of a program
# Launches that skip Triton's work, by device and dtype of the offsets; None: Triton launches.
_launches: dict[tuple[int | None, torch.dtype], Callable[..., Any] | None] = {}
# What makes tensors, by device (None: the CPU).
_makers: dict[int | None, Callable[..., torch.Tensor]] = {}


@triton.jit(
    do_not_specialize=["tokens", "sequences", "steps", "positions"],
    do_not_specialize_on_alignment=["offsets_ptr", "sequence_ptr", "place_ptr"],
)
def _places(offsets_ptr, sequence_ptr, place_ptr, tokens, sequences, steps, positions):
    """The number of sequences that end at or before each token, by bisection, and its distance to its sequence."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    low = tl.zeros((TOKENS,), tl.int32)
    high = low + sequences
    for _ in range(steps):
        middle = (low + high) // 2
        is_open = low < high
        ends = tl.load(offsets_ptr + 1 + middle, is_open, 0) <= token
        low = tl.where(is_open & ends, middle + 1, low)
        high = tl.where(is_open & (ends == 0), middle, high)
    inside = token < tokens
    tl.store(sequence_ptr + token, low, inside)
    if positions != 0:
        tl.store(place_ptr + token, (token - tl.load(offsets_ptr + low, inside, 0)).to(tl.int32), inside)


def token_places(offsets: torch.Tensor, tokens: int, positions: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token the number of its sequence, and, if `positions`, its position in it; all int32 (tokens,).

    Args:
        offsets: int32 or int64 (sequences + 1,), contiguous, on the current device; sequence n has the tokens
            offsets[n] to offsets[n + 1] - 1.  A sequence without tokens has two equal offsets.
        tokens: how many there are, fewer than 2^31.
    """
    device = offsets.device
    index = device.index
    empty = _makers.get(index)
    if empty is None:
        empty = _makers[index] = maker(device)
    sequence = empty((tokens,), (1,), torch.int32)
    place = empty((tokens,), (1,), torch.int32) if positions else sequence
    count = offsets.shape[0] - 1
    grid = (tokens + TOKENS.value - 1) // TOKENS.value
    numbers = tokens, count, count.bit_length(), int(positions)
    key = index, offsets.dtype
    launch = _launches.get(key)
    if launch is not None and not _is_watched():
        launch(grid, offsets, sequence, place, numbers)
        return sequence, place
    compiled = _places[(grid,)](offsets, sequence, place, *numbers)
    if index is not None and key not in _launches:
        _launches[key] = _launch_of(compiled, index)
    return sequence, place


def _launch_of(compiled: Any, device: int) -> Callable[..., None] | None:
    """A launch of the compiled kernel by `launch.c`; None if that cannot launch it."""
    from triton.runtime import driver

    run = compiled.run
    _, form, metas = launch_function(run)
    arguments = [*map(Argument, ("offsets", "sequence", "place", "tokens", "sequences", "steps", "positions"))]
    found = None if form == "run" else native_launch(compiled, run, metas, device, arguments)
    if found is None:
        return None
    native, active = found[0], driver.active
    stream: Any = active.get_current_stream  # pyright: ignore[reportAttributeAccessIssue]

    def launch(grid: int, offsets: Any, sequence: Any, place: Any, numbers: tuple[int, ...]) -> None:
        native(grid, 1, 1, stream(device), offsets.data_ptr(), sequence.data_ptr(), place.data_ptr(), *numbers)

    return launch


def _is_watched() -> bool:
    """Whether a profiler waits for launches, which sees only Triton's own."""
    chains = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return any(chain is not None and getattr(chain, "calls", True) for chain in chains)


__all__ = ["TOKENS", "token_places"]
