"""Microseconds of the host from an eager `nl.attention` call to its last launch, with the GPU idle.

    python scripts/call_cost.py [--rows "causal;decode"] [--turns 150] [--rounds 2] [--warm 200] [--workers 12]

Each call is timed by itself, after the GPU has finished the one before; the figure is the median: until the call
returns, and until its last launch of ours (torch then makes a node for gradients, for one).  All rows first make
calls that are not timed, which also warm the process; then each round times every row, and after it torch's
`scaled_dot_product_attention` of four heads, as a measure of the host at that moment.  Each answer is compared with
float64.  The kernels are compiled first, by one process per row, which leave them in the caches on the disk
(`--workers 0`: by this process, one after another).
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from speed_checks import causal
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import neptune_lab as nl
from neptune_lab.runtime import direct

# Calls before an answer is checked: more than a family of calls has lengths of its own.
CHECKED = 20
# Lengths of rows that have a new one at each call: none comes twice.
LENGTHS = 600
# Calls of torch's function after each row.
BESIDE = 40


@dataclass(frozen=True)
class Row:
    """A call that is timed.

    Args:
        call: takes what `before` gives.
        answer: in float64, of the last call.
        before: what is done before each call, and not timed.
    """

    call: Callable[[Any], Any]
    answer: Callable[[], Any]
    before: Callable[[], Any] = lambda: None


def window(width: int) -> Callable[..., Any]:
    """A mask that captures a number."""
    return lambda b, h, q, kv: (q >= kv) & (q - kv < width)


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float16, device="cuda") for shape in shapes]


def ordered(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The causal mask."""
    return torch.arange(q.shape[2], device="cuda")[:, None] >= torch.arange(k.shape[2], device="cuda")


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The answer in float64."""
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)


def short(attend: Callable[..., Any], mask: Callable[..., Any] | None = None) -> Row:
    """Four heads of 64 queries and keys."""
    q, k, v = drawn(*[(1, 4, 64, 64)] * 3)
    return Row(lambda _: attend(q, k, v), lambda: sdpa(q, k, v, None if mask is None else mask(q, k)))


def narrow(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return ordered(q, k) & (torch.arange(64, device="cuda")[:, None] - torch.arange(64, device="cuda") < 17)


def biased() -> Row:
    q, k, v = drawn(*[(1, 4, 64, 64)] * 3)
    bias = torch.randn(4, 64, 64, device="cuda")

    def with_bias(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[h, i, j]

    return Row(lambda _: nl.attention(q, k, v, score_mod=with_bias), lambda: sdpa(q, k, v, bias.double()[None]))


def packed() -> Row:
    q, k, v = (t.transpose(1, 2) for t in drawn((1, 64, 3 * 4, 64))[0].chunk(3, 2))
    return Row(lambda _: nl.attention(q, k, v, mask_mod=causal), lambda: sdpa(q, k, v, ordered(q, k)))


def unaligned() -> Row:
    flat = [torch.randn(64 * 256 + 1, dtype=torch.float16, device="cuda") for _ in range(3)]
    q, k, v = (tensor[1:].view(1, 4, 64, 64) for tensor in flat)
    return Row(lambda _: nl.attention(q, k, v), lambda: sdpa(q, k, v))


def decode(**options: Any) -> Row:
    q, k, v = drawn((1, 4, 1, 64), *[(1, 4, 4000, 64)] * 2)
    return Row(lambda _: nl.attention(q, k, v, **options), lambda: sdpa(q, k, v))


def new_each(
    attend: Callable[..., Any], given: Sequence[Sequence[torch.Tensor]], answer: Callable[..., torch.Tensor] = sdpa
) -> Row:
    """Calls whose length is another one each time, of tensors that were just made, as a model's are."""
    turns = itertools.cycle(given)
    now: list[Any] = [None]

    def following() -> Any:
        now[0] = [tensor.clone() for tensor in next(turns)]
        return now[0]

    return Row(lambda tensors: attend(*tensors), lambda: answer(*now[0]), following)


def growing() -> Row:
    q = drawn((1, 4, 1, 64))
    caches = [[*q, *drawn(*[(1, 4, 200 + n, 64)] * 2)] for n in range(LENGTHS)]
    return new_each(lambda *tensors: nl.attention(*tensors, dynamic=True), caches)


def prompts(attend: Callable[..., Any], least: int = 16, width: int = 64) -> Row:
    every = [drawn(*[(1, 16, least + n, width)] * 3) for n in range(LENGTHS)]
    return new_each(attend, every, lambda q, k, v: sdpa(q, k, v, ordered(q, k)))


def of_all_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return nl.attention(q, k, v, mask_mod=causal, dynamic=True)


def one_prompt(length: int = 200, width: int = 64) -> Row:
    q, k, v = drawn(*[(1, 16, length, width)] * 3)
    return Row(lambda _: of_all_lengths(q, k, v), lambda: sdpa(q, k, v, ordered(q, k)))


def options() -> Row:
    q, k, v = drawn(*[(1, 32, 512, 64)] * 3)
    tiles = {"code": "gluon", "template": "rolling_update", "block_q": 64, "block_kv": 64, "num_warps": 4}
    return Row(
        lambda _: nl.attention(q, k, v, mask_mod=causal, kernel_options=tiles),
        lambda: sdpa(q, k, v, ordered(q, k)),
    )


def blocks(document: int = 0) -> Row:
    """A block mask: causal, or of documents of so many tokens, whose mask_mod reads a tensor."""
    q, k, v = drawn(*[(1, 4, 64, 64)] * 3)
    of = torch.arange(64, device="cuda") // (document or 1)

    def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
        return of[i] == of[j]

    block_mask = create_block_mask(documents if document else causal, None, None, 64, 64, device="cuda")
    mask = of[:, None] == of if document else ordered(q, k)
    return Row(lambda _: nl.attention(q, k, v, block_mask=block_mask), lambda: sdpa(q, k, v, mask))


def sequences(total: int = 64, heads: int = 4) -> Row:
    """Four packed sequences, whose places are computed on the device at each call."""
    q, k, v = drawn(*[(1, heads, total, 64)] * 3)
    offsets = quarters(total)
    mask = one_sequence(total, total) & ordered(q, k)
    return Row(lambda _: nl.attention(q, k, v, mask_mod=causal, cu_seqlens_q=offsets), lambda: sdpa(q, k, v, mask))


def quarters(total: int) -> torch.Tensor:
    """The offsets of four packed sequences."""
    return torch.tensor([total * n // 4 for n in range(5)], device="cuda", dtype=torch.int32)


def one_sequence(total_q: int, total_k: int) -> torch.Tensor:
    """Whether a query and a key are of one of four packed sequences."""
    one, other = (
        torch.bucketize(torch.arange(n, device="cuda"), quarters(n)[1:], right=True) for n in (total_q, total_k)
    )
    return one[:, None] == other


def apart() -> Row:
    """Queries and keys with offsets of their own, without a mask."""
    q, k, v = drawn((1, 4, 64, 64), *[(1, 4, 96, 64)] * 2)
    of_q, of_k = quarters(64), quarters(96)
    mask = one_sequence(64, 96)
    return Row(lambda _: nl.attention(q, k, v, cu_seqlens_q=of_q, cu_seqlens_k=of_k), lambda: sdpa(q, k, v, mask))


def packed_totals(dynamic: bool | None) -> Row:
    """Packed sequences whose number of tokens is another one at each call."""
    every = [[*drawn(*[(1, 16, 64 + n, 64)] * 3), quarters(64 + n)] for n in range(LENGTHS)]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> Any:
        return nl.attention(q, k, v, mask_mod=causal, cu_seqlens_q=offsets, dynamic=dynamic)

    def answer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, one_sequence(q.shape[2], q.shape[2]) & ordered(q, k))

    return new_each(attend, every, answer)


def aux() -> Row:
    return short(lambda q, k, v: nl.attention(q, k, v, return_aux=AuxRequest(lse=True))[0])


def theirs() -> Row:
    return short(lambda q, k, v: nl.attention(q, k, v, mask_mod=causal, kernel_options={"BLOCK_M": 64}), ordered)


def compiled() -> Row:
    kernel = nl.compile(nl.operators.attention.causal(heads=4, seq=64, head_dim=64))
    return short(kernel, ordered)


def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return nl.attention(q, k, v, mask_mod=causal)


def torchs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """By flash-attention: cuDNN makes a plan for each new length, which takes tens of milliseconds."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torchs(q, k, v)


def training(attend: Callable[..., Any], back: bool) -> Row:
    """A pass of a call that records gradients; `back`: the backward pass."""
    q, k, v = (t.requires_grad_() for t in drawn(*[(1, 8, 1024, 64)] * 3))
    (grad,) = drawn(q.shape)

    def answer() -> Any:
        wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
        out = sdpa(wide[0], wide[1], wide[2], ordered(q, k))
        return torch.autograd.grad(out, wide, grad.double()) if back else out.detach()

    if not back:
        return Row(lambda _: attend(q, k, v), answer)
    return Row(lambda out: torch.autograd.grad(out, (q, k, v), grad), answer, lambda: attend(q, k, v))


ROWS: dict[str, Callable[[], Row]] = {
    "causal": lambda: short(own, ordered),
    "plain": lambda: short(nl.attention),
    "window": lambda: short(lambda q, k, v: nl.attention(q, k, v, mask_mod=window(17)), narrow),
    "bias": biased,
    "packed qkv": packed,
    "unaligned": unaligned,
    "decode": decode,
    "decode, all lengths": lambda: decode(dynamic=True),
    "decode, a new length each": growing,
    "prompt, all lengths": one_prompt,
    "prompt, a new length each": lambda: prompts(of_all_lengths),
    "prompt, new lengths, unasked": lambda: prompts(own),
    "long prompt, all lengths": lambda: one_prompt(1200, 128),  # (in Gluon)
    "long prompt, new each": lambda: prompts(of_all_lengths, 1100, 128),
    "options": options,
    "options of FlexAttention": theirs,
    "block mask": blocks,
    "block mask of documents": lambda: blocks(20),
    "packed sequences": sequences,
    "packed sequences, keys apart": apart,
    "packed sequences of 2,048 tokens": lambda: sequences(2048, 16),
    "packed sequences, a new total each": lambda: packed_totals(True),
    "packed sequences, new totals, unasked": lambda: packed_totals(None),
    "return_aux": aux,
    "kernel(q, k, v)": compiled,
    "training, forward": lambda: training(own, False),
    "training, backward": lambda: training(own, True),
    "sdpa": lambda: short(F.scaled_dot_product_attention),
    "sdpa, flash, a new length each": lambda: prompts(by_flash),
    "sdpa, training, forward": lambda: training(torchs, False),
    "sdpa, training, backward": lambda: training(torchs, True),
}


# When the last direct launch ended.
last_launch = [0.0]


def note_launches() -> None:
    """Makes direct launchers note the time behind each launch, which takes a tenth of a microsecond."""
    of_triton, in_c = direct.launch_function, direct.native_launch

    def noted(own: Any) -> Any:
        def launch(*arguments: Any) -> None:
            own(*arguments)
            last_launch[0] = time.perf_counter()

        return launch

    def noting(run: Any) -> Any:
        own, *others = of_triton(run)
        return noted(own), *others

    def noting_in_c(*arguments: Any) -> Any:
        found = in_c(*arguments)
        return None if found is None else (noted(found[0]), found[1])

    direct.launch_function, direct.native_launch = noting, noting_in_c


def spent(row: Row, turns: int) -> tuple[float, float]:
    """Microseconds of one call, and until its last launch: NaN if it is none of a direct launcher."""
    found, launched = [], []
    for _ in range(turns):
        given = row.before()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        row.call(given)
        found.append(1e6 * (time.perf_counter() - begin))
        launched.append(1e6 * (last_launch[0] - begin))
    return median(found), median(launched) if min(launched) > 0 else math.nan


def error(found: Any, expected: Any) -> float:
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    return max(float((one.detach().double() - other).abs().max()) for one, other in pairs)


def prepare(names: Sequence[str], workers: int, turns: int) -> None:
    """Compiles the kernels of rows, each row in a process of its own."""
    mine = [name for name in names if not name.startswith("sdpa")]
    running: list[subprocess.Popen[bytes]] = []
    for name in mine:
        while len([p for p in running if p.poll() is None]) >= workers:
            time.sleep(0.05)
        counts = ["--workers", "0", "--turns", str(turns), "--warm", "1", "--rounds", "1"]
        command = [sys.executable, __file__, *counts, "--rows", name]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    for name, process in zip(mine, running, strict=True):
        if process.wait():
            print(f"preparing {name!r} failed with status {process.returncode}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names, separated by semicolons; all if left out")
    parser.add_argument("--turns", type=int, default=150, help="calls of a row in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=int, default=200, help="calls of each row before the first one that is timed")
    parser.add_argument("--workers", type=int, default=min(len(ROWS), os.cpu_count() or 1), help="that compile")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    note_launches()
    names = chosen.rows.split(";") if chosen.rows else [*ROWS]
    if unknown := set(names) - ROWS.keys():
        parser.error(f"no rows {sorted(unknown)}; there are {', '.join(map(repr, ROWS))}")
    if max(chosen.warm, CHECKED + 1) + chosen.rounds * chosen.turns > LENGTHS:
        parser.error(f"there are {LENGTHS} lengths; lower --warm, --rounds or --turns")
    begin = time.perf_counter()
    if chosen.workers:
        prepare(names, chosen.workers, 1)
    if chosen.prepare:
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; compiled in {time.perf_counter() - begin:.0f} s")
    rows: dict[str, Row] = {}
    errors: dict[str, float] = {}
    for name in names:
        torch.manual_seed(0)
        row = rows[name] = ROWS[name]()
        for _ in range(CHECKED):
            found = row.call(row.before())
        errors[name] = error(found, row.answer())
        spent(row, max(chosen.warm - CHECKED, 1))
    beside = ROWS["sdpa"]()
    spent(beside, chosen.warm)
    print(f"rows are ready after {time.perf_counter() - begin:.0f} s")
    print(f"{'call':37} microseconds  launched  torch's  error")
    for _ in range(chosen.rounds):
        for name in names:
            (whole, launched), (of_torch, _) = spent(rows[name], chosen.turns), spent(beside, BESIDE)
            print(f"{name:37} {whole:12.1f} {launched:9.1f} {of_torch:8.1f}  {errors[name]:.1e}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s together")


if __name__ == "__main__":
    main()
