"""Tensors of classes that compute in their own way, and whose memory does not hold their elements."""

from __future__ import annotations

from typing import Any

from neptune_lab.errors import LaunchError

EXPORTED = "trace torch.export.export(module, inputs).module(), where attention is an operator of torch"


def refuse_subclass(name: str, tensor: Any) -> None:
    """Raise LaunchError for a tensor of a class that holds other tensors: masked, distributed, quantised.

    Tensors by which torch traces are none of these.

    Args:
        name: the tensor, for the message.
        tensor: a tensor of any class.
    """
    import torch

    kind = type(tensor)
    nothing: Any = torch._C._disabled_torch_dispatch_impl  # pyright: ignore[reportAttributeAccessIssue]
    if kind.__torch_dispatch__ is nothing:
        return
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    if not issubclass(kind, FakeTensor | FunctionalTensor):
        raise LaunchError(
            f"{name} is a {kind.__name__}, which holds other tensors; expected a plain one",
            help="convert it: masked.to_tensor(0.0) and a mask of its own, distributed.to_local(), x.dequantize()",
        )


def refuse_jit_trace(what: str, help: str) -> None:
    """Raise LaunchError inside torch.jit.trace, whose record would hold the memory of the output without the launch.

    Args:
        what: "a kernel", say.
        help: what can be traced in its place.
    """
    import torch

    if torch._C._is_tracing():  # pyright: ignore[reportAttributeAccessIssue]
        raise LaunchError(
            f"{what} inside torch.jit.trace, which records operators of torch and no kernel",
            help=help,
        )


__all__ = ["EXPORTED", "refuse_jit_trace", "refuse_subclass"]
