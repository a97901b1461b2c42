"""Refuses writes of a traced function to tensors from outside: of its closure, of globals, of an object's attributes.

torch's exporter does some of these writes before it refuses them, and loses those through `detach` and `.data`.  It
loses `x.data = y` and `x.grad = y` of every tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from neptune_lab.torch_to_stages.marked_stops import DETACHING, memory_of, writes_in_place
from neptune_lab.torch_to_stages.refusals import OF_GRAD, OF_WRITE

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
# What looks as if it wrote elements.
_SET_GRAD = torch.Tensor.grad.__set__  # type: ignore[attr-defined]
_SETTING = (_SET_GRAD, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


class OutsideWrite(Exception):
    """What the function does that the exporter would lose; the traceback has the line.

    Args:
        what: the words after the function's name.
        help: what to write instead.
    """

    def __init__(self, what: str, help: str) -> None:
        super().__init__(what)
        self.help = help


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
            raise OutsideWrite("sets the .data of a tensor", OF_WRITE)
        if func == _SET_GRAD and args[1] is not None:
            raise OutsideWrite("sets the .grad of a tensor", OF_GRAD)
        if func not in _SETTING and writes_in_place(func, kwargs) and self._has_outside((operand, kwargs.get("out"))):
            raise OutsideWrite("writes to a tensor that is no argument", OF_WRITE)
        out = func(*args, **kwargs)
        if func in DETACHING and self._has_outside(operand):
            self._detached |= memory_of(out)
        return out

    def _has_outside(self, operands: Any) -> bool:
        tensors = [t for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]
        return any(is_real(t) for t in tensors) or bool(self._detached & (memory_of(tensors) - {None}))


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values: the trace's own tensors are fake, or wrapped by a transform."""
    wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not wrapped(tensor)


__all__ = ["OutsideWrite", "OutsideWrites", "is_real"]
