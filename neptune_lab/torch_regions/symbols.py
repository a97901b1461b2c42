"""Sizes that differ between the calls of a graph: symbols of torch's, replaced by numbers in copies of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx.node import map_aggregate, map_arg
from torch.utils import _pytree as pytree

from neptune_lab.torch_regions.tensors import tensors_of

Node = torch.fx.Node
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, eq=False)
class Symbols:
    """The symbols of a graph.

    Args:
        graph: of ATen operations, whose nodes have fake values with symbols.
        hints: the value of each symbol at the call that the graph was traced for, by name.
        sources: an input of the graph that is the symbol, or of which a dimension is: (node, dimension or None).
    """

    graph: torch.fx.Graph
    hints: Mapping[str, int]
    sources: Mapping[str, tuple[Node, int | None]]

    def at(self, values: Mapping[str, int]) -> torch.fx.Graph:
        """A copy of the graph, its nodes of the same names, with numbers in place of the symbols."""
        return _with_numbers(self.graph, values)

    def of(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """The symbols in what some nodes give and are given, in the order of `hints`."""
        used = {name for node in nodes for name in _names_of_node(node)}
        return tuple(name for name in self.hints if name in used)

    def text(self, nodes: Sequence[Node]) -> str:
        """What some nodes compute, with the symbols' names."""
        lines = []
        for node in nodes:
            args = map_arg((node.args, node.kwargs), lambda n: n.meta["val"] if _is_number(n) else f"%{n.name}")
            shapes = [(tuple(map(str, t.shape)), tuple(map(str, t.stride())), t.dtype) for t in tensors_of(node)]
            lines.append(f"{node.name} {node.target} {args} {shapes}")
        return "\n".join(lines)


def symbols_of(graph: torch.fx.Graph) -> Symbols | None:
    """The symbols of a graph; None if it has none, or one that is no size of an input."""
    hints: dict[str, int] = {}
    sources: dict[str, tuple[Node, int | None]] = {}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            _note(value, node, None, hints, sources)
    for node in inputs:
        for tensor in tensors_of(node)[:1] if isinstance(node.meta.get("val"), torch.Tensor) else ():
            for dim, size in enumerate(tensor.shape):
                if isinstance(size, torch.SymInt):
                    _note(size, node, dim, hints, sources)
    used = {name for node in graph.nodes for name in _names_of_node(node)}
    return Symbols(graph, hints, sources) if used and used <= set(hints) else None


def _note(value: torch.SymInt, node: Node, dim: int | None, hints: Any, sources: Any) -> None:
    expr = value.node.expr
    if expr.is_Symbol and expr.name not in hints and value.node.hint is not None:
        hints[expr.name], sources[expr.name] = int(value.node.hint), (node, dim)


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), _NUMBERS)


def _names_of_node(node: Node) -> set[str]:
    """The symbols in a node's value and in the numbers that it is given: an integer argument of the user's function
    is a symbol from its second value on, and may be no size of a tensor."""
    given = [n.meta["val"] for n in node.all_input_nodes if _is_number(n)]
    values = [*pytree.tree_leaves(node.meta.get("val")), *given, *pytree.tree_leaves((node.args, node.kwargs))]
    numbers: list[Any] = [n for value in values for n in _numbers_of(value) if isinstance(n, _NUMBERS)]
    return {symbol.name for number in numbers for symbol in number.node.expr.free_symbols}


def _numbers_of(value: Any) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return (*value.shape, *value.stride(), value.storage_offset())
    return (value,)


def number_at(value: Any, values: Mapping[str, int]) -> Any:
    """A number, or an expression of symbols at these values."""
    if not isinstance(value, _NUMBERS):
        return value
    expr = value.node.expr
    found = expr.xreplace({symbol: values[symbol.name] for symbol in expr.free_symbols})
    if isinstance(value, torch.SymBool):
        return bool(found)
    return float(found) if isinstance(value, torch.SymFloat) else int(found)


def _with_numbers(graph: torch.fx.Graph, values: Mapping[str, int]) -> torch.fx.Graph:
    """A copy of a graph with numbers in place of its symbols."""
    made = torch.fx.Graph()
    env: dict[Node, Any] = {}
    tensors = [t for node in graph.nodes for t in tensors_of(node)]
    mode = detect_fake_mode(tensors)
    assert mode is not None

    def fixed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return number_at(value, values)
        if all(isinstance(n, int) for n in _numbers_of(value)):
            return value
        shape, strides = ([number_at(n, values) for n in own] for own in (value.shape, value.stride()))
        with mode:
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    for node in graph.nodes:
        number = _is_number(node) and node.op != "placeholder"
        if number:
            env[node] = number_at(node.meta["val"], values)
            continue
        copied = made.node_copy(node, lambda n: env[n])
        assert copied.name == node.name, (copied.name, node.name)
        copied.args, copied.kwargs = map_aggregate((copied.args, copied.kwargs), lambda a: number_at(a, values))  # type: ignore[assignment]
        copied.meta = dict(node.meta)
        if "val" in node.meta:
            copied.meta["val"] = pytree.tree_map(fixed, node.meta["val"])
        env[node] = number_at(node.meta["val"], values) if _is_number(node) else copied
    owner = graph.owning_module
    return made if owner is None else torch.fx.GraphModule(owner, made).graph


__all__ = ["Symbols", "number_at", "symbols_of"]
