"""What a random call has beside q, k, v and mods: packed sequences, pages, block masks, 8 bits, further outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask

import neptune_lab as nl

Sizes: TypeAlias = tuple[int, int, int, int, int, int, int]
Mod: TypeAlias = Callable[..., Any] | None
BLOCK = 16
EIGHTS = ("float8_e4m3fn", "float8_e5m2", "int8")


@dataclass(frozen=True)
class Form:
    """The form of a call.

    Args:
        kind: "", "packed" sequences, "paged" cache, a block mask "made" from the mask_mod, or of random "lists" or
            "full lists" (which list full blocks, too).
        q_parts, kv_parts: lengths of the packed sequences.
        page: keys of a page.
        eights: the dtypes of q, k and v, "" for that of the case; () if none has 8 bits.
        scaled: for 8 bits: "" for no scales, "one" for a number each, "heads" for a tensor each.
        further: "lse" or "aux" if the call returns these.
    """

    kind: str = ""
    q_parts: tuple[int, ...] = ()
    kv_parts: tuple[int, ...] = ()
    page: int = 0
    eights: tuple[str, ...] = ()
    scaled: str = ""
    further: str = ""

    def sizes(self, sizes: Sizes) -> Sizes:
        """The sizes of a call of this form: the sum of the packed lengths, or whole pages."""
        batch, heads, kv_heads, q_len, kv_len, *widths = sizes
        if self.kind == "packed":
            batch, q_len, kv_len = 1, sum(self.q_parts), sum(self.kv_parts)
        if self.kind == "paged":
            q_len = min(q_len, 24)
            kv_len = -(-max(kv_len, q_len) // self.page) * self.page
        return (batch, heads, kv_heads, q_len, kv_len, *widths)  # pyright: ignore[reportReturnType]

    @property
    def hides(self) -> bool:
        """Whether the form hides keys without a mask_mod."""
        return self.kind in ("packed", "paged", "lists", "full lists")

    def fits(self, sizes: Sizes) -> bool:
        """Whether a call of this form can have the sizes."""
        return self.sizes(sizes) == sizes

    def extents(self, batch: int, q_len: int, kv_len: int) -> tuple[int, int]:
        """How many samples and positions of queries mods get."""
        samples = len(self.q_parts) if self.kind == "packed" else batch
        return samples, kv_len if self.kind == "paged" else q_len

    def quantized(self, given: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
        """q, k and v in the dtypes of the call, and their scales; None where there is none."""
        tensors, scales = [], []
        for tensor, name in zip(given, self.eights or ("", "", ""), strict=True):
            if not name:
                tensors.append(tensor)
                scales.append(None)
                continue
            largest = {"int8": 20.0}.get(name, 1.0)
            scale: Any = {"": None, "one": 0.7, "heads": torch.linspace(0.5, 1.5, tensor.shape[1])}[self.scaled]
            values = tensor.float() * largest
            tensors.append((values.round() if name == "int8" else values).to(getattr(torch, name)))
            scales.append(0.05 if name == "int8" and scale is None else scale)
        return tensors, scales

    def call(self, given: list[torch.Tensor], score: Mod, mask: Mod, seed: int, options: Mapping[str, Any]) -> Any:
        """What `nl.attention` or `nl.paged_attention` returns, as a list: the output, lse, max_scores."""
        tensors, scales = self.quantized(given)
        q, k, v = tensors
        own = dict(zip(("q_scale", "k_scale", "v_scale"), (_on(s, q.device) for s in scales), strict=True))
        own = {name: value for name, value in own.items() if value is not None}
        if self.kind == "paged":
            table, lengths, caches = self.pages(k, v, q.shape[2], seed)
            paged = {n: o for n, o in options.items() if n == "scale"} | ({"return_lse": True} if self.further else {})
            found = nl.paged_attention(q, *caches, table, lengths, score_mod=score, mask_mod=mask, **own, **paged)
            return list(found) if self.further else [found]
        if self.kind == "packed":
            own |= {"cu_seqlens_q": _offsets(self.q_parts, q.device), "cu_seqlens_k": _offsets(self.kv_parts, q.device)}
        if self.kind in ("made", "lists", "full lists"):
            own["block_mask"] = self.block_mask(q, k, mask, seed)
            mask = None
        if self.further == "lse":
            return list(nl.attention(q, k, v, score_mod=score, mask_mod=mask, return_lse=True, **own, **options))
        if self.further == "aux":
            both = AuxRequest(lse=True, max_scores=True)
            out, aux = nl.attention(q, k, v, score_mod=score, mask_mod=mask, return_aux=both, **own, **options)
            return [out, aux.lse, aux.max_scores]
        return [nl.attention(q, k, v, score_mod=score, mask_mod=mask, **own, **options)]

    def dense(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """q, k and v as the numbers that the call's tensors stand for."""
        tensors, scales = self.quantized(given)
        if not self.eights:
            return tensors
        wide = (t.float() for t in tensors)
        return [
            t if s is None else t * (s if isinstance(s, float) else s[:, None, None])
            for t, s in zip(wide, scales, strict=True)
        ]

    def mods(self, score: Mod, mask: Mod, sizes: Sizes, seed: int) -> tuple[Mod, Mod]:
        """The mods over the positions of the dense tensors, with what the form hides in the mask."""
        q_len, kv_len = sizes[3:5]
        if self.kind == "packed":
            of_q, of_kv = _places(self.q_parts), _places(self.kv_parts)

            def moved(mod: Any) -> Any:
                return lambda *a: mod(*a[:-4], of_q[0][a[-2]], a[-3], of_q[1][a[-2]], of_kv[1][a[-1]])

            def same(b: Any, h: Any, q: Any, kv: Any) -> Any:
                return of_q[0][q] == of_kv[0][kv]

            return score and moved(score), same if mask is None else _both(same, moved(mask))
        if self.kind == "paged":
            lengths = self.lengths(sizes[0], q_len, kv_len, seed)

            def later(mod: Any) -> Any:
                return lambda *a: mod(*a[:-4], a[-4], a[-3], a[-2] + lengths[a[-4]] - q_len, a[-1])

            def stored(b: Any, h: Any, q: Any, kv: Any) -> Any:
                return kv < lengths[b]

            return score and later(score), stored if mask is None else _both(stored, later(mask))
        if self.kind in ("lists", "full lists"):
            partial, full = self.tables(sizes, seed)

            def listed(b: Any, h: Any, q: Any, kv: Any) -> Any:
                inside = partial[0, 0, q // BLOCK, kv // BLOCK]
                inside = inside if mask is None else inside & mask(b, h, q, kv)
                return inside | full[0, 0, q // BLOCK, kv // BLOCK]

            return score, listed
        return score, mask

    # -- pages ----------------------------------------------------------------------------------------------------

    def lengths(self, batch: int, q_len: int, kv_len: int, seed: int) -> torch.Tensor:
        """Keys of each sequence."""
        return torch.randint(q_len, kv_len + 1, (batch,), generator=torch.Generator().manual_seed(seed + 1))

    def pages(self, k: torch.Tensor, v: torch.Tensor, q_len: int, seed: int) -> tuple[Any, Any, tuple[Any, Any]]:
        """The page table, the lengths and the caches; what is behind a length is NaN."""
        batch, heads, kv_len, _ = k.shape
        generator = torch.Generator().manual_seed(seed + 2)
        each = kv_len // self.page
        table = torch.randperm(batch * each + 2, generator=generator)[: batch * each].view(batch, each)
        lengths = self.lengths(batch, q_len, kv_len, seed)
        beyond = torch.arange(kv_len)[None, :] >= lengths[:, None]
        caches = []
        for x in (k, v):
            x = x.cpu().float() if x.dtype.itemsize == 1 else x.cpu()
            x = x.masked_fill(beyond[:, None, :, None], 3.0 if self.eights else torch.nan).to(
                k.dtype if x is k else x.dtype
            )
            cache = torch.full((batch * each + 2, self.page, heads, x.shape[3]), 3.0).to(x.dtype)
            cache[table.view(-1)] = x.transpose(1, 2).reshape(batch * each, self.page, heads, x.shape[3])
            caches.append(cache.to(k.device))
        return table.int().to(k.device), lengths.int().to(k.device), (caches[0], caches[1])

    # -- blocks ---------------------------------------------------------------------------------------------------

    def tables(self, sizes: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which blocks are partial, and which are full, as (1, 1, rows, columns)."""
        rows, columns = (-(-n // BLOCK) for n in sizes[3:5])
        kind = torch.randint(0, 4, (1, 1, rows, columns), generator=torch.Generator().manual_seed(seed + 3))
        return kind == 1, (kind == 2) if self.kind == "full lists" else torch.zeros_like(kind, dtype=torch.bool)

    def block_mask(self, q: torch.Tensor, k: torch.Tensor, mask: Any, seed: int) -> BlockMask:
        """The block mask of the call."""
        q_len, kv_len = q.shape[2], k.shape[2]
        if self.kind == "made":
            mod = mask or (lambda b, h, q, kv: q >= 0)
            return create_block_mask(mod, q.shape[0], q.shape[1], q_len, kv_len, device=q.device, BLOCK_SIZE=BLOCK)
        partial, full = (t.to(q.device) for t in self.tables((0, 0, 0, q_len, kv_len), seed))
        more = _listed(full) if self.kind == "full lists" else ()
        return BlockMask.from_kv_blocks(
            *_listed(partial),
            *more,
            BLOCK_SIZE=BLOCK,
            mask_mod=mask,
            seq_lengths=(q_len, kv_len),
            compute_q_blocks=False,
        )


PLAIN = Form()


def draw_form(rng: random.Random, sizes: Sizes) -> Form:
    """A form for a call of about these sizes; half of them are plain."""
    further = rng.choice(["", "", "", "lse", "aux"])
    kind = rng.choice([*[""] * 7, "packed", "packed", "paged", "paged", "made", "lists", "full lists"])
    if kind == "packed":
        count = rng.choice([1, 2, 3, 5])
        parts = [tuple(rng.choice([0, 1, 3, 7, 16, 17]) for _ in range(count)) for _ in range(2)]
        q_parts, kv_parts = (p if sum(p) else (5, *p[1:]) for p in parts)
        return Form(kind, q_parts, q_parts if rng.random() < 0.5 else kv_parts, further=further)
    if kind == "paged":
        return Form(kind, page=rng.choice([4, 16]), further="lse" if further else "")
    if not kind and rng.random() < 0.25:
        names = [rng.choice(("", *EIGHTS[:2])), rng.choice(("", *EIGHTS)), rng.choice(("", *EIGHTS))]
        if any(names):
            return Form(eights=tuple(names), scaled=rng.choice(["", "one", "heads"]), further=further)
    return Form(kind, further=further)


def simpler_forms(form: Form) -> Iterator[Form]:
    """Forms with one thing less."""
    if form.further:
        yield replace(form, further="")
    if form.scaled:
        yield replace(form, scaled="")
    for n, name in enumerate(form.eights):
        if name:
            eights = (*form.eights[:n], "", *form.eights[n + 1 :])
            yield replace(form, eights=eights if any(eights) else (), scaled=form.scaled if any(eights) else "")
    if form.kind in ("made", "lists", "full lists"):
        yield replace(form, kind="")


def _on(scale: Any, device: torch.device) -> Any:
    return scale.to(device) if isinstance(scale, torch.Tensor) else scale


def _both(first: Any, second: Any) -> Any:
    return lambda b, h, q, kv: first(b, h, q, kv) & second(b, h, q, kv)


def _offsets(parts: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *accumulate(parts)], dtype=torch.int32, device=device)


def _places(parts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequence of each token, and its position in it."""
    sequence = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts))
    position = torch.cat([torch.arange(n) for n in parts])
    return sequence, position


def _listed(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True)
    return table.sum(-1).int(), order.int()
