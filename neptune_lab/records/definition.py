"""An operator's definition as plain JSON: a reference is computed from it, and its digest identifies the workload.

    {"inputs": [{"name", "shape", "dtype", "strides"}], "outputs": [names], "masked": [names],
     "stages": [{"writes", "shape", "dtype", "spatial": [[name, extent]], "reduce": [[name, extent]],
                 "reducer": "sum" | "max" | ... | "", "value": expression}]}

A tensor has "strides", and the stage that writes it, only if it is not contiguous.
An expression is a list: ["const", value, dtype], ["var", name], ["load", buffer, index...], ["cast", dtype, e], or an
operator's name and its operands.  Infinities are the texts "inf" and "-inf", since JSON has none.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.errors import MeasureError
from neptune_lab.hashed import digest_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, Var
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.tensor_spec import Strides

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

Definition: TypeAlias = dict[str, Any]


def definition_of(program: Program, strides: Mapping[str, Strides | None] = MappingProxyType({})) -> Definition:
    """The unscheduled program as JSON data (the form is in the module's docstring).

    Args:
        strides: by tensor, of the inputs and outputs that are not contiguous.

    Raises:
        MeasureError: the program is scheduled: it has scan buffers, predicates, or indices that are no plain variables.
    """
    buffers = {b.name: b for b in program.buffers}

    def tensor(name: str) -> dict[str, Any]:
        made = {"name": name, "shape": list(buffers[name].shape), "dtype": buffers[name].dtype}
        layout = strides.get(name)
        return made if layout is None else {**made, "strides": list(layout)}

    stages = []
    for block in blocks(program):
        spatial = [(it.name, it.extent) for it in block.iters if it.kind == "spatial"]
        if block.predicates or block.body.indices != tuple(Var(name) for name, _ in spatial):
            raise MeasureError(
                f"block {block.name!r} is not one of a plain definition: it has conditions or computed store indices",
                node=block.name,
                help="give the operator's own program, before any schedule",
            )
        reducer, value = _value(block)
        made = tensor(block.writes)
        stages.append(
            {
                "writes": made.pop("name"),
                **made,
                "spatial": [list(x) for x in spatial],
                "reduce": [[it.name, it.extent] for it in block.iters if it.kind == "reduce"],
                "reducer": reducer,
                "value": _expression(value),
            }
        )
    return {
        "inputs": [tensor(name) for name in program.inputs],
        "outputs": list(program.outputs),
        "masked": list(program.masked),
        "stages": stages,
    }


# Keys by the identity of a program and its strides, since constants that differ in type alone are equal.  Each entry
# keeps its program alive, so that its id stays unique.  A call of attention asks six times, for the keys of two.
_known_keys: OrderedDict[tuple[int, tuple[tuple[str, Strides | None], ...]], tuple[Program, str]] = OrderedDict()
_MOST_KEYS = 16


def definition_of_operator(op: Operator) -> Definition:
    """The definition of an operator, with the strides of its inputs and outputs."""
    return definition_of(op.program, {t.name: t.strides for t in (*op.inputs, *op.outputs)})


def workload_key(op: Operator) -> str:
    """The key of a workload: a digest of the definition with its shapes, dtypes and strides, but not the operator's
    name.

    Two operators with the same definition (a preset and the equivalent call) have the same key.
    """
    place = id(op.program), tuple((t.name, t.strides) for t in (*op.inputs, *op.outputs))
    known = _known_keys.pop(place, None)
    if known is None:
        known = op.program, _key_of(op)
    _known_keys[place] = known
    if len(_known_keys) > _MOST_KEYS:
        _known_keys.popitem(last=False)
    return known[1]


def _key_of(op: Operator) -> str:
    text = json.dumps(definition_of_operator(op), sort_keys=True, separators=(",", ":"))
    return digest_of(text)[:24]


def _value(block: Block) -> tuple[str, Expr]:
    """The reducer ("" for a map) and the value, or the term that is reduced."""
    if not block.is_reduction:
        return "", block.body.value
    reduction = match_reduction(block)
    return reduction.reducer, reduction.term


def _expression(expr: Expr) -> list[Any]:
    match expr:
        case Const(value, dtype):
            return ["const", str(value) if isinstance(value, float) and not isfinite(value) else value, dtype]
        case Var(name):
            return ["var", name]
        case Load(buffer, indices):
            return ["load", buffer, *map(_expression, indices)]
        case Cast(dtype, arg):
            return ["cast", dtype, _expression(arg)]
        case Op(name, args):
            return [name, *map(_expression, args)]
    raise MeasureError(
        f"{expr} occurs in schedules only; a definition has no such expression",
        help="give the operator's own program, before any schedule",
    )
