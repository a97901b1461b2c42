"""Launches of known calls (`known_calls`): of tensors as they are, of tensors that record gradients, and of packed
sequences, whose places are computed with the launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neptune_lab.pytorch.arguments import captured_inputs
from neptune_lab.pytorch.known_tables import Known, Recorded
from neptune_lab.pytorch.packed import PLACES, places_at
from neptune_lab.runtime.direct import SOURCE, unnegated
from neptune_lab.runtime.packed_launch import with_places
from neptune_lab.runtime.token_places import places_kernel


def launch_recorded(
    recorded: Recorded, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: list[torch.Tensor]
) -> Any:
    """The output of a kernel with gradients, which records them."""
    if recorded.as_they_are:
        direct = recorded.direct
        if direct is None:
            direct = recorded.direct = recorded.kernel.direct_on(q.device)
        if direct is not None:
            return direct(q, k, v)
    return recorded.kernel(q, k, v, *captured_inputs(recorded.captured, tensors, q.device))


def launch(
    known: Known, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: list[torch.Tensor], keys: int
) -> Any:
    """The output of a known kernel; `keys`: the number of keys."""
    if known.family is not None:
        known.family.keys = keys
    launcher = known.direct
    if launcher is None:
        kernel = known.compiled.kernel
        launcher = known.direct = kernel.direct_on(q.device)
        if launcher is None:
            launcher = kernel.launch
        else:
            known.unnegated = unnegated(launcher)
    if not known.captured:
        return launcher(q, k, v)
    return launcher(q, k, v, *captured_inputs(known.captured, tensors, q.device))


def launch_unnegated(
    known: Known, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: list[torch.Tensor], keys: int
) -> Any:
    """`launch` of tensors whose memory holds no negated values; `tensors` are as the kernel takes them."""
    launcher = known.unnegated
    if launcher is None:
        return launch(known, q, k, v, tensors, keys)
    if known.family is not None:
        known.family.keys = keys
    return launcher(q, k, v, *[tensors[index] for index, _ in known.captured]) if tensors else launcher(q, k, v)


def launch_packed(
    known: Known,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: list[torch.Tensor],
    own: int,
    keys: int,
    offsets: tuple[torch.Tensor, ...],
    *,
    as_they_are: bool = False,
) -> Any:
    """The output of a known kernel for packed sequences; None if the offsets are on another GPU.

    Args:
        tensors: that the mods read; of the first `own` ones, the places, nothing is computed yet.
        offsets: `known_offsets`.
        as_they_are: whether the kernel takes the other tensors as they are, and their memory holds no negated values.
    """
    dtypes = offsets[0].dtype, offsets[-1].dtype
    launchers = known.packed.get(dtypes)
    if launchers is None and dtypes not in known.packed:
        launchers = _note_launchers(known, q.device, own, offsets)
    if launchers is None:
        found = places_at(q, k, offsets, _modified(own, offsets))
        return None if found is None else launch(known, q, k, v, [*_rows(found, own, offsets), *tensors[own:]], keys)
    if known.family is not None:
        known.family.keys = keys
    if len(tensors) == own:
        return launchers[as_they_are](q, k, v, *offsets)
    others = [(index, dtype) for index, dtype in known.captured if index >= own]
    if as_they_are:
        return launchers[1](q, k, v, *[tensors[index] for index, _ in others], *offsets)
    return launchers[0](q, k, v, *captured_inputs(others, tensors, q.device), *offsets)


def launch_recorded_packed(
    recorded: Recorded,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: list[torch.Tensor],
    own: int,
    offsets: tuple[torch.Tensor, ...],
) -> Any:
    """`launch_recorded` for packed sequences, with the arguments of `launch_packed`."""
    found = places_at(q, k, offsets, _modified(own, offsets))
    if found is None:
        return None
    return launch_recorded(recorded, q, k, v, [*_rows(found, own, offsets), *tensors[own:]])


def _modified(own: int, offsets: tuple[torch.Tensor, ...]) -> bool:
    """Whether there are mods, which read positions."""
    return own > len(offsets)


def _rows(places: Any, own: int, offsets: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Of the places of a call, those that its kernel may read, in the order of the states of its mods."""
    return [places[row] for row in PLACES[len(offsets) == 1, _modified(own, offsets)]]


def _note_launchers(
    known: Known, device: torch.device, own: int, offsets: tuple[torch.Tensor, ...]
) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Launchers that take offsets of these dtypes on this device, noted in `known`; None as long as there is none."""
    kernel, dtypes = known.compiled.kernel, (offsets[0].dtype, offsets[-1].dtype)
    source = getattr(kernel.direct_on(device), SOURCE, None)
    made = places_kernel(device, *dtypes)
    if source is None or made is None:
        return None
    alike, modified = len(offsets) == 1, _modified(own, offsets)
    rows = PLACES[alike, modified]
    names = [(index, spec.name) for (index, _), spec in zip(known.captured, kernel.spec.inputs[3:], strict=True)]
    count = len(offsets)

    def slow(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
        others, given = iter(rest[:-count]), rest[-count:]
        found = places_at(q, k, given, modified)
        if found is None:
            return None
        return kernel.launch(q, k, v, *[found[rows[index]] if index < own else next(others) for index, _ in names])

    places = {name: rows[index] for index, name in names if index < own}
    launcher = with_places(source, kernel.spec, places, made.compiled, slow, alike=alike)
    known.packed[dtypes] = None if launcher is None else (launcher, unnegated(launcher))
    return known.packed[dtypes]


__all__ = ["launch", "launch_packed", "launch_recorded", "launch_recorded_packed", "launch_unnegated"]
