"""Times the backward pass of `nl.attention` on a GPU, beside SDPA's backends and compiled FlexAttention.

    python scripts/backward_speed.py [--sizes 1x32x8192x128c,4x32x2048x64c] [--dtype bfloat16]
        [--only ours,any_order,cudnn,flash,flex] [--seconds 200] [--out FILE]

A size is batch x heads x length x head_dim, with "c" for causal and "b" for a bias of relative positions that is
trained, of which SDPA's backends have none; heads may be 32/8 for groups. "any_order" is `nl.attention` with
kernel_options={"deterministic": False}. Times are of the backward pass alone, through torch.autograd.grad: the
contestants of a size take turns, and of four medians of `triton.testing.do_bench` the second counts; memory is the peak
above what was allocated before. Gradients of one head are checked against float64; a contestant that is wrong is not
timed. What does not start within --seconds is left out, and listed. With TRITON_INTERPRET=1 it runs on the CPU, slowly
and without times.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from speed_checks import DEVICE, causal

import neptune_lab as nl
from neptune_lab.files import write_text

TURNS = 4
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-4}


@dataclass(frozen=True)
class Measured:
    """One contestant at one size: the largest relative error, microseconds and MiB (None: wrong, or on a CPU)."""

    size: str
    name: str
    error: float
    us: float | None = None
    tflops: float | None = None
    mib: int | None = None
    note: str = ""


def contestants(every: Any, masked: bool, grouped: bool) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Forward passes by name; after q, k and v there may be a bias."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tensors, score_mod = every[:3], None
    if len(every) > 3:
        bias, last = every[3], tensors[0].shape[2] - 1

        def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score + bias[h, q - kv + last]

    mask = causal if masked else None
    more: Any = {"mask_mod": mask, "enable_gqa": grouped}
    yield "ours", lambda: nl.attention(*tensors, score_mod, **more)
    yield "any_order", lambda: nl.attention(*tensors, score_mod, **more, kernel_options={"deterministic": False})
    if DEVICE == "cpu":
        return
    backends = (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION))
    for name, backend in () if score_mod else backends:

        def attend(backend: Any = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(*tensors, is_causal=masked, enable_gqa=grouped)

        yield name, attend
    length = tensors[0].shape[2]
    blocks = create_block_mask(causal, None, None, length, length, device=DEVICE) if masked else None
    flex = torch.compile(flex_attention, dynamic=False)
    yield "flex", lambda: flex(*tensors, score_mod, block_mask=blocks, enable_gqa=grouped)


def expected(every: Any, given: torch.Tensor, masked: bool) -> tuple[torch.Tensor, ...]:
    """The gradients of the first key head in float64, and of the bias of its query heads if there is one sample."""
    group = every[0].shape[1] // every[1].shape[1]
    heads = [t.detach()[:1, :n].double().requires_grad_() for t, n in zip(every[:3], (group, 1, 1), strict=True)]
    q, k, v = heads
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if len(every) > 3:
        heads.append(every[3].detach()[:group].double().requires_grad_())
        places = torch.arange(q.shape[2], device=DEVICE)
        scores = scores + heads[3][:, places[:, None] - places + q.shape[2] - 1]
    if masked:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    found = torch.autograd.grad(scores.softmax(-1) @ v, heads, given[:1, :group].double())
    return found if every[0].shape[0] == 1 else found[:3]


@dataclass(frozen=True)
class Checked:
    """A contestant whose gradients are right: its backward pass, the largest relative error, and MiB."""

    name: str
    backward: Callable[[], Any]
    error: float
    mib: int


def checked(
    size: str, name: str, attend: Callable[[], torch.Tensor], every: Any, given: torch.Tensor, masked: bool
) -> Checked | Measured:
    """The contestant, or what is wrong with it."""
    try:
        out = attend()
        found = torch.autograd.grad(out, every, given, retain_graph=True)
    except Exception as refused:  # noqa: BLE001  # peers fail in ways of their own
        return Measured(size, name, float("nan"), note=f"{type(refused).__name__}: {refused}".splitlines()[0][:150])
    errors: list[float] = []
    for n, (ours, theirs) in enumerate(zip(found, expected(every, given, masked), strict=False)):
        same = ours[: theirs.shape[0]] if n > 2 else ours[:1, : theirs.shape[1]]
        errors.append(float((same.double() - theirs).norm() / theirs.norm()))
    if not max(errors) <= LIMITS[given.dtype]:
        return Measured(size, name, max(errors), note="WRONG")
    if DEVICE == "cpu":
        return Measured(size, name, max(errors), note="right; no times on a CPU")

    def backward() -> Any:
        return torch.autograd.grad(out, every, given, retain_graph=True)

    del found
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    backward()
    torch.cuda.synchronize()
    return Checked(name, backward, max(errors), (torch.cuda.max_memory_allocated() - before) >> 20)


def of_size(size: str, dtype: torch.dtype, only: list[str]) -> Iterator[Measured]:
    """All contestants at one size."""
    from triton.testing import do_bench

    masked, biased = "c" in size, "b" in size
    batch, heads, length, width = size.rstrip("cb").split("x")
    queries, _, keys = heads.partition("/")
    counts = int(queries), int(keys or queries), int(keys or queries)
    every = [
        torch.randn(int(batch), n, int(length), int(width), device=DEVICE, dtype=dtype).requires_grad_() for n in counts
    ]
    given = torch.randn_like(every[0])
    if biased:
        every.append(torch.randn(counts[0], 2 * int(length) - 1, device=DEVICE).requires_grad_())
    work = 2.5 * 4 * int(batch) * counts[0] * int(length) ** 2 * int(width) / (2 if masked else 1)
    right: list[Checked] = []
    for name, attend in contestants(every, masked, counts[0] != counts[1]):
        if name in only:
            one = checked(size, name, attend, every, given, masked)
            if isinstance(one, Measured):
                yield one
            else:
                right.append(one)
    times: dict[str, list[float]] = {one.name: [] for one in right}
    for _ in range(TURNS):
        for one in right:
            median: Any = do_bench(one.backward, warmup=10, rep=25, return_mode="median")
            times[one.name].append(float(median) * 1e3)
    for one in right:
        us = sorted(times[one.name])[1]
        yield Measured(size, one.name, one.error, us, work / us / 1e6, one.mib)


def main() -> None:
    """Measures, prints a table, and writes it with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4x32x2048x64c,1x32x2048x128c,1x32x8192x128c,1x32x8192x128,1x32x16384x64c")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="ours,any_order,cudnn,flash,flex")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    begin, results = time.monotonic(), []
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, Triton's interpreter"
    print(name, time.strftime("%Y-%m-%dT%H:%M:%S%z"), flush=True)
    for size in given.sizes.split(","):
        if time.monotonic() - begin > given.seconds:
            print(f"{size}: left out after {given.seconds:.0f} s", flush=True)
            continue
        for one in of_size(size, getattr(torch, given.dtype), given.only.split(",")):
            results.append(one)
            timed = "" if one.us is None else f"{one.us:9.1f} us {one.tflops:6.0f} TFLOP/s {one.mib:6} MiB"
            print(f"{size:20} {one.name:9} error {one.error:.1e} {timed} {one.note}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s")
    if given.out is not None:
        write_text(given.out, json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
