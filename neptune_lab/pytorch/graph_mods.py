"""Mods that torch.compile traced: from graphs of torch functions back to Python functions.

Dynamo gives a mod as a graph whose inputs are the mod's arguments and the tensors that it captures, wherever they come
from.  `mod_of_graph` writes the graph as Python text, in which tensors are variables of a closure; `GraphMod.bind`
makes the function for the tensors of one call.  So `attention` reads, keys and compiles it as any function of a user.

    >>> graph = torch.fx.Graph()
    >>> q, kv, table = map(graph.placeholder, ("q", "kv", "table"))
    >>> _ = graph.output(graph.call_function(operator.ge, (q, graph.call_function(operator.getitem, (table, kv)))))
    >>> mod = mod_of_graph(graph, ("q", "kv"), (("table", 0),))
    >>> print(mod.text)
    def make(table):
        def mod(q, kv):
            v0 = table[kv]
            v1 = q >= v0
            return v1
        return mod
    >>> mod.bind([[5, 7]])(6, 1)
    False
"""

from __future__ import annotations

import keyword
import linecache
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.hashed import digest_of
from neptune_lab.pytorch.mods import DROPOUTS, UNSEEN_NAMES

# Python's spelling of functions of `operator`.
_BINARY = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
_UNARY = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}
# Where functions are that a mod may call; the text names them by these, so that equal texts are equal mods.
_HOMES = ("torch", torch), ("torch.nn.functional", torch.nn.functional), ("torch.special", torch.special)
_NATIVE: Any = torch._C
_OTHERS = ("torch._C._nn", _NATIVE._nn), ("torch._C._special", _NATIVE._special), ("operator", operator), ("math", math)
_HELP = "compute a tensor before the call, and read its elements in the mod: `table[q, kv]`"


@dataclass(frozen=True)
class GraphMod:
    """A mod as text.

    Args:
        text: of a function `make` of tensors and constants, which returns the mod.
        captured: for each of its first parameters, the index of its tensor among those of the call.
        constants: the values of the others: dtypes, infinities, and so on.
    """

    text: str
    captured: tuple[int, ...]
    constants: tuple[Any, ...]

    @property
    def key(self) -> str:
        """What defines the mod, apart from its tensors; the same in every process."""
        return repr((self.text, self.captured, self.constants))

    def bind(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        """The mod over the tensors of a call."""
        return _compiled_text(self.text)(*(tensors[index] for index in self.captured), *self.constants)


def mod_of_graph(graph: torch.fx.Graph, arguments: Sequence[str], captured: Sequence[tuple[str, int]]) -> GraphMod:
    """The mod that a graph is.

    Args:
        graph: its first inputs are the mod's arguments, the others what it captures.
        arguments: the arguments' names.
        captured: of each other input, a name for it and the index of its tensor among those of the call.

    Raises:
        DefinitionError: the graph has what a mod cannot have, such as random numbers or a part of a module.
    """
    return _Writer(graph, arguments, captured).mod()


def _is_off(name: str, node: torch.fx.Node) -> bool:
    """Whether a call of a dropout draws nothing: dropout(x, p, training=False), or with a p of 0."""
    given = [*node.args[1:3], None, None]
    p = node.kwargs.get("p", given[0])
    training = node.kwargs.get("training", node.kwargs.get("train", given[1]))
    return name in DROPOUTS and (training is False or (isinstance(p, int | float) and p == 0))


class _Writer:
    """Writes one graph; a statement for each node."""

    def __init__(self, graph: torch.fx.Graph, arguments: Sequence[str], captured: Sequence[tuple[str, int]]) -> None:
        self.graph = graph
        self.arguments = arguments
        self.names: dict[torch.fx.Node, str] = {}
        self.taken = {*arguments, *keyword.kwlist, *("make", "mod", "slice", "torch", "operator", "math")}
        self.constants: list[tuple[str, Any]] = []
        self.captured: list[tuple[str, int]] = []
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.names.update(zip(inputs, arguments, strict=False))
        for node, (name, index) in zip(inputs[len(arguments) :], captured, strict=True):
            if node.users:
                self.names[node] = self._unused(name)
                self.captured.append((self.names[node], index))

    def mod(self) -> GraphMod:
        statements: list[str] = []
        for node in self.graph.nodes:
            if node.op in ("call_function", "call_method"):
                self.names[node] = self._unused(f"v{len(statements)}")
                statements.append(f"{self.names[node]} = {self._call(node)}")
            elif node.op == "output":
                statements.append(f"return {self._text(node.args[0])}")
            elif node.op != "placeholder":
                raise DefinitionError(f"inside torch.compile a mod reads {node.target!r} of a module", help=_HELP)
        parameters = ", ".join(name for name, _ in (*self.captured, *self.constants))
        inside = "".join(f"        {line}\n" for line in statements)
        text = f"def make({parameters}):\n    def mod({', '.join(self.arguments)}):\n{inside}    return mod"
        return GraphMod(text, tuple(index for _, index in self.captured), tuple(value for _, value in self.constants))

    def _call(self, node: torch.fx.Node) -> str:
        kwargs = [f"{_identifier(name)}={self._text(value)}" for name, value in node.kwargs.items()]
        name = _identifier(str(getattr(node.target, "__name__", node.target)))
        if UNSEEN_NAMES & {name, name.strip("_")} and not _is_off(name, node):
            raise DefinitionError(
                f"inside torch.compile a mod calls {name}, which gives other values each time", help=_HELP
            )
        if node.op == "call_method":
            owner, *args = map(self._text, node.args)
            return f"{owner}.{_identifier(str(node.target))}({', '.join((*args, *kwargs))})"
        args = [*map(self._text, node.args)]
        if node.target in _BINARY and len(args) == 2 and not kwargs:
            return f" {_BINARY[node.target]} ".join(args)
        if node.target in _UNARY and len(args) == 1 and not kwargs:
            return f"{_UNARY[node.target]}{args[0]}"
        if node.target is operator.getitem and not kwargs:
            return f"{args[0]}[{args[1]}]"
        for home, module in (*_HOMES, *_OTHERS):
            if getattr(module, name, None) is node.target:
                return f"{home}.{name}({', '.join((*args, *kwargs))})"
        raise DefinitionError(f"inside torch.compile a mod calls {name}, which is no function of torch", help=_HELP)

    def _text(self, value: Any) -> str:
        """A value in an expression; what has no exact spelling becomes a parameter of `make`."""
        match value:
            case torch.fx.Node():
                return self.names[value]
            case tuple() | list():
                inside = ", ".join(map(self._text, value))
                return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if inside else "()"
            case slice():
                return f"slice({self._text(value.start)}, {self._text(value.stop)}, {self._text(value.step)})"
            case dict():
                return f"{{{', '.join(f'{self._text(k)}: {self._text(v)}' for k, v in value.items())}}}"
        plain = value is None or type(value) in (bool, int, str) or value is Ellipsis
        if plain or (type(value) is float and math.isfinite(value)):
            return f"({value!r})" if repr(value).startswith("-") else repr(value)  # (-1 ** x is another number)
        if type(value) is float or isinstance(value, torch.dtype | torch.device | torch.memory_format | torch.layout):
            return self._constant("constant", value)
        raise DefinitionError(f"inside torch.compile a mod computes with {value!r}", help=_HELP)

    def _constant(self, name: str, value: Any) -> str:
        for own, known in self.constants:
            if known is value or (type(known) is type(value) and repr(known) == repr(value)):
                return own
        self.constants.append((self._unused(name), value))
        return self.constants[-1][0]

    def _unused(self, name: str) -> str:
        candidate, n = name, 2
        while candidate in self.taken:
            candidate, n = f"{name}_{n}", n + 1
        self.taken.add(candidate)
        return candidate


def _identifier(name: str) -> str:
    if not name.isidentifier():
        raise DefinitionError(f"inside torch.compile a mod calls {name!r}", help=_HELP)
    return name


@lru_cache(1024)
def _compiled_text(text: str) -> Callable[..., Callable[..., Any]]:
    name = f"<mod {digest_of(text)[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": __name__, "torch": torch, "operator": operator, "math": math}
    exec(compile(text, name, "exec", dont_inherit=True), scope)  # names and constants of `_Writer` only
    return scope["make"]


__all__ = ["GraphMod", "mod_of_graph"]
