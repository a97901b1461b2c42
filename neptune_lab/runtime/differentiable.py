"""Kernels with gradients: a forward kernel whose backward pass is a kernel too.

It is an operator of torch, for graphs and for modes that only see operators. A call on plain tensors goes through a
function of torch's autograd instead, whose two passes launch the kernels themselves: two operators with an autograd of
Python take about 70 microseconds of the host's time more (scripts/backward_speed.py, at length 1024).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.runtime import LoadedKernel
from neptune_lab.runtime.known_backward import Known, known_backward
from neptune_lab.runtime.refusals import is_traced, refuse_other_than_tensor
from neptune_lab.runtime.strided import of_any_strides
from neptune_lab.runtime.subclasses import refuse_jit_trace
from neptune_lab.runtime.torch_op import torch_op
from neptune_lab.runtime.torch_state import is_plain
from neptune_lab.strict.forks import ReentrantLock

if TYPE_CHECKING:
    from torch._ops import OpOverload

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True, slots=True)
class _Backward:
    """The backward kernel for some of the inputs.

    Args:
        kernel: takes tensors as in its spec; `launch`: of any strides; `op`: the same as an operator.
        sources: for each of its inputs, the index of the saved tensor, and -1; or of the saved output whose cotangent
            it is, and the index of that.
        places: for each input of the forward kernel, which of the results is its gradient; None: it has none.
    """

    kernel: LoadedKernel
    launch: Callable[..., Any]
    op: OpOverload
    sources: tuple[tuple[int, int], ...]
    places: tuple[int | None, ...]


@dataclass(slots=True)
class Differentiable:
    """A forward kernel and the backward kernels for the inputs that need gradients.

    Args:
        forward: gives the operator's outputs, and after them what the backward pass reads.
        results: number of the operator's own outputs.
        cotangents: by the name of a backward kernel's input, the index of the operator's output.
        wrt: names of the inputs that have a gradient; no result depends on the others, or only by steps.
        backward_for: the backward kernel with respect to some inputs of the forward kernel, by name; it is called once
            for each choice of inputs.  Its results are named after the inputs (`d_q` for `q`), and may be more.
        derivative: text that tells the backward pass from others of the same forward kernel.
        fixed: indices of the operator's outputs that have no gradient, since none of the inputs has one of theirs.
        reads: for each of the operator's outputs, the indices of the inputs that it is computed from; an output that is
            computed from none that needs a gradient does not require one either.
        check: raises an error if the definition's derivative with respect to some inputs, by name, is not that of the
            function; None: it always is.  It is called once for each choice of inputs, in the forward pass.
    """

    forward: LoadedKernel
    results: int
    cotangents: dict[str, int]
    wrt: frozenset[str]
    backward_for: Callable[[tuple[str, ...]], LoadedKernel]
    derivative: str = ""
    fixed: tuple[int, ...] = ()
    reads: tuple[frozenset[int], ...] = ()
    check: Callable[[tuple[str, ...]], None] | None = None
    _checked: set[tuple[bool, ...]] = field(default_factory=set)
    _constant: dict[tuple[bool, ...], tuple[int, ...]] = field(default_factory=dict)
    # By which inputs of the forward kernel need gradients; None: none of them has one.
    _backward: dict[tuple[bool, ...], _Backward | None] = field(default_factory=dict)
    # The same in `_passes`, once a pass was launched directly.
    _known: dict[tuple[bool, ...], Known] = field(default_factory=dict)
    _forward: tuple[Callable[..., Any], OpOverload] | None = None
    _passes: type[torch.autograd.Function] = field(init=False)
    _making: ReentrantLock = field(default_factory=ReentrantLock)

    def __post_init__(self) -> None:
        self._passes = _passes(self)

    @property
    def op(self) -> OpOverload:
        """The operator: from the forward kernel's inputs to all of its outputs; the first `results` have gradients."""
        return self._launch_and_op()[1]

    def _launch_and_op(self) -> tuple[Callable[..., Any], OpOverload]:
        if self._forward is None:
            launch = of_any_strides(self.forward)
            autograd = self.backward, self.keep
            op = torch_op(self.forward, launch=launch, autograd=autograd, besides=self.derivative)
            self._forward = launch, op
        return self._forward

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The operator's own outputs for the forward kernel's inputs: a tensor, or a tuple."""
        launch, op = self._launch_and_op()
        if torch.compiler.is_dynamo_compiling() or not is_plain(tensors):
            for argument, tensor in zip(self.forward.spec.inputs, tensors, strict=True):
                refuse_other_than_tensor(argument, tensor)
            return self.outputs(op(*tensors))
        with torch.no_grad():
            found = launch(*tensors)
        return self._passes.apply(_listed(found), *tensors)

    def direct_on(self, device: torch.device) -> Callable[..., Any] | None:
        """What a call of tensors on this device does that is like an earlier one, in less of the host's time.

        The tensors must be plain (`is_plain`), and the forward kernel must take them as they are
        (`LoadedKernel.fits`).  None as long as that kernel has no direct launcher on the device.
        """
        launch = self.forward.direct_on(device)
        if launch is None:
            return None
        # (torch's own `apply` looks for transforms first, of which there are none; a microsecond or two)
        apply = super(torch.autograd.Function, self._passes).apply  # pyright: ignore[reportAttributeAccessIssue]
        unwrapped = _functorch.unwrap_if_dead

        def call(*tensors: torch.Tensor) -> Any:
            tensors = tuple(map(unwrapped, tensors))
            found = launch(*tensors)
            return apply(found if type(found) is tuple else (found,), *tensors)

        return call

    def outputs(self, found: Any) -> Any:
        """The operator's own outputs of what `op` gives: a tensor, or a tuple."""
        listed = _listed(found)[: self.results]
        return listed if self.results > 1 else listed[0]

    def keep(self, ctx: Any, inputs: Sequence[torch.Tensor], output: Any) -> None:
        """Keeps what the backward pass reads, for torch's `setup_context`."""
        if self.check is not None:
            self.check_needed(tuple(ctx.needs_input_grad)[: len(inputs)])  # (and one of torch's own)
        outputs = output if isinstance(output, tuple | list) else (output,)
        constant = self.constant(tuple(ctx.needs_input_grad)[: len(inputs)])
        ctx.set_materialize_grads(False)  # (otherwise torch fills zeros for what has no cotangent, at each call)
        ctx.save_for_backward(*inputs, *outputs)
        ctx.mark_non_differentiable(*(outputs[n] for n in constant), *outputs[self.results :])

    def constant(self, needed: tuple[bool, ...]) -> tuple[int, ...]:
        """The outputs without a gradient, if these inputs need one."""
        if needed not in self._constant:
            of = {n for n, needs in enumerate(needed) if needs}
            beside = (n for n, read in enumerate(self.reads) if not read & of)
            self._constant[needed] = tuple(sorted({*self.fixed, *beside}))
        return self._constant[needed]

    def check_needed(self, needed: tuple[bool, ...]) -> None:
        """Calls `check` once for the inputs that need gradients."""
        if self.check is not None and needed not in self._checked:
            specs = self.forward.spec.inputs
            self.check(tuple(t.name for t, needs in zip(specs, needed, strict=True) if needs and "float" in t.dtype))
            self._checked.add(needed)

    def _wanted(self, needed: tuple[bool, ...]) -> tuple[str, ...]:
        specs = self.forward.spec.inputs
        return tuple(t.name for t, needs in zip(specs, needed, strict=True) if needs and t.name in self.wrt)

    def backward(self, ctx: Any, *grads: torch.Tensor | None) -> Any:
        """The gradients of the inputs, None for those that need none."""
        return self.gradients(tuple(ctx.needs_input_grad), ctx.saved_tensors, grads)

    def gradients(
        self, needed: tuple[bool, ...], saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs.

        Args:
            needed: whether each input needs one.
            saved: the inputs and the forward kernel's outputs.
            grads: cotangents of the outputs; None is 0.
        """
        if needed not in self._backward:
            with self._making:
                if needed not in self._backward:
                    self._backward[needed] = self._backward_of(needed)
        backward = self._backward[needed]
        if backward is None:
            return tuple([_gradient((), None, needs, t) for needs, t in zip(needed, saved, strict=False)])
        given: list[torch.Tensor] = []
        for tensor, cotangent in backward.sources:
            grad = None if cotangent < 0 else grads[cotangent]
            if cotangent >= 0 and grad is None:
                grad = torch.zeros_like(saved[tensor], memory_format=torch.contiguous_format)
            given.append(saved[tensor] if grad is None else grad)
        plain = not (torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling()) and is_plain(given, grads)
        found = backward.launch(*given) if plain else backward.op(*given)
        if plain and len(saved) == len(needed) + len(self.forward.spec.outputs):
            self._note(needed, backward, tuple(given), saved)
        listed = found if isinstance(found, tuple | list) else (found,)
        every = zip(backward.places, needed, saved, strict=False)
        return tuple([_gradient(listed, place, needs, tensor) for place, needs, tensor in every])

    def _note(
        self, needed: tuple[bool, ...], backward: _Backward, given: tuple[torch.Tensor, ...], saved: Sequence[Any]
    ) -> None:
        """Notes a pass that was launched, so that `known` finds those like it."""
        key = False, *needed
        zeros = any(needs and place is None for needs, place in zip(needed, backward.places, strict=False))
        if zeros or key in self._known:  # (a gradient of zeros is made for each pass)
            return
        known = known_backward(backward.kernel, backward.sources, backward.places, given, len(saved))
        if known is not None:
            self._known[key] = known

    def known(self, needed: tuple[bool, ...]) -> Known | None:
        """What gives the gradients of a pass like one that was launched; None: none was, or modes see this one.

        Args:
            needed: False, and whether each input needs a gradient.
        """
        known = self._known.get(needed)
        return None if torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling() else known

    def _backward_of(self, needed: tuple[bool, ...]) -> _Backward | None:
        specs = self.forward.spec.inputs
        wanted = self._wanted(needed)
        if not wanted:
            return None
        kernel = self.backward_for(wanted)
        launch = of_any_strides(kernel)
        op = torch_op(kernel, launch=launch, autograd=(_refuse, _keep_nothing))
        outputs = self.forward.spec.outputs
        saved = {t.name: n for n, t in enumerate((*specs, *outputs))}
        sources: list[tuple[int, int]] = []
        for spec in kernel.spec.inputs:
            cotangent = self.cotangents.get(spec.name, -1)
            sources.append((saved[spec.name if cotangent < 0 else outputs[cotangent].name], cotangent))
        places = {t.name: n for n, t in enumerate(kernel.spec.outputs)}
        found = (places[f"d_{t.name}"] if t.name in wanted else None for t in specs)
        return _Backward(kernel, launch, op, tuple(sources), tuple(found))


def _gradient(found: Sequence[Any], place: int | None, needs: bool, tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of an input: zeros if no result depends on it, as in torch."""
    if place is not None:
        return found[place]
    return torch.zeros_like(tensor) if needs else None


def _listed(found: Any) -> tuple[Any, ...]:
    """What a kernel gives, as a tuple."""
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _passes(kernel: Differentiable) -> type[torch.autograd.Function]:
    """The node of torch's graph for what the forward kernel gave, without operators.

    The kernel is launched before, so that the GPU works while torch makes the node.
    """
    results = kernel.results

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, found: tuple[torch.Tensor, ...], *tensors: torch.Tensor) -> Any:
            if kernel.check is not None:
                kernel.check_needed(ctx.needs_input_grad[1:])
            ctx.set_materialize_grads(False)  # (otherwise torch fills zeros for what has no cotangent, at each call)
            ctx.save_for_backward(*tensors, *found)
            constant = kernel.constant(ctx.needs_input_grad[1:])
            if constant:
                ctx.mark_non_differentiable(*(found[n] for n in constant))
            return found[:results] if results > 1 else found[0]

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
            needed, saved = ctx.needs_input_grad, ctx.saved_tensors
            known = kernel.known(needed)
            found = None if known is None else known(saved, grads)
            return (None, *kernel.gradients(needed[1:], saved, grads)) if found is None else found

    return Passes


def is_transformed(*tensors: Any) -> bool:
    """Whether one of these is a tensor of torch.vmap, torch.func.grad or the like, or of `is_grads_batched=True`."""
    return any(
        _functorch.is_functorch_wrapped_tensor(t) or _functorch.is_legacy_batchedtensor(t)
        for t in tensors
        if isinstance(t, torch.Tensor)
    )


def refuse_transforms(*tensors: torch.Tensor) -> None:
    """Raise LaunchError inside torch.vmap, a transform of torch.func, or torch.jit.trace."""
    if torch.compiler.is_dynamo_compiling():  # (of this thread; `is_compiling` is true in all)
        return
    refuse_jit_trace("a kernel with gradients", "trace kernel.as_torch_op(), which is an operator of torch")
    if is_transformed(*tensors):
        raise LaunchError(
            "a kernel with gradients inside torch.vmap or a transform of torch.func: it takes whole tensors",
            help="torch.autograd.grad gives gradients; make the mapped axis one of the operator's",
        )


def shapes_of(tensors: Sequence[Any]) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of a call's tensors; None for what has none, and in a function that Dynamo traces."""
    if torch.compiler.is_dynamo_compiling():
        return None
    found = []
    for tensor in tensors:  # (in as little time as possible: each call does it)
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
            return None
        found.append(tuple(tensor.shape))
    return tuple(found)


def warn_of_constants(name: str, trained: Sequence[str], inputs: Sequence[str], tensors: Sequence[Any]) -> None:
    """Warns that a call leaves out inputs that would train: it reads the copies that were made with the operator.

    Args:
        name: of the operator.
        trained: the inputs that are left out and that recorded gradients.
        inputs: all, in order.
        tensors: of the call.
    """
    if is_traced(tensors) or not torch.is_grad_enabled():
        return
    warnings.warn(
        f"no gradients for {', '.join(trained)} of {name}: this call leaves them out, so it reads the copies that were "
        f"made with the operator. To train them, give them to the call, by name or in this order: {', '.join(inputs)}",
        stacklevel=3,
    )


def _keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """For a backward kernel, which has no derivative."""


def _refuse(ctx: Any, *grads: Any) -> Any:
    """Refuses the gradient of a gradient."""
    raise LaunchError(
        "the gradient of a gradient is asked for, and a backward kernel has no derivative",
        help="compute what is differentiated twice with torch's own operations",
    )


__all__ = ["Differentiable", "is_transformed", "refuse_transforms", "shapes_of", "warn_of_constants"]
