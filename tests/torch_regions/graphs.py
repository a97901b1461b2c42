"""Graphs of ATen operations for the tests of the partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from neptune_lab.torch_regions.carve import carved
from neptune_lab.torch_regions.families import name_of


def traced(function: Callable[..., Any], *inputs: Any) -> torch.fx.Graph:
    """The graph of a function, with fake values, as AOTAutograd makes it."""
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*inputs).graph


def operations(group: list[torch.fx.Node]) -> list[str]:
    """The names of a group's operations, without taking results apart."""
    return [name for n in group if (name := name_of(n))]


def groups_of(function: Callable[..., Any], *inputs: Any, weights: tuple[int, ...] = ()) -> list[list[str]]:
    """The operations of each group of a function's graph; `weights` are the positions of its parameters."""
    graph = traced(function, *inputs)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    found = carved(graph, [placeholders[n] for n in weights])
    assert is_acyclic(graph, found)
    return [operations(group) for group in found]


def is_acyclic(graph: torch.fx.Graph, groups: list[list[torch.fx.Node]]) -> bool:
    """Whether the graph in which each group is one node has no cycle, and no node is in two groups."""
    owner = {node: n for n, group in enumerate(groups) for node in group}
    assert len(owner) == sum(map(len, groups))
    edges = {(owner.get(s, s), owner.get(n, n)) for n in graph.nodes for s in n.all_input_nodes}
    return nx.is_directed_acyclic_graph(nx.DiGraph([(str(a), str(b)) for a, b in edges if a != b]))
