"""Operators of one function for calls whose sizes differ from the first one's: traced anew at each sizes.

The function reads what it did when it was traced first: tensors of its closure and parameters are copies of then.  So
each time it is traced at the first sizes too, and has to give the same operator.
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
        same = (
            _without_names(again.program) == _without_names(first.program)
            and again.captured.keys() == first.captured.keys()
        )
        if not same or not all(_equal(array, again.captured[n]) for n, array in first.captured.items()):
            raise DefinitionError(
                f"{first.title} reads something that has changed since its operator was made, so its kernels at other "
                "sizes would be those of another function",
                help="make the operator again: nl.from_torch(...)",
            )
        return lambda every: _holding(first, again, make(every))

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


def _holding(first: Operator, again: Operator, other: Operator) -> Operator:
    """`other` with the tensors of `first` in place of those that the function makes anew in each trace, such as
    constants, if they are equal: `holds` says which tensors are the same."""
    anew = {name: tensor for name, tensor in first.holds.items() if again.holds[name] is not tensor}
    kept = {id(tensor) for name, tensor in first.holds.items() if name not in anew}
    same = {
        name: anew[name]
        for name, tensor in other.holds.items()
        if name in anew and id(tensor) not in kept and _equal(first.captured[name], other.captured[name])
    }
    return replace(other, holds={**other.holds, **same})


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
