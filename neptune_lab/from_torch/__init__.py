"""Operators from plain PyTorch: `from_torch` traces a function and makes stages of its ATen operations."""

import sys
from types import ModuleType
from typing import Any

from neptune_lab.operators import Operator
from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the imports below, since torch's tracer imports Triton

from neptune_lab.from_torch.operator import from_torch  # noqa: E402


class _Callable(ModuleType):
    """The type of this package.

    An import of one of its modules sets `neptune_lab.from_torch` to the package, where users call the function.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Operator:
        return from_torch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable

__all__ = ["from_torch"]
