"""Attention in Helion: one pass over the keys with a running maximum, for full and causal masks, with fixed tiles."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from neptune_lab.bench.drawn.optional.common import flat, plain_refusal
from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.peers import Ready


def refuses(problem: Problem) -> str:
    """Why the kernel does not compute the problem; empty if it does."""
    if 64 in (problem.sizes["head_dim"], problem.sizes["v_head_dim"]):
        return "Helion 1.0 takes a tile of rows for the width if that is 64, and writes code that Triton refuses"
    return plain_refusal(problem)


def prepared(problem: Problem, given: Any) -> Ready:
    """The kernel on these tensors, which are copied once if they are views or groups share keys; copies are not timed.

    Args:
        given: `attention.Inputs`.
    """
    q, k, v = flat(given)
    kernel = import_module("neptune_lab.bench.drawn.optional.helion_kernel").attention
    causal, shape = problem.mask == "causal", (*given.q.shape[:3], v.shape[-1])
    return Ready(lambda: kernel(q, k, v, causal).view(shape), "fixed tiles, not autotuned")


__all__ = ["prepared", "refuses"]
