"""Trains a Llama of `transformers` on a GPU by several attentions and compares their losses with eager's.

    python scripts/training_curve.py [--layers 8] [--hidden 1024] [--heads 16] [--kv-heads 4] [--length 1024]
        [--batch 4] [--steps 50] [--rate 1e-4] [--dtype float32,bfloat16]
        [--only eager,sdpa,ours,compiled,both] [--seconds 200]

- eager: `attn_implementation="eager"`, in plain PyTorch: what the others are compared with.
- sdpa: PyTorch's own kernels, for scale: it differs from eager by rounding too.
- ours: `attn_implementation="neptune_lab"`.
- compiled: eager's model under `torch.compile(backend="neptune_lab")`.
- both: ours under that backend.

Each starts from the same weights and sees the same batches of random tokens, drawn anew each step from few sequences,
which it learns. "float32" has TF32 off; "bfloat16" is autocast over float32 weights. Printed are the largest and the
last difference of the loss from eager's, the first and the last loss, the time of the first step, which compiles, and
the time per step after the first five. What does not start within --seconds is left out, and listed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

import neptune_lab as nl
from neptune_lab.torch_regions.backend import backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = "eager", "sdpa", "ours", "compiled", "both"


def model(given: argparse.Namespace, kind: str) -> torch.nn.Module:
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
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return LlamaForCausalLM(config)


def batches(given: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Batches of token ids (batch, length), each of sequences drawn from 2 * batch of them."""
    generator = torch.Generator().manual_seed(1)
    known = torch.randint(0, given.vocabulary, (2 * given.batch, given.length), generator=generator)
    for _ in range(given.steps):
        yield known[torch.randperm(len(known), generator=generator)[: given.batch]].to(DEVICE)


def trained(given: argparse.Namespace, kind: str, dtype: str) -> tuple[list[float], list[float]]:
    """Losses and seconds of all steps."""
    net = model(given, kind)
    call: Callable[..., Any] = torch.compile(net, backend=backend) if kind in ("compiled", "both") else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=given.rate)
    losses, seconds = [], []
    for ids in batches(given):
        started = time.perf_counter()
        autocast = torch.autocast(DEVICE, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
        with autocast:
            loss = call(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    return losses, seconds


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
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=200.0)
    given = parser.parse_args()
    nl.register_attention()
    torch.backends.cuda.matmul.allow_tf32 = False
    started = time.perf_counter()
    for dtype in given.dtype.split(","):
        eager: list[float] = []
        for kind in given.only.split(","):
            if time.perf_counter() - started > given.seconds:
                print(f"{dtype:9} {kind:9} left out: {given.seconds:.0f} s are over")
                continue
            losses, seconds = trained(given, kind, dtype)
            torch._dynamo.reset()
            eager = losses if kind == "eager" else eager
            differences = [abs(a - b) for a, b in zip(losses, eager, strict=False)] or [float("nan")]
            print(
                f"{dtype:9} {kind:9} loss {losses[0]:.4f} -> {losses[-1]:.4f}, from eager's at most "
                f"{max(differences):.1e}, at the end {differences[-1]:.1e}, first step {seconds[0]:.1f} s, then "
                f"{1e3 * median(seconds[5:] or seconds):.1f} ms a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
