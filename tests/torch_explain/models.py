"""A module and functions whose explanations the tests read."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    """A norm, attention and a sort, with products between."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return y.sort(-1).values * 2


def two_sorts(x):
    z = x.sort(-1).values
    z = torch.softmax(z, -1) * z
    return z.sort(-1).values * 2


def branches(x):
    y = torch.softmax(x, -1) * x
    if y.sum() > 0:
        y = y * 2
    return torch.softmax(y, -1) * y


def fails(x):
    return x @ x
