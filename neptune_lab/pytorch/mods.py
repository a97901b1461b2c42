"""What a mod is made of: enough to know, at every call, whether a kernel that was compiled for it still fits.

A mod is its code and the values that it sees (its closure, its defaults, the module's names that it reads, and so on
through the functions that it calls).  Equal codes over equal values define the same thing, so they share a kernel.
Tensors count by shape and dtype: their values are inputs of the kernel, read anew at each call.

    >>> def make(width):
    ...     return lambda b, h, q, kv: q - kv < width
    >>> read(make(3)).key == read(make(3)).key, read(make(3)).key == read(make(4)).key
    (True, False)

An object that Python code can change without a trace (an instance of a class, say) leaves `exact` false: then only the
traced definition tells whether two calls mean the same.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

# Libraries whose functions are known by their names alone; what a function of theirs holds in a closure still counts.
_LIBRARIES = frozenset({"torch", "numpy", "math", "operator", "builtins", "_operator", "neptune_lab"})
_NOTHING = ("none",)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))

# How to come from a mod to a value in it, a step at a time: ("cell", 0), ("global", "slopes"), ("item", 2), ...
Path: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A mod, or several, as they are at this moment.

    Args:
        key: nested tuples of texts and numbers; equal keys define the same thing where `exact`.
        tensors: the tensors and arrays with axes that the mods reach, each once, in a fixed order.
        paths: where each of them was found.
        numbers: (path, value) for each number or text that the mods reach.
        scalars: paths of tensors without axes and of NumPy's numbers: they count by value.
        exact: whether `key` tells all.
    """

    key: Any
    tensors: tuple[Any, ...] = ()
    paths: tuple[Path, ...] = ()
    numbers: tuple[tuple[Path, Any], ...] = ()
    scalars: tuple[Path, ...] = ()
    exact: bool = True


def read(*mods: Any) -> Reading:
    """What `mods` are made of, functions, partials or None; a path begins with the mod's place among them."""
    walk = _Walk()
    key = tuple(
        [
            _NOTHING if mod is None else _closed(mod) or walk.value(mod, (("item", place),))
            for place, mod in enumerate(mods)
        ]
    )
    if not walk.found and walk.exact:
        return Reading(key)
    return Reading(key, tuple(walk.tensors), tuple(walk.paths), tuple(walk.numbers), tuple(walk.scalars), walk.exact)


def _closed(mod: Any) -> str | None:
    """The key of a function that sees nothing but its arguments, which is most of them."""
    if type(mod) is FunctionType and mod.__defaults__ is None and mod.__kwdefaults__ is None:
        found = _codes.get(id(mod.__code__))
        return found[1].digest if found is not None and found[1].closed else None
    return None


def follow(value: Any, path: Path) -> Any:
    """The value at the end of `path`.  torch.compile traces this, so that it sees which variables are read."""
    for kind, which in path:
        if kind == "cell":
            value = value.__closure__[which].cell_contents
        elif kind == "global":
            value = value.__globals__[which]
        elif kind == "default":
            value = value.__defaults__[which]
        elif kind == "keyword default":
            value = value.__kwdefaults__[which]
        elif kind == "attribute":
            value = getattr(value, which)
        else:
            value = value[which]
    return value


class _Walk:
    """Goes through a mod's values once."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.paths: list[Path] = []
        self.numbers: list[tuple[Path, Any]] = []
        self.scalars: list[Path] = []
        self.exact = True
        self.found = False
        self._seen: dict[int, int] = {}

    def value(self, value: Any, path: Path) -> Any:
        """The key of one value, and of all that it reaches."""
        kind = type(value)
        if kind is FunctionType:
            return self._function(value, path)
        if kind in _PLAIN:
            self.found = True
            self.numbers.append((path, value))
            return kind.__name__, repr(value)
        if isinstance(value, torch.Tensor | np.ndarray):
            return self._tensor(value, path)
        if isinstance(value, np.generic):
            self.found = True
            self.scalars.append(path)
            return kind.__name__, repr(value.item())
        if isinstance(value, torch.dtype | torch.device):
            return kind.__name__, str(value)
        if kind is partial:
            return self._children("partial", value, path, _partial_parts(value))
        if kind in (tuple, list):
            return self._children(kind.__name__, value, path, (((("item", n),), v) for n, v in enumerate(value)))
        if kind is dict:
            names = tuple((type(n).__name__, repr(n)) for n in value)
            self.exact = self.exact and all(type(n) in _PLAIN for n in value)
            return names, self._children("dict", value, path, (((("item", n),), v) for n, v in value.items()))
        if kind is ModuleType and _top(value.__name__) in _LIBRARIES:
            return "module", value.__name__
        if isinstance(value, BuiltinFunctionType | np.ufunc | type) and _top(_home(value)) in _LIBRARIES:
            return "named", _home(value), value.__name__
        self.exact = False
        return "object", kind.__module__, kind.__qualname__

    def _tensor(self, value: Any, path: Path) -> Any:
        self.found = True
        if value.ndim == 0:
            self.scalars.append(path)
            return "scalar", str(value.dtype), repr(value.item())
        place = self._seen.get(id(value))
        if place is None:
            place = self._seen[id(value)] = len(self._seen)
            self.tensors.append(value)
            self.paths.append(path)
        return "tensor", place, tuple(value.shape), str(value.dtype)

    def _function(self, function: FunctionType, path: Path) -> Any:
        code = _code(function.__code__)
        if code.closed and function.__defaults__ is None and function.__kwdefaults__ is None:
            return code.digest
        if id(function) in self._seen:
            return "again", self._seen[id(function)]
        self._seen[id(function)] = len(self._seen)
        parts = _function_parts(function, code)
        return code.digest, self._children("function", function, path, parts)

    def _children(self, kind: str, whole: Any, path: Path, parts: Iterator[tuple[Path, Any]]) -> Any:
        if kind in ("list", "dict"):  # these may hold themselves
            if id(whole) in self._seen:
                return "again", self._seen[id(whole)]
            self._seen[id(whole)] = len(self._seen)
        return kind, tuple([(steps, self.value(v, path + steps)) for steps, v in parts])


def _partial_parts(value: partial[Any]) -> Iterator[tuple[Path, Any]]:
    for name in ("func", "args", "keywords"):
        yield (("attribute", name),), getattr(value, name)


def _function_parts(function: FunctionType, code: _Code) -> Iterator[tuple[Path, Any]]:
    """What the function sees, each with the steps that lead to it."""
    for n, cell in enumerate(function.__closure__ or ()):
        yield from _seen_of((("cell", n),), _content(cell), code)
    for n, value in enumerate(function.__defaults__ or ()):
        yield (("default", n),), value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield (("keyword default", name),), value
    if _top(function.__module__ or "") not in _LIBRARIES:
        own = function.__globals__
        for name in code.global_names:
            if name in own:
                yield from _seen_of((("global", name),), own[name], code)


def _seen_of(path: Path, value: Any, code: _Code, outer: tuple[ModuleType, ...] = ()) -> Iterator[tuple[Path, Any]]:
    """The value; of a module of the user's what the code may read of it, by the names of attributes in the code."""
    if type(value) is not ModuleType or _top(value.__name__) in _LIBRARIES:
        yield path, value
        return
    for name in code.attribute_names:
        if hasattr(value, name) and getattr(value, name) not in (value, *outer):  # modules may name each other
            yield from _seen_of((*path, ("attribute", name)), getattr(value, name), code, (value, *outer))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _home(value: Any) -> str:
    """The module of a class, a ufunc or a built-in function; torch's own functions do not say theirs."""
    return getattr(value, "__module__", None) or type(getattr(value, "__self__", value)).__module__


def _top(module: str) -> str:
    return module.partition(".")[0]


# -- codes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Code:
    """What there is to know of a code object.

    Args:
        digest: of its instructions, constants and names, and of the codes inside it; the same in every process of one
            version of Python.
        global_names: globals that it reads, sorted.
        attribute_names: every other name in it.
        closed: whether a function of this code sees nothing but its arguments (and its defaults).
    """

    digest: str
    global_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    closed: bool


# By the code's id, since its own hash goes through all of its constants; the code is kept, so that the id stays its.
_codes: dict[int, tuple[CodeType, _Code]] = {}
_MOST_CODES = 4096


def _code(code: CodeType) -> _Code:
    found = _codes.get(id(code))
    if found is None:
        if len(_codes) >= _MOST_CODES:
            _codes.clear()
        found = _codes[id(code)] = code, _examined(code)
    return found[1]


def _examined(code: CodeType) -> _Code:
    global_names = {i.argval for c in _with_inner(code) for i in dis.get_instructions(c) if i.opname == "LOAD_GLOBAL"}
    names = {name for c in _with_inner(code) for name in c.co_names} - global_names
    return _Code(
        hashlib.sha256(repr(_described(code)).encode()).hexdigest()[:32],
        tuple(sorted(global_names)),
        tuple(sorted(names)),
        not code.co_freevars and not global_names,
    )


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _described(code: CodeType) -> Any:
    """Everything of the code but where it stands."""
    constants = tuple(_described(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return code.co_code, constants, names, counts


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # its order differs from process to process
        return f"frozenset{sorted(map(repr, value))}"
    return f"{type(value).__name__} {value!r}"
