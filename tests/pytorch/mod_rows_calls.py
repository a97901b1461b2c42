"""Whole calls as PyTorch's tests of FlexAttention and of its decoding have them, written anew."""

from __future__ import annotations

import math
from typing import Any

import torch
from attention_reference import DEVICE
from call_table import Tensors, calls
from layouts import LAYOUTS
from mod_rows_masks import causal, window
from mod_rows_scores import HEADS, KEYS, alibi, capped
from mod_table import KV, B, H, Q, Row, whole
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, and_masks, create_block_mask, or_masks

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=DEVICE)
LENGTHS = torch.tensor([KV, 9], device=DEVICE)
DOCUMENT = torch.arange(KV, device=DEVICE) // 7
PADDED = torch.tensor([17, 5], device=DEVICE)


def padded(b, h, q, kv):
    return kv < PADDED[b]


def nothing(b, h, q, kv):
    return q < 0


def sparse_rows(b, h, q, kv):
    return (q >= kv) & (q % 4 != 1)


def laid_out(name: str) -> Any:
    return lambda given: tuple(map(LAYOUTS[name], given))


def converted(*dtypes: torch.dtype) -> Any:
    return lambda given: tuple(t.to(dtype) for t, dtype in zip(given, dtypes, strict=True))


def strided(given: Tensors) -> Tensors:
    """A last dimension with gaps, which is copied."""
    return tuple(t.repeat_interleave(2, -1)[..., ::2] for t in given)


def fused(given: Tensors) -> Tensors:
    """Parts of one projection (batch, length, 3 * heads * width) of queries and keys of one length."""
    batch, heads, length, width = given[0].shape
    together = torch.cat([t.transpose(1, 2).reshape(batch, length, heads * width) for t in given], -1)
    return tuple(t.view(batch, length, heads, width).transpose(1, 2) for t in together.chunk(3, -1))


def shifted_storage(given: Tensors) -> Tensors:
    """Tensors that begin one element after an aligned address."""
    return tuple(torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape) for t in given)


def with_value(tensor: int, value: float, at: tuple[int, ...]) -> Any:
    def changed(given: Tensors) -> Tensors:
        given[tensor][at] = value
        return given

    return changed


def scaled(*factors: float) -> Any:
    return lambda given: tuple(t * f for t, f in zip(given, factors, strict=True))


SHAPES = {
    "no mods": {},
    "one query": {"sizes": (2, 4, 4, 1, 40, 16)},
    "one query, one key": {"sizes": (1, 2, 2, 1, 1, 16)},
    "one key": {"sizes": (2, 2, 2, 17, 1, 16)},
    "two queries of long keys": {"sizes": (1, 2, 2, 2, 300, 16), "mask": window(40)},
    "more keys than queries": {"sizes": (1, 2, 2, 7, 70, 16), "mask": causal},
    "more queries than keys": {"sizes": (1, 2, 2, 70, 7, 16), "mask": causal},
    "lengths of whole tiles": {"sizes": (1, 2, 2, 64, 64, 16), "mask": causal},
    "one beyond a tile": {"sizes": (1, 2, 2, 65, 65, 16), "mask": causal},
    "one before a tile": {"sizes": (1, 2, 2, 63, 63, 16), "mask": causal},
    "prime lengths": {"sizes": (1, 2, 2, 37, 53, 16), "mask": causal, "score": alibi},
    "head_dim 1": {"sizes": (1, 2, 2, 20, 24, 1)},
    "head_dim 3": {"sizes": (1, 2, 2, 20, 24, 3), "mask": causal},
    "head_dim 17": {"sizes": (1, 2, 2, 20, 24, 17)},
    "head_dim 24": {"sizes": (1, 2, 2, 20, 24, 24), "score": alibi},
    "head_dim 40": {"sizes": (1, 2, 2, 20, 24, 40)},
    "head_dim 94": {"sizes": (1, 1, 1, 20, 24, 94)},
    "head_dim 96": {"sizes": (1, 1, 1, 20, 24, 96), "mask": causal},
    "head_dim 121": {"sizes": (1, 1, 1, 20, 24, 121)},
    "head_dim 256": {"sizes": (1, 1, 1, 20, 24, 256)},
    "narrower values": {"v_dim": 4, "mask": causal},
    "wider values": {"v_dim": 33, "score": alibi},
    "values of one column": {"v_dim": 1},
    "192 and 128, as MLA": {"sizes": (1, 2, 2, 8, 20, 192), "v_dim": 128, "mask": causal},
    "576 and 512, as absorbed MLA": {"sizes": (1, 4, 1, 1, 20, 576), "v_dim": 512},
    "groups of 2": {"sizes": (2, 4, 2, 20, 24, 16), "score": alibi, "mask": causal},
    "groups of 3": {"sizes": (1, 6, 2, 20, 24, 16), "mask": causal},
    "groups of 7": {"sizes": (1, 7, 1, 20, 24, 8), "score": lambda s, b, h, q, kv: s + h * 0.1 * (kv - q)},
    "one key head for all": {"sizes": (2, 4, 1, 20, 24, 16), "score": alibi},
    "groups, one query": {"sizes": (2, 8, 2, 1, 70, 16), "score": lambda s, b, h, q, kv: s * (h + 1) * 0.2},
    "groups, 5 queries": {"sizes": (1, 8, 2, 5, 70, 16), "mask": lambda b, h, q, kv: q + 65 >= kv},
    "one batch of keys": {"kv_batch": 1, "mask": causal},
    "one batch of keys, by sample": {"kv_batch": 1, "mask": lambda b, h, q, kv: kv < LENGTHS[b]},
    "one batch of keys, groups": {"kv_batch": 1, "sizes": (3, 4, 2, 20, 24, 16)},
    "one batch of keys, one query": {"kv_batch": 1, "sizes": (3, 4, 2, 1, 50, 16), "further": "lse"},
    "0 queries": {"sizes": (1, 2, 2, 0, 24, 8)},
    "scale": {"scale": 0.3, "score": alibi},
    "scale 1": {"scale": 1.0, "mask": causal},
    "a negative scale": {"scale": -0.5, "mask": causal},
    "scale 0": {"scale": 0.0, "mask": causal},
    "scale and cap": {"scale": 0.7, "score": capped(3.0)},
}
DTYPES = {
    "float16": {"dtype": torch.float16, "mask": causal},
    "bfloat16": {"dtype": torch.bfloat16, "mask": causal},
    "float16, lse": {"dtype": torch.float16, "mask": window(3), "further": "lse"},
    "bfloat16, aux": {"dtype": torch.bfloat16, "score": alibi, "further": "aux"},
    "float16, one query": {"dtype": torch.float16, "sizes": (1, 4, 2, 1, 90, 16), "score": alibi},
    "bfloat16, groups": {"dtype": torch.bfloat16, "sizes": (1, 4, 2, 20, 24, 16), "mask": causal},
    "q of float16": {"prepared": converted(torch.float16, torch.float32, torch.float32), "close": 3e-3},
    "q of bfloat16": {"prepared": converted(torch.bfloat16, torch.float16, torch.float16), "close": 2e-2},
    "k of bfloat16": {"prepared": converted(torch.float32, torch.bfloat16, torch.float32)},
    "v of float16": {"prepared": converted(torch.float32, torch.float32, torch.float16), "mask": causal},
    "float64": {"prepared": converted(*[torch.float64] * 3), "refused": "float64"},
    "k of float64": {
        "prepared": converted(torch.float32, torch.float64, torch.float32),
        "refused": "float64",
        "theirs": True,
    },
}
STRIDES = {
    **{name: {"prepared": laid_out(name), "mask": causal} for name in LAYOUTS},
    **{f"{name}, groups": {"prepared": laid_out(name), "sizes": (2, 4, 2, 20, 24, 16)} for name in LAYOUTS},
    "packed, one query": {"prepared": laid_out("packed"), "sizes": (2, 4, 2, 1, 40, 16)},
    "cached, one query": {"prepared": laid_out("cached"), "sizes": (2, 4, 2, 1, 40, 16), "score": alibi},
    "a strided last dimension": {"prepared": strided, "score": alibi},
    "parts of one projection": {"prepared": fused, "sizes": (2, 4, 4, 20, 20, 8), "mask": causal},
    "an unaligned start": {"prepared": shifted_storage, "mask": causal},
    "q alone transposed": {"prepared": lambda t: (LAYOUTS["transposed"](t[0]), t[1], t[2]), "score": alibi},
    "k and v one tensor": {"prepared": lambda t: (t[0], t[1], t[1]), "mask": causal},
    "all one tensor": {"prepared": lambda t: (t[0], t[0], t[0]), "sizes": (2, 4, 4, 20, 20, 8), "mask": causal},
    "v a part of k, as MLA": {"prepared": lambda t: (t[0], t[1], t[1][..., :5]), "v_dim": 8, "mask": causal},
}


def lse_of(**more: Any) -> dict[str, Any]:
    return {"further": "lse", **more}


FURTHER = {
    "lse": lse_of(),
    "lse, causal": lse_of(mask=causal),
    "lse, empty rows": lse_of(mask=sparse_rows),
    "lse, no key at all": lse_of(mask=nothing),
    "lse, one query": lse_of(sizes=(2, 4, 2, 1, 200, 16), score=alibi),
    "lse, large scores": lse_of(score=lambda s, b, h, q, kv: s * 1000),
    "lse, small scores": lse_of(score=lambda s, b, h, q, kv: s * 1e-20),
    "lse, cap": lse_of(score=capped(2.0), mask=causal),
    "aux": {"further": "aux"},
    "aux, empty rows": {"further": "aux", "mask": sparse_rows},
    "aux, score": {"further": "aux", "score": alibi, "mask": window(4)},
    "aux, groups": {"further": "aux", "sizes": (1, 4, 2, 20, 24, 16), "mask": causal},
    "aux, one query": {"further": "aux", "sizes": (1, 4, 2, 1, 150, 16)},
    "aux of nothing": {"options": lambda: {"return_aux": None}},
    "lse False": {"options": lambda: {"return_lse": False}, "mask": causal},
    "lse and aux": {
        "options": lambda: {"return_lse": True, "return_aux": AuxRequest(lse=True)},
        "refused": "got return_lse and return_aux",
        "theirs": True,
    },
}


def block_mask(mod: Any, batch: int | None = None, heads: int | None = None, size: Any = 8) -> Any:
    return lambda: {"block_mask": create_block_mask(mod, batch, heads, Q, KV, device=DEVICE, BLOCK_SIZE=size)}


BLOCKS = whole(1, 1, 3, 3, high=2, seed=30).bool()
FULL = whole(1, 1, 3, 3, high=2, seed=31).bool() & ~BLOCKS


def listed(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True)
    return table.sum(-1).int(), order.int()


def by_hand(full: bool, mod: Any = None) -> Any:
    """Lists of blocks of 8 that no mask_mod made."""
    return lambda: {
        "block_mask": BlockMask.from_kv_blocks(
            *listed(BLOCKS), *(listed(FULL) if full else ()), BLOCK_SIZE=8, mask_mod=mod, seq_lengths=(Q, KV),
            compute_q_blocks=False,
        )
    }  # fmt: skip


def in_lists(full: bool, mod: Any = None) -> Any:
    def mask(b, h, q, kv):
        partial = BLOCKS[0, 0, q // 8, kv // 8]
        partial = partial if mod is None else partial & mod(b, h, q, kv)
        return partial | FULL[0, 0, q // 8, kv // 8] if full else partial

    return mask


def combined(mods: Any) -> dict[str, Any]:
    return {"options": block_mask(mods), "lists": mods}


MASKS = {
    "block mask, causal": {"options": block_mask(causal), "lists": causal},
    "block mask, window": {"options": block_mask(window(5)), "lists": window(5)},
    "block mask by batch": {"options": block_mask(padded, B), "lists": padded},
    "block mask by head": {"options": block_mask(m := lambda b, h, q, kv: q + 3 * h >= kv, None, H), "lists": m},
    "block mask of both": {
        "options": block_mask(m := lambda b, h, q, kv: (q + 3 * h >= kv) & (kv < PADDED[b]), B, H),
        "lists": m,
    },
    "block mask of nothing": {"options": block_mask(nothing), "lists": nothing},
    "block mask with empty rows": {"options": block_mask(sparse_rows), "lists": sparse_rows, "further": "lse"},
    "block mask of documents": {
        "options": block_mask(m := lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv]),
        "lists": m,
        "score": alibi,
    },
    "block mask and score": {"options": block_mask(causal), "lists": causal, "score": alibi, "further": "aux"},
    "blocks of two sizes": {"options": block_mask(causal, size=(4, 8)), "lists": causal},
    "one block": {"options": block_mask(causal, size=128), "lists": causal},
    "and_masks": {"options": block_mask(m := and_masks(causal, padded), B), "lists": m},
    "or_masks": combined(or_masks(window(2), lambda b, h, q, kv: kv < 4)),
    "lists by hand": {"options": by_hand(False), "lists": in_lists(False)},
    "lists by hand, full blocks": {"options": by_hand(True), "lists": in_lists(True)},
    "lists by hand, mask": {"options": by_hand(False, causal), "lists": in_lists(False, causal)},
    "lists by hand, mask, full blocks": {"options": by_hand(True, causal), "lists": in_lists(True, causal)},
    "lists by hand, score, lse": {"options": by_hand(True), "lists": in_lists(True), "score": alibi, "further": "lse"},
    "block mask of other lengths": {
        "options": lambda: {"block_mask": create_block_mask(causal, None, None, 64, 64, device=DEVICE)},
        "refused": r"for q_len and kv_len \(64, 64\)",
        "theirs": True,
    },
    "block mask, groups": {
        "options": block_mask(causal),
        "lists": causal,
        "sizes": (2, 4, 2, Q, KV, 16),
    },
}
OPTIONS = {
    "their options": {"options": lambda: {"kernel_options": {"BLOCK_M": 32, "num_stages": 1}}, "mask": causal},
    "force them": {"options": lambda: {"kernel_options": {"FORCE_USE_FLEX_ATTENTION": True}}, "mask": causal},
    "their precision": {"options": lambda: {"kernel_options": {"PRESCALE_QK": True, "ROWS_GUARANTEED_SAFE": True}}},
    "tiles": {"options": lambda: {"kernel_options": {"block_q": 16, "block_kv": 16}}, "mask": causal},
    "warps": {"options": lambda: {"kernel_options": {"num_warps": 2}}, "score": alibi},
    "splits": {
        "options": lambda: {"kernel_options": {"template": "split_k_update", "splits": 2}},
        "sizes": (1, 4, 2, 1, 70, 16),
        "further": "lse",
    },
    "dynamic": {"options": lambda: {"dynamic": True}, "mask": causal},
    "an unknown option": {"options": lambda: {"kernel_options": {"blok_q": 3}}, "refused": "blok_q"},
}  # fmt: skip
CU = torch.tensor([0, 5, 5, 13, 20], dtype=torch.int32, device=DEVICE)
CU_K = torch.tensor([0, 9, 11, 12, 24], dtype=torch.int32, device=DEVICE)
ONE = {"sizes": (1, 4, 2, 20, 20, 8), "offsets": (CU, CU)}
TWO = {"sizes": (1, 4, 2, 20, 24, 8), "offsets": (CU, CU_K)}
PACKED = {
    "packed": ONE,
    "packed, causal": {**ONE, "mask": causal},
    "packed, window": {**ONE, "mask": window(2)},
    "packed, score": {**ONE, "score": lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q)},
    "packed, by sequence": {**ONE, "score": lambda s, b, h, q, kv: s * (b + 1) * 0.3, "mask": causal},
    "packed, keys of other lengths": TWO,
    "packed, keys of other lengths, causal": {**TWO, "mask": causal},
    "packed, the last query sees the last key": {
        **TWO,
        "mask": lambda b, h, q, kv: q + (CU_K[b + 1] - CU_K[b]) - (CU[b + 1] - CU[b]) >= kv,
    },
    "packed, lse": {**TWO, "further": "lse"},
    "packed, aux, causal": {**ONE, "mask": causal, "further": "aux"},
    "packed, float16": {**ONE, "dtype": torch.float16, "mask": causal},
    "packed, one sequence": {"sizes": (1, 2, 2, 20, 20, 8), "offsets": (CU[[0, 4]], CU[[0, 4]]), "mask": causal},
}
SPECIAL = {
    "NaN in q": {"prepared": with_value(0, math.nan, (0, 1, 3, 2)), "mask": causal},
    "NaN in a key": {"prepared": with_value(1, math.nan, (0, 1, 3, 2)), "score": alibi},
    "NaN in a masked key": {"prepared": with_value(1, math.nan, (0, 1, 23, 2)), "mask": causal},
    "inf in q": {"prepared": with_value(0, math.inf, (0, 1, 3, 2)), "sizes": (1, 2, 2, 5, 24, 8)},
    "NaN in v": {"prepared": with_value(2, math.nan, (0, 1, 3, 2))},
    "inf in v": {"prepared": with_value(2, math.inf, (0, 1, 3, 2))},
    "large scores": {"prepared": scaled(300.0, 300.0, 1.0), "mask": causal, "close": 2e-2},
    "small scores": {"prepared": scaled(1e-12, 1e-12, 1.0), "mask": causal},
    "large values": {"prepared": scaled(1.0, 1.0, 1e4), "mask": causal, "close": 1e-3},
    "-inf scores in whole rows": {"score": lambda s, b, h, q, kv: torch.where(q % 3 == 0, -torch.inf, s)},
    "NaN from the mod": {"score": lambda s, b, h, q, kv: torch.where(q == 4, s / (kv - kv) * 0, s)},
    "a score of inf": {"score": lambda s, b, h, q, kv: torch.where((q == 4) & (kv == 2), torch.inf, s)},
    "finfo.min instead of -inf": {
        "score": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.finfo(torch.float32).min),
        "further": "lse",
    },
    "NaN in a bias": {"score": lambda s, b, h, q, kv: s + torch.where(kv == 3, math.nan, KEYS[kv]), "mask": causal},
    "rows of one key": {"mask": lambda b, h, q, kv: kv == q % 5, "further": "aux"},
    "half of the heads see nothing": {"mask": lambda b, h, q, kv: (h % 2 == 0) & (q >= kv), "further": "lse"},
    "half of the batch sees nothing": {"mask": lambda b, h, q, kv: (b == 0) & (kv < 7)},
    "equal scores": {"score": lambda s, b, h, q, kv: s * 0.0, "mask": causal, "further": "aux"},
    "one score much larger": {"score": lambda s, b, h, q, kv: s + (kv == 5) * 200.0, "further": "lse"},
    "bias of heads that are 0": {"score": lambda s, b, h, q, kv: s * (HEADS[h] * 0)},
}

ROWS: dict[str, Row] = {
    **calls(SHAPES),
    **calls(DTYPES),
    **calls(STRIDES),
    **calls(FURTHER),
    **calls(MASKS),
    **calls(OPTIONS),
    **calls(PACKED),
    **calls(SPECIAL),
}
