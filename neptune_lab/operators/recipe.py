"""How an operator was made, so that it can be made again with other arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from neptune_lab.operators.base import Operator

Argument: TypeAlias = TensorSpec | bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The function that made an operator, and its arguments.

    Args:
        arguments: what the function was given, by name; of a tensor its shape and dtype.
        make: from all of these arguments, with other values, to an operator; raises DefinitionError if they are not
            legal.
    """

    arguments: Mapping[str, Argument]
    make: Callable[[Mapping[str, Any]], Operator]


__all__ = ["Argument", "Recipe"]
