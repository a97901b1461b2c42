"""The partition of a graph: regions are carved, compiled, and given back with the reason if that is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from neptune_lab.errors import NeptuneError
from neptune_lab.runtime.torch_op import NAMESPACE
from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.torch_regions.carve import carved
from neptune_lab.torch_regions.compiled import compiled_region
from neptune_lab.torch_regions.extract import extracted, hidden_by
from neptune_lab.torch_regions.families import Family, family_of, is_getitem, keeps_more, name_of, owner_of
from neptune_lab.torch_regions.holdings import chains
from neptune_lab.torch_regions.record import Apart, Partition, Region
from neptune_lab.torch_regions.sizes import sizes_of
from neptune_lab.torch_regions.symbols import Symbols, symbols_of
from neptune_lab.torch_regions.tensors import is_static, tensor_of, tensors_of, traffic_apart
from neptune_lab.torch_to_stages.decompositions import decomposition
from neptune_lab.torch_to_stages.lines import SourceLine, is_users, lines_of_node
from neptune_lab.torch_to_stages.lowering import lowering_of
from neptune_lab.torch_to_stages.refusals import help_for

Node = torch.fx.Node

KEEPS_MORE = "an attention that torch differentiates: it is of float64, drops out weights, or its sizes vary"
OWN_KERNEL = "a kernel of this package's own, such as nl.attention or its derived backward pass"
SYMBOLIC = (
    "a size depends on values of tensors, or is no size of an input: take what computes it out of the compiled function"
)
_REASONS = {
    Family.PRODUCT: "a product whose result is needed whole: torch's own kernels (cuBLAS, or Inductor's) compute it",
    Family.POINTWISE: "elementwise operations that belong to no reduction: nothing is saved over fusing them with each "
    "other, which Inductor does",
    Family.VIEW: "views, which move nothing",
    Family.MOVE: "rearranges or looks up elements, without a reduction that reads them at once",
    Family.CREATION: "made without data",
    Family.REDUCTION: "one reduction alone: no other reduction and no element of what was reduced depends on it",
}


def partition(graph: torch.fx.Graph, weights: Collection[Node] = (), *, records_gradients: bool = False) -> Partition:
    """Carves a graph into regions that are compiled here, and the rest.

    Args:
        graph: of ATen operations without side effects, as AOTAutograd, make_fx or torch.export gives it; its nodes have
            fake values.
        weights: its inputs that are parameters: products with them stay apart.
        records_gradients: it is a forward graph with a backward graph, or that one.

    Returns:
        The regions with their kernels, and what stays apart with the reason.
    """
    regions: list[Region] = []
    apart: list[Apart] = []
    symbols = symbols_of(graph)
    carvable = graph
    if symbols is not None:  # carved at the sizes of this call
        carvable = symbols.at(symbols.hints)
        names = {node.name for node in weights}
        weights = [node for node in carvable.nodes if node.name in names]
    groups = carved(carvable, weights, records_gradients=records_gradients)
    hidden = hidden_by(groups)
    for group in groups:
        found = _region(group, f"region_{len(regions)}", hidden, symbols)
        if isinstance(found, Region):
            regions.append(found)
        else:
            apart.append(found)
    taken = {name for part in (*regions, *apart) for name in part.nodes}
    rest = [n for n in graph.nodes if n.op == "call_function" and n.name not in taken]
    alike = {n.name: n for n in carvable.nodes}
    return Partition(graph, tuple(regions), (*apart, *_others([(n, alike.get(n.name, n)) for n in rest])))


def partition_of_model(graph: torch.fx.Graph, examples: Sequence[Any]) -> Partition:
    """The partition of a graph that AOTAutograd traced, in which products with the model's parameters stay apart.

    Args:
        graph: of ATen operations; its inputs are those of Dynamo's graph.
        examples: the inputs of Dynamo's graph, in order.

    Returns:
        The partition.
    """
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) != len(examples):
        return partition(graph)
    return partition(graph, [n for n, t in zip(inputs, examples, strict=True) if isinstance(t, torch.nn.Parameter)])


def records_gradients(examples: Sequence[Any]) -> bool:
    """Whether gradients are recorded here for one of these inputs."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in examples)


def all_apart(graph: torch.fx.Graph, reason: str) -> Partition:
    """A graph of which nothing is compiled.

    Args:
        graph: of ATen operations.
        reason: why, as a sentence without a full stop.

    Returns:
        The partition, with the chains of reductions that could have been compiled.
    """
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    holds = tuple(h for group in carved(graph) for h in chains(group))
    names = tuple(n.name for n in nodes)
    return Partition(graph, (), (Apart(names, reason, holds, lines_of(nodes)),) if nodes else ())


def _region(group: Sequence[Node], name: str, hidden: Collection[Node], symbols: Symbols | None) -> Region | Apart:
    """A group of operations as a region with a kernel, or why its operations stay apart."""
    names, holds = tuple(n.name for n in group), chains(group)
    extract = extracted(group, hidden)
    before = traffic_apart(group)
    title = "_".join(dict.fromkeys(h.kind for h in holds))
    sizes = None
    if symbols is not None:
        inside = {*extract.body, *extract.read}
        varying = symbols.of([node for node in symbols.graph.nodes if node.name in inside])
        sizes = sizes_of(symbols, varying, extract, title) if varying else None
    try:
        compiled = (sizes and sizes.kernel) or compiled_region(extract, title)
    except NeptuneError as refusal:
        return Apart(names, f"refused: {refusal}", holds, lines_of(group))
    if compiled.after > before:
        reason = f"its kernels would move {compiled.after} bytes, its operations alone move {before}"
        return Apart(names, reason, holds, lines_of(group))
    return Region(
        name=name,
        nodes=names,
        holds=holds,
        inputs=_specs(extract.inputs),
        outputs=_specs(extract.outputs),
        before=before,
        after=compiled.after,
        lines=lines_of(group),
        operator=compiled.operator,
        kernel=compiled.kernel,
        extract=extract,
        sizes=sizes,
    )


def _specs(nodes: Sequence[Node]) -> tuple[TensorSpec, ...]:
    found = []
    for node in nodes:
        value = tensor_of(node)
        assert value is not None
        found.append(TensorSpec(node.name, tuple(value.shape), str(value.dtype).removeprefix("torch.")))
    return tuple(found)


def _others(nodes: Sequence[tuple[Node, Node]]) -> list[Apart]:
    """Nodes of no region, one entry per reason.

    Args:
        nodes: each with the node of its name at the sizes of the call.
    """
    by_reason: dict[str, list[Node]] = {}
    for node, alike in nodes:
        by_reason.setdefault(_reason(alike), []).append(node)
    return [Apart(tuple(n.name for n in own), reason, (), lines_of(own)) for reason, own in by_reason.items()]


def _reason(node: Node) -> str:
    owner = owner_of(node)
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return "computes a size"
    if not is_getitem(node) and not all(is_static(n) for n in (owner, *owner.all_input_nodes)):
        return SYMBOLIC
    if keeps_more(owner):
        return KEEPS_MORE
    family = family_of(owner)
    if family in _REASONS:
        return _REASONS[family]
    if getattr(owner.target, "namespace", "") == NAMESPACE:
        return OWN_KERNEL
    name = name_of(owner) or str(owner.target)
    if not tensors_of(owner):
        return f"{name} gives no tensor"
    help = help_for(name)
    overload = f"{name}.{getattr(owner.target, '_overloadname', '')}"
    if help is None and (lowering_of(overload) is not None or decomposition(owner.target) is not None):
        return f"{name}: each element looks through all others, and torch does not"
    return f"{name} is not supported" + (f": {help}" if help else "")


def lines_of(nodes: Sequence[Node]) -> tuple[SourceLine, ...]:
    """The innermost user's line behind each node, each once; torch's traces name torch's own modules, too."""
    found = ([line for line in lines_of_node(node) if is_users(line.path)][-1:] for node in nodes)
    return tuple(dict.fromkeys(line for lines in found for line in lines))
