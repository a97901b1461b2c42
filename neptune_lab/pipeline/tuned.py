"""The choice of template and options that every entry point asks for, and what becomes of one that does not compile.

In this order: the tuning record of these very sizes; a measured form of long rows (`row_forms`); else the best in the
ranking of `autotune.ranking`, which has the record of the nearest sizes, the form in Gluon, what the shape suggests,
and the tuner's space.

A record that does not compile names an option that this version does not have, or meets a compiler that has changed
since.  It is skipped, and the next best choice is compiled.  If it was measured at these very sizes, a `RecordsWarning`
says why; the choice of other sizes is only a guess, and is skipped silently.  A kernel that differs from the definition
is never skipped: the ValidationError is raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from neptune_lab import records
from neptune_lab.autotune import packed_groups
from neptune_lab.autotune.nests import splits_of
from neptune_lab.autotune.ranking import RECORD, SHAPE, SPACE, Ranked, Ranking, ranking
from neptune_lab.choice import NOTHING, Choice, Given
from neptune_lab.errors import LaunchError, NeptuneError, ValidationError
from neptune_lab.htile_passes.skip_tiles_by_list import leaves_out_inside
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.hopper import gluon_kernel, kernel_of_other_lengths
from neptune_lab.pipeline.joint import default_joint_choice
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import keeping
from neptune_lab.pipeline.row_forms import form_of_rows
from neptune_lab.records import Record, RecordsWarning
from neptune_lab.runtime import has_gpu
from neptune_lab.target import ANY, Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

# Compiles a choice.
Make: TypeAlias = Callable[[Choice], Kernel]


def chooses_by_default() -> bool:
    """Whether `compile` asks for a choice by itself: on a GPU.  In Triton's interpreter it takes what the shape
    suggests, so that its programs are the same on every machine."""
    with suppress(LaunchError):
        return has_gpu() and Target.current(otherwise=ANY) != ANY
    return False


def chosen_kernel(
    operator: Operator,
    make: Make,
    *,
    similar: tuple[Operator, ...] = (),
    given: Given = NOTHING,
    target: Target | None = None,
    measured: bool = True,
) -> Kernel | None:
    """The kernel of the best choice that is known without measuring; its `chosen` says what chose it.

    Args:
        operator: what is compiled.
        make: compiles a choice.  Several are tried, so it should compare none with the definition; the caller then
            compares the result (`validated`).
        similar: other forms of the operator, whose records are of the same kernel; of the first, one counts as measured
            at these very sizes.
        given: what the caller gives, which replaces parts of each choice; those that it does not fit are left out.
        target: the GPU that code is emitted for; None: the local GPU.
        measured: whether a tuning record of these very sizes counts; otherwise, it is as if there were none.

    Returns:
        The kernel; None if what the shape suggests is best, or nothing else fits what is given.

    Raises:
        ValidationError: a kernel differs from the definition.
    """
    kernel = _chosen(operator, _with_given(make, given), _record(operator, similar, target, measured), given, target)
    return kernel if kernel is None or not given else replace(kernel, chosen=f"{kernel.chosen}, with {given} as given")


def _with_given(make: Make, given: Given) -> Make:
    """`make` for choices of which what is given replaces parts, also of the options that follow from the tiles."""
    if not given:
        return make

    def of(choice: Choice) -> Kernel:
        with keeping(given.over_code):
            return make(given.over(choice))

    return of


def _chosen(
    operator: Operator, make: Make, known: tuple[Record | None, bool], given: Given, target: Target | None
) -> Kernel | None:
    """`chosen_kernel`, for a `make` that knows what is given and the record to follow (`_record`)."""
    record, exact = known
    if record is not None and given and (choice := _choice_of(record)) is not None and not given.fits(choice):
        record = None
    if record is not None and exact:
        kernel, _ = kernel_of_record(record, make, exact=not given)
        if kernel is not None:
            return replace(kernel, chosen=f"the tuning record of these sizes on {record.device}")
        record = None
    gpu = target or Target.current(otherwise=ANY)
    if operator.parts:  # (the model ranks a single choice, and each part has its own tiles)
        return _joint(operator, make, given) if gpu.warpgroup_products else None
    rows = form_of_rows(operator, make, gpu, given, sure=True)
    if rows is not None:
        return rows
    near = None if record is None else _choice_of(record)
    ranked = ranking(operator, gpu, near=near, given=given)
    if ranked is None:
        kernel = None if record is None else kernel_of_record(record, make, exact=False)[0]
        return None if kernel is None else replace(kernel, chosen="the tuning record of the nearest sizes")
    rolls = False
    for one in ranked.ranked:
        if one.origin == SHAPE:
            return None
        if rolls and _is_split(one.choice):
            continue
        kernel = _kernel_of_ranked(one, make, ranked)
        if kernel is not None and one.origin == SPACE and _is_split(one.choice) and len(kernel.htile.kernels) == 1:
            rolls = True  # (its nest cannot be split, so the estimate was of another kernel)
        elif kernel is not None:
            return replace(kernel, chosen=ranked.why(one))
    return None


def _is_split(choice: Choice) -> bool:
    return splits_of(choice, 0) not in (None, 1)


def packs_groups(*forms: Operator) -> bool:
    """Whether attention is faster if the queries of a group of heads are rows of one product, as far as known without
    measuring: not if it was tuned as it is.

    Args:
        forms: the operator without `pack_groups`, and others whose records are of the same kernel.
    """
    return packed_groups.suits(forms[0]) and not any(records.best(form) for form in forms)


def _joint(operator: Operator, make: Make, given: Given) -> Kernel | None:
    """The kernel of a backward pass in which both nests are one and programs add in order; None if there is none, the
    nests apart are as fast, or skip many tiles more, or it does not fit what is given."""
    choice = default_joint_choice(operator)
    if choice is None or not given.fits(choice):
        return None
    with suppress(*REFUSALS):
        kernel = make(choice)
        apart = leaves_out_inside(kernel.translated, cut=2)
        if not apart or not leaves_out_inside(make(Choice()).translated):  # (whose tiles are smaller)
            return replace(kernel, chosen="both nests in one kernel, which is faster with such heads")
    return None


def untuned_choice(operator: Operator, target: Target) -> Choice | None:
    """The choice that `chosen_kernel` makes for a GPU, with the options that follow from its tiles; None if it is what
    the shape suggests."""
    found = choice_and_kernel(operator, target)
    return None if found is None else found[0]


def choice_and_kernel(
    operator: Operator, target: Target | None, given: Given = NOTHING, *, measured: bool = True
) -> tuple[Choice, Kernel] | None:
    """The choice that `chosen_kernel` makes for a GPU, with the options that follow from its tiles, and its kernel, not
    compared; None if it is what the shape suggests, with what is given."""
    from neptune_lab.pipeline.compile import compile_choice

    tried: list[tuple[Choice, Kernel]] = []

    def make(choice: Choice) -> Kernel:
        tried.append((choice, compile_choice(operator, choice, target=target, validate="none")))
        return tried[-1][1]

    kernel = chosen_kernel(operator, make, given=given, target=target, measured=measured)
    if kernel is None:
        return None
    choice = next(choice for choice, made in tried if made.htile is kernel.htile)
    return replace(choice, code=kernel.code), kernel


def _record(
    operator: Operator, similar: tuple[Operator, ...], target: Target | None, measured: bool
) -> tuple[Record | None, bool]:
    """The record to follow, and whether it was measured at these very sizes; if not `measured`, none of those."""
    device = _device(target)
    best, nearest = records.best, records.nearest
    if device is not None:
        best, nearest = partial(best, device=device), partial(nearest, device=device)
    if not measured:
        return nearest(operator, own=False), False
    if similar:
        same = best(operator) or best(similar[0])
        others = (best(other) for other in similar[1:])
        found = same or next((record for record in others if record is not None), None)
        return found or nearest(operator), same is not None
    found = nearest(operator)
    return found, found is not None and found.workload == records.workload_key(operator)


def _device(target: Target | None) -> str | None:
    """The name of the GPU whose records are followed, as torch has it; None: the local one."""
    if target is None or target == Target.current(otherwise=ANY):
        return None
    names = dict.fromkeys(record.device for record in records.shipped())
    known = (name for name in names if (gpu := Target.known(name)) is not None and gpu.name == target.name)
    return next(known, target.name.upper())


def _choice_of(record: Record) -> Choice | None:
    """The choice of a record of other sizes; None if this version does not have one of its options."""
    try:
        return Choice.of(record.template, record.options, "the tuning record")
    except NeptuneError:
        return None


def _kernel_of_ranked(one: Ranked, make: Make, ranked: Ranking) -> Kernel | None:
    """The kernel of a ranked choice; None if it is refused, or slower than it looks for a reason that tiles show."""
    with suppress(*REFUSALS):
        if one.choice.code.code != "gluon":
            return make(one.choice)
        if one.origin == RECORD:
            return kernel_of_other_lengths(make, one.choice)
        return gluon_kernel(make, one.choice, small=ranked.small, large=ranked.large, by_data=ranked.by_data)
    return None


def kernel_of_record(record: Record, make: Make, *, exact: bool) -> tuple[Kernel | None, str]:
    """The kernel of a record's choice and "", or None and the reason that the record is skipped.

    Args:
        record: of the operator, at its sizes or at others.
        make: compiles a choice.
        exact: the record was measured at the operator's own sizes; skipping it gives a `RecordsWarning`.

    Raises:
        ValidationError: the kernel differs from the definition.
    """
    try:
        return make(Choice.of(record.template, record.options, "the tuning record")), ""
    except ValidationError:
        raise
    except NeptuneError as error:
        if exact:
            warnings.warn(
                f"the tuned kernel cannot be compiled, and its record is skipped: {error.reason}\n"
                "  help: tune the operator again with nl.tune, which replaces the record",
                RecordsWarning,
                stacklevel=4,
            )
        return None, error.reason


__all__ = [
    "choice_and_kernel",
    "chooses_by_default",
    "chosen_kernel",
    "kernel_of_record",
    "packs_groups",
    "untuned_choice",
]
