"""FlashAttention-2's forward pass written by hand in Triton, the alternative to a compiler.

One kernel with two kinds of memory access, pointers and host tensor descriptors, tuned over `CONFIGS` for each shape.
It supports fp16 attention without a score change: global or causal, with or without groups of query heads (Dao,
"FlashAttention-2", 2023, Algorithm 1).
"""

# A launch `kernel[grid](...)` and `tl.range` confuse type checkers.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.accuracy import AttentionCase


@triton.jit
def _tile(source, row, ROWS: tl.constexpr, WIDTH: tl.constexpr, DESCRIPTOR: tl.constexpr):
    """Rows `row` and on of a matrix of `WIDTH` columns."""
    if DESCRIPTOR:
        tile = source.load([row, 0])
    else:
        offsets = tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tile = tl.load(source + row.to(tl.int64) * WIDTH + offsets)
    return tile


@triton.jit
def _pass(
    acc, total, peak, q, k_source, v_source, base, query, first, last, scale,
    KEYS: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, MASKED: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Goes over the keys from `first` to `last`; `scale` turns a score into an exponent of two."""
    for start in tl.range(first, last, KEYS):
        k = _tile(k_source, base + start, KEYS, K_WIDTH, DESCRIPTOR)
        score = tl.dot(q, k.T)
        if MASKED:
            score = tl.where(query[:, None] >= start + tl.arange(0, KEYS)[None, :], score, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1) * scale)
        weight = tl.exp2(score * scale - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weight, 1)
        v = _tile(v_source, base + start, KEYS, V_WIDTH, DESCRIPTOR)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None])
        peak = new_peak
    return acc, total, peak


@triton.jit
def _forward(
    q_source, k_source, v_source, out, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, Q_LEN: tl.constexpr, KV_LEN: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if CAUSAL:
        block = tl.num_programs(0) - 1 - block  # the longest rows first, so that none of them comes last
    head = tl.program_id(1)
    row = head * Q_LEN + block * QUERIES
    base = (head // HEADS * (HEADS // GROUP) + head % HEADS // GROUP) * KV_LEN
    query = block * QUERIES + tl.arange(0, QUERIES)
    q = _tile(q_source, row, QUERIES, K_WIDTH, DESCRIPTOR)
    peak = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, V_WIDTH], tl.float32)
    inner = KV_LEN
    if CAUSAL:
        inner = block * QUERIES
    acc, total, peak = _pass(
        acc, total, peak, q, k_source, v_source, base, query, 0, inner, scale, KEYS, K_WIDTH, V_WIDTH, False,
        DESCRIPTOR,
    )  # fmt: skip
    if CAUSAL:
        acc, total, peak = _pass(
            acc, total, peak, q, k_source, v_source, base, query, inner, inner + QUERIES, scale, KEYS, K_WIDTH,
            V_WIDTH, True, DESCRIPTOR,
        )  # fmt: skip
    acc = (acc / total[:, None]).to(q.dtype)
    if DESCRIPTOR:
        out.store([row, 0], acc)
    else:
        offsets = tl.arange(0, QUERIES)[:, None] * V_WIDTH + tl.arange(0, V_WIDTH)[None, :]
        tl.store(out + row.to(tl.int64) * V_WIDTH + offsets, acc)


@dataclass(frozen=True, slots=True)
class Config:
    """Queries and keys per tile, warps, and stages of the loads."""

    queries: int
    keys: int
    warps: int
    stages: int


CONFIGS = (
    Config(128, 64, 4, 3),
    Config(128, 64, 8, 3),
    Config(128, 128, 8, 2),
    Config(128, 128, 8, 3),
    Config(64, 64, 4, 3),
    Config(64, 32, 4, 4),
    Config(128, 32, 4, 4),
    Config(64, 128, 4, 2),
)


def refusal(case: AttentionCase, head_dim: int, v_head_dim: int) -> str:
    """Why the kernel does not support this attention; empty if it does."""
    if case.alibi or case.cap is not None or case.window is not None:
        return "written for global and causal attention"
    if case.q_len == 1:
        return "written for prefill"
    if any(n & (n - 1) or n < 16 for n in (head_dim, v_head_dim)):
        return "head widths are powers of two"
    if case.causal and case.q_len != case.kv_len:
        return "a causal mask needs as many queries as keys"
    return "" if configs(case) else "no tile divides these lengths"


def configs(case: AttentionCase) -> tuple[Config, ...]:
    """The configurations whose tiles divide the lengths (in causal attention, each other as well)."""
    return tuple(
        c
        for c in CONFIGS
        if case.q_len % c.queries == 0 and case.kv_len % c.keys == 0 and (not case.causal or c.queries % c.keys == 0)
    )


def attention(
    case: AttentionCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, descriptors: bool, config: Config
) -> torch.Tensor:
    """`q` (batch, heads, q_len, head_dim), `k`, `v` (batch, kv_heads, kv_len, .) in fp16, contiguous, to q's shape."""
    batch, heads, q_len, width = q.shape
    kv_len, v_width = v.shape[2:]
    out = q.new_empty(batch, heads, q_len, v_width)
    tensors: tuple[Any, ...] = (q, k, v, out)
    if descriptors:
        rows = (config.queries, config.keys, config.keys, config.queries)
        tensors = tuple(
            TensorDescriptor.from_tensor(t.view(-1, t.shape[-1]), [n, t.shape[-1]])
            for t, n in zip(tensors, rows, strict=True)
        )
    _forward[(q_len // config.queries, batch * heads)](
        *tensors, case.scale * math.log2(math.e), heads, heads // k.shape[1], q_len, kv_len,
        config.queries, config.keys, width, v_width, case.causal, descriptors,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out


def tuned(
    case: AttentionCase,
    tensors: tuple[torch.Tensor, ...],
    *,
    descriptors: bool,
    quick: Callable[[Callable[[], Any]], float],
) -> tuple[Callable[[], torch.Tensor], Config]:
    """The fastest configuration, and the kernel ready to launch with it.

    Args:
        quick: times a launch approximately.

    Raises:
        MeasureError: no configuration fits the GPU.
    """

    def call(config: Config) -> Callable[[], torch.Tensor]:
        return lambda: attention(case, *tensors, descriptors=descriptors, config=config)

    times: dict[Config, float] = {}
    for config in configs(case):
        try:
            times[config] = quick(call(config))
        except OutOfResources:
            continue  # this GPU has less shared memory than the configuration needs
    if not times:
        raise MeasureError(
            "no configuration of the hand-written kernel fits this GPU",
            help="add one with smaller tiles to CONFIGS in neptune_lab/bench/hand_attention.py",
        )
    best = min(times, key=times.__getitem__)
    return call(best), best
