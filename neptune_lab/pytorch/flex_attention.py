"""`attention`: FlexAttention's interface for kernels of this compiler."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch.autograd import forward_ad

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import compiled as known
from neptune_lab.pytorch import extras as options_of_calls
from neptune_lab.pytorch import known_calls, recording
from neptune_lab.pytorch.arguments import (
    captured_inputs,
    check_axes,
    checked_scale,
    common_dtype,
    device_of,
    problem_of,
    warn_of_conversions,
)
from neptune_lab.pytorch.autocast import under_autocast
from neptune_lab.pytorch.block_masks import mask_of, refuse_beside_block_mask
from neptune_lab.pytorch.call_parts import read_call, with_first_as
from neptune_lab.pytorch.compiled import Compiled, compiled_for
from neptune_lab.pytorch.empty import check_empty, is_empty, outputs_of_empty, without_transposition
from neptune_lab.pytorch.examples import over_examples
from neptune_lab.pytorch.extras import PLAIN, Extras, extras_of, named
from neptune_lab.pytorch.known_calls import keep, keep_recorded, launched
from neptune_lab.pytorch.known_options import launched_packed, launched_with, with_aux
from neptune_lab.pytorch.lengths import known_family
from neptune_lab.pytorch.mods import Reading, read
from neptune_lab.pytorch.packed import Places, packed_mods, packed_states, places_of
from neptune_lab.pytorch.quantized import NONE, has_quantized, quantized
from neptune_lab.pytorch.recording import recording_for, records_gradients
from neptune_lab.pytorch.refusals import refuse_forward_gradients, refuse_symbols, refuse_transforms
from neptune_lab.pytorch.traced import settled, traced
from neptune_lab.runtime.subclasses import EXPORTED, refuse_jit_trace

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask

# Kernels by everything that they depend on; the oldest are dropped first.
_kernels: OrderedDict[Any, Compiled] = OrderedDict()
_MOST = 1024
_MISSING: Any = None  # a tensor that was left out, or passed under another name


@overload
def attention(
    q: torch.Tensor = ...,
    k: torch.Tensor = ...,
    v: torch.Tensor = ...,
    score_mod: Callable[..., Any] | None = ...,
    block_mask: BlockMask | None = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_lse: Literal[False] = ...,
    kernel_options: Mapping[str, Any] | None = ...,
    *,
    mask_mod: Callable[..., Any] | None = ...,
    return_aux: None = ...,
    cu_seqlens_q: torch.Tensor | None = ...,
    cu_seqlens_k: torch.Tensor | None = ...,
    dynamic: bool | None = ...,
    q_scale: float | torch.Tensor | None = ...,
    k_scale: float | torch.Tensor | None = ...,
    v_scale: float | torch.Tensor | None = ...,
    weights_dtype: torch.dtype | None = ...,
    **others: Any,
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor = ...,
    k: torch.Tensor = ...,
    v: torch.Tensor = ...,
    score_mod: Callable[..., Any] | None = ...,
    block_mask: BlockMask | None = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_lse: bool = ...,
    kernel_options: Mapping[str, Any] | None = ...,
    *,
    mask_mod: Callable[..., Any] | None = ...,
    return_aux: AuxRequest | None = ...,
    cu_seqlens_q: torch.Tensor | None = ...,
    cu_seqlens_k: torch.Tensor | None = ...,
    dynamic: bool | None = ...,
    q_scale: float | torch.Tensor | None = ...,
    k_scale: float | torch.Tensor | None = ...,
    v_scale: float | torch.Tensor | None = ...,
    weights_dtype: torch.dtype | None = ...,
    **others: Any,
) -> Any: ...


def attention(
    q: torch.Tensor = _MISSING,
    k: torch.Tensor = _MISSING,
    v: torch.Tensor = _MISSING,
    score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    mask_mod: Callable[..., Any] | None = None,
    return_aux: AuxRequest | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    dynamic: bool | None = None,
    q_scale: float | torch.Tensor | None = None,
    k_scale: float | torch.Tensor | None = None,
    v_scale: float | torch.Tensor | None = None,
    weights_dtype: torch.dtype | None = None,
    **others: Any,
) -> Any:
    """Attention with FlexAttention's arguments, in one kernel compiled for these shapes and mods.

        score[b, h, i, j] = score_mod(scale * sum over d of q[b, h, i, d] * k[b, h // group, j, d], b, h, i, j)
        weight[b, h, i, :] = softmax over those j of score[b, h, i, j] for which mask_mod(b, h, i, j)
        out[b, h, i, :] = sum over j of weight[b, h, i, j] * v[b, h // group, j, :]

    The first call for new shapes or new mods compiles, and so does the second length of them (see `dynamic`); later
    calls, also in later processes, reuse the kernel.  If there is a tuning record for the problem on this GPU, its
    choice is compiled.  Works inside torch.compile without a graph break, whatever the mods capture, with one graph for
    all lengths; and under CUDA-graph capture (after one call outside the capture).

    The kernel reads the tensors that a mod captures at each call: their values may change, and a new shape or dtype
    recompiles.  They must be on q's device; a tensor without axes may be on the CPU, which costs a copy per call.
    A mod computes with int64 and float64 as PyTorch does; smaller integers become int32.
    Any other value that a mod reads (variables, attributes of functions and modules, items of containers) is compared
    at each call, and a change recompiles.  A mod that reads attributes of an object, or uses getattr or an import, is
    traced at every call, since what it reads may have changed; that takes milliseconds.

    Args:
        q: queries (batch, heads, q_len, head_dim), float16, bfloat16 or float32, or float8_e4m3fn or float8_e5m2.
        k: keys (batch or 1, kv_heads, kv_len, head_dim).  With 1, all samples of the batch share k and v.
        v: values, of k's batch, heads and length: (batch or 1, kv_heads, kv_len, v_head_dim).  If the dtypes of q, k
            and v differ, the ones that are narrower are converted at each call, with a warning once.  Under
            torch.autocast, floats of 16 and 32 bits become its dtype first, as for torch's attention.  k and v may
            also be float8_e4m3fn, float8_e5m2 or int8, whatever q is: the kernel converts tiles of them.
        score_mod: `score_mod(score, b, h, q, kv)` returns the new score for a float32 score; None: unchanged.
        block_mask: a torch BlockMask for these lengths: the mask is its mask_mod and its lists of blocks.  For a new
            mask, or new values of tensors that its mask_mod reads, the lists are compared with mask_mod on the device,
            which takes about as long as create_block_mask.  If they say something else than mask_mod, the kernel reads
            them: a block that is not listed is hidden, and mask_mod does not apply to a full block.
        scale: factor of the scores; 1/sqrt(head_dim) if None.
        enable_gqa: lets kv_heads be a divisor of heads; query head h reads head h // (heads // kv_heads).
        return_lse: also return the log-sum-exp of the scores.
        kernel_options: fields of `TileConfig`, `SplitKConfig` and `CodeOptions` by name, such as {"block_q": 64}, and
            "template"; they replace a tuning record.  Options of FlexAttention's kernels, such as BLOCK_M, are
            ignored, with a warning once.  {"deterministic": False} lets the backward pass add to the gradient of q in
            any order, which differs from run to run by rounding, unless torch.use_deterministic_algorithms(True): on
            Hopper that is a faster kernel, where there is one (docs/using/training.md).
        mask_mod: `mask_mod(b, h, q, kv)` is true if the query attends to the key; None: no mask.  The output row of a
            query that attends to no key is 0.  A call has mask_mod or block_mask.  (A call without keys gives zeros.)
        return_aux: torch's AuxRequest(lse=..., max_scores=...): also return these in an AuxOutput.
        cu_seqlens_q: for packed sequences: q is (1, heads, total_q, head_dim), and sequence n has its tokens
            cu_seqlens_q[n] to cu_seqlens_q[n + 1] - 1; int32 or int64 (sequences + 1,), starting with 0 and ending with
            total_q.  A query attends to keys of its own sequence only.  The mods get the sequence's number as b, and
            the positions in the sequence as q and kv, as if the sequences were the samples of a batch: with
            `q >= kv`, the first query sees the first key, also if the lengths differ.  (flash-attention's causal mask
            for packed sequences lets the last query see the last key: `q + offset[b] >= kv`, with
            offset = cu_seqlens_k.diff() - cu_seqlens_q.diff().)  The values are read at each call, and new ones need
            no compilation.  They are checked on the CPU only, since a check of a GPU's would wait for it; wrong ones
            group the tokens wrongly, and no memory outside of the tensors is read.  Not together with block_mask.
        cu_seqlens_k: the offsets of k and v, (1, kv_heads, total_k, ...), for as many sequences; None: cu_seqlens_q.
        dynamic: whether one kernel takes all lengths of q, k and v: True, from the first call on; False: each length
            has a kernel of its own, which may be faster; None: from the second length on.  Lengths for which the
            compiler has no such kernel, such as those of causal attention whose two lengths vary apart, have kernels of
            their own.
        q_scale, k_scale, v_scale: what q, k and v were divided by when they were quantized: a number, or a tensor (),
            (heads,) or (batch, heads), with k's heads for k and v.  The kernel reads them at each call.  None: 1.
        weights_dtype: dtype to which the softmax's weights are rounded before they are multiplied by v.  None: v's, or
            float16 if v has 8 bits.  torch.float8_e4m3fn, for a v of that dtype, is less exact
            (docs/concepts/numbers.md); v is then transposed at each call, unless v.transpose(2, 3) is contiguous.
        others: query, key and value are other names of q, k and v.  Arguments of SDPA are refused, with an
            alternative.

    Returns:
        (batch, heads, q_len, v_head_dim), of q's dtype (bfloat16 if q has 8 bits, which holds what float32 does), its
        dimensions in the order in which q has them in memory: as torch.empty_like(q), and contiguous if q is.  The
        kernel is compiled for the strides of q, k and v, and reads them where they are: x.view(batch, length, heads,
        head_dim).transpose(1, 2), parts of a packed projection or of a cache, expanded batches and heads.  Only a
        tensor whose last dimension is strided is copied, at each call and with a warning once for each of q, k and v.

        With return_lse, (out, lse): lse is (batch, heads, q_len), float32, the natural logarithm of the sum over j of
        exp(score), and -inf for a query that attends to no key.

        With return_aux, (out, AuxOutput): its lse as above, and its max_scores, of the same shape and dtype, the
        largest score of each query; -inf for a query that attends to no key.  What was not asked for is None.

    Raises:
        LaunchError: a tensor has a shape, dtype or device that is not supported; an option is not of its type;
            block_mask is for other sizes.
        DefinitionError: a mod cannot be compiled; `scale` is not a finite number.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    if others:
        q, k, v = named(q, k, v, others)
    if torch._C._is_any_autocast_enabled():
        q, k, v = under_autocast(q, k, v)
    dynamo = torch.compiler.is_dynamo_compiling()
    if q_scale is k_scale is v_scale is weights_dtype is None and not dynamo:
        given = q, k, v, score_mod, mask_mod, enable_gqa, scale, return_lse, dynamic
        simple = block_mask is return_aux is None and not kernel_options
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            found = launched_packed(*given, cu_seqlens_q, cu_seqlens_k) if simple else None
        elif simple:
            found = launched(*given)
        else:
            found = launched_with(*given, block_mask, return_aux, kernel_options)
        if found is not None:
            return found
    if dynamo:
        enable_gqa, return_lse = settled(enable_gqa), settled(return_lse)
    else:
        refuse_jit_trace("attention", EXPORTED)
    if q is None or k is None or v is None:
        raise LaunchError("attention takes three tensors, and one is missing or None", help="attention(q, k, v)")
    places = None
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        places = places_of(q, k, v, cu_seqlens_q, cu_seqlens_k, score_mod is not None or mask_mod is not None)
    formats = q_scale, k_scale, v_scale, weights_dtype
    eight = has_quantized(q, k, v, formats)
    plain = return_lse is False and return_aux is None and dynamic is None and not eight
    if block_mask is None and plain and not kernel_options:
        return _attend(q, k, v, score_mod, mask_mod, enable_gqa, scale, PLAIN, places)
    more = block_mask, return_lse, return_aux, kernel_options, dynamic, formats if eight else None
    return _attend_with_options(q, k, v, score_mod, mask_mod, enable_gqa, scale, places, *more)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    enable_gqa: bool,
    scale: float | None,
    extras: Extras,
    places: Places | None = None,
    scales: tuple[torch.Tensor, ...] = (),
) -> Any:
    """The kernel's outputs: a tensor, or a tuple of `out` and those that `extras` asks for."""
    if torch.compiler.is_dynamo_compiling():
        common = None if extras.formats else common_dtype(q.dtype, k.dtype, v.dtype)
        if common is None:
            return traced(q, k, v, score_mod, mask_mod, enable_gqa, scale, extras, places, scales)
        same = q.to(common), k.to(common), v.to(common)
        return with_first_as(traced(*same, score_mod, mask_mod, enable_gqa, scale, extras, places), q.dtype)
    if not isinstance(enable_gqa, bool) or not (scale is None or type(scale) in (int, float)):
        scale = checked_scale(enable_gqa, scale)
    device = device_of(q, k, v)
    refuse_transforms(q, k, v)
    if forward_ad._current_level >= 0:
        refuse_forward_gradients({"q": q, "k": k, "v": v}, scales)
    if not q.dtype == k.dtype == v.dtype and not extras.formats:
        common = common_dtype(q.dtype, k.dtype, v.dtype)
        if common is not None:
            warn_of_conversions(q, k, v, common)
            same = q.to(common), k.to(common), v.to(common)
            return with_first_as(_attend(*same, score_mod, mask_mod, enable_gqa, scale, extras, places), q.dtype)
    if type(q) is not torch.Tensor:
        refuse_symbols(q, k, v)
    if is_empty(q, k, v):
        check_empty(q, k, v, device, enable_gqa, scale, extras)
        return outputs_of_empty(q, k, v, extras, read(score_mod).tensors if torch.is_grad_enabled() else ())
    states = None
    if places is not None:
        states = packed_states(score_mod, mask_mod, places.k_sequence is places.q_sequence, places)
        score_mod, mask_mod = packed_mods(score_mod, mask_mod, places)
        places = None
        if not extras.formats:
            found = launched(q, k, v, score_mod, mask_mod, enable_gqa, scale, *extras.known, states=states)
            if found is not None:
                return found
    given = q, k, v
    mods, reading, (q, k, v), problem = read_call(
        q, k, v, device, score_mod, mask_mod, enable_gqa, scale, extras, places
    )
    captured = reading.tensors
    refuse_transforms(*captured)
    if forward_ad._current_level >= 0:
        refuse_forward_gradients({}, captured)
    if type(q) is not torch.Tensor and captured:
        mods, reading, captured = over_examples(mods, reading)
    if torch.is_grad_enabled() and records_gradients((q, k, v, *captured)):
        found = recording_for(problem_of(*problem), *mods, reading, device)
        if reading.exact and q is given[0] and k is given[1] and v is given[2]:
            call = q, k, v, score_mod, mask_mod, enable_gqa, scale, extras
            keep_recorded(call, found.kernel, found.captured, reading.tensors, states)
        return found.kernel(q, k, v, *captured_inputs(found.captured, captured, device))
    compiled = _kernel(problem, *mods, reading)
    extra = captured_inputs(compiled.captured, captured, device) if compiled.captured else ()
    if reading.exact and q is given[0] and k is given[1] and v is given[2]:
        family = known_family(problem_of(*problem), reading) if compiled.kernel.spec.ranges else None
        keep((q, k, v, score_mod, mask_mod, enable_gqa, scale, extras), compiled, reading.tensors, family, states)
    if type(q) is type(k) is type(v) is torch.Tensor and not torch._C._len_torch_dispatch_stack():
        return compiled.kernel.launch(q, k, v, *scales, *extra)
    return compiled.op(q, k, v, *scales, *extra)  # for fake tensors, and for modes that only see operators


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    device: torch.device,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    enable_gqa: bool,
    scale: float | None,
    extras: Extras,
    places: Places | None = None,
) -> None:
    """Compiles the kernel for tensors like these on `device`, whose values are not read."""
    mods, reading, _, problem = read_call(q, k, v, device, score_mod, mask_mod, enable_gqa, scale, extras, places)
    _kernel(problem, *mods, reading)


def _kernel(problem: tuple[Any, ...], score_mod: Any, mask_mod: Any, reading: Reading) -> Compiled:
    """The kernel of a problem, from memory if it is known."""
    compiled = _kernels.get((problem, reading.key)) if reading.exact else None
    return _compiled(problem, score_mod, mask_mod, reading) if compiled is None else compiled


def _attend_with_options(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    enable_gqa: bool,
    scale: float | None,
    places: Places | None,
    block_mask: Any,
    return_lse: Any,
    return_aux: Any,
    kernel_options: Any,
    dynamic: Any,
    formats: tuple[Any, Any, Any, Any] | None,
) -> Any:
    """`attention` with the arguments that few calls have."""
    of_eight = NONE if formats is None else quantized(q, k, v, *formats)
    extras = extras_of(return_lse, return_aux, kernel_options, dynamic)._replace(formats=of_eight.formats)
    if ("v_transposed", True) in extras.formats:
        from neptune_lab.runtime.keys_last import keys_last

        if is_empty(q, k, v):
            extras = extras._replace(formats=without_transposition(extras.formats))
        else:
            v = keys_last(v)
    if block_mask is not None:
        refuse_beside_block_mask(mask_mod, packed=places is not None)
        device_of(q, k, v)
        for name, tensor in (("q", q), ("k", k)):
            check_axes(name, tensor.shape)
        mask_mod = None if is_empty(q, k, v) else mask_of(block_mask, q, k)
    found = _attend(q, k, v, score_mod, mask_mod, enable_gqa, scale, extras, places, of_eight.scales)
    if return_aux is None:
        return found
    from torch.nn.attention.flex_attention import AuxOutput

    return with_aux(found, extras.lse, extras.max_scores, AuxOutput)


def forget() -> None:
    """Forgets the kernels in memory and the lengths that were seen, as in a new process; the disk keeps its own."""
    _kernels.clear()
    known_calls.forget()
    options_of_calls.forget()
    known.forget()
    recording.forget()


def _compiled(problem: tuple[Any, ...], score_mod: Any, mask_mod: Any, reading: Reading) -> Compiled:
    """The kernel from `compiled_for`, kept for later calls if `reading` is exact."""
    *_, device, _, _, _, _ = problem
    compiled = compiled_for(problem_of(*problem), score_mod, mask_mod, reading, device)
    if reading.exact:
        _kernels[problem, reading.key] = compiled
        if len(_kernels) > _MOST:
            _kernels.popitem(last=False)
    return compiled
