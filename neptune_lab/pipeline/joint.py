"""Backward kernels of attention that compute all gradients of a tile at once, and add to that of the queries in global
memory: each tile in the order of the row blocks of keys, or in the order in which programs come to it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from neptune_lab.choice import Choice, CodeOptions
from neptune_lab.htile_to_gluon.joint.form import KEYS
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.positions import compares_positions
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.loop_schedule.templates.nest_shape import has_product
from neptune_lab.pipeline.fallback import REFUSALS, parts_of

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline.kernel import Kernel
    from neptune_lab.target import Target
    from neptune_lab.tensor_spec import TensorSpec

# Queries of a tile by the width of the heads.
QUERIES = {64: 128, 128: 64}
# The same if the kernel reads an element of 32 bits per pair: of 128 queries, shared memory holds no second tile.
QUERIES_OF_WIDE_PAIRS = 64
# The width of heads with which programs that add in order are faster than two nests, or as fast to 1.3%, under any
# mask. Without a mask, under which programs have different numbers of tiles, they are with each width: with 64 columns,
# on an H200, 70 us in place of 77 at 1 x 32 x 1024, 748 in place of 853 at 1 x 32 x 4096, and 252 in place of 282 at
# 4 x 32 x 1024; with a bias of relative positions, which has a gradient, 473 in place of 589 there. With a bias per
# pair, which has a gradient, they are under a mask too: 284 in place of 460 there, causal.
FASTER_IN_ORDER = 128

# The widths with which such a kernel for all lengths is faster than two nests, in order and in any order.
FASTER_FOR_LENGTHS: Mapping[bool, frozenset[int]] = MappingProxyType({True: frozenset(), False: frozenset()})


def joint_choice(op: Operator, *, deterministic: bool) -> Choice | None:
    """The choice for a backward pass in which both nests are one kernel; None if there is none for its heads.

    Args:
        op: a backward pass.
        deterministic: whether programs add in one order. So they do with gradients of 32 bits per pair in any case:
            samples then add to one tensor, where each would store its pairs, and a kernel would read them.
    """
    queries = QUERIES.get(_width(op))
    if queries is None:
        return None
    if any(_is_of_wide_pairs(t, op) for t in op.inputs):
        queries = QUERIES_OF_WIDE_PAIRS
    deterministic = deterministic or any(_is_of_wide_pairs(t, op) for t in op.outputs)
    code = CodeOptions(code="gluon", deterministic=deterministic, joint=True)
    # (a nest that only adds up what others store has tiles of its own: with 64 columns, sums over samples took 5 times
    # as long on an H200)
    programs = [part.program for part in parts_of(op)]
    both = [[has_product(program, nest) for nest in plan(program)] for program in programs]
    if not all(both):  # (a part has no nest, and sizes for each nest would be refused)
        return Choice(None, TileConfig(block_q=KEYS, block_kv=queries), code)
    rows, columns = (tuple(size if one else None for part in both for one in part) for size in (KEYS, queries))
    return Choice("rolling_update", TileConfig(block_q=rows, block_kv=columns), code)


def _width(op: Operator) -> int:
    """The width of the heads; 0: there are none."""
    return next((t.shape[-1] for t in op.outputs if len(t.shape) == 4), 0)


def default_joint_choice(op: Operator) -> Choice | None:
    """The choice in which both nests are one kernel and programs add in order; None if the nests apart are as fast.

    Args:
        op: a backward pass.
    """
    choice = joint_choice(op, deterministic=True)
    if choice is None or _width(op) == FASTER_IN_ORDER:
        return choice
    # (only nests with products have tiles that a mask hides: a sum along diagonals compares positions too)
    programs = [part.program for part in parts_of(op)]
    nests = [program for program in programs if any(has_product(program, nest) for nest in plan(program))]
    masked = any(compares_positions(block.body.value) for program in nests for block in tree.blocks(program))
    return None if masked and not _has_pairs(op) else choice


def _has_pairs(op: Operator) -> bool:
    """Whether a result has an element per query and key."""
    return any(_is_of_pairs(t, op) for t in op.outputs)


def _is_of_wide_pairs(tensor: TensorSpec, op: Operator) -> bool:
    """Whether a tensor has an element of 32 bits per query and key."""
    return tensor.dtype == "float32" and _is_of_pairs(tensor, op)


def _is_of_pairs(tensor: TensorSpec, op: Operator) -> bool:
    """Whether a tensor has an element per query and key."""
    lengths = {t.shape[-2] for t in op.outputs if len(t.shape) == 4 and t.shape[-1] == _width(op)}
    return len(tensor.shape) > 1 and {*tensor.shape[-2:]} <= lengths


def joint_choice_for_lengths(op: Operator, *, deterministic: bool) -> Choice | None:
    """The same for all lengths, from `fewest_rows` on.

    Args:
        op: a backward pass at some length.
        deterministic: whether programs add in one order.
    """
    choice = joint_choice(op, deterministic=deterministic)
    return choice if choice is not None and _width(op) in FASTER_FOR_LENGTHS[deterministic] else None


def fewest_rows(code: CodeOptions) -> int:
    """The fewest queries, and keys, that kernels with these options take."""
    return KEYS if code.code == "gluon" and (code.joint or not code.deterministic) else 1


def joint_kernel(op: Operator, target: Target | str | None = None, *, deterministic: bool = False) -> Kernel | None:
    """The kernel of `joint_choice`, compared with the definition; None if there is none.

    Args:
        op: a backward pass.
        target: as in `compile`.
        deterministic: whether programs add in one order.
    """
    from neptune_lab.pipeline.compile import compile_choice

    choice = joint_choice(op, deterministic=deterministic)
    if choice is not None:
        with suppress(*REFUSALS):
            return compile_choice(op, choice, target=target)
    return None


__all__ = ["default_joint_choice", "fewest_rows", "joint_choice", "joint_choice_for_lengths", "joint_kernel"]
