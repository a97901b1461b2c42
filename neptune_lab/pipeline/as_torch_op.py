"""A kernel as an operator of torch, which checks integers as a call of the kernel does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neptune_lab.operators.index_limits import IndexLimits, check_indices
from neptune_lab.runtime import KernelSpec, load
from neptune_lab.runtime.torch_op import torch_op

if TYPE_CHECKING:
    from torch._ops import OpOverload


def as_torch_op(spec: KernelSpec, limits: tuple[IndexLimits, ...], name: str | None) -> OpOverload:
    """Registers a kernel; again, and in another process that unpickles it, for the same kernel.

    Args:
        spec: of the kernel.
        limits: of the integers that a call may give.
        name: of the operator; None: the program's name and a digest of its source.

    Raises:
        LaunchError: `name` is no name of an operator, or another kernel has it.
    """
    kernel = load(spec)

    def launch(*tensors: Any) -> Any:
        check_indices(limits, tensors)
        return kernel(*tensors)

    taken = str([(limit.place, limit.low, limit.high, limit.besides) for limit in limits]) if limits else ""
    made: Any = torch_op(kernel, name, launch if limits else None, besides=taken)
    # torch's own would find objects of C++ that are not pickled.
    made.__reduce_ex__ = lambda protocol: (as_torch_op, (spec, limits, name))
    return made


__all__ = ["as_torch_op"]
