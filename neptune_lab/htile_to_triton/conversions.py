"""Conversions between dtypes in Triton."""

from __future__ import annotations

from neptune_lab.htile_to_triton.context import Context
from neptune_lab.htile_to_triton.expression_text import ExpressionText, cast, triton_dtype
from neptune_lab.strict.dtypes import EIGHTS, INTEGERS
from neptune_lab.wrapping import call

# Helpers by the dtype that they convert from or to.  Triton's interpreter does not round floats of 8 bits correctly,
# and makes numbers of NaN.
_FROM = {"float8_e4m3fn": "_from_e4m3", "float8_e5m2": "_from_e5m2"}
_TO = {"float8_e4m3fn": "_to_e4m3", "float8_e5m2": "_to_e5m2"}


def converted(ctx: Context, emitted: ExpressionText, source: str, target: str) -> ExpressionText:
    """`emitted`, of dtype `source`, converted to `target`; conversions to floats of 8 bits saturate."""
    if source == target:
        return emitted
    if target in EIGHTS:
        wide = converted(ctx, emitted, source, "float32")
        return ExpressionText(call(ctx.helper(_TO[target]), wide.doc))
    if source in EIGHTS and emitted.literal is None:
        return ExpressionText(call(ctx.helper(_FROM[source]), emitted.doc, triton_dtype(target)))
    if target == "bfloat16" and source in (*INTEGERS, "float64") and emitted.literal is None:
        # Triton's interpreter takes the number, cut to a whole one, for the bits of a bfloat16.
        emitted = cast(emitted, "float32")
    return cast(emitted, target)
