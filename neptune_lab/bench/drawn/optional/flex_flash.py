"""FlexAttention with its FLASH backend: mods inside FlashAttention's CuTe kernels; needs `flash_attn.cute`."""

from __future__ import annotations

from typing import Any

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.peers import Ready, compile_for

NAME, MODULE = "FlexAttention FLASH", "flash_attn.cute"


def refuses(problem: Problem) -> str:
    """Why the backend does not compute the problem; empty if it does."""
    return ""


def prepared(problem: Problem, given: Any) -> Ready:
    """The compiled call on these tensors.

    Args:
        given: `attention.Inputs`.
    """
    q, k, v, mask = given.q, given.k, given.v, None
    if given.mask_mod is not None:
        mask = create_block_mask(given.mask_mod, None, None, q.shape[2], k.shape[2], device=str(q.device))
    run: Any = compile_for((q, k, v), flex_attention)
    more: Any = {"score_mod": given.score_mod, "block_mask": mask, "enable_gqa": q.shape[1] != k.shape[1]}
    return Ready(lambda: run(q, k, v, kernel_options={"BACKEND": "FLASH"}, **more))


__all__ = ["MODULE", "NAME", "prepared", "refuses"]
