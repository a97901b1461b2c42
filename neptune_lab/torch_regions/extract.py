"""A group of nodes as a graph of its own, from contiguous inputs to contiguous results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.node import map_arg

from neptune_lab.errors import DefinitionError
from neptune_lab.hashed import digest_of
from neptune_lab.torch_regions.canonical import canonical
from neptune_lab.torch_regions.families import Family, family_of, is_getitem, name_of, owner_of
from neptune_lab.torch_regions.tensors import bytes_of, is_dense, is_static, memory_order, tensor_of

Node = torch.fx.Node

# The most operations that a group computes again for itself, in place of reading their large result.
_MOST_REPEATED = 24


@dataclass(frozen=True, eq=False)
class Extract:
    """A group of nodes as a graph.

    A dense tensor whose dimensions are permuted in memory is passed as a view that is contiguous; the graph permutes it
    back.  Results are given likewise, so that they have the strides that they have in the whole graph.

    Args:
        module: the group as a graph; its results are a tuple.
        inputs: the whole graph's nodes that it reads.
        outputs: the group's nodes that others read.
        input_orders, output_orders: for each, its dimensions in the order in which they are in memory.
        body, read: names of the whole graph's nodes that the group computes, and that it reads.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    input_orders: tuple[tuple[int, ...], ...]
    output_orders: tuple[tuple[int, ...], ...]
    body: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A digest of the graph: equal for regions that compute the same, with tensors of the same shapes."""
        return key_of(self.module.graph)


def extracted(group: Sequence[Node], hidden: Collection[Node] = ()) -> Extract:
    """A group of nodes as a graph.

    Args:
        group: nodes in their graph's order.
        hidden: `hidden_by` all groups of the graph; this one reads none of other groups' that are hidden.

    Returns:
        The graph.  It repeats views, and small computations of masks, in place of reading their results.
    """
    inside = set(group)
    repeated = _repeated(inside, hidden)
    outputs = tuple(n for n in group if not _several(n) and any(user not in inside for user in n.users))
    needed = _needed(outputs, inside | repeated)
    body = [n for n in next(iter(group)).graph.nodes if n in needed]
    read = tuple(dict.fromkeys(s for n in body for s in n.all_input_nodes if s not in needed))
    return _built(body, read, outputs, tuple(map(memory_order, read)), tuple(map(memory_order, outputs)))


def extracted_as(graph: torch.fx.Graph, like: Extract) -> Extract:
    """The nodes of another extract, from a graph that differs in sizes alone.

    Raises:
        DefinitionError: the group reads other tensors at these sizes.
    """
    by_name = {node.name: node for node in graph.nodes}
    body, read = [by_name[name] for name in like.body], tuple(by_name[name] for name in like.read)
    orders = {n.name: order for n, order in zip(like.inputs, like.input_orders, strict=True)}
    kept = tuple(orders.get(n.name) or memory_order(n) for n in read)
    made = _built(body, read, tuple(by_name[n.name] for n in like.outputs), kept, like.output_orders)
    if [n.name for n in made.inputs] != [n.name for n in like.inputs]:
        raise DefinitionError("a region reads other tensors at other sizes", help="it has a kernel per size")
    return made


def _built(
    body: Sequence[Node],
    read: tuple[Node, ...],
    outputs: tuple[Node, ...],
    read_orders: tuple[tuple[int, ...], ...],
    output_orders: tuple[tuple[int, ...], ...],
) -> Extract:
    """The operations of a region as a graph of their own, with inputs and outputs in the given orders of dimensions."""
    graph = torch.fx.Graph()
    env: dict[Node, Node] = {}
    orders = dict(zip(read, read_orders, strict=True))
    numbers = {n: number for n in read if (number := _number(n)) is not None}
    placeholders: dict[Node, Node] = {}
    for node in read:
        if node not in numbers:
            placeholders[node], env[node] = _input(graph, node, orders[node])
    for node, number in numbers.items():
        env[node] = _constant(graph, node, number)
    for node in body:
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(tuple(_permuted(graph, env[n], o) for n, o in zip(outputs, output_orders, strict=True)))
    canonical(graph)
    # What an operation read for its shape alone, such as x of ones_like(x), is no input of the region.
    inputs = tuple(n for n, placeholder in placeholders.items() if placeholder.users)
    for placeholder in placeholders.values():
        if not placeholder.users:
            graph.erase_node(placeholder)
    input_orders = tuple(orders[n] for n in inputs)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    names = tuple(n.name for n in body), tuple(n.name for n in read)
    return Extract(module, inputs, outputs, input_orders, output_orders, *names)


def hidden_by(groups: Sequence[Sequence[Node]]) -> set[Node]:
    """The nodes of groups that only their own group reads, so that they are no result of it.

    Args:
        groups: of a graph's nodes.

    Returns:
        The nodes.
    """
    return {node for group in groups for inside in [set(group)] for node in group if inside.issuperset(node.users)}


def _several(node: Node) -> bool:
    return any(is_getitem(user) for user in node.users)


def _needed(outputs: Sequence[Node], allowed: set[Node]) -> set[Node]:
    needed, waiting = set[Node](), list(outputs)
    while waiting:
        node = waiting.pop()
        if node in allowed and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def _repeated(inside: set[Node], hidden: Collection[Node]) -> set[Node]:
    """Views that the group reads, and masks that are larger than what they are computed from."""
    found: set[Node] = set()
    waiting = [s for n in inside for s in n.all_input_nodes if s not in inside]
    while waiting:
        node = waiting.pop()
        if node in found or node in inside or not is_static(node):
            continue
        own = _in_place(node, inside) or _from_less(node, inside)
        read = {s for n in own for s in n.all_input_nodes} - own
        # Formal statement: what a region reads is an input of the graph, runs in torch, or is a result of a region.
        if not read.intersection(hidden):
            found |= own
            waiting += read
    return found


def _in_place(node: Node, inside: set[Node]) -> set[Node]:
    """A tensor made without data, or a view that is not contiguous, with the views that lead to it; else nothing."""
    if family_of(node) is Family.CREATION:
        return {node}
    own: set[Node] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if family_of(part) is Family.VIEW and not is_dense(part) and part not in inside:
            own.add(part)
            waiting += part.all_input_nodes
    return own


def _from_less(node: Node, inside: set[Node]) -> set[Node]:
    """The operations that compute `node` from tensors with less than half its bytes; none if it is no such mask."""
    if family_of(node) is not Family.POINTWISE or is_getitem(node):
        return set()
    own: set[Node] = set()
    read: set[Node] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part in own or part in read:
            continue
        family = family_of(part)
        small = bytes_of(part) * 2 <= bytes_of(node) and family is not Family.VIEW
        if family in (Family.VIEW, Family.CREATION) or (family is Family.POINTWISE and not small):
            if part in inside or owner_of(part) in inside or not is_static(part):
                return set()
            own.add(part)
            waiting += part.all_input_nodes
        else:
            read.add(part)
    return own if len(own) <= _MOST_REPEATED and sum(map(bytes_of, read)) * 2 <= bytes_of(node) else set()


def _input(graph: torch.fx.Graph, node: Node, order: tuple[int, ...]) -> tuple[Node, Node]:
    """The placeholder of a contiguous view, and the tensor as the whole graph has it."""
    placeholder = graph.placeholder(node.name)
    value = tensor_of(node)
    assert value is not None
    placeholder.meta = {**node.meta, "val": value.permute(order).contiguous()}
    back = tuple(order.index(d) for d in range(len(order)))
    return placeholder, _permuted(graph, placeholder, back)


def _number(node: Node) -> float | int | bool | None:
    """The number of a literal, such as torch.tensor(0.5) in a traced function; None for other nodes."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None or any(name_of(user) != "lift_fresh_copy" for user in node.users):
        return None
    held = getattr(owner, str(node.target), None)
    if not isinstance(held, torch.Tensor) or isinstance(held, FakeTensor | torch.nn.Parameter) or held.ndim:
        return None
    with unset_fake_temporarily():
        return None if held.is_complex() else held.item()


def _constant(graph: torch.fx.Graph, node: Node, number: float | int | bool) -> Node:
    value = tensor_of(node)
    assert value is not None
    made = graph.call_function(
        torch.ops.aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device}
    )
    made.meta = dict(node.meta)
    return made


def _permuted(graph: torch.fx.Graph, node: Node, order: tuple[int, ...]) -> Node:
    if order == tuple(range(len(order))):
        return node
    made = graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
    made.meta = {**node.meta, "val": node.meta["val"].permute(order)}
    return made


def key_of(graph: torch.fx.Graph) -> str:
    """A digest of what a graph computes.

    Args:
        graph: its nodes have fake values.

    Returns:
        A digest: graphs with the same one differ in names alone.
    """
    numbers = {node: n for n, node in enumerate(graph.nodes)}

    def plain(argument: Any) -> Any:
        return f"%{numbers[argument]}"

    lines = []
    for node in graph.nodes:
        args = map_arg((node.args, node.kwargs), plain)
        value = tensor_of(node)
        facts = "" if value is None else f"{tuple(value.shape)} {value.dtype} {value.device}"
        target = "" if node.op in ("placeholder", "output") else str(node.target)
        lines.append(f"{node.op} {target} {args} {facts}")
    return digest_of("\n".join(lines))
