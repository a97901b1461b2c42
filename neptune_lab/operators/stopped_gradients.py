"""Where a mod stops gradients: `detach`, `data`, `item` and `torch.no_grad` mark the value in the definition.

A `torch.autograd.Function` has a derivative of its own, of which a definition has no sign: its derivative would be
wrong, unless nothing that records gradients flows into the function.  To find that out, the mod is called on TVM's
expressions, whose reads tell.  This does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.strict.console import source_line

if TYPE_CHECKING:
    from neptune_lab.operators.capture import Captures

T = TypeVar("T")

_OURS = Path(__file__).parents[1]
# Methods and attributes of a tensor that give the same numbers.
SAME = ("contiguous", "detach", "clone", "cpu", "cuda", "data", "item")


@dataclass(frozen=True, slots=True)
class _Watch:
    """A call of a mod that is watched.

    Args:
        recording: names of the tensors that record gradients, and of the score if it does.
        lines: where the mod has a derivative of its own.
    """

    recording: frozenset[str]
    lines: list[str] = field(default_factory=list)


_as_called: ContextVar[bool] = ContextVar("as_called", default=False)
# The score that a mod gets, among the names of tensors.
_SCORE = "score of the mod"


def noted(value: T, stops: bool = False) -> T:
    """The value; with a mark if it is a float whose gradient stops, and an expression of TVM.

    Args:
        value: a `Scalar` or an `Array`, which a mod computed.
        stops: whether what made it stops gradients; torch.no_grad does in any case.
    """
    return _marked(value) if stops or not records() else value


def _marked(value: Any) -> Any:
    from neptune_lab.operators.arrays import Array
    from neptune_lab.operators.operations import NUMBERS

    if isinstance(value, Array):
        return Array(value.shape, lambda place: _marked(value.element(place)), value.name)
    if not _is_float(value) or isinstance(value.value, NUMBERS | np.ndarray):
        return value
    from neptune_lab.loop_ir.tvm_compat.as_written import stopped

    return type(value)(stopped(value.value), value.short_int, value.short_float)


def as_recorded() -> AbstractContextManager[Any]:
    """Inside, a mod is called as in a call that records gradients, whether or not this one does: definitions of mods
    that differ in nothing else are shared.  Inside `as_called` too, nothing changes."""
    torch = sys.modules.get("torch")
    return torch.enable_grad() if torch and not _as_called.get() else nullcontext()


@contextmanager
def as_called() -> Iterator[None]:
    """Inside, mods are called as their call is made: for those that may ask whether gradients are recorded
    (`torch.is_grad_enabled()`), whose definitions are not shared."""
    token = _as_called.set(True)
    try:
        yield
    finally:
        _as_called.reset(token)


def same(value: Any, name: str) -> Any:
    """The method or attribute of that name in `SAME` of a `Scalar`."""
    if name == "data":
        return noted(value, stops=True)

    def method(*_args: Any, **_options: Any) -> Any:
        from neptune_lab.operators.scalar import Scalar

        copied = value
        if name in ("clone", "item"):
            copied = Scalar(value.value, value.short_int, value.short_float)
            copied.extent, copied.limits = value.extent, value.limits
        found = noted(copied, stops=name in ("detach", "item"))
        # A Python float beside a tensor of float32 is rounded to its dtype.
        return found.to("float32") if name == "item" and found.kind == "float" else found

    return method


def stopped_by(captures: Captures) -> Callable[[Collection[str]], str | None] | None:
    """A function that finds the first line at which a score mod has a derivative of its own; None if there is no score
    mod.

    Masks have no gradient to stop.

    Args:
        captures: the mods, and the tensors that they capture.

    Returns:
        A function from the names of the inputs that record gradients; a score does if `q` or `k` does.
    """
    if captures.mods.get("score_mod") is None:
        return None

    def find(recording: Collection[str]) -> str | None:
        from neptune_lab.operators.base import tensor_expressions

        te = tensor_expressions()
        sources = {n: te.placeholder(a.shape, str(a.dtype), name=n) for n, a in captures.arrays.items()}
        place = [te.var(name, "int32") for name in ("b", "h", "q", "kv")]
        score = te.placeholder((1,), "float32", name=_SCORE)(0)
        own = {_SCORE} if {"q", "k"} & set(recording) else set()
        watch = _Watch(frozenset({*recording} & captures.arrays.keys() | own))
        return _first_line(watch, captures.bind("score_mod", sources), score, *place)

    return find


def _first_line(watch: _Watch, mod: Callable[..., Any], *args: Any) -> str | None:
    """The first line at which the mod has a derivative of its own, called on these expressions."""
    from neptune_lab.operators.scalar import Scalar

    torch = sys.modules.get("torch")

    def with_rule_of_its_own(frame: FrameType, event: str, _arg: Any) -> None:
        if torch is None or event != "call" or frame.f_code is not torch.autograd.Function.apply.__code__:
            return
        if any(_carries(value, watch.recording) for value in frame.f_locals.get("args", ())):
            watch.lines.append(_line_of(frame.f_back))

    profiled = sys.getprofile()
    sys.setprofile(with_rule_of_its_own)  # (of this thread; a Function may give back what it gets)
    try:
        with as_recorded(), suppress(DefinitionError):
            mod(*map(Scalar, args))
    finally:
        sys.setprofile(None)
        enable: Callable[[], None] | None = getattr(profiled, "enable", None)  # of cProfile's object, no function
        if enable is None:
            sys.setprofile(profiled)
        else:
            enable()
    return watch.lines[0] if watch.lines else None


def records() -> bool:
    """Whether torch records gradients here."""
    torch = sys.modules.get("torch")
    return torch is None or torch.is_grad_enabled()


def _carries(value: Any, recording: frozenset[str]) -> bool:
    """Whether a value is a float that is made of an element of one of these tensors."""
    from neptune_lab.operators.arrays import MOST, Array

    if isinstance(value, Array):
        if value.name:
            return value.name in recording and 0 not in value.shape and _is_float(value.element((0,) * value.ndim))
        elements = value.elements() if prod(value.shape) <= MOST else (_any_element(value),)
        return any(_carries(element, recording) for element in elements)
    return _is_float(value) and not recording.isdisjoint(_read_by(value.value))


def _any_element(array: Any) -> Any:
    """The element at places that are not known."""
    from neptune_lab.operators.base import tensor_expressions
    from neptune_lab.operators.scalar import Scalar

    te = tensor_expressions()
    return array.element(tuple(Scalar(te.var(f"place{n}", "int32")) for n in range(array.ndim)))


def _is_float(value: Any) -> bool:
    return getattr(value, "kind", "") == "float"


def _read_by(value: Any) -> set[str]:
    """Names of the tensors that an expression of TVM reads; none if it is a number."""
    from neptune_lab.operators.base import tensor_expressions

    if isinstance(value, bool | int | float):
        return set()
    stage = tensor_expressions().compute((1,), lambda _: value, name="watched")
    return {str(tensor.op.name) for tensor in stage.op.input_tensors}


def _line_of(frame: FrameType | None) -> str:
    """ "FILE, line N: `the line`" of the innermost call from this frame on that is the user's."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(_OURS) and not {"torch", "numpy"} & set(path.parts):
            line = source_line(str(path), frame.f_lineno)
            return f"{path}, line {frame.f_lineno}" + (f": `{line}`" if line else "")
        frame = frame.f_back
    return "a mod"


__all__ = ["SAME", "as_called", "as_recorded", "noted", "records", "same", "stopped_by"]
