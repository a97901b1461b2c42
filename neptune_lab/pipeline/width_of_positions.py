"""Whether what a kernel for all sizes computes of positions has enough bits at every size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neptune_lab.errors import TileError
from neptune_lab.htile.sizes import Sample
from neptune_lab.loop_ir.int32_range import OFFSETS, exceeds_int32
from neptune_lab.operators import Operator

# A size that is taken to be long, and sizes that no other dimension is likely to have.
_LONG = 1 << 20
_UNUSUAL = (131, 137, 139, 149, 151, 157)


def check_width_of_positions(make: Callable[[Sample], Operator], roles: Mapping[str, str], hint: Sample) -> None:
    """Refuses a definition that needs 64 bits at large sizes, and is written with 32 at small ones.

    Formal statement: if no integer of the definition leaves int32 at small sizes, none does at sizes of 2**20.

    Args:
        make: the operator at given sizes, by name.
        roles: what each size is cut into, as for `compile_for_sizes`; "" if no tile cuts it.
        hint: sizes for the dimensions that no tile cuts.

    Raises:
        TileError: an integer leaves int32 at large sizes only.
    """
    cut = [name for name, role in roles.items() if role]
    small = dict(zip(cut, _UNUSUAL, strict=False))
    op = make({**hint, **small})
    assert op.program is not None
    large: dict[int, int] = dict.fromkeys(small.values(), _LONG)
    # (the definition of a mod has 64 bits if the ranges that are stated for it exceed 32, another one if bounds do)
    if any(
        not exceeds_int32(op.program, captured=limits) and exceeds_int32(op.program, large, limits)
        for limits in (None, OFFSETS)
    ):
        raise TileError(
            f"{op.name} computes an integer of positions that 32 bits hold at small sizes only",
            help="convert a position to 64 bits, as in kv.long(), or compile the operator at numbers: op.at(...)",
        )


__all__ = ["check_width_of_positions"]
