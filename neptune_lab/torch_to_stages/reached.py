"""What a traced function can write to without an operation on a tensor: attributes, dicts, globals, closures.

A trace's own tensors that are left there would be what the next call reads, so these places can be restored.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch

_LRU = type(functools.lru_cache(lambda: None))
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
# Libraries whose objects, functions and modules hold no state of the user.
_LIBRARIES = (sys.stdlib_module_names | {"torch", "numpy", "triton", "sympy", "tvm", "neptune_lab"}) - {
    *("__main__", "builtins", "types", "argparse", "collections", "functools")
}
_ABSENT: Any = object()


@dataclass(frozen=True, eq=False)
class Place:
    """A dict, list, set, closure cell, class, object with slots or cache of calls, with what it held before.

    Args:
        holder: the object.
        name: how the function calls it, such as "model.layers"; "" for the function itself.
        before: its content by key.
        names: the keys that count; None: all of them.
        holds_buffers: whether it is a module's dict of buffers.
    """

    holder: Any
    name: str
    before: dict[Any, Any]
    names: frozenset[str] | None
    holds_buffers: bool

    def changed(self) -> dict[Any, Any]:
        """The entries that are new, or other objects than before."""
        now = _content(self.holder, self.names)
        if isinstance(self.holder, _LRU):
            return {} if now == self.before else now
        return {key: value for key, value in now.items() if self.before.get(key, _ABSENT) is not value}

    def restore(self, key: Any) -> None:
        """Puts back what an entry was."""
        holder, was = self.holder, self.before.get(key, _ABSENT)
        if isinstance(holder, dict):
            dict.pop(holder, key, None) if was is _ABSENT else dict.__setitem__(holder, key, was)
        elif isinstance(holder, list | deque):
            holder.clear()
            holder.extend(self.before.values())
        elif isinstance(holder, set):
            holder.clear()
            holder.update(self.before.values())
        elif isinstance(holder, _LRU):
            holder.cache_clear()
        elif was is _ABSENT:
            delattr(holder, key)
        else:
            setattr(holder, key, was)

    def name_of(self, key: Any) -> str:
        """How the function calls an entry."""
        return self.name if isinstance(self.holder, CellType) else _joined(self.name, self.holder, key)


def places_of(function: Any) -> list[Place]:
    """The places that are reached from a function, with their content."""
    return _walked(function)[0]


def _walked(root: Any) -> tuple[list[Place], list[torch.Tensor]]:
    """The places and the tensors that are reached from an object."""
    found: list[Place] = []
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, str, bool]] = [(root, "", False)]
    while waiting:
        value, name, buffers = waiting.pop()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        for holder, names, named in _holders(value, name):
            content = _content(holder, names)
            place = Place(holder, named, content, names, buffers)
            found.append(place)
            waiting += [
                (held, place.name_of(key), key == "_buffers" and isinstance(value, torch.nn.Module))
                for key, held in content.items()
                if not isinstance(held, _ATOMS)
            ]
        waiting += [(held, named, False) for held, named in _parts(value, name)]
    return found, tensors


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an object, at any depth."""
    return [] if isinstance(value, _ATOMS) else _walked(value)[1]


def _holders(value: Any, name: str) -> Iterator[tuple[Any, frozenset[str] | None, str]]:
    """The places of an object itself: what holds them, which keys count, and their name."""
    if isinstance(value, dict | list | deque | set | _LRU):
        yield value, None, name
    if isinstance(value, FunctionType):
        if _is_of_library(value.__module__):
            return
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield cell, None, variable
        names = frozenset(_names_in(value.__code__))
        yield value.__globals__, names, ""
        for used in names:
            module = value.__globals__.get(used)
            if isinstance(module, ModuleType) and not _is_of_library(module.__name__):
                yield vars(module), names, used
        return
    if isinstance(value, type):
        if not _is_of_library(value.__module__):
            yield value, None, value.__name__
        return
    if isinstance(value, ModuleType | MethodType) or (
        _is_of_library(type(value).__module__) and not isinstance(value, torch.nn.Module)
    ):
        return
    if isinstance(own := getattr(value, "__dict__", None), dict):
        yield own, None, name
    if _slots(value):
        yield value, None, name


def _parts(value: Any, name: str) -> Iterator[tuple[Any, str]]:
    """What an object keeps and cannot exchange."""
    if isinstance(value, tuple | frozenset):
        yield from ((held, f"{name}[{i}]") for i, held in enumerate(value))
    elif isinstance(value, MethodType):
        yield from ((value.__self__, name), (value.__func__, name))
    elif isinstance(value, functools.partial):
        yield from ((value.func, name), (value.args, name), (value.keywords, name))
    elif isinstance(value, _LRU):
        yield value.__wrapped__, name
    elif isinstance(value, FunctionType):
        yield from ((held, name) for held in (value.__defaults__, value.__kwdefaults__))
    elif isinstance(value, type):
        yield from ((base, base.__name__) for base in value.__mro__)
    elif not isinstance(value, ModuleType):
        yield type(value), type(value).__name__  # its methods may read globals, and write to the class


def _content(holder: Any, names: frozenset[str] | None) -> dict[Any, Any]:
    if isinstance(holder, dict):
        return {k: v for k, v in dict.items(holder) if names is None or k in names}
    if isinstance(holder, list | deque):
        return dict(enumerate(holder))
    if isinstance(holder, set):
        return {id(value): value for value in holder}
    if isinstance(holder, _LRU):
        return {"calls": holder.cache_info().misses}
    if isinstance(holder, CellType):
        try:
            return {"cell_contents": holder.cell_contents}
        except ValueError:  # it has no value yet
            return {}
    if isinstance(holder, type):
        return {k: v for k, v in vars(holder).items() if k not in ("__dict__", "__weakref__", "__doc__")}
    return {n: held for n in _slots(holder) if (held := getattr(holder, n, _ABSENT)) is not _ABSENT}


def _slots(value: Any) -> list[str]:
    """The names of an object's slots; classes of C have other members, which are read-only."""
    classes = [c for c in type(value).__mro__ if "__slots__" in vars(c)]
    return [n for c in classes for n, member in vars(c).items() if isinstance(member, MemberDescriptorType)]


def _names_in(code: CodeType) -> Iterator[str]:
    """The globals and attributes that a function's code names, and that of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _joined(name: str, holder: Any, key: Any) -> str:
    if key in ("_buffers", "_parameters", "_modules"):
        return name
    if not isinstance(key, str):
        return name if isinstance(holder, set) else f"{name}[{key!r}]"
    return f"{name}.{key}" if name else key


def _is_of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


__all__ = ["Place", "places_of", "tensors_in"]
