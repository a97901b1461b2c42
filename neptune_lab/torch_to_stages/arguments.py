"""The arguments of a function from the text that states its inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.input_specs import Value
from neptune_lab.strict.console import class_of
from neptune_lab.strict.dtypes import COMPUTED
from neptune_lab.tensor_spec import TensorSpec

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def example_arguments(function: Callable[..., Any], inputs: Mapping[str, Value]) -> tuple[Any, ...]:
    """Positional arguments of the stated shapes and dtypes.

    Args:
        function: a function or a `torch.nn.Module`.
        inputs: of `parse_inputs`, by the names of its parameters; `xs0`, `xs1` and so on for a parameter `*xs`.

    Returns:
        The arguments in the order of the parameters.  Tensors hold zeros, or True.  A parameter that has no input keeps
        its default.

    Raises:
        DefinitionError: an input has the name of no parameter, a parameter has neither an input nor a default, or a
            tensor does not fit into the memory.
    """
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a function of torch's own, without a signature
        return tuple(_example(value) for value in inputs.values())
    name = getattr(function, "__name__", type(function).__name__)
    left = dict(inputs)
    given: list[Any] = []
    skipped: inspect.Parameter | None = None
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            several = [n for n in left if re.fullmatch(rf"{parameter.name}\d+", n)]
            given += [_example(left.pop(n)) for n in several]
        elif parameter.kind in _POSITIONAL and parameter.name in left:
            given.append(_example(left.pop(parameter.name)))
        elif parameter.kind in _POSITIONAL and parameter.default is not inspect.Parameter.empty:
            given.append(parameter.default)
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name in left:
            raise DefinitionError(
                f"the parameter {parameter.name!r} of {name} takes no positional argument",
                help=f"move {parameter.name} before the * of the function's parameters, or leave its input out",
            )
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            skipped = skipped or parameter
    if left:
        known = ", ".join(p.name for p in parameters if p.kind in _POSITIONAL) or "none"
        raise DefinitionError(
            f"{name} has no parameter {next(iter(left))!r}; its parameters: {known}",
            help=f"name the inputs as {name} does",
        )
    if skipped is not None:
        raise DefinitionError(
            f"the parameter {skipped.name!r} of {name} has no input", help=f"add {skipped.name}=dtype[sizes]"
        )
    return tuple(given)


def named_arguments(function: Callable[..., Any], given: Sequence[Any]) -> dict[str, Value] | None:
    """The names that `example_arguments` knows positional arguments by, each with its shape and dtype or its number.

    Args:
        function: a function or a `torch.nn.Module`.
        given: its positional arguments.

    Returns:
        The arguments by name; None if one is neither a tensor nor a number, or if the function has no known signature.
    """
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = [p for p in inspect.signature(called).parameters.values() if p.kind in _POSITIONAL]
        several = [p for p in inspect.signature(called).parameters.values() if p.kind is p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        return None
    names = [p.name for p in parameters]
    names += [f"{p.name}{n}" for p in several for n in range(len(given) - len(parameters))]
    if len(set(names)) < len(names) or len(names) < len(given):
        return None
    found: dict[str, Value] = {}
    for name, value in zip(names, given, strict=False):
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype not in COMPUTED:
                return None
            found[name] = TensorSpec(name, tuple(value.shape), dtype)
        elif value is None or isinstance(value, bool | int | float):
            found[name] = value
        else:
            return None
    return found


def callable_of(found: object, name: str, place: str) -> Callable[..., Any]:
    """The function or module that a name stands for; a class of modules is made without arguments.

    Args:
        found: what has the name.
        name: the name.
        place: where it is, for the error, such as "model.py".

    Returns:
        The function, or the module in evaluation mode.

    Raises:
        DefinitionError: it is neither, or a class of modules that takes arguments.
    """
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        try:
            return found().eval()
        except TypeError as error:
            raise DefinitionError(
                f"{name} of {place} cannot be made without arguments: {error}",
                help=f"make one there, as in model = {name}(…).eval(), and name it instead",
            ) from error
    if not callable(found):
        raise DefinitionError(
            f"{name!r} of {place} is {class_of(found)}, expected a function or a torch.nn.Module",
            help="name a function or a module",
        )
    return found


def _example(value: Value) -> Any:
    if not isinstance(value, TensorSpec):
        return value
    make = torch.ones if value.dtype == "bool" else torch.zeros
    try:
        return make(value.shape, dtype=getattr(torch, value.dtype))
    except RuntimeError as error:
        raise DefinitionError(
            f"a tensor of the input {value.name!r}, {value}, cannot be made", help="choose smaller sizes"
        ) from error


__all__ = ["callable_of", "example_arguments", "named_arguments"]
