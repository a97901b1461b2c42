"""`attention` inside torch.compile, whose Dynamo runs `traced` symbolically.

In most graphs of fixed shapes, the mods and what they read are made outside of the compiled function.  Then the kernel
is compiled as the graph is traced, and the graph calls it as an operator.  What Dynamo cannot trace (the compiler, the
mods) runs in `_prepared`, whose result Dynamo takes as a constant.  So `traced` reads everything that this constant
depends on once more, which makes Dynamo guard it: the mods' numbers are compared, and the tensors become inputs of the
graph.

Otherwise Dynamo traces the mods too, which gives the tensors that they capture, wherever the compiled function has them
from, and the graph has a node of `graph_calls`, which takes any lengths: if a mod captures a tensor that the function
takes or makes, or reads objects that only Dynamo can guard; if a size is a symbol; for tensors of 8 bits.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch._dynamo.comptime import comptime

from neptune_lab.errors import LaunchError, NeptuneError
from neptune_lab.pytorch.arguments import Shape, as_input, has_columns, problem_of
from neptune_lab.pytorch.attention_calls import AttentionCall
from neptune_lab.pytorch.captured_mods import (
    POSITIONS,
    SCORE,
    Captured,
    is_symbolic,
    leave,
    sizes_of,
    traced_mod,
)
from neptune_lab.pytorch.compiled import compiled_for
from neptune_lab.pytorch.dynamo import UNTRACEABLE, Tracing, value_of
from neptune_lab.pytorch.empty import check_empty, is_empty, nothing_of, outputs_of_empty
from neptune_lab.pytorch.extras import PLAIN, Extras
from neptune_lab.pytorch.graph_calls import add_call
from neptune_lab.pytorch.mods import Path, follow, read
from neptune_lab.pytorch.packed import Places, packed_mods, place_examples
from neptune_lab.pytorch.recording import Recording, recording_for, records_gradients
from neptune_lab.pytorch.traced_recording import add_recorded
from neptune_lab.runtime.torch_op import NAMESPACE

# The op's name; for each captured input, the path to its tensor (or its index among the places) and its dtype; the
# numbers with their paths; how many of the op's outputs the call returns, if it keeps others for a backward pass.
_Prepared = tuple[str, tuple[tuple[Path | int, torch.dtype], ...], tuple[tuple[Path, Any], ...], int | None]


def settled(switch: Any) -> Any:
    """A switch as True or False, which the graph then assumes; Dynamo has a symbol for a comparison of numbers that
    changed between calls, such as `heads != kv_heads` of two modules."""
    if isinstance(switch, bool | torch.SymBool):
        return True if switch else False  # noqa: SIM210  # (which makes Dynamo choose)
    return switch


def traced(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: bool,
    scale: Any,
    extras: Extras = PLAIN,
    places: Places | None = None,
    scales: tuple[torch.Tensor, ...] = (),
) -> Any:
    """`attention` inside torch.compile: its outputs, a tensor or a sequence of them.

    Args:
        q, k, v, score_mod, mask_mod, enable_gqa, scale: as for `attention`.
        extras: further outputs, and options.
        places: of packed sequences.
        scales: of tensors of 8 bits.

    Raises:
        LaunchError, DefinitionError: as `attention`.
    """
    packed = "" if places is None else "alike" if places.q_place is places.k_place else "apart"
    asked = extras.lse, extras.max_scores, extras.options, extras.dynamic, extras.formats
    last: list[torch.Tensor] = []
    if places is not None:
        last = [places.q_sequence, places.q_place] if packed == "alike" else [*places]
    tensors = q, k, v, [*scales], last
    found, results, outside, nothing, scale = _node(*tensors, score_mod, mask_mod, enable_gqa, scale, asked, packed)
    if nothing:
        return outputs_of_empty(q, k, v, extras, () if found is None else (found,))
    if outside:
        return _outside_graphs(q, k, v, score_mod, mask_mod, enable_gqa, scale, extras, places, scales)
    if found is not None:
        return _outputs(found, len(found) if results is None else results)
    if k.ndim == v.ndim == q.ndim == 4 and k.shape[0] == v.shape[0] == 1 != q.shape[0]:
        k, v = k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1)
    q, k, v = (t if has_columns(t) else t.contiguous() for t in (q, k, v))
    shapes = _fixed(q.shape), _fixed(k.shape), _fixed(v.shape)
    strides = _fixed(q.stride()), _fixed(k.stride()), _fixed(v.stride())
    dtypes = q.dtype, k.dtype, v.dtype
    grads = torch.is_grad_enabled(), q.requires_grad or k.requires_grad or v.requires_grad
    name, captures, numbers, results = _prepared(
        shapes, strides, dtypes, q.device, enable_gqa, scale, score_mod, mask_mod, asked, packed, grads
    )
    mods = score_mod, mask_mod
    for path, value in numbers:
        if follow(mods, path) != value:
            raise RuntimeError("a value that a mod reads changed while it was compiled")
    extra = []
    for path, dtype in captures:
        tensor = follow(places, (("item", path),)) if isinstance(path, int) else follow(mods, path)
        extra.append(as_input(tensor, q.device, dtype))
    op = getattr(getattr(torch.ops, NAMESPACE), name)
    made = op.default(q, k, v, *extra)
    return made if results is None else _outputs(made, results)


def _outputs(made: Any, results: int) -> Any:
    """The first `results` of the outputs of an operator, which may have a single one."""
    if isinstance(made, torch.Tensor):
        return made
    return made[0] if results == 1 else tuple(made)[:results]


def _node(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scales: list[torch.Tensor],
    last: list[torch.Tensor],
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: bool,
    scale: Any,
    asked: tuple[Any, ...],
    packed: str,
) -> tuple[Any, int | None, bool, bool, float | None]:
    """The outputs of a node of `graph_calls`, None if there is none; how many of them the call returns, None for all;
    whether the call leaves the graph; whether a size is 0; and the scale as a constant, also if it is a number that
    the function takes.

    `_choose` reads the parameters, and sets these; if none of them, the call becomes a kernel's node.
    """
    found: Any = None
    results: int | None = None
    outside = False
    nothing = False
    comptime(_choose)
    return found, results, outside, nothing, scale


def _eagerly(*arguments: Any) -> Any:
    from neptune_lab.pytorch.flex_attention import _attend

    return _attend(*arguments)


_outside_graphs: Any = torch.compiler.disable(_eagerly, reason="a mod of attention")  # pyright: ignore[reportCallIssue]


def _choose(context: Any) -> None:
    """Decides how the call becomes a part of the graph, for `_node`."""
    tracing = Tracing(context)
    tensors = [tracing.fake(name) for name in "qkv"]
    extras, scales = Extras(*tracing.value("asked")), tracing.proxies("scales")
    try:
        tracing.assign("scale", tracing.number("scale"))
        if any(not is_symbolic(n) and n == 0 for t in tensors for n in t.shape) and is_empty(*tensors):
            q, k, v = tensors
            check_empty(q, k, v, q.device, tracing.number("enable_gqa"), tracing.number("scale"), extras)
            tracing.assign("nothing", True)
            _touch(tracing, q.device)
            return
    except LaunchError as error:
        leave(tracing, error)
        return
    score_known, score_mod = tracing.constant("score_mod")
    mask_known, mask_mod = tracing.constant("mask_mod")
    symbolic = any(is_symbolic(n) for t in tensors for n in t.shape) and extras.dynamic is not False
    followed = score_known and mask_known and not scales and _follows(tracing, score_mod, mask_mod)
    recording = records_gradients((*tensors, *_tensors_of(score_mod, mask_mod)))
    if followed and (recording or not symbolic):  # (backward kernels are for one length)
        return
    try:
        call, captured = _call_of(tracing, extras, len(scales))
        if records_gradients((*tensors, *captured.fakes.values())):
            add_recorded(tracing, tensors, call, captured)
            return
        if extras.dynamic is None and any(is_symbolic(t.shape[2]) for t in tensors):  # one node for all lengths
            call = replace(call, extras=extras._replace(dynamic=True))
        _prepare(call, tensors, captured)
    except (*UNTRACEABLE, NeptuneError) as error:
        if not followed:
            leave(tracing, error)
        return
    own = [*map(tracing.proxy, "qkv"), *scales]
    further = captured.tensors(tracing, tensors[0].device)
    add_call(tracing, "found", [*own, *further, *tracing.proxies("last")], call)


def _touch(tracing: Tracing, device: torch.device) -> None:
    """Sets `found` to a 0 that gives zeros as gradients to what the score_mod captures; leaves it where nothing there
    records gradients."""
    with suppress(*UNTRACEABLE):
        captured = Captured.of(traced_mod(tracing, "score_mod", SCORE, device))
        recording = [p for p in captured.proxies if records_gradients((value_of(p),))]
        if recording:
            tracing.assign_call("found", nothing_of, *recording)


def _call_of(tracing: Tracing, extras: Extras, scales: int) -> tuple[AttentionCall, Captured]:
    """The call with its mods as Dynamo traces them, and what the mods capture."""
    device = tracing.fake("q").device
    score = traced_mod(tracing, "score_mod", SCORE, device)
    mask = traced_mod(tracing, "mask_mod", POSITIONS, device)
    captured = Captured.of(score, mask)
    mods = captured.mod(score, SCORE), captured.mod(mask, POSITIONS)
    options = tracing.number("enable_gqa"), tracing.number("scale"), extras
    return AttentionCall(*mods, *options, scales, len(captured.proxies), tracing.value("packed")), captured


def _prepare(call: AttentionCall, tensors: list[Any], captured: Captured) -> None:
    """Compiles the kernel for the sizes of now, if they are known."""
    examples = captured.examples()
    sizes: list[Any] = [(sizes_of(t.shape), sizes_of(t.stride())) for t in tensors]
    if examples is None or any(None in (*shape, *strides) for shape, strides in sizes):
        return
    dtypes = [t.dtype for t in tensors]
    like = [torch.empty_strided(*own, dtype=d, device="meta") for own, d in zip(sizes, dtypes, strict=True)]
    places: Any = ()
    if call.packed:
        places = place_examples(sizes[0][0], sizes[1][0], call.packed == "alike")
        places = (places.q_sequence, places.q_place) if call.packed == "alike" else places
    call.prepare([*like, *[like[0]] * call.scales, *examples, *places], tensors[0].device)


def _follows(tracing: Tracing, score_mod: Any, mask_mod: Any) -> bool:
    """Whether `traced` can read everything that the mods read."""
    reading = read(score_mod, mask_mod)
    if not (reading.tensors or reading.numbers):
        return reading.exact
    inside = [name for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod)) if mod is not None]
    arrays = any(isinstance(tensor, np.ndarray) for tensor in reading.tensors)
    given = all(map(tracing.is_given, inside))
    return reading.exact and given and not reading.numpy_numbers and not arrays


def _tensors_of(*mods: Any) -> tuple[Any, ...]:
    return read(*mods).tensors


def _fixed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A shape or strides as plain integers: `range` makes Dynamo specialise symbolic sizes."""
    return tuple(len(range(n)) for n in sizes)


@torch.compiler.assume_constant_result
def _prepared(
    shapes: tuple[Shape, Shape, Shape],
    strides: tuple[Shape, Shape, Shape],
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    device: torch.device,
    enable_gqa: bool,
    scale: float | None,
    score_mod: Any,
    mask_mod: Any,
    asked: tuple[Any, ...],
    packed: str,
    grads: tuple[bool, bool],
) -> _Prepared:
    """Compiles the kernel and registers it as an op; the result lists what the graph has to read.

    Args:
        packed: "" without `Places`; "alike" if queries and keys have the same places, else "apart".
        grads: whether gradients are recorded here, and whether one of q, k and v records them.
    """
    problem = problem_of(*shapes, *dtypes, device, enable_gqa, scale, Extras(*asked), strides)
    reading = read(score_mod, mask_mod)
    path_of: dict[int, Path | int] = {id(t): p for t, p in zip(reading.tensors, reading.paths, strict=True)}
    numbers = reading.numbers
    if packed:
        places = place_examples(shapes[0], shapes[1], packed == "alike")
        path_of |= {id(place): index for index, place in reversed([*enumerate(places)])}
        score_mod, mask_mod = packed_mods(score_mod, mask_mod, places)
        reading = read(score_mod, mask_mod)
    recorded = grads[0] and (grads[1] or any(getattr(t, "requires_grad", False) for t in reading.tensors))
    found = (recording_for if recorded else compiled_for)(problem, score_mod, mask_mod, reading, device)
    results = found.kernel.results if isinstance(found, Recording) else None
    if results is not None and len(found.op._schema.returns) == results:
        results = None  # nothing is kept
    paths = tuple((path_of[id(reading.tensors[index])], dtype) for index, dtype in found.captured)
    return found.op.__name__.partition(".")[0], paths, tuple((p, v) for p, v in numbers if v == v), results
