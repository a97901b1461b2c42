"""Caches of pages: where the keys of each sequence are, and the mods that leave out what is behind its end.

A cache holds keys (pages, page_size, kv_heads, head_dim).  Row b of the page table lists the pages of sequence b in
order, and lengths[b] says how many of its keys count:

    key[b, h, j, d] = k_cache[page_table[b, j // page_size], j % page_size, h // group, d]   for j < lengths[b]

The queries of a sequence are its last ones, so query i is at position lengths[b] - q_len + i of the sequence; mods get
this position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neptune_lab.operators.attention_sizes import KeyPlace, MaskMod, ScoreMod


def paged_mods(
    score_mod: ScoreMod | None, mask_mod: MaskMod | None, page_table: Any, lengths: Any, page_size: int, q_len: int
) -> tuple[ScoreMod | None, MaskMod, KeyPlace]:
    """The mods of attention over a cache of pages, and where its keys are.

    Args:
        score_mod, mask_mod: the user's, which get positions in the sequence.
        page_table: integers (batch, pages of the longest sequence); entries for keys that do not count are not read.
        lengths: integers (batch,).
        page_size: keys of a page.
        q_len: queries of each sequence.

    Returns:
        The score mod, the mask mod, and the place of a key.
    """

    def paged_score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        assert score_mod is not None
        return score_mod(score, b, h, q + (lengths[b] - q_len), kv)

    def paged_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        held = kv < lengths[b]
        return held if mask_mod is None else held & mask_mod(b, h, q + (lengths[b] - q_len), kv)

    def key_place(b: Any, kv: Any) -> tuple[Any, Any, Any]:
        return page_table[b, kv // page_size], kv % page_size, kv < lengths[b]

    own: Callable[..., Any] | None = None if score_mod is None else paged_score
    return own, paged_mask, key_place


__all__ = ["paged_mods"]
