"""What adapters of attention in other languages share: which problems they take, and tensors with equal heads."""

from __future__ import annotations

from typing import Any

import torch

from neptune_lab.bench.drawn.problems import Problem


def plain_refusal(problem: Problem) -> str:
    """Why a plain kernel with a full or a causal mask does not compute a problem; empty if it does."""
    sizes = problem.sizes
    if problem.mod != "plain" or problem.mask not in ("full", "causal"):
        return "the adapter's kernel has full and causal masks alone"
    if sizes["q_len"] < 16:
        return "the adapter's kernel is for prefill and chunks"
    powers = (sizes["head_dim"], sizes["v_head_dim"])
    return "" if all(n & (n - 1) == 0 for n in powers) else f"the adapter's kernel has no width {powers}"


def flat(given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as contiguous (heads of all samples, length, width), keys and values repeated for their groups.

    Args:
        given: `attention.Inputs`.
    """
    group = given.q.shape[1] // given.k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (given.k, given.v))
    q, k, v = (t.reshape(-1, *t.shape[2:]).contiguous() for t in (given.q, k, v))
    return q, k, v


__all__ = ["flat", "plain_refusal"]
