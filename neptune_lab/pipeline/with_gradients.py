"""An operator as a function of torch tensors that gives gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError, LaunchError, NotPickledError
from neptune_lab.loop_ir.dataflow import inputs_behind
from neptune_lab.operators.index_limits import check_indices
from neptune_lab.pipeline.captured_inputs import CapturedInputs, for_other_sizes
from neptune_lab.pipeline.kept_by_sizes import KeptBySizes
from neptune_lab.pipeline.other_sizes import operator_at
from neptune_lab.runtime import LoadedKernel, load
from neptune_lab.runtime.differentiable import Differentiable, refuse_transforms, shapes_of, warn_of_constants
from neptune_lab.runtime.refusals import in_graph

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

_numbers = count()


def differentiable(
    op: Operator, forward: Callable[[Operator], LoadedKernel], backward: Callable[[Operator], LoadedKernel]
) -> Differentiable:
    """The forward kernel of an operator that keeps what its backward kernels read.

    Args:
        op: any operator with a float input, whose sizes are numbers.
        forward, backward: compile the operators of the two passes; the second is called when the first backward pass
            needs its kernel.

    Returns:
        The kernel with its backward pass.

    Raises:
        DefinitionError: the operator has no derivative.
    """
    from neptune_lab.operators import training
    from neptune_lab.operators.reverse_mode import refuse_stopped_gradients

    # The backward pass may come when what a mod reads has changed, so the mods are not called again then.
    program = op.marked
    fixed = replace(op, gradient_stops=None, build=lambda: program)
    passes = training(fixed)

    def backward_for(wanted: tuple[str, ...]) -> LoadedKernel:
        return backward(training(fixed, wanted, passes.kept).backward)

    kernel, wrt = forward(passes.forward), frozenset(passes.wrt)
    given = {t.name for t in passes.backward.inputs}
    constant = tuple(n for name, n in cotangents_of(op).items() if name not in given)
    behind = [inputs_behind(program, t.name) for t in op.outputs]
    reads = tuple(frozenset(n for n, t in enumerate(op.inputs) if t.name in names) for names in behind)
    source = passes.backward.source
    made = Differentiable(kernel, len(op.outputs), cotangents_of(op), wrt, backward_for, source, constant, reads)
    floats = [t.name for t in op.inputs if "float" in t.dtype]  # (of those without a derivative in the definition too)
    if op.gradient_stops is not None and op.gradient_stops(floats) is not None:
        # Another function of the same kernel may stop other gradients, or none: they share no operator of torch.
        made.check = partial(refuse_stopped_gradients, op)
        made.derivative += f"\nwith gradients that stop, {next(_numbers)}"
    return made


def cotangents_of(op: Operator) -> dict[str, int]:
    """By the name of a backward kernel's input, the index of the operator's output whose cotangent it is."""
    return {f"d_{t.name}": n for n, t in enumerate(op.outputs)}


def with_gradients(op: Operator) -> WithGradients:
    """The operator as a function with a backward pass.

    Args:
        op: any operator whose sizes are numbers.

    Returns:
        A function from the operator's inputs, of which captured ones may be omitted, to its outputs: a tensor, or a
        tuple.  Float inputs get gradients; their backward kernels are compiled when the first backward pass needs them.

    Raises:
        DefinitionError: the operator has no float input, or no derivative.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    if not any("float" in t.dtype for t in op.inputs):
        raise DefinitionError(f"{op.name} has no float input", help="call its kernel, which has no gradients to give")
    if op.constants:
        warnings.warn(
            f"no gradients for {', '.join(op.constants)} of {op.name}: a tensor of one number that the function reads "
            "is a constant of the kernel. To train it, make it an argument of the function, or give it a dimension: "
            "torch.nn.Parameter(torch.ones(1))",
            stacklevel=3,
        )
    kernel = differentiable(op, _kernel, _kernel)
    _ = kernel.op  # the first call may be in a function that torch.compile traces, which could not define it
    return WithGradients(op, kernel, CapturedInputs(op).hold())


class WithGradients:
    """A function of torch tensors that gives gradients; an object, since a function could not say why it is not
    pickled.

    Args:
        operator: that it computes; `nl.explore` shows both passes of it.
        kernel: the forward kernel with its backward pass.
        captured: the values of the inputs that a call may leave out.
    """

    def __init__(self, operator: Operator, kernel: Differentiable, captured: CapturedInputs) -> None:
        self.operator, self._kernel, self._captured = operator, kernel, captured
        self.__name__ = operator.name
        self._own = tuple(t.shape for t in operator.inputs[: len(operator.inputs) - len(operator.captured)])
        self._others = KeptBySizes(
            lambda shapes: with_gradients(replace(operator_at(operator, shapes), trained=(), constants=()))
        )

    def __call__(self, /, *tensors: Any, **named: Any) -> Any:
        op, expected = self.operator, len(self.operator.inputs)
        if named:
            tensors = self._captured.in_order(tensors, named)
        refuse_transforms(*tensors)
        if op.trained and len(tensors) == expected - len(op.captured):
            warn_of_constants(op.name, op.trained, [t.name for t in op.inputs], tensors)
        found = self._of_sizes(tensors)
        if found is not None:
            return found(*for_other_sizes(op, found.operator, tensors))
        if len(tensors) != expected:
            tensors = self._captured.appended(tensors)
        if len(tensors) != expected:
            raise LaunchError(
                f"{op.name} got {len(tensors)} arguments, expected {expected - len(op.captured)}: "
                + ", ".join(t.name for t in op.inputs if t.name not in op.captured),
                help="give the operator's inputs in this order",
            )
        check_indices(op.index_limits, tensors)
        return self._kernel(*tensors)

    def _of_sizes(self, tensors: Sequence[Any]) -> WithGradients | None:
        """The function for tensors of these sizes; None: this one, which refuses other sizes in graphs."""
        op, own = self.operator, self._own
        if op.resized is None or len(tensors) not in (len(own), len(op.inputs)):
            return None
        shapes = shapes_of(tensors[: len(own)])
        return None if shapes is None or shapes == own or in_graph(tensors) else self._others.of(shapes)

    def __copy__(self) -> WithGradients:
        """The function itself, as a deep copy is."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> WithGradients:
        """The function itself, which never changes: a model that holds it can be copied."""
        return self

    def __reduce__(self) -> Any:
        raise NotPickledError(
            f"the function with gradients of {self.operator.name} cannot be pickled",
            help="in another process, compile the operator again: nl.compile(op).with_gradients()",
        )

    def __repr__(self) -> str:
        return f"{repr(self.operator)[:-1]}, with gradients>"


def _kernel(op: Operator) -> LoadedKernel:
    from neptune_lab.pipeline.compile import compile

    return load(compile(op).spec)


__all__ = ["cotangents_of", "differentiable", "with_gradients"]
