"""Times attention with a learned bias, both passes and their gradients, beside FlexAttention, in one run.

    python scripts/bias_speed.py [rel:4x32x1024x64 full:4x32x1024x64 slopes:4x32x1024x64c …] [--check] [--out FILE]

A case is a bias and batch x heads x length x width, "c" for causal: "rel" is `bias[h, q - kv + length - 1]`, "full"
`bias[h, q, kv]`, "each" `bias[b, h, q, kv]`, "slopes" `bias[h] * (kv - q) / 100`. The bias is of bfloat16, or of
float32 in a case that ends in ":float32". Results and gradients are checked against float64 for two heads before
anything is timed; with --check nothing is. Microseconds are medians of `triton.testing.do_bench`, the smaller of two,
both contestants in turn. --out writes them to a file, as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
from speed_checks import worst
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench

import neptune_lab as nl
from neptune_lab.files import write_text

CASES = [f"{kind}:{size}" for kind in ("rel", "full", "slopes") for size in ("4x32x1024x64", "1x16x4096x128")]
# FlexAttention does not start at some problems with its own choice.
OPTIONS: tuple[dict[str, int] | None, ...] = (
    None,
    {"num_stages": 2},
    {"num_stages": 1},
    {"BLOCK_M": 64, "BLOCK_N": 32},
)
# Relative error. The gradients of slopes cancel: those of both contestants are less exact.
LIMIT, LIMIT_OF_SLOPES = 1.6e-2, 5e-2


@dataclass(frozen=True)
class Measured:
    """A contestant of a case: its relative error, and microseconds of both passes and of each."""

    case: str
    name: str
    error: float
    step: float
    backward: float
    forward: float


def mod_of(kind: str, bias: torch.Tensor, length: int) -> Callable[..., torch.Tensor]:
    """The score_mod of a case."""
    return {
        "rel": lambda s, b, h, i, j: s + bias[h, i - j + length - 1],
        "full": lambda s, b, h, i, j: s + bias[h, i, j],
        "each": lambda s, b, h, i, j: s + bias[b, h, i, j],
        "slopes": lambda s, b, h, i, j: s + bias[h] * (j - i) * 0.01,
    }[kind]


def two_heads(kind: str, bias: torch.Tensor) -> torch.Tensor:
    """The first two heads of a bias, or of its gradient."""
    return bias[:, :2] if kind == "each" else bias[:2]


def wanted(kind: str, causal: bool, given: list[torch.Tensor], d_out: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients of the first two heads, in float64."""
    q, k, v = (t.detach()[:, :2].double().requires_grad_() for t in given[:3])
    bias = two_heads(kind, given[3].detach()).double().requires_grad_()
    at = torch.arange(q.shape[2], device=q.device)
    more = {
        "rel": lambda: bias[:, at[:, None] - at + len(at) - 1],
        "full": lambda: bias,
        "each": lambda: bias,
        "slopes": lambda: bias[:, None, None] * (at - at[:, None]) * 0.01,
    }[kind]()
    score = q @ k.mT * q.shape[-1] ** -0.5 + more
    if causal:
        score = score.masked_fill(at[:, None] < at, -torch.inf)
    out = score.softmax(-1) @ v
    return [out.detach(), *torch.autograd.grad(out, [q, k, v, bias], d_out[:, :2].double())]


def flex(mod: Callable[..., Any], length: int, causal: bool, given: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A call of compiled FlexAttention, with the first options that it starts with."""
    # The backward pass is timed alone, on one graph that is kept, which donated buffers forbid.
    torch._functorch.config.donated_buffer = False
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length) if causal else None
    for options in OPTIONS:
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)

        def call(compiled: Any = compiled, options: Any = options) -> torch.Tensor:
            return compiled(*given[:3], mod, block_mask=blocks, kernel_options=options)

        try:
            call().sum().backward()
        except RuntimeError as error:
            print(f"FlexAttention with {options}: {str(error).splitlines()[0][:100]}")
        else:
            return call
    raise SystemExit("FlexAttention starts with none of the options")


def run(kind: str, size: str, dtype: str = "bfloat16", *, check: bool = False) -> list[Measured]:
    """Checks one case, and times it unless that is all; its contestants, if they were timed."""
    causal = size.endswith("c")
    batch, heads, length, width = map(int, size.rstrip("c").split("x"))
    torch.manual_seed(0)
    pairs = (heads, length, length)
    shape = {"rel": (heads, 2 * length - 1), "full": pairs, "each": (batch, *pairs), "slopes": (heads,)}[kind]
    drawn = [torch.randn(batch, heads, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    given = [*drawn, torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) * 0.5]
    d_out = torch.randn_like(given[0])
    given = [t.requires_grad_() for t in given]
    mod, mask = mod_of(kind, given[3], length), (lambda b, h, i, j: i >= j) if causal else None
    attend: Any = nl.attention
    calls = {
        "ours": lambda: attend(*given[:3], mod, mask_mod=mask),
        "FlexAttention": flex(mod, length, causal, given),
    }
    want, times = wanted(kind, causal, given, d_out), {name: [[], [], []] for name in calls}
    errors: dict[str, float] = {}
    for name, call in calls.items():
        out = call()
        found = [out, *torch.autograd.grad(out, given, d_out)]
        compared = zip([*(t[:, :2] for t in found[:4]), two_heads(kind, found[4])], want, strict=True)
        error = errors[name] = worst(float((a.detach().double() - b).norm() / b.norm()) for a, b in compared)
        print(f"{kind} {size} {dtype}: relative error of {name} {error:.1e}")
        if not error < (LIMIT_OF_SLOPES if kind == "slopes" else LIMIT):
            raise SystemExit(f"{name} is wrong: relative error {error:.1e}")
    if check:
        return []
    for _ in range(2):
        for name, call in calls.items():
            out = call()
            parts = (
                lambda call=call: torch.autograd.grad(call(), given, d_out),
                lambda out=out: torch.autograd.grad(out, given, d_out, retain_graph=True),
                call,
            )
            for part, found in zip(parts, times[name], strict=True):
                us: Any = do_bench(part, warmup=5, rep=20, return_mode="median")
                found.append(us * 1e3)
    least = {name: [min(t) for t in of] for name, of in times.items()}
    ratios = " / ".join(f"{b / a:.2f}" for a, b in zip(least["ours"], least["FlexAttention"], strict=True))
    text = "; ".join(f"{name} {' / '.join(f'{t:.0f}' for t in of)}" for name, of in least.items())
    print(f"{kind} {size} {dtype}: step / backward / forward, us: {text}; of FlexAttention {ratios}", flush=True)
    return [Measured(f"{kind} {size} {dtype}", name, errors[name], *of) for name, of in least.items()]


def main() -> None:
    """Runs all cases that are named."""
    parser = argparse.ArgumentParser(description="Times attention with a learned bias.")
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--check", action="store_true", help="only check results and gradients")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(torch.cuda.get_device_name())
    rows: list[Measured] = []
    for case in given.cases:
        rows += run(*case.split(":"), check=given.check)
        if given.out is not None:
            write_text(given.out, json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
