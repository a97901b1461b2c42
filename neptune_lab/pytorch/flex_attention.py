"""`attention`: FlexAttention's interface for kernels of this compiler."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.arguments import (
    as_input,
    device_of,
    problem_of,
    refuse_gradients,
    refuse_options,
    refuse_others,
    refuse_transforms,
    warn_of_copies,
)
from neptune_lab.pytorch.compiled import Compiled, compiled_for
from neptune_lab.pytorch.mods import Reading, read
from neptune_lab.pytorch.traced import traced
from neptune_lab.runtime import to_tensor
from neptune_lab.runtime.torch_op import torch_op

# Kernels by everything that they depend on; the oldest are dropped first.
_kernels: OrderedDict[Any, Compiled] = OrderedDict()
_MOST = 1024
_MISSING: Any = None  # a tensor that was left out, or passed under another name


def attention(
    q: torch.Tensor = _MISSING,
    k: torch.Tensor = _MISSING,
    v: torch.Tensor = _MISSING,
    *more: Any,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    enable_gqa: bool = False,
    scale: float | None = None,
    **others: Any,
) -> torch.Tensor:
    """Attention with FlexAttention's arguments, in one kernel compiled for these shapes and mods.

        score[b, h, i, j] = score_mod(scale * sum over d of q[b, h, i, d] * k[b, h // group, j, d], b, h, i, j)
        weight[b, h, i, :] = softmax over those j of score[b, h, i, j] for which mask_mod(b, h, i, j)
        out[b, h, i, :] = sum over j of weight[b, h, i, j] * v[b, h // group, j, :]

    The first call for new shapes or new mods compiles; later calls, also in later processes, reuse the kernel.  If
    there is a tuning record for the problem on this GPU, its choice is compiled.  Works inside torch.compile without a
    graph break (except for a mod over a tensor that the compiled function takes or makes: define such mods outside
    the function) and under CUDA-graph capture (after one call outside the capture).

    The kernel reads the tensors that a mod captures at each call: their values may change, and a new shape or dtype
    recompiles.  They must be on q's device; a tensor without axes may be on the CPU, which costs a copy per call.
    A mod computes with int64 and float64 as PyTorch does; smaller integers become int32.
    Any other value that a mod reads (variables, attributes of functions and modules, items of containers) is compared
    at each call, and a change recompiles.  A mod that reads attributes of an object, or uses getattr or an import, is
    traced at every call, since what it reads may have changed; that takes milliseconds.

    Args:
        q: queries (batch, heads, q_len, head_dim), float16, bfloat16 or float32.
        k: keys (batch, kv_heads, kv_len, head_dim), of q's dtype.
        v: values (batch, kv_heads, kv_len, v_head_dim), of q's dtype.
        score_mod: `score_mod(score, b, h, q, kv)` returns the new score for a float32 score; None: unchanged.
        mask_mod: `mask_mod(b, h, q, kv)` is true if the query attends to the key; None: no mask.  The output row of a
            query that attends to no key is 0.
        enable_gqa: lets kv_heads be a divisor of heads; query head h reads head h // (heads // kv_heads).
        scale: factor of the scores; 1/sqrt(head_dim) if None.
        more, others: arguments of FlexAttention and SDPA that this function refuses, with an alternative.

    Returns:
        (batch, heads, q_len, v_head_dim), of q's dtype, contiguous.  If only q has a batch above 1, k and v are
        repeated.  Inputs that are not contiguous, such as x.view(batch, length, heads, head_dim).transpose(1, 2), are
        copied at each call, with a warning once for each of q, k and v.

    Raises:
        LaunchError: a tensor has a shape, dtype or device that is not supported, or records gradients (there is no
            backward); an option is not of its type.
        DefinitionError: a mod cannot be compiled; `scale` is not a finite number.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    if more or others:
        refuse_others(more, others)
    if q is None or k is None or v is None:
        raise LaunchError("attention takes three tensors, and one is missing or None", help="attention(q, k, v)")
    if torch.compiler.is_dynamo_compiling():
        return traced(q, k, v, score_mod, mask_mod, enable_gqa, scale)
    if not isinstance(enable_gqa, bool) or not (scale is None or isinstance(scale, int | float)):
        refuse_options(enable_gqa, scale)
    device = device_of(q, k, v)
    refuse_transforms(q, k, v)
    if k.ndim == v.ndim == q.ndim == 4 and k.shape[0] == v.shape[0] == 1 != q.shape[0]:
        k, v = (t.expand(q.shape[0], -1, -1, -1) for t in (k, v))  # copied below, which a warning says
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        refuse_gradients(q, k, v)
    reading = read(score_mod, mask_mod)
    problem = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, device, enable_gqa, scale
    compiled = _kernels.get((problem, reading.key)) if reading.exact else None
    if compiled is None:
        compiled = _compiled(problem, score_mod, mask_mod, reading)
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        warn_of_copies(q, k, v)
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    extra = _captured(compiled, reading, device) if compiled.captured else ()
    if type(q) is type(k) is type(v) is torch.Tensor and not torch._C._len_torch_dispatch_stack():
        return compiled.kernel.launch(q, k, v, *extra)
    return torch_op(compiled.kernel)(q, k, v, *extra)  # for fake tensors, and for modes that only see operators


def _compiled(problem: tuple[Any, ...], score_mod: Any, mask_mod: Any, reading: Reading) -> Compiled:
    """The kernel from `compiled_for`, kept for later calls if `reading` is exact."""
    *_, device, _, _ = problem
    compiled = compiled_for(problem_of(*problem), score_mod, mask_mod, reading, device)
    if reading.exact:
        _kernels[problem, reading.key] = compiled
        if len(_kernels) > _MOST:
            _kernels.popitem(last=False)
    return compiled


def _captured(compiled: Compiled, reading: Reading, device: torch.device) -> list[torch.Tensor]:
    """The captured tensors as the kernel takes them."""
    recording = torch.is_grad_enabled()
    tensors = []
    for index, dtype in compiled.captured:
        tensor = reading.tensors[index]
        if isinstance(tensor, np.ndarray):
            tensor = to_tensor(tensor).reshape(tensor.shape)  # to_tensor adds an axis if there is none
        if tensor.device != device and not (tensor.ndim == 0 and tensor.device.type == "cpu"):
            raise LaunchError(
                f"a mod captures a tensor of shape {tuple(tensor.shape)} on {tensor.device}; expected {device}, where "
                "q is",
                help=f"make it a torch tensor there, with .to({str(device)!r})",
            )
        if recording and tensor.requires_grad:
            raise LaunchError(
                f"a mod captures a tensor of shape {tuple(tensor.shape)} that records gradients, and attention has no "
                "backward",
                help="call it under torch.no_grad(), or capture tensor.detach()",
            )
        tensors.append(as_input(tensor, device, dtype))
    return tensors
