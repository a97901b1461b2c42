"""Slices of a row that begin at a multiple of 16 bytes of memory, whatever the number of the row.

Rows of 1003 elements of 2 bytes begin at any even address, where a GPU loads 2 bytes at a time.  Each has a *head* of 0
to 7 elements before the first multiple of 8 elements.  A slice that begins at the head's end, or a multiple of 8
elements behind it, is loaded and stored 16 bytes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from neptune_lab.htile.affine import affine
from neptune_lab.htile.nodes import Access, Arith, IndexExpr, Int, Kernel, Name, Slice, Tensor
from neptune_lab.htile.walk import reads, region, simplify, stores

# Bytes that a GPU loads at once.
AT_ONCE = 16


def steps_of(tensor: Tensor) -> tuple[int, ...]:
    """Elements from one index of each dimension of a tensor to the next."""
    if tensor.strides is not None:
        return tensor.strides
    return tuple(prod(tensor.shape[n + 1 :]) for n in range(len(tensor.shape)))


def is_tile(index: object, var: str, tile: int) -> bool:
    """Whether an index is a slice of `tile` elements that begins at `var * tile`."""
    if not isinstance(index, Slice) or index.extent != tile:
        return False
    start = affine(simplify(index.start))
    return start.terms == ((Name(var), tile),) and start.constant == 0


def head_of(access: Access, steps: Sequence[int], block: int) -> IndexExpr | None:
    """The number of elements before the first multiple of `block` elements in the row that an access reads; None if
    each row begins at one.

    Args:
        access: reads or stores a slice of the last dimension, along which elements are contiguous.
        steps: elements from one index of each dimension of its tensor to the next.
        block: elements.
    """
    total: IndexExpr | None = None
    for index, step in zip(region(access)[:-1], steps[:-1], strict=True):
        scalar = index.start if isinstance(index, Slice) else index
        if step % block:
            term = Arith("*", scalar, Int(-step % block))
            total = term if total is None else Arith("+", total, term)
    return None if total is None else simplify(Arith("%", total, Int(block)))


def behind_the_head(access: Access, steps: Sequence[int]) -> tuple[int, IndexExpr] | None:
    """If a slice of one row begins at a multiple of a block after the head of the row: the elements of the block, and
    what the start has beside the head; None for any other access.

    Formal statement: with the steps s of the row's indices i, the slice begins at sum(i * s) + head + rest.  head is
    sum(i * (-s mod block)) mod block, so sum(i * s) + head is a multiple of the block, and so is each term of the rest.
    """
    *outer, last = region(access)
    if not isinstance(last, Slice) or steps[-1] != 1 or any(isinstance(i, Slice) and i.extent > 1 for i in outer):
        return None
    start = affine(simplify(last.start))
    for term, factor in start.terms:
        if factor != 1 or not isinstance(term, Arith) or term.op != "%" or not isinstance(term.b, Int):
            continue
        block, rest = term.b.value, start.without(term)
        if head_of(access, steps, block) == term and not any(
            n % block for n in (rest.constant, *(k for _, k in rest.terms))
        ):
            at: IndexExpr = Int(rest.constant)
            for atom, k in rest.terms:
                at = Arith("+", Arith("*", atom, Int(k)), at)
            return block, simplify(at)
    return None


def end_of(extent: int, head: IndexExpr, block: int) -> IndexExpr:
    """Where the elements behind the last whole block of a row begin, of which there are less than a block."""
    behind = Arith("-", Int(extent), head)
    return Arith("-", Int(extent), Arith("%", behind, Int(block)))


def has_its_end(access: Access, tensor: Tensor, block: int, kernel: Kernel) -> bool:
    """Whether a kernel has a statement on the elements behind the last whole block of the row of an access, as the
    passes make one that move slices behind heads; others need all elements of their slices.

    Args:
        access: of a slice behind the head (`behind_the_head`).
        tensor: its tensor.
        block: elements.
        kernel: has the access.
    """
    head = head_of(access, steps_of(tensor), block)
    if head is None:
        return False
    end = simplify(end_of(tensor.shape[-1], head, block))
    return (access.tensor, access.index[:-1], end, block) in _places(kernel)


@lru_cache(maxsize=64)
def _places(kernel: Kernel) -> frozenset[tuple[str, tuple[object, ...], IndexExpr, int]]:
    """Tensor, outer indices, start and extent of the last slice of every access of a kernel."""
    every = (a for store in stores(kernel.body) for a in (store.target, *reads(store)))
    return frozenset(
        (a.tensor, a.index[:-1], simplify(last.start), last.extent)
        for a in every
        if a.index and isinstance(last := a.index[-1], Slice)
    )


__all__ = ["AT_ONCE", "behind_the_head", "end_of", "has_its_end", "head_of", "is_tile", "steps_of"]
