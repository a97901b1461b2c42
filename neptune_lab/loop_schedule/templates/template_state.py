"""The nests of a template while they are scheduled one after the other, and what later ones contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph, reached
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.plan import NestPlan, plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import placed
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.nest_config import config_after
from neptune_lab.loop_schedule.templates.nest_shape import NestConfig

# The most elements that every program of a nest folds again instead of reading the result of another kernel.
LARGEST_REPEATED = 1 << 15


@dataclass(slots=True)
class TemplateState:
    """The nests of a template, and the steps that must wait until all nests are scheduled.

    Args:
        start: the program that the template was given.
        given: the config that the template was given.
        nests: all nests, in order. If a nest cannot be fused as a whole, the rest of it is inserted as new nests.
        configs: the config of each nest.
        rolling_loops: the rolling loops, as "block.loop".
        contractions: the loops over tiles of long contractions, as "block.loop".
        deferred: steps that tile a dimension outermost. After such a step a block may compute the same elements in
            several iterations, and TVM then refuses to move other blocks, so these steps come last.
        hints: num_warps and num_stages of the kernel that contains each of these blocks.
    """

    start: Program
    given: TileConfig
    nests: tuple[NestPlan, ...]
    configs: tuple[NestConfig, ...]
    rolling_loops: list[str] = field(default_factory=list)
    contractions: list[str] = field(default_factory=list)
    deferred: list[Callable[[], None]] = field(default_factory=list)
    hints: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def insert(self, n: int, nests: tuple[NestPlan, ...]) -> None:
        """Inserts `nests` after number `n`, with its config."""
        rest = replace(self.configs[n], block_out=None)
        configs = [config_after(self.start, nest, self.nests[n], rest, self.given) for nest in nests]
        self.nests = (*self.nests[: n + 1], *nests, *self.nests[n + 1 :])
        self.configs = (*self.configs[: n + 1], *configs, *self.configs[n + 1 :])

    def replan(self, n: int, sch: Schedule) -> None:
        """Plans nest number `n` again if another nest took one of its blocks; the result may be none or several."""
        nest, config, taken = self.nests[n], self.configs[n], placed(sch, self.start)
        if taken & {nest.first, *nest.maps, *nest.independent_maps, *nest.auxiliary_reductions, *nest.reductions}:
            left = {nest.first, *nest.reductions} - taken
            nests = plan(sch.base, left, placed=taken)
            configs = [config_after(self.start, one, nest, config, self.given) for one in nests]
            self.nests = (*self.nests[:n], *nests, *self.nests[n + 1 :])
            self.configs = (*self.configs[:n], *configs, *self.configs[n + 1 :])
            if not nests and n < len(self.nests):
                self.replan(n, sch)


def blocks_of_later_nests(sch: Schedule, state: TemplateState, done: int) -> frozenset[str]:
    """The blocks that the nests after number `done` will contain.

    Besides its planned blocks, a nest computes small reductions that only it needs, of tensors that it reads anyway,
    such as a sum along its reduce axis: each of its programs computes them again, which costs less than a kernel.
    """
    names: set[str] = set()
    flow = graph(sch.base)
    dims = dimensions(sch.base)
    blocks = {b.name: b for b in tree.blocks(sch.base)}
    for nest in state.nests[done + 1 :]:
        own = {nest.first, *nest.maps, *nest.auxiliary_reductions, *nest.reductions}
        names |= own
        needing = reached(flow, own)
        axis = dims.of(blocks[nest.first], nest.reduce_axis)
        parallel = {dims.of(blocks[nest.first], name) for name in nest.parallel_axes}
        read = set().union(*(flow.predecessors(name) for name in own))
        for b in blocks.values():
            folds = reducer_of(b) is not None and set(dims.all_of(b, "reduce")) == {axis}
            size = prod(b.iter(name).extent for c, name in dims.all_of(b).items() if c not in parallel)
            if (
                folds
                and size <= LARGEST_REPEATED
                and set(flow.predecessors(b.name)) <= read
                and set(flow.successors(b.name)) <= needing
            ):
                names.add(b.name)
    return frozenset(names)


__all__ = ["TemplateState", "blocks_of_later_nests"]
