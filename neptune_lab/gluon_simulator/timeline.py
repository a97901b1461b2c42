"""What the groups of warps of a Gluon kernel do, step by step, in the first program of its grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neptune_lab.gluon_simulator.simulator import Simulator
from neptune_lab.gluon_simulator.steps import COPY, PRODUCT, Group, Stamp


@dataclass(frozen=True, slots=True)
class Timeline:
    """Simulated steps, which are not time: see `steps`.

    Args:
        groups: of warps, in the order of the kernel.
        steps: of the group with the most.
        limit: later steps are not kept.
        copy, product: steps that a copy and a product take.
    """

    groups: tuple[Group, ...]
    steps: int
    limit: int
    copy: int
    product: int

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON: events as [kind, start, end, lines, what ended a wait or None]."""
        groups = [
            {
                "name": group.name,
                "warps": group.warps,
                "events": [
                    [e.kind, e.start, e.end, list(e.lines), None if e.after is None else _stamp(e.after)]
                    for e in group.events
                ],
                "flights": [[f.kind, f.start, f.end, list(f.lines)] for f in group.flights],
            }
            for group in self.groups
        ]
        return {
            "groups": groups,
            "steps": self.steps,
            "limit": self.limit,
            "copy": self.copy,
            "product": self.product,
        }


def _stamp(stamp: Stamp) -> dict[str, Any]:
    """A stamp as plain data."""
    return {"step": stamp.step, "group": stamp.group, "lines": list(stamp.lines)}


def timeline(text: str, entry: str, tensors: tuple[Any, ...], multiprocessors: int, limit: int = 600) -> Timeline:
    """Simulates the first program of a Gluon kernel.

    Args:
        text: of the module, as the compiler emits it: it is executed.
        entry: its function that takes the inputs.
        tensors: the inputs on the CPU; their values do not matter, since control flow does not depend on them.
        multiprocessors: of the GPU, for kernels with as many programs as there are.
        limit: keep the steps below this.

    Returns:
        The steps of its groups of warps; the same for each run.

    Raises:
        Deadlock: every group of warps waits.
    """
    simulator = Simulator(text, multiprocessors, first_only=True, limit=limit)
    simulator(entry, *tensors)
    return Timeline(simulator.groups, max((g.now for g in simulator.groups), default=0), limit, COPY, PRODUCT)
