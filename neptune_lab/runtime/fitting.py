"""A function that tells whether tensors are what a kernel takes, written out for its inputs.

For `causal(q, k)` with a length n, it is

    def fits(device, recording, q, k):
        n = q.shape[2]
        return (
            1 <= n <= 1048560
            and q.shape == (1, 4, n, 64) and k.shape == (1, 4, n, 64)
            and q.dtype is _q_dtype and k.dtype is _k_dtype
            and k.device == device
            and q.is_contiguous() and k.is_contiguous()
            and not (recording and (q.requires_grad or k.requires_grad))
        )

A loop over the inputs takes about twice as long (scripts/launch_overhead.py, `checked`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.strided import fits_strides


def fitting(spec: KernelSpec) -> Callable[..., bool]:
    """The function for the inputs of `spec`.

    It takes the device of the first tensor, whether autograd records, and as many tensors as the spec has inputs.  For
    what is no tensor it may raise AttributeError, TypeError, IndexError or RuntimeError.
    """
    import torch

    names: dict[str, Any] = {"_fits": fits_strides}
    arguments = [f"t{n}" for n in range(len(spec.inputs))]
    sizes: dict[str, str] = {}
    read: list[str] = []
    shapes: list[str] = []
    strides: list[str] = []
    dtypes: list[str] = []
    for argument, tensor in zip(arguments, spec.inputs, strict=True):
        extents: list[str] = []
        named: Sequence[str] = ("",) * len(tensor.shape)
        if spec.ranges and tensor.sizes:
            named = tensor.sizes
        for dim, (extent, size) in enumerate(zip(tensor.shape, named, strict=True)):
            if size and size not in sizes:
                sizes[size] = f"n{len(sizes)}"
                read.append(f"    {sizes[size]} = {argument}.shape[{dim}]")
            extents.append(sizes[size] if size else str(extent))
        shapes.append(f"{argument}.shape == ({''.join(f'{extent}, ' for extent in extents)})")
        names[f"_{argument}"] = getattr(torch, tensor.dtype)
        dtypes.append(f"{argument}.dtype is _{argument}")
        if tensor.steps is not None:
            names[f"_at_{argument}"] = tensor.strides_at
            strides.append(f"_fits({argument}, _at_{argument}({argument}.shape))")
        elif tensor.strides is None:
            strides.append(f"{argument}.is_contiguous()")
        else:
            names[f"_steps_{argument}"] = tensor.strides
            own = f"_steps_{argument}"
            strides.append(f"({argument}.stride() == {own} or _fits({argument}, {own}))")
    ranges = [f"{least} <= {sizes[name]} <= {most}" for name, least, most in spec.ranges]
    devices = [f"{argument}.device == device" for argument in arguments[1:]]
    gradients = " or ".join(f"{argument}.requires_grad" for argument in arguments)
    conditions = [*ranges, *shapes, *dtypes, *devices, *strides, f"not (recording and ({gradients}))"]
    lines = [
        f"def fits(device, recording, {', '.join(arguments)}):",
        *read,
        f"    return {' and '.join(conditions)}",
    ]
    exec(compile("\n".join(lines), f"<fits of {spec.name}>", "exec"), names)
    return names["fits"]


__all__ = ["fitting"]
