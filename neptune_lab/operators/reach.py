"""The arrays that a mod reaches through its variables, and copies of mods with these arrays replaced.

A mod reaches its closure, its defaults, the globals that it reads, its attributes, and so on through functions,
partials, bound methods, containers, and the attributes of objects and of modules.  Every object between the mod and an
array is copied, so that the user's objects do not change.
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

# Libraries whose modules hold no tensor of the user's.  The closures of their functions may hold one.
_LIBRARIES = frozenset({"torch", "numpy", "builtins", "math", "operator", "_operator", "functools", "neptune_lab"})
# Python's builtins; a value that differs from these was set by the user.
_BUILTINS = dict(vars(builtins))


def is_array(value: Any) -> bool:
    """Whether `value` is a torch tensor or a NumPy array.

    Args:
        value: any object.

    Returns:
        True for `torch.Tensor` and `np.ndarray`, with their subclasses.
    """
    torch = sys.modules.get("torch")  # if torch is not loaded, there are no torch tensors
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def is_library(module: str | None) -> bool:
    """Whether a module belongs to a library whose modules hold no value of the user's.

    Args:
        module: the module's full name, or None.

    Returns:
        True if its first part is in `_LIBRARIES`.
    """
    return (module or "").partition(".")[0] in _LIBRARIES


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, in its `__dict__` or in slots.

    Args:
        value: any object.

    Returns:
        The values by name; None for classes, modules and functions, and for objects of Python's builtin types and of
        libraries, except a `torch.nn.Module`.

    >>> from fractions import Fraction
    >>> attributes_of(Fraction(1, 2)), attributes_of(4) is None
    ({'_numerator': 1, '_denominator': 2}, True)
    """
    kind = type(value)
    if isinstance(value, type | ModuleType | FunctionType) or kind.__module__ in ("builtins", "numpy", "torch"):
        return None
    if is_library(kind.__module__) and not _is_torch_module(value):
        return None
    slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> Iterator[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else slots
    return (name for name in names if name not in ("__dict__", "__weakref__"))


def _is_torch_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code, and the code of the functions and classes that are defined inside it.

    Args:
        code: a function's code.

    Yields:
        `code`, then the others, depth first.
    """
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner(constant)


def global_names(code: CodeType) -> set[str]:
    """The globals that the code reads.

    Args:
        code: a function's code; functions and classes inside it are included.

    Returns:
        Their names, also of builtins.
    """
    reads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    return {str(i.argval) for c in with_inner(code) for i in dis.get_instructions(c) if i.opname in reads}


def names_in(code: CodeType) -> set[str]:
    """All names in the code of globals, attributes and methods.

    Args:
        code: a function's code; functions and classes inside it are included.

    Returns:
        The names, without those of local variables.
    """
    return {name for c in with_inner(code) for name in c.co_names}


def _globals_of(function: FunctionType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The values of the globals that a function reads; `names` are the names of these, if the caller knows them."""
    if is_library(function.__module__) and not _is_doctest(function.__code__):
        return {}
    own, builtin, values = function.__globals__, vars(builtins), {}
    for name in sorted(global_names(function.__code__)) if names is None else names:
        if name in own:
            values[name] = own[name]
        elif (replaced := builtin.get(name)) is not _BUILTINS.get(name):
            values[name] = replaced
    return values


def _is_doctest(code: CodeType) -> bool:
    """Whether the code is an example of a docstring: it has a library module's name, and variables of its own."""
    return code.co_filename.startswith("<doctest ")


def _cells_of(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _content(cell: CellType) -> Any:
    """The value of a closure's variable; None if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _defaults_of(function: FunctionType) -> dict[str, Any]:
    """The defaults of positional parameters, by name."""
    code, given = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    return dict(zip(positional[len(positional) - len(given) :], given, strict=True))


def module_values(module: ModuleType, names: frozenset[str]) -> dict[str, Any]:
    """The module's values of these names; none for a library.

    Args:
        module: a module.
        names: those in the code that reads it.

    Returns:
        The values by name.
    """
    if is_library(module.__name__):
        return {}
    own = vars(module)
    return {name: own[name] for name in sorted(names) if name in own}


# A value that another one holds directly: the kind of place and its key, such as ("cell", 0), ("global", "slopes") or
# ("item", 2); the name of its variable; and the value.  A plain tuple for speed: `nl.attention` calls `parts` at every
# call.
Part: TypeAlias = tuple[str, Any, str, Any]


def parts(value: Any, name: str = "", reads: Iterable[str] | None = None) -> list[Part]:
    """The values that `value` holds directly.

    Args:
        value: any object.
        name: the variable that holds `value`; parts without a name of their own get this name.
        reads: the names of the globals that a function reads, sorted; if None, they are read from its code.

    Returns:
        The parts; none for a module, whose parts depend on the code that reads it.
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
    """The arrays that a mod reaches, each once.

    Args:
        mod: a function, another object, or None.

    Returns:
        (variable, array) pairs, in depth-first order of `parts`; the variable is "captured" if the name under which the
        array is held is not an identifier.
    """
    pairs: list[tuple[str, Any]] = []
    seen: set[tuple[int, frozenset[str]]] = set()
    arrays: set[int] = set()

    def visit(name: str, value: Any, names: frozenset[str]) -> None:
        # What is visited of a module depends on the names in the code that reads it.
        key = id(value), names if isinstance(value, ModuleType) else frozenset()
        if is_array(value):
            if id(value) not in arrays:
                arrays.add(id(value))
                pairs.append((name if name.isidentifier() else "captured", value))
        elif key not in seen:
            seen.add(key)
            if isinstance(value, ModuleType):
                for own, held in module_values(value, names).items():
                    visit(own, held, names)
            else:
                inner = frozenset(names_in(value.__code__)) if isinstance(value, FunctionType) else names
                for _, _, own, held in parts(value, name):
                    visit(own, held, inner)

    visit("captured", mod, frozenset())
    return pairs


class Rebuild:
    """Copies mods with their arrays replaced; an object that reaches no array is kept.

    Args:
        replaced: the replacement, from the name of the array's variable and the array.
    """

    def __init__(self, replaced: Callable[[str, Any], Any]) -> None:
        self.replaced = replaced
        self.done: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no other object gets an id in `done`

    def value(self, name: str, value: Any, names: frozenset[str] = frozenset()) -> Any:
        """A copy of `value` with every array that it reaches replaced.

        Args:
            name: the variable that holds `value`.
            value: a mod, or an object that it reaches.
            names: the names in the code that reads `value`, which select the values of a module.

        Returns:
            The copy; `value` itself if it reaches no array.
        """
        if id(value) in self.done:
            return self.done[id(value)]
        if is_array(value):
            return self.replaced(name, value)
        if isinstance(value, ModuleType):
            own = module_values(value, names).values()
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
        self.done[id(function)] = made  # before its variables are copied: a function may refer to itself
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
        made.__dict__.update({n: self.value(n, v, names) for n, v in module_values(module, names).items()})
        return made

    def _object(self, value: Any, names: frozenset[str]) -> Any:
        """A copy of a plain object; the object itself if its class cannot make an empty instance."""
        kind = type(value)
        try:
            made: Any = SimpleNamespace() if kind is SimpleNamespace else object.__new__(kind)
        except TypeError:
            return value
        self.done[id(value)] = made  # before its attributes are copied: an object may refer to itself
        for attribute, held in (attributes_of(value) or {}).items():
            object.__setattr__(made, attribute, self.value(attribute, held, names))
        return made
