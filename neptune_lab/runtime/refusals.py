"""What kernels refuse of torch: transforms, graphs, gradients and tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.subclasses import refuse_jit_trace
from neptune_lab.strict.console import class_of
from neptune_lab.tensor_spec import TensorSpec

# What a call inside of a graph is told.
_IN_GRAPHS = "a compiled kernel inside of a graph of torch.compile, torch.export or make_fx: it is no operator of torch"
_AS_OPERATOR = "call kernel.as_torch_op(), or kernel.with_gradients() for gradients, made outside of the graph"


def refuse_transforms(tensors: tuple[Any, ...]) -> None:
    """Raise LaunchError inside torch.vmap or a transform of torch.func, whose tensors have no memory of their own, and
    inside torch.jit.trace."""
    import torch

    refuse_jit_trace("a kernel", "trace kernel.as_torch_op(), which is an operator of torch")
    wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    if any(isinstance(tensor, torch.Tensor) and wrapped(tensor) for tensor in tensors):
        raise LaunchError(
            "a kernel inside torch.vmap or a transform of torch.func: it takes whole tensors",
            help="make the mapped axis one of the operator's",
        )


def break_graph() -> None:
    """Ends the graph that Dynamo traces; with fullgraph=True and in torch.export, that is an error that says why."""
    import torch

    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg=f"{_IN_GRAPHS}; {_AS_OPERATOR}")


def refuse_graphs(tensors: tuple[Any, ...]) -> None:
    """Raise LaunchError where torch makes a graph of the operators that it sees, and for tensors without memory."""
    if in_graph(tensors):
        raise LaunchError(_IN_GRAPHS, help=_AS_OPERATOR)


def in_graph(tensors: Sequence[Any]) -> bool:
    """Whether this thread makes a graph of the operators that torch sees, or these are tensors without memory.

    While one thread compiles or exports, `torch.compiler.is_compiling()` is true in every thread, and so is what
    `get_proxy_mode` finds of modes before dispatch; the keys of dispatch are a thread's own.  Dynamo cannot trace this.
    """
    import torch
    from torch._subclasses import FakeTensor
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    own: Any = torch._C
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return True
    before_dispatch = own._dispatch_tls_is_dispatch_key_included(own.DispatchKey.PreDispatch)
    dispatching = own._get_dispatch_mode(own._TorchDispatchModeKey.PROXY) is not None
    return dispatching or (before_dispatch and get_proxy_mode() is not None)


def is_traced(tensors: Sequence[Any]) -> bool:
    """Whether this thread traces the call: with Dynamo, or as `in_graph` says."""
    import torch

    return torch.compiler.is_dynamo_compiling() or in_graph(tensors)


def refuse_other_than_tensor(argument: TensorSpec, given: Any) -> None:
    """Raise LaunchError, naming the argument, unless it is a tensor of torch."""
    import torch

    if not isinstance(given, torch.Tensor):
        raise LaunchError(
            f"argument {argument.name} is {class_of(given)}; expected a torch.Tensor",
            help=f"torch.as_tensor({argument.name}, dtype=torch.{argument.dtype})",
        )


def refuse_gradients(spec: KernelSpec, tensors: tuple[Any, ...]) -> None:
    """Raise LaunchError, naming the argument, if one records gradients: a kernel has no backward."""
    import torch

    for argument, tensor in zip(spec.inputs, tensors, strict=True):
        refuse_other_than_tensor(argument, tensor)  # (torch hands an operator None as it is)
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise LaunchError(
                f"argument {argument.name} records gradients, and the kernel has no backward",
                help=f"call kernel.with_gradients(); or this under torch.no_grad(), or with {argument.name}.detach()",
            )
    refuse_tangents([argument.name for argument in spec.inputs], tensors)


def refuse_tangents(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Raise LaunchError, naming the argument, if one carries a tangent of torch.autograd.forward_ad."""
    from neptune_lab.runtime.torch_state import has_tangent

    for name, tensor in zip(names, tensors, strict=True):
        if has_tangent(tensor):
            raise LaunchError(
                f"argument {name} carries a forward gradient, and the kernel has no derivative",
                help=f"call it with {name}.detach()",
            )


__all__ = [
    "break_graph",
    "in_graph",
    "is_traced",
    "refuse_gradients",
    "refuse_graphs",
    "refuse_other_than_tensor",
    "refuse_tangents",
    "refuse_transforms",
]
