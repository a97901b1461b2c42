"""Operators of one function for calls whose sizes differ from the first one's: traced anew at each sizes.

The function reads what it did when it was traced first: tensors of its closure and parameters are copies of then, also
if an optimizer or the caller has changed them since.  So each time it is traced at the first sizes too, and has to give
the same stages; the tensors that it holds get the values of the first time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.operators.base import Operator
from neptune_lab.operators.dims import Dim
from neptune_lab.operators.resized import Names, Resized, Shape, equal_names, only
from neptune_lab.torch_to_stages.closure_parameters import same_memory
from neptune_lab.torch_to_stages.names import parameter_names
from neptune_lab.torch_to_stages.sized import sized, takes_all_sizes

Make = Callable[[Sequence[Any]], Operator]


def resized(
    make: Make, function: Callable[..., Any], examples: Sequence[Any], first: Operator, dynamic: bool | None
) -> Resized | None:
    """How the operator of a function is made at other sizes; None if its inputs are not the tensors of the arguments.

    Args:
        make: the operator for example inputs.
        function: a function or a `torch.nn.Module`.
        examples: its arguments at the first sizes.
        first: their operator.
        dynamic: as for `from_torch`.
    """
    leaves, structure = pytree.tree_flatten(tuple(examples))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    own = first.inputs[: len(first.inputs) - len(first.captured)]
    if [tuple(t.shape) for t in tensors] != [t.shape for t in own]:
        return None
    dtypes = [tensor.dtype for tensor in tensors]
    flat = sum(isinstance(example, torch.Tensor) for example in examples) == len(tensors)
    before = [t.shape for t in own]
    numbers = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]

    def given(shapes: Sequence[Shape]) -> tuple[Any, ...]:
        made = iter([torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)])
        filled = [next(made) if one else number for one, number in zip(is_tensor, numbers, strict=True)]
        return pytree.tree_unflatten(filled, structure)

    def unchanged() -> Make:
        again = make(given(before))
        if _without_names(again.program) != _without_names(first.program) or not _alike(again, first):
            raise _changed(first, "its stages, or the shapes or dtypes of the tensors that it holds, are others")
        return lambda every: _as_at_first(first, again, make(every))

    def at(shapes: Sequence[Shape]) -> Operator:
        return unchanged()(given(shapes))

    def named(shapes: Sequence[Shape], names: Names, hints: Mapping[str, int]) -> Operator:
        made = unchanged()
        if not flat:
            raise DefinitionError(
                f"an argument of {first.title} is a tuple, list or dict of tensors, whose sizes have no names",
                help="give each tensor as an argument",
            )
        every = given(shapes)
        by_tensor = iter(names)
        dims: list[Any] = []
        for example in every:
            of = next(by_tensor) if isinstance(example, torch.Tensor) else ()
            dims.append({dim: Dim(name, hints.get(name)) for dim, name in enumerate(of) if name} or None)
        return sized(made, function, every, tuple(dims))

    return Resized(at, named, dynamic)


def with_free_sizes(
    make: Make, function: Callable[..., Any], examples: Sequence[Any], first: Operator, own: Resized
) -> Operator:
    """The operator whose dimensions have names, except those on which the function depends; `first` if all do.

    Dimensions that are equal in the examples have one name, until a call has other ones.
    """
    shapes = [t.shape for t in first.inputs[: len(first.inputs) - len(first.captured)]]
    try:
        parameters = parameter_names(function, len(examples))
    except DefinitionError:
        parameters = []
    names = equal_names(shapes, [*parameters, *(t.name for t in first.inputs)])
    hints = {n: e for of, shape in zip(names, shapes, strict=True) for n, e in zip(of, shape, strict=True) if n}
    free = [name for name in hints if takes_all_sizes(make, function, examples, only(names, {name}), hints)]
    if not free:
        return first
    try:
        made = own.named(shapes, only(names, free), hints)
    except DefinitionError:
        return first
    return replace(made, resized=own)


def _as_at_first(first: Operator, again: Operator, other: Operator) -> Operator:
    """`other`, whose captured tensors have the values that they had when `first` was traced.

    Tensors that the function makes anew in each trace, such as constants, become those of `first` if they are equal:
    `holds` says which tensors are the same.

    Args:
        first: the function's operator at the first sizes.
        again: the same, traced now.
        other: at other sizes, traced now.

    Raises:
        DefinitionError: what the function makes anew in each trace has other values now.
    """
    captured, holds = dict(other.captured), dict(other.holds)
    lasting = {name for name, tensor in first.holds.items() if same_memory(again.holds[name], tensor)}
    anew = set(other.holds)
    for name, tensor in other.holds.items():
        known = next((own for own, held in again.holds.items() if same_memory(held, tensor)), None)
        if known is not None:
            lasting.add(known)
            anew.remove(name)
            captured[name], holds[name] = first.captured[known], first.holds[known]
    changed = [n for n, array in first.captured.items() if n not in lasting and not _equal(array, again.captured[n])]
    if changed:
        raise _changed(first, f"it makes {', '.join(changed)} in each trace, with other values now")
    for name in anew & (first.captured.keys() - lasting):
        if _equal(first.captured[name], other.captured[name]):
            holds[name] = first.holds[name]
    return replace(other, captured=captured, holds=holds)


def _alike(one: Operator, other: Operator) -> bool:
    """Whether two operators captured tensors of the same names, shapes and dtypes."""
    kinds = ({n: (a.dtype, a.shape) for n, a in op.captured.items()} for op in (one, other))
    return next(kinds) == next(kinds)


def _changed(first: Operator, what: str) -> DefinitionError:
    return DefinitionError(
        f"{first.title} reads something that has changed since its operator was made, so its kernels at other "
        f"sizes would be those of another function: {what}",
        help="make the operator again: nl.from_torch(...)",
    )


def _without_names(program: Program) -> str:
    """What a program computes: names of stages are those of variables on the line of the caller, if the function has no
    lines of its own."""
    numbers: dict[str, int] = {}
    inputs = set(program.inputs)

    def numbered(found: re.Match[str]) -> str:
        field, name = found.groups()
        return f"{field}{name if name in inputs else numbers.setdefault(name, len(numbers))}"

    return re.sub(r"((?:Buffer|Block)\(name=|buffer=|origin=|companion_of=)'(\w+)'", numbered, repr(program.body))


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


__all__ = ["resized", "with_free_sizes"]
