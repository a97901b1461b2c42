"""Reads the code and values of a mod, to decide at every call whether a compiled kernel still fits it.

A mod is defined by its code and the values that it reads (its closure, its defaults, its attributes, the module's names
that it reads, and so on through the functions that it calls).  Mods with equal code over equal values share a kernel.
Of a tensor, shape and dtype count: its values are inputs of the kernel, read at each call.

    >>> def make(width):
    ...     return lambda b, h, q, kv: q - kv < width
    >>> read(make(3)).key == read(make(3)).key, read(make(3)).key == read(make(4)).key
    (True, False)

`exact` is false if a mod reads values whose changes are not detected (an instance of a class, for example), or if its
code may read other values than those seen here (by getattr, an import, a random number).  Then the mod is traced at
every call, and the kernel is chosen by the traced definition.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from neptune_lab.hashed import digest_of
from neptune_lab.operators.reach import global_names, is_library, names_in, parts, with_inner

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})
_ARRAYS = torch.Tensor, np.ndarray
_TORCH_NAMES = torch.dtype, torch.device
_NAMED = BuiltinFunctionType, np.ufunc, type(np.where), type

# Functions that draw random numbers unless training is switched off.
DROPOUTS = frozenset(
    {
        *("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_"),
        *("feature_dropout", "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout"),
    }
)

# Code with one of these names may read any value, or another one at each call.
UNSEEN_NAMES = frozenset(
    {
        *("getattr", "vars", "globals", "locals", "eval", "exec", "compile", "dir", "open", "input", "id", "hash"),
        *("attrgetter", "methodcaller", "import_module", "random", "rand", "randn", "randint", "seed", "time"),
        *("randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial", "binomial"),
        *("poisson", "uniform", "uniform_", "normal_", "bernoulli_", "random_", "cauchy_", "exponential_"),
        *("geometric_", "log_normal_", "gumbel_softmax", "rrelu", "rrelu_"),
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"),
        *DROPOUTS,
    }
)

# The steps from a mod to a value in it: ("cell", 0), ("global", "slopes"), ("item", 2), ...
Path: TypeAlias = tuple[tuple[str, Any], ...]
# The same as a linked list from its end, which is quicker to build: the previous link (None at the start) and the step.
_Link: TypeAlias = tuple[Any, str, Any]


class Reading(NamedTuple):
    """The state of one or several mods at one call.

    Args:
        key: nested tuples of texts, numbers, shapes and dtypes; if `exact`, mods with equal keys define the same.
        tensors: the tensors and arrays that the mods read, each once, in a fixed order.
        tensor_links: the way to each of them.
        number_links: the way to each number or text, and its value.
        numpy_numbers: whether there are NumPy numbers.
        exact: whether `key` covers everything that the mods read.
    """

    key: Any
    tensors: tuple[Any, ...] = ()
    tensor_links: tuple[_Link, ...] = ()
    number_links: tuple[tuple[_Link, Any], ...] = ()
    numpy_numbers: bool = False
    exact: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path to each of `tensors`."""
        return tuple(map(_path, self.tensor_links))

    @property
    def numbers(self) -> tuple[tuple[Path, Any], ...]:
        """(path, value) for each number or text that the mods read."""
        return tuple((_path(link), value) for link, value in self.number_links)


def read(*mods: Any) -> Reading:
    """Reads `mods`: functions, partials or None; a path begins with the mod's index among them.

    This runs at every call of `attention`, before the kernel, so what only torch.compile needs is left to properties.
    """
    walk = _Walk()
    key = tuple(
        [
            None if mod is None else _closed(mod) or walk.value(mod, (None, "item", place))
            for place, mod in enumerate(mods)
        ]
    )
    key = key, walk.modules(), str(torch.get_default_dtype())  # which `torch.tensor(1.5).dtype` shows
    links = tuple(walk.tensor_links)
    return Reading(key, tuple(walk.tensors), links, tuple(walk.number_links), walk.numpy_numbers, walk.exact)


def _closed(mod: Any) -> str | None:
    """The key of a function that reads only its arguments, which is the most frequent case; None for any other mod."""
    if type(mod) is FunctionType and not (mod.__defaults__ or mod.__kwdefaults__ or mod.__dict__):
        examined = _codes.get(id(mod.__code__))
        return examined[1].digest if examined is not None and examined[1].closed else None
    return None


def follow(value: Any, path: Path) -> Any:
    """The value at the end of `path`.  torch.compile traces this, so it guards the variables that are read."""
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
    """Visits every value that mods read, once."""

    __slots__ = (
        *("_modules", "_names", "_seen", "_tensor_attributes"),
        *("exact", "number_links", "numpy_numbers", "tensor_links", "tensors"),
    )

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.tensor_links: list[_Link] = []
        self.number_links: list[tuple[_Link, Any]] = []
        self.numpy_numbers = False
        self.exact = True
        self._seen: dict[int, int] = {}
        self._names: set[str] = set()  # attribute names in the mods' code
        self._tensor_attributes: set[str] = set()  # attributes that were set on tensors
        self._modules: list[tuple[ModuleType, _Link, set[str]]] = []  # with the names that have been looked up

    def modules(self) -> Any:
        """The key of what the code reads from modules, which may lead to further code and modules."""
        parts: list[Any] = []
        waiting = True
        while waiting:
            waiting = False
            for index, (module, link, done) in enumerate(self._modules):
                for name in sorted(self._names - done):
                    waiting = True
                    done.add(name)
                    value = getattr(module, name, _MISSING)
                    if value is _MISSING:
                        continue
                    if belongs(module, value):
                        self.exact = self.exact and depends_on_arguments(value)
                    else:
                        parts.append((index, name, self.value(value, (link, "attribute", name))))
        self.exact = self.exact and self._names.isdisjoint(self._tensor_attributes)
        return tuple(parts)

    def value(self, value: Any, link: _Link) -> Any:
        """The key of one value and of everything that can be reached from it."""
        kind = type(value)
        if kind is FunctionType:
            return self._function(value, link)
        if kind in _PLAIN:
            self.number_links.append((link, value))
            return kind.__name__, repr(value)  # 0.0 and -0.0 are equal, but not the same number
        if isinstance(value, _ARRAYS):
            return self._tensor(value, link)
        if isinstance(value, np.generic):
            self.numpy_numbers = True
            return kind.__name__, repr(value.item())
        if isinstance(value, _TORCH_NAMES):
            return kind.__name__, str(value)
        if kind in (tuple, partial):
            return kind.__name__, self._held(value, link)
        if kind in (list, dict):  # which may contain itself
            if id(value) in self._seen:
                return "again", self._seen[id(value)]
            self._seen[id(value)] = len(self._seen)
            if kind is dict:
                self.exact = self.exact and all(type(n) in _PLAIN for n in value)
                return "dict", tuple(map(repr, value)), self._held(value, link)
            return "list", self._held(value, link)
        if kind is ModuleType:
            index = self._seen.get(id(value))
            if index is None:
                index = self._seen[id(value)] = len(self._seen)
                self._modules.append((value, link, set()))
            return "module", value.__name__, index
        if kind is MethodType:
            self.exact = False
            return "method", self._held(value, link)
        if isinstance(value, _NAMED) and is_library(_home(value)):
            self.exact = self.exact and depends_on_arguments(value)
            return "named", _home(value), value.__name__
        self.exact = False
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self._seen)
            self._held(value, link)  # for its tensors; its other values are in the traced definition
        return "object", kind.__module__, kind.__qualname__

    def _held(self, value: Any, link: _Link, reads: Iterable[str] | None = None) -> Any:
        """The key of all values that a value holds directly; `reads` as for `parts`."""
        held = parts(value, "", reads)
        return tuple([(kind, which, self.value(v, (link, kind, which))) for kind, which, _, v in held])

    def _tensor(self, value: Any, link: _Link) -> Any:
        index = self._seen.get(id(value))
        if index is None:
            index = self._seen[id(value)] = len(self._seen)
            self.tensors.append(value)
            self.tensor_links.append(link)
            self._tensor_attributes.update(getattr(value, "__dict__", ()))
        if isinstance(value, torch.Tensor) and value.is_nested:  # it has no shape, and is refused later
            return "tensor", index, "nested", value.dtype
        return "tensor", index, value.shape, value.dtype

    def _function(self, function: FunctionType, link: _Link) -> Any:
        code = code_of(function.__code__)
        if is_library(function.__module__):
            self.exact = self.exact and depends_on_arguments(function)
        else:
            self._names.update(code.attribute_names)  # attributes of any value, modules among them
            self.exact = self.exact and code.seen
        if code.closed and not (function.__defaults__ or function.__kwdefaults__ or function.__dict__):
            return code.digest
        if id(function) in self._seen:
            return "again", self._seen[id(function)]
        self._seen[id(function)] = len(self._seen)
        return code.digest, self._held(function, link, code.global_names)


_MISSING = object()


def belongs(module: ModuleType, value: Any) -> bool:
    """Whether `value` is a library's own function, class or dtype, which do not change."""
    if not is_library(module.__name__):
        return False
    known = isinstance(value, FunctionType) and is_library(value.__module__)
    return known or isinstance(value, _TORCH_NAMES) or (isinstance(value, _NAMED) and is_library(_home(value)))


# Modules of torch whose functions compute with tensors only, functions beside them, and classes without a state.
_OF_TENSORS = frozenset(
    {
        *("torch.functional", "torch.nn.functional", "torch._jit_internal", "torch.special", "torch.linalg"),
        "torch.nn.attention.flex_attention",  # and_masks, or_masks
        *("torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft"),
    }
)
_WITHOUT_STATE = frozenset(
    {torch.is_tensor, torch.sym_max, torch.sym_min, torch.sym_int, torch.sym_float, torch.sym_not, torch.sym_ite}
    | {torch.Tensor, torch.Size, torch.finfo, torch.iinfo, torch.dtype, torch.device, torch.nn.Parameter}
)


# Functions of NumPy that read files or settings.
_NUMPYS = frozenset(
    {
        *("load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap"),
        *("geterr", "geterrcall", "getbufsize", "get_printoptions"),
    }
)


def depends_on_arguments(value: Any) -> bool:
    """Whether what a function or a class of a library returns follows from its arguments, but for random numbers.

    Functions of torch that read a setting (`torch.is_grad_enabled`, `torch.get_num_threads`) do not, nor do objects of
    its classes, such as a distribution.  Whatever is not known counts as such.

    Args:
        value: a function or a class; those of other libraries than torch count as functions of their arguments, but for
            functions of NumPy that read files or settings.

    >>> depends_on_arguments(torch.exp), depends_on_arguments(torch.is_grad_enabled)
    (True, False)
    """
    if isinstance(value, _TORCH_NAMES):  # a dtype, a device
        return True
    home = (_home(value) if isinstance(value, _NAMED) else value.__module__) or ""
    library = home.partition(".")[0]
    if library == "numpy" and value.__name__ in _NUMPYS:
        return False
    if library != "torch" or home in _OF_TENSORS:
        return True
    if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType):
        return True  # an operator
    try:
        return value in _WITHOUT_STATE
    except TypeError:
        return False


def _home(value: Any) -> str:
    """The module of a class, a ufunc or a built-in function; "" for a method of an object, such as a dict's get."""
    owner = getattr(value, "__self__", None)
    return getattr(value, "__module__", None) or (owner.__module__ if isinstance(owner, type) else "")


# -- codes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Code:
    """Facts about a code object.

    Args:
        digest: of its instructions, constants and names, and of the code objects inside it; the same in every process
            of one version of Python.
        global_names: globals that it reads, sorted.
        attribute_names: every name in it that may be an attribute's.
        closed: whether a function of this code reads only its arguments, apart from its defaults and attributes.
        seen: whether everything that it may read is seen here.
    """

    digest: str
    global_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    closed: bool
    seen: bool


# By the code's id, since its hash visits all its constants; the code object is kept, so that its id is not reused.
_codes: dict[int, tuple[CodeType, _Code]] = {}
_MOST_CODES = 4096


def code_of(code: CodeType) -> _Code:
    """What is known about a function's code, examined once."""
    examined = _codes.get(id(code))
    if examined is None:
        if len(_codes) >= _MOST_CODES:
            _codes.clear()
        examined = _codes[id(code)] = code, _examined(code)
    return examined[1]


def _examined(code: CodeType) -> _Code:
    globals_read = global_names(code)
    every = names_in(code)
    steps = {i.opname for c in with_inner(code) for i in dis.get_instructions(c)}
    hidden = steps & {"IMPORT_NAME", "STORE_GLOBAL", "STORE_ATTR", "LOAD_BUILD_CLASS"}
    private = {name for name in every if name.startswith("__")}
    seen = not hidden and not private and every.isdisjoint(UNSEEN_NAMES)
    return _Code(
        digest_of(_described(code))[:32],
        tuple(sorted(globals_read)),
        tuple(sorted(every)),
        not code.co_freevars and not globals_read and seen,
        seen,
    )


def _described(code: CodeType) -> Any:
    """What defines a code object; not its location in the source."""
    constants = tuple(_described(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return code.co_code, constants, names, counts


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # its order differs from process to process
        return f"frozenset{sorted(map(repr, value))}"
    return f"{type(value).__name__} {value!r}"
