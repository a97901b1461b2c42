"""Runs a model once under torch's compiler, and keeps the partition of each graph that it traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config

from neptune_lab.errors import DefinitionError
from neptune_lab.torch_explain.explanation import Explanation
from neptune_lab.torch_regions import Partition
from neptune_lab.torch_regions.partition import partition, partition_of_model, records_gradients
from neptune_lab.torch_regions.training import with_gradients
from neptune_lab.torch_to_stages.graph import first_line, without_torchs_words
from neptune_lab.torch_to_stages.lines import SourceLine


def explained(model: Callable[..., Any], *inputs: Any, inference: bool = False) -> Explanation:
    """The explanation of a model on these inputs.

    Args:
        model: a function of PyTorch or a `torch.nn.Module`.
        inputs: its positional arguments.
        inference: under `torch.inference_mode()`; otherwise gradients are recorded if they are at the call.

    Returns:
        The partitions of its graphs, and why there are several.

    Raises:
        DefinitionError: the model is no function, or fails on these inputs.
    """
    if not callable(model):
        raise DefinitionError(
            f"expected a function or a torch.nn.Module, got {type(model).__name__}",
            help="nl.explain(model, torch.randn(4, 8))",
        )
    title = getattr(model, "__name__", type(model).__name__)
    found = _Graphs()
    torch._dynamo.reset()  # a function that was compiled too often is not traced again
    try:
        with without_torchs_words(), torch.inference_mode() if inference else nullcontext():
            torch.compile(model, backend=found.backend, dynamic=False)(*inputs)
    except Exception as error:
        raise _refusal(title, model, inputs, error) from error
    if not found.partitions:
        raise DefinitionError(
            f"torch traced no operation of {title}", help="explain a function of tensors, with tensors among its inputs"
        )
    return Explanation(title, tuple(found.partitions), tuple(found.breaks))


def _refusal(title: str, model: Callable[..., Any], inputs: Sequence[Any], error: Exception) -> DefinitionError:
    """The error for a model that fails under torch's compiler: its own one, if it has one without the compiler."""
    try:
        with torch.no_grad():
            model(*inputs)
    except Exception as own:  # noqa: BLE001 - a model raises what it likes
        return DefinitionError(
            f"{title} fails on these inputs: {type(own).__name__}: {first_line(str(own))}",
            help=f"call it without neptune_lab: {title} must run on these inputs",
        )
    return DefinitionError(
        f"torch.compile fails on {title}: {type(error).__name__}: {first_line(str(error))}",
        help='torch.compile(model, backend="eager") shows whether torch can trace it',
    )


class _Graphs:
    """A backend of torch.compile that partitions each graph, and lets torch run it."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.breaks: list[str] = []

    def backend(self, module: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        """Notes why the trace ended, and takes the graph apart to ATen operations."""
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            self.breaks.append(_sentence(reason))
        if records_gradients(examples):

            def of_training(traced: torch.fx.GraphModule, inputs: Sequence[Any], weights: list[torch.fx.Node]) -> Any:
                self.partitions.append(partition(traced.graph, weights, records_gradients=True))
                return _as_it_is(traced, inputs)

            with config.patch(force_non_lazy_backward_lowering=True):
                return with_gradients(module, examples, of_training)

        def forward(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            self.partitions.append(partition_of_model(traced.graph, examples))
            return _as_it_is(traced, inputs)

        compiler = aot_autograd(fw_compiler=forward, bw_compiler=_as_it_is, inference_compiler=forward)
        return compiler(module, examples)


def _as_it_is(module: torch.fx.GraphModule, _examples: Sequence[Any]) -> Any:
    """The graph as torch runs it; the arguments come as a list, which is emptied as autograd's runtime expects."""

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return module(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _sentence(reason: Any) -> str:
    """Why a trace ended, with the user's line."""
    what = next((line.strip() for line in str(reason.reason).splitlines() if line.strip()), "no reason given")
    if what.startswith("generic_jump"):  # Dynamo's name for it
        what = "a branch on the value of a tensor: choose with torch.where"
    stack = reason.user_stack
    if not stack:
        return what
    return f"{what}, in {SourceLine(stack[-1].filename, stack[-1].lineno, stack[-1].name)}"


__all__ = ["explained"]
