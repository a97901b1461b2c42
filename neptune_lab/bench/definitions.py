"""The operators in plain torch, stage by stage as in our own definitions.

They have two uses: compiled by torch.compile they are a peer, and in float64 they are the reference that every answer
is checked against.  `wide` is the dtype of sums and exponentials; inputs keep their own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from neptune_lab.bench.setups import Setup
from neptune_lab.errors import MeasureError
from neptune_lab.runtime.accuracy import AttentionCase, modified, seen

Definition = Callable[..., tuple[torch.Tensor, ...]]


def definition(setup: Setup, wide: torch.dtype = torch.float32) -> Definition:
    """The setup's operator as a function of its input tensors, in order, to the tuple of its outputs."""
    params = setup.op.params
    if setup.is_attention:
        case = setup.case
        return lambda q, k, v: (attention(case, q, k, v, wide),)
    match setup.op.name:
        case "gemm_chain":
            return lambda a, b, d: ((a @ b) @ d,)
        case "performer":
            return lambda q, k, v, proj: (performer(q, k, v, proj, params["eps"], wide),)
        case "l2_norm":
            return lambda x: (l2_norm(x, wide),)
        case "rms_norm_max":
            return lambda x: (rms_norm(x, params["eps"], wide).amax(1),)
        case "rms_norm_quantize":
            return lambda x: rms_norm_quantize(x, params["eps"], wide)
    raise MeasureError(
        f"{setup.name}: there is no plain torch definition of {setup.op.name}",
        help="compare with another peer, or add the definition to neptune_lab/bench/definitions.py",
    )


def attention(
    case: AttentionCase,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    wide: torch.dtype,
    first_head: int = 0,
    first_row: int = 0,
) -> torch.Tensor:
    """Attention with every score in memory, of all queries or a part of them.

    The division by the sum of exponentials is last, as in our definition: in that form, torch.compile does not replace
    the code by a library's attention.

    Args:
        q: (batch, heads, rows, head_dim), rows `first_row` and on of heads `first_head` and on.
        k, v: (batch, kv_heads, kv_len, head_dim) and (..., v_head_dim), the heads that those queries read.

    Returns:
        (batch, heads, rows, v_head_dim) in q's dtype.
    """
    batch, heads, rows, _ = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    # The heads of a group become consecutive rows, so that no key is copied.
    packed = q.reshape(batch, kv_heads, -1, q.shape[-1])
    score = (packed @ k.transpose(-1, -2)).reshape(batch, heads, rows, kv_len).to(wide) * case.scale
    head = torch.arange(first_head, first_head + heads, device=q.device)[:, None, None].to(wide)
    query = torch.arange(first_row, first_row + rows, device=q.device)[:, None] + (case.kv_len - case.q_len)
    key = torch.arange(kv_len, device=q.device)
    score = modified(case, score, head, query, key)
    if case.causal:
        score = torch.where(seen(case, query, key), score, -torch.inf)
    weight = torch.exp(score - score.amax(-1, keepdim=True))
    total = weight.sum(-1, keepdim=True)
    summed = weight.to(v.dtype).reshape(batch, kv_heads, -1, kv_len) @ v
    return (summed.reshape(batch, heads, rows, -1).to(wide) / total).to(q.dtype)


def l2_norm(x: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """`x` (rows, cols) to (rows,)."""
    x = x.to(wide)
    peak = x.abs().amax(1, keepdim=True)
    norm = peak * ((x / peak) ** 2).sum(1, keepdim=True).sqrt()
    return torch.where(peak == 0, 0.0, norm).squeeze(1)


def rms_norm(x: torch.Tensor, eps: float, wide: torch.dtype) -> torch.Tensor:
    """`x` (rows, cols) to (rows, cols)."""
    x = x.to(wide)
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + eps)


def rms_norm_quantize(x: torch.Tensor, eps: float, wide: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` (rows, cols) to int8 (rows, cols) and a scale (rows,)."""
    y = rms_norm(x, eps, wide)
    scale = y.abs().amax(1, keepdim=True) / 127
    steps = torch.where(scale == 0, 0.0, torch.round(y / scale)).clamp(-127, 127)
    return steps.to(torch.int8), scale.squeeze(1)


def performer(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, proj: torch.Tensor, eps: float, wide: torch.dtype
) -> torch.Tensor:
    """`q`, `k`, `v` (batch, heads, seq, head_dim), `proj` (features, head_dim) to q's shape.

    The factor features**-0.5 of both feature maps cancels; with it, most features would be too small for float16.
    """

    def features(x: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
        norm = x.shape[-1] ** -0.25
        dash = (x @ proj.T).to(wide) * norm
        half = (x.to(wide) ** 2).sum(-1, keepdim=True) * (0.5 * norm * norm)
        return (torch.exp(dash - half - dash.amax(over, keepdim=True)) + eps).to(x.dtype)

    queries, keys = features(q, (-1,)), features(k, (-1, -2))
    total = (queries.to(wide) * keys.to(wide).sum(-2, keepdim=True)).sum(-1, keepdim=True)
    return ((queries @ (keys.transpose(-1, -2) @ v)).to(wide) / total).to(q.dtype)
