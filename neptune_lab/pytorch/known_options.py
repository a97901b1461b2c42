"""Known calls with the arguments that `attention` has besides mods: block_mask, return_aux, kernel_options, and the
offsets of packed sequences.

Each is brought to what `known_calls` finds calls by, a mask_mod, two switches and our own options, and by looks that
see every change of it: a block mask's lists and the tensors that its mask_mod reads may be written in place.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from neptune_lab.pytorch.block_masks import known_mask_of
from neptune_lab.pytorch.extras import as_ordered, known_own_options
from neptune_lab.pytorch.known_calls import launched
from neptune_lab.pytorch.mod_state import States
from neptune_lab.pytorch.packed import known_offsets, packed_states
from neptune_lab.runtime.torch_state import tracing

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest


def launched_with(
    q: Any,
    k: Any,
    v: Any,
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: Any,
    scale: Any,
    return_lse: Any,
    dynamic: Any,
    block_mask: Any,
    return_aux: Any,
    kernel_options: Any,
) -> Any:
    """The output of a call whose kernel is known; None if it is not."""
    options: tuple[tuple[str, Any], ...] | None = ()
    largest, states = False, None
    if kernel_options:
        options = known_own_options(kernel_options)
        if options is None:
            return None
        if options:
            options = as_ordered(options)
    if return_aux is not None:
        if return_lse is not False or not _is_request(return_aux):
            return None
        return_lse, largest = return_aux
    if block_mask is not None:
        if mask_mod is not None:
            return None
        known = known_mask_of(block_mask, q, k)
        if known is None:
            return None
        mask_mod, read = known
        if read is not None and score_mod is None:
            states = States("", *read)
    found = launched(q, k, v, score_mod, mask_mod, enable_gqa, scale, return_lse, dynamic, options, largest, states)
    return found if found is None or return_aux is None else with_aux(found, return_lse, largest, _classes()[1])


def launched_packed(
    q: Any,
    k: Any,
    v: Any,
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: Any,
    scale: Any,
    return_lse: Any,
    dynamic: Any,
    of_q: Any,
    of_k: Any,
) -> Any:
    """The output of a call on packed sequences whose kernel is known; None if it is not.

    Args:
        of_q, of_k: the offsets of the sequences.
    """
    offsets = None if tracing() else known_offsets(of_q, of_k)
    if offsets is None:
        return None
    states = packed_states(score_mod, mask_mod, len(offsets) == 1)
    return launched(q, k, v, None, None, enable_gqa, scale, return_lse, dynamic, states=states, offsets=offsets)


def with_aux(found: Any, lse: bool, largest: bool, output: type[AuxOutput]) -> tuple[Any, AuxOutput]:
    """The outputs of a kernel as a call with return_aux gives them; `output`: torch's AuxOutput."""
    if not isinstance(found, tuple | list):
        return found, output(None, None)
    return found[0], output(found[1] if lse else None, found[-1] if largest else None)


@cache
def _classes() -> tuple[type[AuxRequest], type[AuxOutput]]:
    """torch's classes, which are in a module that takes long to import."""
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

    return AuxRequest, AuxOutput


def _is_request(value: Any) -> bool:
    """Whether it is an AuxRequest of switches."""
    return type(value) is _classes()[0] and type(value[0]) is type(value[1]) is bool


__all__ = ["launched_packed", "launched_with", "with_aux"]
