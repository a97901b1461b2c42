"""Which iterations of different blocks run along the same dimension.

Dimensions are matched through the tensors: where `score[i, j]` is written with one block's j and read with another's,
both j are one dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from networkx.utils import UnionFind

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Program, Var, loads

# One iteration or tensor axis that stands for all of its dimension.
Dimension: TypeAlias = tuple[str, str, str | int]


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Which iterations of which blocks run along the same dimension; compare by `of`."""

    classes: UnionFind

    def of(self, block: Block, name: str) -> Dimension:
        """The dimension of an iteration, as one representative of it."""
        return self.classes[("block", block.name, name)]

    def all_of(self, block: Block, kind: str | None = None) -> dict[Dimension, str]:
        """The block's iterations by dimension; only those of one kind, where given."""
        return {self.of(block, it.name): it.name for it in block.iters if kind is None or it.kind == kind}


def dimensions(program: Program) -> Dimensions:
    """Iterations matched through the tensors between blocks, then through inputs that two blocks read.

    An input that a block reads along two of its own iterations (x[i, d] * x[j, d]) matches nothing.
    """
    classes = UnionFind()
    inputs = set(program.inputs)
    for shared in (False, True):
        for block in tree.blocks(program):
            accesses = [(block.body.buffer, block.body.indices)]
            accesses += [(read.buffer, read.indices) for read in loads(block.body.value)]
            for it in block.iters:
                classes[("block", block.name, it.name)]
            for buffer, indices in accesses:
                if (buffer in inputs) != shared:
                    continue
                for n, index in enumerate(indices):
                    if isinstance(index, Var) and not _merges(classes, block, index.name, ("tensor", buffer, n)):
                        classes.union(("block", block.name, index.name), ("tensor", buffer, n))
    return Dimensions(classes)


def _merges(classes: UnionFind, block: Block, name: str, other: tuple) -> bool:
    """Whether matching this iteration would make it one with another of the same block."""
    root = classes[other]
    return any(it.name != name and classes[("block", block.name, it.name)] == root for it in block.iters)
