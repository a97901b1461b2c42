"""What a group of nodes holds: attention, softmax, norms, losses, and other reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from neptune_lab.torch_regions.families import (
    ATTENTION,
    LOG_SOFTMAX,
    LOSSES,
    NORMS,
    SOFTMAX,
    Family,
    family_of,
    is_getitem,
    name_of,
)
from neptune_lab.torch_regions.tensors import elements_of

Node = torch.fx.Node

_ROOTS = ("rsqrt", "sqrt", "reciprocal", "div")


@dataclass(frozen=True, slots=True)
class Holding:
    """One chain of reductions in a group.

    Args:
        kind: "attention", "softmax", "norm", "loss", "product" (one that is reduced, or follows a reduction) or
            "reduction".
        node: the name of its first node in the graph.
    """

    kind: str
    node: str


def chains(group: Sequence[Node]) -> tuple[Holding, ...]:
    """The chains of reductions in a group.

    Args:
        group: nodes, in the graph's order.

    Returns:
        What they hold; nothing if no reduction meets another one, or elements of what it reduced.
    """
    inside, used, found = set(group), set[Node](), []
    for node in group:
        if node in used or is_getitem(node):
            continue
        chain = _whole_operation(node, inside) or _spelled(node, inside)
        if chain is not None and not used & set(chain[1]):
            used |= set(chain[1])
            found.append((chain[0], chain[1][0]))
    left = [n for n in group if n not in used and not is_getitem(n) and _reduces(n)]
    found += [("product" if family_of(n) is Family.PRODUCT else "reduction", n) for n in left]
    named = any(kind not in ("product", "reduction") for kind, _ in found)
    reductions = [n for n in left if family_of(n) is Family.REDUCTION]
    if not named and len(left) < 2 and not any(_returns_to_elements(n, inside) for n in reductions):
        return ()
    places = {node: n for n, node in enumerate(group)}
    return tuple(Holding(kind, node.name) for kind, node in sorted(found, key=lambda f: places[f[1]]))


def _whole_operation(node: Node, inside: set[Node]) -> tuple[str, list[Node]] | None:
    """A chain that is one operation, with the products or the loss around it."""
    name = name_of(node)
    if name in ATTENTION:
        return "attention", [node]
    if name in NORMS:
        return "norm", [node]
    if name in LOSSES:
        return "loss", [node]
    if name in LOG_SOFTMAX:
        after = [n for n in _after(node, inside) if name_of(n) in LOSSES]
        return ("loss", [node, after[0]]) if after else ("softmax", [node])
    if name in SOFTMAX:
        return _between_products([node], inside) or ("softmax", [node])
    return None


def _spelled(node: Node, inside: set[Node]) -> tuple[str, list[Node]] | None:
    """A softmax or a norm that is written as its reductions."""
    name = name_of(node)
    if name in ("amax", "max"):
        after = _after(node, inside)
        exponentials = [n for n in after if name_of(n) in ("exp", "exp2")]
        sums = [n for n in after if name_of(n) == "sum"]
        if exponentials and sums:
            return _between_products([node, sums[0]], inside) or ("softmax", [node, sums[0]])
    if name in ("mean", "sum", "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm"):
        after = _after(node, inside)
        if any(name_of(n) in _ROOTS for n in after) and _returns_to_elements(node, inside):
            before_root = _after(node, {n for n in inside if name_of(n) not in ("rsqrt", "sqrt", "reciprocal")})
            others = [n for n in before_root if name_of(n) in ("mean", "sum", "var")]
            return "norm", [node, *(n for n in others if _shape(n) == _shape(node))]
    return None


def _between_products(nodes: list[Node], inside: set[Node]) -> tuple[str, list[Node]] | None:
    before = [n for n in _before(nodes[0], inside) if family_of(n) is Family.PRODUCT]
    after = [n for n in _after(nodes[-1], inside) if family_of(n) is Family.PRODUCT]
    return ("attention", [*before[:1], *nodes, after[0]]) if after and before else None


def _shape(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _reduces(node: Node) -> bool:
    return family_of(node) in (Family.REDUCTION, Family.PRODUCT)


def _after(node: Node, inside: set[Node]) -> list[Node]:
    """All nodes of the group that depend on a node, the nearest first."""
    return _reached(node, inside, lambda one: one.users)


def _before(node: Node, inside: set[Node]) -> list[Node]:
    """All nodes of the group that a node depends on, the nearest first."""
    return _reached(node, inside, lambda one: one.all_input_nodes)


def _reached(node: Node, inside: set[Node], neighbours: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """All nodes of the group that are neighbours of a node, or of such ones, the nearest first."""
    found: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        for other in neighbours(waiting.pop(0)):
            if other in inside and other not in found:
                found[other] = None
                waiting.append(other)
    return list(found)


def _returns_to_elements(node: Node, inside: set[Node]) -> bool:
    """Whether what was reduced meets a tensor as large as what it was reduced from."""
    read = max((_elements(s) for s in node.all_input_nodes), default=0)
    return any(_elements(n) >= read > _elements(node) for n in _after(node, inside))


def _elements(node: Node) -> int:
    return elements_of(node)
