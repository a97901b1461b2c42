"""Calls of `attention` whose kernel is known, found and launched in a few microseconds of the host.

A call is known if an earlier one, with everything checked, had the same shapes, dtypes, device, strides and options,
and mods of the same state (`mod_state`).  A kernel for all lengths also serves the lengths that its arguments may have:
those are compared as numbers.  Calls that record gradients are found too, by their shapes.  Everything else takes the
long way: a subclass, a transform, a mod whose state cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from neptune_lab.pytorch.alike import alike
from neptune_lab.pytorch.arguments import are_inputs
from neptune_lab.pytorch.compiled import Compiled
from neptune_lab.pytorch.extras import Extras
from neptune_lab.pytorch.known_launches import (
    launch,
    launch_packed,
    launch_recorded,
    launch_recorded_packed,
    launch_unnegated,
)
from neptune_lab.pytorch.known_tables import ForLengths, Group, Known, Recorded, Stream
from neptune_lab.pytorch.length_layouts import Layout, Layouts, fixed_layout, layouts_of, moving_layout
from neptune_lab.pytorch.lengths import Family
from neptune_lab.pytorch.mod_state import States, states_of
from neptune_lab.runtime.differentiable import Differentiable
from neptune_lab.runtime.tensor_guards import same_as
from neptune_lab.runtime.torch_state import is_watched
from neptune_lab.tensor_spec import LONG, TensorSpec

# Entries of each table; a full one is emptied, since calls fill it again.
_MOST = 1024
_Tensor = torch.Tensor
_recording = torch.is_grad_enabled

# By dtypes, devices, options and the states of the mods.
_groups: dict[Any, Group] = {}
# By options and the states of mods that read no tensors: calls like the last one.
_streams: dict[Any, Stream] = {}
# The options of most calls, as `_options` gives them.
_USUAL = False, None, False, None, (), False
_FOR_LENGTHS = False, None, False, True, (), False
_DENSE: Layouts = (None, None, None)


def forget() -> None:
    """Forgets all calls."""
    _groups.clear()
    _streams.clear()


def launched(
    q: Any,
    k: Any,
    v: Any,
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: Any,
    scale: Any,
    lse: Any,
    dynamic: Any,
    more: tuple[tuple[str, Any], ...] = (),
    largest: bool = False,
    states: States | None = None,
    offsets: tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """The output of a call whose kernel is known; None if it is not.

    Args:
        more: as `Extras.options`.
        largest: as `Extras.max_scores`.
        states: of the mods, if they are known; the mods are not looked at then.
        offsets: of packed sequences whose places are not computed yet: `known_offsets`.
    """
    if not type(q) is type(k) is type(v) is _Tensor or is_watched():
        return None
    of_score, of_mask, tensors, own = states_of(score_mod, mask_mod) if states is None else states
    if enable_gqa is lse is largest is False and scale is None and not more and (dynamic is None or dynamic is True):
        options = _USUAL if dynamic is None else _FOR_LENGTHS
    else:
        options = _options(enable_gqa, scale, lse, dynamic, more, largest)
    if options is None or of_score is None or of_mask is None:
        return None
    stream = _streams.get((options, of_score, of_mask))
    if stream is not None:
        found = stream.lengths
        if found is None:
            if stream.tells(q, k, v, *tensors[own:]):
                if offsets is not None:
                    return launch_packed(stream.known, q, k, v, tensors, own, stream.keys, offsets, as_they_are=True)
                return launch_unnegated(stream.known, q, k, v, tensors, stream.keys)
            _streams.pop((options, of_score, of_mask), None)
        elif stream.tells(q, k, v):
            m, n = q.shape[2], k.shape[2]
            same = v.shape[2] == n and found.kind == _kind(m, n) and found.serves(m, n, tensors[own:])
            same = same and (m, n) not in stream.group.lengths  # (those have kernels of their own)
            if same and q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
                if offsets is not None:
                    return launch_packed(stream.known, q, k, v, tensors, own, n, offsets, as_they_are=True)
                return launch_unnegated(stream.known, q, k, v, tensors, n)
    group = _groups.get((q.dtype, k.dtype, v.dtype, _devices(q, k, v), options, of_score, of_mask))
    if group is None:
        return None
    strides = None
    try:
        of_q, of_k, of_v = q.shape, k.shape, v.shape
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            strides = q.stride(), k.stride(), v.stride()
        read = tensors[own:]
        key = (of_q, of_k, of_v, strides, *[t.shape for t in read]) if read else (of_q, of_k, of_v, strides)
    except RuntimeError:  # a layout without sizes or strides, which is refused later
        return None
    records = q.requires_grad or k.requires_grad or v.requires_grad
    if (records or (read and any(t.requires_grad for t in read))) and _recording():
        recorded = group.recorded.get(key)
        if recorded is None:
            return None
        if offsets is not None:
            return launch_recorded_packed(recorded, q, k, v, tensors, own, offsets)
        return launch_recorded(recorded, q, k, v, tensors)
    known = group.known.get(key)
    if known is None:
        known = _known_for_lengths(group, key, (options, of_score, of_mask), q, k, v, tensors, own)
        if known is None:
            return None
    else:
        if key == group.last:  # (a look at each tensor takes time, for nothing if each call is of another shape)
            tells = _look(known, q, k, v, tensors, own)
            if tells is not None:
                _add(_streams, (options, of_score, of_mask), Stream(group, known, tells, None, of_k[2]))
        group.last = key
    if offsets is not None:
        return launch_packed(known, q, k, v, tensors, own, of_k[2], offsets)
    return launch(known, q, k, v, tensors, of_k[2])


def _look(
    known: Known, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: list[torch.Tensor], own: int
) -> Callable[..., bool] | None:
    """What tells calls that a kernel serves with the tensors as they are, by q, k, v and what the mods read; None if
    nothing does, such as for tensors that record gradients, in any mode."""
    compared = q, k, v, *tensors[own:]
    captured = [(index, dtype) for index, dtype in known.captured if index >= own]
    if any(t.requires_grad for t in compared) or not are_inputs(captured, tensors, q.device):
        return None
    return same_as(compared)


def _known_for_lengths(
    group: Group,
    key: Any,
    mods: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: list[torch.Tensor],
    own: int,
) -> Known | None:
    """The kernel for all lengths of a group that serves a call; None if there is none.  The call is noted, so that the
    next one like it is found sooner.

    Args:
        key: of the call in its group: shapes, strides if a tensor is not contiguous, and shapes of `tensors`.
        mods: the options and the states of the mods.
        tensors: that the mods read.
        own: as in `States`.
    """
    of_q, of_k, of_v, strides = key[:4]
    if not group.for_lengths or not len(of_q) == len(of_k) == len(of_v) == 4:
        return None
    every = (_DENSE,) if strides is None else layouts_of((of_q, of_k, of_v), strides)
    for layouts in every:
        found = group.for_lengths.get(_family(of_q, of_k, of_v, layouts))
        if found is not None and found.serves(of_q[2], of_k[2], tensors[own:]):
            break
    else:
        return None
    known = found.known
    if len(tensors) == own and strides is None:
        if found.alike is None:
            found.alike = alike((q, k, v))
        if found.alike is not None:
            _add(_streams, mods, Stream(group, known, found.alike, found))
            return known
    if key == found.last:  # (new lengths would only fill the table)
        _add(group.known, key, known)
    found.last = key
    return known


def _devices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """The devices; of GPUs their numbers, which are compared in less time."""
    if q.is_cuda and k.is_cuda and v.is_cuda:
        return q.get_device(), k.get_device(), v.get_device()
    return q.device, k.device, v.device


def _options(
    enable_gqa: Any, scale: Any, lse: Any, dynamic: Any, more: tuple[tuple[str, Any], ...], largest: bool
) -> Any:
    """The options, if each is of its type; else None."""
    if not (type(enable_gqa) is type(lse) is bool and (scale is None or type(scale) in (int, float))):
        return None
    return (enable_gqa, scale, lse, dynamic, more, largest) if dynamic is None or type(dynamic) is bool else None


def _family(q: Any, k: Any, v: Any, layouts: Layouts) -> Any:
    """What calls of a group have in common that one kernel for all lengths may serve."""
    (batch, heads, m, width), (kv_batch, kv_heads, n, k_width), (v_batch, v_heads, v_n, v_width) = q, k, v
    sizes = batch, heads, width, kv_batch, kv_heads, k_width, v_batch, v_heads, v_width, v_n == n
    return sizes, layouts, _kind(m, n)


def _kind(m: int, n: int) -> tuple[bool, bool, bool]:
    """What tells the lengths of one kernel for all lengths from those of others."""
    return m == 1, m == n, m >= LONG or n >= LONG


# q, k, v, score_mod, mask_mod, enable_gqa, scale and the options.
Call: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any, Any, bool, "float | None", Extras]


@dataclass(frozen=True, slots=True)
class _Noted:
    """A call that was checked: the keys of its group and in it, `captured` as in `Known`, and `own` as in `States`."""

    tensors: list[torch.Tensor]
    own: int
    captured: tuple[tuple[int, torch.dtype], ...]
    kinds: Any
    strides: Any
    key: Any


def _noted(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: bool,
    scale: float | None,
    extras: Extras,
    captured: tuple[tuple[int, torch.dtype], ...],
    read: tuple[Any, ...],
    states: States | None,
) -> _Noted | None:
    """A call that was checked; None if `launched` could not find it."""
    *mods, tensors, made = states_of(score_mod, mask_mod) if states is None else states
    options = _options(enable_gqa, scale, *extras.known)
    if options is None or None in mods or extras.formats:
        return None
    place = {id(tensor): index for index, tensor in enumerate(tensors)}
    if any(id(read[index]) not in place for index, _ in captured):
        return None
    kinds = q.dtype, k.dtype, v.dtype, _devices(q, k, v), options, *mods
    strides = None
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        strides = q.stride(), k.stride(), v.stride()
    key = q.shape, k.shape, v.shape, strides, *[t.shape for t in tensors[made:]]
    inputs = tuple((place[id(read[index])], dtype) for index, dtype in captured)
    return _Noted(tensors, made, inputs, kinds, strides, key)


def keep_recorded(
    call: Call,
    kernel: Differentiable,
    captured: tuple[tuple[int, torch.dtype], ...],
    read: tuple[Any, ...],
    states: States | None = None,
) -> None:
    """Notes the kernel with gradients of a call that was checked, so that `launched` finds it.

    Args:
        call: q, k, v, score_mod, mask_mod, enable_gqa, scale and the `Extras`.
        captured: as in `Recording`.
        read: the tensors that the mods read (`Reading.tensors`).
        states: as for `launched`.
    """
    noted = _noted(*call, captured, read, states)
    if noted is None:
        return
    with torch.no_grad():
        as_they_are = not captured and kernel.forward.fits(call[:3])
    _add(_group_of(noted.kinds).recorded, noted.key, Recorded(kernel, noted.captured, as_they_are))


def keep(
    call: Call, compiled: Compiled, read: tuple[Any, ...], family: Family | None, states: States | None = None
) -> None:
    """Notes the kernel of a call that was checked, so that `launched` finds it.

    Args:
        call: q, k, v, score_mod, mask_mod, enable_gqa, scale and the `Extras`.
        read: the tensors that the mods read (`Reading.tensors`).
        family: of a kernel for all lengths.
        states: as for `launched`.
    """
    noted = _noted(*call, compiled.captured, read, states)
    if noted is None:
        return
    q, k, v, *_ = call
    if family is None or not compiled.kernel.spec.ranges:
        group = _group_of(noted.kinds)
        _add(group.known, noted.key, Known(compiled, noted.captured))
        if len(group.known) == 1:
            group.lengths.clear()
        group.lengths.add((q.shape[2], k.shape[2]))
        return
    known = Known(compiled, noted.captured, family)
    layouts: Any = _DENSE
    if noted.strides is not None:
        given = zip((q, k, v), compiled.kernel.spec.inputs[:3], strict=True)
        layouts = tuple(_layout_of(tensor, spec) for tensor, spec in given)
    key = _family(q.shape, k.shape, v.shape, layouts)
    _add(_group_of(noted.kinds).for_lengths, key, _lengths_of(known, noted, q.shape[2], k.shape[2]))


def _layout_of(tensor: torch.Tensor, spec: TensorSpec) -> Layout:
    """The layout of a tensor that a kernel for all lengths takes."""
    moves = spec.steps is not None or spec.strides is None
    return (moving_layout if moves else fixed_layout)(tensor.shape, tensor.stride())


def _lengths_of(known: Known, noted: _Noted, m: int, n: int) -> ForLengths:
    """The lengths that a kernel takes; m, n: those of the call."""
    spec = known.compiled.kernel.spec
    ranges = {name: (least, most) for name, least, most in spec.ranges}
    names = [(tensor.sizes or ("",) * len(tensor.shape)) for tensor in spec.inputs]
    of_q, of_kv = names[0][2], names[1][2]

    def range_of(place: int, name: str) -> tuple[int, int]:
        extent = spec.inputs[place].shape[2]
        return ranges[name] if name else (extent, extent)

    lengths = range_of(0, of_q), range_of(1, of_kv)
    extents: list[tuple[int | str, ...]] = [tuple(tensor.shape) for tensor in noted.tensors]
    for (index, _), sizes in zip(known.captured, names[3:], strict=True):
        tensor = noted.tensors[index]
        if tensor.ndim:
            shape = zip(tensor.shape, sizes, strict=True)
            extents[index] = tuple(extent if not name else "kv" if name == of_kv else "q" for extent, name in shape)
        if index < noted.own and not all(sizes):  # (the shapes of these are not compared)
            lengths = (m, m), (n, n)
    together = bool(of_q) and of_q == of_kv
    return ForLengths(known, *lengths, together, tuple(extents[noted.own :]), _kind(m, n))


def _group_of(kinds: Any) -> Group:
    if kinds not in _groups:
        if len(_groups) >= _MOST:
            _streams.clear()
        _add(_groups, kinds, Group())
    return _groups[kinds]


def _add(table: dict[Any, Any], key: Any, value: Any) -> None:
    if len(table) >= _MOST:
        table.clear()
    table[key] = value


__all__ = ["forget", "keep", "keep_recorded", "launched"]
