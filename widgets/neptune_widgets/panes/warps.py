"""The simulated steps of a Gluon kernel's warps: simulated when the pane is opened, and for saved pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import EmitError
from neptune_widgets.pane import Later, Message, answers, kept_data
from neptune_widgets.session import Session

if TYPE_CHECKING:
    from neptune_lab import Kernel

# Larger inputs are not allocated for it: steps do not depend on values, but every tensor is there.
_MOST_BYTES = 2 << 30


@answers("warps")
def answer(session: Session, message: Message) -> Later | Message:
    """The timeline of the kernel as it is now."""
    kernel = session.kernel
    if kernel is None or not is_gluon(kernel):
        raise EmitError("the kernel is not written in Gluon", help='compile with code=nl.CodeOptions(code="gluon")')
    return lambda: {"kind": "warps", "timeline": simulated(kernel)}


@kept_data
def data(session: Session) -> dict[str, Any] | None:
    """The timeline; None of a kernel without one."""
    kernel = session.kernel
    return None if kernel is None or not is_gluon(kernel) or _bytes(kernel) > _MOST_BYTES else simulated(kernel)


def is_gluon(kernel: Kernel) -> bool:
    """Whether the kernel has groups of warps of its own."""
    return "gl.warp_specialize(" in kernel.source


def simulated(kernel: Kernel) -> dict[str, Any]:
    """The steps of the first program's groups of warps.

    Args:
        kernel: in Gluon.

    Returns:
        `neptune_lab.gluon_simulator.Timeline` as plain data.

    Raises:
        EmitError: its tensors are too large to simulate.
        Deadlock: every group waits.
    """
    from neptune_lab.gluon_simulator import timeline
    from neptune_lab.runtime.arrays import to_tensor
    from neptune_lab.target import Target

    size = _bytes(kernel)
    if size > _MOST_BYTES:
        raise EmitError(
            f"its tensors have {size / 2**30:.1f} GiB; at most {_MOST_BYTES >> 30} GiB are simulated",
            help="open a kernel of smaller sizes: each program does the same",
        )
    tensors = tuple(to_tensor(np.zeros(t.shape, _dtype(t.dtype))) for t in kernel.operator.inputs)
    return timeline(kernel.triton.text, kernel.triton.entry, tensors, Target().sm_count).as_record()


def _dtype(name: str) -> Any:
    from ml_dtypes import bfloat16

    return bfloat16 if name == "bfloat16" else np.dtype(name)


def _bytes(kernel: Kernel) -> int:
    tensors = (*kernel.operator.inputs, *kernel.operator.outputs)
    return sum(int(np.prod(t.shape)) * np.dtype(_dtype(t.dtype)).itemsize for t in tensors)


__all__ = ["is_gluon", "simulated"]
