"""Where a function does other operations at some sizes: the line, and the condition in the names of the sizes.

torch.export refuses such a function by a text of its own, with symbols such as s33 and no line.  Here the function runs
once more, on tensors without values whose named sizes are symbols; torch notes each condition on them that it decides.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.printers import PythonPrinter

from neptune_lab.operators.dims import Dim
from neptune_lab.torch_to_stages.lines import RecordedLines, SourceLine, line_of_caller, line_of_error

# Sizes at which a condition is tried; several sizes take values side by side, which differ.
_TRIED = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 31, 32, 33, 64, 100, 128, 250, 1000, 1001, 2048, 5000, 70000, 1000000)


class _Noted(list[Any]):
    """torch's list of conditions that were decided, with the user's line of each."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[SourceLine | None] = []

    def append(self, guard: Any) -> None:
        """Takes one more."""
        self.lines.append(line_of_caller())
        super().append(guard)


def condition_on_sizes(
    function: Callable[..., Any], examples: Sequence[Any], dims: Sequence[Mapping[int, Dim]]
) -> tuple[str, SourceLine | None] | None:
    """What a function decides by its sizes, and where.

    Args:
        function: a function or a `torch.nn.Module`.
        examples: its arguments; the extents of named dimensions differ by name.
        dims: the named dimensions of each.

    Returns:
        torch's error at such sizes, else the condition, with sizes by name, and the user's line; None if there is none.
    """
    environment, noted = ShapeEnv(), _Noted()
    environment.guards = noted
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    names: dict[Any, str] = {}
    given = [_symbolic(mode, n, x, own, names) for n, (x, own) in enumerate(zip(examples, dims, strict=True))]
    with mode, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with RecordedLines():
                function(*given)
        except Exception as error:  # noqa: BLE001 - a function raises what it likes; the caller raises what was found
            if type(error).__module__ == "builtins":  # (else, torch's own, of what it cannot trace)
                words = next(iter(str(error).strip().splitlines()), type(error).__name__)
                return _with_names(words, names), line_of_error(error.__traceback__)
    for guard, line in zip(noted, noted.lines, strict=True):
        if _differs(guard.expr, names):
            return _as_sentence(guard.expr, names), line
    return None


def _symbolic(mode: FakeTensorMode, position: int, example: Any, own: Mapping[int, Dim], names: dict[Any, str]) -> Any:
    """An example whose named sizes are symbols, which `names` gets."""
    if not isinstance(example, torch.Tensor):
        return example
    kinds = [DimDynamic.DYNAMIC if n in own else DimDynamic.STATIC for n in range(example.ndim)]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)  # type: ignore[call-arg]
    made = mode.from_tensor(example, symbolic_context=context, source=ConstantSource(f"argument_{position}"))
    for n, size in own.items():
        extent: Any = made.shape[n]
        if not isinstance(extent, int):
            names[extent.node.expr] = size.name
    return made


def _differs(condition: Any, names: Mapping[Any, str]) -> bool:
    """Whether a condition that held does not hold at other sizes."""
    order = list(dict.fromkeys(names.values()))
    for n in range(len(_TRIED)):
        values = {name: _TRIED[(n + 5 * k) % len(_TRIED)] for k, name in enumerate(order)}
        found = condition.subs({symbol: values[name] for symbol, name in names.items()})
        if str(found) == "False":
            return True
    return False


def _as_sentence(condition: Any, names: Mapping[Any, str]) -> str:
    """What a condition of torch's symbols says of the function, in the names of the sizes."""
    size: Any = condition.lhs if type(condition).__name__ == "Equality" and condition.rhs.is_number else None
    if size in names:
        name = names[size]
        return f"it takes {name} as a number of Python, as math.sqrt({name}), int({name}) and range({name}) do"
    return f"it depends on whether {_with_names(PythonPrinter().doprint(condition), names)}"


def in_names_of_sizes(text: str, dims: Sequence[Mapping[int, Dim]]) -> str:
    """torch.export's words about a condition on sizes, with these by name.

    >>> words = "Not all values of n = L['args'][0].size()[1] satisfy the generated guard L['args'][0].size()[1] != 4."
    >>> in_names_of_sizes(words, [{1: Dim("n")}])
    'it depends on whether n != 4'
    """

    def name(found: re.Match[str]) -> str:
        own = dims[int(found[1])].get(int(found[2])) if int(found[1]) < len(dims) else None
        return found[0] if own is None else own.name

    text = re.sub(r"L\['args'\]\[(\d+)\]\.size\(\)\[(\d+)\]", name, text)
    _, found, condition = text.partition("satisfy the generated guard ")
    return f"it depends on whether {condition.rstrip('.')}" if found else text


def _with_names(text: str, names: Mapping[Any, str]) -> str:
    """torch's words with the names of sizes in place of its symbols."""
    for symbol, name in names.items():
        text = re.sub(rf"\b{re.escape(str(symbol))}\b", name, text)
    return text


__all__ = ["condition_on_sizes", "in_names_of_sizes"]
