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
from dataclasses import dataclass
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

    from neptune_lab.operators import Operator, Training
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
            family.entries[plan] = _trained_plan(problem, score_mod, mask_mod, reading, family, plan, key, guard)
        entry = family.entries[plan]
        if entry is not None and takes(entry[0].forward.spec, entry[1], problem, reading):
            return entry
    return None


@dataclass(frozen=True, slots=True)
class _Passes:
    """Both passes of a plan, at any length.

    Args:
        problem, reading, plan: of the calls.
        key: of the family that they belong to, for what is kept on disk.
        own: the operator at given sizes.
        kept: names of what the forward pass keeps, chosen at the hint.
        grouped: whether gradients of keys that heads share are sums in one nest.
    """

    problem: Problem
    reading: Reading
    plan: Plan
    key: Any
    own: Callable[..., Operator]
    kept: tuple[str, ...]
    grouped: bool

    def forward_kernel(self) -> LoadedKernel:
        """The kernel of the forward pass."""
        return self._kernel("forward", self._forward, {"options": self.problem.extras.forward_options})

    def backward_kernel(self, wanted: tuple[str, ...]) -> LoadedKernel:
        """The kernel of the backward pass for some inputs; both nests in one, if that is as good and not refused."""
        # Each length is rows of one gradient's nest, and columns of another's.
        both = dict.fromkeys(self.plan.roles, "both")
        make = partial(self._backward, wanted)
        choice = _joint(make(self.plan.hint), self.plan, deterministic=self.problem.extras.deterministic)
        in_one = () if choice is None else ({"roles": both, "choice": choice},)
        return self._kernel(wanted, make, *in_one, {"roles": both, "template": "rolling_update"})

    def _of(self, wanted: tuple[str, ...] | None, sample: Mapping[str, int], small: bool) -> Training:
        from neptune_lab.operators import training

        return training(self.own(sample, small=small), wanted, self.kept, grouped=self.grouped)

    def _forward(self, sample: Mapping[str, int], small: bool = False) -> Operator:
        return self._of(None, sample, small).forward

    def _backward(self, wanted: tuple[str, ...], sample: Mapping[str, int], small: bool = False) -> Operator:
        return self._of(wanted, sample, small).backward

    def _kernel(self, of: Any, make: Callable[..., Operator], *choices: Mapping[str, Any]) -> LoadedKernel:
        """The kernel from disk, or of the first choice that is not refused, which is put there."""
        digest = stored.key_of(("training lengths", self.key, self.plan, of))
        entry = stored.find(digest)
        if entry is None:
            spec = _first_of(make, self.problem, self.reading, self.plan, choices).spec
            further = tuple(range(len(stored.captured_inputs(spec.inputs))))
            entry = stored.StoredKernel(spec, further, (), "")
            stored.put(digest, entry)
        return load(entry.spec)


def _trained_plan(
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
    try:
        at_hint = training(own(plan.hint))
        passes = _Passes(problem, reading, plan, key, own, at_hint.kept, grouped)
        for_every_input = passes.backward_kernel(at_hint.wrt)  # (first, as the one that is refused more often)
        first = passes.forward_kernel()
        captured = captured_indices(own, first.spec, problem, score_mod, mask_mod, reading, plan)
    except NeptuneError as error:
        family.refusals[plan] = str(error)
        return None

    def in_backward_pass(wanted: tuple[str, ...]) -> LoadedKernel:
        # Kernels are derived from what the mods read in the forward pass: if that has changed, this one is left.
        if wanted == at_hint.wrt or not _reads_the_same(read(score_mod, mask_mod), reading):
            return for_every_input
        return guard(lambda: passes.backward_kernel(wanted))

    derivative = "" if problem.extras.deterministic else "in any order"
    if at_hint.of.marked is not at_hint.of.program:  # another mod of the same kernel may stop other gradients
        derivative += at_hint.backward.source
    made = Differentiable(
        first,
        len(at_hint.of.outputs),
        cotangents_of(at_hint.of),
        frozenset(at_hint.wrt),
        in_backward_pass,
        derivative,
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
