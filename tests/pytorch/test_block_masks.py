"""`nl.attention(block_mask=...)`: the mask_mod, and lists of blocks that say something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_reference import DEVICE, causal, flex, reference, tensors
from by_turns import in_turn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import block_masks, flex_attention

Q, KV, BLOCK = 40, 56, 16
DOCUMENT = torch.arange(KV, device=DEVICE) // 9
PADDING = torch.tensor([40, 21], device=DEVICE)


def made(mask_mod: Any, batch: Any = None, heads: Any = None, block: Any = BLOCK) -> BlockMask:
    return create_block_mask(mask_mod, batch, heads, Q, KV, device=DEVICE, BLOCK_SIZE=block)


def lists(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and indices of a table (batch, heads, rows, columns); what is not listed is junk."""
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True)
    counts = table.sum(-1)
    junk = torch.arange(table.shape[-1], device=table.device) >= counts[..., None]
    return counts.int(), torch.where(junk, 77, order).int()


def handmade(partial: torch.Tensor, full: torch.Tensor | None = None, mask_mod: Any = None) -> BlockMask:
    more = () if full is None else lists(full)
    return BlockMask.from_kv_blocks(
        *lists(partial), *more, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(Q, KV), compute_q_blocks=False
    )


def spread(table: torch.Tensor) -> torch.Tensor:
    """A table of blocks as one of positions."""
    return table.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)[..., :Q, :KV]


def dense(mask: torch.Tensor) -> Any:
    """A mask_mod that reads a mask of positions (1 or batch, 1 or heads, q, kv)."""
    mask = mask.expand(2, 4, -1, -1)
    return lambda b, h, q, kv: mask[b, h, q, kv]


def check(found: torch.Tensor, q: Any, k: Any, v: Any, mask_mod: Any) -> None:
    expected = reference(q, k, v, None, mask_mod).nan_to_num(0.0)
    assert (found - expected).abs().max() < 1e-5


@pytest.fixture
def qkv() -> list[Any]:
    return tensors((2, 4, Q, 16), (2, 2, KV, 16))


MASKS = {
    "causal": (causal, None, None),
    "documents": (lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv], None, None),
    "padding": (lambda b, h, q, kv: kv < PADDING[b], 2, None),
    "by head": (lambda b, h, q, kv: q + 12 * h >= kv, None, 4),
    "of both": (lambda b, h, q, kv: q + 12 * h >= kv + b, 2, 4),
    "everything": (lambda b, h, q, kv: q >= 0, None, None),
    "nothing": (lambda b, h, q, kv: q < 0, None, None),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_torchs(name, qkv):
    mask_mod, batch, heads = MASKS[name]
    found = nl.attention(*qkv, block_mask=made(mask_mod, batch, heads), enable_gqa=True)
    check(found, *qkv, mask_mod)
    assert (found - flex(*qkv, None, mask_mod)).abs().max() < 1e-5


@pytest.mark.nightly
@pytest.mark.usefixtures("compilations")
def test_lists_that_agree_cost_no_kernel_of_their_own(qkv, monkeypatch):
    evaluated = []
    before = block_masks._agree
    monkeypatch.setattr(block_masks, "_agree", lambda *given: evaluated.append(1) or before(*given))
    mask = made(causal)
    for block_mask in (mask, mask, made(causal, 2, 4), made(causal, block=(8, 32))):
        nl.attention(*qkv, block_mask=block_mask, enable_gqa=True)
    nl.attention(*qkv, mask_mod=causal, enable_gqa=True)
    assert (len(flex_attention._kernels), len(evaluated)) == (1, 3)


@pytest.mark.nightly
def test_new_values_of_captured_tensors_are_compared_again(qkv):
    """As in FlexAttention's kernels, lists made before stay as they were."""
    offset = torch.tensor(0, device=DEVICE)

    def shifted(b, h, q, kv):
        return q + offset >= kv

    mask = made(shifted)
    listed = spread(mask.to_dense().bool())
    check(nl.attention(*qkv, block_mask=mask, enable_gqa=True), *qkv, shifted)
    for value in (-3, 30, 0):
        offset.fill_(value)
        positions = torch.arange(Q, device=DEVICE)[:, None] + value >= torch.arange(KV, device=DEVICE)
        full, _ = tables(made(causal))
        visible = spread(full) | (listed & positions)
        check(nl.attention(*qkv, block_mask=mask, enable_gqa=True), *qkv, dense(visible))


def tables(mask: BlockMask) -> tuple[torch.Tensor, torch.Tensor]:
    """The full and the partial blocks of a mask."""
    partial = BlockMask.from_kv_blocks(mask.kv_num_blocks, mask.kv_indices, compute_q_blocks=False).to_dense().bool()
    return mask.to_dense().bool() & ~partial, partial


def test_new_lists_are_read_again(qkv):
    table = torch.ones(1, 1, 3, 4, dtype=torch.bool, device=DEVICE)
    mask = handmade(table, mask_mod=causal)
    check(nl.attention(*qkv, block_mask=mask, enable_gqa=True), *qkv, causal)
    mask.kv_num_blocks.fill_(1)  # only the first column of blocks is left
    check(nl.attention(*qkv, block_mask=mask, enable_gqa=True), *qkv, lambda b, h, q, kv: (q >= kv) & (kv < BLOCK))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "batch", "heads"), in_turn(["partial", "full", "both", "no mask_mod"], [1, 2], [1, 4], every=2)
)
def test_any_lists(batch, heads, kind, qkv):
    generator = torch.Generator().manual_seed(batch * 10 + heads)
    partial, full = (torch.rand(2, batch, heads, 3, 4, generator=generator) < 0.5).to(DEVICE)
    full = full & ~partial
    if kind == "partial":
        mask = handmade(partial, mask_mod=causal)
    elif kind == "full":
        mask = handmade(torch.zeros_like(partial), full, causal)
    else:
        mask = handmade(partial, full, causal if kind == "both" else None)
    lower = torch.ones(Q, KV, dtype=torch.bool, device=DEVICE).tril()
    some = spread(partial) if kind == "no mask_mod" else spread(partial) & lower
    visible = {"partial": some, "full": spread(full)}.get(kind, some | spread(full))
    found, aux = nl.attention(
        *qkv, block_mask=mask, enable_gqa=True, return_aux=torch.nn.attention.flex_attention.AuxRequest(lse=True)
    )
    check(found, *qkv, dense(visible))
    assert torch.equal(aux.lse.isneginf(), ~visible.expand(2, 4, -1, -1).any(-1))


@pytest.mark.nightly
def test_lists_for_one_head_hide_what_others_would_see(qkv):
    """create_block_mask without H evaluates head 0 alone; what it does not list is hidden for all heads."""

    def by_head(b, h, q, kv):
        return q + 20 * h >= kv

    mask = made(by_head)
    full, partial = tables(mask)

    def visible(b, h, q, kv):
        return spread(full)[0, 0][q, kv] | (spread(partial)[0, 0][q, kv] & by_head(b, h, q, kv))

    found = nl.attention(*qkv, block_mask=mask, enable_gqa=True)
    check(found, *qkv, visible)
    assert (found - reference(*qkv, None, by_head)).abs().max() > 1e-2


@pytest.mark.nightly
def test_a_block_for_any_length(qkv):
    from torch.nn.attention.flex_attention import _create_empty_block_mask

    empty = _create_empty_block_mask(qkv[0], qkv[1])
    check(nl.attention(*qkv, block_mask=empty, enable_gqa=True), *qkv, lambda b, h, q, kv: q >= 0)
    one = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=DEVICE)
    mask = BlockMask.from_kv_blocks(*lists(one), BLOCK_SIZE=1 << 30, mask_mod=causal)
    check(nl.attention(*qkv, block_mask=mask, enable_gqa=True), *qkv, causal)


def test_rows_are_compared_in_parts(qkv, monkeypatch):
    monkeypatch.setattr(block_masks, "_POSITIONS", 7 * KV)
    check(nl.attention(*qkv, block_mask=made(causal), enable_gqa=True), *qkv, causal)
    last = torch.ones(1, 1, 3, 4, dtype=torch.bool, device=DEVICE)
    last[0, 0, 2, 0] = False
    found = nl.attention(*qkv, block_mask=handmade(last, mask_mod=causal), enable_gqa=True)
    check(found, *qkv, lambda b, h, q, kv: (q >= kv) & ((q < 2 * BLOCK) | (kv >= BLOCK)))


@pytest.mark.nightly
@pytest.mark.usefixtures("compilations")
def test_one_kernel_serves_all_lists_of_a_shape(qkv):
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        table = (torch.rand(1, 1, 3, 4, generator=generator) < 0.5).to(DEVICE)
        check(nl.attention(*qkv, block_mask=handmade(table), enable_gqa=True), *qkv, dense(spread(table)))
    assert len(flex_attention._kernels) == 1


def sliced() -> BlockMask:
    return made(causal)[:, :, 0:3]


def sliced_with_a_mod() -> BlockMask:
    mask = create_block_mask(causal, None, None, 2 * Q, KV, device=DEVICE, BLOCK_SIZE=BLOCK)[:, :, 2:5]
    mask.mask_mod = causal
    return mask


@pytest.mark.parametrize(
    ("mask", "options", "match"),
    [
        (lambda: made(causal), {"mask_mod": causal}, "mask_mod and block_mask, which has a mask_mod of its own"),
        (lambda: made(causal, 3), {}, r"block_mask is for batch 3; expected 1 or 2, which q has\n.*B=2"),
        (lambda: made(causal, 2, 2), {}, r"block_mask is for heads 2; expected 1 or 4, which q has\n.*H=4"),
        (
            lambda: create_block_mask(causal, None, None, 48, KV, device=DEVICE),
            {},
            r"\(48, 56\); expected \(40, 56\)\n.*_adjust\(40, 56\)",
        ),
        (lambda: create_block_mask(causal, None, None, Q, 64, device=DEVICE), {}, r"\(40, 64\); expected \(40, 56\)"),
        (lambda: made(causal).to("meta"), {}, r"block_mask is on meta; expected .*, where q is"),
        (sliced_with_a_mod, {}, r"\(80, 56\); expected \(40, 56\)\n.*block_mask.seq_lengths = \(40, 56\)"),
        (sliced, {}, r"slice of another one, which has no mask_mod\n.*sliced.mask_mod"),
    ],
)
def test_refusals(mask, options, match, qkv):
    with pytest.raises(LaunchError, match=match):
        nl.attention(*qkv, block_mask=mask(), enable_gqa=True, **options)


def test_a_mask_of_several_samples_for_one_is_refused(qkv):
    with pytest.raises(LaunchError, match=r"block_mask is for batch 3; expected 1, which q has\n.*B=1"):
        nl.attention(*(t[:1] for t in qkv), block_mask=made(causal, 3), enable_gqa=True)


def test_a_list_with_too_few_rows_is_refused(qkv):
    table = torch.ones(1, 1, 2, 4, dtype=torch.bool, device=DEVICE)
    with pytest.raises(LaunchError, match=r"2 rows of blocks; expected 3, for 40 queries by 16"):
        nl.attention(*qkv, block_mask=handmade(table), enable_gqa=True)
