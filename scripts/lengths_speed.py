"""Times `nl.attention` for any length on a GPU: kernels for all lengths, packed sequences, a cache of pages.

    python scripts/lengths_speed.py [--only prefill,decode,views,eight,host,packed,paged] [--count 20] [--seed 0]

- prefill, decode: the kernel for all lengths against the untuned Triton kernel of each length, at lengths drawn at
  random; both are checked against float64 on rows drawn at random.
- host: microseconds of the host from an eager call to the last launch, with the GPU idle.
- views, eight: the kernel for all lengths against that of each length, of (batch, length, heads, head_dim) tensors seen
  through a transpose, and of one query and a cache of 8 bits.
- packed: sequences one after another (`cu_seqlens_q`) against torch's varlen_attn, by the kernel for all totals and by
  the one of each total.
- paged: one query a sequence, as a part of the rate at which the GPU reads.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import pairwise
from statistics import geometric_mean, median
from typing import Any

import torch
from speed_checks import causal, tensors, times, wrong

import neptune_lab as nl
from neptune_lab.operators import attention

HEADS, WIDTH = 32, 128


def all_lengths(kind: str, lengths: list[int]) -> None:
    """Kernels for all lengths against those of each length."""
    ratios = []
    for n in lengths:
        ordered = kind == "prefill"
        q, k, v = tensors([(1, HEADS, n if ordered else 1, WIDTH), *[(1, HEADS, n, WIDTH)] * 2])
        mod = causal if ordered else None
        make = attention.causal if ordered else attention.full
        sizes: Any = {"seq": n} if ordered else {"q_len": 1, "kv_len": n}
        own = nl.compile(make(batch=1, heads=HEADS, head_dim=WIDTH, **sizes), validate="none")

        def for_all(q: Any = q, k: Any = k, v: Any = v, mod: Any = mod) -> Any:
            return nl.attention(q, k, v, mask_mod=mod, dynamic=True)

        errors = wrong(for_all(), q, k, v, ordered), wrong(own(q, k, v), q, k, v, ordered)
        found = times({"for all": for_all, "own": lambda own=own, q=q, k=k, v=v: own(q, k, v)})
        if max(errors) > 5e-3 or len(found) < 2:
            print(f"{kind} {n}: errors {errors}, no time", flush=True)
            continue
        ratios.append(found["own"] / found["for all"])
        print(f"{kind} {n}: for all {found['for all']:.1f}, own {found['own']:.1f} us, {ratios[-1]:.3f}", flush=True)
    print(
        f"{kind}: own / for all, geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
    )


def host(count: int) -> None:
    """The host's part of a call."""
    for name, step in (("one length", 0), ("lengths that change", 1)):
        spent = []
        for turn in range(count):
            n = 200 + step * turn % 300
            q, k, v = tensors([(1, 8, 1, 64), *[(1, 8, n, 64)] * 2])
            nl.attention(q, k, v, dynamic=True)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            nl.attention(q, k, v, dynamic=True)
            spent.append(1e6 * (time.perf_counter() - begin))
            torch.cuda.synchronize()
        print(f"host, {name}: {median(spent):.1f} us", flush=True)


def packed(seed: int) -> None:
    """Causal attention over packed sequences."""
    from torch.nn.attention.varlen import varlen_attn

    rng = random.Random(seed)
    for total, longest in ((8192, 2048), (16384, 4096), (16384, 1024)):
        cuts = [0]
        while cuts[-1] < total:
            cuts.append(min(total, cuts[-1] + rng.randint(longest // 8, longest)))
        offsets = torch.tensor(cuts, dtype=torch.int32, device="cuda")
        q, k, v = tensors([(1, HEADS, total, WIDTH)] * 3)
        rows = [t[0].transpose(0, 1).contiguous() for t in (q, k, v)]
        most = max(b - a for a, b in pairwise(cuts))

        def ours(q: Any = q, k: Any = k, v: Any = v, offsets: Any = offsets, dynamic: bool = True) -> Any:
            return nl.attention(q, k, v, cu_seqlens_q=offsets, mask_mod=causal, dynamic=dynamic)

        def own(ours: Any = ours) -> Any:
            return ours(dynamic=False)

        def theirs(rows: Any = rows, offsets: Any = offsets, most: int = most) -> Any:
            return varlen_attn(rows[0], rows[1], rows[2], offsets, offsets, most, most, window_size=(-1, 0))

        out, want = ours(), theirs()
        first = slice(0, cuts[1])
        error = wrong(out[:, :, first], q[:, :, first], k[:, :, first], v[:, :, first], True)
        apart = float((out[0].transpose(0, 1).float() - want.float()).norm() / want.float().norm())
        found = times({"for all": ours, "own": own, "varlen": theirs})
        print(f"packed {total}, {len(cuts) - 1} sequences: {found}, error {error:.1e}, apart {apart:.1e}", flush=True)


def alike(kind: str, lengths: list[int]) -> None:
    """Kernels for all lengths against those of each length, by `dynamic`."""
    ratios = []
    for n in lengths:
        if kind == "views":
            q, k, v = (t.transpose(1, 2) for t in tensors([(2, n, 16, WIDTH)] * 3))
            options: dict[str, Any] = {"mask_mod": causal}
        else:
            q, k, v = tensors([(4, 32, 1, WIDTH), *[(4, 32, n, WIDTH)] * 2])
            k, v = (t.to(torch.float8_e4m3fn) for t in (k, v))
            options = {"k_scale": 0.5}

        def call(dynamic: bool, q: Any = q, k: Any = k, v: Any = v, options: Any = options) -> Any:
            return nl.attention(q, k, v, dynamic=dynamic, **options)

        outs = call(True), call(False)
        scaled = (q, k, v) if kind == "views" else (q, k.half() * 0.5, v.half())
        errors = [wrong(out, *scaled, kind == "views") for out in outs]
        found = times({"for all": lambda call=call: call(True), "own": lambda call=call: call(False)})
        if max(errors) > 5e-3 or len(found) < 2:
            print(f"{kind} {n}: errors {errors}, no time", flush=True)
            continue
        ratios.append(found["own"] / found["for all"])
        print(f"{kind} {n}: for all {found['for all']:.1f}, own {found['own']:.1f} us, {ratios[-1]:.3f}", flush=True)
    print(
        f"{kind}: own / for all, geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
    )


def paged(seed: int) -> None:
    """Decoding from a cache of pages."""
    rng = random.Random(seed)
    for batch, longest, page in ((32, 8192, 16), (32, 8192, 64), (8, 32768, 64)):
        heads, kv_heads = 32, 8
        lengths = [rng.randint(longest // 2, longest) for _ in range(batch)]
        pages = -(-longest // page)
        order = torch.randperm(batch * pages, device="cuda").int().reshape(batch, pages)
        caches = tensors([(batch * pages, page, kv_heads, WIDTH)] * 2)
        q = tensors([(batch, heads, 1, WIDTH)])[0]
        known = torch.tensor(lengths, dtype=torch.int32, device="cuda")

        def ours(q: Any = q, caches: Any = caches, order: Any = order, known: Any = known) -> Any:
            return nl.paged_attention(q, caches[0], caches[1], order, known)

        keys = [c[order[0].long()].flatten(0, 1)[: lengths[0]].transpose(0, 1)[None] for c in caches]
        error = wrong(ours()[:1], q[:1], keys[0], keys[1], ordered=False)
        us = times({"ours": ours}).get("ours", float("nan"))
        read = 2 * sum(lengths) * kv_heads * WIDTH * 2
        print(f"paged {batch} x {longest}, pages of {page}: {us:.1f} us, {read / us / 1e6:.2f} TB/s, error {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="prefill,decode,views,eight,host,packed,paged")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    random.seed(chosen.seed)
    parts = chosen.only.split(",")
    for kind in ("prefill", "decode"):
        if kind in parts:
            all_lengths(kind, sorted(random.randint(1024, 12000) for _ in range(chosen.count)))
    for kind in ("views", "eight"):
        if kind in parts:
            alike(kind, sorted(random.randint(1024, 12000) for _ in range(min(chosen.count, 6))))
    if "host" in parts:
        host(100)
    if "packed" in parts:
        packed(chosen.seed)
    if "paged" in parts:
        paged(chosen.seed)


if __name__ == "__main__":
    main()
