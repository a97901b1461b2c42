"""Softmax, norms and losses of quack-kernels (CuTe) and liger-kernel (Triton), forward alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.peers import Ready

_HAS = ("softmax", "layer_norm", "cross_entropy")
_EPS = 1e-5


def quack_refuses(problem: Problem) -> str:
    """Why quack has no kernel of the problem; empty if it has."""
    return "" if problem.operator in _HAS else f"it has no {problem.operator}"


def liger_refuses(problem: Problem) -> str:
    """Why liger has no kernel of the problem; empty if it has."""
    return quack_refuses(problem)


def quack(problem: Problem, tensors: tuple[torch.Tensor, ...]) -> Ready:
    """quack's kernel on these tensors; weights of a norm are float32, as it wants them."""
    if problem.operator == "softmax":
        softmax = import_module("quack.softmax").softmax_fwd
        return Ready(lambda: softmax(tensors[0]))
    if problem.operator == "layer_norm":
        x, weight, bias = tensors[0], tensors[1].float(), tensors[2].float()
        norm = import_module("quack.rmsnorm").layernorm_fwd
        return Ready(lambda: norm(x, weight, bias, _EPS))
    x, labels = tensors[0], tensors[1].long()
    loss = import_module("quack.cross_entropy").cross_entropy_fwd
    return Ready(lambda: loss(x, labels))


def liger(problem: Problem, tensors: tuple[torch.Tensor, ...]) -> Ready:
    """liger's kernel on these tensors; the loss has the dtype of the logits, and is computed without gradients."""
    if problem.operator == "softmax":
        softmax = import_module("liger_kernel.ops.softmax").LigerSoftmaxFunction
        return Ready(_without_gradients(lambda: softmax.apply(tensors[0])))
    if problem.operator == "layer_norm":
        norm = import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction
        return Ready(_without_gradients(lambda: norm.apply(*tensors, _EPS)))
    x, labels = tensors[0], tensors[1].long()
    loss = import_module("liger_kernel.ops.cross_entropy").LigerCrossEntropyFunction
    given = (x, labels, None, -100, 0.0, 0.0, "none")
    return Ready(_without_gradients(lambda: loss.apply(*given)[0]))


def _without_gradients(function: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return function()

    return call


__all__ = ["liger", "liger_refuses", "quack", "quack_refuses"]
