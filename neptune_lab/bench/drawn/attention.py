"""A drawn attention problem: its tensors and mods, the float64 answer of sampled rows, our call, and the peers'."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from neptune_lab.bench.contestants import Contestant
from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.measured import COMPILE, CUDNN, EFFICIENT, FLASH, FLEX, OURS
from neptune_lab.bench.peers import Ready, compile_for
from neptune_lab.bench.reference import Reference
from neptune_lab.bench.tensors import device_name
from neptune_lab.pytorch import attention

# Checked at most: pairs of a sample and a head, and queries of each.
PAIRS, QUERIES = 24, 64
# A mask over more pairs of a query and a key is made by a compiled function, and not given to SDPA as a tensor.
_LARGE_MASK = 1 << 28
# A score matrix of more float32 elements is not made.
_MOST_SCORES = 1 << 30

Mod = Callable[..., Any]


@dataclass(frozen=True)
class Inputs:
    """Tensors of a problem, and its mods as functions of FlexAttention's form.

    Args:
        q, k, v: (batch, heads, length, width), heads of k and v may be fewer.
        score_mod: `score_mod(score, b, h, q, k)`, or None.
        mask_mod: `mask_mod(b, h, q, k)`, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    score_mod: Mod | None
    mask_mod: Mod | None


def inputs(problem: Problem) -> Inputs:
    """Standard normal tensors from a seed that is the problem's number, and the mods."""
    device, s = device_name(), problem.sizes
    generator = torch.Generator(device).manual_seed(problem.index)
    dtype = getattr(torch, problem.dtype)

    def tensor(heads: int, length: int, width: int) -> torch.Tensor:
        shape = (s["batch"], length, heads, width) if problem.view else (s["batch"], heads, length, width)
        made = torch.randn(shape, dtype=dtype, device=device, generator=generator)
        return made.transpose(1, 2) if problem.view else made

    q = tensor(s["heads"], s["q_len"], s["head_dim"])
    k = tensor(s["kv_heads"], s["kv_len"], s["head_dim"])
    v = tensor(s["kv_heads"], s["kv_len"], s["v_head_dim"])
    return Inputs(q, k, v, _score_mod(problem, device), _mask_mod(problem, device))


def _score_mod(problem: Problem, device: str) -> Mod | None:
    heads, first = problem.sizes["heads"], problem.sizes["kv_len"] - problem.sizes["q_len"]
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    mods: dict[str, Mod | None] = {
        "plain": None,
        "alibi": lambda score, b, h, q, k: score + slopes[h] * (k - q - first),
        "softcap": lambda score, b, h, q, k: 30.0 * torch.tanh(score / 30.0),
        "relative": lambda score, b, h, q, k: score + 0.01 * (k - q),
    }
    return mods[problem.mod]


def _mask_mod(problem: Problem, device: str) -> Mod | None:
    s = problem.sizes
    kv_len, window, first = s["kv_len"], s["window"], s["kv_len"] - s["q_len"]
    prefix = kv_len // 4
    cuts = sorted(random.Random(problem.index).sample(range(1, kv_len), min(s["documents"], kv_len) - 1))
    position = torch.arange(kv_len, device=device)
    document = torch.bucketize(position, torch.tensor(cuts, dtype=torch.long, device=device), right=True).int()
    masks: dict[str, Mod | None] = {
        "full": None,
        "causal": lambda b, h, q, k: q + first >= k,
        "window": lambda b, h, q, k: (q + first >= k) & (q + first - k < window),
        "prefix": lambda b, h, q, k: (k < prefix) | (q + first >= k),
        "document": lambda b, h, q, k: (document[q + first] == document[k]) & (q + first >= k),
    }
    return masks[problem.mask]


def plain(given: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: tuple[Any, Any, Any]) -> torch.Tensor:
    """Attention with every score in memory, in float32 at least.

    Args:
        given: the mods.
        q, k, v: (batch, heads, length, width), with as many heads each.
        at: numbers of the samples, heads and queries, which broadcast to the scores.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    key = torch.arange(k.shape[2], device=k.device)
    scores = (q @ k.transpose(-1, -2)).to(wide) * q.shape[-1] ** -0.5
    if given.score_mod is not None:
        scores = given.score_mod(scores, *at, key)
    if given.mask_mod is not None:
        scores = scores.masked_fill(~given.mask_mod(*at, key), -torch.inf)
    return torch.softmax(scores, -1).to(v.dtype) @ v


def reference(given: Inputs, seed: int) -> Reference:
    """The float64 answer of a sample of heads and queries; all of them if there are few."""
    batch, heads, queries, _ = given.q.shape
    group = heads // given.k.shape[1]
    rng, device = random.Random(seed), given.q.device
    pairs = [(b, h) for b in range(batch) for h in range(heads)]
    chosen = sorted(rng.sample(pairs, min(PAIRS, len(pairs))))
    blocks = []
    for b, h in chosen:
        rows = torch.tensor(sorted(rng.sample(range(queries), min(QUERIES, queries))), device=device)
        at = (torch.tensor(b, device=device), torch.tensor(h, device=device), rows[:, None])
        parts = (given.q[b, h, rows], given.k[b, h // group], given.v[b, h // group])
        q, k, v = (t.double()[None, None] for t in parts)
        want = plain(given, q, k, v, at)[0, 0]
        blocks.append((0, (b, h, rows), want))
    return Reference(
        tuple(blocks), f"{len(chosen)} of {len(pairs)} heads, {min(QUERIES, queries)} of {queries} queries"
    )


def contestants(problem: Problem, given: Inputs) -> tuple[Contestant, ...]:
    """Ours through `nl.attention`, then FlexAttention, SDPA's backends and torch.compile."""
    scores = problem.sizes["batch"] * problem.sizes["heads"] * problem.sizes["q_len"] * problem.sizes["kv_len"]
    too_large = f"a matrix of {scores:.1e} scores is not made" if scores > _MOST_SCORES else ""
    sdpa = tuple(
        Contestant(name, "library", lambda *_, b=backend: _sdpa_refuses(problem, b), _sdpa(problem, given, backend))
        for name, backend in (
            (CUDNN, SDPBackend.CUDNN_ATTENTION),
            (FLASH, SDPBackend.FLASH_ATTENTION),
            (EFFICIENT, SDPBackend.EFFICIENT_ATTENTION),
        )
    )
    return (
        Contestant(OURS, "ours", lambda *_: "", lambda *_: _ours(given)),
        Contestant(FLEX, "compiler", lambda *_: "", lambda *_: _flex(given)),
        *sdpa,
        Contestant(COMPILE, "compiler", lambda *_: too_large, lambda *_: _compiled(given)),
    )


def _grouped(given: Inputs) -> bool:
    return given.q.shape[1] != given.k.shape[1]


def _ours(given: Inputs) -> Ready:
    q, k, v, score_mod, mask_mod, grouped = *_tensors(given), given.score_mod, given.mask_mod, _grouped(given)
    return Ready(lambda: attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, enable_gqa=grouped))


def _tensors(given: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return given.q, given.k, given.v


def _flex(given: Inputs) -> Ready:
    q, k, v = _tensors(given)
    mask = None
    if given.mask_mod is not None:
        q_len, kv_len = q.shape[2], k.shape[2]
        large = q.is_cuda and q_len * kv_len > _LARGE_MASK
        mask = create_block_mask(given.mask_mod, None, None, q_len, kv_len, device=str(q.device), _compile=large)
    run: Any = compile_for((q, k, v), flex_attention) if q.is_cuda else flex_attention
    return Ready(lambda: run(q, k, v, score_mod=given.score_mod, block_mask=mask, enable_gqa=_grouped(given)))


def _compiled(given: Inputs) -> Ready:
    q, k, v = _tensors(given)
    group, device = q.shape[1] // k.shape[1], q.device
    at = (
        torch.arange(q.shape[0], device=device)[:, None, None, None],
        torch.arange(q.shape[1], device=device)[:, None, None],
        torch.arange(q.shape[2], device=device)[:, None],
    )

    def repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return plain(given, q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), at)

    run = compile_for((q, k, v), repeated)
    return Ready(lambda: run(q, k, v))


def _square(problem: Problem) -> bool:
    """Whether SDPA's own causal mask is the problem's."""
    return problem.mask == "causal" and problem.sizes["q_len"] == problem.sizes["kv_len"]


def _sdpa_refuses(problem: Problem, backend: SDPBackend) -> str:
    if problem.mod != "plain":
        return "SDPA has no score mods"
    if problem.mask == "full" or _square(problem):
        return ""
    if backend is SDPBackend.FLASH_ATTENTION:
        return "the backend takes no mask"
    return "its mask is too large as a tensor" if problem.sizes["q_len"] * problem.sizes["kv_len"] > _LARGE_MASK else ""


def _sdpa(problem: Problem, given: Inputs, backend: SDPBackend) -> Callable[..., Ready]:
    def make(*_: Any) -> Ready:
        q, k, v = _tensors(given)
        causal, grouped, mask = _square(problem), _grouped(given), None
        if grouped and backend is SDPBackend.EFFICIENT_ATTENTION:  # it supports no groups; the copies are not timed
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
            grouped = False
        if given.mask_mod is not None and not causal:
            rows = torch.arange(q.shape[2], device=q.device)[:, None]
            mask = given.mask_mod(0, 0, rows, torch.arange(k.shape[2], device=q.device))

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped
                )

        return Ready(call)

    return make
