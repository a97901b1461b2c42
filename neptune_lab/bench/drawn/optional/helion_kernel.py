"""The kernel of `helion_attention`; needs Helion, which takes no closures and reads the function's source."""
# pyright: reportMissingImports=false, reportInvalidTypeForm=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

helion: Any
hl: Any
try:
    import helion
    import helion.language as hl
except ModuleNotFoundError:  # the module can be imported all the same, as every module of the package
    helion, hl = SimpleNamespace(Config=dict, kernel=lambda **_: lambda function: function), None


@helion.kernel(config=helion.Config(num_warps=8, num_stages=3), static_shapes=True)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: hl.constexpr) -> torch.Tensor:
    """q (heads, queries, width), k and v (heads, keys, width); with `causal`, the last query sees the last key."""
    heads, queries, width = q.size()
    keys = k.size(1)
    width = hl.specialize(width)
    columns = hl.specialize(v.size(2))
    out = torch.empty([heads, queries, columns], dtype=q.dtype, device=q.device)
    scale = 1.4426950408889634 * width**-0.5
    ahead = keys - queries
    for head, row in hl.tile([heads, queries], block_size=[1, 128]):
        largest = hl.full([row], float("-inf"), dtype=torch.float32)
        total = hl.zeros([row], dtype=torch.float32)
        sums = hl.zeros([row, columns], dtype=torch.float32)
        q_tile = q[head.begin, row, :]
        for column in hl.tile(keys, block_size=64):
            scores = hl.dot(q_tile, k[head.begin, column, :].T, out_dtype=torch.float32) * scale
            if causal:
                scores = torch.where(row.index[:, None] >= (column.index - ahead)[None, :], scores, float("-inf"))
            following = torch.maximum(largest, torch.amax(scores, -1))
            weights = torch.exp2(scores - following[:, None])
            repair = torch.exp2(largest - following)
            total = total * repair + torch.sum(weights, -1)
            sums = sums * repair[:, None]
            sums = hl.dot(weights.to(v.dtype), v[head.begin, column, :], acc=sums)
            largest = following
        out[head.begin, row, :] = (sums / total[:, None]).to(out.dtype)
    return out
