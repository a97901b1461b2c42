"""Which packed sequence each token belongs to, and where in it it is, by one small kernel.

PyTorch's functions for it are five launches, which take the host longer than the attention that they are for.
"""

# A launch `kernel[grid](...)` and its numbers confuse type checkers.
# pyright: reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

from neptune_lab.runtime.direct import launch_function
from neptune_lab.runtime.launch_memory import maker
from neptune_lab.runtime.native_launch import Argument, native_launch

TOKENS = tl.constexpr(256)  # of a program

Tensor = torch.Tensor


@triton.jit
def _sequence_of(offsets_ptr, token, ends):
    """The number of sequences that end at or before each of `TOKENS` tokens, by bisection."""
    low = tl.zeros((TOKENS,), tl.int32)
    high = low + ends - 1
    left = ends - 1
    while left > 0:
        middle = (low + high) // 2
        is_open = low < high
        is_behind = tl.load(offsets_ptr + 1 + middle, is_open, 0) <= token
        low = tl.where(is_open & is_behind, middle + 1, low)
        high = tl.where(is_open & (is_behind == 0), middle, high)
        left = left // 2
    return low


@triton.jit
def _of_side(offsets_ptr, sequence_ptr, place_ptr, tokens, ends):
    """The sequence of each token, and its distance to that."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    sequence = _sequence_of(offsets_ptr, token, ends)
    inside = token < tokens
    tl.store(sequence_ptr + token, sequence, inside)
    if place_ptr.to(tl.int64) != sequence_ptr.to(tl.int64):
        tl.store(place_ptr + token, (token - tl.load(offsets_ptr + sequence, inside, 0)).to(tl.int32), inside)


@triton.jit
def _tiles_of(of_q, of_k, first_tile, last_tile, tokens, keys, ends, rows, columns):
    """For each tile of `rows` queries the first tile of `columns` keys that may have one of their sequences, and the
    last one plus 1: at least one tile, of those that there are, whatever the offsets are."""
    tile = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = tile <= (tokens - 1) // rows
    least = _sequence_of(of_q, tile * rows, ends)
    most = _sequence_of(of_q, tl.minimum(tile * rows + rows, tokens) - 1, ends)
    # (keys before the first sequence count as its own, and those behind the last one are a sequence)
    begin = tl.where(least == 0, 0, tl.load(of_k + least, inside, 0))
    end = tl.where(most == ends - 1, keys, tl.load(of_k + tl.minimum(most + 1, ends - 1), inside, 0))
    first = tl.minimum(tl.maximum(begin, 0), keys - 1) // columns
    last = (tl.minimum(tl.maximum(end, 1), keys) - 1) // columns
    tl.store(first_tile + tile, first.to(tl.int32), inside)
    tl.store(last_tile + tile, tl.maximum(first, last).to(tl.int32) + 1, inside)


@triton.jit(
    do_not_specialize=["tokens", "keys", "ends", "rows", "columns"],
    do_not_specialize_on_alignment=[
        "of_q",
        "of_k",
        "q_sequence",
        "k_sequence",
        "q_place",
        "k_place",
        "first_tile",
        "last_tile",
    ],
)
def _places(
    of_q,
    of_k,
    q_sequence,
    k_sequence,
    q_place,
    k_place,
    first_tile,
    last_tile,
    tokens,
    keys,
    ends,
    rows,
    columns,
):
    """Those of the queries, and in a second row of programs those of the keys; where a place is the sequence's memory,
    only the sequence.  With `rows`, the last row of programs finds the tiles of keys that tiles of queries see."""
    side = tl.program_id(1)
    if (rows > 0) & (side == tl.num_programs(1) - 1):
        if tl.program_id(0) * TOKENS <= (tokens - 1) // rows:
            _tiles_of(of_q, of_k, first_tile, last_tile, tokens, keys, ends, rows, columns)
    elif side == 0:
        _of_side(of_q, q_sequence, q_place, tokens, ends)
    else:
        _of_side(of_k, k_sequence, k_place, keys, ends)


@dataclass(frozen=True, slots=True)
class PlacesKernel:
    """The kernel of places as Triton compiled it for one GPU and the dtypes of offsets.

    Args:
        launch: skips Triton's work; None: Triton launches.
    """

    compiled: Any
    launch: Callable[..., Any] | None


# By device and the dtypes of the offsets.
_kernels: dict[tuple[int, torch.dtype, torch.dtype], PlacesKernel] = {}
# What makes tensors, by device (None: the CPU).
_makers: dict[int | None, Callable[..., Tensor]] = {}


def places_kernel(device: torch.device, of_q: torch.dtype, of_k: torch.dtype) -> PlacesKernel | None:
    """The kernel of places for offsets of these dtypes on a GPU; None before `token_places` launched it."""
    return None if device.index is None else _kernels.get((device.index, of_q, of_k))


def token_places(
    of_q: Tensor, of_k: Tensor, tokens: int, keys: int, positions: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each query and each key the number of its sequence, and, if `positions`, its position in it, all int32:
    q_sequence, k_sequence, q_place and k_place; without `positions`, the sequences again.

    Args:
        of_q: int32 or int64 (sequences + 1,), contiguous, on the current device; sequence n has the tokens
            of_q[n] to of_q[n + 1] - 1.  A sequence without tokens has two equal offsets.
        of_k: of the keys, as many; the same tensor: the keys are packed as the queries, and their places are the same
            tensors.
        tokens, keys: how many there are, fewer than 2^31.
    """
    device = of_q.device
    index = device.index
    empty = _makers.get(index)
    if empty is None:
        empty = _makers[index] = maker(device)
    alike = of_k is of_q
    one = (tokens,), (1,), torch.int32
    q_sequence = empty(*one)
    q_place = empty(*one) if positions else q_sequence
    if alike:
        k_sequence, k_place = q_sequence, q_place
    else:
        other = (keys,), (1,), torch.int32
        k_sequence = empty(*other)
        k_place = empty(*other) if positions else k_sequence
    made = q_sequence, k_sequence, q_place, k_place
    most = tokens if alike else max(tokens, keys)
    grid = (most + TOKENS.value - 1) // TOKENS.value, 1 if alike else 2
    numbers = tokens, keys, of_q.shape[0], 0, 0
    key = index, of_q.dtype, of_k.dtype
    known = _kernels.get(key)
    if known is not None and known.launch is not None and not _is_watched():
        known.launch(grid, (of_q, of_k, *made, q_sequence, q_sequence), numbers)
        return made
    compiled = _places[grid](of_q, of_k, *made, q_sequence, q_sequence, *numbers)
    if index is not None and known is None:
        _kernels[key] = PlacesKernel(compiled, _launch_of(compiled, index))
    return made


def _launch_of(compiled: Any, device: int) -> Callable[..., None] | None:
    """A launch of the compiled kernel by `launch.c`; None if that cannot launch it."""
    from triton.runtime import driver

    run = compiled.run
    _, form, metas = launch_function(run)
    found = None if form == "run" else native_launch(compiled, run, metas, device, [*map(Argument, _places.arg_names)])
    if found is None:
        return None
    native, active = found[0], driver.active
    stream: Any = active.get_current_stream  # pyright: ignore[reportAttributeAccessIssue]

    def launch(grid: tuple[int, int], tensors: tuple[Tensor, ...], numbers: tuple[int, ...]) -> None:
        native(*grid, 1, stream(device), *[tensor.data_ptr() for tensor in tensors], *numbers)

    return launch


def _is_watched() -> bool:
    """Whether a profiler waits for launches, which sees only Triton's own."""
    chains = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return any(chain is not None and getattr(chain, "calls", True) for chain in chains)


__all__ = ["TOKENS", "PlacesKernel", "places_kernel", "token_places"]
