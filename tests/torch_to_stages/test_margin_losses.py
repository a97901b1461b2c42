"""Losses with a margin have the values and gradients of PyTorch's kernels, also at the exact margin and beside NaN."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.torch_to_stages.replaced_functions import ReplacedFunctions

inf, nan = float("inf"), float("nan")
X = torch.tensor([[0.0, 1, 2], [1, 0, 0], [0.5, -0.5, 0.3], [nan, 0, 0], [0.5, nan, 0.3], [2, inf, 1]])
LABELS = torch.tensor([1, 0, 0, 0, 0, 2])
LISTS = torch.tensor([[1, -1, 0], [0, 1, -1], [2, 0, 1], [-1, 0, 0], [0, -1, 2], [2, 2, -1]])


def values(loss: Callable[..., torch.Tensor], *args: torch.Tensor) -> list[torch.Tensor]:
    x = args[0].clone().requires_grad_()
    out = loss(x, *args[1:])
    out.sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad]


def same(loss: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    expected = values(loss, *args)
    with ReplacedFunctions():
        found = values(loss, *args)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_losses_are_those_of_pytorch(reduction: str):
    weights = torch.tensor([0.5, 2, 1])
    for p, margin, weight in product((1, 2), (1.0, 0.5), (None, weights)):
        options: dict[str, Any] = {"p": p, "margin": margin, "weight": weight, "reduction": reduction}
        same(lambda x, t, given=options: F.multi_margin_loss(x, t, **given), X, LABELS)
    for labels in (LABELS[0], LABELS[:1]):
        same(lambda x, t: F.multi_margin_loss(x, t, reduction=reduction), X[0], labels)
    for x, labels in ((X, LISTS), (X[0], LISTS[0])):
        same(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x, labels)
    with pytest.warns(UserWarning, match="deprecated"):
        same(lambda x, t: F.multi_margin_loss(x, t, size_average=reduction == "mean"), X, LABELS)


@pytest.mark.nightly
def test_traced_losses():
    for loss, labels in ((F.multi_margin_loss, LABELS), (F.multilabel_margin_loss, LISTS)):
        function = lambda x, t, loss=loss: loss(x, t, reduction="none")  # noqa: E731
        kernel = nl.compile(nl.from_torch(function, X, labels)).with_gradients()
        torch.testing.assert_close(values(kernel, X, labels), values(function, X, labels), equal_nan=True)


def test_shapes_that_pytorch_refuses():
    for loss, labels in ((F.multi_margin_loss, LABELS[:1]), (F.multilabel_margin_loss, LISTS[:, :2])):
        with pytest.raises(DefinitionError, match="got the shapes"):
            nl.from_torch(loss, X, labels)
    with pytest.raises(DefinitionError, match="p=3"):
        nl.from_torch(lambda x, t: F.multi_margin_loss(x, t, p=3), X, LABELS)
