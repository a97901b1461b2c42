"""How large the expression of a mod is when it is written out, and the limits of that.

An expression is a tree here: a value that a mod uses twice is written, and computed, twice.  So a loop that uses its
last value twice per step doubles the expression at each step, and takes a compiler that visits the tree hours.

    >>> after([ONE, (3, 2, 0)])
    (5, 3, 0)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import walk_once

# The number of operations, how many are nested in one another, and how many reads are nested as indices.
Extent: TypeAlias = tuple[int, int, int]
ONE: Extent = (1, 1, 0)
# About half a minute of compilation.  (Python's recursion ends at 1,000 calls, of which some passes take several for
# each level.)
MOST_OPERATIONS, DEEPEST = 20_000, 100
# What a read counts whose index reads at an index that is read: the text of such a gather repeats those inside.  On a
# CPU, loops of `where(node > 0, up[node.clamp(min=0)], node)` took 9 s with 4 steps, 17 s with 5 and over 40 s with 6;
# of `up[node]`, 12 s with 6 steps and over 40 s with 7.
_NESTED_READ = 470


def extent_of_stages(program: Program) -> dict[str, int]:
    """The number of operations of each stage, by its name."""
    return {block.name: sum(1 for _ in walk_once(block.body.value)) for block in blocks(program)}


def after(operands: Iterable[Extent]) -> Extent:
    """The extent of an operation on operands.

    Args:
        operands: their extents.

    Returns:
        Of the whole expression.

    Raises:
        DefinitionError: it is too large.
    """
    operations, depth, reads = 1, 0, 0
    for count, nested, inside in operands:
        operations += count
        depth = max(depth, nested)
        reads = max(reads, inside)
    return _checked(operations, depth + 1, reads)


def of_read(indices: Iterable[tuple[Extent, int]]) -> Extent:
    """The extent of a read of a captured tensor.

    Args:
        indices: the extents of those that are computed, and how many times the read writes each.

    Returns:
        Of the whole expression.

    Raises:
        DefinitionError: it is too large.

    >>> of_read([(ONE, 3)]), of_read([((4, 2, 2), 1)])
    ((4, 2, 1), (475, 3, 3))
    """
    operations, depth, reads = 1, 0, 0
    for (count, nested, inside), times in indices:
        operations += count * times
        depth = max(depth, nested)
        reads = max(reads, inside)
    return _checked(operations + (_NESTED_READ if reads >= 2 else 0), depth + 1, reads + 1)


def _checked(operations: int, depth: int, reads: int) -> Extent:
    if operations > MOST_OPERATIONS and reads >= 3:
        raise DefinitionError(
            f"a mod reads tensors at indices that are read themselves, {reads} reads inside one another, which counts "
            f"as {operations} operations for each score: at most {MOST_OPERATIONS}. A value that is used several times "
            "counts, and is computed, each time; an index that may be negative is used 3 times",
            help="compute the table of several steps before the call, as in `up2 = up[up]`, and read that; or clamp "
            "each index, as in `up[node.clamp(min=0)]`, and use it once per step",
        )
    if operations > MOST_OPERATIONS:
        raise DefinitionError(
            f"a mod computes {operations} operations for each score: at most {MOST_OPERATIONS}. A value that is used "
            "several times counts, and is computed, each time",
            help="compute what does not depend on the score before the call, in a tensor that the mod reads, or "
            "repeat a shorter loop",
        )
    if depth > DEEPEST:
        raise DefinitionError(
            f"a mod nests more than {DEEPEST} operations in one another",
            help="add up halves, (a + b) + (c + d) in place of ((a + b) + c) + d, or compute a part before the call, "
            "in a tensor that the mod reads",
        )
    return operations, depth, reads
