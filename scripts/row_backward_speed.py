"""Times the training of row operators on a GPU: ours, torch eager, torch.compile, Liger and quack.

    python scripts/row_backward_speed.py [--sizes 4096x4096,8192x8192,16384x1024] [--vocabulary 4096x32000,2048x128256]
        [--drawn 0] [--seed 0] [--only ours,eager,compile,liger,quack,roof] [--dtype bfloat16] [--seconds 300]
        [--check] [--turns FILE] [--out FILE]
        [--what softmax,rms_norm,layer_norm,cross_entropy,log_softmax,log_sum_exp,l2_norm,mean_cross_entropy]

A size is rows x columns; rows may be numbered by several dimensions, such as 4x1024x50257. --drawn N adds N sizes per
function, drawn from --seed: columns log-uniform of 500 to 16,384 (of losses 8,000 to 160,000), every other one a
multiple of 64, and as many rows as make 4 to 128 Mi elements. The last lines are geometric means over the sizes.
Each function is written in plain PyTorch, which is what `nl.from_torch` and torch.compile take. "step" is the forward
and the backward pass, "backward" the latter alone, both in microseconds from replayed CUDA graphs, so that no time of
the host is in them. Liger's cross entropy computes its gradient in the forward pass: compare steps.
"roof" is one elementwise operation of PyTorch that moves the bytes which a backward pass must move: it reads x and the
cotangent, or x alone where there is one cotangent per row, and writes as much as x has. Nothing that reads x and the
cotangent once can be much faster.
Gradients are checked against float64 on the first rows; a contestant that is wrong is not timed. With --check nothing
is timed: what is compiled is in the caches of a later run. Everything is compiled and checked before anything is timed;
with --turns FILE, several such commands that start at the same time compile beside each other, wait for each other, and
time one after another, by locks on that file. What does not start within --seconds is left out, and
listed. With TRITON_INTERPRET=1 it runs on the CPU, slowly and without times.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from speed_checks import DEVICE, worst

import neptune_lab as nl
from neptune_lab.bench.clock import GpuTimer
from neptune_lab.files import write_text

LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}
# Rows, whose gradients are compared with float64.
CHECKED = 16
Function: TypeAlias = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Measured:
    """One contestant at one size: the largest relative error of a gradient, microseconds (None: wrong, or on a CPU)."""

    what: str
    size: str
    name: str
    error: float
    step: float | None = None
    backward: float | None = None
    note: str = ""


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Of rows."""
    return torch.softmax(x, -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of rows, with a scale."""
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Of rows, with a scale and a shift."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each row."""
    return F.cross_entropy(logits, labels, reduction="none")


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """Of rows."""
    return torch.log_softmax(x, -1)


def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    """Of each row."""
    return torch.logsumexp(x, -1)


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    """Rows over their L2 norms."""
    return F.normalize(x, dim=-1)


def mean_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean of all rows."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


FUNCTIONS: dict[str, Function] = {
    f.__name__: f
    for f in (softmax, rms_norm, layer_norm, cross_entropy, log_softmax, log_sum_exp, l2_norm, mean_cross_entropy)
}
LOSSES = ("cross_entropy", "mean_cross_entropy")
# What Liger has, and quack.
LIGERS = ("softmax", "rms_norm", "layer_norm", *LOSSES)
QUACKS = ("softmax", "rms_norm", *LOSSES)


def drawn(what: str, count: int, seed: int) -> list[str]:
    """Sizes for a function, rows x columns."""
    draw, sizes = random.Random(f"{seed} {what}"), list[str]()
    most = 160_000 if what in LOSSES else 16_384
    least = most // 20 if what in LOSSES else 500
    for n in range(count):
        columns = round(least * (most / least) ** draw.random())
        columns -= columns % 64 if n % 2 else 0
        sizes.append(f"{round((4 << 20) * 32 ** draw.random() / columns)}x{columns}")
    return sizes


def means(rows: Sequence[Measured]) -> Iterator[str]:
    """A line per function and peer: the geometric mean of our speed relative to the peer's, and the least."""
    times = {(r.what, r.size, r.name): r for r in rows}
    for what, peer in dict.fromkeys((r.what, r.name) for r in rows if r.name != "ours"):
        for field in ("backward", "step"):
            ratios: list[float] = []
            for size in dict.fromkeys(r.size for r in rows if r.what == what):
                theirs, own = (getattr(times.get((what, size, name)), field, None) for name in (peer, "ours"))
                if theirs and own:
                    ratios.append(theirs / own)
            if ratios:
                found = f"{geometric_mean(ratios):.2f}, the least {min(ratios):.2f}, {len(ratios)} sizes"
                yield f"{what:14} {field:8} of {peer:8} {found}"


def tensors_of(what: str, shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The arguments of a function."""
    *rows, columns = shape
    # (a graph that a contestant leaves unfinished stops the GPU's own generator)
    draw: Any = {"device": DEVICE, "generator": torch.Generator(DEVICE).manual_seed(0)}
    x = torch.randn(*shape, dtype=dtype, **draw).requires_grad_()
    vectors = [torch.randn(columns, dtype=dtype, **draw).requires_grad_() for _ in range(2)]
    labels = torch.randint(0, columns, rows, **draw)
    if what in LOSSES:
        return x, labels
    return {"rms_norm": (x, vectors[0]), "layer_norm": (x, *vectors)}.get(what, (x,))


def liger(what: str) -> Function:
    """Liger's function of that name, one of `LIGERS`."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction  # pyright: ignore[reportMissingImports]
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction  # pyright: ignore[reportMissingImports]
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction  # pyright: ignore[reportMissingImports]
    from liger_kernel.ops.softmax import LigerSoftmaxFunction  # pyright: ignore[reportMissingImports]

    def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # It writes the gradient over the logits, so that each call needs a copy to start with.
        rows = logits.clone().reshape(-1, logits.shape[-1])
        reduction = "none" if what == "cross_entropy" else "mean"
        found = LigerCrossEntropyFunction.apply(rows, labels.reshape(-1), None, -100, 0.0, 0.0, reduction)
        return found[0] if isinstance(found, tuple) else found

    return {
        "softmax": LigerSoftmaxFunction.apply,
        "rms_norm": lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False),
        "layer_norm": lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        "cross_entropy": losses,
        "mean_cross_entropy": losses,
    }[what]


def quack(what: str) -> Function:
    """quack's function of that name, one of `QUACKS`."""
    from quack.cross_entropy import cross_entropy as loss  # pyright: ignore[reportMissingImports]
    from quack.rmsnorm import rmsnorm  # pyright: ignore[reportMissingImports]
    from quack.softmax import softmax as rows  # pyright: ignore[reportMissingImports]

    def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        reduction = "none" if what == "cross_entropy" else "mean"
        return loss(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction=reduction)

    own: dict[str, Function] = {"softmax": rows, "rms_norm": lambda x, w: rmsnorm(x, w, eps=1e-6)}
    return own.get(what, losses)


def roof(what: str, tensors: Sequence[torch.Tensor], given: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Moves the bytes that a backward pass must move."""
    x = tensors[0].detach()
    out = torch.empty_like(x)
    if given.shape == x.shape:
        return lambda: torch.add(x, given, out=out)
    return lambda: torch.mul(x, 2.0, out=out)


def contestants(what: str, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[str, Callable[[], Function]]]:
    """Names, and what makes each function."""
    function = FUNCTIONS[what]
    yield "ours", lambda: nl.compile(nl.from_torch(function, *(t.detach() for t in tensors))).with_gradients()
    yield "eager", lambda: function
    if DEVICE == "cuda":
        yield "roof", lambda: function
        yield "compile", lambda: torch.compile(function, dynamic=False)
        if what in LIGERS:
            yield "liger", lambda: liger(what)
        if what in QUACKS:
            yield "quack", lambda: quack(what)


def gradients(out: Any, tensors: Sequence[torch.Tensor], given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of the tensors that record them; the graph stays."""
    result = out[0] if isinstance(out, tuple) else out
    recorded = [t for t in tensors if t.requires_grad]
    return torch.autograd.grad(result, recorded, given.reshape(result.shape), retain_graph=True)


def error_of(what: str, found: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], given: torch.Tensor) -> float:
    """The largest error relative to float64: of the first rows of x, and of whole vectors."""
    whole = [t.detach().double() if t.is_floating_point() else t for t in tensors]
    if what != "mean_cross_entropy" and (len(tensors) == 1 or not tensors[1].requires_grad):
        whole = [t[:CHECKED] for t in whole]
        given, found = given[:CHECKED], [found[0][:CHECKED]]
    recorded = [t.requires_grad_() for t in whole if t.is_floating_point()]
    wanted = torch.autograd.grad(FUNCTIONS[what](*whole), recorded, given.double())
    return worst(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))


def prepared(
    what: str, size: str, name: str, make: Callable[[], Function], tensors: Any, only_checked: bool
) -> Measured | Callable[[], Measured]:
    """The contestant, compiled and checked: what times it, or its result if it is not timed."""
    shape = {"mean_cross_entropy": (), "cross_entropy": tensors[0].shape[:-1], "log_sum_exp": tensors[0].shape[:-1]}
    given = torch.randn(shape.get(what, tensors[0].shape)).to(DEVICE)
    stream = torch.cuda.Stream() if DEVICE == "cuda" else None
    if name == "roof":
        call = {"backward": roof(what, tensors, given.to(tensors[0].dtype))}
        return partial(timed, Measured(what, size, name, 0.0), lambda: call, stream)
    try:
        with torch.cuda.stream(stream):
            function = make()
            out = function(*tensors)
            result = out[0] if isinstance(out, tuple) else out
            given = given.to(result.dtype)
            first = gradients(out, tensors, given)
        error = error_of(what, first, tensors, given)
        if not error <= LIMITS[tensors[0].dtype]:
            return Measured(what, size, name, error, note="WRONG")
        if DEVICE == "cpu" or only_checked:
            return Measured(what, size, name, error, note="right, not timed")
        del first, out, result
    except Exception as refused:  # noqa: BLE001  # peers fail in ways of their own
        return Measured(what, size, name, float("nan"), note=reason(refused))

    def calls() -> dict[str, Callable[[], Any]]:
        for _ in range(2):
            gradients(function(*tensors), tensors, given)
        out = function(*tensors)
        torch.cuda.synchronize()
        return {
            "backward": lambda: gradients(out, tensors, given),
            "step": lambda: gradients(function(*tensors), tensors, given),
        }

    return partial(timed, Measured(what, size, name, error), calls, stream)


def timed(row: Measured, calls: Callable[[], Mapping[str, Callable[[], Any]]], stream: Any) -> Measured:
    """The result with the times of its calls, which are made on the stream that they are timed on."""
    try:
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = GpuTimer(seconds=0.3, most=30, stream=stream).times(calls(), cold=False)
    except Exception as refused:  # noqa: BLE001  # peers fail in ways of their own
        return replace(row, error=float("nan"), note=reason(refused))
    us = {call: median(samples.us) for call, samples in found.items() if samples.us}
    note = next((samples.note for samples in found.values() if samples.note), "")
    return replace(row, step=us.get("step"), backward=us.get("backward"), note=note)


def reason(error: Exception) -> str:
    """Its kind and its first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:150]


def main() -> None:
    """Measures, prints a table, and writes it with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4096x4096,8192x8192,16384x1024")
    parser.add_argument("--vocabulary", default="4096x32000,2048x128256", help="sizes of losses")
    parser.add_argument("--only", default="ours,eager,compile,liger,quack,roof")
    parser.add_argument("--what", default="softmax,rms_norm,layer_norm,cross_entropy")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--drawn", type=int, default=0, help="further sizes per function")
    parser.add_argument("--seed", type=int, default=0, help="of --drawn")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--check", action="store_true", help="compile and check, without times")
    parser.add_argument("--turns", type=Path, help="a file for the locks of commands that run at the same time")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = 64  # (of sizes in one process)
    end, rows, ready = time.monotonic() + given.seconds, list[Measured](), list[Measured | Callable[[], Measured]]()
    turns = None
    if given.turns is not None:
        given.turns.touch()
        turns = given.turns.open()
        fcntl.flock(turns, fcntl.LOCK_SH)
    for what in given.what.split(","):
        sizes = (given.vocabulary if what in LOSSES else given.sizes).split(",")
        for size in (*filter(None, sizes), *drawn(what, given.drawn, given.seed)):
            tensors = tensors_of(what, [int(n) for n in size.split("x")], getattr(torch, given.dtype))
            for name, make in contestants(what, tensors):
                if name not in given.only.split(",") or (given.check and name == "roof"):
                    continue
                if time.monotonic() > end:
                    print(f"{what:14} {size:12} {name:8} left out: no time")
                    continue
                ready.append(prepared(what, size, name, make, tensors, given.check))
    if turns is not None:
        fcntl.flock(turns, fcntl.LOCK_EX)  # (which no other command has before all are ready)
    for one in ready:
        row = one if isinstance(one, Measured) else one()
        rows.append(row)
        times = "".join(f" {label} {us:8.1f}" for label, us in (("step", row.step), ("backward", row.backward)) if us)
        print(f"{row.what:14} {row.size:12} {row.name:8} error {row.error:.1e}{times} {row.note}", flush=True)
    print(*means(rows), sep="\n")
    if given.out:
        write_text(given.out, json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
