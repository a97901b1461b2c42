"""Refuses functions whose next call would read what a call leaves behind, and restores what a trace left.

    self.mean = 0.9 * self.mean + 0.1 * x.mean(0)    refused
    self.cos = self.cos.to(x.dtype)                  taken, and restored: the next call computes the same

A kernel computes what the first call computes.  Whether another one would differ is seen by a second call in the same
trace, whose nodes are removed, since no result needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils import _pytree as pytree

from neptune_lab.torch_to_stages.lines import line_of_node
from neptune_lab.torch_to_stages.outside_writes import is_real
from neptune_lab.torch_to_stages.reached import Place, places_of, tensors_in
from neptune_lab.torch_to_stages.refusals import OF_STATE, refusal

# Operations that give the elements of their first operand in their order, perhaps in another shape or dtype.
_KEEPING = frozenset(
    (
        *("to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach", "slice", "narrow"),
        *("view", "reshape", "_unsafe_view", "expand", "flatten", "squeeze", "unsqueeze"),
    )
)
# Operations that read shapes and dtypes only.
_SHAPES = frozenset(f"{n}_like" for n in ("empty", "zeros", "ones", "full", "rand", "randn")) | frozenset(
    f"new_{n}" for n in ("empty", "zeros", "ones", "full", "empty_strided")
)


class KeptState:
    """Restores, at its end, what a function left of a trace's tensors in places that it reaches."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._places: list[Place] = []

    def __enter__(self) -> KeptState:
        self._places = places_of(self._function)
        return self

    def __exit__(self, *_: object) -> None:
        if self._left():
            # All of them, since what is no tensor may say what the tensors are, such as a table's length.
            for place in self._places:
                for key in place.changed():
                    place.restore(key)

    def check(self, args: tuple[Any, ...]) -> None:
        """Raise DefinitionError if a next call would read what this one computed of its arguments or of what it read.

        Call it after the function, where the trace is recorded.
        """
        mode = get_proxy_mode()
        left = self._left() if mode is not None else []
        first = {(id(p), k): _nodes(tensors_in(p.changed()[k]), mode) for p, k in left}
        if not any(first.values()):
            return
        given = _nodes(pytree.tree_leaves(args), mode)
        others = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, args)
        copies = _nodes(pytree.tree_leaves(others), mode)
        results = _nodes(pytree.tree_leaves(self._function(*others)), mode)
        read = _reached(results, copies)
        for place, key in left:
            made = first[id(place), key]
            again = _nodes(tensors_in(place.changed().get(key)), mode) - made
            # Formal statement: a call gives the value that the call before gave if that depends on no argument, and
            # this call reads nothing of it, or no more than its elements in their order.
            follows = bool(_reached(made, set()) & given) or any(_differs(node, made) for node in again)
            if follows and (place.holds_buffers or read & made):
                kind = "buffer" if place.holds_buffers else "value"
                what = f"a call gives the {kind} {place.name_of(key)!r} a new value, which the next call reads"
                # (an argument itself has no line, but what reads it has)
                lines = [line_of_node(node) for node in (*made, *(n for n in read if made & {*n.all_input_nodes}))]
                raise refusal(what, next((line for line in lines if line is not None), None), OF_STATE)

    def _left(self) -> list[tuple[Place, Any]]:
        """Where the trace's tensors are now, in places that held something else."""
        return [(p, key) for p in self._places for key, value in p.changed().items() if _holds_trace(p, value)]


def _holds_trace(place: Place, value: Any) -> bool:
    # (a cache of calls does not show its values)
    return list(place.before) == ["calls"] or any(not is_real(tensor) for tensor in tensors_in(value))


def _differs(node: Any, old: set[Any]) -> bool:
    """Whether a node is computed of others, and is not the same elements in the same shape and dtype."""
    if not _reached({node}, set()) & old:
        return False
    like = _kind(node)
    while node not in old:
        name = getattr(node.target, "_opname", "")
        if name not in _KEEPING:
            return True
        source = node.all_input_nodes[0]
        if name in ("slice", "narrow", "expand") and _kind(source)[0] != _kind(node)[0]:
            return True
        node = source
    return _kind(node) != like


def _kind(node: Any) -> tuple[Any, Any]:
    """The shape and dtype of a node."""
    value = node.meta.get("val")
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else (None, None)


def _reached(nodes: set[Any], ends: set[Any]) -> set[Any]:
    """The nodes that others are computed of, with themselves; not what `ends` are computed of."""
    found, waiting = set(), list(nodes)
    while waiting:
        if (node := waiting.pop()) not in found and node not in ends:
            found.add(node)
            waiting += () if getattr(node.target, "_opname", "") in _SHAPES else node.all_input_nodes
    return found


def _nodes(tensors: Iterable[Any], mode: Any) -> set[Any]:
    """The nodes of the graph that is traced which made tensors."""
    slots = [get_proxy_slot(t, mode.tracer, None) for t in tensors if isinstance(t, torch.Tensor)]
    return {slot.proxy.node for slot in slots if slot is not None}


__all__ = ["KeptState"]
