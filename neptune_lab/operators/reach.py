"""What a mod reaches: the arrays in its variables, and the mod made anew with others in their place.

A mod reaches its closure, its defaults, the globals that it names, its attributes, and so on through functions,
partials, bound methods, containers, and the attributes of objects and of modules.  Objects are copied (shallowly, down
to the arrays), so that the user's own stay as they are.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

# Libraries whose functions name no tensor of the user's in their modules (a closure that they make may well hold one).
_LIBRARIES = frozenset({"torch", "numpy", "builtins", "math", "operator", "_operator", "functools", "neptune_lab"})
# Python's own, which are no values of the user's unless one was replaced.
_BUILTINS = dict(vars(builtins))


def is_array(value: Any) -> bool:
    """Whether `value` is a tensor of torch or an array of NumPy."""
    torch = sys.modules.get("torch")  # a tensor of torch exists only where torch is loaded
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def is_library(module: str | None) -> bool:
    """Whether a module of that name is one of a library's, which holds no value of the user's."""
    return (module or "").partition(".")[0] in _LIBRARIES


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes that an object holds itself, in a dict or in slots; None for what is no plain object.

    >>> class Point:
    ...     __slots__ = ("x", "y")
    >>> point = Point()
    >>> point.x = 3
    >>> attributes_of(point), attributes_of(4) is None
    ({'x': 3}, True)
    """
    kind = type(value)
    if isinstance(value, type | ModuleType | FunctionType) or kind.__module__ in ("builtins", "numpy", "torch"):
        return None
    if is_library(kind.__module__) and not _is_torch_module(value):
        return None
    slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> Iterator[str]:
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else found
    return (name for name in names if name not in ("__dict__", "__weakref__"))


def _is_torch_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of the functions and classes defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner(constant)


def global_names(code: CodeType) -> set[str]:
    """Globals that the code reads."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    return {str(i.argval) for c in with_inner(code) for i in dis.get_instructions(c) if i.opname in reads}


def names_in(code: CodeType) -> set[str]:
    """Every name in the code: of a global, an attribute or a method."""
    return {name for c in with_inner(code) for name in c.co_names}


def _globals_of(function: FunctionType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """What the globals that a function reads hold; `names` are theirs where they are known already."""
    if is_library(function.__module__):
        return {}
    own, beside, found = function.__globals__, vars(builtins), {}
    for name in sorted(global_names(function.__code__)) if names is None else names:
        if name in own:
            found[name] = own[name]
        elif (other := beside.get(name)) is not _BUILTINS.get(name):
            found[name] = other
    return found


def _cells_of(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _content(cell: CellType) -> Any:
    """What a variable of a closure holds; None where it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _defaults_of(function: FunctionType) -> dict[str, Any]:
    """The defaults of positional parameters, by name."""
    code, given = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    return dict(zip(positional[len(positional) - len(given) :], given, strict=True))


def _module_values(module: ModuleType, names: frozenset[str]) -> dict[str, Any]:
    if is_library(module.__name__):
        return {}
    own = vars(module)
    return {name: own[name] for name in sorted(names) if name in own}


# A value that another one holds directly: how to come to it, such as ("cell", 0), ("global", "slopes") or ("item", 2);
# the variable that it is known by; and the value.  A plain tuple, since `attention` goes through them at every call.
Part: TypeAlias = tuple[str, Any, str, Any]


def parts(value: Any, name: str = "", reads: Iterable[str] | None = None) -> list[Part]:
    """Everything directly inside `value`, each thing once; of a module nothing, as it depends on who reads it.

    Args:
        name: the variable that holds `value`, by which things inside it are known that have no name of their own.
        reads: the globals that a function reads, sorted; None: they are looked up in its code.
    """
    reached: list[Part] = []
    if isinstance(value, FunctionType):
        code = value.__code__
        for n, cell in enumerate(value.__closure__ or ()):
            reached.append(("cell", n, code.co_freevars[n], _content(cell)))
        if value.__defaults__:
            reached += [("default", n, own, v) for n, (own, v) in enumerate(_defaults_of(value).items())]
        if value.__kwdefaults__:
            reached += [("keyword default", own, own, v) for own, v in value.__kwdefaults__.items()]
        reached += [("global", own, own, v) for own, v in _globals_of(value, reads).items()]
        if value.__dict__:
            reached += [("attribute", own, own, v) for own, v in value.__dict__.items()]
        return reached
    if isinstance(value, partial):
        held = (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        return [
            *[("attribute", n, name, v) for n, v in held],
            *[("attribute", n, n, v) for n, v in vars(value).items()],
        ]
    if isinstance(value, MethodType):
        return [("attribute", n, name, getattr(value, n)) for n in ("__func__", "__self__")]
    if isinstance(value, tuple | list):
        fields = getattr(value, "_fields", ())
        return [("item", n, fields[n] if n < len(fields) else name, v) for n, v in enumerate(value)]
    if isinstance(value, dict):
        return [("item", n, n if isinstance(n, str) else name, v) for n, v in value.items()]
    return [("attribute", n, n, v) for n, v in (attributes_of(value) or {}).items()]


def arrays_of(mod: Any) -> list[tuple[str, Any]]:
    """(variable, array) for every array that `mod` reaches, each once, in the order in which it names them."""
    found: list[tuple[str, Any]] = []
    seen: set[tuple[int, frozenset[str]]] = set()
    arrays: set[int] = set()

    def visit(name: str, value: Any, names: frozenset[str]) -> None:
        # A module's part depends on the names in the code that reads it, everything else's does not.
        key = id(value), names if isinstance(value, ModuleType) else frozenset()
        if is_array(value):
            if id(value) not in arrays:
                arrays.add(id(value))
                found.append((name if name.isidentifier() else "captured", value))
        elif key not in seen:
            seen.add(key)
            if isinstance(value, ModuleType):
                for own, held in _module_values(value, names).items():
                    visit(own, held, names)
            else:
                inner = frozenset(names_in(value.__code__)) if isinstance(value, FunctionType) else names
                for _, _, own, held in parts(value, name):
                    visit(own, held, inner)

    visit("captured", mod, frozenset())
    return found


class Rebuild:
    """Mods made anew with their arrays replaced by `replaced(variable, array)`; what holds no array is kept."""

    def __init__(self, replaced: Callable[[str, Any], Any]) -> None:
        self.replaced = replaced
        self.done: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that the ids in `done` stay theirs

    def value(self, name: str, value: Any, names: frozenset[str] = frozenset()) -> Any:
        """`value` with every array that it reaches replaced; `names` are those that the code around it reads."""
        if id(value) in self.done:
            return self.done[id(value)]
        if is_array(value):
            return self.replaced(name, value)
        if isinstance(value, ModuleType):
            own = _module_values(value, names).values()
            return self._module(value, names) if any(is_array(v) or arrays_of(v) for v in own) else value
        if not arrays_of(value):
            return value
        self._kept.append(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, partial):
            keywords = {n: self.value(n, v, names) for n, v in value.keywords.items()}
            args = [self.value(name, v, names) for v in value.args]
            return partial(self.value(name, value.func, names), *args, **keywords)
        if isinstance(value, MethodType):
            return MethodType(self.value(name, value.__func__, names), self.value(name, value.__self__, names))
        if isinstance(value, dict):
            made = self.done[id(value)] = {}
            made.update({n: self.value(str(n), v, names) for n, v in value.items()})
            return made
        if isinstance(value, tuple | list):
            made = [self.value(own, held, names) for _, _, own, held in parts(value, name)]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        return self._object(value, names)

    def _function(self, function: FunctionType) -> FunctionType:
        own = frozenset(names_in(function.__code__))
        cells = {name: CellType() for name in _cells_of(function)}
        names = {**function.__globals__}
        made = FunctionType(function.__code__, names, function.__name__, None, tuple(cells.values()) or None)
        self.done[id(function)] = made  # before its own names are looked at: a function may name itself
        made.__defaults__ = tuple(self.value(n, v, own) for n, v in _defaults_of(function).items()) or None
        made.__kwdefaults__ = {n: self.value(n, v, own) for n, v in (function.__kwdefaults__ or {}).items()} or None
        made.__module__, made.__qualname__ = function.__module__, function.__qualname__
        made.__dict__.update({n: self.value(n, v, own) for n, v in function.__dict__.items()})
        names.update({n: self.value(n, v, own) for n, v in _globals_of(function).items()})
        for name, cell in _cells_of(function).items():
            cells[name].cell_contents = self.value(name, _content(cell), own)
        return made

    def _module(self, module: ModuleType, names: frozenset[str]) -> ModuleType:
        made = ModuleType(module.__name__)
        made.__dict__.update(vars(module))
        made.__dict__.update({n: self.value(n, v, names) for n, v in _module_values(module, names).items()})
        return made

    def _object(self, value: Any, names: frozenset[str]) -> Any:
        """A copy of a plain object; one whose class makes no empty instances stays as it is."""
        kind = type(value)
        try:
            made: Any = SimpleNamespace() if kind is SimpleNamespace else object.__new__(kind)
        except TypeError:
            return value
        self.done[id(value)] = made  # an object may hold itself
        for attribute, held in (attributes_of(value) or {}).items():
            object.__setattr__(made, attribute, self.value(attribute, held, names))
        return made
