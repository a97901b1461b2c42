"""Parts of a graph that depend on no argument: what kernels cannot compute of them is computed once, by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from neptune_lab.torch_to_stages.graph import Graph

# The most elements of a tensor that is computed ahead and kept with the operator.
MOST = 1 << 24


@dataclass(slots=True)
class Known:
    """The nodes of a graph whose values no argument changes.

    Args:
        held: the tensor of each placeholder that is not an argument: parameters, buffers, constants.
        nodes: those whose values depend on these alone, and draw no random numbers.
    """

    held: Mapping[torch.fx.Node, torch.Tensor]
    nodes: frozenset[torch.fx.Node]
    _values: dict[torch.fx.Node, Any] = field(default_factory=dict)

    def value(self, node: torch.fx.Node) -> Any:
        """What torch computes for a node.

        Args:
            node: one of `nodes`.

        Returns:
            Its value: a tensor, or several.  A tensor of floats that is computed from one that records gradients does
            so too, as a tensor of its own.
        """
        if node in self.held:
            return self.held[node].detach()
        if node not in self._values:
            # Operands first, in the order of the graph, without recursion.
            needed, waiting = {node}, [node]
            while waiting:
                for operand in waiting.pop().all_input_nodes:
                    if operand not in needed and operand not in self._values and operand not in self.held:
                        needed.add(operand)
                        waiting.append(operand)
            for each in (n for n in node.graph.nodes if n in needed):
                args, kwargs = torch.fx.node.map_arg((each.args, each.kwargs), self._read)  # type: ignore[misc]
                target: Callable[..., Any] = each.target  # type: ignore[assignment]
                with torch.no_grad():
                    self._values[each] = target(*args, **kwargs)
                value, records = self._values[each], any(map(self._records_gradients, each.all_input_nodes))
                if records and isinstance(value, torch.Tensor) and value.is_floating_point():
                    self._values[each] = value.detach().requires_grad_()
        return self._values[node]

    def _records_gradients(self, node: torch.fx.Node) -> bool:
        value = self.held[node] if node in self.held else self._values[node]
        return isinstance(value, torch.Tensor) and value.requires_grad

    def _read(self, node: torch.fx.Node) -> Any:
        return self.held[node].detach() if node in self.held else self._values[node]


def known(graph: Graph, placeholders: Mapping[str, torch.fx.Node]) -> Known:
    """The part of `graph` that no argument changes.

    Args:
        graph: from `trace`.
        placeholders: of its tensors, by name.

    Returns:
        The nodes, which can be evaluated.
    """
    held = {placeholders[name]: tensor for name, tensor in graph.held.items()}
    found: set[torch.fx.Node] = set()
    for node in graph.module.graph.nodes:
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        if all(n in found or n in held for n in node.all_input_nodes):
            found.add(node)
    return Known(held, frozenset(found))
