"""`attention` of tensors that record gradients: a kernel that keeps what its backward kernel reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import stored
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.compiled import _keep, definition_of, known_records
from neptune_lab.pytorch.compiled import _lock as compiling
from neptune_lab.pytorch.kernel_choice import kernel_for
from neptune_lab.pytorch.length_training import training_for_lengths
from neptune_lab.pytorch.mods import Reading
from neptune_lab.pytorch.refusals import refuse_captured_kinds
from neptune_lab.runtime import LoadedKernel, load
from neptune_lab.runtime.differentiable import Differentiable
from neptune_lab.strict.values import check_switch

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel

# The compiler takes half a minute for so many stages, on one core.
_MOST_STAGES = 200
# Operators by everything that they depend on; the oldest are dropped first.
_known: OrderedDict[Any, Recording] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Recording:
    """A forward kernel with gradients.

    Args:
        kernel: takes q, k, v and the captured tensors.
        op: its operator.
        captured: for each captured tensor, its index in `Reading.tensors`, and the dtype that the kernel takes.
    """

    kernel: Differentiable
    op: OpOverload
    captured: tuple[tuple[int, torch.dtype], ...]


def records_gradients(tensors: Sequence[Any]) -> bool:
    """Whether one of these tensors records gradients here."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def recording_for(problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading, device: torch.device) -> Recording:
    """The kernel with gradients for `problem` with these mods on `device`.

    Its backward kernels are compiled when the first backward pass needs them.

    Raises:
        LaunchError: the call is one that has no backward pass.
        DefinitionError: a mod cannot be compiled, or has no derivative.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    if problem.extras.formats:
        raise LaunchError(
            "attention on tensors of 8 bits has no backward pass",
            help="call it under torch.no_grad(), or convert the tensors to bfloat16 where gradients are needed",
        )
    refuse_captured_kinds(reading.tensors, device)
    check_switch("kernel_options: deterministic", problem.extras.deterministic, LaunchError)
    key = (problem, reading.key, device) if reading.exact else None
    if key in _known:
        return _known[key]
    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    # (torch's tracers call this with a mode, under which tensors have no values)
    with compiling, on_device, _disable_current_modes():
        from neptune_lab.pipeline.with_gradients import differentiable

        def guarded(make: Callable[[], LoadedKernel]) -> LoadedKernel:
            with compiling, on_device, _disable_current_modes():
                return make()

        sized = training_for_lengths(problem, score_mod, mask_mod, reading, guarded)
        if sized is None:
            made = definition_of(problem, score_mod, mask_mod, reading)
            options, joint = problem.extras.forward_options, not problem.extras.deterministic
            kernel = differentiable(
                made.op,
                lambda op: _kernel(op, options),
                lambda op: guarded(lambda: (_joint_kernel(op) if joint else None) or _kernel(_of_bounded_size(op), {})),
            )
            if joint:  # (an operator of torch is registered by it)
                kernel.derivative += "\nin any order"
            captured = made.captured
        else:
            kernel, captured = sized
        given = stored.captured_inputs(kernel.forward.spec.inputs)
        dtypes = [getattr(torch, t.dtype) for t in given]
        found = Recording(kernel, kernel.op, tuple(zip(captured, dtypes, strict=True)))
    if key is not None:
        _keep(_known, key, found)
    return found


def _of_bounded_size(op: Operator) -> Operator:
    """The operator of a backward pass, which the compiler finishes within a minute or two.

    Raises:
        LaunchError: it has too many stages or operations.  Each element of a captured tensor that a mod reads for a
            score has a stage of its own, with the derivative of all that the mod computes.
    """
    from neptune_lab.operators.extents import MOST_OPERATIONS, extent_of_stages

    sizes = extent_of_stages(op.program)
    stages, operations = len(sizes), sum(sizes.values())
    if stages <= _MOST_STAGES and operations <= MOST_OPERATIONS:
        return op
    names = [t.name.removeprefix("d_") for t in op.outputs]
    most = max(names, key=lambda name: sum(stage.startswith(f"d_{name}_of_") for stage in sizes))
    raise LaunchError(
        f"the backward pass has {stages:,} stages and {operations:,} operations; expected at most {_MOST_STAGES} and "
        f"{MOST_OPERATIONS:,}: score_mod reads many elements of {most!r} for each score",
        help=f"compute what it makes of them before the call, such as w = {most}.softmax(-1), and read elements of w: "
        "torch differentiates the rest",
    )


def _kernel(op: Operator, options: dict[str, Any]) -> LoadedKernel:
    """The kernel of one pass: from disk, or compiled."""
    from neptune_lab.pipeline import compile, validated
    from neptune_lab.records import workload_key

    def make() -> Kernel:
        return validated(kernel_for(op, options)) if options else compile(op)

    workloads = (workload_key(op),)
    records = known_records(workloads)
    found = _stored(("pass", workloads, records, tuple(sorted(options.items()))), workloads, records, make)
    assert found is not None
    return found


def _joint_kernel(op: Operator) -> LoadedKernel | None:
    """The backward kernel that adds in any order; None if there is none for this operator or GPU."""
    from neptune_lab.pipeline.joint import joint_kernel
    from neptune_lab.records import workload_key

    workloads = (workload_key(op),)
    return _stored(("joint pass", workloads), workloads, "", lambda: joint_kernel(op))


def _stored(
    what: tuple[Any, ...], workloads: tuple[str, ...], records: str, make: Callable[[], Kernel | None]
) -> LoadedKernel | None:
    """The kernel that is kept on disk for `what`, or the one that `make` gives; None if it gives none."""
    key = stored.key_of(what)
    entry = stored.find(key)
    if entry is None:
        made = make()
        if made is None:
            return None
        further = tuple(range(len(stored.captured_inputs(made.spec.inputs))))
        entry = stored.StoredKernel(made.spec, further, workloads, records)
        stored.put(key, entry)
    return load(entry.spec)


def forget() -> None:
    """Forgets the kernels in memory, as in a new process."""
    _known.clear()


__all__ = ["Recording", "forget", "recording_for", "records_gradients"]
