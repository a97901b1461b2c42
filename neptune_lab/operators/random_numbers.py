"""Random numbers in a mod, which is called once for all positions: each position would have the same number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from neptune_lab.errors import DefinitionError


def refused_random_numbers() -> AbstractContextManager[Any]:
    """A context in which torch's operations that draw random numbers raise a DefinitionError."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else _mode(torch)()


@cache
def _mode(torch: Any) -> Callable[[], AbstractContextManager[Any]]:
    class Refused(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise DefinitionError(
                    f"a mod draws random numbers (torch's {func._opname.removesuffix('_')}); it is called once for all "
                    "positions, which would share them",
                    help="draw them outside of the mod, and read one per position: `noise[q, kv]`; or hash the "
                    "position",
                )
            return func(*args, **(kwargs or {}))

    return Refused
