"""Which kernels of a program are one launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from neptune_lab.errors import EmitError
from neptune_lab.htile.nodes import Kernel, Program
from neptune_lab.htile.walk import written_tensors
from neptune_lab.htile_to_triton.last_program import Joined, joined
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.waiting import Waiting, waiting

# How kernels are together in one launch.
Together: TypeAlias = Joined | Waiting


def named(kernel: Kernel, last: Together | None) -> Kernel:
    """The kernel whose name a launch has: of several whose programs wait, the last one's."""
    return last.kernels[-1] if isinstance(last, Waiting) else kernel


def _waiting_launches(program: Program) -> list[tuple[Kernel, Together | None]]:
    """The kernels that are launched, those that share rows as one launch.

    Raises:
        EmitError: no kernels share rows.
    """
    made: list[tuple[Kernel, Together | None]] = []
    left, reasons = list(program.kernels), list[str]()
    while left:
        together = waiting(program, left)
        if isinstance(together, Waiting):
            made += [(kernel, None) for kernel in together.before]
            made.append((together.kernels[0], together))
            left = [kernel for kernel in left if kernel not in (*together.before, *together.kernels)]
        else:
            reasons.append(f"{left[0].name} {together}")
            made.append((left.pop(0), None))
    if len(reasons) == len(program.kernels):
        raise EmitError(
            f"combine='waiting' finds no kernels that share rows: {'; '.join(reasons)}",
            help="leave combine out, or give rows one tile that is longer than 1024 elements for each warp",
        )
    return made


def launches_of(program: Program, options: EmitOptions) -> list[tuple[Kernel, Together | None]]:
    """The kernels that are launched, some with the next one in their last programs, or with all that share rows.

    Raises:
        EmitError: the options ask for that, and no kernel can be joined with the next.
    """
    if options.combine == "waiting":
        return _waiting_launches(program)
    if options.combine != "last_program":
        return [(kernel, None) for kernel in program.kernels]
    made: list[tuple[Kernel, Together | None]] = []
    left, reasons = list(program.kernels), list[str]()
    while left:
        first = left.pop(0)
        both = joined(program, first, left[0]) if left else None
        if isinstance(both, str):
            reasons.append(f"{first.name} and {left[0].name} {both}")
        together = both if isinstance(both, Joined) else None
        made.append((first, together))
        left = left[1:] if together else left
    if len(made) == len(program.kernels):
        why = "; ".join(reasons) or "there is one kernel"
        raise EmitError(
            f"combine='last_program' finds no two kernels for one launch: {why}",
            help="leave combine out, or split the columns with template='split_k_update'",
        )
    return made


def count_kept(
    program: Program, launched: Sequence[tuple[Kernel, Together | None]], used: Sequence[Collection[str]]
) -> int:
    """How many of the first launches follow from no argument of a call, so that their results can be kept.

    Formal statement: each reads nothing but what the ones before it store, and none after them stores to that.

    Args:
        used: the tensors outside of the chip that each launch reads or stores to.
    """
    count, stored = 0, frozenset[str]()
    for (kernel, last), tensors in zip(launched, used, strict=True):
        stored |= written_tensors(kernel)
        known = all(program.tensor(name).space == "global" and name in stored for name in tensors)
        if program.sizes or last is not None or not known:
            break
        count += 1
    kept = frozenset[str]().union(*used[:count])
    changed = any(kept & written_tensors(kernel) for kernel in program.kernels[count:])
    return 0 if changed else count


__all__ = ["Together", "count_kept", "launches_of", "named"]
