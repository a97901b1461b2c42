"""Names of a traced function's arguments and results: unique Python identifiers."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of a function's first positional arguments."""
    return argument_names(function, [(pytree.SequenceKey(n),) for n in range(count)])


def argument_names(function: Callable[..., Any], paths: Sequence[Any]) -> list[str]:
    """A name for each leaf of the arguments, after the function's parameters."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for path in paths:
        position = path[0].idx
        own = parameters[position] if position < len(parameters) else (parameters[-1] if parameters else None)
        if own is None:
            parts = [f"x{position}"]
        elif own.kind is inspect.Parameter.VAR_POSITIONAL:
            parts = [f"{own.name}{position - len(parameters) + 1}"]
        else:
            parts = [own.name]
        parts += [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path[1:]]
        names.append(unused(identifier("_".join(parts)), names))
    return names


def result_names(spec: pytree.TreeSpec) -> tuple[str, ...]:
    """A name for each result: its key in a dict, else "out" and a number."""
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    names: list[str] = []
    for path, _ in paths:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
        plain = "_".join(parts)
        names.append(unused(identifier(plain) if plain and not plain[0].isdigit() else f"out{plain}", names))
    return tuple(names)


def identifier(text: str) -> str:
    """`text` as a Python identifier."""
    name = re.sub(r"\W+", "_", text).strip("_") or "x"
    return f"x_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def unused(name: str, taken: Sequence[str]) -> str:
    """`name`, or with the first number from 2 on that makes it none of those taken."""
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}_{n}", n + 1
    return candidate
