"""The parts of a partitioned graph in an order in which they can run: regions, and what is apart between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import networkx as nx

from neptune_lab.torch_regions import Apart, Partition, Region
from neptune_lab.torch_regions.families import Family, family_of
from neptune_lab.torch_regions.partition import lines_of
from neptune_lab.torch_to_stages.lines import SourceLine


@dataclass(frozen=True, slots=True)
class Reason:
    """Why operations were left apart.

    Args:
        text: the reason, without a full stop.
        operations: the operations and how often each occurs, such as "mm, view × 2".
        lines: the user's lines behind them.
        holds: the chains of reductions in them, in words; "" without any.
    """

    text: str
    operations: str
    lines: tuple[SourceLine, ...]
    holds: str


@dataclass(frozen=True, eq=False)
class Part:
    """A region, or operations that stay apart and follow one another.

    Args:
        nodes: names of the graph's nodes.
        region: the region; None if torch runs the operations.
        number: of the region, from 1 through all graphs; 0 without one.
        reasons: why they are apart, one entry per reason; empty for a region.
        operations: the operations and how often each occurs.
        reads: positions of the parts of its graph that it reads.
    """

    nodes: tuple[str, ...]
    region: Region | None
    number: int
    reasons: tuple[Reason, ...]
    operations: str
    reads: tuple[int, ...]


def parts_of(partition: Partition, first: int = 1) -> tuple[Part, ...]:
    """The parts of a partition; every operation is in exactly one.

    Args:
        partition: of a graph.
        first: the number of its first region.

    Returns:
        The parts; each reads earlier ones only.
    """
    calls = [n for n in partition.graph.nodes if n.op == "call_function"]
    position = {n.name: k for k, n in enumerate(calls)}
    region_of = {name: r for r in partition.regions for name in r.nodes}
    owner = {n.name: id(region_of[n.name]) if n.name in region_of else n.name for n in calls}
    order = nx.DiGraph()
    for node in calls:
        order.add_node(owner[node.name])
        for source in node.all_input_nodes:
            if source.name in owner and owner[source.name] != owner[node.name]:
                order.add_edge(owner[source.name], owner[node.name])
    starts: dict[int | str, int] = {}
    for name, k in position.items():
        starts.setdefault(owner[name], k)
    # Neighbours in this order that are apart become one part, which keeps the order of parts one of their dependences.
    runs: list[list[str]] = []
    regions: list[Region | None] = []
    members: dict[int | str, list[str]] = {}
    for name, own in owner.items():
        members.setdefault(own, []).append(name)
    for own in nx.lexicographical_topological_sort(order, key=starts.__getitem__):
        region = region_of.get(members[own][0])
        if region is None and regions and regions[-1] is None:
            runs[-1] += members[own]
        else:
            runs.append(list(members[own]))
            regions.append(region)
    at = {name: k for k, run in enumerate(runs) for name in run}
    numbers = iter(range(first, first + len(partition.regions)))
    operation = {n.name: _operation(n.target) for n in calls}
    reads: list[set[int]] = [set() for _ in runs]
    for node in calls:
        reads[at[node.name]] |= {at[s.name] for s in node.all_input_nodes if s.name in at} - {at[node.name]}
    return tuple(
        Part(
            nodes=tuple(run),
            region=region,
            number=0 if region is None else next(numbers),
            reasons=() if region is not None else _reasons(run, partition, operation),
            operations=_counted(operation[name] for name in run),
            reads=tuple(sorted(reads[k])),
        )
        for k, (run, region) in enumerate(zip(runs, regions, strict=True))
    )


def _reasons(run: list[str], partition: Partition, operation: dict[str, str]) -> tuple[Reason, ...]:
    """The reasons of operations that are apart, the first operation's first."""
    found = []
    for apart in partition.apart:
        own = [name for name in run if name in set(apart.nodes)]
        if own:
            found.append((run.index(own[0]), _reason(apart, own, partition, operation)))
    return tuple(reason for _, reason in sorted(found, key=lambda pair: pair[0]))


def _reason(apart: Apart, own: list[str], partition: Partition, operation: dict[str, str]) -> Reason:
    """The reason for those operations of an entry that are in one part; views, which cost nothing, name no lines."""
    nodes = [n for n in partition.graph.nodes if n.name in own]
    lines = lines_of([n for n in nodes if family_of(n) is not Family.VIEW])
    holds = ", ".join(dict.fromkeys(h.kind for h in apart.holds if h.node in own))
    return Reason(apart.reason, _counted(operation[name] for name in own), lines, holds)


def _operation(target: object) -> str:
    """The name of an operation without its overload: "mm" of aten.mm.default.

    >>> import operator
    >>> _operation(operator.getitem)
    'getitem'
    """
    name = getattr(target, "_opname", None) or getattr(target, "__name__", str(target))
    return str(name).removesuffix(".default")


def _counted(names: object) -> str:
    """Names in the order of their first use, with how often each occurs.

    >>> _counted(["view", "mm", "view"])
    'view × 2, mm'
    """
    count = Counter(names)  # type: ignore[call-overload]
    return ", ".join(name if n == 1 else f"{name} × {n}" for name, n in count.items())


__all__ = ["Part", "Reason", "parts_of"]
