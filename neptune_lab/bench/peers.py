"""The alternatives to our kernel: compilers and libraries, each with the setups that it does not support.

Compilers are given the operator: FlexAttention, torch.compile of the plain definition, Triton written by hand.
Libraries contain it: the backends of torch's scaled_dot_product_attention, and cuBLAS products called in sequence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from neptune_lab.bench import hand_attention
from neptune_lab.bench.definitions import definition
from neptune_lab.bench.measured import COMPILE, CUDNN, EAGER, EFFICIENT, FLASH, FLEX, HAND
from neptune_lab.bench.setups import Setup
from neptune_lab.runtime.accuracy import seen
from neptune_lab.runtime.timing import Resources

TUNED = "max-autotune"

Tensors = tuple[torch.Tensor, ...]
Quick = Callable[[Callable[[], Any]], float]

# The largest share of the GPU's memory for a score matrix.
_SHARE = 0.35
# A mask over more pairs than this is not created in one piece.
_LARGE_MASK = 1 << 28


@dataclass(frozen=True)
class Ready:
    """A contestant that can be called.

    Args:
        call: launches once, and returns the outputs.
        note: a remark, such as the fastest configuration.
        options: of our kernels.
        resources: resources of its launched kernels, read after a call.
    """

    call: Callable[[], Any]
    note: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    resources: Callable[[], tuple[Resources, ...]] = tuple


@dataclass(frozen=True)
class Peer:
    """A contestant that is not ours.

    Args:
        name: unique.
        kind: "compiler" or "library".
        refuses: why it does not support a setup on a device with so many bytes; empty if it does.
        make: compiles for the setup and its tensors; `quick` times a call approximately.
        quiet: must be compiled with the GPU otherwise idle, since it times its own candidates.
    """

    name: str
    kind: str
    refuses: Callable[[Setup, int], str]
    make: Callable[[Setup, Tensors, Quick], Ready]
    quiet: bool = False


def peers(setup: Setup, autotuned: Sequence[str] = ()) -> tuple[Peer, ...]:
    """The contestants of a setup.

    Args:
        autotuned: patterns of setup names; setups that match are also compiled with max-autotune, which takes minutes.
    """
    compiled = (Peer(COMPILE, "compiler", _plain_refuses, _compiled()),)
    eager = (Peer(EAGER, "library", _plain_refuses, _eager),)
    tuned = any(fnmatchcase(setup.name, pattern) for pattern in autotuned)
    if tuned and not setup.is_attention:  # with all scores in memory, no choice of its kernels matters
        name = f"{COMPILE}, {TUNED}"
        compiled += (Peer(name, "compiler", _plain_refuses, _compiled(_MAX_AUTOTUNE), quiet=True),)
    if not setup.is_attention:
        return (*compiled, *eager) if setup.group == "chains" else compiled
    flex = (Peer(FLEX, "compiler", _takes, _flex()),)
    if tuned:
        flex += (Peer(f"{FLEX}, {TUNED}", "compiler", _takes, _flex(_MAX_AUTOTUNE), quiet=True),)
    hand = tuple(
        Peer(f"{HAND}, {spelling}", "compiler", _hand_refuses, _hand(spelling == "descriptors"))
        for spelling in ("pointers", "descriptors")
    )
    sdpa = (
        Peer(CUDNN, "library", _sdpa_refuses, _sdpa(SDPBackend.CUDNN_ATTENTION)),
        Peer(FLASH, "library", _flash_refuses, _sdpa(SDPBackend.FLASH_ATTENTION)),
        Peer(EFFICIENT, "library", _sdpa_refuses, _sdpa(SDPBackend.EFFICIENT_ATTENTION, repeat=True)),
    )
    if setup.group == "batch":  # throughput is compared among fused kernels
        return (*flex, *hand, *sdpa)
    return (*flex, *hand, *compiled, *sdpa, *(eager if setup.group == "modules" else ()))


_MAX_AUTOTUNE = "max-autotune-no-cudagraphs"


def _takes(setup: Setup, memory: int) -> str:
    return ""


# -- torch.compile, and PyTorch as it is -----------------------------------------------------------------------------


def _plain_refuses(setup: Setup, memory: int) -> str:
    if not setup.is_attention:
        return ""
    batch, heads = setup.op.inputs[0].shape[:2]
    case = setup.case
    need = batch * heads * case.q_len * case.kv_len * 8  # scores in float32, and temporaries
    return f"the score matrix needs about {need / 1e9:.0f} GB" if need > _SHARE * memory else ""


def _compiled(mode: str | None = None) -> Callable[[Setup, Tensors, Quick], Ready]:
    def make(setup: Setup, tensors: Tensors, quick: Quick) -> Ready:
        run = compile_for(tensors, definition(setup), mode)
        return Ready(lambda: run(*tensors))

    return make


def compile_for(tensors: Tensors, function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """torch.compile for one shape; without a GPU, only its tracing."""
    if not tensors[0].is_cuda:
        return torch.compile(function, backend="eager", dynamic=False)
    return torch.compile(function, dynamic=False, mode=mode)


def _eager(setup: Setup, tensors: Tensors, quick: Quick) -> Ready:
    run = definition(setup)
    return Ready(lambda: run(*tensors))


# -- FlexAttention ---------------------------------------------------------------------------------------------------


def _flex(mode: str | None = None) -> Callable[[Setup, Tensors, Quick], Ready]:
    def make(setup: Setup, tensors: Tensors, quick: Quick) -> Ready:
        q, k, v = tensors
        case, offset = setup.case, setup.case.kv_len - setup.case.q_len
        cap = case.cap or 1.0
        slopes = torch.exp2(-8.0 * torch.arange(1, case.heads + 1, device=q.device) / case.heads)

        def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + slopes[h] * (j - (i + offset))

        def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return cap * torch.tanh(score / cap)

        def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
            return seen(case, i + offset if offset else i, j)

        mask = None
        if case.causal:
            large = q.is_cuda and case.q_len * case.kv_len > _LARGE_MASK
            mask = create_block_mask(visible, None, None, case.q_len, case.kv_len, device=q.device, _compile=large)
        score_mod = alibi if case.alibi else capped if case.cap is not None else None
        run = compile_for(tensors, flex_attention, mode) if q.is_cuda else flex_attention
        grouped = case.kv_heads != case.heads

        def call() -> Any:
            return run(q, k, v, score_mod=score_mod, block_mask=mask, scale=case.scale, enable_gqa=grouped)

        return Ready(call)

    return make


# -- Triton by hand --------------------------------------------------------------------------------------------------


def _hand_refuses(setup: Setup, memory: int) -> str:
    return hand_attention.refusal(setup.case, setup.op.inputs[0].shape[-1], setup.op.inputs[2].shape[-1])


def _hand(descriptors: bool) -> Callable[[Setup, Tensors, Quick], Ready]:
    def make(setup: Setup, tensors: Tensors, quick: Quick) -> Ready:
        call, best = hand_attention.tuned(setup.case, tensors, descriptors=descriptors, quick=quick)
        return Ready(call, f"{best.queries}x{best.keys}, {best.warps} warps, {best.stages} stages")

    return make


# -- scaled_dot_product_attention ------------------------------------------------------------------------------------


def _sdpa_refuses(setup: Setup, memory: int) -> str:
    case = setup.case
    if case.cap is not None:
        return "SDPA has no soft capping"
    if _is_plain(setup):
        return ""
    need = case.heads * case.q_len * case.kv_len * 2
    return f"its bias as a tensor needs {need / 1e9:.0f} GB" if need > memory // 8 else ""


def _flash_refuses(setup: Setup, memory: int) -> str:
    return _sdpa_refuses(setup, memory) or ("" if _is_plain(setup) else "the backend takes no bias")


def _is_plain(setup: Setup) -> bool:
    case = setup.case
    windowed = case.window is not None and case.window < case.kv_len
    return not case.alibi and not windowed and (not case.causal or case.q_len == case.kv_len)


def _sdpa(backend: SDPBackend, repeat: bool = False) -> Callable[[Setup, Tensors, Quick], Ready]:
    def make(setup: Setup, tensors: Tensors, quick: Quick) -> Ready:
        q, k, v = tensors
        case = setup.case
        grouped = case.kv_heads != case.heads
        if grouped and repeat:  # this backend supports no groups; the copies are not timed
            k, v = (t.repeat_interleave(case.heads // case.kv_heads, 1) for t in (k, v))
            grouped = False
        plain = _is_plain(setup)
        bias = None if plain else _bias(setup, q)

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=bias, is_causal=plain and case.causal, scale=case.scale, enable_gqa=grouped
                )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a refusal also raises
            call()
        note = "" if plain else "mask and bias as a float16 tensor"
        return Ready(call, note if not repeat or case.kv_heads == case.heads else "keys and values repeated beforehand")

    return make


def _bias(setup: Setup, q: torch.Tensor) -> torch.Tensor:
    """The bias of the scores, made head by head, so that float32 copies stay small."""
    case = setup.case
    query = torch.arange(case.q_len, device=q.device)[:, None] + (case.kv_len - case.q_len)
    key = torch.arange(case.kv_len, device=q.device)
    bias = torch.zeros(1, case.heads if case.alibi else 1, case.q_len, case.kv_len, dtype=q.dtype, device=q.device)
    for head in range(bias.shape[1]):
        if case.alibi:
            bias[0, head] = 2.0 ** (-8.0 * (head + 1) / case.heads) * (key - query)
        if case.causal:
            bias[0, head].masked_fill_(~seen(case, query, key), -torch.inf)
    return bias
