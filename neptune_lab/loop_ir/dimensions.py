"""Which iteration variables of different blocks run along the same dimension.

Dimensions are matched through the tensors: if one block writes `score[i, j]` and another reads `score[i, k]`, the j of
the first and the k of the second are the same dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from networkx.utils import UnionFind

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Program, Var
from neptune_lab.loop_ir.walks import loads

# One iteration variable or tensor axis that represents its dimension.
Dimension: TypeAlias = tuple[str, str, str | int]


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Equivalence classes of iteration variables and tensor axes; variables of one dimension have the same `of`."""

    names: Mapping[Dimension, Dimension]

    def of(self, block: Block, name: str) -> Dimension:
        """The dimension of an iteration variable."""
        own = ("block", block.name, name)
        return self.names.get(own, own)

    def of_axis(self, tensor: str, axis: int) -> Dimension:
        """The dimension of an axis of a tensor."""
        own = ("tensor", tensor, axis)
        return self.names.get(own, own)

    def all_of(self, block: Block, kind: str | None = None) -> dict[Dimension, str]:
        """The block's iteration variables by dimension; `kind` restricts them to "spatial" or "reduce"."""
        return {self.of(block, it.name): it.name for it in block.iters if kind is None or it.kind == kind}


# Templates and primitives ask for those of one program once per block, or per variable.
@lru_cache(maxsize=64)
def dimensions(program: Program) -> Dimensions:
    """Matches iteration variables through the tensors between blocks, then through inputs that several blocks read.

    An input that a block reads along two of its own variables (x[i, d] * x[j, d]) matches nothing.
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
    return Dimensions(MappingProxyType({one: classes[one] for one in (*classes,)}))


def _merges(classes: UnionFind, block: Block, name: str, other: tuple) -> bool:
    """Whether this match would also match two variables of the same block."""
    root = classes[other]
    return any(it.name != name and classes[("block", block.name, it.name)] == root for it in block.iters)
