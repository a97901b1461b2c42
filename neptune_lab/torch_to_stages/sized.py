"""Functions of PyTorch at sizes with a name: the operator of each size is traced anew, and has the same stages.

torch traces the function once with symbols in place of the sizes, which shows whether its control flow depends on them
(`if x.shape[0] > 1000`).  Then it is traced at each size that the compiler asks for (`operators.dims.Family`): the
stages have to be those of the first size, and what the function holds the same tensors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.operators.base import Operator
from neptune_lab.operators.dims import Dim, Family, named
from neptune_lab.strict.console import shown
from neptune_lab.tensor_spec import LARGEST
from neptune_lab.torch_to_stages.graph import first_line, without_torchs_words
from neptune_lab.torch_to_stages.lines import SourceLine
from neptune_lab.torch_to_stages.names import parameter_names
from neptune_lab.torch_to_stages.refusals import refusal
from neptune_lab.torch_to_stages.size_conditions import condition_on_sizes, in_names_of_sizes

# The named dimensions of each argument.
_Dims = tuple[Mapping[int, Dim], ...]
_FORM = 'one entry per argument, such as dynamic_shapes=({0: nl.dim("n")}, None), or a dict by the arguments\' names'
_USUAL = 4096
_MOST = 64
# Bytes of a tensor that the function is traced on: of memory that is not touched.
_MOST_BYTES = 2**32


def sized(
    make: Callable[[Sequence[Any]], Operator], function: Callable[..., Any], examples: Sequence[Any], shapes: Any
) -> Operator:
    """The operator whose dimensions have names.

    Args:
        make: the operator for example inputs.
        function: a function or a `torch.nn.Module`.
        examples: its arguments.
        shapes: `dynamic_shapes` of `from_torch`.

    Raises:
        DefinitionError: `shapes` does not fit to the arguments; the function's course, its stages, or what it holds
            depend on a size; a result has a dimension that depends on a size and is not one.
    """
    dims = _dims(function, examples, shapes)
    hint = _hints(dims)
    _check_course(function, examples, dims)
    return named(Family(hint, checked_alike(lambda sizes: make(_at(examples, dims, sizes)), hint)))


def checked_alike(
    make: Callable[[Mapping[str, int]], Operator], hint: Mapping[str, int]
) -> Callable[[Mapping[str, int]], Operator]:
    """`make`, which raises DefinitionError at sizes whose operator is not that of the hint with other numbers."""
    first = make(hint)
    known = {tuple(hint.values()): first}  # the compiler asks for some sizes several times

    def at(sizes: Mapping[str, int]) -> Operator:
        key = tuple(sizes[name] for name in hint)
        if key in known:
            return known[key]
        text = ", ".join(f"{name}={sizes[name]}" for name in hint)
        try:
            other = make(sizes)
        except DefinitionError as error:
            raise DefinitionError(f"at {text}: {error.reason}", help=error.help) from error
        _check_alike(first, other, hint, sizes, text)
        if len(known) < _MOST:
            known[key] = other
        return other

    return at


def takes_all_sizes(
    make: Callable[[Sequence[Any]], Operator],
    function: Callable[..., Any],
    examples: Sequence[Any],
    names: Sequence[Sequence[str]],
    hint: Mapping[str, int],
) -> bool:
    """Whether the function gives one operator with other numbers at all values of the sizes that `names` names.

    Args:
        names: of the dimensions of each tensor among the arguments; "" for one that stays.
        hint: a value of each size.
    """
    by_tensor = iter(names)
    dims = tuple(
        {n: Dim(name) for n, name in enumerate(next(by_tensor)) if name} if isinstance(example, torch.Tensor) else {}
        for example in examples
    )
    own = {size.name: hint[size.name] for one in dims for size in one.values()}
    try:
        _check_course(function, examples, dims)
        first = make(_at(examples, dims, own))
        for other in ({n: v + 1 for n, v in own.items()}, {n: 2 * v for n, v in own.items()}):
            _check_alike(first, make(_at(examples, dims, other)), own, other, str(other))
    except DefinitionError:
        return False
    return True


def _dims(function: Callable[..., Any], examples: Sequence[Any], shapes: Any) -> _Dims:
    """`dynamic_shapes` by the arguments' positions."""
    if isinstance(shapes, Mapping):
        names = parameter_names(function, len(examples))
        unknown = [name for name in shapes if name not in names]
        if unknown:
            raise DefinitionError(
                f"dynamic_shapes names the argument {unknown[0]!r}; the arguments are {', '.join(names)}", help=_FORM
            )
        shapes = tuple(shapes.get(name) for name in names)
    if not isinstance(shapes, tuple | list) or len(shapes) != len(examples):
        found = f"{len(shapes)} entries" if isinstance(shapes, tuple | list) else shown(shapes)
        raise DefinitionError(f"dynamic_shapes={found}, for {len(examples)} arguments", help=_FORM)
    made = tuple(_of_argument(n, one, example) for n, (one, example) in enumerate(zip(shapes, examples, strict=True)))
    if not any(made):
        raise DefinitionError("dynamic_shapes names no size", help="leave it out, or " + _FORM)
    return made


def _of_argument(position: int, given: Any, example: Any) -> Mapping[int, Dim]:
    if not given:
        return {}
    if not isinstance(example, torch.Tensor) or not isinstance(given, Mapping):
        raise DefinitionError(f"dynamic_shapes of argument {position} is {shown(given)}", help=_FORM)
    for dim, size in given.items():
        if not isinstance(size, Dim) or not isinstance(dim, int) or not -example.ndim <= dim < example.ndim:
            raise DefinitionError(
                f"dynamic_shapes of argument {position} has {shown(dim)}: {shown(size)}; expected a dimension of the "
                f"shape {tuple(example.shape)}, and nl.dim",
                help=_FORM,
            )
    return {dim % example.ndim: size for dim, size in given.items()}


def _hints(dims: _Dims) -> dict[str, int]:
    given = {size.name: size.hint for own in dims for size in own.values() if size.hint is not None}
    for own in dims:
        for size in own.values():
            if size.hint is not None and given[size.name] != size.hint:
                raise DefinitionError(
                    f"size {size.name!r} has hints {given[size.name]} and {size.hint}",
                    help="a size has one value: give one hint, or two names",
                )
    return {size.name: given.get(size.name) or _USUAL for own in dims for size in own.values()}


def _at(examples: Sequence[Any], dims: _Dims, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """The examples at these sizes.  Tensors that change hold nothing, as they may be large, and are only traced."""
    made = []
    for example, own in zip(examples, dims, strict=True):
        if own:
            shape = [sizes[own[n].name] if n in own else extent for n, extent in enumerate(example.shape)]
            if math.prod(shape) * example.dtype.itemsize > _MOST_BYTES:
                text = ", ".join(f"{size.name}={sizes[size.name]}" for size in own.values())
                raise DefinitionError(
                    f"at {text} an argument would have the shape {tuple(shape)}, of more than {_MOST_BYTES >> 30} GiB",
                    help="give sizes smaller hints, such as nl.dim('n', 64), or name fewer of them",
                )
            example = torch.empty(shape, dtype=example.dtype)
        made.append(example)
    return tuple(made)


def _check_course(function: Callable[..., Any], examples: Sequence[Any], dims: _Dims) -> None:
    """Raise DefinitionError if the function does other operations at some sizes from 2 on.

    torch.export traces it with a symbol for each size, and refuses what only some values of the symbol pass.
    """
    symbols = {size.name: torch.export.Dim(size.name, min=2, max=LARGEST) for own in dims for size in own.values()}
    shapes = tuple({n: symbols[size.name] for n, size in own.items()} or None for own in dims)
    # (two sizes of one value, or one of 0 or 1, would be taken for special cases)
    small = _at(examples, dims, {name: 11 + 4 * n for n, name in enumerate(symbols)})
    training = isinstance(function, torch.nn.Module) and function.training
    module = _Called(function).train(training)
    try:
        with without_torchs_words(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.export.export(module, small, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:
        said = [line.strip(" -") for line in str(error).splitlines() if line.startswith("  - ")]
        why, line = _reason(function, small, dims) or (said[0] if said else first_line(str(error)), None)
        why = in_names_of_sizes(why, dims)
        raise refusal(
            f"the function's control flow depends on the size {', '.join(symbols)}: {why}",
            line,
            "compile it for each size, without dynamic_shapes, or write it for all sizes alike",
        ) from error


def _reason(function: Callable[..., Any], small: Sequence[Any], dims: _Dims) -> tuple[str, SourceLine | None] | None:
    """What the function decides by its sizes; None if that is not found."""
    try:
        return condition_on_sizes(function, small, dims)
    except Exception:  # noqa: BLE001 - torch's inner parts may be others in another version; its own text is left
        return None


class _Called(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _check_alike(
    first: Operator, other: Operator, hint: Mapping[str, int], sizes: Mapping[str, int], text: str
) -> None:
    """Raise DefinitionError unless `other` has the stages of `first`, what it holds, and sizes in its shapes."""
    own, theirs = (tuple(b.name for b in blocks(op.program)) for op in (first, other))
    if own != theirs:
        extra = next(iter([*(set(own) ^ set(theirs))]), "their order")
        raise DefinitionError(
            f"at {text} the function has other stages ({len(theirs)}, at the hint {len(own)}; {extra} differs)",
            help="compile it for each size, without dynamic_shapes",
        )
    for name, array in first.captured.items():
        if not np.array_equal(array, other.captured.get(name, ()), equal_nan=array.dtype.kind == "f"):
            raise DefinitionError(
                f"the function holds the tensor {name} of shape {array.shape}, which is another one at {text}",
                help="pass it as an argument, with its size in dynamic_shapes",
            )
    for a, b in zip((*first.inputs, *first.outputs), (*other.inputs, *other.outputs), strict=True):
        if len(a.shape) != len(b.shape) or a.dtype != b.dtype:
            raise DefinitionError(f"at {text} {a.name} is another tensor: {b}", help="compile it for each size")
        for n, (one, two) in enumerate(zip(a.shape, b.shape, strict=True)):
            if one != two and not any((hint[name], sizes[name]) == (one, two) for name in hint):
                raise DefinitionError(
                    f"dimension {n} of {a.name} is {two} at {text}; expected a size, or a number that stays",
                    help="leave out what joins or pads the dimension, such as cat or reshape, or compile each size",
                )


__all__ = ["checked_alike", "sized", "takes_all_sizes"]
