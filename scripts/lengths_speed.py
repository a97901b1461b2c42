"""Times kernels of `nl.attention` for all lengths on a GPU, against the kernel of each length, and the host's part.

    python scripts/lengths_speed.py [--only prefill,full,decode,eight,host] [--count 20] [--seed 0]

- prefill, full, decode: against the untuned kernel of each length (Gluon on Hopper, but for decoding), at lengths drawn
  at random; with a causal mask, without one, of one query.
- eight: of one query and a cache of 8 bits, at no more than 6 of these lengths.
- host: microseconds of the host from an eager call to the last launch, with the GPU idle.

Results are checked against float64 on rows drawn at random. `calls_speed.py` times views, packed sequences and paged
caches by both kinds of kernels.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Any

import torch
from speed_checks import causal, tensors, times, wrong

import neptune_lab as nl
from neptune_lab.operators import attention

HEADS, WIDTH = 32, 128
# The shortest prompt of `host`: from here on, kernels for all lengths are those of long ones.
LONG = 1024
Call = Callable[[], Any]


def contestants(kind: str, n: int) -> tuple[Call, Call, Callable[[Any], float]]:
    """A call by the kernel for all lengths and one by that of n keys, and the error of their result."""
    if kind == "eight":
        q, *cache = tensors([(4, HEADS, 1, WIDTH), *[(4, HEADS, n, WIDTH)] * 2])
        k, v = (t.to(torch.float8_e4m3fn) for t in cache)

        def call(dynamic: bool) -> Any:
            return nl.attention(q, k, v, k_scale=0.5, dynamic=dynamic)

        return lambda: call(True), lambda: call(False), lambda out: wrong(out, q, k.half() * 0.5, v.half(), False)
    ordered, decodes = kind == "prefill", kind == "decode"
    q, k, v = tensors([(1, HEADS, 1 if decodes else n, WIDTH), *[(1, HEADS, n, WIDTH)] * 2])
    make = attention.causal if ordered else attention.full
    sizes: Any = {"q_len": 1, "kv_len": n} if decodes else {"seq": n}
    own = nl.compile(make(batch=1, heads=HEADS, head_dim=WIDTH, **sizes), validate="none")
    mod = causal if ordered else None
    return (
        lambda: nl.attention(q, k, v, mask_mod=mod, dynamic=True),
        lambda: own(q, k, v),
        lambda out: wrong(out, q, k, v, ordered),
    )


def compared(kind: str, lengths: list[int]) -> None:
    """Prints the times of both kernels at each length, and their ratios."""
    ratios = []
    for n in lengths:
        for_all, own, error = contestants(kind, n)
        errors = [error(call()) for call in (for_all, own)]
        found = times({"for all": for_all, "own": own})
        if max(errors) > 5e-3 or len(found) < 2:
            print(f"{kind} {n}: errors {errors}, no time", flush=True)
            continue
        ratios.append(found["own"] / found["for all"])
        print(f"{kind} {n}: for all {found['for all']:.1f}, own {found['own']:.1f} us, {ratios[-1]:.3f}", flush=True)
    if ratios:
        mean, least = geometric_mean(ratios), min(ratios)
        print(f"{kind}: own / for all, geometric mean of {len(ratios)}: {mean:.3f}, least {least:.3f}")


def host(count: int) -> None:
    """The host's part of a call."""
    for what, mod, shortest in (("one query", None, 200), ("causal prefill", causal, LONG)):
        for name, step in (("one length", 0), ("lengths that change", 1)):
            spent = []
            for turn in range(count):
                n = shortest + step * turn
                q, k, v = tensors([(1, HEADS, 1 if mod is None else n, WIDTH), *[(1, HEADS, n, WIDTH)] * 2])
                if turn == 0:  # which compiles
                    nl.attention(q, k, v, mask_mod=mod, dynamic=True)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                nl.attention(q, k, v, mask_mod=mod, dynamic=True)
                spent.append(1e6 * (time.perf_counter() - begin))
                torch.cuda.synchronize()
            print(f"host, {what}, {name}: {median(spent):.1f} us", flush=True)


def main() -> None:
    """Measures, and prints a line per length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="prefill,full,decode,eight,host")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    random.seed(chosen.seed)
    for kind in chosen.only.split(","):
        if kind == "host":
            host(100)
        else:
            count = min(chosen.count, 6) if kind == "eight" else chosen.count
            compared(kind, sorted(random.randint(1024, 12000) for _ in range(count)))


if __name__ == "__main__":
    main()
