"""Times the backward pass of `nl.attention` on a GPU, beside SDPA's backends and compiled FlexAttention.

    python scripts/backward_speed.py [--sizes 1x32x8192x128c,4x32x2048x64c] [--dtype bfloat16]
        [--only ours,cudnn,flash,flex] [--seconds 200] [--out FILE]

A size is batch x heads x length x head_dim, with "c" for causal; heads may be 32/8 for groups. Times are of the
backward pass alone, through torch.autograd.grad, medians of `triton.testing.do_bench`; memory is the peak above what
was allocated before. Gradients of one head are checked against float64; a contestant that is wrong is not timed. What
does not start within --seconds is left out, and listed. With TRITON_INTERPRET=1 it runs on the CPU, slowly and without
times.
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


def contestants(tensors: Any, masked: bool, grouped: bool) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Forward passes by name."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    yield "ours", lambda: nl.attention(*tensors, mask_mod=causal if masked else None, enable_gqa=grouped)
    if DEVICE == "cpu":
        return
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):

        def attend(backend: Any = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(*tensors, is_causal=masked, enable_gqa=grouped)

        yield name, attend
    length = tensors[0].shape[2]
    blocks = create_block_mask(causal, None, None, length, length, device=DEVICE) if masked else None
    flex = torch.compile(flex_attention, dynamic=False)
    yield "flex", lambda: flex(*tensors, block_mask=blocks, enable_gqa=grouped)


def expected(tensors: Any, given: torch.Tensor, masked: bool) -> tuple[torch.Tensor, ...]:
    """The gradients of the first key head in float64."""
    group = tensors[0].shape[1] // tensors[1].shape[1]
    heads = [t.detach()[:1, :n].double().requires_grad_() for t, n in zip(tensors, (group, 1, 1), strict=True)]
    q, k, v = heads
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if masked:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    return torch.autograd.grad(scores.softmax(-1) @ v, heads, given[:1, :group].double())


def measured(
    size: str,
    name: str,
    attend: Callable[[], torch.Tensor],
    tensors: Any,
    given: torch.Tensor,
    masked: bool,
    work: float,
) -> Measured:
    """The contestant, checked, then timed."""
    try:
        out = attend()
        found = torch.autograd.grad(out, tensors, given, retain_graph=True)
    except Exception as refused:  # noqa: BLE001  # peers fail in ways of their own
        return Measured(size, name, float("nan"), note=f"{type(refused).__name__}: {refused}".splitlines()[0][:150])
    wanted = expected(tensors, given, masked)
    errors = [
        float((ours[:1, : theirs.shape[1]].double() - theirs).norm() / theirs.norm())
        for ours, theirs in zip(found, wanted, strict=True)
    ]
    if not max(errors) <= LIMITS[given.dtype]:
        return Measured(size, name, max(errors), note="WRONG")
    if DEVICE == "cpu":
        return Measured(size, name, max(errors), note="right; no times on a CPU")
    from triton.testing import do_bench

    def backward() -> Any:
        return torch.autograd.grad(out, tensors, given, retain_graph=True)

    del found, wanted
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    backward()
    torch.cuda.synchronize()
    mib = (torch.cuda.max_memory_allocated() - before) >> 20
    us = float(do_bench(backward, warmup=20, rep=60, return_mode="median")) * 1e3  # type: ignore[arg-type]
    return Measured(size, name, max(errors), us, work / us / 1e6, mib)


def of_size(size: str, dtype: torch.dtype, only: list[str]) -> Iterator[Measured]:
    """All contestants at one size."""
    masked = size.endswith("c")
    batch, heads, length, width = size.removesuffix("c").split("x")
    queries, _, keys = heads.partition("/")
    counts = int(queries), int(keys or queries), int(keys or queries)
    tensors = [
        torch.randn(int(batch), n, int(length), int(width), device=DEVICE, dtype=dtype).requires_grad_() for n in counts
    ]
    given = torch.randn_like(tensors[0])
    work = 2.5 * 4 * int(batch) * counts[0] * int(length) ** 2 * int(width) / (2 if masked else 1)
    for name, attend in contestants(tensors, masked, counts[0] != counts[1]):
        if name in only:
            yield measured(size, name, attend, tensors, given, masked, work)


def main() -> None:
    """Measures, prints a table, and writes it with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4x32x2048x64c,1x32x2048x128c,1x32x8192x128c,1x32x8192x128,1x32x16384x64c")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="ours,cudnn,flash,flex")
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
            print(f"{size:20} {one.name:8} error {one.error:.1e} {timed} {one.note}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s")
    if given.out is not None:
        write_text(given.out, json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
