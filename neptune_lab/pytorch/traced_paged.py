"""`paged_attention` inside torch.compile: a node of `graph_calls`, which runs a call as outside of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._dynamo.comptime import comptime

from neptune_lab.errors import NeptuneError
from neptune_lab.hashed import digest_of
from neptune_lab.pytorch.captured_mods import POSITIONS, SCORE, Captured, leave, traced_mod
from neptune_lab.pytorch.dynamo import UNTRACEABLE, Tracing
from neptune_lab.pytorch.graph_calls import add_call
from neptune_lab.pytorch.graph_mods import GraphMod
from neptune_lab.pytorch.refusals import captured_by_name, refuse_captured, refuse_gradients

_SCALES = ("q_scale", "k_scale", "v_scale")


def traced_paged(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    page_table: Any,
    lengths: Any,
    score_mod: Any,
    mask_mod: Any,
    scale: float | None,
    return_lse: bool,
    kernel_options: Any,
    scales: tuple[Any, Any, Any],
) -> Any:
    """`paged_attention`, whose arguments these are, as Dynamo runs it."""
    first: list[Any] = [q, k_cache, v_cache, page_table, lengths]
    own = [one for one in scales if isinstance(one, torch.Tensor)]
    more = scale, return_lse, kernel_options
    found, outside = _node(first, own, score_mod, mask_mod, *more, *scales)
    if outside:
        return _outside_graphs(*first, score_mod, mask_mod, scale, return_lse, kernel_options, scales)
    return found[0] if len(found) == 1 else tuple(found)


def _node(
    first: list[torch.Tensor],
    own: list[torch.Tensor],
    score_mod: Any,
    mask_mod: Any,
    scale: Any,
    return_lse: Any,
    kernel_options: Any,
    q_scale: Any,
    k_scale: Any,
    v_scale: Any,
) -> tuple[Any, bool]:
    """The outputs of a node of `graph_calls`, and whether the call leaves the graph instead.  `_add` reads the
    parameters, and sets `found` or `outside`."""
    found: Any = None
    outside = False
    comptime(_add)
    return found, outside


def _eagerly(*arguments: Any) -> Any:
    from neptune_lab.pytorch.paged import paged

    return paged(*arguments)


_outside_graphs: Any = torch.compiler.disable(_eagerly, reason="a mod")  # pyright: ignore[reportCallIssue]


def _add(context: Any) -> None:
    """Adds the call to the graph, for `_node`."""
    tracing = Tracing(context)
    device = tracing.fakes("first")[0].device
    try:
        score = traced_mod(tracing, "score_mod", SCORE, device)
        mask = traced_mod(tracing, "mask_mod", POSITIONS, device)
        captured = Captured.of(score, mask)
        call = PagedCall(
            captured.mod(score, SCORE),
            captured.mod(mask, POSITIONS),
            tracing.number("scale"),
            tracing.value("return_lse"),
            tracing.value("kernel_options"),
            tuple(_TENSOR if tracing.is_tensor(name) else tracing.number(name) for name in _SCALES),
        )
    except (*UNTRACEABLE, NeptuneError) as error:
        return leave(tracing, error)
    tensors = *tracing.proxies("first"), *tracing.proxies("own"), *captured.tensors(tracing, device)
    add_call(tracing, "found", tensors, call)


_TENSOR = ...  # stands for a scale that is a tensor


@dataclass(frozen=True)
class PagedCall:
    """A call of `paged_attention`.  Its tensors are q, the caches, the page table, the lengths, the scales that are
    tensors, and those that the mods capture.

    Args:
        score_mod, mask_mod: over the captured tensors.
        scale, return_lse, kernel_options: as for `paged_attention`.
        scales: of q, k and v: a number, None, or `_TENSOR`.
    """

    score_mod: GraphMod | None
    mask_mod: GraphMod | None
    scale: float | None
    return_lse: bool
    kernel_options: Any
    scales: tuple[Any, ...]

    @cached_property
    def key(self) -> str:
        mods = [None if mod is None else mod.key for mod in (self.score_mod, self.mask_mod)]
        return digest_of(("paged", mods, self.scale, self.return_lse, self.kernel_options, self.scales))[:24]

    def _parts(self, tensors: Sequence[torch.Tensor]) -> tuple[Sequence[Any], tuple[Any, ...], Sequence[Any]]:
        """q, the caches, the page table and the lengths; the scales; the captured tensors."""
        rest = iter(tensors[5:])
        scales = tuple(next(rest) if one is _TENSOR else one for one in self.scales)
        return tensors[:5], scales, list(rest)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from neptune_lab.pytorch.paged import paged

        first, scales, captured = self._parts(tensors)
        mods = [None if mod is None else mod.bind(captured) for mod in (self.score_mod, self.mask_mod)]
        arguments: tuple[Any, ...] = (*first, *mods, self.scale, self.return_lse, self.kernel_options, scales)
        found = paged(*arguments)
        return list(found) if isinstance(found, tuple | list) else [found]

    def fake(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from neptune_lab.pytorch.paged import check_paged

        (q, k_cache, v_cache, page_table, lengths), scales, captured = self._parts(tensors)
        check_paged(q, k_cache, v_cache, page_table, lengths, self.scale)
        scored = [captured[n] for n in self.score_mod.captured] if self.score_mod else []
        refuse_gradients(captured_by_name([*scored, *scales]))
        for tensor in captured:
            refuse_captured(tensor, q.device)
        dtype = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
        out = q.new_empty((*q.shape[:3], v_cache.shape[3]), dtype=dtype)
        return [out, q.new_empty(q.shape[:3], dtype=torch.float32)] if self.return_lse else [out]


__all__ = ["PagedCall", "traced_paged"]
