"""Calls of attention that record gradients, with mods that Dynamo traced, as nodes of a graph of torch.compile.

The node is the operator of the forward kernel, with the backward pass that `recording` gives it; the tensors that the
mods capture are its inputs, so they get gradients wherever the compiled function has them from.
"""

from __future__ import annotations

from typing import Any

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.arguments import as_input, has_columns, problem_of
from neptune_lab.pytorch.attention_calls import AttentionCall
from neptune_lab.pytorch.captured_mods import Captured
from neptune_lab.pytorch.dynamo import Tracing, hint_of
from neptune_lab.pytorch.mods import read
from neptune_lab.pytorch.packed import packed_mods, place_examples
from neptune_lab.pytorch.recording import recording_for


def add_recorded(tracing: Tracing, tensors: list[Any], call: AttentionCall, captured: Captured) -> None:
    """Adds the call to the graph that Dynamo traces: sets `found` to its outputs and those kept for the backward pass,
    and `results` to the number of the former.

    Args:
        tensors: q, k and v without values; symbolic sizes are made numbers of the graph.
        call: its options, and its mods over the captured tensors.
        captured: by the mods.

    Raises:
        LaunchError: a size depends on values, or the call has no backward pass.
        DefinitionError, ScheduleError, TileError, EmitError: as `recording_for`.
    """
    device = tensors[0].device
    examples = captured.examples()
    if examples is None or any(hint_of(n) is None for t in tensors for n in t.shape):
        raise LaunchError(
            "attention that records gradients has a size that depends on values inside of a graph of torch.compile",
            help="compile without fullgraph=True, which leaves the graph for this call",
        )
    given = [tracing.proxy(n) if has_columns(t) else tracing.contiguous(n) for n, t in zip("qkv", tensors, strict=True)]
    tensors = [t if has_columns(t) else t.contiguous() for t in tensors]
    shapes, strides = ([tuple(map(int, of(t))) for t in tensors] for of in (lambda t: t.shape, lambda t: t.stride()))
    dtypes = [t.dtype for t in tensors]
    asked: Any = (*shapes, *dtypes, device, call.enable_gqa, call.scale, call.extras, tuple(strides))
    mods: Any = tuple(None if mod is None else mod.bind(examples) for mod in (call.score_mod, call.mask_mod))
    proxies = captured.tensors(tracing, device)
    if call.packed:
        places = place_examples(shapes[0], shapes[1], call.packed == "alike")
        mods = packed_mods(mods[0], mods[1], places)
        examples += dict.fromkeys(places)
        proxies += tracing.proxies("last")
    reading = read(*mods)
    wanted: Any = (problem_of(*asked), *mods, reading, device)
    found = recording_for(*wanted)
    proxy_of = {id(e): p for e, p in zip(examples, proxies, strict=True)}
    further = [
        tracing.added(as_input, proxy_of[id(reading.tensors[index])], device, dtype) for index, dtype in found.captured
    ]
    tracing.assign_call("found", found.op, *given, *further)
    tracing.assign("results", found.kernel.results)


__all__ = ["add_recorded"]
