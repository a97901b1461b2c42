"""The refusal of a normalisation that applies, but not in floats."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Expr
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_schedule.definition.stages import without_casts


class FloatsDiffer(ScheduleError):
    """A normalisation is right over the reals, and may change which results are finite, or lose digits."""


def equation(factor: Expr, value: Expr) -> str:
    """A factor of a product and how it is computed, as text; the factor alone if it is written out in the product.

    >>> from neptune_lab.loop_ir.nodes import Op, Var
    >>> x, s = Var("x"), Var("s")
    >>> equation(Var("y"), Op("mul", (Op("sub", (x, s)), s))), equation(Op("sub", (x, s)), Op("sub", (x, s)))
    ('y = (x - s) * s', 'x - s')
    """
    name, text = expression(without_casts(factor)), expression(value)
    return text if name == text else f"{name} = {text}"


__all__ = ["FloatsDiffer", "equation"]
