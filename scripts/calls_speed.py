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
from typing import Any, TypeAlias

import torch
from speed_checks import DEVICE, causal, tensors, times, wrong
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import neptune_lab as nl
from neptune_lab.runtime.ceilings import measure_ceilings

WIDTH, LIMIT = 128, 5e-3
# q, k and v.
Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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
    sizes = [(4, 256, 64)] if small else [(16, 4096, 1024), (32, 8192, 2048), (32, 16384, 2048), (16, 32768, 8192)]
    for heads, length, longest in sizes[:count]:
        cuts = cut(length, longest, rng)
        lengths = torch.tensor([b - a for a, b in pairwise(cuts)], device=DEVICE)
        document = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32, device=DEVICE), lengths)
        q, k, v = tensors([(1, heads, length, WIDTH)] * 3)
        for ordered in (True, False):
            what = f"documents {heads}x{length}x{WIDTH}, {len(lengths)} of them, {_kind(ordered)}"
            yield _documents(what, (q, k, v), document, ordered, small)


def _documents(what: str, inputs: Inputs, document: torch.Tensor, ordered: bool, interpreted: bool) -> Case:
    attend: Any = flex_attention if interpreted else torch.compile(flex_attention, dynamic=False)
    listed: Any = create_block_mask if interpreted else torch.compile(create_block_mask, dynamic=False)
    same, length = mask_of(document, ordered), len(document)
    torch.compiler.reset()  # a graph that was compiled for another mask is not the one of this mask

    def lists() -> Any:
        return listed(same, None, None, length, length, device=DEVICE)

    made = lists()
    calls = {
        "ours": lambda: nl.attention(*inputs, mask_mod=same, dynamic=False),
        "ours, all lengths": lambda: nl.attention(*inputs, mask_mod=same, dynamic=True),
        "lists made": lambda: attend(*inputs, block_mask=made),
        "lists at each call": lambda: attend(*inputs, block_mask=lists()),
    }
    return Case(what, calls, lambda out: wrong(out, *inputs, ordered, document))


def views(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Tensors as projections give them."""
    sizes = [(1, 4, 192)] if small else [(2, 16, 2048), (2, 16, 4096), (1, 32, 8192), (2, 16, 3001)]
    for batch, heads, length in sizes[:count]:
        packed = tensors([(batch, length, 3, heads, WIDTH)])[0]
        q, k, v = (packed[:, :, n].transpose(1, 2) for n in range(3))
        given: dict[str, Inputs] = {
            "contiguous": (q.contiguous(), k.contiguous(), v.contiguous()),
            "transposed": (_transposed(q), _transposed(k), _transposed(v)),
            "packed qkv": (q, k, v),
        }
        for ordered in (True, False):
            for name, dynamic in (("per length", False), ("for all lengths", True)):
                what = f"views {batch}x{heads}x{length}x{WIDTH}, {_kind(ordered)}, kernel {name}"
                yield _views(what, given, ordered, dynamic)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, contiguous but for a transpose of heads and positions."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _views(what: str, given: dict[str, Inputs], ordered: bool, dynamic: bool) -> Case:
    mask = causal if ordered else None

    def calling(inputs: Inputs) -> Callable[[], Any]:
        return lambda: nl.attention(*inputs, mask_mod=mask, dynamic=dynamic)

    calls = {name: calling(inputs) for name, inputs in given.items()}
    return Case(what, calls, lambda out: wrong(out, *given["contiguous"], ordered))


def packed_sequences(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Sequences one after another."""
    sizes = [(4, 256, 64)] if small else [(32, 8192, 2048), (32, 16384, 4096), (32, 16384, 1024), (16, 32768, 8192)]
    for heads, total, longest in sizes[:count]:
        cuts = cut(total, longest, rng)
        rows = tensors([(total, heads, WIDTH)] * 3)
        for ordered in (True, False):
            what = f"packed {heads}x{total}x{WIDTH}, {len(cuts) - 1} sequences, {_kind(ordered)}"
            yield _packed(what, rows, cuts, ordered)


def _packed(what: str, rows: list[torch.Tensor], cuts: list[int], ordered: bool) -> Case:
    offsets = torch.tensor(cuts, dtype=torch.int32, device=DEVICE)
    document = torch.searchsorted(offsets[1:], torch.arange(cuts[-1], device=DEVICE), right=True)
    q, k, v = (t.transpose(0, 1)[None] for t in rows)
    mask = causal if ordered else None

    def flash() -> Any:
        longest = max(b - a for a, b in pairwise(cuts))
        more = offsets, offsets, longest, longest, 0.0, ordered, False
        return torch.ops.aten._flash_attention_forward(*rows, *more)[0].transpose(0, 1)[None]

    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: nl.attention(q, k, v, cu_seqlens_q=offsets, mask_mod=mask, dynamic=False),
        "ours, all totals": lambda: nl.attention(q, k, v, cu_seqlens_q=offsets, mask_mod=mask, dynamic=True),
    }
    if DEVICE == "cuda":
        calls["flash"] = flash
    return Case(what, calls, lambda out: wrong(out, q, k, v, ordered, document))


def paged(rng: random.Random, small: bool, count: int) -> Iterator[Case]:
    """Decoding from a cache of pages."""
    sizes = [(2, 256, 16)] if small else [(32, 8192, 16), (32, 8192, 64), (64, 4096, 16), (8, 32768, 64)]
    for batch, longest, page in sizes[:count]:
        lengths = [rng.randint(longest // 2, longest) for _ in range(batch)]
        yield _paged(lengths, longest, page, *((4, 2) if small else (32, 8)))


def _paged(lengths: list[int], longest: int, page: int, heads: int, kv_heads: int) -> Case:
    batch, pages = len(lengths), -(-longest // page)
    order = torch.randperm(batch * pages, device=DEVICE).int().reshape(batch, pages)
    k_cache, v_cache = tensors([(batch * pages, page, kv_heads, WIDTH)] * 2)
    q = tensors([(batch, heads, 1, WIDTH)])[0]
    known = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    keys, values = (c[order[0].long()].flatten(0, 1)[: lengths[0]].transpose(0, 1)[None] for c in (k_cache, v_cache))
    return Case(
        f"paged {batch}x{heads}/{kv_heads}x{longest}x{WIDTH}, pages of {page}",
        {"ours": lambda: nl.paged_attention(q, k_cache, v_cache, order, known)},
        lambda out: wrong(out[:1], q[:1], keys, values, ordered=False),
        read=2 * sum(lengths) * kv_heads * WIDTH * 2,
    )


def _kind(ordered: bool) -> str:
    return "causal" if ordered else "plain"


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
