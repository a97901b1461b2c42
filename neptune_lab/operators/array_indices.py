"""Indices of arrays inside mods, with Python's and torch's meaning, checked against the extents of their axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.arrays import Array, Indices, broadcast, constant, stretched

# An index that is outside of every tensor, also times a step.
OUTSIDE = 2**28


def indexed(array: Array, given: tuple[Any, ...]) -> Any:
    """The element, or the view, at Python's and torch's indices.

    Each axis of the result is an axis of a slice, a new axis of None, or an axis of the broadcast index arrays, which
    stand where the first of them stood if they were side by side, else first.

    Args:
        array: the array.
        given: the indices.

    Returns:
        A `Scalar`, or an `Array` with the axes that are left.

    Raises:
        DefinitionError: an index is no whole number, or leaves its axis.
    """
    items = _items(array, given)
    arrays = [n for n, (_, item) in enumerate(items) if isinstance(item, Array)]
    shared = broadcast([items[n][1].shape for n in arrays]) if arrays else ()
    advanced = [n for n, (_, item) in enumerate(items) if isinstance(item, Array) or _is_scalar(item)]
    together = not advanced or advanced == list(range(advanced[0], advanced[-1] + 1))
    first = (advanced[0] if together else 0) if arrays else -1
    shape: list[int] = []
    parts: list[Callable[[Indices], Any]] = []  # the index of each axis, from the result's indices
    places: dict[int, int] = {}
    start = -1
    for n, (_, item) in enumerate(items):
        if n == first:
            start = len(shape)
            shape += shared
        if item is None or isinstance(item, range):
            places[n] = len(shape)
            shape.append(1 if item is None else len(item))
    for n, (axis, item) in enumerate(items):
        if item is None:
            continue
        if isinstance(item, range):
            parts.append(_of_range(item, array.shape[axis], places[n]))
        elif isinstance(item, Array):
            parts.append(_of_array(array, axis, item, start, len(shared)))
        else:
            parts.append(lambda _, fixed=item: fixed)

    def at(indices: Indices) -> Any:
        return array.element(tuple(part(indices) for part in parts))

    return Array(shape, at, array.name) if shape else at(())


def _is_scalar(item: Any) -> bool:
    from neptune_lab.operators.scalar import Scalar

    return isinstance(item, Scalar)


def _items(array: Array, given: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """For each item its axis (-1 for None), and an int, a `Scalar`, an `Array`, a `range` of a slice, or None."""
    given = tuple(constant(item) for item in given)
    count = sum(item is not None and item is not Ellipsis for item in given)
    if count > array.ndim:
        shape = f" has shape {array.shape}, but" if array.name else ":"  # (of others, the shape is their description)
        raise DefinitionError(
            f"{array.described()}{shape} a mod gives it {count} indices",
            help="give one index per dimension",
        )
    if not any(item is Ellipsis for item in given):
        given = (*given, Ellipsis)
    items: list[tuple[int, Any]] = []
    axis = 0
    for item in given:
        if item is None:
            items.append((-1, None))
        elif item is Ellipsis:
            for _ in range(array.ndim - count):
                items.append((axis, range(array.shape[axis])))
                axis += 1
        else:
            items.append((axis, index_of(array, axis, item)))
            axis += 1
    return items


def index_of(array: Array, axis: int, item: Any) -> Any:
    """One index of an axis, checked.

    Args:
        array: what is indexed.
        axis: the axis.
        item: the index.

    Returns:
        An int from 0, a `Scalar`, an `Array` of integers, or a `range` of a slice.

    Raises:
        DefinitionError: it is not a whole number, or a number that leaves the axis.
    """
    from neptune_lab.operators.scalar import Scalar

    extent = array.shape[axis]
    if isinstance(item, slice):
        if not all(isinstance(end, int | None) for end in (item.start, item.stop, item.step)):
            raise DefinitionError(
                f"index {axis} of {array.described()} is a slice whose ends differ by position",
                help="slice by constants, or read single elements",
            )
        taken = range(*item.indices(extent))
        if not taken:
            raise DefinitionError(
                f"index {axis} of {array.described()} is an empty slice of an axis of {extent}",
                help="take at least one element",
            )
        return taken
    if isinstance(item, Array):
        return item
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        refuse_outside(array.described(), axis, array.shape, int(item), int(item))
        return int(item) % extent
    kind = item.kind if isinstance(item, Scalar) else type(item).__name__
    if kind != "int" or isinstance(item, bool):
        raise DefinitionError(
            f"index {axis} of {array.described()} is a {kind}: expected a whole number",
            help="b, h, q, kv, what `+ - * // %` makes of them, and elements of int tensors are whole numbers",
        )
    value: Any = item.value
    if isinstance(value, np.ndarray | np.integer | int):
        refuse_outside(array.described(), axis, array.shape, int(np.min(value)), int(np.max(value)))
    return item


def refuse_outside(what: str, axis: int, shape: tuple[int, ...], low: int, high: int) -> None:
    """Refuses indices that leave their axis; negative ones count from its end.

    Args:
        what: the array, for the message.
        axis, shape: the axis, and the array's shape.
        low, high: the least and the greatest index.

    Raises:
        DefinitionError: one of them is outside.
    """
    if low < -shape[axis] or high >= shape[axis]:
        outside = high if high >= shape[axis] else low
        raise DefinitionError(
            f"index {axis} of {what} reaches {outside}, but its shape is {shape}",
            help=f"keep it in range everywhere, also where a condition hides it: `index.clamp(0, {shape[axis] - 1})`, "
            "or `operators.math.minimum` and `maximum`",
        )


def from_end(index: Any, extent: int) -> Any:
    """An index of a view, counted from the end if it is negative.

    What leaves the view becomes `OUTSIDE`, so that it leaves the tensor too: it is refused if the positions show it,
    and reads no element if it is data.

    Args:
        index: an int or an integer `Scalar`.
        extent: of the view's axis.

    Returns:
        index, or index + extent where it is negative.
    """
    from neptune_lab.operators.scalar import apply

    if isinstance(index, int):
        return index % extent
    negative = apply("select", index < -extent, OUTSIDE, index + extent)
    return apply("select", index < extent, apply("select", index < 0, negative, index), OUTSIDE)


def _of_range(item: range, extent: int, place: int) -> Callable[[Indices], Any]:
    """The index of an axis by a slice, from the result's index."""
    if item == range(extent):
        return lambda indices: indices[place]
    return lambda indices: from_end(indices[place], len(item)) * item.step + item.start


def _of_array(array: Array, axis: int, item: Array, start: int, rank: int) -> Callable[[Indices], Any]:
    """The index of an axis by an array of indices, from the result's indices."""

    def found(indices: Indices) -> Any:
        return index_of(array, axis, stretched(item, indices[start : start + rank]))

    return found
