"""Kernels with gradients: a forward kernel as a torch operator whose backward pass is a kernel too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.runtime import LoadedKernel
from neptune_lab.runtime.strided import of_any_strides
from neptune_lab.runtime.torch_op import torch_op
from neptune_lab.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from torch._ops import OpOverload


@dataclass(slots=True)
class Differentiable:
    """A forward kernel and the backward kernels for the inputs that need gradients.

    Args:
        forward: gives the operator's outputs, and after them what the backward pass reads.
        results: number of the operator's own outputs.
        cotangents: by the name of a backward kernel's input, the index of the operator's output.
        wrt: names of the inputs that have a gradient; no result depends on the others, or only by steps.
        backward_for: the backward kernel with respect to some inputs of the forward kernel, by name; it is called once
            for each choice of inputs.
        derivative: text that tells the backward pass from others of the same forward kernel.
    """

    forward: LoadedKernel
    results: int
    cotangents: dict[str, int]
    wrt: frozenset[str]
    backward_for: Callable[[tuple[str, ...]], LoadedKernel]
    derivative: str = ""
    _backward: dict[tuple[str, ...], OpOverload] = field(default_factory=dict)

    @property
    def op(self) -> OpOverload:
        """The operator: from the forward kernel's inputs to all of its outputs; the first `results` have gradients."""
        autograd = self.backward, self.keep
        return torch_op(
            self.forward, launch=of_any_strides(self.forward), autograd=autograd, derivative=self.derivative
        )

    def outputs(self, found: Any) -> Any:
        """The operator's own outputs of what `op` gives: a tensor, or a tuple."""
        listed = tuple(found)[: self.results] if isinstance(found, tuple | list) else (found,)
        return listed if self.results > 1 else listed[0]

    def keep(self, ctx: Any, inputs: Sequence[torch.Tensor], output: Any) -> None:
        """Keeps what the backward pass reads, for torch's `setup_context`."""
        outputs = output if isinstance(output, tuple | list) else (output,)
        ctx.save_for_backward(*inputs, *outputs)
        ctx.mark_non_differentiable(*outputs[self.results :])

    def backward(self, ctx: Any, *grads: torch.Tensor | None) -> Any:
        """The gradients of the inputs, None for those that need none."""
        specs = self.forward.spec.inputs
        needed = zip(specs, ctx.needs_input_grad, strict=True)
        wanted = tuple(spec.name for spec, needs in needed if needs and spec.name in self.wrt)
        if not wanted:
            return (None,) * len(specs)
        if wanted not in self._backward:
            kernel = self.backward_for(wanted)
            self._backward[wanted] = torch_op(kernel, launch=of_any_strides(kernel), autograd=(_refuse, _keep_nothing))
            self._inputs[wanted] = kernel.spec.inputs
        names = [t.name for t in (*specs, *self.forward.spec.outputs)]
        saved = dict(zip(names, ctx.saved_tensors, strict=True))
        given = [self._given(spec, saved, grads) for spec in self._inputs[wanted]]
        found = self._backward[wanted](*given)
        listed = iter(found if isinstance(found, tuple | list) else (found,))
        return tuple(next(listed) if spec.name in wanted else None for spec in specs)

    _inputs: dict[tuple[str, ...], tuple[TensorSpec, ...]] = field(default_factory=dict)

    def _given(
        self, spec: TensorSpec, saved: dict[str, torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """An input of the backward kernel: a cotangent, 0 if the output was not used, or what was kept."""
        if spec.name not in self.cotangents:
            return saved[spec.name]
        grad = grads[self.cotangents[spec.name]]
        if grad is None:
            output = self.forward.spec.outputs[self.cotangents[spec.name]]
            return torch.zeros_like(saved[output.name], memory_format=torch.contiguous_format)
        return grad


def is_transformed(*tensors: Any) -> bool:
    """Whether one of these is a tensor of torch.vmap, torch.func.grad or the like."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return any(functorch.is_functorch_wrapped_tensor(t) for t in tensors if isinstance(t, torch.Tensor))


def refuse_transforms(*tensors: torch.Tensor) -> None:
    """Raise LaunchError inside torch.vmap or a transform of torch.func."""
    if not torch.compiler.is_compiling() and is_transformed(*tensors):
        raise LaunchError(
            "a kernel with gradients inside torch.vmap or a transform of torch.func: it takes whole tensors",
            help="torch.autograd.grad gives gradients; make the mapped axis one of the operator's",
        )


def _keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """For a backward kernel, which has no derivative."""


def _refuse(ctx: Any, *grads: Any) -> Any:
    """Refuses the gradient of a gradient."""
    raise LaunchError(
        "the gradient of a gradient is asked for, and a backward kernel has no derivative",
        help="compute what is differentiated twice with torch's own operations",
    )


__all__ = ["Differentiable", "is_transformed", "refuse_transforms"]
