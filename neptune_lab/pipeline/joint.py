"""Backward kernels of attention that add to the gradient of the queries in the order in which programs come to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.pipeline.choice import Choice
from neptune_lab.pipeline.compile import compile_choice
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.options import CodeOptions
from neptune_lab.target import Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline.kernel import Kernel

# Keys of a program, and queries of a tile by the width of the heads.
KEYS = 128
QUERIES = {64: 128, 128: 64}


def joint_kernel(op: Operator, target: Target | str | None = None) -> Kernel | None:
    """The kernel of a backward pass with `deterministic=False`; None if there is none.

    Args:
        op: a backward pass.
        target: as in `compile`.
    """
    queries = QUERIES.get(next((t.shape[-1] for t in op.outputs if len(t.shape) == 4), 0))
    if queries is None:
        return None
    config = TileConfig(block_q=KEYS, block_kv=queries)
    choice = Choice("rolling_update", config, CodeOptions(code="gluon", deterministic=False))
    try:
        return compile_choice(op, choice, target=target)
    except REFUSALS:
        return None


__all__ = ["joint_kernel"]
