"""Torch tensors with named axes, for the reference: broadcasting, gathering, contractions, folds."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from neptune_lab.errors import MeasureError
from neptune_lab.scalar_ops import Functions, ScalarOp, in_loops

_HELP = "measure with the version that wrote the definition, or write the bundle again with this one"


class Named(NamedTuple):
    """A tensor with one name per axis, no name twice."""

    axes: tuple[str, ...]
    tensor: Any


class NamedSlice(NamedTuple):
    """A read of an axis along consecutive values of a variable."""

    name: str
    start: int
    stop: int


def index_of_axis(name: str, values: range, start: int) -> NamedSlice:
    """The variable's values as places in an axis whose first element is element `start` of the buffer."""
    return NamedSlice(name, values.start - start, values.stop - start)


def aligned(value: Named, order: Sequence[str]) -> Any:
    """The tensor with its axes in this order, an axis of length 1 for each name that it lacks."""
    present = [n for n in order if n in value.axes]
    tensor = value.tensor.permute([value.axes.index(n) for n in present])
    for place, name in enumerate(order):
        if name not in value.axes:
            tensor = tensor.unsqueeze(place)
    return tensor


def _together(values: Sequence[Named]) -> tuple[tuple[str, ...], list[Any]]:
    order = tuple(dict.fromkeys(n for v in values for n in v.axes))
    return order, [aligned(v, order) for v in values]


def take(tensor: Any, places: Sequence[NamedSlice | Named]) -> Named:
    """The tensor's elements at these places, one per axis; computed places broadcast by name."""
    kept = [p for p in places if isinstance(p, NamedSlice)]
    names = [p.name for p in kept]
    computed = [n for p in places if isinstance(p, Named) for n in p.axes]
    simple = len(set(names)) == len(names) and not set(names) & set(computed) and len(set(computed)) == len(computed)
    if simple:  # slices, then one axis gathered at a time: nothing is larger than the result
        axes: list[str] = []
        for place in places:
            at = len(axes)
            if isinstance(place, NamedSlice):
                tensor = tensor.narrow(at, place.start, place.stop - place.start)
                axes.append(place.name)
            else:
                index = place.tensor.reshape(-1)
                shape = tensor.shape
                tensor = tensor.index_select(at, index).reshape(*shape[:at], *place.tensor.shape, *shape[at + 1 :])
                axes += place.axes
        return Named(tuple(axes), tensor)
    import torch

    every = [
        p if isinstance(p, Named) else Named((p.name,), torch.arange(p.start, p.stop, device=tensor.device))
        for p in places
    ]
    order, indices = _together(every)
    return Named(order, tensor[tuple(indices)])


def contract(factors: Sequence[Named], keep: Sequence[str]) -> Named:
    """The product of the factors, summed over the axes that are not kept, without making the product."""
    import torch

    names = list(dict.fromkeys(n for f in factors for n in f.axes))
    letter = dict(zip(names, string.ascii_letters, strict=False))
    out = tuple(n for n in keep if n in names)
    spelled = ",".join("".join(letter[n] for n in f.axes) for f in factors)
    wide = [f.tensor.to(torch.float64) for f in factors]
    return Named(out, torch.einsum(f"{spelled}->{''.join(letter[n] for n in out)}", *wide))


def fold(reducer: str, value: Named, over: Mapping[str, int]) -> Named:
    """The value folded over the axes `over` (name to length); an axis that it lacks counts as often as its length."""
    import torch

    tensor, axes = value.tensor, list(value.axes)
    for name, length in over.items():
        if name not in axes:
            if reducer == "sum":
                tensor = tensor * length
            elif reducer == "prod":
                tensor = tensor**length
            continue
        axis = axes.index(name)
        match reducer:
            case "sum":
                tensor = tensor.sum(axis)
            case "prod":
                tensor = tensor.prod(axis)
            case "max":
                tensor = tensor.amax(axis)
            case "min":
                tensor = tensor.amin(axis)
            case "any":
                tensor = tensor.to(torch.bool).any(axis)
            case "all":
                tensor = tensor.to(torch.bool).all(axis)
            case _:
                raise MeasureError(f"the reference has no reducer {reducer!r}", help=_HELP)
        axes.remove(name)
    return Named(tuple(axes), tensor)


def elementwise(name: str, values: Sequence[Named]) -> Named:
    """An operator of the loop-scalar IR on tensors, position by position."""
    if known_arity(name) is None:
        raise MeasureError(f"the reference has no operation {name!r}", help=_HELP)
    order, tensors = _together(values)
    return Named(order, _TORCH[name](*tensors))


def known_arity(name: str) -> int | None:
    """The number of operands of an operation that the reference supports; None for any other."""
    row = in_loops(name)
    return row.arity if row is not None and (row.torch or row.formula is not None) else None


def _of_torch(row: ScalarOp) -> Callable[..., Any] | None:
    import torch

    return getattr(torch, row.torch) if row.torch else None


def _constant(value: float) -> Any:
    import torch

    return torch.tensor(value, dtype=torch.float64)


_TORCH = Functions(_of_torch, _constant)
