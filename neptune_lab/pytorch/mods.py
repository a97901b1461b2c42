"""What a mod is made of: enough to know, at every call, whether a kernel that was compiled for it still fits.

A mod is its code and the values that it sees (its closure, its defaults, its attributes, the module's names that it
reads, and so on through the functions that it calls).  Equal codes over equal values define the same thing, so they
share a kernel.  Tensors count by shape and dtype: their values are inputs of the kernel, read at each call.

    >>> def make(width):
    ...     return lambda b, h, q, kv: q - kv < width
    >>> read(make(3)).key == read(make(3)).key, read(make(3)).key == read(make(4)).key
    (True, False)

What Python code can change without a trace (an instance of a class, say), and code that may read what is not seen here
(getattr, an import, a random number), leave `exact` false: then only the definition, traced at every call, tells
whether two calls mean the same.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from neptune_lab.operators.reach import global_names, is_library, names_in, parts, with_inner

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})
_ARRAYS = torch.Tensor, np.ndarray
_TORCH_NAMES = torch.dtype, torch.device
_NAMED = BuiltinFunctionType, np.ufunc, type(np.where), type

# Code that names one of these may read anything, or another value at each call.
_UNSEEN = frozenset(
    {
        *("getattr", "vars", "globals", "locals", "eval", "exec", "compile", "dir", "open", "input", "id", "hash"),
        *("attrgetter", "methodcaller", "import_module", "random", "rand", "randn", "randint", "seed", "time"),
    }
)

# How to come from a mod to a value in it, a step at a time: ("cell", 0), ("global", "slopes"), ("item", 2), ...
Path: TypeAlias = tuple[tuple[str, Any], ...]
# The same from its end, which is quicker to make: the link before (None at the start) and the step.
_Link: TypeAlias = tuple[Any, str, Any]


class Reading(NamedTuple):
    """A mod, or several, as they are at this moment.

    Args:
        key: nested tuples of texts, numbers, shapes and dtypes; equal keys define the same thing where `exact`.
        tensors: the tensors and arrays that the mods reach, each once, in a fixed order.
        tensor_links: where each of them was found.
        number_links: where each number or text was found, and its value.
        numpy_numbers: whether there are numbers of NumPy's.
        exact: whether `key` tells all.
    """

    key: Any
    tensors: tuple[Any, ...] = ()
    tensor_links: tuple[_Link, ...] = ()
    number_links: tuple[tuple[_Link, Any], ...] = ()
    numpy_numbers: bool = False
    exact: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        """How to come to each of `tensors`."""
        return tuple(map(_path, self.tensor_links))

    @property
    def numbers(self) -> tuple[tuple[Path, Any], ...]:
        """(path, value) for each number or text that the mods reach."""
        return tuple((_path(link), value) for link, value in self.number_links)


def read(*mods: Any) -> Reading:
    """What `mods` are made of, functions, partials or None; a path begins with the mod's place among them.

    This runs at every call of `attention`, before the kernel: what only torch.compile asks for is left to properties.
    """
    walk = _Walk()
    key = tuple(
        [
            None if mod is None else _closed(mod) or walk.value(mod, (None, "item", place))
            for place, mod in enumerate(mods)
        ]
    )
    key = key, walk.modules()
    links = tuple(walk.tensor_links)
    return Reading(key, tuple(walk.tensors), links, tuple(walk.number_links), walk.numpy_numbers, walk.exact)


def _closed(mod: Any) -> str | None:
    """The key of a function that sees nothing but its arguments, which is most of them."""
    if type(mod) is FunctionType and not (mod.__defaults__ or mod.__kwdefaults__ or mod.__dict__):
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


def _path(link: _Link | None) -> Path:
    steps = []
    while link is not None:
        link, *step = link
        steps.append(tuple(step))
    return tuple(reversed(steps))


class _Walk:
    """Goes through a mod's values once."""

    __slots__ = (
        *("_given", "_modules", "_names", "_seen"),
        *("exact", "number_links", "numpy_numbers", "tensor_links", "tensors"),
    )

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.tensor_links: list[_Link] = []
        self.number_links: list[tuple[_Link, Any]] = []
        self.numpy_numbers = False
        self.exact = True
        self._seen: dict[int, int] = {}
        self._names: set[str] = set()  # attributes that some code names
        self._given: set[str] = set()  # attributes that someone gave a tensor
        self._modules: list[tuple[ModuleType, _Link, set[str]]] = []  # with the names that were looked up

    def modules(self) -> Any:
        """The key of what the code reads of modules, which may lead to further code and modules."""
        parts: list[Any] = []
        waiting = True
        while waiting:
            waiting = False
            for place, (module, link, done) in enumerate(self._modules):
                for name in sorted(self._names - done):
                    waiting = True
                    done.add(name)
                    found = getattr(module, name, _MISSING)
                    if found is not _MISSING and not _belongs(module, found):
                        parts.append((place, name, self.value(found, (link, "attribute", name))))
        self.exact = self.exact and self._names.isdisjoint(self._given)
        return tuple(parts)

    def value(self, value: Any, link: _Link) -> Any:
        """The key of one value, and of all that it reaches."""
        kind = type(value)
        if kind is FunctionType:
            return self._function(value, link)
        if kind in _PLAIN:
            self.number_links.append((link, value))
            return kind.__name__, repr(value)  # 0.0 equals -0.0, and is another number
        if isinstance(value, _ARRAYS):
            return self._tensor(value, link)
        if isinstance(value, np.generic):
            self.numpy_numbers = True
            return kind.__name__, repr(value.item())
        if isinstance(value, _TORCH_NAMES):
            return kind.__name__, str(value)
        if kind in (tuple, partial):
            return kind.__name__, self._held(value, link)
        if kind in (list, dict):  # which may hold itself
            if id(value) in self._seen:
                return "again", self._seen[id(value)]
            self._seen[id(value)] = len(self._seen)
            if kind is dict:
                self.exact = self.exact and all(type(n) in _PLAIN for n in value)
                return "dict", tuple(map(repr, value)), self._held(value, link)
            return "list", self._held(value, link)
        if kind is ModuleType:
            place = self._seen.get(id(value))
            if place is None:
                place = self._seen[id(value)] = len(self._seen)
                self._modules.append((value, link, set()))
            return "module", value.__name__, place
        if kind is MethodType:
            self.exact = False
            return "method", self._held(value, link)
        if isinstance(value, _NAMED) and is_library(_home(value)):
            return "named", _home(value), value.__name__
        self.exact = False
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self._seen)
            self._held(value, link)  # its tensors; what else it holds, the traced definition tells
        return "object", kind.__module__, kind.__qualname__

    def _held(self, value: Any, link: _Link, reads: Iterable[str] | None = None) -> Any:
        """The key of all that a value holds directly; `reads` as for `parts`."""
        held = parts(value, "", reads)
        return tuple([(kind, which, self.value(v, (link, kind, which))) for kind, which, _, v in held])

    def _tensor(self, value: Any, link: _Link) -> Any:
        place = self._seen.get(id(value))
        if place is None:
            place = self._seen[id(value)] = len(self._seen)
            self.tensors.append(value)
            self.tensor_links.append(link)
            self._given.update(getattr(value, "__dict__", ()))
        return "tensor", place, value.shape, value.dtype

    def _function(self, function: FunctionType, link: _Link) -> Any:
        code = _code(function.__code__)
        if not is_library(function.__module__):
            self._names.update(code.attribute_names)  # of whatever is given to it
            self.exact = self.exact and code.seen
        if code.closed and not (function.__defaults__ or function.__kwdefaults__ or function.__dict__):
            return code.digest
        if id(function) in self._seen:
            return "again", self._seen[id(function)]
        self._seen[id(function)] = len(self._seen)
        return code.digest, self._held(function, link, code.global_names)


_MISSING = object()


def _belongs(module: ModuleType, value: Any) -> bool:
    """Whether a library has `value` of its own: a function, a class or a dtype, which stay as they are."""
    if not is_library(module.__name__):
        return False
    known = isinstance(value, FunctionType) and is_library(value.__module__)
    return known or isinstance(value, _TORCH_NAMES) or (isinstance(value, _NAMED) and is_library(_home(value)))


def _home(value: Any) -> str:
    """The module of a class, a ufunc or a built-in function; "" for a method of some object, such as a dict's get."""
    owner = getattr(value, "__self__", None)
    return getattr(value, "__module__", None) or (owner.__module__ if isinstance(owner, type) else "")


# -- codes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Code:
    """Facts about a code object.

    Args:
        digest: of its instructions, constants and names, and of the codes inside it; the same in every process of one
            version of Python.
        global_names: globals that it reads, sorted.
        attribute_names: every name in it, which may be an attribute's.
        closed: whether a function of this code sees nothing but its arguments (its defaults and attributes aside).
        seen: whether all that it may read is seen here.
    """

    digest: str
    global_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    closed: bool
    seen: bool


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
    globals_read = global_names(code)
    every = names_in(code)
    steps = {i.opname for c in with_inner(code) for i in dis.get_instructions(c)}
    hidden = steps & {"IMPORT_NAME", "STORE_GLOBAL", "STORE_ATTR", "LOAD_BUILD_CLASS"}
    private = {name for name in every if name.startswith("__")}
    seen = not hidden and not private and every.isdisjoint(_UNSEEN)
    return _Code(
        hashlib.sha256(repr(_described(code)).encode()).hexdigest()[:32],
        tuple(sorted(globals_read)),
        tuple(sorted(every)),
        not code.co_freevars and not globals_read and seen,
        seen,
    )


def _described(code: CodeType) -> Any:
    """The code without its location."""
    constants = tuple(_described(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return code.co_code, constants, names, counts


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # its order differs from process to process
        return f"frozenset{sorted(map(repr, value))}"
    return f"{type(value).__name__} {value!r}"
