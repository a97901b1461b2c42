"""Finds where a function stops gradients, and its definition has no mark of that (`marked_stops`).

The derivative of a definition follows every value, so it would be wrong for such a function: one that calls a
`torch.autograd.Function` or leaves out rows of an embedding, or that writes in place and stops gradients in any way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from neptune_lab.torch_to_stages.lines import SourceLine, line_of_caller
from neptune_lab.torch_to_stages.marked_stops import UsersMode, writes_in_place
from neptune_lab.torch_to_stages.replaced_functions import ReplacedFunctions

_DETACHING = ("detach", "detach_")
# The parameters of torch's function and of its operator, by which rows of a table get no gradient, or a part of it.
_EMBEDDINGS = {
    torch.nn.functional.embedding: ("", "", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"),
    torch.embedding: ("", "", "padding_idx", "scale_grad_by_freq"),
}
# What torch raises where a function cannot run on tensors without values.
_WITHOUT_VALUES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class _Watch(TorchFunctionMode):
    """Notes the first line at which a float tensor with a gradient becomes one without, and no mark tells.

    Args:
        marked: whether marks tell of `detach` and of what is computed while the function has torch record nothing;
            a `torch.autograd.Function` has a switch of its own.
    """

    def __init__(self, marked: bool) -> None:
        super().__init__()
        self.line: SourceLine | None = None
        self.marked = marked
        self._users = UsersMode()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        data = func == torch.Tensor.data.__get__  # type: ignore[attr-defined]
        off = not torch.is_grad_enabled()
        stops = off and not name.endswith("_like") and not name.startswith("new_")
        # What is recorded of an input has a function that made it: inputs are views here.  A parameter has none.
        recorded = any(_is_float(t) and t.grad_fn is not None for t in pytree.tree_leaves((args, kwargs)))
        out = func(*args, **(kwargs or {}))
        if self._users.noted(func, args):
            return out
        tells = self.marked and (not self._users.records or not off)
        if self.line is None and recorded and not tells and (stops or data or name in _DETACHING):
            results = [t for t in pytree.tree_leaves(out) if _is_float(t)]
            if results and (not any(t.requires_grad for t in results) or writes_in_place(func, kwargs or {})):
                self.line = line_of_caller()
        elif self.line is None and recorded and _leaves_rows_out(func, args, kwargs or {}):
            self.line = line_of_caller()
        return out


def _leaves_rows_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an embedding gives some rows of its table another gradient than that of the elements that it reads."""
    if func not in _EMBEDDINGS:
        return False
    given = {**dict(zip(_EMBEDDINGS[func], args, strict=False)), **kwargs}
    nothing = -1 if func is torch.embedding else None
    return given.get("padding_idx", nothing) != nothing or bool(given.get("scale_grad_by_freq"))


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def gradient_stops(
    function: Callable[..., Any], examples: Sequence[Any], names: Sequence[str], marked: bool
) -> Callable[[Collection[str]], SourceLine | None]:
    """A function that finds the first line at which `function` stops a gradient; None if there is none.

    Args:
        function: a function or a `torch.nn.Module`.
        examples: its positional arguments. Only shapes and dtypes are kept.
        names: the operator's, of the tensors among them.
        marked: whether the definition has marks where the function stops gradients by itself.

    Returns:
        A function from the names of tensors that record gradients. It runs `function` once, on tensors without values.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def without_values(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        with mode:
            return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)

    kept = pytree.tree_map(without_values, tuple(examples))

    def find(recording: Collection[str]) -> SourceLine | None:
        own = iter(names)

        def prepared(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or next(own) not in recording:
                return leaf
            # A view of a leaf, which may be written in place.
            return leaf.detach().requires_grad_().view_as(leaf)

        watch = _Watch(marked)
        with mode, torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = pytree.tree_map(prepared, kept)
            with suppress(*_WITHOUT_VALUES), watch, ReplacedFunctions():
                function(*given)
        return watch.line

    return find


__all__ = ["gradient_stops"]
