"""Compares gradients of `attention` with float64 autograd of the definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attention_reference import DEVICE, reference

import neptune_lab as nl


def leaf(*shape: int, seed: int = 1) -> torch.Tensor:
    """A parameter."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE).requires_grad_()


def check(
    inputs: Sequence[torch.Tensor],
    mods: Callable[..., tuple[Any, Any]] = lambda: (None, None),
    parameters: Sequence[torch.Tensor] = (),
    limit: float = 1e-5,
    **options: Any,
) -> None:
    """Compares the gradients of q, k, v and of the parameters with the reference's.

    Args:
        inputs: q, k and v.
        mods: from the parameters to score_mod and mask_mod.
        parameters: what the mods capture.
        limit: of relative errors.
        options: of `attention`.
    """
    every = [t if t.requires_grad else t.requires_grad_() for t in (*inputs, *parameters)]
    score_mod, mask_mod = mods(*parameters)
    out = nl.attention(*inputs, score_mod=score_mod, mask_mod=mask_mod, **options)
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    found = torch.autograd.grad(out, every, given)
    wide = [t.detach().double().requires_grad_() for t in every]
    score_mod, mask_mod = mods(*wide[3:])
    exact = reference(*wide[:3], score_mod, mask_mod).nan_to_num(0)
    for n, (ours, theirs) in enumerate(zip(found, torch.autograd.grad(exact, wide, given.double()), strict=True)):
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert float(error) < limit, (n, float(error))
