"""The state of simple mods, read in a microsecond: what tells a mod from others at a call, as `mods.read` does.

`read` visits everything that a mod may reach.  Most mods are functions over a few numbers and tensors, in closures,
defaults or globals.  `state_of` reads those, and nothing else: for any other mod it returns None, and the caller has to
`read`.  Two mods of equal states, whose tensors have equal shapes, have equal readings.

    >>> def make(width):
    ...     return lambda b, h, q, kv: q - kv < width
    >>> state_of(make(3), []) == state_of(make(3), []), state_of(make(3), []) == state_of(make(4), [])
    (True, False)
"""

from __future__ import annotations

import builtins
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from neptune_lab.operators.reach import is_library
from neptune_lab.pytorch.mods import belongs, code_of

# Numbers and texts that are equal only if they are the same; a float is not (0.0 and -0.0).
_EXACT = frozenset({bool, int, str, bytes, type(None)})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_NAMES = frozenset({torch.dtype, torch.device})
# Functions inside functions that are followed.
_DEEPEST = 4
_BUILTINS = dict(vars(builtins))
_MISSING = object()

# By module and name: the attributes of libraries that were found to be the library's own.
_own: dict[tuple[str, str], Any] = {}


class States(NamedTuple):
    """The states of the mods of a call.

    Args:
        score, mask: of each; "" without a mod, None if it is not simple.
        tensors: that the mods read, each once.
        own: how many of these, the first ones, the call has made for them, as kernels take them; their shapes follow
            from those of q and k.
    """

    score: Any
    mask: Any
    tensors: list[torch.Tensor]
    own: int = 0


def states_of(score_mod: Any, mask_mod: Any) -> States:
    """The states of these mods, functions or None."""
    tensors: list[torch.Tensor] = []
    return States(state_of(score_mod, tensors), state_of(mask_mod, tensors), tensors)


def state_of(mod: Any, tensors: list[torch.Tensor], depth: int = 0) -> Any:
    """The state of a mod; None if it is not simple.

    Args:
        mod: a function, or None.
        tensors: of other mods of the call; those of this one are appended, each once.  Their shapes are not in the
            state.
        depth: of functions around this one.
    """
    if mod is None:
        return ""
    if type(mod) is not FunctionType or mod.__kwdefaults__ or mod.__dict__:
        return None
    code = code_of(mod.__code__)
    if code.closed and not mod.__defaults__:
        return code.digest
    # (the globals of a library's function are the library's, unless it is an example in a docstring)
    library = bool(code.global_names or not code.seen) and is_library(mod.__module__)
    library = library and not mod.__code__.co_filename.startswith("<doctest ")
    if depth > _DEEPEST or not (code.seen or library):
        return None
    found: list[Any] = [code.digest]
    try:
        for cell in mod.__closure__ or ():
            found.append(_value(cell.cell_contents, tensors, depth))
        if mod.__defaults__:
            found.append(_items(mod.__defaults__, tensors, depth))
    except ValueError:  # a variable that is not assigned yet
        return None
    modules = False
    if code.global_names and not library:
        names = mod.__globals__
        for name in code.global_names:
            value = names.get(name, _MISSING)
            if value is _MISSING:  # a builtin
                found.append("" if getattr(builtins, name, None) is _BUILTINS.get(name) else None)
            elif type(value) is ModuleType:
                if not modules:
                    found.append(torch.get_default_dtype())
                modules = True
                found.append(_module(value, code.attribute_names))
            else:
                found.append(_value(value, tensors, depth))
    if None in found or (modules and (depth or _has_functions(mod))):
        return None
    return tuple(found)


def _has_functions(mod: FunctionType) -> bool:
    """Whether a mod calls functions of its own: they may read other attributes of a module that they get."""
    values = [cell.cell_contents for cell in mod.__closure__ or ()]
    values += [*(mod.__defaults__ or ()), *(mod.__globals__.get(name) for name in code_of(mod.__code__).global_names)]
    return any(type(value) in (FunctionType, tuple) for value in values)


def _value(value: Any, tensors: list[torch.Tensor], depth: int) -> Any:
    kind = type(value)
    if kind in _EXACT:
        return kind, value
    if kind in _TENSORS:
        if value.__dict__:  # attributes that were set on it, which a mod may read
            return None
        index = 0
        for other in tensors:
            if other is value:
                break
            index += 1
        else:
            tensors.append(value)
        return "tensor", index, value.ndim, value.dtype
    if kind is float:
        return kind, repr(value)
    if kind is FunctionType:
        return state_of(value, tensors, depth + 1)
    if kind is tuple:
        return _items(value, tensors, depth + 1)
    if kind in _NAMES:
        return kind, value
    return None


def _items(values: tuple[Any, ...], tensors: list[torch.Tensor], depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    found = [_value(value, tensors, depth) for value in values]
    return None if None in found else tuple(found)


def _module(module: ModuleType, names: tuple[str, ...], seen: tuple[ModuleType, ...] = ()) -> Any:
    """The state of a library's module, of which a mod may read attributes of these names: those are the library's own
    functions and modules, or it is not simple."""
    home = module.__name__
    if not is_library(home):
        return None
    for name in names:
        value = getattr(module, name, _MISSING)
        if value is _MISSING or value is module or _own.get((home, name), _MISSING) is value:
            continue
        if type(value) is ModuleType:
            if value not in seen and _module(value, names, (*seen, module)) is None:
                return None
        elif belongs(module, value):
            _own[home, name] = value
        else:
            return None
    return home


__all__ = ["States", "state_of", "states_of"]
