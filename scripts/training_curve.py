"""Trains a Llama of `transformers` on a GPU by several attentions and compares their losses with eager's.

    python scripts/training_curve.py [--layers 8] [--hidden 1024] [--heads 16] [--kv-heads 4] [--length 1024]
        [--batch 4] [--steps 50] [--rate 1e-4] [--dtype float32,bfloat16] [--seeds 0]
        [--only eager,sdpa,ours,compiled,both] [--seconds 200] [--out FILE]

- eager: `attn_implementation="eager"`, in plain PyTorch: what the others are compared with.
- sdpa: PyTorch's own kernels, for scale: it differs from eager by rounding too.
- ours: `attn_implementation="neptune_lab"`.
- compiled: eager's model under `torch.compile(backend="neptune_lab")`.
- both: ours under that backend.

Each starts from the same weights and sees the same batches of random tokens, drawn anew each step from few sequences,
which it learns; --seeds of weights and batches may be several. "float32" has TF32 off; "bfloat16" is autocast over
float32 weights. Printed are the first and the last loss; the largest, the last and the root mean square difference of
the losses from those of eager in the same dtype, and from those of eager in float32, which tells a wrong curve from one
that is rounded: eager's own curve in bfloat16 is not that of float32 either; the time of the first step, which
compiles, and the time per step after the first five. What does not start within --seconds is left out, and listed.
--out writes all losses and seconds to a file, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import neptune_lab as nl
from neptune_lab.files import write_text
from neptune_lab.torch_regions.backend import backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = "eager", "sdpa", "ours", "compiled", "both"
# The curve that tells how far eager's own rounding moves one.
EXACT = "eager", "float32"


@dataclass(frozen=True)
class Curve:
    """The losses and seconds of all steps of one training."""

    kind: str
    dtype: str
    seed: int
    losses: list[float]
    seconds: list[float]


def model(given: argparse.Namespace, kind: str, seed: int) -> torch.nn.Module:
    """The model with the attention of `kind`; its weights are the same for every kind."""
    from transformers import LlamaConfig, LlamaForCausalLM

    attention = {"ours": "neptune_lab", "both": "neptune_lab", "compiled": "eager"}.get(kind, kind)
    config = LlamaConfig(
        vocab_size=given.vocabulary,
        hidden_size=given.hidden,
        intermediate_size=3 * given.hidden,
        num_hidden_layers=given.layers,
        num_attention_heads=given.heads,
        num_key_value_heads=given.kv_heads,
        max_position_embeddings=given.length,
        attn_implementation=attention,
    )
    torch.manual_seed(seed)
    with torch.device(DEVICE):
        return LlamaForCausalLM(config)


def batches(given: argparse.Namespace, seed: int) -> Iterator[torch.Tensor]:
    """Batches of token ids (batch, length), each of sequences drawn from 2 * batch of them."""
    generator = torch.Generator().manual_seed(seed + 1)
    known = torch.randint(0, given.vocabulary, (2 * given.batch, given.length), generator=generator)
    for _ in range(given.steps):
        yield known[torch.randperm(len(known), generator=generator)[: given.batch]].to(DEVICE)


def trained(given: argparse.Namespace, kind: str, dtype: str, seed: int) -> Curve:
    """Trains one model."""
    net = model(given, kind, seed)
    call: Callable[..., Any] = torch.compile(net, backend=backend) if kind in ("compiled", "both") else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=given.rate)
    curve = Curve(kind, dtype, seed, [], [])
    for ids in batches(given, seed):
        started = time.perf_counter()
        autocast = torch.autocast(DEVICE, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
        with autocast:
            loss = call(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        curve.losses.append(loss.item())
        curve.seconds.append(time.perf_counter() - started)
    torch._dynamo.reset()
    return curve


def distance(curve: Curve, other: Curve | None) -> str:
    """The largest, the last and the root mean square difference of two curves."""
    if other is None:
        return "-"
    apart = [abs(a - b) for a, b in zip(curve.losses, other.losses, strict=True)]
    return f"{max(apart):.1e} at most, {apart[-1]:.1e} at the end, {fmean(d * d for d in apart) ** 0.5:.1e} rms"


def main() -> None:
    """Trains by each attention in turn, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {
        "layers": 8, "hidden": 1024, "heads": 16, "kv-heads": 4, "length": 1024, "batch": 4, "steps": 50,
        "vocabulary": 8192,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    nl.register_attention()
    torch.backends.cuda.matmul.allow_tf32 = False
    started = time.perf_counter()
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, Triton's interpreter"
    print(device, time.strftime("%Y-%m-%dT%H:%M:%S%z"), flush=True)
    wanted = [(kind, dtype) for dtype in given.dtype.split(",") for kind in given.only.split(",")]
    curves: list[Curve] = []
    for seed in map(int, given.seeds.split(",")):
        found: dict[tuple[str, str], Curve] = {}
        # Eager first, in float32 and in the dtypes asked for: the others are compared with them.
        for kind, dtype in dict.fromkeys((EXACT, *(("eager", dtype) for _, dtype in wanted), *wanted)):
            if time.perf_counter() - started > given.seconds:
                print(f"{dtype:9} {kind:9} left out: {given.seconds:.0f} s are over")
                continue
            curve = found[kind, dtype] = trained(given, kind, dtype, seed)
            curves.append(curve)
            exact = "" if dtype == EXACT[1] else f"from eager in float32: {distance(curve, found.get(EXACT))}; "
            print(
                f"{dtype:9} {kind:9} seed {seed}: loss {curve.losses[0]:.4f} -> {curve.losses[-1]:.4f}; from eager in "
                f"{dtype}: {distance(curve, found.get(('eager', dtype)))}; {exact}first step {curve.seconds[0]:.1f} s, "
                f"then {1e3 * median(curve.seconds[5:] or curve.seconds):.1f} ms a step",
                flush=True,
            )
            if given.out is not None:
                every = {"device": device, "asked": {k: str(v) for k, v in vars(given).items()}}
                write_text(given.out, json.dumps({**every, "curves": [asdict(c) for c in curves]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
