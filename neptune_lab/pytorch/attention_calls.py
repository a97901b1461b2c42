"""Calls of `attention` in graphs (`graph_calls`): mods as text, options, and the tensors in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from neptune_lab.hashed import digest_of
from neptune_lab.pytorch.arguments import problem_of
from neptune_lab.pytorch.extras import Extras
from neptune_lab.pytorch.graph_calls import strides_like, with_strides
from neptune_lab.pytorch.graph_mods import GraphMod
from neptune_lab.pytorch.known_calls import launched
from neptune_lab.pytorch.packed import Places
from neptune_lab.pytorch.refusals import refuse_captured, refuse_recording


@dataclass(frozen=True)
class AttentionCall:
    """A call of `attention`.  Its tensors are q, k, v, their scales, those that the mods capture, and the places.

    Args:
        score_mod, mask_mod: over the captured tensors.
        enable_gqa, scale, extras: as for the kernel.
        scales, captured: how many there are.
        packed: "" without `Places`; "alike" if queries and keys have the same places, else "apart".
    """

    score_mod: GraphMod | None
    mask_mod: GraphMod | None
    enable_gqa: bool
    scale: float | None
    extras: Extras
    scales: int
    captured: int
    packed: str

    @cached_property
    def key(self) -> str:
        """A digest of all that the kernel depends on but its tensors."""
        mods = [None if mod is None else mod.key for mod in (self.score_mod, self.mask_mod)]
        counts = self.scales, self.captured, self.packed
        return digest_of(("attention", mods, self.enable_gqa, self.scale, tuple(self.extras), counts))[:24]

    def _parts(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], list[Any], list[Any], Places | None]:
        """q, k and v; the scales; the captured tensors; the places."""
        first, second = 3 + self.scales, 3 + self.scales + self.captured
        places = None
        if self.packed:
            own = tensors[second:]
            places = Places(own[0], own[0], own[1], own[1]) if self.packed == "alike" else Places(*own)
        return list(tensors[:3]), list(tensors[3:first]), list(tensors[first:second]), places

    @cached_property
    def _few(self) -> bool:
        """Whether the call has no other options than those of `known_calls`."""
        return not (self.extras.formats or self.scales or self.packed)

    def _options(self, captured: Sequence[Any]) -> tuple[Any, ...]:
        """The mods and the other arguments of the call."""
        mods = [None if mod is None else mod.bind(captured) for mod in (self.score_mod, self.mask_mod)]
        return (*mods, self.enable_gqa, self.scale, self.extras)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`out`, in the order of q's dimensions in memory, and what `extras` asks for."""
        from neptune_lab.pytorch.flex_attention import _attend

        (q, k, v), scales, captured, places = self._parts(tensors)
        options, found = self._options(captured), None
        if self._few:
            known: tuple[Any, ...] = (q, k, v, *options[:4], *self.extras.known)
            found = launched(*known)
        if found is None:
            every: tuple[Any, ...] = (q, k, v, *options, places, tuple(scales))
            found = _attend(*every)
        out, *rest = found if isinstance(found, tuple | list) else (found,)
        return [with_strides(out, strides_like(out.shape, q)), *rest]

    def fake(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Empty tensors like those that `run` returns.

        Raises:
            LaunchError: the call is refused, whatever the values are.
        """
        (q, k, v), _, captured, _ = self._parts(tensors)
        refuse_recording({f"tensor {n} of a call": tensor for n, tensor in enumerate(tensors)})
        for tensor in captured:
            refuse_captured(tensor, q.device)
        shapes, dtypes = (q.shape, k.shape, v.shape), (q.dtype, k.dtype, v.dtype)
        checked: tuple[Any, ...] = (*shapes, *dtypes, q.device, self.enable_gqa, self.scale, self.extras)
        problem_of(*checked)
        formats = dict(self.extras.formats)
        columns = v.shape[2] if formats.get("v_transposed") else v.shape[3]
        shape = *q.shape[:3], columns
        dtype = getattr(torch, formats["dtype"]) if formats else q.dtype
        out = q.new_empty(0, dtype=dtype).new_empty_strided(shape, strides_like(shape, q))
        rows = self.extras.lse + self.extras.max_scores
        return [out, *(q.new_empty(shape[:3], dtype=torch.float32) for _ in range(rows))]

    def prepare(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        """Compiles the kernel for tensors like these, whose values are not read; q, k and v may be on "meta"."""
        from neptune_lab.pytorch.flex_attention import prepare

        (q, k, v), _, captured, places = self._parts(tensors)
        every: tuple[Any, ...] = (q, k, v, device, *self._options(captured), places)
        prepare(*every)


__all__ = ["AttentionCall"]
