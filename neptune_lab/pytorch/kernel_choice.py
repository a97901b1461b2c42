"""The kernel of one pass of a call: chosen as `nl.compile` chooses on a GPU, with the call's `kernel_options`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Given, Kernel


def given_in(options: Mapping[str, Any]) -> Given:
    """What `kernel_options` say of a choice.

    Raises:
        ScheduleError, EmitError: no such option, or a value that it does not take.
    """
    from neptune_lab.pipeline import Given

    others = {name: value for name, value in options.items() if name != "template"}
    return Given.of(options.get("template"), others, "kernel_options")


def kernel_for(op: Operator, options: Mapping[str, Any], similar: tuple[Operator, ...] = ()) -> Kernel:
    """The kernel, not compared with the definition yet.

    Args:
        op: what is compiled.
        options: the caller's, which replace parts of the choice.
        similar: as for `chosen_kernel`.
    """
    from neptune_lab.pipeline import chosen_kernel, compile, compile_choice

    given = given_in(options)
    make = partial(compile_choice, op, validate="none")
    kernel = chosen_kernel(op, make, similar=similar, given=given)
    return kernel or (make(given.alone) if given else compile(op, tuned=False, validate="none"))


__all__ = ["given_in", "kernel_for"]
