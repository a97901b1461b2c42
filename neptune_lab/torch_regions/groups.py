"""Groups of a graph's nodes that grow without cycles: each group can be one node of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

Node = torch.fx.Node


class Groups:
    """Disjoint sets of nodes.

    Formal statement: the graph in which each set is one node has no cycle.  `join` keeps it.

    Args:
        nodes: of the graph, in its order.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._order = {node: n for n, node in enumerate(nodes)}
        self._of: dict[Node, set[Node]] = {}

    def of(self, node: Node) -> set[Node] | None:
        """The group that has the node; None if none has."""
        return self._of.get(node)

    def __iter__(self) -> Iterator[set[Node]]:
        """The groups, each once, by their first node."""
        seen: set[int] = set()
        for node in sorted(self._of, key=self._order.__getitem__):
            group = self._of[node]
            if id(group) not in seen:
                seen.add(id(group))
                yield group

    def sorted(self, nodes: Iterable[Node]) -> list[Node]:
        """Nodes in the graph's order."""
        return sorted(nodes, key=self._order.__getitem__)

    def join(self, nodes: Iterable[Node]) -> set[Node] | None:
        """Makes one group of nodes and of the groups that have them.

        Args:
            nodes: at least one.

        Returns:
            The group; None, and nothing changes, if that would make a cycle.
        """
        merged: set[Node] = set()
        for node in nodes:
            merged |= self._of.get(node) or {node}
        if self._cyclic(merged):
            return None
        for node in merged:
            self._of[node] = merged
        return merged

    def leave(self, nodes: Iterable[Node]) -> None:
        """Takes nodes out of their groups.

        Args:
            nodes: that nothing else of their group reads, or that read nothing else of it.
        """
        for node in nodes:
            group = self._of.pop(node, None)
            if group is not None:
                group.discard(node)

    def drop(self, group: set[Node]) -> None:
        """Dissolves a group."""
        self.leave(list(group))

    def _cyclic(self, merged: set[Node]) -> bool:
        """Whether a path leaves `merged` and comes back, through other groups too."""
        limit = self._limit(merged)
        waiting = [user for node in merged for user in node.users if user not in merged]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in merged:
                return True
            if node in seen or self._order[node] > limit:
                continue
            group = self._of.get(node) or {node}
            seen |= group
            waiting += [user for member in group for user in member.users if user not in group]
        return False

    def _limit(self, merged: set[Node]) -> int:
        """The last place in the order from which a path could come back: a group leads back to its own first node."""
        limit = max(self._order[node] for node in merged)
        spans = sorted((min(places), max(places)) for g in self for places in [[self._order[n] for n in g]])
        for first, last in spans:
            if first <= limit:
                limit = max(limit, last)
        return limit
