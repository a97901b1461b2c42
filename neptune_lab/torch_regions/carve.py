"""Carves a graph of ATen operations into groups of nodes that hold chains of reductions.

A group begins with a reduction, or with a product of two activations.  It takes what depends on it element by element,
and further reductions of that; then the elementwise operations that it reads.  A product with a weight stays apart
unless its result is reduced at once, as in a linear cross entropy: then the group takes it, so that it is never stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from neptune_lab.torch_regions.extrema import compared
from neptune_lab.torch_regions.families import (
    ATTENTION,
    LOG_SOFTMAX,
    SOFTMAX,
    Family,
    family_of,
    is_getitem,
    keeps_more,
    name_of,
    owner_of,
    reads_in_place,
)
from neptune_lab.torch_regions.groups import Groups
from neptune_lab.torch_regions.holdings import chains
from neptune_lab.torch_regions.tensors import elements_of, is_dense, is_static, tensor_of, tensors_of

Node = torch.fx.Node

# Elementwise operations that a product may read without being stored first: computing them for each tile costs nothing.
_SCALINGS = ("mul", "div", "neg", "_to_copy", "clone")
# Products without a batch: of a linear layer as a rule.
_UNBATCHED = ("mm", "addmm", "linear", "mv", "dot", "outer")


def carved(
    graph: torch.fx.Graph, weights: Collection[Node] = (), *, records_gradients: bool = False
) -> list[list[Node]]:
    """The groups of a graph's nodes that are worth compiling.

    Args:
        graph: of ATen operations without side effects; its nodes have fake values.
        weights: its inputs that are parameters.
        records_gradients: it is a forward graph with a backward graph, or that one.

    Returns:
        The groups, each in the graph's order.  Their quotient graph has no cycle.
    """
    return _Carver(graph, frozenset(weights), compared(graph) if records_gradients else set()).groups()


class _Carver:
    def __init__(self, graph: torch.fx.Graph, weights: frozenset[Node], torchs: set[Node]) -> None:
        self.nodes = [n for n in graph.nodes if n.op != "output"]
        self.found = Groups(graph.nodes)
        self.weights = weights
        kept = {n for n in self.nodes if keeps_more(owner_of(n))} | torchs
        known = (n for n in self.nodes if family_of(n) not in (Family.INPUT, Family.OTHER) and n not in kept)
        self.taken = {n for n in known if _readable(n)}

    def groups(self) -> list[list[Node]]:
        for node in self.nodes:
            self._forward(node)
        for group in list(self.found):
            self._backward(group)
        for group in list(self.found):
            self._reduced_product(group)
        for group in list(self.found):
            self._trim(group)
        for group in list(self.found):
            if not chains(self.found.sorted(group)):
                self.found.drop(group)
        return [self.found.sorted(group) for group in self.found]

    def _forward(self, node: Node) -> None:
        """Starts a group with `node`, or lets the groups that it reads take it."""
        if node not in self.taken:
            return
        family, sources = family_of(node), [s for s in node.all_input_nodes if self.found.of(s) is not None]
        if is_getitem(node):
            if sources:
                self.found.join([node, *sources])
            return
        if family is Family.PRODUCT:
            weighted = any(self._is_weight(s) for s in node.all_input_nodes)
            sources = [s for s in sources if self._holds_scores(s)]
            if not sources and (weighted or name_of(node) in _UNBATCHED):
                return
            if sources and weighted:
                return
        elif name_of(node) in ATTENTION:
            sources = []
        elif family is Family.MOVE:
            sources = [s for s in sources if self._holds_scores(s)]
        elif family is Family.VIEW and _has_other_rows(node):
            return
        if family in (Family.REDUCTION, Family.PRODUCT) or sources:
            self._join(node, sources)

    def _join(self, node: Node, sources: list[Node]) -> None:
        """Joins `node` with the groups of all its sources, or of the last one with which there is no cycle."""
        if self.found.join([node, *sources]) is not None:
            return
        for source in reversed(self.found.sorted(sources)):
            if self.found.join([node, source]) is not None:
                return
        if family_of(node) in (Family.REDUCTION, Family.PRODUCT):
            self.found.join([node])

    def _holds_scores(self, node: Node) -> bool:
        """Whether a product or a softmax of the node's group leads to it: its values are worth more than storing."""
        group = self.found.of(node) or set()
        seen, waiting = set[Node](), [node]
        while waiting:
            part = waiting.pop()
            if part in seen or part not in group:
                continue
            if family_of(part) is Family.PRODUCT or name_of(part) in (*SOFTMAX, *LOG_SOFTMAX):
                return True
            seen.add(part)
            waiting += part.all_input_nodes
        return False

    def _is_weight(self, node: Node) -> bool:
        """Whether the node is a parameter, perhaps viewed or converted."""
        while node not in self.weights:
            family = family_of(node)
            if family is not Family.VIEW and name_of(node) not in ("_to_copy", "clone"):
                return False
            if not node.all_input_nodes:
                return False
            node = node.all_input_nodes[0]
        return True

    def _backward(self, group: set[Node]) -> None:
        """Takes elementwise operations that the group reads."""
        waiting = self.found.sorted({s for n in group for s in n.all_input_nodes} - group)
        while waiting:
            node = waiting.pop()
            if node in group or node not in self.taken or self.found.of(node) is not None:
                continue
            if family_of(node) not in (Family.POINTWISE, Family.VIEW) or not self._wants(group, node):
                continue
            joined = self.found.join([node, next(iter(group))])
            if joined is None:
                continue
            group.add(node)
            self.found.join(group)
            waiting = self.found.sorted({*waiting, *node.all_input_nodes} - group)

    def _wants(self, group: set[Node], node: Node) -> bool:
        readers = [user for user in node.users if user in group]
        operand = any(family_of(user) is Family.PRODUCT or name_of(user) in ATTENTION for user in _through_views(node))
        alone = len(readers) == len(node.users)
        if family_of(node) is Family.VIEW:
            return alone and reads_in_place(node)
        if operand:
            return alone and name_of(node) in _SCALINGS and len(node.all_input_nodes) == 1
        if not all(_has_data(source) for source in node.all_input_nodes):
            return alone
        whole = max(elements_of(reader) for reader in readers)
        return alone or elements_of(node) >= max(whole, *(elements_of(s) for s in node.all_input_nodes))

    def _reduced_product(self, group: set[Node]) -> None:
        """Takes a product whose result nothing but the group reads, if all that the group gives is smaller."""
        for source in self.found.sorted({s for n in group for s in n.all_input_nodes} - group):
            path = [source]
            while family_of(path[-1]) is Family.VIEW and path[-1].all_input_nodes:
                path.append(path[-1].all_input_nodes[0])
            product = path[-1]
            if family_of(product) is not Family.PRODUCT or not all(n in self.taken for n in path):
                continue
            if self._is_only_reduced(product, path, group):
                joined = self.found.join([*path, *group])
                if joined is not None:
                    group |= joined

    def _is_only_reduced(self, product: Node, path: list[Node], group: set[Node]) -> bool:
        """Whether only the group reads a product, and it gives less than the product, or multiplies it again."""
        inside = group | set(path)
        if any(user not in inside for node in path for user in node.users):
            return False
        operands = [s for s in product.all_input_nodes if not self._is_weight(s)]
        if len(operands) > 1 and any(family_of(n) is Family.PRODUCT for n in group):
            return True
        given = [n for n in group if any(u not in inside for u in n.users) and not _is_several(n)]
        large = elements_of(product) > max((elements_of(s) for s in operands), default=0)
        return large and all(elements_of(n) * 2 <= elements_of(product) for n in given)

    def _trim(self, group: set[Node]) -> None:
        """Leaves out views at the group's ends, which cost nothing where they are."""
        while ends := [n for n in group if self._is_end(group, n)]:
            self.found.leave(ends)

    def _is_end(self, group: set[Node], node: Node) -> bool:
        if family_of(node) is not Family.VIEW or is_getitem(node) or _is_several(node):
            return False
        last = not any(user in group for user in node.users)
        return last or (is_dense(node) and not any(source in group for source in node.all_input_nodes))


def _is_several(node: Node) -> bool:
    return any(is_getitem(user) for user in node.users)


def _has_other_rows(node: Node) -> bool:
    """Whether a view joins or splits the last dimension: what follows has no tile in common with what was before."""
    before, after = tensor_of(node.all_input_nodes[0]), tensor_of(node)
    if name_of(node) not in ("view", "_unsafe_view") or before is None or after is None:
        return False
    return before.shape[-1:] != after.shape[-1:] and _last(before) != _last(after)


def _last(tensor: torch.Tensor) -> int:
    """The size of the last dimension of several elements: einsum appends dimensions of one, and drops them."""
    return next((n for n in reversed(tensor.shape) if n != 1), 1)


def _readable(node: Node) -> bool:
    """Whether all tensors that a node reads and gives have a fixed shape and elements, and floats are real."""
    tensors = [t for n in (node, *node.all_input_nodes) for t in tensors_of(n)]
    if not tensors or not all(is_static(n) for n in (node, *node.all_input_nodes)):
        return False
    if any(isinstance(a, torch.SymInt | torch.SymFloat) for a in node.args):
        return False
    own = tensor_of(node)
    return all(t.layout is torch.strided and not t.is_complex() for t in tensors) and (own is None or own.numel() > 0)


def _has_data(node: Node) -> bool:
    return family_of(node) is not Family.CREATION


def _through_views(node: Node) -> Iterable[Node]:
    """What reads a node, or a view of it."""
    for user in node.users:
        if family_of(user) is Family.VIEW:
            yield from _through_views(user)
        else:
            yield owner_of(user)
