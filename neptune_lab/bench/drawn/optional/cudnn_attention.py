"""Attention by cuDNN's own graph API (nvidia-cudnn-frontend): with strides, groups, causal and window masks."""

from __future__ import annotations

from typing import Any

import torch

from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.peers import Ready

# The widest head that the forward kernel takes on Hopper.
WIDEST = 256


def refuses(problem: Problem) -> str:
    """Why cuDNN's graph does not compute the problem; empty if it does."""
    if problem.mod != "plain":
        return "the adapter has no score mods"
    if problem.mask not in ("full", "causal", "window"):
        return f"the graph has no {problem.mask} mask"
    widest = max(problem.sizes["head_dim"], problem.sizes["v_head_dim"])
    return f"heads of {widest} are wider than {WIDEST}" if widest > WIDEST else ""


def band(problem: Problem) -> dict[str, int]:
    """The diagonals that the mask leaves, as the graph has them: at most so many right of a query's own key, and fewer
    than so many left of it."""
    bounds: dict[str, int] = {}
    if problem.mask in ("causal", "window"):
        bounds["diagonal_band_right_bound"] = 0
    if problem.mask == "window":
        bounds["diagonal_band_left_bound"] = problem.sizes["window"]
    return bounds


def prepared(problem: Problem, given: Any) -> Ready:
    """The graph, built for these tensors.

    Args:
        given: `attention.Inputs`.
    """
    import cudnn  # type: ignore[import-not-found]

    q, k, v = given.q, given.k, given.v
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    half = cudnn.data_type.HALF if q.dtype is torch.float16 else cudnn.data_type.BFLOAT16
    wide = cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=wide, compute_data_type=wide, handle=handle)
    of = [graph.tensor_like(tensor) for tensor in (q, k, v)]
    options: dict[str, Any] = dict(band(problem))
    if options:  # the last query sees the last key
        options["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
    answer, _ = graph.sdpa(
        name="attention", q=of[0], k=of[1], v=of[2], attn_scale=q.shape[3] ** -0.5, generate_stats=False, **options
    )
    answer.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(half)
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=q.device)
    tensors = dict(zip([*of, answer], [q, k, v, out], strict=True))

    def call() -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(tensors, workspace, handle=handle)
        return out

    return Ready(call)


__all__ = ["band", "prepared", "refuses"]
