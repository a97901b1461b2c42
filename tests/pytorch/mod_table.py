"""Rows of the table of mods: what a row holds, how it is called, and the float64 definition beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from attention_reference import DEVICE, tensors

import neptune_lab as nl
from neptune_lab.errors import NeptuneError

# batch, heads, key heads, queries, keys, head_dim: lengths that no tile divides.
SIZES = (2, 4, 4, 20, 24, 8)
B, H, _, Q, KV, D = SIZES
Mod = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """One call of `nl.attention`.

    Args:
        score, mask: the mods; None: left out.
        sizes: batch, heads, key heads, queries, keys, head_dim.
        dtype: of q, k and v.
        refused: "" if the row is right; else what the error says: the cause.
        theirs: whether FlexAttention refuses the call, too.
    """

    score: Mod | None = None
    mask: Mod | None = None
    sizes: tuple[int, int, int, int, int, int] = SIZES
    dtype: torch.dtype = torch.float32
    refused: str = ""
    theirs: bool = False

    def tensors(self) -> list[torch.Tensor]:
        """q, k and v."""
        batch, heads, kv_heads, q_len, kv_len, head_dim = self.sizes
        return tensors((batch, heads, q_len, head_dim), (batch, kv_heads, kv_len, head_dim), self.dtype)

    def found(self) -> torch.Tensor:
        """What the kernel computes."""
        grouped = self.sizes[1] != self.sizes[2]
        return nl.attention(*self.tensors(), score_mod=self.score, mask_mod=self.mask, enable_gqa=grouped)

    def expected(self) -> torch.Tensor:
        """The definition in float64, with the mods mapped over the positions as FlexAttention maps them."""
        q, k, v = (t.double() for t in self.tensors())
        k, v = (t.repeat_interleave(self.sizes[1] // self.sizes[2], 1) for t in (k, v))
        positions = [torch.arange(n, device=DEVICE) for n in (*q.shape[:3], k.shape[2])]
        score = q @ k.mT * q.shape[3] ** -0.5
        if self.score is not None:
            score = mapped(self.score, (0,))(score, *positions)
        if self.mask is not None:
            allowed = mapped(self.mask, ())(*positions).expand(score.shape)
            score = score.masked_fill(~allowed, -torch.inf)
        weights = score.double().softmax(-1)
        weights = torch.where((score == -torch.inf).all(-1, keepdim=True), 0.0, weights)
        return weights @ v

    def error(self) -> float:
        """The largest distance to the definition; infinite if NaN is elsewhere."""
        found, expected = self.found().double(), self.expected()
        if not torch.equal(found.isnan(), expected.isnan()):
            return torch.inf
        return (found - expected).nan_to_num().abs().max().item()

    def judged(self) -> str:
        """ "right", "wrong", "refused" by an error of ours that names a way around, or "unclear" by any other."""
        try:
            return "right" if self.error() < self.tolerance else "wrong"
        except NeptuneError as error:
            return "refused" if error.help else "unclear"
        except Exception:  # noqa: BLE001  # any other error tells a user nothing
            return "unclear"

    @property
    def tolerance(self) -> float:
        """The largest error that rounding explains; values are about 1."""
        return {torch.float32: 2e-5, torch.float16: 3e-3}.get(self.dtype, 2e-2)


def mapped(mod: Mod, scores: tuple[int, ...]) -> Mod:
    """The mod over all positions; `scores` is (0,) if it takes a score first, else ()."""
    first = scores or ()
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mod = torch.vmap(mod, in_dims=(*first, *axes), out_dims=0)
    return mod


def masks(table: Mapping[str, Mod], **options: Any) -> dict[str, Row]:
    """Rows of mask_mods."""
    return {name: Row(mask=mod, **options) for name, mod in table.items()}


def scores(table: Mapping[str, Mod], **options: Any) -> dict[str, Row]:
    """Rows of score_mods."""
    return {name: Row(score=mod, **options) for name, mod in table.items()}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A normal tensor on the device, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def whole(*shape: int, low: int = 0, high: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers from `low` to below `high`, always the same."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
