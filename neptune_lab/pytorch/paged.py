"""`paged_attention`: attention over keys and values in a cache of pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.operators.paging import paged_mods
from neptune_lab.power_of_two import power_of_two
from neptune_lab.pytorch.arguments import captured_inputs, check_axes, check_shape, checked_scale, device_of, problem_of
from neptune_lab.pytorch.autocast import under_autocast
from neptune_lab.pytorch.compiled import Compiled, compiled_for
from neptune_lab.pytorch.empty import outputs_of_empty
from neptune_lab.pytorch.examples import over_examples
from neptune_lab.pytorch.extras import Extras, extras_of
from neptune_lab.pytorch.mods import read
from neptune_lab.pytorch.quantized import NONE, has_quantized, quantized
from neptune_lab.pytorch.refusals import (
    captured_by_name,
    refuse_forward_gradients,
    refuse_gradients,
    refuse_layout,
    refuse_transforms,
)
from neptune_lab.pytorch.traced_paged import traced_paged
from neptune_lab.runtime.subclasses import EXPORTED, refuse_jit_trace
from neptune_lab.strict.console import class_of

# Kernels by everything that they depend on; the oldest are dropped first.
_kernels: OrderedDict[Any, Compiled] = OrderedDict()
_MOST = 256
# Columns of page tables, by the sizes and options of a call.
_widths: dict[Any, set[int]] = {}


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    q_scale: float | torch.Tensor | None = None,
    k_scale: float | torch.Tensor | None = None,
    v_scale: float | torch.Tensor | None = None,
) -> Any:
    """Attention over keys and values in a cache of pages, without copying them.

        key[b, h, j, :] = k_cache[page_table[b, j // page_size], j % page_size, h // group, :]   for j < lengths[b]

    The caches have the layout of vLLM and flash-attention.  The queries of a sequence are its last ones: query i of
    q_len is at position lengths[b] - q_len + i, and so mods get it.  For a single query no mask is needed; for several,
    `mask_mod=lambda b, h, q, kv: q >= kv` is causal.

    The values of page_table and lengths are read at each call, and may change; new shapes compile a new kernel.  A
    table that grows by a column at a time compiles only a few, since it is padded, which copies it.  Keys
    beyond the length of a sequence, and their entries in page_table, are not used, whatever they hold.  On the CPU the
    values are checked.  On a GPU they are not, since a check would wait for it: a page that does not exist reads as 0,
    and nothing outside of the cache is read.

    Args:
        q: queries (batch, heads, q_len, head_dim), float16, bfloat16 or float32, or float8_e4m3fn or float8_e5m2.
        k_cache: keys (pages, page_size, kv_heads, head_dim), contiguous; kv_heads is a divisor of heads.  Of q's dtype,
            or float8_e4m3fn, float8_e5m2 or int8, whatever q is.
        v_cache: values (pages, page_size, kv_heads, v_head_dim), likewise.
        page_table: the pages of each sequence in order, int32 or int64 (batch, most pages of a sequence).
        lengths: keys of each sequence, int32 or int64 (batch,), from 0 to the number of keys that its pages hold.
        score_mod, mask_mod: as for `attention`.
        scale: factor of the scores; 1/sqrt(head_dim) if None.
        return_lse: also return the log-sum-exp of the scores, as `attention` does.
        kernel_options: as for `attention`.
        q_scale, k_scale, v_scale: as for `attention`, those of the caches a number, or a tensor () or (kv_heads,).

    Returns:
        (batch, heads, q_len, v_head_dim), of q's dtype (bfloat16 if q has 8 bits); a query that attends to no key gives
        0.  With return_lse, this and (batch, heads, q_len) in float32.

    Raises:
        LaunchError: a tensor has a shape, dtype, device or strides that are not supported, or records gradients.
        DefinitionError: a mod cannot be compiled; `scale` is not a finite number.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    q, k_cache, v_cache = under_autocast(q, k_cache, v_cache)
    run = traced_paged if torch.compiler.is_dynamo_compiling() else paged
    return run(
        q, k_cache, v_cache, page_table, lengths, score_mod, mask_mod, scale, return_lse, kernel_options,
        (q_scale, k_scale, v_scale),
    )  # fmt: skip


def paged(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    page_table: Any,
    lengths: Any,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    scale: float | None,
    return_lse: bool,
    kernel_options: Mapping[str, Any] | None,
    scales: tuple[Any, Any, Any],
) -> Any:
    """`paged_attention` outside of graphs."""
    refuse_jit_trace("attention", EXPORTED)
    scale = checked_scale(True, scale)
    refuse_transforms(q, k_cache, v_cache, page_table, lengths, *scales)
    device = check_paged(q, k_cache, v_cache, page_table, lengths, scale)
    refuse_forward_gradients({"q": q, "k_cache": k_cache, "v_cache": v_cache}, scales)
    extras = extras_of(return_lse, None, kernel_options)
    of_eight = NONE
    if has_quantized(q, k_cache, v_cache, (*scales, None)):
        of_eight = quantized(q, k_cache, v_cache, *scales, None, paged=True)
        extras = extras._replace(formats=of_eight.formats)
    if 0 in (q.shape[0], q.shape[2], page_table.shape[1]):
        keys = 1, *k_cache.shape[2:0:-1]
        sizes = (1, q.shape[1], 1, q.shape[3]), (*keys, k_cache.shape[3]), (*keys, v_cache.shape[3])
        problem_of(*sizes, q.dtype, k_cache.dtype, v_cache.dtype, device, True, scale, extras)
        return outputs_of_empty(q, k_cache, v_cache, extras)
    widened = _widened(page_table, (q.shape, k_cache.shape, v_cache.shape, q.dtype, k_cache.dtype, device, extras))
    more = lengths, score_mod, mask_mod, scale, device, extras
    try:
        compiled, captured = _compiled(q, k_cache, v_cache, widened, *more)
    except DefinitionError:  # a mod may read a table that ends where the columns as given end
        if widened is page_table:
            raise
        compiled, captured = _compiled(q, k_cache, v_cache, page_table, *more)
    inputs = captured_inputs(compiled.captured, captured, device)
    # (the operator is for fake tensors, and for modes that only see operators, such as those of torch.export)
    run = compiled.op if type(q) is not torch.Tensor or torch._C._len_torch_dispatch_stack() else compiled.kernel.launch
    return run(q.contiguous(), k_cache, v_cache, *of_eight.scales, *inputs)


def _compiled(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    scale: float | None,
    device: torch.device,
    extras: Extras,
) -> tuple[Compiled, Sequence[Any]]:
    """The kernel of a call, from memory if it is known, and the tensors that its mods read."""
    pages, page_size, kv_heads, _ = k_cache.shape
    keys = q.shape[0], kv_heads, page_table.shape[1] * page_size
    sizes = q.shape, (*keys, k_cache.shape[3]), (*keys, v_cache.shape[3])
    one = problem_of(*sizes, q.dtype, k_cache.dtype, v_cache.dtype, device, True, scale, extras)
    problem = replace(one, pages=(pages, page_size))
    mods: tuple[Any, ...] = paged_mods(score_mod, mask_mod, page_table, lengths, page_size, q.shape[2])
    mods, reading, captured = over_examples(mods, read(*mods))
    _refuse_captured(score_mod, captured)
    key = problem, device, reading.key
    compiled = _kernels.get(key) if reading.exact else None
    if compiled is None:
        compiled = compiled_for(problem, mods[0], mods[1], reading, device, mods[2])
        if reading.exact:
            _kernels[key] = compiled
            if len(_kernels) > _MOST:
                _kernels.popitem(last=False)
    return compiled, captured


def _refuse_captured(score_mod: Any, captured: Sequence[Any]) -> None:
    """Raise LaunchError if a tensor that the mods capture has a gradient that a kernel would not give."""
    tensors = [t for t in captured if isinstance(t, torch.Tensor)]
    refuse_transforms(*tensors)
    refuse_forward_gradients({}, tensors)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):  # (a mask gives no gradient)
        refuse_gradients(captured_by_name(read(score_mod).tensors))


def _widened(page_table: torch.Tensor, sizes: Any) -> torch.Tensor:
    """The page table with so many columns that few numbers of them arrive: of tables that grow with their sequences,
    each would have a kernel of its own.

    The first table of some sizes stays as it is.  Later ones get columns, which no length reaches, up to the next
    number that there was, if that is at most twice theirs, or to a power of two.
    """
    width, known = page_table.shape[1], _widths.setdefault(sizes, set())
    if not known or width in known:
        known.add(width)
        return page_table
    wanted = min((n for n in known if width < n <= 2 * width), default=power_of_two(width))
    known.add(wanted)
    return torch.nn.functional.pad(page_table, (0, wanted - width))


def check_paged(q: Any, k_cache: Any, v_cache: Any, page_table: Any, lengths: Any, scale: float | None) -> torch.device:
    """The device of a call's tensors; LaunchError if they do not fit together."""
    device = device_of(q, k_cache, v_cache, ("q", "k_cache", "v_cache"))
    checked_scale(True, scale)
    refuse_gradients({"argument q": q, "argument k_cache": k_cache, "argument v_cache": v_cache})
    _check_caches(q, k_cache, v_cache)
    _check_tables(q, k_cache, page_table, lengths, device)
    return device


def _check_caches(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Raise LaunchError for caches that do not fit together, or that would have to be copied."""
    check_axes("q", q.shape)
    if 0 in (q.shape[1], q.shape[3]):
        check_shape("q", q.shape)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4 or 0 in cache.shape:
            raise LaunchError(
                f"argument {name} has shape {tuple(cache.shape)}; expected (pages, page_size, kv_heads, head_dim), "
                "none of them 0",
                help="a cache (pages, kv_heads, page_size, head_dim) has another layout: allocate it as this one",
            )
        if not cache.is_contiguous():
            raise LaunchError(
                f"argument {name} has strides {cache.stride()}, which are not those of a contiguous "
                f"{tuple(cache.shape)} tensor; a copy of the cache at each call would take longer than attention",
                help="allocate the caches as two contiguous tensors (pages, page_size, kv_heads, head_dim)",
            )
    if min(t.dtype.itemsize for t in (q, k_cache, v_cache)) > 1:  # (with 8 bits, dtypes may differ)
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            if cache.dtype != q.dtype:
                raise LaunchError(
                    f"argument {name} has dtype {cache.dtype}; expected {q.dtype}, which q has",
                    help=f"convert q, which is smaller: q.to({name}.dtype)",
                )
    if k_cache.shape[3] != q.shape[3]:
        raise LaunchError(
            f"argument k_cache has head_dim {k_cache.shape[3]}; expected {q.shape[3]}, which q has",
            help="give q and k_cache the same last dimension",
        )
    if q.shape[1] % k_cache.shape[2]:
        raise LaunchError(
            f"argument k_cache has {k_cache.shape[2]} heads; expected a divisor of {q.shape[1]}, which q has",
            help="each key head serves a whole group of query heads; a cache is (pages, page_size, kv_heads, head_dim)",
        )
    if v_cache.shape[:3] != k_cache.shape[:3]:
        raise LaunchError(
            f"argument v_cache has shape {tuple(v_cache.shape)}; expected {tuple(k_cache.shape[:3])} and a head_dim, "
            "as k_cache has",
            help="give both caches the same pages, page size and heads",
        )


def _check_tables(q: Any, k_cache: Any, page_table: Any, lengths: Any, device: torch.device) -> None:
    """Raise LaunchError for a page table or lengths that do not fit; their values are looked at on the CPU only."""
    for name, tensor, axes in (("page_table", page_table, 2), ("lengths", lengths, 1)):
        expected = "(batch, pages of the longest sequence)" if axes == 2 else "(batch,)"
        if not isinstance(tensor, torch.Tensor):
            raise LaunchError(
                f"argument {name} is {class_of(tensor)}; expected a torch.Tensor of int32, {expected}",
                help=f"torch.tensor({name}, dtype=torch.int32, device=q.device)",
            )
        refuse_layout(f"argument {name}", tensor)
        if tensor.dtype not in (torch.int32, torch.int64):
            raise LaunchError(
                f"argument {name} has dtype {tensor.dtype}; expected torch.int32 or torch.int64",
                help=f"convert it: {name}.to(torch.int32)",
            )
        if tensor.ndim != axes or tensor.shape[0] != q.shape[0]:
            raise LaunchError(
                f"argument {name} has shape {tuple(tensor.shape)}; expected {expected}, with batch {q.shape[0]}",
                help="give each sequence of q one row of pages and one length",
            )
        if tensor.device != device:
            raise LaunchError(
                f"argument {name} is on {tensor.device}; expected {device}, where q is",
                help=f"move it with .to({str(device)!r})",
            )
    if device.type != "cpu" or type(page_table) is not torch.Tensor or type(lengths) is not torch.Tensor:
        return
    if torch._C._len_torch_dispatch_stack():  # a tracer would follow the values
        return
    if not lengths.numel():
        return
    pages, page_size = k_cache.shape[:2]
    most = page_table.shape[1] * page_size
    if int(lengths.min()) < 0 or int(lengths.max()) > most:
        raise LaunchError(
            f"argument lengths has values from {int(lengths.min())} to {int(lengths.max())}; expected 0 to {most}, the "
            f"keys of {page_table.shape[1]} pages",
            help="give page_table a column for each page of the longest sequence"
            if int(lengths.min()) >= 0
            else "a sequence without keys has length 0",
        )
    used = torch.arange(page_table.shape[1])[None] * page_size < lengths[:, None]
    if bool((((page_table < 0) | (page_table >= pages)) & used).any()):
        wrong = page_table[used & ((page_table < 0) | (page_table >= pages))]
        raise LaunchError(
            f"argument page_table has the page {int(wrong[0])} for keys within lengths; expected 0 to {pages - 1}",
            help="only entries behind the length of a sequence may be anything",
        )


__all__ = ["check_paged", "paged", "paged_attention"]
