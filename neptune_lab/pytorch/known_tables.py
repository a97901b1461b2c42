"""What is kept of calls of `attention` that were checked: their kernels, and which other calls these serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from neptune_lab.pytorch.compiled import Compiled
from neptune_lab.pytorch.lengths import Family
from neptune_lab.runtime.differentiable import Differentiable


@dataclass(slots=True)
class Known:
    """A kernel and what it takes besides q, k and v.

    Args:
        captured: for each captured tensor its index among the tensors of the mods' states, and the dtype that the
            kernel takes.
        family: of a kernel for all lengths: the calls that it serves, which notes the lengths.
        direct: the kernel's launcher for the device of these calls that calls Triton's launch function itself; None
            while there is none.
        unnegated: the same, for tensors that hold no negated values.
        packed: for packed sequences, by the dtypes of offsets: launchers as `direct` and `unnegated` that take offsets
            and compute the places too; None: there is none.
    """

    compiled: Compiled
    captured: tuple[tuple[int, torch.dtype], ...]
    family: Family | None = None
    direct: Callable[..., Any] | None = None
    unnegated: Callable[..., Any] | None = None
    packed: dict[Any, tuple[Callable[..., Any], Callable[..., Any]] | None] = field(default_factory=dict)


@dataclass(slots=True)
class Recorded:
    """A kernel with gradients; `captured` as in `Known`.

    Args:
        as_they_are: whether the forward kernel takes such tensors without copies, and no others.
        direct: `Differentiable.direct_on` of the device of these calls; None while there is none.
    """

    kernel: Differentiable
    captured: tuple[tuple[int, torch.dtype], ...]
    as_they_are: bool
    direct: Callable[..., Any] | None = None


@dataclass(slots=True)
class ForLengths:
    """A kernel for all lengths, and the calls that it serves.

    Args:
        q, kv: the least and the largest length of q, and of k and v.
        together: whether both are one length.
        extents: of the mods' tensors, but for those that the call makes: a number; "q" or "kv" for that length.
        kind: the flags of its calls (`known_calls._kind`).
        last: the shapes and strides of the last call.
        alike: whether tensors are as those of a call, but for the length; None: it is not known.
    """

    known: Known
    q: tuple[int, int]
    kv: tuple[int, int]
    together: bool
    extents: tuple[tuple[int | str, ...], ...]
    kind: tuple[bool, bool, bool]
    last: Any = None
    alike: Callable[..., bool] | None = None

    def serves(self, q: int, kv: int, tensors: list[torch.Tensor]) -> bool:
        """Whether the kernel takes these lengths and tensors."""
        if self.together and q != kv:
            return False
        (least_q, most_q), (least_kv, most_kv) = self.q, self.kv
        if not (least_q <= q <= most_q and least_kv <= kv <= most_kv):
            return False
        if not tensors:
            return True
        for tensor, extents in zip(tensors, self.extents, strict=True):
            for extent, expected in zip(tensor.shape, extents, strict=True):
                if extent != (q if expected == "q" else kv if expected == "kv" else expected):
                    return False
        return True


@dataclass(slots=True)
class Group:
    """Calls that differ in shapes and strides only, which are the keys of its tables.

    Args:
        lengths: of q, and of k and v, that have kernels of their own in `known`, and perhaps others.
        last: the key of the last call that was found in `known`.
    """

    known: dict[Any, Known] = field(default_factory=dict)
    lengths: set[tuple[int, int]] = field(default_factory=set)
    for_lengths: dict[Any, ForLengths] = field(default_factory=dict)
    recorded: dict[Any, Recorded] = field(default_factory=dict)
    last: Any = None


@dataclass(frozen=True, slots=True)
class Stream:
    """Calls that are told by one look at each tensor.

    Args:
        tells: whether tensors are as those of the last call; it is false for tensors that record gradients.
        lengths: what served it, and tells whether it serves another length; None: `tells` compares the lengths.
        keys: the number of keys, in that case.
    """

    group: Group
    known: Known
    tells: Callable[..., bool]
    lengths: ForLengths | None = None
    keys: int = 0


__all__ = ["ForLengths", "Group", "Known", "Recorded", "Stream"]
