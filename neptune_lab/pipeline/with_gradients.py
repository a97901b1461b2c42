"""An operator as a function of torch tensors that gives gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.runtime import LoadedKernel, load

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


def with_gradients(op: Operator) -> Callable[..., Any]:
    """The operator as a function with a backward pass.

    Args:
        op: any operator whose sizes are numbers.

    Returns:
        A function from the operator's inputs, captured ones included, to its outputs: a tensor, or a tuple.  Float
        inputs get gradients; their backward kernels are compiled when the first backward pass needs them.

    Raises:
        DefinitionError: the operator has no float input, or no derivative.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    from neptune_lab.operators import training
    from neptune_lab.runtime.differentiable import Differentiable

    floats = [t.name for t in op.inputs if "float" in t.dtype]
    if not floats:
        raise DefinitionError(f"{op.name} has no float input", help="call its kernel, which has no gradients to give")
    passes = training(op, floats)
    results = len(op.outputs)

    @cache
    def backward_for(wanted: tuple[str, ...]) -> LoadedKernel:
        return _kernel(training(op, wanted, passes.kept).backward)

    cotangents = {f"d_{t.name}": n for n, t in enumerate(op.outputs)}
    torch_op = Differentiable(_kernel(passes.forward), results, cotangents, backward_for).op

    def call(*tensors: Any) -> Any:
        made = torch_op(*tensors)
        listed = tuple(made)[:results] if isinstance(made, tuple | list) else (made,)
        return listed if results > 1 else listed[0]

    call.__name__ = op.name
    return call


def _kernel(op: Operator) -> LoadedKernel:
    from neptune_lab.pipeline.compile import compile

    return load(compile(op).spec)


__all__ = ["with_gradients"]
