"""The record of a partition: which regions of a graph were compiled, what stayed apart, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.torch_regions.holdings import Holding
from neptune_lab.torch_to_stages.lines import SourceLine

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel
    from neptune_lab.torch_regions.extract import Extract
    from neptune_lab.torch_regions.sizes import Sizes


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that were compiled to one operator.

    Args:
        name: such as "region_0", unique in its partition.
        nodes: names of the graph's nodes, in its order.
        holds: its chains of reductions.
        inputs, outputs: its tensors, with the names of nodes.
        before: bytes that its operations move if each is a kernel of its own.
        after: bytes that its kernels read from and write to HBM, at the sizes of the graph.
        lines: the user's lines behind its nodes, each once.
        operator: what was compiled.
        kernel: the compiled operator; regions that compute the same share it.
        extract: the region as a graph.
        sizes: how the region is at other sizes, if some differ between the calls of the graph; the fields above are
            those of the sizes that it was traced for.
    """

    name: str
    nodes: tuple[str, ...]
    holds: tuple[Holding, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    before: int
    after: int
    lines: tuple[SourceLine, ...]
    operator: Operator
    kernel: Kernel
    extract: Extract
    sizes: Sizes | None = None

    @property
    def title(self) -> str:
        """What it holds, in words: "norm, attention"."""
        return ", ".join(dict.fromkeys(h.kind for h in self.holds))

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "name": self.name,
            "nodes": list(self.nodes),
            "holds": [{"kind": h.kind, "node": h.node} for h in self.holds],
            "inputs": [str(t) for t in self.inputs],
            "outputs": [str(t) for t in self.outputs],
            "before": self.before,
            "after": self.after,
            "lines": [line.to_json() for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class Apart:
    """Nodes that torch runs.

    Args:
        nodes: their names, in the graph's order.
        reason: why they are not compiled here, as a sentence without a full stop.
        holds: the chains of reductions in them; none, unless a region was refused.
        lines: the user's lines behind them, each once.
    """

    nodes: tuple[str, ...]
    reason: str
    holds: tuple[Holding, ...] = ()
    lines: tuple[SourceLine, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "nodes": list(self.nodes),
            "reason": self.reason,
            "holds": [{"kind": h.kind, "node": h.node} for h in self.holds],
            "lines": [line.to_json() for line in self.lines],
        }


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph's regions, and what stays apart; every operation is in exactly one of them.

    Args:
        graph: of ATen operations, as it was given.
        regions: in the graph's order.
        apart: one entry per reason, refused regions one each.
    """

    graph: torch.fx.Graph
    regions: tuple[Region, ...]
    apart: tuple[Apart, ...]

    def holding(self, kind: str) -> tuple[int, int]:
        """How many chains of reductions of a kind were compiled, and how many were not.

        Args:
            kind: such as "attention"; see `Holding`.

        Returns:
            Compiled, and left apart.
        """
        compiled = sum(h.kind == kind for region in self.regions for h in region.holds)
        return compiled, sum(h.kind == kind for part in self.apart for h in part.holds)

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON: the graph's operations in order, the regions, and what stays apart."""
        calls = [n for n in self.graph.nodes if n.op == "call_function"]
        nodes = [
            {"name": n.name, "operation": str(n.target), "reads": [s.name for s in n.all_input_nodes]} for n in calls
        ]
        regions, apart = [r.as_record() for r in self.regions], [a.as_record() for a in self.apart]
        return {"nodes": nodes, "regions": regions, "apart": apart}
