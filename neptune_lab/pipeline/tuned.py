"""Kernels of tuning records, and the one place that decides what becomes of a record that does not compile.

Such a record names an option that this version does not have, is of other sizes, or meets a compiler that has changed
since.  It is skipped, and the next best choice is compiled.  If it was measured at these very sizes, a `RecordsWarning`
says why; the choice of other sizes is only a guess, and is skipped silently.  A kernel that differs from the definition
is never skipped: the ValidationError is raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from neptune_lab.errors import NeptuneError, ValidationError
from neptune_lab.htile_passes import PASSES, apply
from neptune_lab.htile_to_gluon import fits_registers, suits_persistence, suits_tie
from neptune_lab.loop_schedule.templates import TileConfig, choose_template
from neptune_lab.pipeline.choice import Choice
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.options import CodeOptions
from neptune_lab.target import ANY, Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.records import Record

# Compiles a choice.
Make: TypeAlias = Callable[[Choice], Kernel]

# Without a record: the configuration that did best on all measured prefill attention, on the GPU it is written for; and
# a smaller one, for kernels whose tiles are too many for shared memory then (two products of scores).
UNTUNED_ON_HOPPER = tuple(TileConfig(block_q=128, block_kv=columns) for columns in (128, 64))

# Accumulators of more columns take so many registers that less is left for scores.
WIDE_COLUMNS = 128
# For loops that skip tiles by data, with products of more than 64 columns: more programs, since each has few tiles.
SKIPPING_COLUMNS = 64
SKIPPING = TileConfig(block_q=64, block_kv=64, num_warps=4, num_stages=3)


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
            from neptune_lab.records import RecordsWarning

            warnings.warn(
                f"the tuned kernel cannot be compiled, and its record is skipped: {error.reason}\n"
                "  help: tune the operator again with nl.tune, which replaces the record",
                RecordsWarning,
                stacklevel=3,
            )
        return None, error.reason


def tuned_kernel(
    operator: Operator,
    record: Record | None,
    make: Make,
    *,
    exact: bool,
    template: str | None = None,
    target: Target | None = None,
) -> Kernel | None:
    """The kernel of a tuning record; if it is skipped, rolling loops on a Hopper GPU are written in Gluon, unless they
    would spill registers, or Triton can skip tiles by the values of an input.

    Args:
        operator: what is compiled.
        record: of the operator; None: there is none.
        make: compiles a choice.  Several are tried, so it should compare none with the definition; the caller then
            compares the result (`validated`).
        exact: as for `kernel_of_record`.
        template: the template that the caller asks for; a record of another one is left out.
        target: the GPU that code is emitted for; None: the local GPU.

    Returns:
        The kernel, or None if neither of the two applies and compiles.

    Raises:
        ValidationError: a kernel differs from the definition.
    """
    if record is not None and template in (None, record.template):
        kernel, _ = kernel_of_record(record, make, exact=exact)
        if kernel is not None:
            return kernel
    rolls = template or operator.template or choose_template(operator.program)[0]
    if rolls != "rolling_update" or not (target or Target.current(otherwise=ANY)).warpgroup_products:
        return None
    for config in UNTUNED_ON_HOPPER:
        with suppress(*REFUSALS):
            kernel = make(Choice(rolls, config, CodeOptions(code="gluon")))
            if _would_skip_by_data(kernel):
                return make(
                    Choice(rolls, SKIPPING if _widest_output(kernel) > SKIPPING_COLUMNS else None, CodeOptions())
                )
            if not fits_registers(kernel.htile):
                if _widest_output(kernel) > WIDE_COLUMNS:
                    continue  # with half of the scores, there is room for them
                return None
            persistent = suits_persistence(kernel.htile)
            if not persistent and not suits_tie(kernel.htile):
                return kernel
            return make(Choice(rolls, config, CodeOptions(code="gluon", persistent=persistent, tie=True)))
    return None


def _widest_output(kernel: Kernel) -> int:
    """Columns of the widest output."""
    shapes = (kernel.htile.tensor(name).shape for name in kernel.htile.outputs)
    return max(shape[-1] if shape else 1 for shape in shapes)


def _would_skip_by_data(kernel: Kernel) -> bool:
    """Whether `skip_tiles_by_data`, which kernels in Gluon go without, would skip tiles of the kernel."""
    names = list(PASSES)
    before = names[: names.index("skip_tiles_by_data")]
    programs = [kernel.translated, *(done.program for done in kernel.passes if done.name in before)]
    return bool(apply(PASSES["skip_tiles_by_data"], programs[-1]).notes)


__all__ = ["kernel_of_record", "tuned_kernel"]
