"""Masks of attention-gym, of transformers and of PyTorch's tests, written anew."""

from __future__ import annotations

from functools import partial

import torch
from attention_reference import DEVICE
from mod_table import KV, B, H, Mod, Q, Row, masks, whole
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks


def causal(b, h, q, kv):
    return q >= kv


def window(width: int) -> Mod:
    return lambda b, h, q, kv: (q >= kv) & (q - kv <= width)


def dilated(width: int, step: int) -> Mod:
    return lambda b, h, q, kv: ((q - kv).abs() <= width) & ((q - kv) % step == 0)


def prefix(length: int) -> Mod:
    return or_masks(lambda b, h, q, kv: kv < length, causal)


def natten(width: int, height: int, reach: int, tile: int = 0) -> Mod:
    """Neighbourhoods of a canvas, in rows, or in tiles of `tile` by `tile`."""

    def place(n):
        if not tile:
            return n // width, n % width
        number, inside = n // (tile * tile), n % (tile * tile)
        down, across = number // (width // tile), number % (width // tile)
        return down * tile + inside // tile, across * tile + inside % tile

    def mask(b, h, q, kv):
        (q_y, q_x), (kv_y, kv_x) = place(q), place(kv)
        half = reach // 2
        centre_y, centre_x = q_y.clamp(half, height - 1 - half), q_x.clamp(half, width - 1 - half)
        return ((centre_y - kv_y).abs() <= half) & ((centre_x - kv_x).abs() <= half)

    return mask


def morton(width: int, reach: int) -> Mod:
    """Neighbourhoods of a canvas in Morton's order: x and y are the even and the odd bits."""

    def even_bits(code):
        code = code & 0x55555555
        for shift, kept in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF), (8, 0x0000FFFF)):
            code = (code | (code >> shift)) & kept
        return code

    def mask(b, h, q, kv):
        half = reach // 2
        near = [(even_bits(q >> n).clamp(half, width - 1 - half) - even_bits(kv >> n)).abs() <= half for n in (0, 1)]
        return near[0] & near[1]

    return mask


def spread_bits(x, y):
    """x and y in Morton's order."""

    def spread(n):
        n = n & 0x0000FFFF
        for shift, kept in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
            n = (n | (n << shift)) & kept
        return n

    return (spread(y) << 1) | spread(x)


def sliding_tiles(canvas: tuple[int, ...], kernel: tuple[int, ...], tile: tuple[int, ...], text: int = 0) -> Mod:
    """Sliding tile attention over a canvas of any rank, with `text` tokens behind it that see everything."""
    tiles = [c // t for c, t in zip(canvas, tile, strict=True)]
    reach = [n // t for n, t in zip(kernel, tile, strict=True)]
    in_tile, seen = 1, 1
    for c, t in zip(canvas, tile, strict=True):
        in_tile, seen = in_tile * t, seen * c

    def places(n):
        number, found = n // in_tile, []
        for count in reversed(tiles):
            found.insert(0, number % count)
            number = number // count
        return found

    def mask(b, h, q, kv):
        near = (q < seen) & (kv < seen)
        for at, other, count, width in zip(places(q), places(kv), tiles, reach, strict=True):
            left, right = width // 2, width // 2 + (width % 2 - 1)
            centre = at.clamp(left, count - 1 - right)
            near = near & (other >= centre - left) & (other <= centre + right)
        return near | ((q < seen) & (kv >= seen) & (kv < seen + text)) | ((q >= seen) & (kv < seen + text))

    return mask


def frames(context: int, tokens: int, reach: float) -> Mod:
    """Sparse video generation: a prompt, then frames; near frames see one another, all see the first."""

    def mask(b, h, q, kv):
        first = (q < context) | (kv < context) | (kv < context + tokens)
        return first | ((q - kv).abs() < tokens * reach)

    return mask


def strides(frames_: int, tokens: int, reach: int) -> Mod:
    """The tokens of one place in all frames."""
    return lambda b, h, q, kv: ((q % tokens) - (kv % tokens)).abs() <= reach * frames_ // 2


LENGTHS = torch.tensor([5, 8, 3, 8], device=DEVICE)
OFFSETS = torch.tensor([0, 5, 13, 16, 24], dtype=torch.int32, device=DEVICE)
DOCUMENT = torch.repeat_interleave(torch.arange(4, device=DEVICE, dtype=torch.int32), LENGTHS)
DOCUMENTS = torch.stack([DOCUMENT, DOCUMENT.flip(0)])


def of_documents(mask_mod: Mod) -> Mod:
    """`mask_mod` inside each packed document, with positions that start at the document's offset."""

    def mask(b, h, q, kv):
        same = DOCUMENT[q] == DOCUMENT[kv]
        return same & mask_mod(b, h, q - OFFSETS[DOCUMENT[q]], kv - OFFSETS[DOCUMENT[kv]])

    return mask


def packed_causal(b, h, q, kv):
    return (kv >= OFFSETS[DOCUMENT[q]]) & causal(b, h, q, kv)


def batchify(mask_mod: Mod, each: int) -> Mod:
    """Sequences of `each` tokens behind one another."""
    return lambda b, h, q, kv: (q // each == kv // each) & mask_mod(b, h, q % each, kv % each)


IMAGES = torch.tensor([[0, 6, 11], [0, 2, 17]], device=DEVICE)
AT_IMAGE = whole(B, Q, low=-1, high=4, seed=4)


def flamingo(b, h, q, kv):
    """Text sees the media that its token points to."""
    return (AT_IMAGE[b, q] == kv // 6) & (AT_IMAGE[b, q] >= 0)


def block_diffusion(half: int, block: int) -> Mod:
    """A noised and a clean copy: blocks see themselves, clean blocks before them, and clean ones are causal."""

    def mask(b, h, q, kv):
        q_clean, kv_clean = q >= half, kv >= half
        q_block = torch.where(q_clean, (q - half) // block, q // block)
        kv_block = torch.where(kv_clean, (kv - half) // block, kv // block)
        own = (q_block == kv_block) & (q_clean == kv_clean)
        before = (q_block > kv_block) & kv_clean & ~q_clean
        return own | before | ((q_block >= kv_block) & q_clean & kv_clean)

    return mask


PARENTS = [-1, 0, 1, 1, 3, 3, 0, 6, 7, 2, 2, 10, 0, 12, 13, 12, 4, 16, 17, 5]
ANCESTORS = torch.eye(len(PARENTS), dtype=torch.bool)
for _node, _parent in list(enumerate(PARENTS))[1:]:
    ANCESTORS[_node] |= ANCESTORS[_parent]
ANCESTORS = ANCESTORS.to(DEVICE)


def tree(length: int) -> Mod:
    """A drafted tree behind a prefix: each node sees the prefix and its ancestors."""

    def mask(b, h, q, kv):
        node = (kv - length).clamp(min=0, max=len(PARENTS) - 1)
        return (kv < length) | ((kv >= length) & ANCESTORS[q, node])

    return mask


def drafts(length: int, block: int) -> Mod:
    def mask(b, h, q, kv):
        place = kv - length
        own = (kv >= length) & (q // block == place // block) & (place % block <= q % block)
        return (kv < length) | own

    return mask


PREFIXES = torch.tensor([6, 9], device=DEVICE)
SHARED = torch.tensor([0, 3, 3, 9], device=DEVICE)


def shared_prefix(b, h, q, kv):
    """Four suffixes of 5 queries behind prefixes that some share."""
    return (kv < PREFIXES[b]) | ((q // 5 == (kv - 4) // 5) & (kv >= SHARED[q // 5]))


TILES = whole(B, H, 5, 6, high=2, seed=5).bool()
SELECTED = whole(B, H, 5, 2, high=6, seed=6, dtype=torch.int32)
TILE_SIZES = torch.tensor([4, 4, 3, 4, 2, 4], device=DEVICE)

GYM = {
    "causal": causal,
    "noop": noop_mask,
    "window of 5": window(5),
    "window of 0": window(0),
    "window as and_masks": and_masks(causal, lambda b, h, q, kv: q - kv <= 4),
    "dilated 6, 2": dilated(6, 2),
    "dilated 9, 3 causal": and_masks(dilated(9, 3), causal),
    "prefix of 0": prefix(0),
    "prefix of 7": prefix(7),
    "sink and window": or_masks(window(3), lambda b, h, q, kv: (kv < 2) & (q >= kv)),
    "global and sliding": lambda b, h, q, kv: ((q - kv).abs() <= 3) | (q < 2) | (kv < 2),
    "global tokens by table": lambda b, h, q, kv: ((q - kv).abs() <= 3) | (AT_IMAGE[b, q] == 1),
    "documents": lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv],
    "documents, causal": lambda b, h, q, kv: (DOCUMENT[q] == DOCUMENT[kv]) & (q >= kv),
    "documents by batch": lambda b, h, q, kv: DOCUMENTS[b, q] == DOCUMENTS[b, kv],
    "offsets, causal": of_documents(causal),
    "offsets, whole": of_documents(noop_mask),
    "offsets, window": of_documents(window(2)),
    "offsets, prefix": of_documents(prefix(2)),
    "offsets, packed causal": packed_causal,
    "batchify causal": batchify(causal, 5),
    "batchify window": batchify(window(2), 8),
    "flamingo": flamingo,
    "flamingo by searched offsets": lambda b, h, q, kv: kv >= IMAGES[b, (q // 7).clamp(max=2)],
    "video frames": frames(4, 5, 1.5),
    "video strides": strides(4, 5, 1),
    "block diffusion": block_diffusion(10, 3),
    "jetspec tree": tree(4),
    "jetspec drafts": drafts(4, 5),
    "shared prefix": shared_prefix,
    "tiles by table": lambda b, h, q, kv: TILES[b, h, q // 4, kv // 4],
    "selected tiles": lambda b, h, q, kv: (
        (SELECTED[b, h, q // 4, 0] == kv // 4) | (SELECTED[b, h, q // 4, 1] == kv // 4)
    ),
    "selected tiles by any": lambda b, h, q, kv: (SELECTED[b, h, q // 4] == kv // 4).any(),
    "selected tiles by any(-1)": lambda b, h, q, kv: (SELECTED[b, h, q // 4, :] == kv // 4).any(dim=-1),
    "tiles of variable size": lambda b, h, q, kv: TILES[b, h, q // 4, kv // 4] & (kv % 4 < TILE_SIZES[kv // 4]),
}  # fmt: skip
CANVAS = {
    "natten 6x6, 3": natten(6, 6, 3),
    "natten 9x4, 3": natten(9, 4, 3),
    "natten 6x6, 5": natten(6, 6, 5),
    "natten by tiles of 2": natten(6, 6, 3, 2),
    "natten by tiles of 3": natten(6, 6, 3, 3),
    "natten by division": lambda b, h, q, kv: ((q / 6).floor() - (kv / 6).floor()).abs() <= 1,
    "natten of 7 by division": lambda b, h, q, kv: (torch.floor(q / 7) - torch.floor(kv / 7)).abs() < 1,
    "sliding tiles 6x6": sliding_tiles((6, 6), (6, 2), (2, 2)),
    "sliding tiles 4x6 and text": sliding_tiles((4, 6), (2, 6), (2, 2), 9),
    "sliding tiles 2x4x4": sliding_tiles((2, 4, 4), (2, 2, 4), (1, 2, 2)),
    "sliding tiles 2x4x4 and text": sliding_tiles((2, 4, 4), (1, 4, 2), (1, 2, 2), 3),
}
MORTON = {
    "morton 3": morton(4, 3),
    "morton 1": morton(4, 1),
    "morton there and back": lambda b, h, q, kv: spread_bits(q % 4, q // 4) >= spread_bits(kv % 4, kv // 4),
}

PADDING = whole(B, KV, high=2, seed=7).bool()
PADDING[:, 0] = True
LEFT = torch.tensor([3, 0], device=DEVICE)
POSITIONS = torch.stack([torch.arange(KV, device=DEVICE) - OFFSETS[DOCUMENT], torch.arange(KV, device=DEVICE)])
GROUPS = torch.where(DOCUMENTS % 2 == 0, DOCUMENTS, -1)


def both(*mods: Mod) -> Mod:
    """transformers' and_masks."""

    def mask(b, h, q, kv):
        result = q.new_ones((), dtype=torch.bool)
        for mod in mods:
            result = result & mod(b, h, q, kv).to(result.device)
        return result

    return mask


def either(*mods: Mod) -> Mod:
    """transformers' or_masks."""

    def mask(b, h, q, kv):
        result = q.new_zeros((), dtype=torch.bool)
        for mod in mods:
            result = result | mod(b, h, q, kv).to(result.device)
        return result

    return mask


def overlay(width: int) -> Mod:
    return lambda b, h, q, kv: kv > q - width


def chunked(size: int) -> Mod:
    return lambda b, h, q, kv: (kv - LEFT[b]) // size == (q - LEFT[b]) // size


def padding(b, h, q, kv):
    return PADDING[b, kv]


def packed(b, h, q, kv):
    return DOCUMENTS[b, q] == DOCUMENTS[b, kv]


def groups(b, h, q, kv):
    return (GROUPS[b, q] == GROUPS[b, kv]) & (GROUPS[b, q] >= 0)


def remapped(mod: Mod) -> Mod:
    return lambda b, h, q, kv: mod(b, h, POSITIONS[b, q], POSITIONS[b, kv])


def shifted(mod: Mod, first: int | torch.Tensor, other: int | torch.Tensor) -> Mod:
    return lambda b, h, q, kv: mod(b, h, q + first, kv + other)


TRANSFORMERS = {
    "bidirectional": lambda b, h, q, kv: q >= 0,
    "bidirectional, padding": both(lambda b, h, q, kv: q >= 0, padding),
    "causal, padding": both(causal, padding),
    "mistral": both(overlay(6), causal, padding),
    "gemma's windows on both sides": both(lambda b, h, q, kv: abs(q - kv) <= 5, lambda b, h, q, kv: q >= 0),
    "llama 4's chunks": both(chunked(6), causal),
    "chunks, padding": both(chunked(5), causal, padding),
    "packed": both(packed, causal),
    "packed, remapped window": both(packed, remapped(both(overlay(3), causal))),
    "packed, remapped chunks": both(packed, remapped(both(lambda b, h, q, kv: kv // 4 == q // 4, causal))),
    "groups of images": either(both(groups), causal),
    "groups of images in a window": both(either(groups, both(overlay(4), causal)), padding),
    "offsets of a cache": shifted(causal, 4, 0),
    "offsets of both": shifted(both(overlay(7), causal), 9, 3),
    "offset in a tensor": shifted(causal, torch.tensor(4, device=DEVICE), torch.tensor(0, device=DEVICE)),
    "padding by a cast": lambda b, h, q, kv: PADDING.int()[b, kv] > 0,
    "padding of the query": lambda b, h, q, kv: PADDING[b, q] & PADDING[b, kv],
}

BIDIRECTIONAL = torch.tensor([3, 11], device=DEVICE)
TABLE = whole(B, 6, high=6, seed=8, dtype=torch.int32)  # logical pages by physical ones
LIMITS = torch.tensor([20, 9], device=DEVICE)


def paged(mask_mod: Mod, size: int) -> Mod:
    """PagedAttention's mask: keys are physical, the mod has the logical position."""

    def mask(b, h, q, kv):
        block = TABLE[b, kv // size]
        logical = block * size + kv % size
        return torch.where(block >= 0, mask_mod(b, h, q, logical), False)

    return mask


PYTORCH = {
    "inverse causal": lambda b, h, q, kv: q <= kv,
    "by head": lambda b, h, q, kv: (q >= kv) | (h == 0),
    "by head, parity": lambda b, h, q, kv: torch.where(h % 2 == 0, q >= kv, kv >= 3),
    "by batch": lambda b, h, q, kv: (b == 0) | (kv < 5),
    "bidirectional part": lambda b, h, q, kv: (kv < BIDIRECTIONAL[b]) | (q >= kv),
    "bidirectional square": lambda b, h, q, kv: ((q <= BIDIRECTIONAL[b]) & (kv <= BIDIRECTIONAL[b])) | (q >= kv),
    "lengths": lambda b, h, q, kv: (q < LIMITS[b]) & (kv < LIMITS[b]),
    "paged causal": paged(causal, 4),
    "paged window": paged(window(5), 4),
    "even keys": lambda b, h, q, kv: kv % 2 == 0,
    "one key": lambda b, h, q, kv: kv == 3,
    "nothing": lambda b, h, q, kv: q < 0,
    "rows without keys": lambda b, h, q, kv: (q >= kv) & (q % 3 != 0),
    "jagged": lambda b, h, q, kv: (OFFSETS[DOCUMENT[q]] <= kv) & (kv < OFFSETS[DOCUMENT[q] + 1]),
    "a xor": lambda b, h, q, kv: (q > 4) ^ (kv > 4),
    "a not": lambda b, h, q, kv: ~((q > 4) & (kv > 4)),
    "logical functions": lambda b, h, q, kv: torch.logical_or(
        torch.logical_and(q > 4, kv > 4), torch.logical_not(q < kv)
    ),
    "a partial": partial(lambda width, b, h, q, kv: q - kv < width, 4),
    "nested and_masks": and_masks(causal, or_masks(window(3), lambda b, h, q, kv: kv < 4), lambda b, h, q, kv: kv != 2),
    "a Python and of constants": lambda b, h, q, kv: (q >= kv) if KV > 3 and Q > 3 else (q < kv),
}  # fmt: skip

ROWS: dict[str, Row] = {
    **masks(GYM),
    **masks(CANVAS, sizes=(1, 2, 2, 36, 36, 8)),
    **masks(MORTON, sizes=(1, 2, 1, 16, 16, 8)),
    **masks(TRANSFORMERS, sizes=(2, 4, 2, 20, 24, 8)),
    **masks(PYTORCH),
}
