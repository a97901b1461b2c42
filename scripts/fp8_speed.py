"""Times attention on tensors of 8 bits against our own float16.

    python scripts/fp8_speed.py [--size 1x16x8192x128] [--configs all] [--out FILE]

A size is batch x heads x length x head_dim. Prefill, causal and plain: float16, e4m3 with weights of 16 bits, and e4m3
with weights of e4m3 (v stored transposed, so that no call transposes it; and as it is, with the transposition). Every
contestant is checked against float64 of its own inputs on random rows before it is timed, and is left out if it is
wrong. With --configs all, e4m3 is also timed with the tile sizes below; the best is shown. Needs a GPU and TVM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROWS = 64  # checked rows of queries
LIMITS = {"float16": 2e-3, "e4m3": 5e-3, "e4m3, weights of e4m3": 3e-2, "e4m3, weights of e4m3, v transposed": 3e-2}
ROUNDS, LAUNCHES = 20, 10
CONFIGS: tuple[Mapping[str, Any], ...] = tuple(
    {"block_q": q, "block_kv": kv, "num_warps": warps, "num_stages": stages, "loads": loads}
    for q, kv, warps, stages, loads in itertools.product(
        (64, 128), (64, 128), (4, 8), (2, 3, 4), ("pointers", "descriptors")
    )
    if (q, warps) != (64, 8)
)


@dataclass(frozen=True)
class Measured:
    """One contestant: microseconds (the median), relative error, its configuration, or why there is none."""

    mask: str
    name: str
    us: float | None = None
    error: float | None = None
    tflops: float | None = None
    config: Mapping[str, Any] | None = None
    note: str = ""


def reference(tensors: tuple[Any, ...], scales: tuple[float, ...], rows: Any, causal: bool) -> Any:
    """The rows of the result in float64, one head at a time."""
    import torch

    q, k, v = tensors
    q_scale, k_scale, v_scale = scales
    out = torch.empty((*q.shape[:2], len(rows), v.shape[3]), dtype=torch.float64, device=q.device)
    hidden = rows[:, None] < torch.arange(k.shape[2], device=q.device)
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        score = q[b, h, rows].double() @ k[b, h].double().T * (q_scale * k_scale * q.shape[3] ** -0.5)
        if causal:
            score = score.masked_fill(hidden, -torch.inf)
        out[b, h] = score.softmax(-1) @ (v[b, h].double() * v_scale)
    return out


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of one launch: the median of rounds, each of several launches between two events."""
    import torch

    for _ in range(3):
        call()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(LAUNCHES):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / LAUNCHES)
    return median(times)


def contestants(size: tuple[int, ...], causal: bool) -> Iterator[tuple[str, tuple[Any, ...], tuple[float, ...], Any]]:
    """(name, tensors, scales, call with kernel_options) of each."""
    import torch

    import neptune_lab as nl

    def causal_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    torch.manual_seed(0)
    mask = causal_mask if causal else None
    half = tuple(torch.randn(size, device="cuda", dtype=torch.float16) for _ in range(3))
    yield "float16", half, (1.0, 1.0, 1.0), lambda o: nl.attention(*half, mask_mod=mask, kernel_options=o)
    scales = tuple(float(t.abs().max()) / 448 for t in half)
    q, k, v = eights = tuple((t / s).to(torch.float8_e4m3fn) for t, s in zip(half, scales, strict=True))
    named = dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))
    turned = v.transpose(2, 3).contiguous().transpose(2, 3)
    e4m3 = torch.float8_e4m3fn

    def call(values: Any, weights: Any) -> Callable[[Any], Any]:
        return lambda o: nl.attention(q, k, values, mask_mod=mask, kernel_options=o, weights_dtype=weights, **named)

    yield "e4m3", eights, scales, call(v, None)
    yield "e4m3, weights of e4m3", eights, scales, call(v, e4m3)
    yield "e4m3, weights of e4m3, v transposed", eights, scales, call(turned, e4m3)


def measured(size: tuple[int, ...], causal: bool, configs: tuple[Mapping[str, Any], ...]) -> Iterator[Measured]:
    """Every contestant, checked and timed."""
    import torch
    from triton.runtime.errors import OutOfResources

    from neptune_lab.errors import NeptuneError

    mask = "causal" if causal else "plain"
    batch, heads, length, width = size
    operations = 4 * batch * heads * length * length * width / (2 if causal else 1)
    for name, tensors, scales, call in contestants(size, causal):
        rows = torch.randperm(length, device="cuda")[:ROWS].sort().values
        expected = reference(tensors, scales, rows, causal)
        best = Measured(mask, name, note="nothing ran")
        for config in (None, *(() if name == "float16" else configs)):
            try:
                found = call(config)[:, :, rows].double()
            except (NeptuneError, OutOfResources, torch.OutOfMemoryError) as refused:
                if config is None:
                    best = Measured(mask, name, note=f"{type(refused).__name__}: {refused}".splitlines()[0])
                continue
            error = float((found - expected).norm() / expected.norm())
            if not error <= LIMITS[name]:
                print(f"WRONG {mask} {name} {config}: {error:.1e}, at most {LIMITS[name]:.0e}", flush=True)
                continue
            us = timed(partial(call, config))
            if best.us is None or us < best.us:
                best = Measured(mask, name, us, error, operations / us / 1e6, config)
        yield best


def main() -> None:
    """Measures, prints a table, and writes it with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1x16x8192x128")
    parser.add_argument("--configs", choices=("none", "all"), default="none")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    import torch

    batch, heads, length, width = map(int, given.size.split("x"))
    print(torch.cuda.get_device_name(), given.size, time.strftime("%Y-%m-%dT%H:%M:%S%z"), flush=True)
    results = []
    for causal in (True, False):
        base = None
        for found in measured((batch, heads, length, width), causal, CONFIGS if given.configs == "all" else ()):
            results.append(found)
            if found.us is None:
                print(f"{found.mask:7} {found.name:36} -  {found.note}", flush=True)
                continue
            base = found.us if found.name == "float16" else base
            ratio = "" if base is None else f"{base / found.us:5.2f} of float16"
            print(
                f"{found.mask:7} {found.name:36} {found.us:8.1f} us {found.tflops:6.0f} TFLOP/s  "
                f"error {found.error:.1e}  {ratio} {dict(found.config or {}) or ''}",
                flush=True,
            )
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
