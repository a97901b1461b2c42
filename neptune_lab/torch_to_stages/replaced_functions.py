"""Functions of PyTorch that are traced by a definition of ours: torch's own looks at values, or is wrong.

`torch.cov`, `gaussian_nll_loss` and `repeat_interleave` look at the values of a tensor in Python or C++, which no trace
can follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from neptune_lab.torch_to_stages.margin_losses import MARGIN_LOSSES


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """torch's, whose gradient passes through the limit of `var`; a negative `var` counts as `eps`."""
    if not isinstance(var, Tensor):
        var = var * torch.ones_like(input)
    differ = [a for a, b in zip(input.shape, var.shape, strict=False) if a != b]
    if input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    elif var.shape != input.shape and (var.ndim != input.ndim or sum(differ) != max(differ)):
        shapes = f"{tuple(input.shape)} and {tuple(var.shape)}"
        raise ValueError(f"gaussian_nll_loss got the shapes {shapes} of input and var, expected equal ones")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction!r} is no reduction of losses, expected 'none', 'mean' or 'sum'")
    var = torch.where(var < eps, var + (eps - var).detach(), var)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    x = torch.atleast_2d(input)
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weights is None:
        centred, total = x - x.mean(1, keepdim=True), x.shape[1]
        return (centred @ centred.mT / max(total - correction, 0)).squeeze()
    total = weights.sum()
    mean = (x * weights).sum(1, keepdim=True) / total
    centred = x - mean
    if aweights is None or correction == 0:
        divisor = total - correction
    else:
        divisor = total - correction * (weights * aweights).sum() / total
    return (centred @ (centred * weights).mT / divisor.clamp(min=0)).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    covariance = _cov(input)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = torch.diagonal(covariance).sqrt()
    return (covariance / deviation[:, None] / deviation).clamp(-1, 1)


def _softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """torch's, whose gradient passes through NaN."""
    return torch.where(input.abs() <= lambd, 0.0, torch.where(input > 0, input - lambd, input + lambd))


def _repeat_interleave(*args: Any, **kwargs: Any) -> Tensor:
    """torch's, whose result has a size that constant repeats tell."""
    given = dict(zip(("input", "repeats", "dim"), args, strict=False)) | kwargs
    repeats = given.get("repeats", given.get("input"))
    value = repeats.constant if isinstance(repeats, FakeTensor) else repeats
    if isinstance(value, Tensor) and kwargs.get("output_size") is None:
        # A tensor with as many elements as it says: torch's own function repeats one for each.
        with _disable_current_modes():
            total = int(value.sum())
        kwargs["output_size"] = total * (_repeated(given) if value.numel() == 1 else 1)
    return torch.repeat_interleave(*args, **kwargs)


def _repeated(given: Mapping[str, Any]) -> int:
    """How many elements one number of repeats is for."""
    if "repeats" not in given:
        return 1
    return given["input"].numel() if given.get("dim") is None else given["input"].shape[given["dim"]]


_FUNCTIONS: Mapping[Any, Callable[..., Tensor]] = MappingProxyType(
    {
        F.softshrink: _softshrink,
        torch.repeat_interleave: _repeat_interleave,
        torch.Tensor.repeat_interleave: _repeat_interleave,
        **MARGIN_LOSSES,
        F.gaussian_nll_loss: _gaussian_nll_loss,
        torch.cov: _cov,
        torch.Tensor.cov: _cov,
        torch.corrcoef: _corrcoef,
        torch.Tensor.corrcoef: _corrcoef,
    }
)


class ReplacedFunctions(TorchFunctionMode):
    """While it is active, these functions are computed as here: torch.export takes them apart as it traces."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func`, or its definition."""
        return _FUNCTIONS.get(func, func)(*args, **(kwargs or {}))


__all__ = ["ReplacedFunctions"]
