"""How large the expression of a mod is when it is written out, and the limits of that.

An expression is a tree here: a value that a mod uses twice is written, and computed, twice.  So a loop that uses its
last value twice per step doubles the expression at each step, and takes a compiler that visits the tree hours.

    >>> after([ONE, (3, 2)])
    (5, 3)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import walk_once

# The number of operations, and how many are nested in one another.
Extent: TypeAlias = tuple[int, int]
ONE: Extent = (1, 1)
# About half a minute of compilation.  (Python's recursion ends at 1,000 calls, of which some passes take several for
# each level.)
MOST_OPERATIONS, DEEPEST = 20_000, 100


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
    operations, depth = 1, 0
    for count, nested in operands:
        operations += count
        depth = max(depth, nested)
    if operations > MOST_OPERATIONS:
        raise DefinitionError(
            f"a mod computes {operations} operations for each score: at most {MOST_OPERATIONS}. A value that is used "
            "several times counts, and is computed, each time",
            help="compute what does not depend on the score before the call, in a tensor that the mod reads, or "
            "repeat a shorter loop",
        )
    if depth >= DEEPEST:
        raise DefinitionError(
            f"a mod nests more than {DEEPEST} operations in one another",
            help="add up halves, (a + b) + (c + d) in place of ((a + b) + c) + d, or compute a part before the call, "
            "in a tensor that the mod reads",
        )
    return operations, depth + 1
