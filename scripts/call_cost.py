"""Microseconds of the host from an eager `nl.attention` call to its last launch, with the GPU idle.

    python scripts/call_cost.py [--rows causal,decode] [--turns 300]

Each call is timed by itself, after the GPU has finished the one before; the figure is the median.  Each answer is
compared with float64.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from speed_checks import causal

import neptune_lab as nl


def window(width: int) -> Callable[..., Any]:
    """A mask that captures a number."""
    return lambda b, h, q, kv: (q >= kv) & (q - kv < width)


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float16, device="cuda") for shape in shapes]


def ordered(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The causal mask."""
    return torch.arange(q.shape[2], device="cuda")[:, None] >= torch.arange(k.shape[2], device="cuda")


Row = tuple[Callable[[], Any], Callable[[], torch.Tensor]]


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The answer in float64."""
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)


def rows() -> dict[str, Row]:
    """Calls, and their answers."""
    q, k, v = drawn(*[(1, 4, 64, 64)] * 3)
    bias = torch.randn(4, 64, 64, device="cuda")
    packed = drawn((1, 64, 3 * 4, 64))[0]
    views = [t.transpose(1, 2) for t in packed.chunk(3, 2)]
    q1, k1, v1 = drawn((1, 4, 1, 64), *[(1, 4, 4000, 64)] * 2)
    shifted = [torch.randn(64 * 256 + 1, dtype=torch.float16, device="cuda")[1:].view(1, 4, 64, 64) for _ in range(3)]
    grown = [drawn(*[(1, 4, 200 + n, 64)] * 2) for n in range(600)]
    turns, prompts = itertools.count(), itertools.count()
    now: list[Any] = [None]
    long = [drawn(*[(1, 32, 16 + n, 64)] * 3) for n in range(400)]
    wide = drawn(*[(1, 32, 512, 64)] * 3)
    tiles = {"code": "gluon", "template": "rolling_update", "block_q": 64, "block_kv": 64, "num_warps": 4}

    def varying() -> Any:
        now[0] = grown[next(turns) % len(grown)]
        return nl.attention(q1, *now[0], dynamic=True)

    def prompt() -> Any:
        now[0] = long[next(prompts) % len(long)]
        return nl.attention(*now[0], mask_mod=causal, dynamic=True)

    def biased(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[h, i, j]

    def with_bias() -> torch.Tensor:
        return sdpa(q, k, v, bias.double()[None])

    mask = ordered(q, k)
    narrow = mask & (torch.arange(64, device="cuda")[:, None] - torch.arange(64, device="cuda") < 17)
    kernel = nl.compile(nl.operators.attention.causal(heads=4, seq=64, head_dim=64))
    return {
        "causal": (lambda: nl.attention(q, k, v, mask_mod=causal), lambda: sdpa(q, k, v, mask)),
        "plain": (lambda: nl.attention(q, k, v), lambda: sdpa(q, k, v)),
        "window": (lambda: nl.attention(q, k, v, mask_mod=window(17)), lambda: sdpa(q, k, v, narrow)),
        "bias": (lambda: nl.attention(q, k, v, score_mod=biased), with_bias),
        "packed qkv": (lambda: nl.attention(*views, mask_mod=causal), lambda: sdpa(*views, mask)),
        "unaligned": (lambda: nl.attention(*shifted), lambda: sdpa(*shifted)),
        "decode": (lambda: nl.attention(q1, k1, v1), lambda: sdpa(q1, k1, v1)),
        "decode, all lengths": (lambda: nl.attention(q1, k1, v1, dynamic=True), lambda: sdpa(q1, k1, v1)),
        "decode, a new length each": (varying, lambda: sdpa(q1, *now[0])),
        "prompt, a new length each": (prompt, lambda: sdpa(*now[0], ordered(*now[0][:2]))),
        "options": (
            lambda: nl.attention(*wide, mask_mod=causal, kernel_options=tiles),
            lambda: sdpa(*wide, ordered(*wide[:2])),
        ),
        "kernel(q, k, v)": (lambda: kernel(q, k, v), lambda: sdpa(q, k, v, mask)),
        "sdpa": (lambda: F.scaled_dot_product_attention(q, k, v), lambda: sdpa(q, k, v)),
    }


def spent(call: Callable[[], Any], turns: int) -> float:
    """Microseconds of one call."""
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        found.append(1e6 * (time.perf_counter() - begin))
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names, separated by commas; all if left out")
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--prepare", action="store_true", help="compile only")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, (call, answer) in rows().items():
        if chosen.rows and name not in chosen.rows.split(","):
            continue
        for _ in range(2 if chosen.prepare else 20):
            out = call()
        error = float((out.double() - answer()).abs().max())
        found[name] = round(spent(call, 1 if chosen.prepare else chosen.turns), 1), round(error, 5)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: microseconds and error")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
