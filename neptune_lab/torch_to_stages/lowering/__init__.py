"""The lowerings of ATen operations, one family per file; importing this package fills their table."""

from neptune_lab.torch_to_stages.lowering import (  # noqa: F401
    activations,
    attention,
    bags,
    conditions,
    contractions,
    creation,
    gathers,
    losses,
    norms,
    orders,
    pointwise,
    reductions,
    scans,
    scatters,
    softmax,
    views,
    whole_powers,
)
from neptune_lab.torch_to_stages.lowering.context import lowering_of, taken_operations

__all__ = ["lowering_of", "taken_operations"]
