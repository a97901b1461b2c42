"""Finds the inputs of a traced function whose integers are positions or labels, with the range that PyTorch takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from neptune_lab.operators.index_limits import IndexLimits
from neptune_lab.torch_to_stages.graph import Graph
from neptune_lab.torch_to_stages.lines import line_of_node
from neptune_lab.torch_to_stages.refusals import refusal

# Operations whose result has all elements of the operand, and no others.
_SAME_ELEMENTS = frozenset(
    {"view", "_unsafe_view", "reshape", "flatten", "unsqueeze", "squeeze", "permute", "transpose", "t", "expand"}
    | {"clone", "contiguous", "alias", "detach", "_to_copy", "lift_fresh_copy"}
)
# Operations that write at positions of a dimension, their second argument.
_WRITTEN = frozenset({"scatter", "scatter_add", "scatter_reduce", "index_add", "index_reduce"})
# The place of ignore_index among the arguments of a loss.
_IGNORED = {"cross_entropy_loss": 4, "nll_loss_nd": 4}


def index_limits(graph: Graph) -> tuple[IndexLimits, ...]:
    """The range of each input that is read as positions or labels as it is; what is computed of one has none.

    Args:
        graph: of a function, at sizes that are numbers.
    """
    found: dict[IndexLimits, None] = {}
    for node, name, low, high, besides in _taken_as_they_are(graph):
        if name in graph.inputs:
            place, line = graph.inputs.index(name), line_of_node(node)
            found[IndexLimits(place, name, low, high, besides, "" if line is None else str(line))] = None
    return tuple(found)


def check_held_indices(graph: Graph) -> None:
    """Raise DefinitionError for a position or a label out of range in a tensor that the function holds.

    Args:
        graph: of a function, at sizes that are numbers.
    """
    for node, name, low, high, besides in _taken_as_they_are(graph):
        held = graph.held.get(name)
        if held is None or held.device.type != "cpu" or isinstance(held, FakeTensor):
            continue
        wrong = (held < low) | (held > high)
        if besides is not None:
            wrong &= held != besides
        if wrong.any():
            also = "" if besides is None else f", or {besides}"
            raise refusal(
                f"the function's indices hold {held[wrong][0].item()}; expected integers from {low} to {high}{also}",
                line_of_node(node),
                "PyTorch refuses such an index too, when it runs",
            )


def _taken_as_they_are(graph: Graph) -> Iterator[tuple[torch.fx.Node, str, int, int, int | None]]:
    """What nodes read as positions or labels: the node, the tensor's name, the range, the label that is ignored."""
    nodes = [n for n in graph.module.graph.nodes if n.op == "placeholder" and _tensor(n) is not None]
    names = dict(zip(nodes, graph.placeholders, strict=True))
    for node in graph.module.graph.nodes:
        for index, low, high, besides in _taken(node):
            source = _source(index)
            if source in names:
                yield node, names[source], low, high, besides


def _taken(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int, int, int | None]]:
    """What a node reads as positions or labels: the node that gives them, the range, and the label that is ignored."""
    name, args = str(getattr(node.target, "_opname", "")), node.args
    if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
        yield _node(args[1]), 0, _size(args[0], 0) - 1, None
    elif name in ("index_select", "gather") or name in _WRITTEN:
        yield _node(args[2]), 0, _size(args[0], args[1]) - 1, None
    elif name in ("index", "index_put", "_unsafe_index_put"):
        for dim, index in enumerate(args[1]):  # type: ignore[arg-type]
            if index is not None and not _is_mask(index):
                yield _node(index), -_size(args[0], dim), _size(args[0], dim) - 1, None
    elif name in _IGNORED:
        place, dims = _IGNORED[name], len(_shape(args[0]))
        besides: Any = args[place] if len(args) > place else node.kwargs.get("ignore_index", -100)
        yield _node(args[1]), 0, _size(args[0], min(dims - 1, 1)) - 1, besides


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """The node that a tensor has its elements from."""
    while str(getattr(node.target, "_opname", "")) in _SAME_ELEMENTS and _keeps_integers(node):
        node = _node(node.args[0])
    return node


def _keeps_integers(node: torch.fx.Node) -> bool:
    """Whether a node gives the integers of its operand: a conversion of floats rounds them."""
    made, given = _tensor(node), _tensor(node.args[0])
    whole = made is not None and made.dtype in (torch.int32, torch.int64)
    return whole and given is not None and not given.dtype.is_floating_point


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_mask(index: Any) -> bool:
    tensor = _tensor(index)
    return tensor is not None and tensor.dtype == torch.bool


def _node(value: Any) -> torch.fx.Node:
    assert isinstance(value, torch.fx.Node)
    return value


def _shape(value: Any) -> tuple[int, ...]:
    tensor = _tensor(_node(value))
    assert tensor is not None
    return tuple(tensor.shape)


def _size(value: Any, dim: Any) -> int:
    shape = _shape(value)
    return shape[dim] if shape else 1


__all__ = ["check_held_indices", "index_limits"]
