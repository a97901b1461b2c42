"""Times calls of `nl.attention` as models make them, beside FlexAttention and flash-attention, in one run.

    python scripts/calls_speed.py [--only documents,views,packed,paged] [--sizes small] [--count 4] [--seed 0]
        [--seconds 400]

- documents: masks of documents, causal and plain, against compiled FlexAttention. Ours gets `mask_mod`, which reads the
  document of each position, and finds at each call which tiles to skip. FlexAttention gets a BlockMask: "lists made"
  was made before, so that its cost is left out; "lists at each call" makes it in each call, as ours does.
- views: (batch, length, heads, head_dim) tensors seen through a transpose, and parts of a packed projection, against
  contiguous tensors; by the kernel of each length and by the one for all lengths.
- packed: sequences one after another (`cu_seqlens_q`), against torch's flash-attention with offsets, which gets the
  longest length besides; by the kernel of each total and by the one for all totals. (torch 2.11 does not use cuDNN for
  packed sequences: `_cudnn_attention_forward`, called directly, took 51 ms where flash-attention took 0.4, on an H100.)
- paged: one query per sequence, K and V in pages, as a part of the rate at which the GPU copies; bytes of K and V only.

Every contestant is checked against float64 on rows drawn at random; one that is wrong is not timed. What does not start
within --seconds is left out, and listed. On a CPU, with --sizes small, everything is checked and nothing timed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from speed_checks import DEVICE, causal, tensors, times, wrong
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import neptune_lab as nl
from neptune_lab.runtime.ceilings import measure_ceilings

WIDTH, LIMIT = 128, 5e-3


@dataclass(frozen=True)
class Case:
    """Calls that compute the same.

    Args:
        what: the problem.
        calls: by contestant; the first is what the others are compared with.
        error: the relative error of a contestant's result.
        read: bytes that a call has to read, if its rate is of interest.
    """

    what: str
    calls: dict[str, Callable[[], Any]]
    error: Callable[[Any], float]
    read: int | None = None


def cut(total: int, longest: int, rng: random.Random) -> list[int]:
    """Offsets of sequences of longest / 8 to `longest` tokens."""
    cuts = [0]
    while cuts[-1] < total:
        cuts.append(min(total, cuts[-1] + rng.randint(longest // 8, longest)))
    return cuts


def mask_of(document: torch.Tensor, ordered: bool) -> Callable[..., Any]:
    """A query attends to keys of its document, with `ordered` up to its own position."""

    def inside(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return document[q] == document[kv]

    def before(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (document[q] == document[kv]) & (q >= kv)

    return before if ordered else inside


def document_masks(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Masks of documents."""
    sizes = ([(4, 256, 64)] if small else [(16, 4096, 1024), (32, 8192, 2048), (32, 16384, 2048), (16, 32768, 8192)])[
        :count
    ]
    attend: Any = flex_attention if small else torch.compile(flex_attention, dynamic=False)
    listed: Any = create_block_mask if small else torch.compile(create_block_mask, dynamic=False)
    for heads, length, longest in sizes:
        cuts = cut(length, longest, rng)
        lengths = torch.tensor([b - a for a, b in pairwise(cuts)], device=DEVICE)
        document = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32, device=DEVICE), lengths)
        q, k, v = tensors([(1, heads, length, WIDTH)] * 3)
        for ordered in (True, False):
            same = mask_of(document, ordered)
            torch.compiler.reset()  # a graph that was compiled for another mask is not the one of this mask
            made = listed(same, None, None, length, length, device=DEVICE)

            def ours(q: Any = q, k: Any = k, v: Any = v, same: Any = same) -> Any:
                return nl.attention(q, k, v, mask_mod=same, dynamic=False)

            def for_all(q: Any = q, k: Any = k, v: Any = v, same: Any = same) -> Any:
                return nl.attention(q, k, v, mask_mod=same, dynamic=True)

            def theirs(q: Any = q, k: Any = k, v: Any = v, made: Any = made) -> Any:
                return attend(q, k, v, block_mask=made)

            def both(q: Any = q, k: Any = k, v: Any = v, same: Any = same, length: int = length) -> Any:
                return attend(q, k, v, block_mask=listed(same, None, None, length, length, device=DEVICE))

            calls = {"ours": ours, "ours, all lengths": for_all, "lists made": theirs, "lists at each call": both}
            kind = "causal" if ordered else "plain"
            yield Case(
                f"documents {heads}x{length}x{WIDTH}, {len(lengths)} of them, {kind}",
                calls,
                lambda out, q=q, k=k, v=v, o=ordered, d=document: wrong(out, q, k, v, o, d),
            )


def views(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Tensors as projections give them."""
    sizes = ([(1, 4, 192)] if small else [(2, 16, 2048), (2, 16, 4096), (1, 32, 8192), (2, 16, 3001)])[:count]
    for batch, heads, length in sizes:
        packed = tensors([(batch, length, 3, heads, WIDTH)])[0]
        parts = tuple(packed[:, :, n].transpose(1, 2) for n in range(3))
        apart = tuple(packed[:, :, n].contiguous().transpose(1, 2) for n in range(3))
        whole = tuple(t.contiguous() for t in apart)
        for ordered in (True, False):
            mask = causal if ordered else None
            for name, dynamic in (("per length", False), ("for all lengths", True)):

                def calling(given: Any, mask: Any = mask, dynamic: bool = dynamic) -> Callable[[], Any]:
                    return lambda: nl.attention(*given, mask_mod=mask, dynamic=dynamic)

                kind = "causal" if ordered else "plain"
                yield Case(
                    f"views {batch}x{heads}x{length}x{WIDTH}, {kind}, kernel {name}",
                    {"contiguous": calling(whole), "transposed": calling(apart), "packed qkv": calling(parts)},
                    lambda out, whole=whole, o=ordered: wrong(out, *whole, ordered=o),
                )


def packed_sequences(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Sequences one after another."""
    sizes = ([(4, 256, 64)] if small else [(32, 8192, 2048), (32, 16384, 4096), (32, 16384, 1024), (16, 32768, 8192)])[
        :count
    ]
    for heads, total, longest in sizes:
        cuts = cut(total, longest, rng)
        offsets = torch.tensor(cuts, dtype=torch.int32, device=DEVICE)
        most = max(b - a for a, b in pairwise(cuts))
        document = torch.searchsorted(offsets[1:], torch.arange(total, device=DEVICE), right=True)
        rows = tuple(tensors([(total, heads, WIDTH)] * 3))
        q, k, v = (t.transpose(0, 1)[None] for t in rows)
        for ordered in (True, False):
            mask = causal if ordered else None

            def ours(dynamic: bool, q: Any = q, k: Any = k, v: Any = v, o: Any = offsets, mask: Any = mask) -> Any:
                return nl.attention(q, k, v, cu_seqlens_q=o, mask_mod=mask, dynamic=dynamic)

            def flash(rows: Any = rows, o: Any = offsets, most: int = most, ordered: bool = ordered) -> Any:
                out = torch.ops.aten._flash_attention_forward(*rows, o, o, most, most, 0.0, ordered, False)[0]
                return out.transpose(0, 1)[None]

            calls: dict[str, Callable[[], Any]] = {
                "ours": lambda ours=ours: ours(False),
                "ours, all totals": lambda ours=ours: ours(True),
            }
            if DEVICE == "cuda":
                calls["flash"] = flash
            kind = "causal" if ordered else "plain"
            yield Case(
                f"packed {heads}x{total}x{WIDTH}, {len(cuts) - 1} sequences, {kind}",
                calls,
                lambda out, q=q, k=k, v=v, o=ordered, d=document: wrong(out, q, k, v, o, d),
            )


def paged(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Decoding from a cache of pages."""
    sizes = ([(2, 256, 16)] if small else [(32, 8192, 16), (32, 8192, 64), (64, 4096, 16), (8, 32768, 64)])[:count]
    for batch, longest, page in sizes:
        heads, kv_heads = (4, 2) if small else (32, 8)
        lengths = [rng.randint(longest // 2, longest) for _ in range(batch)]
        pages = -(-longest // page)
        order = torch.randperm(batch * pages, device=DEVICE).int().reshape(batch, pages)
        k_cache, v_cache = tensors([(batch * pages, page, kv_heads, WIDTH)] * 2)
        q = tensors([(batch, heads, 1, WIDTH)])[0]
        known = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)

        def ours(q: Any = q, k: Any = k_cache, v: Any = v_cache, order: Any = order, known: Any = known) -> Any:
            return nl.paged_attention(q, k, v, order, known)

        keys, values = (
            c[order[0].long()].flatten(0, 1)[: lengths[0]].transpose(0, 1)[None] for c in (k_cache, v_cache)
        )
        yield Case(
            f"paged {batch}x{heads}/{kv_heads}x{longest}x{WIDTH}, pages of {page}",
            {"ours": ours},
            lambda out, q=q, keys=keys, values=values: wrong(out[:1], q[:1], keys, values, ordered=False),
            read=2 * sum(lengths) * kv_heads * WIDTH * 2,
        )


KINDS = {"documents": document_masks, "views": views, "packed": packed_sequences, "paged": paged}


def measured(case: Case, rate: float | None) -> list[str]:
    """One line per contestant: error, microseconds, and the first contestant's time as a part of them."""
    lines, right = [], {}
    for name, call in case.calls.items():
        try:
            error = case.error(call())
        except (RuntimeError, nl.errors.NeptuneError) as refused:
            lines.append(f"{case.what:58} {name:20} {type(refused).__name__}: {str(refused).splitlines()[0][:90]}")
            continue
        if error <= LIMIT:
            right[name] = (call, error)
        else:
            lines.append(f"{case.what:58} {name:20} WRONG: error {error:.1e}")
    found = times({name: call for name, (call, _) in right.items()}, cold=case.read is not None)
    first = found.get(next(iter(case.calls)))
    for name, (_, error) in right.items():
        text = f"{case.what:58} {name:20} error {error:.1e}"
        if (us := found.get(name)) is not None:
            text += f" {us:9.1f} us" + ("" if first is None else f" {us / first:6.3f}")
            if case.read is not None and rate is not None:
                text += f" {case.read / us / 1e6:5.2f} TB/s, {case.read / us / 1e6 / rate:.3f} of copying"
        lines.append(text)
    return lines


def main() -> None:
    """Measures, and prints a line per contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--sizes", choices=("small", "large"), default="large")
    parser.add_argument("--count", type=int, default=4, help="sizes of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=400.0)
    given = parser.parse_args()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    begin = time.monotonic()
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, without times"
    print(name, time.strftime("%Y-%m-%dT%H:%M:%S%z"), flush=True)
    rate = measure_ceilings().gbps / 1e3 if DEVICE == "cuda" else None
    if rate is not None:
        print(f"copying: {rate:.2f} TB/s", flush=True)
    for kind in given.only.split(","):
        for case in KINDS[kind](random.Random(given.seed), given.sizes == "small", given.count):
            if time.monotonic() - begin > given.seconds:
                print(f"{case.what}: left out after {given.seconds:.0f} s", flush=True)
                continue
            print("\n".join(measured(case, rate)), flush=True)
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
