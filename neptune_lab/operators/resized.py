"""How an operator is made at other sizes of its tensors, for calls whose sizes differ from the first one's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from neptune_lab.operators.base import Operator

Shape: TypeAlias = tuple[int, ...]
# For each input, the name of each dimension; "" for one that stays.
Names: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Resized:
    """The operators of one function at all sizes.

    Args:
        at: from the shapes of the inputs that are not captured to the operator of these.
        named: from such shapes, the names of their dimensions, and a hint for each name, to the operator whose sizes
            have these names.
        dynamic: whether the sizes have names from the first call on (True), from the second sizes on (None), or never
            (False): each combination of sizes has a kernel of its own.

    Both functions raise DefinitionError if the function does not take the sizes, or depends on them; and if it gives
    another operator at the first sizes than it did, since what it reads has changed.
    """

    at: Callable[[Sequence[Shape]], Operator]
    named: Callable[[Sequence[Shape], Names, Mapping[str, int]], Operator]
    dynamic: bool | None


def names_of(seen: Sequence[Sequence[Shape]], taken: Sequence[str] = ()) -> Names:
    """Names for the dimensions that differ between calls: dimensions that were equal in each have one name.

    Args:
        seen: the shapes of the inputs, for each call; all have the same numbers of dimensions.
        taken: names that are in use.

    >>> names_of([((8, 64), (64,)), ((8, 32), (32,))]), names_of([((8, 64),), ((9, 65),)], ["n"])
    ((('', 'n'), ('n',)), (('n0', 'n1'),))
    """
    every: dict[tuple[int, ...], str] = {}
    keys = [
        [tuple(shapes[place][dim] for shapes in seen) for dim in range(len(first))]
        for place, first in enumerate(seen[0])
    ]
    for own in keys:
        every.update((key, "") for key in own if len(set(key)) > 1)
    every = dict(zip(every, _free(len(every), taken), strict=True))
    return tuple(tuple(every.get(key, "") for key in own) for own in keys)


def _free(count: int, taken: Sequence[str]) -> list[str]:
    """Names that are not taken: n, or n0, n1 and so on."""
    if count == 1 and "n" not in taken:
        return ["n"]
    found: list[str] = []
    number = 0
    while len(found) < count:
        if f"n{number}" not in taken:
            found.append(f"n{number}")
        number += 1
    return found


def equal_names(shapes: Sequence[Shape], taken: Sequence[str] = ()) -> Names:
    """Names for all dimensions from 2 on: equal ones have one name.

    >>> equal_names([(1, 64), (64, 8)])
    (('', 'n0'), ('n0', 'n1'))
    """
    ones = [tuple(1 for _ in shape) for shape in shapes]
    return names_of([list(shapes), ones], taken)


def only(names: Names, kept: Collection[str]) -> Names:
    """The names without those that are not kept.

    >>> only((("", "n"), ("n", "m")), ["m"])
    (('', ''), ('', 'm'))
    """
    return tuple(tuple(name if name in kept else "" for name in own) for own in names)


__all__ = ["Names", "Resized", "Shape", "equal_names", "names_of", "only"]
