"""Packed sequences: several sequences, one after another, in one tensor without padding.

A call with `cu_seqlens_q` and `cu_seqlens_k` is a call on one sample with another mask and other positions.  Vectors
say for each token which sequence it belongs to, and where in it it is; they are computed on the device at each call, so
the offsets may change without a compilation.  The mask compares the sequences of a query and a key; since their
numbers ascend, kernels skip the tiles of other sequences (`htile_passes.skip_tiles_by_data`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.operators.relative import Relative
from neptune_lab.pytorch.arguments import check_axes, device_of
from neptune_lab.pytorch.mod_state import States, state_of
from neptune_lab.pytorch.refusals import refuse_layout, refuse_transforms
from neptune_lab.runtime.refusals import is_traced
from neptune_lab.runtime.tensor_guards import guards_of
from neptune_lab.runtime.token_places import token_places
from neptune_lab.runtime.torch_state import current_gpu, modes, transform
from neptune_lab.strict.console import class_of

_WHOLE = torch.int32, torch.int64
# Looks that tell offsets as `_are_offsets` has found them, with the index of their GPU; the last ones.
_looks: list[tuple[Callable[..., bool], int]] = []
_MOST_LOOKS = 8


# By whether queries and keys are packed alike, and whether there are mods: what `packed_mods` reads of `Places`.
PLACES = {
    (True, False): (0,),
    (True, True): (0, 2),
    (False, False): (0, 1),
    (False, True): (0, 1, 2, 3),
}


class Places(NamedTuple):
    """Which sequence each token belongs to, and where in it it is, all int32.

    Args:
        q_sequence, k_sequence: the number of each token's sequence, (total_q,) and (total_k,), ascending.
        q_place, k_place: the position of each token in its sequence; the sequences again if no mod reads positions.

    If the queries and the keys are packed alike, k_sequence and k_place are the same tensors.
    """

    q_sequence: torch.Tensor
    k_sequence: torch.Tensor
    q_place: torch.Tensor
    k_place: torch.Tensor


def places_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of_q: Any, of_k: Any, modified: bool) -> Places:
    """The places of the tokens of q and k.

    Args:
        q, k, v: the call's tensors.
        of_q: offsets of the queries, int32 or int64 (sequences + 1,): sequence n has the tokens of_q[n] to
            of_q[n + 1] - 1.
        of_k: offsets of the keys; None: those of the queries.
        modified: whether there are mods.

    Raises:
        LaunchError: the offsets are missing, of another shape, dtype or device, or do not fit to the tensors.
    """
    if of_q is None:
        raise LaunchError("attention got cu_seqlens_k without cu_seqlens_q", help="give both, or cu_seqlens_q alone")
    device = device_of(q, k, v)
    if not torch.compiler.is_dynamo_compiling():
        refuse_transforms(of_q, of_k)
    for name, tensor in (("q", q), ("k", k)):
        check_axes(name, tensor.shape)
        if tensor.shape[0] != 1:
            raise LaunchError(
                f"argument {name} has batch {tensor.shape[0]}; expected 1, since cu_seqlens_q says that its sequences "
                "are packed along the length",
                help="give tensors of shape (1, heads, tokens of all sequences, head_dim)",
            )
    _check("cu_seqlens_q", of_q, q.shape[2], "q", device)
    alike = of_k is None or of_k is of_q
    if alike and q.shape[2] != k.shape[2]:
        raise LaunchError(
            f"q has {q.shape[2]} tokens and k {k.shape[2]}; with cu_seqlens_q alone, they have the same sequences",
            help="give cu_seqlens_k, the offsets of the keys",
        )
    if alike or of_k is None:
        return _places(of_q, of_q, q.shape[2], q.shape[2], modified)
    _check("cu_seqlens_k", of_k, k.shape[2], "k", device)
    if of_k.shape != of_q.shape:
        raise LaunchError(
            f"cu_seqlens_k has {of_k.shape[0]} offsets and cu_seqlens_q {of_q.shape[0]}; expected the same number, of "
            "sequences + 1",
            help="a sequence without keys has two equal offsets",
        )
    return _places(of_q, of_k, q.shape[2], k.shape[2], modified)


def _places(of_q: torch.Tensor, of_k: torch.Tensor, tokens: int, keys: int, modified: bool) -> Places:
    """The places for offsets that fit."""
    alike = of_k is of_q
    if tokens and keys and _is_here(of_q) and (alike or _is_here(of_k)):
        return Places(*token_places(of_q, of_k, tokens, keys, modified))
    own = _sequence_and_position(of_q, tokens, modified)
    other = own if alike else _sequence_and_position(of_k, keys, modified)
    return Places(own[0], other[0], own[1], other[1])


def _check(name: str, offsets: Any, total: int, of: str, device: torch.device) -> None:
    """Raise LaunchError for offsets that do not fit; their values are looked at on the CPU only."""
    if not isinstance(offsets, torch.Tensor):
        raise LaunchError(
            f"argument {name} is {class_of(offsets)}; expected a torch.Tensor of int32",
            help=f"torch.tensor({name}, dtype=torch.int32, device={of}.device)",
        )
    refuse_layout(f"argument {name}", offsets)
    if offsets.dtype not in _WHOLE or offsets.ndim != 1 or offsets.shape[0] < 2:
        raise LaunchError(
            f"argument {name} has shape {tuple(offsets.shape)} and dtype {offsets.dtype}; expected int32 or "
            "int64, of shape (sequences + 1,)",
            help=f"the offsets at which the sequences start, and the number of all tokens: [0, ..., {total}]",
        )
    if offsets.device != device:
        raise LaunchError(
            f"argument {name} is on {offsets.device}; expected {device}, where q is",
            help=f"move it with .to({str(device)!r})",
        )
    if type(offsets) is not torch.Tensor or device.type != "cpu" or is_traced((offsets,)):
        return
    values = offsets.tolist()
    if values[0] != 0 or values[-1] != total or any(a > b for a, b in pairwise(values)):
        raise LaunchError(
            f"argument {name} is {_short(values)}; expected offsets that start with 0, never decrease, and end with "
            f"{total}, the length of {of}",
            help="torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))",
        )


def _short(values: list[int]) -> str:
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:4]))}, ..., {values[-1]}]"


def _sequence_and_position(offsets: torch.Tensor, total: int, modified: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token the number of its sequence, and, if `modified`, its position in it.

    A sequence without tokens has two equal offsets, both of which a search to the right passes over.
    """
    tokens = torch.arange(total, device=offsets.device, dtype=offsets.dtype)
    sequence = torch.searchsorted(offsets[1:], tokens, right=True, out_int32=True)
    return sequence, (tokens - offsets[sequence]).to(torch.int32) if modified else sequence


def _is_here(offsets: torch.Tensor) -> bool:
    """Whether the memory of a tensor can be given to a kernel of ours, on the current GPU."""
    return (
        type(offsets) is torch.Tensor
        and offsets.is_cuda
        and not is_traced((offsets,))
        and not modes()
        and transform() is None
        and torch.version.hip is None
        and offsets.get_device() == current_gpu()
        and offsets.is_contiguous()
        and not offsets.is_neg()
    )


def known_offsets(of_q: Any, of_k: Any) -> tuple[torch.Tensor, ...] | None:
    """The offsets of a call, one tensor if queries and keys are packed alike; None unless `token_places` takes them.
    Whether they fit to q and k, the call's shapes say, if a call of these shapes was checked."""
    if of_k is None or of_k is of_q:
        return (of_q,) if _are_offsets(of_q) else None
    if not (_are_offsets(of_q) and _are_offsets(of_k)) or of_q.numel() != of_k.numel():
        return None
    return of_q, of_k


def places_at(q: torch.Tensor, k: torch.Tensor, offsets: Sequence[torch.Tensor], modified: bool) -> Places | None:
    """The places of a call's tokens, for `known_offsets`; None if these are on another GPU than q."""
    if offsets[0].get_device() != q.get_device():
        return None
    return Places(*token_places(offsets[0], offsets[-1], q.shape[2], k.shape[2], modified))


def _are_offsets(offsets: Any) -> bool:
    """Whether these are offsets whose memory can be given to a kernel of ours, on the current GPU."""
    for tells, index in _looks:
        if tells(offsets):
            return index == current_gpu() and offsets.numel() > 1
    if not (isinstance(offsets, torch.Tensor) and offsets.dtype in _WHOLE and offsets.ndim == 1 and _is_here(offsets)):
        return False
    tells = guards_of([offsets], [[None]], [[1]])
    if tells is not None:
        del _looks[_MOST_LOOKS - 1 :]
        _looks.insert(0, (tells, offsets.get_device()))
    return offsets.shape[0] > 1


def packed_mods(
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None, places: Places
) -> tuple[Callable[..., Any] | None, Callable[..., Any]]:
    """The mods of a packed call: what the user's give for the positions in a sequence, and no key of another sequence.

    Args:
        score_mod, mask_mod: the user's, which get the number of the sequence as b.
        places: of the tokens.
    """
    q_sequence, k_sequence, q_place, k_place = places
    alike = k_place is q_place

    def positions(q: Any, kv: Any) -> tuple[Any, Any]:
        one: Any = q_place[q].to(q.dtype)  # of 64 bits if a mod computes more than 32 hold
        other: Any = k_place[kv].to(kv.dtype)
        if alike:
            return Relative(one.value, q, 1), Relative(other.value, kv, 1)
        return one, other

    def packed_score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        assert score_mod is not None
        return score_mod(score, q_sequence[q].to(q.dtype), h, *positions(q, kv))

    def packed_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        same = q_sequence[q] == k_sequence[kv]
        return same if mask_mod is None else same & mask_mod(q_sequence[q].to(q.dtype), h, *positions(q, kv))

    return None if score_mod is None else packed_score, packed_mask


def packed_states(score_mod: Any, mask_mod: Any, alike: bool, places: Places | None = None) -> States:
    """The states of `packed_mods` of these mods, which follow from those of the user's.

    Args:
        alike: whether the keys are packed as the queries.
        places: the tensors that `packed_mods` reads; None: they are not computed yet, and None is in their place.
    """
    modified = score_mod is not None or mask_mod is not None
    rows = PLACES[alike, modified]
    own, kind = len(rows), ("packed", alike, modified)
    tensors: list[Any] = [None] * own if places is None else [places[row] for row in rows]
    of_score, of_mask = state_of(score_mod, tensors), state_of(mask_mod, tensors)
    score = "" if score_mod is None else None if of_score is None else (kind, of_score)
    return States(score, None if of_mask is None else (kind, of_mask), tensors, own)


def place_examples(q: Sequence[int], k: Sequence[int], alike: bool) -> Places:
    """Tensors like the places of a packed call, for the shapes of q and k; their values are not read."""
    own, other = ([torch.zeros(shape[2], dtype=torch.int32) for _ in range(2)] for shape in (q, k))
    return Places(own[0], own[0], own[1], own[1]) if alike else Places(own[0], other[0], own[1], other[1])


__all__ = [
    "PLACES",
    "Places",
    "known_offsets",
    "packed_mods",
    "packed_states",
    "place_examples",
    "places_at",
    "places_of",
]
