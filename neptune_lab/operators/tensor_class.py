"""What a mod's tests of classes see: every value that a mod computes with is a `torch.Tensor`, as in FlexAttention.

`isinstance(x, torch.Tensor)`, `torch.is_tensor(x)`, `x.__class__` and `case torch.Tensor():` ask a value for its
`__class__`.  The answer is `torch.Tensor` where code of the user's asks, wherever that is.  Everybody else gets the
value's own class: torch's C++ code would read the memory of a tensor.  `type(x)` asks nothing of `x`, so a mod that
compares it with a class of tensors is refused.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from inspect import getattr_static
from operator import attrgetter
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import name_of
from neptune_lab.operators.reach import attributes_of, is_array, is_library, module_values, names_in, parts, with_inner
from neptune_lab.strict.console import source_line

_OTHERS = frozenset({"neptune_lab", "torch", "numpy", "tvm", "tvm_ffi", "sympy"})
_CALLS = frozenset({"CALL", "PRECALL", "CALL_FUNCTION_EX"})  # Python 3.11 calls isinstance at PRECALL
_NAMES = frozenset({"Tensor", "Parameter"})
_MISSING = object()


def seen_class(own: type) -> type:
    """The class that the code which asks a value for `__class__` sees; a property of that name calls this.

    Args:
        own: the value's class.

    Returns:
        `torch.Tensor` for a test of classes in a mod, else `own`.

    Raises:
        DefinitionError: the test may be of a class such as `torch.FloatTensor` or `torch.nn.Parameter`.
    """
    frame = sys._getframe(2)  # behind the property
    torch = sys.modules.get("torch")
    if torch is None:
        return own
    if _home(frame) in _OTHERS:
        asked = frame.f_code.co_name == "__instancecheck__" and frame.f_back is not None
        if asked and _home(frame.f_back) not in _OTHERS:  # pyright: ignore[reportArgumentType]
            raise DefinitionError(
                "a mod tests whether a value is a torch.nn.Parameter, a Buffer or the like",
                help="test the tensor before the call, in a variable of its own",
            )
        return torch.Tensor if frame.f_code is torch.is_tensor.__code__ else own
    if _home(frame) == "abc":  # isinstance of an abstract class, such as Iterable
        while frame.f_back is not None and _home(frame) in ("abc", "typing"):
            frame = frame.f_back
        return own if _home(frame) in _OTHERS else torch.Tensor
    op, called, loads = _asking(frame.f_code, frame.f_lasti)
    if op == "MATCH_CLASS" or (op == "LOAD_ATTR" and called[-1:] == (("LOAD_ATTR", "__class__"),)):
        return torch.Tensor
    if op not in _CALLS:
        return own
    if called is None:
        raise DefinitionError(
            "a mod tests the class of a value, and Python was told to keep no columns of its code",
            help="run without -X no_debug_ranges and PYTHONNODEBUGRANGES",
        )
    function = [_MISSING, *_values(frame, called)][-1]
    if isinstance(function, attrgetter):  # of "__class__"
        return torch.Tensor
    if isinstance(function, partial):
        function = function.func
    if function is not builtins.isinstance:
        return own
    for kind in _values(frame, loads):
        if any(type(k) is type(torch.FloatTensor) for k in _flat(kind)):
            raise DefinitionError(
                "a mod tests a value for a class of tensors of one dtype and device, such as torch.FloatTensor",
                help="test x.dtype == torch.float32, or isinstance(x, torch.Tensor), which is true of every value",
            )
    return torch.Tensor


def _home(frame: FrameType) -> str:
    """The package whose code a frame runs."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


# What instructions load: variables, and attributes of what was loaded before; by the instruction's name.
_Loads: TypeAlias = tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def _asking(code: CodeType, at: int) -> tuple[str, Any, _Loads]:
    """The instruction at an offset, what is loaded to be called (None if unknown), and all that the call loads."""
    every = list(dis.get_instructions(code))
    found = next(i for i in every if i.offset == at)
    if found.opname not in _CALLS:
        return found.opname, ((found.opname, str(found.argval)),), ()
    place = found.positions
    if place is None or None in place:
        return found.opname, None if "isinstance" in code.co_names else (), ()
    start, end = (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)
    called: list[tuple[str, str]] = []
    loads: list[tuple[str, str]] = []
    for step in every:
        where = step.positions
        if where is None or None in where or not step.opname.startswith("LOAD_"):
            continue
        first, last = (where.lineno, where.col_offset), (where.end_lineno, where.end_col_offset)
        if start <= first and last <= end:  # pyright: ignore[reportOperatorIssue]
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            loads += [(step.opname, str(n)) for n in names]
            called += [(step.opname, str(n)) for n in names if first == start and last < end]  # pyright: ignore[reportOperatorIssue]
    return found.opname, tuple(called), tuple(loads)


def _values(frame: FrameType, loads: _Loads) -> Iterator[Any]:
    """What is loaded, one after the other; `_MISSING` for constants and for attributes of what is computed."""
    value: Any = _MISSING
    for op, name in loads:
        if op in ("LOAD_ATTR", "LOAD_METHOD"):
            value = getattr_static(value, name, _MISSING)
        else:
            scopes = frame.f_locals, frame.f_globals, frame.f_builtins
            value = next((scope[name] for scope in scopes if name in scope), _MISSING)
        yield value


def _flat(kind: Any) -> Iterator[Any]:
    if isinstance(kind, tuple):
        for one in kind:
            yield from _flat(one)
    else:
        yield kind


# -- type(x) ----------------------------------------------------------------------------------------------------


def refuse_types(argument: str, mod: Any) -> None:
    """Raise DefinitionError for a mod that may compare `type(x)` with a class of tensors.

    Args:
        argument: "score_mod" or "mask_mod", for messages.
        mod: a function, another object, or None.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    where, named = "", False
    what = "type(...) of a value"
    for value in _reached_values(mod):
        if value is type:
            where = where or ", by another name"
        elif isinstance(value, type):
            named |= issubclass(value, torch.Tensor)
        elif isinstance(value, FunctionType) and not _is_theirs(value):
            found, names = _of_code(value.__code__)
            named |= names
            for line, kind, holder in found:
                if not _is_builtin(value, kind, holder):
                    continue
                file = value.__code__.co_filename
                text = source_line(file, line)
                what = _WHAT[kind]
                where = f", in {file}, line {line}" + (f": `{text}`" if text else "")
    if where and named:
        raise DefinitionError(
            f"{argument}={name_of(mod)}: {what} in a mod is not torch.Tensor, as it is in PyTorch{where}",
            help="leave the test out, or write isinstance(x, torch.Tensor): it is true of every value that a mod gets",
        )


# By the name that code reads: what it gives of a value.
_WHAT = {
    "type": "type(...) of a value",
    "isinstance": "the class that isinstance tests where another function calls it",
    "__class__": 'the class of a value that is asked for as "__class__", in a text,',
}


def _is_builtin(function: FunctionType, name: str, holder: str) -> bool:
    """Whether a function's code reads Python's own function by this name: as a global, or of the module `builtins`."""
    if name == "__class__":
        return True
    if holder:
        inner = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        cell = inner.get(holder)
        with suppress(ValueError):  # (an empty cell)
            value = function.__globals__.get(holder) if cell is None else cell.cell_contents
            return value is builtins or value is vars(builtins)
        return False
    own = getattr(builtins, name)
    return function.__globals__.get(name, own) is own


def _is_theirs(function: FunctionType) -> bool:
    home = str(function.__module__)
    library = is_library(home) or home.partition(".")[0] in sys.stdlib_module_names - {"__main__"}
    return library and not function.__code__.co_filename.startswith("<doctest ")


@lru_cache(maxsize=1024)
def _of_code(code: CodeType) -> tuple[tuple[tuple[int, str, str], ...], bool]:
    """Where the code reads `type`, hands on `isinstance` or has the text "__class__", and whether it names a class of
    tensors: lines, names, and the variable of which the name is an attribute ("": none)."""
    found: list[tuple[int, str, str]] = []
    named = not _NAMES.isdisjoint(names_in(code))
    for inner in with_inner(code):
        named |= any(isinstance(c, str) and c in ("Tensor", "torch.Tensor", "Parameter") for c in inner.co_consts)
        line, holder = inner.co_firstlineno, ""
        every = list(dis.get_instructions(inner))
        for step, then in zip(every, [*every[1:], None], strict=True):
            line = (step.positions and step.positions.lineno) or line
            read, attribute = step.opname.startswith("LOAD_"), step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if step.opname == "LOAD_CONST" and step.argval == "__class__":
                found.append((line, "__class__", ""))
            elif (step.opname in ("LOAD_GLOBAL", "LOAD_NAME") or (attribute and holder)) and (
                step.argval == "type" or (step.argval == "isinstance" and not _calls(step, then))
            ):
                found.append((line, step.argval, holder if attribute else ""))
            holder = str(step.argval) if read and not attribute else ""
    return tuple(found), named


def _calls(step: dis.Instruction, then: dis.Instruction | None) -> bool:
    """Whether the function that an instruction loads is called with the arguments that are loaded next, or gets a name
    by which it may be called."""
    if then is not None and then.opname.startswith("STORE_"):
        return True
    return step.opname == "LOAD_METHOD" or (step.opname in ("LOAD_GLOBAL", "LOAD_ATTR") and bool((step.arg or 0) & 1))


def _reached_values(mod: Any) -> Iterator[Any]:
    """Every value that a mod reaches, as `reach.arrays_of`, and the methods that it may call; each once."""
    seen: set[int] = set()
    names: set[str] = {"__getattr__", "__getitem__"}  # in the code that is reached
    holders: list[tuple[type | ModuleType, set[str]]] = []  # with more names
    owners: set[int] = set()  # of bound methods; other objects may be called themselves
    waiting: list[Any] = [mod]
    while waiting:
        for value in waiting:
            if id(value) in seen or is_array(value):
                continue
            seen.add(id(value))
            yield value
            if isinstance(value, FunctionType) and not _is_theirs(value):
                names |= names_in(value.__code__)
            elif isinstance(value, dict | set | frozenset):
                waiting += [one for one in value if isinstance(one, type | tuple)]
            elif isinstance(value, type | ModuleType):
                holders.append((value, {"__init__"}))
            elif isinstance(value, MethodType):
                owners.add(id(value.__self__))
            elif attributes_of(value) is not None:
                holders.append((type(value), set() if id(value) in owners else {"__call__", "forward"}))
            waiting += [held for _, _, _, held in parts(value)]
            wrapped = getattr(value, "__wrapped__", None) if callable(value) else None  # functools.lru_cache
            waiting += [] if wrapped is None else [wrapped]
        found = [v for holder, more in holders for v in _members(holder, names | more)]
        waiting = [v for v in found if id(v) not in seen]


def _members(holder: type | ModuleType, names: set[str]) -> list[Any]:
    """What code with these names may read of a module, or of a class of the user's: of a property, its function."""
    if isinstance(holder, ModuleType):
        return [v for v in module_values(holder, frozenset(names)).values() if not is_array(v)]
    kinds = [kind for kind in holder.__mro__ if not is_library(kind.__module__)]
    members = [vars(kind)[name] for kind in kinds for name in sorted(names & vars(kind).keys())]
    return [getattr(v, "fget", getattr(v, "__func__", v)) for v in members if not is_array(v)]


__all__ = ["refuse_types", "seen_class"]
