"""Sizes of the tensors that a graph's nodes give, from their fake values."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch.utils import _pytree as pytree

from neptune_lab.torch_regions.families import Family, family_of, is_getitem


def tensor_of(node: torch.fx.Node) -> torch.Tensor | None:
    """The fake tensor that a node gives; None if it gives none, or several."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """The fake tensors that a node gives."""
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def is_static(node: torch.fx.Node) -> bool:
    """Whether the shapes and strides of all that a node gives are numbers."""
    numbers = (n for t in tensors_of(node) for n in (*t.shape, *t.stride(), t.storage_offset()))
    return all(isinstance(n, int) for n in numbers)


def elements_of(node: torch.fx.Node) -> int:
    """Elements of the largest tensor that a node gives; 0 if there is none, or its shape is not known."""
    return max((prod(t.shape) for t in tensors_of(node)), default=0) if is_static(node) else 0


def bytes_of(node: torch.fx.Node) -> int:
    """Bytes of the tensors that a node gives."""
    return sum(prod(t.shape) * t.element_size() for t in tensors_of(node)) if is_static(node) else 0


def bytes_read(node: torch.fx.Node) -> int:
    """Bytes that an operation reads of an input once: of an expanded view those of the tensor, of a part the part's."""
    least = bytes_of(node)
    while family_of(node) is Family.VIEW and node.all_input_nodes:
        node = node.all_input_nodes[0]
        least = min(least, bytes_of(node) or least)
    return least


def memory_order(node: torch.fx.Node) -> tuple[int, ...]:
    """The dimensions of the tensor that a node gives, in the order in which they are in memory.

    Args:
        node: one that gives a tensor.

    Returns:
        A permutation after which the tensor is contiguous; the identity if there is none.
    """
    value = tensor_of(node)
    assert value is not None, node
    plain = tuple(range(value.ndim))
    if value.is_contiguous():
        return plain
    order = tuple(sorted(plain, key=lambda d: (-value.stride(d), value.shape[d] == 1, d)))
    return order if value.permute(order).is_contiguous() else plain


def is_dense(node: torch.fx.Node) -> bool:
    """Whether a node gives a tensor that is contiguous once its dimensions are permuted."""
    value = tensor_of(node)
    return value is not None and is_static(node) and value.permute(memory_order(node)).is_contiguous()


def traffic_apart(nodes: Iterable[torch.fx.Node]) -> int:
    """Bytes that operations move if each is a kernel of its own: it reads its inputs, and writes its results.

    Args:
        nodes: of a graph of ATen operations; views, and tensors made without data, move nothing.

    Returns:
        The sum over the operations.
    """
    total = 0
    for node in nodes:
        if is_getitem(node) or family_of(node) in (Family.VIEW, Family.CREATION, Family.INPUT):
            continue
        read = sum(bytes_read(source) for source in node.all_input_nodes)
        users = [u for u in node.users if is_getitem(u)]
        total += read + (sum(bytes_of(u) for u in users) if users else bytes_of(node))
    return total
