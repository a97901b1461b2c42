"""Times `nl.attention` on tensors of 8 bits on a GPU: prefill, and decoding from a cache of 8 bits.

    python scripts/fp8_speed.py [--only large,prefill,decode] [--prefill 4x8x8192x128] [--lengths 4096,8192,16384,32768]
        [--kv-heads 8] [--busy 0.5] [--seconds 110] [--out FILE]

- large: rows with scores up to 1e35, whose weights of e4m3 must not saturate; no time.
- prefill (batch x heads x length x head_dim), causal and plain: float16; e4m3 with weights of 16 bits; e4m3 with
  weights of e4m3, v stored transposed, so that no call transposes it; the same with each of `rounded_weights`, on a
  Hopper GPU and for lengths that 256 divides.
- decode: a bfloat16 query of 32 heads per sequence against bfloat16, e4m3 and int8 caches, with a scale per head;
  caches in the GPU's memory, not in its L2 cache. The rate counts the bytes of k and v.

With --busy, the GPU runs a contestant for so many seconds before it is timed, as in a server: its clock is then the one
that the power limit allows. Without, it is that of an idle GPU, and float16, which takes more power, gains most.

Every contestant is checked against float64 of its own inputs, in prefill on random rows; one that is wrong is not
timed. What does not start within --seconds is left out, and listed. With TRITON_INTERPRET=1 it runs on the CPU, slowly
and without times: give small sizes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from speed_checks import DEVICE, causal

import neptune_lab as nl
from neptune_lab.bench.clock import GpuTimer
from neptune_lab.errors import NeptuneError
from neptune_lab.files import write_text
from neptune_lab.target import Target

E4M3, ROWS, WIDTH, HEADS = torch.float8_e4m3fn, 16, 128, 32
# Largest relative errors (docs/concepts/numbers.md) with weights of float16, of bfloat16, of e4m3, and of e4m3 where
# half of them are two numbers or float16.
EXACT, OF_BFLOAT16, OF_EIGHTS, OF_SPLIT = 5e-3, 1e-2, 3e-2, 2e-2
ROUNDED = {"single": OF_EIGHTS, "mixed": OF_SPLIT, "split": OF_SPLIT}
TILES = {"code": "gluon", "block_q": 128, "block_kv": 256, "persistent": True}


@dataclass(frozen=True)
class Measured:
    """One contestant: relative error, microseconds (the median; None: wrong, or on a CPU), TFLOP/s or GB/s."""

    what: str
    name: str
    error: float
    us: float | None = None
    rate: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Contestant:
    """A call, its result's rows in float64, and the largest error."""

    name: str
    call: Callable[[], torch.Tensor]
    expected: Callable[[torch.Tensor], torch.Tensor]
    limit: float


def quantized(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x in 8 bits, and its scale per head."""
    largest = 127 if dtype == torch.int8 else 448
    scale = x.float().abs().amax((0, 2, 3)) / largest
    values = x.float() / scale[:, None, None]
    return (values.round() if dtype == torch.int8 else values).to(dtype), scale


def meant(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """What a tensor of one sample and head, or of more, stands for in float64."""
    return x.double() if scale is None else x.double() * scale.double()[:, None, None]


def reference(tensors: Any, scales: Any, rows: torch.Tensor, ordered: bool) -> torch.Tensor:
    """The rows of the result in float64, one sample at a time."""
    group, made = tensors[0].shape[1] // tensors[1].shape[1], []
    hidden = torch.arange(tensors[1].shape[2], device=DEVICE) > rows[:, None]
    for b in range(tensors[0].shape[0]):
        q, k, v = (meant(t[b], s) for t, s in zip(tensors, scales, strict=True))
        score = q[:, rows] @ k.repeat_interleave(group, 0).mT / q.shape[-1] ** 0.5
        score = score.masked_fill(hidden, -torch.inf) if ordered else score
        made.append(score.softmax(-1) @ v.repeat_interleave(group, 0))
    return torch.stack(made)


def contestant(
    name: str, tensors: Any, scales: Any, ordered: bool, limit: float = EXACT, weights: Any = None, options: Any = None
) -> Contestant:
    """The call of `nl.attention` on these tensors, with its reference."""
    named: dict[str, Any] = {
        n: s for n, s in zip(("q_scale", "k_scale", "v_scale"), scales, strict=True) if s is not None
    }
    named |= {"mask_mod": causal if ordered else None, "weights_dtype": weights, "kernel_options": options}

    def call() -> torch.Tensor:
        return nl.attention(*tensors, enable_gqa=True, dynamic=False, **named)

    return Contestant(name, call, lambda rows: reference(tensors, scales, rows, ordered), limit)


def prefill(size: tuple[int, ...], ordered: bool) -> Iterator[Contestant]:
    """float16 and e4m3, with weights of both."""
    half = tuple(torch.randn(size, device=DEVICE, dtype=torch.float16) for _ in range(3))
    yield contestant("float16", half, (None,) * 3, ordered)
    (q, k, v), scales = zip(*(quantized(t, E4M3) for t in half), strict=True)
    yield contestant("e4m3", (q, k, v), scales, ordered)
    turned = v.transpose(2, 3).contiguous().transpose(2, 3)
    yield contestant("e4m3, weights of e4m3", (q, k, turned), scales, ordered, OF_EIGHTS, E4M3)
    if DEVICE == "cuda" and size[2] % 256 == 0 and Target.current().warpgroup_products:
        for kind, limit in ROUNDED.items():
            options = {"rounded_weights": kind, **TILES}
            yield contestant(f"e4m3, {kind} weights", (q, k, turned), scales, ordered, limit, E4M3, options)


def decode(length: int, kv_heads: int) -> Iterator[Contestant]:
    """A bfloat16 query against caches of bfloat16, e4m3 and int8."""
    q = torch.randn(1, HEADS, 1, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn(1, kv_heads, length, WIDTH, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    yield contestant("bfloat16", (q, k, v), (None,) * 3, ordered=False, limit=OF_BFLOAT16)
    for name, dtype in (("e4m3", E4M3), ("int8", torch.int8)):
        (k8, k_scale), (v8, v_scale) = quantized(k, dtype), quantized(v, dtype)
        yield contestant(name, (q, k8, v8), (None, k_scale, v_scale), ordered=False)


def keep_busy(call: Callable[[], torch.Tensor], seconds: float) -> None:
    """Runs a call for so long."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for _ in range(20):
            call()
        torch.cuda.synchronize()


def measured(what: str, one: Contestant, amount: float, cold: bool, busy: float = 0.0) -> Measured:
    """The contestant, checked, then timed, after `busy` seconds of it; `amount` is what its rate counts."""
    try:
        found = one.call()
    except NeptuneError as refused:
        return Measured(what, one.name, float("nan"), note=f"{type(refused).__name__}: {refused}".splitlines()[0])
    rows = torch.randperm(found.shape[2], device=DEVICE)[:ROWS].sort().values
    expected = one.expected(rows)
    error = float((found[:, :, rows].double() - expected).norm() / expected.norm())
    if not error <= one.limit:
        return Measured(what, one.name, error, note=f"WRONG: at most {one.limit:.0e}")
    if DEVICE == "cpu":
        return Measured(what, one.name, error, note="right; no times on a CPU")
    keep_busy(one.call, busy)
    samples = GpuTimer(seconds=0.3, most=30).times({one.name: one.call}, cold=cold)[one.name]
    if not samples.us:
        return Measured(what, one.name, error, note="no time: it failed while it was timed")
    us = median(samples.us)
    return Measured(what, one.name, error, us, amount / us)


def large_scores() -> Measured:
    """Rows whose largest scores, which 4 keys in 10 share, have magnitudes up to 1e35."""
    largest = torch.tensor([0.0, 1e3, 4e6, 1.7e7, 6.8e7, -6.8e7, 1.1e9, -3e9, 3e20, -1e35], device=DEVICE)[:, None]
    chosen = torch.rand(len(largest), 96, device=DEVICE) < 0.4
    table = torch.where(chosen, largest, largest - largest.abs() * 1e-3 - 100.0)
    q = torch.zeros(1, 1, len(largest), 16, device=DEVICE).to(E4M3)
    k, v = (torch.randn(1, 1, 96, 16, device=DEVICE).to(E4M3) for _ in range(2))
    share = chosen.double() / chosen.sum(1, keepdim=True)
    call = Contestant(
        "e4m3, weights of e4m3",
        lambda: nl.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i, j], weights_dtype=E4M3),
        lambda rows: (share[rows] @ v[0, 0].double())[None, None],
        EXACT,
    )
    one = measured("large scores", call, 1.0, cold=False)
    return Measured(one.what, one.name, one.error, note=one.note or "right")


def everything(given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Groups of contestants: (what, what is measured); the first of a group is what the others are compared with."""
    kinds = given.only.split(",")
    if "large" in kinds:
        yield "large scores", [large_scores]
    batch, heads, length, width = size = tuple(map(int, given.prefill.split("x")))
    for ordered in (True, False) if "prefill" in kinds else ():
        what = f"prefill {given.prefill} {'causal' if ordered else 'plain'}"
        operations = 4 * batch * heads * length * length * width / (2 if ordered else 1)
        made = prefill(size, ordered)
        yield (
            what,
            (
                lambda one=one, what=what, n=operations: measured(what, one, n / 1e6, cold=False, busy=given.busy)
                for one in made
            ),
        )
    for length in map(int, given.lengths.split(",")) if "decode" in kinds else ():
        what = f"decode {HEADS} heads, {given.kv_heads} of keys, {length} keys"

        def of(one: Contestant, what: str = what, length: int = length) -> Callable[[], Measured]:
            bytes_each = 2 if one.name == "bfloat16" else 1
            amount = 2 * given.kv_heads * length * WIDTH * bytes_each
            return lambda: measured(what, one, amount / 1e3, cold=True)

        yield what, map(of, decode(length, given.kv_heads))


def main() -> None:
    """Measures, prints a table, and writes it with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="large,prefill,decode")
    parser.add_argument("--prefill", default="4x8x8192x128")
    parser.add_argument("--lengths", default="4096,8192,16384,32768")
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--busy", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    begin, results = time.monotonic(), []
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, Triton's interpreter"
    print(name, time.strftime("%Y-%m-%dT%H:%M:%S%z"), flush=True)
    for what, calls in everything(given):
        base = None
        for measure in calls:
            if time.monotonic() - begin > given.seconds:
                print(f"{what}: the rest was left out after {given.seconds:.0f} s", flush=True)
                break
            found = measure()
            results.append(found)
            base = base or found.us
            unit = "GB/s" if what.startswith("decode") else "TFLOP/s"
            timed = "" if found.us is None else f"{found.us:9.1f} us {found.rate:7.0f} {unit} {base / found.us:5.2f}"  # type: ignore[operator]
            print(f"{what:44} {found.name:22} error {found.error:.1e} {timed} {found.note}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s")
    if given.out is not None:
        write_text(given.out, json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
