"""Extrema whose place a backward graph looks for: both graphs have to compute their elements with the same bits.

The gradient of `amax(f(x))` goes to the elements that equal the maximum.  The forward graph keeps the maximum, and the
backward graph computes f(x) again.  A kernel rounds otherwise than torch or another kernel: it may move a maximum by a
repair, or multiply by the inverse of a divisor.  Then no element is equal, and the gradient is 0 / 0.
"""

from __future__ import annotations

from math import inf

import torch

from neptune_lab.torch_regions.families import Family, family_of, name_of
from neptune_lab.torch_regions.tensors import elements_of, tensor_of

Node = torch.fx.Node

# Operations that round nothing, so that every kernel has the same result.
_EXACT = ("abs", "neg", "relu", "where", "masked_fill", "maximum", "minimum", "clamp", "clamp_min", "clamp_max")


def compared(graph: torch.fx.Graph) -> set[Node]:
    """What torch has to compute, so that extrema are equal to elements.

    Args:
        graph: the forward or the backward graph of what records gradients.

    Returns:
        The extrema that are given, or in the backward graph the comparisons with them; and the elementwise operations
        behind them, if one of these rounds or a reduction of the graph is among what they read.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        if (_is_extremum(node) and _is_given(node)) or _finds_extremum(node):
            elements, exact = _elements(node)
            if not exact:
                found |= {node, *elements}
    return found


def _is_extremum(node: Node) -> bool:
    name = name_of(node)
    whole = name in ("max", "min") and len(node.args) == 1
    return name in ("amax", "amin") or whole or (name == "linalg_vector_norm" and inf in map(_size, node.args[1:2]))


def _size(order: object) -> float:
    return abs(order) if isinstance(order, int | float) else 0.0


def _is_given(node: Node) -> bool:
    """Whether the graph gives the node's values, perhaps viewed."""
    return any(u.op == "output" or (family_of(u) is Family.VIEW and _is_given(u)) for u in node.users)


def _finds_extremum(node: Node) -> bool:
    """Whether elements are compared with an input of the graph that has fewer of them."""
    value = tensor_of(node.all_input_nodes[0]) if node.all_input_nodes else None
    if name_of(node) != "eq" or len(node.all_input_nodes) != 2 or value is None or not value.is_floating_point():
        return False
    few, many = sorted(node.all_input_nodes, key=elements_of)
    while family_of(few) is Family.VIEW:
        few = few.all_input_nodes[0]
    return few.op == "placeholder" and elements_of(few) < elements_of(many)


def _elements(node: Node) -> tuple[set[Node], bool]:
    """The elementwise operations and views behind what a node reads, and whether they round nothing that is read."""
    found, waiting, exact = set[Node](), [*node.all_input_nodes], True
    while waiting:
        source = waiting.pop()
        family = family_of(source)
        if source in found or family is Family.INPUT:
            continue
        if family not in (Family.POINTWISE, Family.VIEW, Family.MOVE, Family.CREATION):
            exact = False
            continue
        exact = exact and (family is not Family.POINTWISE or name_of(source) in _EXACT)
        found.add(source)
        waiting += source.all_input_nodes
    return found, exact


__all__ = ["compared"]
