"""The mask of a torch BlockMask: its mask_mod, and its block indices where they say something else.

A BlockMask has a mask_mod and two lists of blocks per row of blocks.  FlexAttention's kernels compute

    visible[b, h, q, kv] = full[b, h, q // Q, kv // KV] | (partial[b, h, q // Q, kv // KV] & mask_mod(b, h, q, kv))

with blocks of Q queries and KV keys.  `create_block_mask` makes the lists from mask_mod; then `visible` is mask_mod.
Lists may also come from elsewhere (`BlockMask.from_kv_blocks`), or from earlier values of tensors that mask_mod reads.
So `mask_of` compares the two, on the device and at every position, once for each state of a BlockMask and of the
tensors that its mask_mod reads.  If they agree, the kernel gets mask_mod, whose empty tiles the compiler proves; if
not, it reads the lists as tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.mod_state import state_of
from neptune_lab.pytorch.mods import read
from neptune_lab.strict.console import class_of

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# Positions at which a mask_mod is evaluated at once: 2**24, with int64 intermediate results 128 MiB each.
_POSITIONS = 1 << 24
# torch's block size of a BlockMask for any length: one block holds all positions.
_ANY_LENGTH = 1 << 30


class _Sizes(NamedTuple):
    """The sizes of a call: samples and heads of the queries, and both lengths."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


@dataclass(frozen=True)
class _Compared:
    """What was compared, and the result.

    Args:
        sizes: of the call.
        key: what mask_mod is, from `read`.
        block: the size of a block.
        tensors: the lists of blocks, and the tensors that mask_mod reads.
        versions: their version counters; None for what has none.
        mask_mod: the mask of these; None: every query sees every key.
        own: whether that is the block mask's own mask_mod.
        seen: of what `known_mask_of` finds.
    """

    sizes: _Sizes
    key: Any
    block: tuple[int, ...]
    tensors: tuple[Any, ...]
    versions: tuple[int | None, ...]
    mask_mod: Callable[..., Any] | None
    own: bool
    seen: _Seen | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What tells a block mask by looks alone, beside what was compared.

    Args:
        state: of its mask_mod.
        tensors: its lists of blocks, None for one that it has not, and what the mask_mod reads.
        told: those of `tensors` that are there.
        versions: the version counter of each of these.
        lengths: `seq_lengths` of the mask.
        place: of q.
    """

    state: Any
    tensors: tuple[torch.Tensor | None, ...]
    told: tuple[torch.Tensor, ...]
    versions: list[int]
    lengths: tuple[int, ...]
    place: Any


_compared: WeakKeyDictionary[Any, _Compared] = WeakKeyDictionary()


def refuse_beside_block_mask(mask_mod: Callable[..., Any] | None, *, packed: bool) -> None:
    """Raise LaunchError for what a call with a block mask may not have beside it: a mask_mod, or packed sequences."""
    if mask_mod is not None:
        raise LaunchError(
            "attention got mask_mod and block_mask, which has a mask_mod of its own",
            help="leave mask_mod out, or make the block mask with and_masks(mask_mod, ...)",
        )
    if packed:
        raise LaunchError(
            "attention got cu_seqlens_q and block_mask, which is for positions in the packed tensor",
            help="give mask_mod, which gets the positions in a sequence, or block_mask alone, whose mask_mod tells the "
            "sequences apart",
        )


def mask_of(block_mask: Any, q: torch.Tensor, k: torch.Tensor) -> Callable[..., Any] | None:
    """The mask_mod whose mask is that of `block_mask`; None if it hides nothing.

    Args:
        block_mask: a torch.nn.attention.flex_attention.BlockMask for the lengths of `q` and `k`.
        q, k: the call's queries and keys, of four dimensions.

    Raises:
        LaunchError: `block_mask` is none, is for other sizes or another device, or was sliced.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not isinstance(block_mask, BlockMask):
        raise LaunchError(
            f"argument block_mask is {class_of(block_mask)}; expected a BlockMask",
            help="make one with torch.nn.attention.flex_attention.create_block_mask, or give mask_mod=...",
        )
    sizes = _Sizes(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    _check(block_mask, sizes, q.device)
    # (in a graph, whether the lists say what mask_mod does may change with each call)
    if torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack():
        return _from_lists(block_mask, sizes)
    reading = read(block_mask.mask_mod)
    lists, block = _lists(block_mask), tuple(block_mask.BLOCK_SIZE)
    tensors = (*(t for t in lists if t is not None), *reading.tensors)
    versions = tuple(map(_version, tensors))
    known = _compared.get(block_mask)
    if (
        known is not None
        and reading.exact
        and None not in versions
        and (known.sizes, known.key, known.block, known.versions) == (sizes, reading.key, block, versions)
        and all(one is other for one, other in zip(known.tensors, tensors, strict=True))
    ):
        return known.mask_mod
    mask_mod = _mask(block_mask, sizes)
    own = mask_mod is block_mask.mask_mod
    seen = _seen(block_mask, q) if reading.exact else None
    _compared[block_mask] = _Compared(sizes, reading.key, block, tensors, versions, mask_mod, own, seen)
    return mask_mod


def known_mask_of(block_mask: Any, q: Any, k: Any) -> tuple[Any, tuple[Any, list[torch.Tensor]] | None] | None:
    """What `mask_of` gave for a mask, and gives again, by a few looks; None if it has to look closer.

    Args:
        block_mask, q, k: of a call, which may be anything.

    Returns:
        The mask_mod, and its state and the tensors that it reads (`mod_state`) if it is the block mask's own.
    """
    plain = type(block_mask) is _class() and type(q) is type(k) is torch.Tensor
    known = _compared.get(block_mask) if plain else None
    if known is None or known.seen is None:
        return None
    seen, own, tensors = known.seen, block_mask.mask_mod, []
    try:
        (batch, heads, q_len, _), (_, _, kv_len, _) = q.shape, k.shape
    except (RuntimeError, ValueError):  # a layout without sizes, or other axes, which are refused later
        return None
    if (
        known.sizes != (batch, heads, q_len, kv_len)
        or seen.place != _place(q)
        or seen.lengths != tuple(block_mask.seq_lengths)
        or known.block != tuple(block_mask.BLOCK_SIZE)
        or seen.state != state_of(own, tensors)
    ):
        return None
    now = *_lists(block_mask), *tensors
    if len(now) != len(seen.tensors) or not all(map(is_, now, seen.tensors)):
        return None
    if [tensor._version for tensor in seen.told] != seen.versions:
        return None
    return (own, (seen.state, tensors)) if known.own else (known.mask_mod, None)


def _seen(block_mask: Any, q: torch.Tensor) -> _Seen | None:
    """The looks of a mask; None if they do not tell all of it."""
    read_by_mask: list[torch.Tensor] = []
    state = state_of(block_mask.mask_mod, read_by_mask)
    tensors = *_lists(block_mask), *read_by_mask
    told = tuple(tensor for tensor in tensors if tensor is not None)
    versions = [version for version in map(_version, told) if version is not None]
    if type(block_mask) is not _class() or state is None or len(versions) < len(told):
        return None
    return _Seen(state, tensors, told, versions, tuple(block_mask.seq_lengths), _place(q))


def _place(tensor: torch.Tensor) -> Any:
    """What tells a tensor's device from others; of a GPU its number, which is compared in less time."""
    return tensor.get_device() if tensor.is_cuda else tensor.device


@cache
def _class() -> type[BlockMask]:
    """torch's class of block masks; what it is in takes long to import."""
    from torch.nn.attention.flex_attention import BlockMask

    return BlockMask


def _lists(block_mask: Any) -> tuple[torch.Tensor | None, ...]:
    """The lists of blocks that say which keys are visible."""
    return block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices


def _version(tensor: Any) -> int | None:
    """The tensor's version counter; None for a NumPy array, or a tensor made in inference mode."""
    return tensor._version if isinstance(tensor, torch.Tensor) and not tensor.is_inference() else None


def _check(block_mask: Any, sizes: _Sizes, device: torch.device) -> None:
    """Raise LaunchError if the mask is for other sizes or another device, or its mask_mod was taken away."""
    shape, block = tuple(block_mask.kv_indices.shape), tuple(block_mask.BLOCK_SIZE)
    if len(shape) != 4:
        raise LaunchError(
            f"block_mask.kv_indices has shape {shape}; expected (batch, heads, rows of blocks, columns of blocks)",
            help="make the mask with create_block_mask, or slice it with ranges: block_mask[0:1, 0:1]",
        )
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise LaunchError(
            "block_mask is a slice of another one, which has no mask_mod",
            help="set it: sliced.mask_mod = a function of the positions in the slice, made from the whole mask's",
        )
    for name, found, expected in (("batch", shape[0], sizes.batch), ("heads", shape[1], sizes.heads)):
        if found not in (1, expected):
            raise LaunchError(
                f"block_mask is for {name} {found}; expected {'' if expected == 1 else '1 or '}{expected}, which q has",
                help=f"make it with create_block_mask(mask_mod, {'B' if name == 'batch' else 'H'}={expected}, ...)",
            )
    lengths, own = (sizes.q_len, sizes.kv_len), tuple(block_mask.seq_lengths)
    rows = -(-sizes.q_len // block[0])
    if block != (_ANY_LENGTH, _ANY_LENGTH) and own != lengths:
        ways = [f"make it with create_block_mask(mask_mod, B, H, Q_LEN={lengths[0]}, KV_LEN={lengths[1]})"]
        if shape[2] == rows != -(-own[0] // block[0]):  # sliced by rows, which leaves the lengths as they were
            ways.append(f"if it is a slice for these queries, set block_mask.seq_lengths = {lengths}")
        elif lengths <= own and lengths[1] <= own[1]:
            ways.append(f"cut it to its first positions: block_mask._adjust{lengths}")
        raise LaunchError(f"block_mask is for q_len and kv_len {own}; expected {lengths}", help=", or ".join(ways))
    if shape[2] != rows:
        raise LaunchError(
            f"block_mask has {shape[2]} rows of blocks; expected {rows}, for {sizes.q_len} queries by {block[0]}",
            help="make it with create_block_mask for these lengths",
        )
    if block_mask.kv_indices.device != device:
        raise LaunchError(
            f"block_mask is on {block_mask.kv_indices.device}; expected {device}, where q is",
            help=f"move it with block_mask.to({str(device)!r})",
        )


def _mask(block_mask: Any, sizes: _Sizes) -> Callable[..., Any] | None:
    """mask_mod if it is `visible`, else `visible`, whose tables keep the lists of now."""
    mask_mod, partial, full = _parts(block_mask, sizes)
    if _agree(block_mask, partial, full, sizes):
        return mask_mod
    some, every = bool(partial.any()), bool(full.any())
    return _visible(mask_mod, partial, full, block_mask.BLOCK_SIZE, sizes, some, every)


def _from_lists(block_mask: Any, sizes: _Sizes) -> Callable[..., Any]:
    """`visible`, from the lists that a graph computes at each call."""
    listed = block_mask.full_kv_num_blocks is not None
    return _visible(*_parts(block_mask, sizes), block_mask.BLOCK_SIZE, sizes, True, listed)


def _parts(block_mask: Any, sizes: _Sizes) -> tuple[Callable[..., Any] | None, torch.Tensor, torch.Tensor]:
    """mask_mod, None if it hides nothing, and the tables of partial and of full blocks."""
    from torch.nn.attention.flex_attention import noop_mask

    mask_mod = None if block_mask.mask_mod is noop_mask else block_mask.mask_mod
    columns = -(-sizes.kv_len // block_mask.BLOCK_SIZE[1])
    partial = _table(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None:
        full = _table(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
    return mask_mod, partial, full


def _table(counts: torch.Tensor, indices: torch.Tensor, columns: int) -> torch.Tensor:
    """Which blocks a list holds: bool (batch, heads, rows, columns).

    Args:
        counts: int32 (batch, heads, rows).
        indices: int32 (batch, heads, rows, slots); in each row, only the first `counts` slots count.
        columns: the number of columns; blocks beyond them hold no key.
    """
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    places = torch.where(listed & (indices >= 0), indices, columns).clamp(max=columns).long()
    table = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return table.scatter_(-1, places, True)[..., :columns].contiguous()  # once, rather than at each call


def _visible(
    mask_mod: Callable[..., Any] | None,
    partial: torch.Tensor,
    full: torch.Tensor,
    block: Any,
    sizes: _Sizes,
    some: bool,
    every: bool,
) -> Callable[..., Any]:
    """The mask of the module's formula, as a mod that captures the tables it needs.

    `some` and `every` say whether there may be partial blocks, and full ones.  mask_mod is applied inside of partial
    blocks only, as in FlexAttention: a listed full block hides nothing.
    """
    own, heads = partial.shape[0] != 1, partial.shape[1] != 1
    rows, columns = (min(size, length) for size, length in zip(block, (sizes.q_len, sizes.kv_len), strict=True))
    if mask_mod is None:
        full, some, every = full | partial, False, True

    def block_of(table: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return table[b if own else 0, h if heads else 0, q // rows, kv // columns]

    def in_full(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return block_of(full, b, h, q, kv)

    def in_partial(b: Any, h: Any, q: Any, kv: Any) -> Any:
        assert mask_mod is not None
        return block_of(partial, b, h, q, kv) & mask_mod(b, h, q, kv)

    def in_either(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return in_full(b, h, q, kv) | in_partial(b, h, q, kv)

    return in_either if some and every else in_partial if some else in_full


def _agree(block_mask: Any, partial: torch.Tensor, full: torch.Tensor, sizes: _Sizes) -> bool:
    """Whether mask_mod is `visible` at every position; waits for the device once."""
    from torch.nn.attention.flex_attention import create_mask

    device = partial.device
    rows, columns = block_mask.BLOCK_SIZE
    by_sample, by_head = _depends(block_mask.mask_mod, device)
    samples = range(sizes.batch if by_sample or partial.shape[0] > 1 else 1)
    heads = range(sizes.heads if by_head or partial.shape[1] > 1 else 1)
    step = max(1, _POSITIONS // sizes.kv_len)
    column = torch.arange(sizes.kv_len, device=device) // columns
    agree = torch.ones((), dtype=torch.bool, device=device)
    for sample, head, start in product(samples, heads, range(0, sizes.q_len, step)):
        count = min(step, sizes.q_len - start)
        mask = create_mask(_shifted(block_mask.mask_mod, sample, head, start), 1, 1, count, sizes.kv_len, device)[0, 0]
        row = (torch.arange(count, device=device) + start) // rows
        some, every = (t[sample % t.shape[0], head % t.shape[1]][row][:, column] for t in (partial, full))
        agree &= ((every | (some & mask)) == mask).all()
    return bool(agree)


def _shifted(mask_mod: Callable[..., Any], sample: int, head: int, start: int) -> Callable[..., Any]:
    """mask_mod with positions from these on."""

    def shifted(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return mask_mod(b + sample, h + head, q + start, kv)

    return shifted


def _depends(mask_mod: Callable[..., Any], device: torch.device) -> tuple[bool, bool]:
    """Whether the mask may depend on b, and on h; found from which vmap its result belongs to."""
    from torch.nn.attention.flex_attention import create_mask

    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    found = []

    def levels(tensor: Any) -> set[int]:
        reached = set()
        while isinstance(tensor, torch.Tensor) and functorch.is_batchedtensor(tensor):
            reached.add(functorch.maybe_get_level(tensor))
            tensor = functorch.get_unwrapped(tensor)
        return reached

    def probed(b: Any, h: Any, q: Any, kv: Any) -> Any:
        mask = mask_mod(b, h, q, kv)
        reached = levels(mask)
        found.extend((bool(levels(b) & reached), bool(levels(h) & reached)))
        return mask

    create_mask(probed, 1, 1, 1, 1, device)
    return found[0], found[1]


__all__ = ["mask_of", "refuse_beside_block_mask"]
