"""Rows of whole calls: layouts, dtypes, block masks, packed sequences and further outputs, beside float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from attention_reference import DEVICE
from mod_table import SIZES, Mod, Row, mapped
from torch.nn.attention.flex_attention import AuxRequest

import neptune_lab as nl

Tensors = tuple[torch.Tensor, ...]
FURTHER = {"lse": {"return_lse": True}, "aux": {"return_aux": AuxRequest(lse=True, max_scores=True)}}


@dataclass(frozen=True)
class Call(Row):
    """One call of `nl.attention`, with more arguments than mods.

    Args:
        prepared: makes q, k and v, of `sizes` and `dtype`, the call's tensors: other dtypes, strides, special values.
        v_dim: width of v; 0: that of q and k.
        kv_batch: samples of k and v; 0: those of q.
        options: further arguments of the call, made when it is called.
        lists: what the options hide beyond `mask`, as a mask_mod; None: nothing.
        offsets: cu_seqlens of q and of k, if sequences are packed.
        further: "lse" or "aux" if the call returns these.
    """

    prepared: Callable[[Tensors], Tensors] = lambda given: given
    v_dim: int = 0
    kv_batch: int = 0
    scale: float | None = None
    options: Callable[[], Mapping[str, Any]] = dict
    lists: Mod | None = None
    offsets: tuple[torch.Tensor, torch.Tensor] | None = None
    further: str = ""
    close: float = field(default=0.0)

    def tensors(self) -> list[torch.Tensor]:
        """q, k and v as the call gets them."""
        batch, heads, kv_heads, q_len, kv_len, head_dim = self.sizes
        generator = torch.Generator().manual_seed(0)
        kv_batch, v_dim = self.kv_batch or batch, self.v_dim or head_dim
        shapes = (batch, heads, q_len, head_dim), (kv_batch, kv_heads, kv_len, head_dim), (kv_batch, kv_heads, kv_len)
        q, k = (torch.randn(shape, generator=generator).to(DEVICE, self.dtype) for shape in shapes[:2])
        v = torch.randn((*shapes[2], v_dim), generator=generator).to(DEVICE, self.dtype)
        return list(self.prepared((q, k, v)))

    def outputs(self) -> list[torch.Tensor]:
        """What the call returns, in one list."""
        q, k, v = self.tensors()
        options = {**self.options(), **FURTHER.get(self.further, {})}
        if self.offsets is not None:
            options |= {"cu_seqlens_q": self.offsets[0], "cu_seqlens_k": self.offsets[1]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = nl.attention(  # pyright: ignore[reportCallIssue]
                q, k, v, score_mod=self.score, mask_mod=self.mask, scale=self.scale,
                enable_gqa=q.shape[1] != k.shape[1], **options,
            )  # fmt: skip
        if self.further == "lse":
            return list(found)
        return [found[0], found[1].lse, found[1].max_scores] if self.further == "aux" else [found]

    def found(self) -> torch.Tensor:
        """The output."""
        return self.outputs()[0]

    def wanted(self) -> list[torch.Tensor]:
        """The output, the log-sum-exp and the largest scores, in float64."""
        q, k, v = (t.double() for t in self.tensors())
        group = q.shape[1] // k.shape[1]
        k, v = (t.expand(q.shape[0], -1, -1, -1).repeat_interleave(group, 1) for t in (k, v))
        positions = [torch.arange(n, device=DEVICE) for n in (*q.shape[:3], k.shape[2])]
        score = q @ k.mT * (q.shape[3] ** -0.5 if self.scale is None else self.scale)
        score_mod, masks = self._mods()
        if score_mod is not None:
            score = mapped(score_mod, (0,))(score, *positions).double().expand(score.shape)
        for mask in masks:
            score = score.masked_fill(~mapped(mask, ())(*positions).expand(score.shape), -torch.inf)
        weights = torch.where((score == -torch.inf).all(-1, keepdim=True), 0.0, score.softmax(-1))
        return [weights @ v, score.logsumexp(-1), score.amax(-1)]

    def _mods(self) -> tuple[Mod | None, list[Mod]]:
        """The mods over the positions of the tensors."""
        masks = [mask for mask in (self.mask, self.lists) if mask is not None]
        if self.offsets is None:
            return self.score, masks
        place_q, place_k = map(_places, self.offsets)

        def moved(mod: Mod) -> Mod:
            def inner(*args: Any) -> Any:
                *score, _, h, q, kv = args
                return mod(*score, place_q[0][q], h, place_q[1][q], place_k[1][kv])

            return inner

        same = [lambda b, h, q, kv: place_q[0][q] == place_k[0][kv]]
        return None if self.score is None else moved(self.score), same + [moved(mask) for mask in masks]

    def expected(self) -> torch.Tensor:
        """The output, in float64."""
        return self.wanted()[0]

    def error(self) -> float:
        """The largest distance of an output to its definition, relative to numbers above 1; infinite if NaN or an
        infinity is elsewhere, or if the dtype is another."""
        outputs = self.outputs()
        largest = 0.0
        for found, wanted in zip(outputs, self.wanted(), strict=False):
            if found.shape != wanted.shape or not torch.equal(found.isnan(), wanted.isnan()):
                return torch.inf
            infinite = wanted.isinf()
            if not torch.equal(found[infinite].double(), wanted[infinite]):
                return torch.inf
            distance = ((found.double() - wanted).abs() / wanted.abs().clamp(min=1))[wanted.isfinite()]
            largest = max(largest, distance.max().item() if distance.numel() else 0.0)
        return largest

    @property
    def tolerance(self) -> float:
        """The largest error that rounding explains."""
        return self.close or super().tolerance


def _places(offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequence of each token, and its position in it."""
    lengths = offsets.diff().long()
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=DEVICE), lengths)
    return sequence, torch.arange(len(sequence), device=DEVICE) - offsets.long()[sequence]


def calls(table: Mapping[str, Mapping[str, Any]], **options: Any) -> dict[str, Row]:
    """Rows by the arguments of `Call`."""
    return {name: Call(**{**options, **row}) for name, row in table.items()}


__all__ = ["SIZES", "Call", "calls"]
