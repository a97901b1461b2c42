"""Kernels for all lengths with gradients: one for each pass of a family of calls, once it has had several lengths.

The first lengths have kernels of their own, as many as a sweep over powers of two has, since these are faster: on an
H200, the causal backward pass of 8192 positions takes 1.4 times as long in a kernel for all lengths, whose tiles are
loaded through pointers.

A kernel for all lengths is made from programs at several lengths, so both passes are derived at each of them: with what
is kept, and which gradients are computed, chosen at one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.errors import NeptuneError
from neptune_lab.pytorch import stored
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.length_plans import Plan, compiled, operator_at
from neptune_lab.pytorch.lengths import Family, captured_indices, plans_of, takes
from neptune_lab.pytorch.mods import Reading, read
from neptune_lab.runtime import LoadedKernel, load
from neptune_lab.runtime.differentiable import Differentiable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Choice, Kernel

# Lengths of a family that have kernels of their own.
OWN_LENGTHS = 8
# A kernel with gradients, and the index in `Reading.tensors` of each captured tensor that it takes.
Trained: TypeAlias = "tuple[Differentiable, tuple[int, ...]]"
# Runs the compiler with its lock, outside of torch's modes.
Guard: TypeAlias = Callable[[Callable[[], LoadedKernel]], LoadedKernel]


def training_for_lengths(
    problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading, guard: Guard
) -> Trained | None:
    """The kernel with gradients for all lengths that serves a call; None if the call gets one of its own lengths.

    Args:
        guard: runs the compiler when a backward pass first needs its kernel.
    """
    for key, family, plan in plans_of(problem, reading, "training"):
        if problem.extras.dynamic is None and len(family.seen) <= OWN_LENGTHS:
            continue
        if plan not in family.entries:
            family.entries[plan] = _made(problem, score_mod, mask_mod, reading, family, plan, key, guard)
        entry = family.entries[plan]
        if entry is not None and takes(entry[0].forward.spec, entry[1], problem, reading):
            return entry
    return None


def _made(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    family: Family,
    plan: Plan,
    key: Any,
    guard: Guard,
) -> Trained | None:
    """Both passes of a plan; None if the compiler refuses one of them, for the reason in `Family.refusals`.

    The backward pass for all inputs is compiled at once: calls get kernels of their own lengths if it is refused.
    """
    from neptune_lab.operators import training
    from neptune_lab.operators.reverse_mode.groups import FEWEST_ROWS
    from neptune_lab.pipeline.with_gradients import cotangents_of

    own = partial(operator_at, problem, score_mod, mask_mod, reading, plan, family.layouts)

    grouped = problem.k[0] * problem.k[1] * plan.hint.get(plan.kv, problem.k[2]) >= FEWEST_ROWS

    def passes(wanted: tuple[str, ...] | None, sample: Mapping[str, int], small: bool = False) -> Any:
        return training(own(sample, small=small), wanted, kept, grouped=grouped)

    def forward(sample: Mapping[str, int], small: bool = False) -> Operator:
        return passes(None, sample, small).forward

    def backward(wanted: tuple[str, ...], sample: Mapping[str, int], small: bool = False) -> Operator:
        return passes(wanted, sample, small).backward

    def kernel(of: Any, make: Callable[..., Operator], *choices: Mapping[str, Any]) -> LoadedKernel:
        digest = stored.key_of(("training lengths", key, plan, of))
        entry = stored.find(digest)
        if entry is None:
            spec = _first_of(make, problem, reading, plan, choices).spec
            further = tuple(range(len(stored.captured_inputs(spec.inputs))))
            entry = stored.StoredKernel(spec, further, (), "")
            stored.put(digest, entry)
        return load(entry.spec)

    both = dict.fromkeys(plan.roles, "both")  # each length is rows of one gradient's nest, and columns of another's
    nests: dict[str, Any] = {"roles": both, "template": "rolling_update"}

    def backward_for(wanted: tuple[str, ...]) -> LoadedKernel:
        make = partial(backward, wanted)
        choice = _joint(make(plan.hint), plan, deterministic=problem.extras.deterministic)
        in_one = () if choice is None else ({"roles": both, "choice": choice},)
        return kernel(wanted, make, *in_one, nests)

    try:
        at_hint = training(own(plan.hint))
        kept = at_hint.kept
        for_every_input = backward_for(at_hint.wrt)  # (first, as the one that is refused more often)
        first = kernel("forward", forward, {"options": problem.extras.forward_options})
        captured = captured_indices(own, first.spec, problem, score_mod, mask_mod, reading, plan)
    except NeptuneError as error:
        family.refusals[plan] = str(error)
        return None

    def in_backward_pass(wanted: tuple[str, ...]) -> LoadedKernel:
        # Kernels are derived from what the mods read in the forward pass: if that has changed, this one is left.
        if wanted == at_hint.wrt or not _reads_the_same(read(score_mod, mask_mod), reading):
            return for_every_input
        return guard(lambda: backward_for(wanted))

    made = Differentiable(
        first,
        len(at_hint.of.outputs),
        cotangents_of(at_hint.of),
        frozenset(at_hint.wrt),
        in_backward_pass,
        "" if problem.extras.deterministic else "in any order",
    )
    return made, captured


def _reads_the_same(now: Reading, before: Reading) -> bool:
    """Whether mods certainly read the same numbers and tensors as before."""
    tensors = len(now.tensors) == len(before.tensors) and all(map(operator.is_, now.tensors, before.tensors))
    return now.exact and now.key == before.key and tensors


def _first_of(
    make: Callable[..., Operator], problem: Problem, reading: Reading, plan: Plan, choices: Sequence[Mapping[str, Any]]
) -> Kernel:
    """The kernel of the first choice that the compiler does not refuse; it raises what refuses the last one."""
    from neptune_lab.pipeline.fallback import REFUSALS

    for choice in choices[:-1]:
        with suppress(*REFUSALS):
            return compiled(make, problem, reading, plan, **choice)
    return compiled(make, problem, reading, plan, **choices[-1])


def _joint(op: Operator, plan: Plan, *, deterministic: bool) -> Choice | None:
    """The choice of a backward kernel for all lengths in which both nests are one; None if these are better, or lengths
    may be too short for it."""
    from neptune_lab.pipeline.joint import joint_choice_for_lengths
    from neptune_lab.target import ANY, Target

    if not (plan.long and plan.q == plan.kv and Target.current(otherwise=ANY).warpgroup_products):
        return None
    return joint_choice_for_lengths(op, deterministic=deterministic)


__all__ = ["OWN_LENGTHS", "training_for_lengths"]
