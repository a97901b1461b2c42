"""Refuses writes of a traced function to tensors from outside: of its closure, of globals, of an object's attributes.

torch's exporter does some of these writes before it refuses them, and loses those through `detach` and `.data`.  It
loses `x.data = y` of every tensor, and a buffer's new value (`self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from neptune_lab.torch_to_stages.lines import line_of_node
from neptune_lab.torch_to_stages.marked_stops import DETACHING, memory_of, writes_in_place
from neptune_lab.torch_to_stages.refusals import refusal

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
# What looks as if it wrote elements.
_SETTING = tuple(getattr(torch.Tensor, name).__set__ for name in ("grad", "requires_grad"))


class OutsideWrite(Exception):
    """What the function does that the exporter would lose; the traceback has the line."""


class OutsideWrites(TorchFunctionMode):
    """While it is active, a write to a tensor from outside, or to what `detach` gives of one, raises OutsideWrite."""

    def __init__(self) -> None:
        super().__init__()
        self._detached: set[StorageWeakRef | None] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func`, unless it writes outside."""
        kwargs = kwargs or {}
        operand = args[0] if args else None
        if func == _SET_DATA:
            raise OutsideWrite("sets the .data of a tensor")
        if func not in _SETTING and writes_in_place(func, kwargs) and self._has_outside((operand, kwargs.get("out"))):
            raise OutsideWrite("writes to a tensor that is no argument")
        out = func(*args, **kwargs)
        if func in DETACHING and self._has_outside(operand):
            self._detached |= memory_of(out)
        return out

    def _has_outside(self, operands: Any) -> bool:
        tensors = [t for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]
        return any(_is_real(t) for t in tensors) or bool(self._detached & (memory_of(tensors) - {None}))


def _is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values: the trace's own tensors are fake, or wrapped by a transform."""
    wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not wrapped(tensor)


def buffers_of(function: Any) -> dict[str, torch.Tensor]:
    """The buffers of a function that is a module."""
    return dict(function.named_buffers()) if isinstance(function, torch.nn.Module) else {}


def refuse_new_buffers(function: Any, before: Mapping[str, torch.Tensor], args: Any) -> None:
    """Raise DefinitionError if a module has another tensor as a buffer, which the next call would read.

    One that is made of neither the arguments nor what it was, such as a table of positions, is the same at each call.
    """
    mode = get_proxy_mode()
    for name, now in buffers_of(function).items() if mode is not None else ():
        if name not in before or now is before[name]:
            continue
        made, *given = (_node_of(tensor, mode) for tensor in (now, before[name], *pytree.tree_leaves(args)))
        reached, waiting = {None}, [made]
        while waiting:
            if (node := waiting.pop()) not in reached:
                reached.add(node)
                waiting += node.all_input_nodes
        if (reached - {None}).intersection(given):
            help = "call .eval() on the module, or return the value, and give it as an argument"
            raise refusal(f"the module gives its buffer {name!r} a new value", line_of_node(made), help)


def _node_of(tensor: Any, mode: Any) -> Any:
    """The node of the graph that is traced which made a tensor; None if there is none."""
    slot = get_proxy_slot(tensor, mode.tracer, None) if isinstance(tensor, torch.Tensor) else None
    return None if slot is None else slot.proxy.node


__all__ = ["OutsideWrite", "OutsideWrites", "buffers_of", "refuse_new_buffers"]
