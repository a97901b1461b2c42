"""Puts the kernels of a partition's regions into its graph."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from neptune_lab.torch_regions.families import Family, family_of
from neptune_lab.torch_regions.record import Partition, Region

Node = torch.fx.Node
Item: TypeAlias = Node | Region


def spliced(partition: Partition, call_of: Callable[[Region], Callable[..., Any]]) -> torch.fx.Graph:
    """The partition's graph, in which each region is one call.

    Args:
        partition: its graph is not changed.
        call_of: from a region to a function from its contiguous inputs to its contiguous results: a tuple of them if
            there are several.

    Returns:
        The graph.  What draws random numbers or has side effects keeps its order.
    """
    graph = torch.fx.Graph()
    env: dict[Node, Node] = {}
    by_name = {node.name: node for node in partition.graph.nodes}
    for item in _in_order(partition):
        if isinstance(item, Region):
            _call(graph, env, by_name, item, call_of(item))
        else:
            env[item] = graph.node_copy(item, env.__getitem__)
    graph.eliminate_dead_code()
    return graph


def _in_order(partition: Partition) -> list[Item]:
    """Nodes and regions, each after what it reads, otherwise in the order of the graph."""
    nodes = list(partition.graph.nodes)
    places = {node: n for n, node in enumerate(nodes)}
    by_name = {node.name: node for node in nodes}
    region_of: dict[Node, Item] = {by_name[name]: region for region in partition.regions for name in region.nodes}
    items: dict[Item, int] = {}
    for node in nodes:
        item: Item = region_of.get(node) or node
        items.setdefault(item, places[node])
    reads: dict[Item, set[Item]] = {}
    effect: Node | None = None
    for item in items:
        sources = item.all_input_nodes if isinstance(item, Node) else _read_by(item, by_name)
        reads[item] = {region_of.get(source, source) for source in sources} - {item}
        if isinstance(item, Node) and _has_order(item):
            if effect is not None:
                reads[item].add(effect)
            effect = item
    waiting = {item: len(sources) for item, sources in reads.items()}
    readers: dict[Item, list[Item]] = {item: [] for item in items}
    for item, sources in reads.items():
        for source in sources:
            readers[source].append(item)
    ready = [(items[item], item) for item, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[Item] = []
    while ready:
        _, item = heapq.heappop(ready)
        order.append(item)
        for reader in readers[item]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, (items[reader], reader))
    assert len(order) == len(items), "the regions make a cycle"
    return order


def _read_by(region: Region, by_name: Mapping[str, Node]) -> list[Node]:
    """What a region reads: tensors, and inputs that are its sizes or have them."""
    read = [by_name[node.name] for node in region.extract.inputs]
    if region.sizes is not None:
        read += [region.sizes.symbols.sources[name][0] for name in region.sizes.names]
    return read


def _has_order(node: Node) -> bool:
    """Whether a node draws random numbers, or does more than to give a value."""
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return node.op == "call_function" and (random or (family_of(node) is Family.OTHER and node.is_impure()))


def _call(
    graph: torch.fx.Graph,
    env: dict[Node, Node],
    by_name: Mapping[str, Node],
    region: Region,
    function: Callable[..., Any],
) -> None:
    extract = region.extract
    given = [
        _permuted(graph, env[by_name[n.name]], order)
        for n, order in zip(extract.inputs, extract.input_orders, strict=True)
    ]
    several = len(extract.outputs) > 1
    if region.sizes is None:
        call = graph.call_function(function, tuple(given))
    else:
        several = True
        sources = (region.sizes.symbols.sources[name] for name in region.sizes.names)
        call = graph.call_function(function, (given, [_size(graph, env[n], dim) for n, dim in sources]))
    for n, (node, order) in enumerate(zip(extract.outputs, extract.output_orders, strict=True)):
        result = graph.call_function(operator.getitem, (call, n)) if several else call
        env[by_name[node.name]] = _permuted(graph, result, tuple(order.index(d) for d in range(len(order))))


def _size(graph: torch.fx.Graph, node: Node, dim: int | None) -> Node:
    """An input that is a size, or the size of a dimension of one."""
    return node if dim is None else graph.call_function(torch.ops.aten.sym_size.int, (node, dim))


def _permuted(graph: torch.fx.Graph, node: Node, order: tuple[int, ...]) -> Node:
    if order == tuple(range(len(order))):
        return node
    return graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
