"""Marks where a traced function stops gradients: `detach`, `.data` and `torch.no_grad`, which a graph does not show.

    y = x.detach()    ⇒    y = stop_gradient(x)

The operation gives a copy, so a function that writes to the memory of what was detached is traced without marks, as is
one that writes while nothing is recorded: `gradient_stops` refuses their gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_GRAD_MODES = sys.modules[torch.no_grad.__module__].__file__
_SWITCHING = ("__init__", "__enter__", "__exit__", "__call__")
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
DETACHING = (torch.Tensor.detach, torch.detach, _DATA)
# What gives another tensor than its operand by methods that look as if they wrote in place.
_NOT_WRITING = frozenset({"requires_grad_"})


@torch.library.custom_op("neptune_lab_marks::stop_gradient", mutates_args=())
def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """The tensor, as a constant for derivatives."""
    return x.clone()


@stop_gradient.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class UsersMode:
    """Whether the traced function itself asks torch to record gradients.

    The function is traced where nothing is recorded, so torch's own switch does not tell.
    """

    def __init__(self) -> None:
        self.records = True
        self._before: dict[int, tuple[Any, bool]] = {}

    def noted(self, func: Any, args: Any) -> bool:
        """Follows a call that switches recording; False for another call."""
        if getattr(func, "__name__", "") != "_set_grad_enabled":
            return False
        frame, switch = sys._getframe(1), None
        while frame is not None and frame.f_code.co_name == "__torch_function__":
            frame = frame.f_back  # of this mode and of those entered later
        while frame is not None and frame.f_code.co_filename == _GRAD_MODES:
            # torch.no_grad and the like; the last is what the function called.
            frame, switch = frame.f_back, frame if frame.f_code.co_name in _SWITCHING else switch
        owner = None if switch is None else switch.f_locals.get("self")
        if switch is not None and switch.f_code.co_name in ("__exit__", "__call__"):
            _, self.records = self._before.pop(id(owner), (owner, bool(args[0])))
        else:
            if owner is not None:
                self._before.setdefault(id(owner), (owner, self.records))
            self.records = bool(args[0])
        return True


class MarkedStops(TorchFunctionMode):
    """While it is active, floats whose gradient stops become results of `stop_gradient`.

    Args:
        marks: whether they do; otherwise it only watches.
    """

    def __init__(self, marks: bool) -> None:
        super().__init__()
        self.marks = marks
        self.restart()

    def restart(self) -> MarkedStops:
        """The mode, for another run of the function."""
        self._stops = self._lost = False
        self._users = UsersMode()
        self._copied: set[StorageWeakRef | None] = set()
        return self

    @property
    def is_wrong(self) -> bool:
        """Whether marks may have kept a write from a tensor that it is meant for, or do not tell of a write."""
        return self.marks and self._stops and self._lost

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func`, and marks its results if their gradient stops."""
        kwargs = kwargs or {}
        out = (torch.Tensor.detach if func == _DATA else func)(*args, **kwargs)
        if self._users.noted(func, args):
            return out
        if writes_in_place(func, kwargs):
            # Formal statement: outside of the tensors whose memory a mark copied, each tensor has the values that it
            # has without marks, and a write that is recorded reads marks where it reads what is stopped.
            self._lost |= not self._users.records or not self._copied.isdisjoint(_written(args, kwargs))
        if func is torch.Tensor.detach_:
            self._stops = self._lost = True
        if self._users.records and func not in DETACHING:
            return out
        known = memory_of((args, kwargs))
        return pytree.tree_map_only(torch.Tensor, lambda tensor: self._marked(tensor, known), out)

    def _marked(self, tensor: torch.Tensor, known: set[StorageWeakRef | None]) -> torch.Tensor:
        """The tensor with a mark; `known` is memory that other tensors have too."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        self._stops = True
        if not self.marks:
            return tensor
        copy = stop_gradient(tensor)
        if known & (own := memory_of(tensor)):
            self._copied |= own | memory_of(copy)
        return copy


def writes_in_place(func: Any, kwargs: Any) -> bool:
    """Whether a function of torch may change one of its operands."""
    name = getattr(func, "__name__", "")
    own = name.endswith("_") and not name.endswith("__") and name not in _NOT_WRITING
    return own or name in _WRITING or kwargs.get("out") is not None or bool(kwargs.get("inplace"))


def _written(args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[StorageWeakRef | None]:
    """The memory that a function which writes in place may change: that of its first argument and of `out`."""
    return memory_of((args[0] if args else kwargs, kwargs.get("out")))


def memory_of(tensors: Any) -> set[StorageWeakRef | None]:
    """The memory of tensors; None for that of one that does not say, such as inside vmap."""
    found: set[StorageWeakRef | None] = set()
    for tensor in pytree.tree_leaves(tensors):
        if isinstance(tensor, torch.Tensor):
            try:
                found.add(StorageWeakRef(tensor.untyped_storage()))
            except (NotImplementedError, RuntimeError):
                found.add(None)
    return found


_WRITING = frozenset(
    {"__setitem__", "__set__", "copysign_", *(f"__i{n}__" for n in ("add", "sub", "mul", "truediv", "floordiv", "mod"))}
    | {f"__i{n}__" for n in ("pow", "and", "or", "xor", "lshift", "rshift", "matmul")}
)

__all__ = ["DETACHING", "MarkedStops", "UsersMode", "memory_of", "stop_gradient", "writes_in_place"]
