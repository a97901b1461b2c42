"""The float64 reference of the attention family."""

from __future__ import annotations

import numpy as np

from neptune_lab.operators.attention_sizes import AttentionSizes, EmptyRows, KeyPlace, MaskMod, ScoreMod
from neptune_lab.operators.calling import call_mod
from neptune_lab.operators.scalar import Scalar

# The most scores that the reference holds at once: 2**22 float64 values, 32 MiB.
_REFERENCE_VALUES = 1 << 22


def reference(
    sizes: AttentionSizes,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float,
    empty_rows: EmptyRows = "nan",
    place: KeyPlace | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`out`, `lse` and `max_scores` in float64, one head and one chunk of rows at a time; the last two are -inf if a
    query sees no key."""
    out, lse, largest = (np.empty(sizes.shapes[name]) for name in ("out", "lse", "max_scores"))
    rows = max(1, _REFERENCE_VALUES // sizes.kv_len)
    for b, h in np.ndindex(sizes.batch, sizes.heads):
        keys, values = (_of_head(sizes, t, b, h // sizes.group, place) for t in (k, v))
        for start in range(0, sizes.q_len, rows):
            stop = min(start + rows, sizes.q_len)
            index = np.ogrid[b : b + 1, h : h + 1, start:stop, 0 : sizes.kv_len]
            score = (q[b, h, start:stop] @ keys.T * scale)[None, None]
            if score_mod is not None:
                score = call_mod("score_mod", score_mod, score, *index)
            if mask_mod is not None:
                score = np.where(call_mod("mask_mod", mask_mod, *index), score, -np.inf)
            score = np.broadcast_to(score, (1, 1, stop - start, sizes.kv_len))[0, 0]
            highest = score.max(axis=1)
            with np.errstate(invalid="ignore"):
                weights = np.exp(score - highest[:, None])
                averages = weights @ values / weights.sum(axis=1, keepdims=True)
                total = highest + np.log(weights.sum(axis=1))
            empty = np.isneginf(highest)
            out[b, h, start:stop] = np.where(empty[:, None], 0.0, averages) if empty_rows == "zero" else averages
            lse[b, h, start:stop] = np.where(empty, -np.inf, total)
            largest[b, h, start:stop] = highest
    return out, lse, largest


def _of_head(sizes: AttentionSizes, tensor: np.ndarray, b: int, head: int, place: KeyPlace | None) -> np.ndarray:
    """The keys or values (kv_len, width) of one head of a sample; those that a cache of pages does not hold are 0."""
    if place is None:
        return tensor[sizes.kv_sample(b), head]
    page, slot, held = (
        np.broadcast_to(part.value, sizes.kv_len)
        for part in place(Scalar(np.full(1, b)), Scalar(np.arange(sizes.kv_len)))
    )
    found = np.zeros((sizes.kv_len, tensor.shape[3]))
    found[held] = tensor[page[held], slot[held], head]
    return found
