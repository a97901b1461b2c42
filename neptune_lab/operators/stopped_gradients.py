"""Finds where a mod stops gradients: `detach`, `torch.no_grad`, a `torch.autograd.Function`.

A definition has no sign of that, and its derivative follows every value, so it would be wrong for such a mod.  This
does not import torch.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from neptune_lab.errors import DefinitionError

if TYPE_CHECKING:
    from neptune_lab.operators.capture import Captures

T = TypeVar("T")

_OURS = Path(__file__).parents[1]
# Where the mod that is watched stops a gradient; None: no mod is.
_lines: ContextVar[list[str] | None] = ContextVar("_lines", default=None)

# Methods and attributes of a tensor that give the same numbers.
SAME = ("contiguous", "detach", "clone", "cpu", "cuda", "data")


def noted(value: T, stops: bool = False) -> T:
    """The value; where a mod is watched, its line is noted if the value is a float without the gradient it had.

    Args:
        value: a `Scalar` or an `Array`, which a mod computed.
        stops: whether what made it stops gradients; torch.no_grad does in any case.
    """
    lines = _lines.get()
    if lines is not None and (stops or not _records()) and _is_float(value):
        lines.append(_line_of(inspect.currentframe()))
    return value


def same(value: Any, name: str) -> Any:
    """The method or attribute of that name in `SAME` of a `Scalar`."""
    if name == "data":
        return noted(value, stops=True)

    def method(*_args: Any, **_options: Any) -> Any:
        copied = type(value)(value.value, value.narrow) if name == "clone" else value
        return noted(copied, stops=name == "detach")

    return method


def stopped_by(captures: Captures) -> Callable[[], str | None] | None:
    """A function that finds the first line at which a score mod stops a gradient; None if there is no score mod.

    Masks have no gradient to stop.

    Args:
        captures: the mods, and the tensors that they capture.
    """
    if captures.mods.get("score_mod") is None:
        return None

    def find() -> str | None:
        score, place = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1), np.int64)
        return _first_line(captures.bind("score_mod", _zeros(captures.arrays)), score, *[place] * 4)

    return find


def _first_line(mod: Callable[..., Any], *args: np.ndarray) -> str | None:
    """The first line at which the mod stops a gradient, called on these arrays."""
    from neptune_lab.operators.math import Scalar

    torch = sys.modules.get("torch")
    lines: list[str] = []

    def with_rule_of_its_own(frame: FrameType, event: str, _arg: Any) -> None:
        if torch is not None and event == "call" and frame.f_code is torch.autograd.Function.apply.__code__:
            lines.append(_line_of(frame.f_back))

    token, profiled = _lines.set(lines), sys.getprofile()
    sys.setprofile(with_rule_of_its_own)  # (of this thread; a Function may give back what it gets)
    try:
        with torch.enable_grad() if torch else nullcontext(), np.errstate(all="ignore"), suppress(DefinitionError):
            mod(*map(Scalar, args))
    finally:
        sys.setprofile(profiled)
        _lines.reset(token)
    return lines[0] if lines else None


def _zeros(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of these shapes that take no memory."""
    kinds = {name: np.float64 if "float" in str(array.dtype) else np.int64 for name, array in arrays.items()}
    return {name: np.broadcast_to(np.zeros((), kinds[name]), array.shape) for name, array in arrays.items()}


def _records() -> bool:
    """Whether torch would record gradients here."""
    torch = sys.modules.get("torch")
    return torch is None or torch.is_grad_enabled()


def _is_float(value: Any) -> bool:
    from neptune_lab.operators.arrays import Array

    element = value.element((0,) * value.ndim) if isinstance(value, Array) and 0 not in value.shape else value
    return getattr(element, "kind", "") == "float"


def _line_of(frame: FrameType | None) -> str:
    """ "FILE, line N: `the line`" of the innermost call from this frame on that is the user's."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(_OURS) and not {"torch", "numpy"} & set(path.parts):
            line = linecache.getline(str(path), frame.f_lineno).strip()
            return f"{path}, line {frame.f_lineno}" + (f": `{line}`" if line else "")
        frame = frame.f_back
    return "a mod"


__all__ = ["SAME", "noted", "same", "stopped_by"]
