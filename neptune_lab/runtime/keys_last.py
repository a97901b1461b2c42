"""Values of 8 bits with their keys last, as a product of 8 bits reads them."""

# A launch `kernel[grid](...)` and its numbers confuse type checkers.
# pyright: reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

# The tile that a program turns: on both sides, a row of it is at least 64 bytes in a row in memory.
KEYS, COLUMNS = 128, 64


@triton.jit
def _turn(
    v_ptr, out_ptr, tiles, heads, length, columns, step_batch, step_head, step_key, step_column,
    KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[head, column, key] = v[head, key, column], for the heads of all batches."""
    tile = tl.program_id(0)
    head = (tile // tiles).to(tl.int64)
    key = tile % tiles * KEYS + tl.arange(0, KEYS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    v_ptr += head // heads * step_batch + head % heads * step_head
    out_ptr += head * columns * length
    inside = (key < length)[:, None] & (column < columns)[None, :]
    values = tl.load(v_ptr + key.to(tl.int64)[:, None] * step_key + column.to(tl.int64)[None, :] * step_column, inside)
    at = column.to(tl.int64)[:, None] * length + key[None, :]
    tl.store(out_ptr + at, tl.trans(values), (column < columns)[:, None] & (key < length)[None, :])


def keys_last(v: torch.Tensor) -> torch.Tensor:
    """The tensor (batch, heads, columns, length) of values (batch, heads, length, columns) of 8 bits, contiguous.

    It is a view if memory has that order already, and else a copy.
    """
    turned = v.transpose(2, 3)
    if turned.is_contiguous() or not v.is_cuda:
        return turned.contiguous()
    with torch.cuda.device(v.device):
        return copied(v)


def copied(v: torch.Tensor, keys: int = KEYS, columns: int = COLUMNS) -> torch.Tensor:
    """The copy that `keys_last` makes, by tiles of so many keys and columns.  (Copying by torch moves single bytes.)"""
    batch, heads, length, width = v.shape
    out = torch.empty((batch, heads, width, length), dtype=v.dtype, device=v.device)
    tiles = triton.cdiv(length, keys)
    source, target = v.view(torch.int8), out.view(torch.int8)
    grid = batch * heads * tiles, triton.cdiv(width, columns)
    _turn[grid](source, target, tiles, heads, length, width, *v.stride(), KEYS=keys, COLUMNS=columns)
    return out


__all__ = ["copied", "keys_last"]
