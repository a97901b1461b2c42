"""What was compiled for shapes of a call's tensors, kept for the next call of these shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from neptune_lab.operators.resized import Shape
from neptune_lab.strict.forks import ReentrantLock

T = TypeVar("T")
Shapes: TypeAlias = tuple[Shape, ...]

# The most that are kept: those of the last calls.
MOST = 64


class KeptBySizes(Generic[T]):
    """One thing per combination of shapes, made when it is first needed; threads that need it at once make it once.

    Args:
        make: from the shapes; what it raises is raised at each call.
    """

    def __init__(self, make: Callable[[Shapes], T]) -> None:
        self._make = make
        self._kept: OrderedDict[Shapes, T] = OrderedDict()
        # Two locks: a call of known shapes does not wait until another thread has compiled.
        self._making, self._reading = ReentrantLock(), ReentrantLock()

    def of(self, shapes: Sequence[Shape]) -> T:
        """What is kept for these shapes, made now if there is nothing."""
        key = tuple(shapes)
        found = self._found(key)
        if not found:
            with self._making:
                found = self._found(key)
                if not found:
                    found = [self._make(key)]
                    with self._reading:
                        self._kept[key] = found[0]
                        if len(self._kept) > MOST:
                            self._kept.popitem(last=False)
        return found[0]

    def _found(self, key: Shapes) -> list[T]:
        with self._reading:
            if key not in self._kept:
                return []
            self._kept.move_to_end(key)
            return [self._kept[key]]

    def __len__(self) -> int:
        return len(self._kept)


__all__ = ["MOST", "KeptBySizes", "Shapes"]
