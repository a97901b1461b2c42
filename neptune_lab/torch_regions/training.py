"""Graphs that record gradients: AOTAutograd divides them into a forward and a backward graph, and both have regions.

Attention is replaced before, by `nl.scaled_dot_product_attention`, whose backward kernels are derived from the
definition.  Everything else is differentiated by torch, operation by operation, and regions are carved from the two
graphs that come out: norms and softmaxes, and their gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd

from neptune_lab.errors import NeptuneError
from neptune_lab.torch_regions.launch import can_launch

# From a graph with its inputs and those of them that are parameters to a function that takes them in a list.
Compiler: TypeAlias = "Callable[[torch.fx.GraphModule, Sequence[Any], list[torch.fx.Node]], Callable[..., Any]]"

_log = logging.getLogger(__name__)

# Gradients that torch computes in one operation, by operations of which a region can take some.
_BACKWARD = (
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "_fused_rms_norm_backward",
    "nll_loss_backward",
    "mse_loss_backward",
    "silu_backward",
    "gelu_backward",
    "threshold_backward",
    "tanh_backward",
    "sigmoid_backward",
)


def with_gradients(module: torch.fx.GraphModule, examples: Sequence[Any], compiled: Compiler) -> Callable[..., Any]:
    """A graph of Dynamo's with its backward pass, each compiled by `compiled`.

    Args:
        module: the graph; attention in it is replaced.
        examples: its inputs, of which at least one records gradients.
        compiled: compiles the forward graph, and then the backward graph.

    Returns:
        A function with the graph's numbers and gradients.
    """
    weights: set[str] = set()

    def forward(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        own = traced.graph.find_nodes(op="placeholder")
        if len(own) == len(examples):
            pairs = zip(own, examples, strict=True)
            weights.update(n.name for n, t in pairs if isinstance(t, torch.nn.Parameter))
        return compiled(traced, inputs, [n for n in own if n.name in weights])

    def backward(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        # A parameter that the backward graph reads has the name that it has in the forward graph.
        own = traced.graph.find_nodes(op="placeholder")
        return compiled(traced, inputs, [n for n in own if n.name in weights])

    if can_launch(examples):
        replace_attention(module)
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        decompositions=_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    return compiler(module, examples)


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    packets = (getattr(torch.ops.aten, name, None) for name in _BACKWARD)
    return get_decompositions([p for p in packets if p is not None])


def replace_attention(module: torch.fx.GraphModule) -> None:
    """Replaces attention of fixed sizes without dropout by this package's, which has a derived backward pass.

        scaled_dot_product_attention(q, k, v, ...)  ⇒  nl.scaled_dot_product_attention(q, k, v, ...)

    Args:
        module: a graph of Dynamo's, changed in place.  Attention that records no gradients stays: it becomes part of a
            region.
    """
    target = torch.nn.functional.scaled_dot_product_attention
    for node in module.graph.find_nodes(op="call_function", target=target):
        values = [a.meta.get("example_value") for a in node.all_input_nodes]
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        if len(tensors) == len(values) and any(t.requires_grad for t in tensors) and all(map(_is_fixed, tensors)):
            node.target = _attention
    module.recompile()


def _is_fixed(tensor: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride()))


def _attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    from neptune_lab.pytorch.sdpa import scaled_dot_product_attention

    try:
        return scaled_dot_product_attention(*args, **kwargs)
    except NeptuneError as refusal:
        _log.warning("torch runs an attention: %s", refusal)
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


__all__ = ["Compiler", "replace_attention", "with_gradients"]
