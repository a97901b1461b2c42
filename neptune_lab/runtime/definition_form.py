"""The form of a definition in a file, as `neptune_lab.records.definition` writes it; checked before it is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, TypeAlias

from neptune_lab.runtime.named import known_arity
from neptune_lab.strict.console import shown
from neptune_lab.strict.typed import OMIT_DEFAULT, Count, Extent, Name, unpack
from neptune_lab.strict.values import Refusal
from neptune_lab.tensor_spec import DType, TensorSpec

_Axis: TypeAlias = tuple[Name, Extent]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a definition; `value` is an expression."""

    writes: Name
    shape: tuple[Extent, ...]
    dtype: DType
    spatial: tuple[_Axis, ...]
    reduce: tuple[_Axis, ...]
    reducer: Literal["", "sum", "prod", "max", "min", "any", "all"]
    value: Any
    strides: tuple[Count, ...] | None = field(default=None, metadata=OMIT_DEFAULT)


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole definition."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[Name, ...]
    masked: tuple[Name, ...]
    stages: tuple[Stage, ...]


def check_definition(data: Any, where: str, error: Refusal) -> None:
    """Raise `error` unless `data` is a definition.

    Formal statement: every stage reads inputs and earlier stages only, with an index for each of their dimensions;
    every variable is an axis of its stage, every operation one that the reference knows; a stage has a spatial axis for
    each dimension of what it writes; every output is written.
    """
    definition: Definition = unpack(data, Definition, where, error)
    for tensor in (*definition.inputs, *definition.stages):
        if tensor.strides is not None and len(tensor.strides) != len(tensor.shape):
            raise error(f"{where} has strides {tensor.strides} for the shape {tensor.shape}")
    ranks = {t.name: len(t.shape) for t in definition.inputs}
    if len(ranks) != len(definition.inputs):
        raise error(f"{where}.inputs has two tensors of one name")
    for n, stage in enumerate(definition.stages):
        place = f"{where}.stages[{n}]"
        axes = [name for name, _ in (*stage.spatial, *stage.reduce)]
        if stage.writes in ranks or len(set(axes)) != len(axes):
            raise error(f"{place} names a tensor or an axis that there is already")
        if tuple(extent for _, extent in stage.spatial) != stage.shape:
            raise error(f"{place}.spatial is not the shape {stage.shape} of what it writes")
        if bool(stage.reducer) != bool(stage.reduce):
            raise error(f"{place} has a reducer without a reduction, or a reduction without one")
        _expression(stage.value, f"{place}.value", ranks, frozenset(axes), error)
        ranks[stage.writes] = len(stage.shape)
    written = {stage.writes for stage in definition.stages}
    for name in definition.outputs:
        if name not in written:
            raise error(f"{where}.outputs has {name!r}, which no stage writes")
    if not definition.outputs or not definition.inputs:
        raise error(f"{where} has no inputs, or no outputs")


def _expression(value: Any, where: str, ranks: dict[str, int], axes: frozenset[str], error: Refusal) -> None:
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise error(f"{where} is no expression: expected a list that begins with an operation's name")
    children: list[Any] = []
    match value:
        case ["const", int() | float() | bool() | "inf" | "-inf" | "nan" as number, str() as dtype] if dtype:
            if isinstance(number, float) and not isfinite(number):
                raise error(f"{where} has the constant {number}, expected a finite number, 'inf' or '-inf'")
            unpack(dtype, DType, where, error)
        case ["var", str() as name] if name in axes:
            pass
        case ["load", str() as name, *children] if ranks.get(name) == len(children):
            pass
        case ["cast", str() as dtype, child]:
            unpack(dtype, DType, where, error)
            children = [child]
        case [str() as name, *children] if known_arity(name) == len(children):
            pass
        case _:
            raise error(f"{where} is no expression: {shown(value)}")
    for n, child in enumerate(children):
        _expression(child, f"{where}[{n}]", ranks, axes, error)
