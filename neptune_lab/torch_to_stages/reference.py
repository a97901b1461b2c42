"""A traced function in float64: torch's own operations on wide tensors, as the reference of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from neptune_lab.torch_to_stages.graph import Graph

_WIDE = torch.float64
# Positions of a dtype among the arguments of an operation that converts or creates.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class _InFloat64(torch.fx.Interpreter):
    """Runs a graph with every float in float64: a conversion to a smaller float leaves a float64 as it is."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(target, "_opname", "") == "_assert_tensor_metadata":
            return None
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        if getattr(target, "_opname", "") in _MADE and kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": _made_dtype(target, args)}
        return super().call_function(target, args, kwargs)


_MADE = frozenset({"full", "ones", "zeros", "scalar_tensor", "eye"})


def _made_dtype(target: Any, args: tuple[Any, ...]) -> torch.dtype | None:
    """The dtype of a tensor made without one: float64, unless its number is whole or a condition."""
    number = args[1] if target._opname == "full" else args[0] if target._opname == "scalar_tensor" else 0.0
    return _WIDE if isinstance(number, float) else None


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value in _FLOATS:
        return _WIDE
    if isinstance(value, torch.Tensor) and value.dtype in _FLOATS:
        return value.to(_WIDE)
    return value


def reference_of(graph: Graph, names: tuple[str, ...], dtypes: dict[str, str]) -> Callable[..., tuple[np.ndarray, ...]]:
    """The graph as a function of NumPy arrays, in float64.

    Args:
        graph: from `trace`.
        names: of the tensors that it is called with, in order.
        dtypes: torch's dtype of each tensor, without "torch.", by name.

    Returns:
        A function from arrays to arrays, float64 ones (of integers and conditions too).
    """
    order = graph.placeholders

    def compute(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        given = dict(zip(names, arrays, strict=True))
        tensors = []
        for name in order:
            if name in given:
                tensor = torch.from_numpy(np.ascontiguousarray(given[name]).reshape(np.shape(given[name])))
                own = getattr(torch, dtypes[name])
                tensors.append(tensor.to(own if not own.is_floating_point else _WIDE))
            else:
                tensors.append(_widened(graph.held[name].detach()))
        waiting = iter(tensors)
        args = [
            next(waiting) if isinstance(node.meta.get("val"), torch.Tensor) else node.meta.get("val")
            for node in graph.module.graph.nodes
            if node.op == "placeholder"
        ]
        with torch.no_grad():
            results = _InFloat64(graph.module).run(*args)
        return tuple(np.asarray(r.to(_WIDE)) for r in results if isinstance(r, torch.Tensor))

    return compute
