"""A mod is called once for all positions, so it must be a function: the same value whenever it is called.

It is none if it draws random numbers (each position would have the same one), reads a clock, takes the next item of
what it captures, or reads memory that nothing was written to.  To find that out it is called several times, and torch's
uninitialised memory is filled with another number each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np

from neptune_lab.errors import DefinitionError

T = TypeVar("T")

# Calls of a mod after the first.  A value drawn from two is the same in all of them with probability 1/8.
REPEATS = 3
_UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


def value_of_repeated(call: Callable[[], T]) -> T:
    """What `call` returns: an expression of TVM, or a number.

    Formal statement: each further call gives the same expression, over the same variables.

    Args:
        call: calls a mod on expressions of TVM.

    Raises:
        DefinitionError: the mod draws random numbers by torch, or gives another value when it is called again.
    """
    found, empty = first_value(call)
    for turn in range(1, REPEATS + 1):
        again, _ = first_value(call, turn)
        if _differ(found, again):
            raise _of_memory() if empty else _of_state()
    return found


def _of_memory() -> DefinitionError:
    return DefinitionError(
        "a mod reads memory that nothing was written to (torch.empty)",
        help="torch.zeros, or a tensor that is made outside of the mod",
    )


def _of_state() -> DefinitionError:
    return DefinitionError(
        "a mod gives another value when it is called again: it draws random numbers, reads a clock, or changes what it "
        "captures (a counter, next(iterator), list.pop()). It is called once for all positions",
        help="compute the value before the call, and let the mod read it: `value = next(values)`, then "
        "`score + value`; one per position from a tensor, `noise[q, kv]`",
    )


def first_value(call: Callable[[], T], turn: int = 0) -> tuple[T, bool]:
    """What `call` returns, and whether it made uninitialised tensors of torch, whose numbers depend on `turn`.

    Raises:
        DefinitionError: it draws random numbers by torch.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return call(), False
    mode = _mode(torch)(turn)
    with mode:
        return call(), mode.empty


def _differ(one: Any, other: Any) -> bool:
    one, other = getattr(one, "value", one), getattr(other, "value", other)
    if type(one) is not type(other):
        return True
    if isinstance(one, bool | int | float | np.generic):
        return repr(one) != repr(other)
    from neptune_lab.loop_ir.tvm_compat.as_written import are_alike

    return not are_alike(one, other)


@cache
def _mode(torch: Any) -> Callable[[int], Any]:
    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self, turn: int) -> None:
            super().__init__()
            self.turn = turn
            self.empty = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise DefinitionError(
                    f"a mod draws random numbers (torch's {func._opname.removesuffix('_')}); it is called once for all "
                    "positions, which would share them",
                    help="draw them outside of the mod, and read one per position: `noise[q, kv]`; or hash the "
                    "position",
                )
            found = func(*args, **(kwargs or {}))
            if func._opname in _UNINITIALISED:
                self.empty = True
                found.fill_(self.turn % 2 if found.dtype == torch.bool else self.turn)
            return found

    return Watched


__all__ = ["first_value", "value_of_repeated"]
