"""Times functions of plain PyTorch through `nl.from_torch` against torch.compile and FlexAttention.

    python scripts/from_torch_speed.py --sizes 4x32x4096x64,16x16x1024x128 [--only causal,alibi] [--workers 4]
        [--autotune] [--out FILE]

A size is batch x heads x length x head_dim. The functions are those of tests/torch_to_stages/patterns.py: Flashlight's
eleven patterns in textbook spelling. Needs a GPU and TVM. Each contestant is checked against float64 on rows drawn at
random before it is timed; the peers are checked too. What does not fit into memory is listed.

Workers compile side by side, and wait for each other before one after the other checks and times. A contestant whose
first run breaks CUDA (an illegal address) is noted, and its worker begins again without it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "torch_to_stages"))

ROWS = 16  # checked rows of queries
WINDOW, PREFIX, CAP, WEIGHT = 16, 24, 20.0, 0.3  # as patterns.py has them
WITHIN = 2e-3
DOCUMENTS = 8
PATIENCE = 4  # attempts of a contestant that runs out of memory
BROKEN = 3  # a worker's exit status after an error that CUDA does not recover from


@dataclass
class Measured:
    """One contestant at one problem: microseconds (the median), the relative error, or why there is none."""

    pattern: str
    size: str
    name: str
    us: float | None = None
    error: float | None = None
    note: str = ""
    seconds: float = 0.0
    kernels: int | None = None


@dataclass(frozen=True)
class Problem:
    """A pattern at a size."""

    pattern: str
    batch: int
    heads: int
    length: int
    width: int

    @property
    def size(self) -> str:
        return f"{self.batch}x{self.heads}x{self.length}x{self.width}"


@dataclass
class Contestant:
    """A call that is compiled, or the reason why it cannot be."""

    name: str
    make: Callable[[Problem], Callable[..., Any] | None]
    call: Callable[..., Any] | None = None
    note: str = ""
    seconds: float = 0.0
    kernels: int | None = field(default=None)


def inputs(problem: Problem, device: str) -> tuple[Any, ...]:
    """Random inputs of a pattern."""
    import torch

    torch.manual_seed(0)
    b, h, n, d = problem.batch, problem.heads, problem.length, problem.width

    def half(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float16, device=device)

    if problem.pattern == "document_mask":
        ids = torch.arange(n, dtype=torch.int32, device=device) // math.ceil(n / DOCUMENTS)
        return half(b, h, n, d), half(b, h, n, d), half(b, h, n, d), ids.expand(b, n).contiguous()
    if problem.pattern == "gqa":
        return half(b, h, n, d), half(b, h // 4, n, d), half(b, h // 4, n, d)
    if problem.pattern == "differential":
        return (*(half(b, h, n, d) for _ in range(4)), half(b, h, n, 2 * d))
    if problem.pattern == "evoformer":
        return (*(half(1, b, h, n, d) for _ in range(3)), half(1, b, n), half(1, h, n, n), half(1, b, h, n, d))
    if problem.pattern == "invariant_point":
        points = half(b, h, n, 4, 3), half(b, h, n, 4, 3)
        return half(b, h, n, d), half(b, h, n, d), half(b, h, n, d), *points, half(h).abs()
    return half(b, h, n, d), half(b, h, n, d), half(b, h, n, d)


# -- the definition, written once more: rows of it in float64 --------------------------------------------------------


def slopes(problem: Problem, device: str) -> Any:
    import torch

    return (2.0 ** (-8.0 * torch.arange(1, problem.heads + 1, device=device) / problem.heads)).half()


def visible(problem: Problem) -> Callable[..., Any] | None:
    """The mask of a pattern over positions, for FlexAttention and for the reference."""
    masks: dict[str, Callable[..., Any]] = {
        "causal": lambda i, j: i >= j,
        "alibi": lambda i, j: i >= j,
        "sliding_window": lambda i, j: (j <= i) & (i - j < WINDOW),
        "prefix_lm": lambda i, j: (j <= i) | (j < PREFIX),
    }
    return masks.get(problem.pattern)


def reference(problem: Problem, tensors: tuple[Any, ...], rows: Any) -> Any:
    """The rows of a pattern's result, in float64: (batch, heads, rows, width)."""
    import torch

    pattern = problem.pattern
    if pattern == "evoformer":
        q, k, v, mask, pair, gate = (t[0] for t in tensors)
        extra = mask.double()[:, None, None, :] + pair.double()[None, :, rows]
        return torch.sigmoid(gate.double()[:, :, rows]) * attended(q, k, v, rows, lambda s: s + extra)
    if pattern == "differential":
        q1, q2, k1, k2, v = tensors
        return attended(q1, k1, v, rows) - WEIGHT * attended(q2, k2, v, rows)
    q, k, v, *rest = tensors
    if pattern == "gqa":
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    i, j = rows[:, None], torch.arange(problem.length, device=q.device)[None, :]

    def modified(scores: Any) -> Any:
        if pattern == "alibi":
            scores = scores - slopes(problem, q.device).double()[:, None, None] * (i - j)
        if pattern == "softcap":
            scores = CAP * torch.tanh(scores / CAP)
        if pattern == "invariant_point":
            first, second, weight = (t.double() for t in rest)
            distance = ((first[:, :, rows][:, :, :, None] - second[:, :, None]) ** 2).sum((-1, -2))
            scores = scores - 0.5 * weight[:, None, None] * distance
        seen = visible(problem)
        if seen is not None:
            scores = scores.masked_fill(~seen(i, j), -math.inf)
        if pattern == "document_mask":
            same = rest[0][:, rows][:, None, :, None] == rest[0][:, None, None, :]
            scores = scores.masked_fill(~same, -math.inf)
        return scores

    return attended(q, k, v, rows, modified)


def attended(q: Any, k: Any, v: Any, rows: Any, modified: Callable[[Any], Any] = lambda s: s) -> Any:
    scores = modified(q[:, :, rows].double() @ k.double().mT / math.sqrt(q.shape[-1]))
    return scores.softmax(-1) @ v.double()


# -- contestants -----------------------------------------------------------------------------------------------------


def ours(problem: Problem, *, tuned: bool = True) -> tuple[Callable[..., Any], int]:
    """With `tuned`, as users should call it: a record or, on a Hopper GPU, Gluon where it can be written."""
    import patterns

    import neptune_lab as nl

    op = nl.from_torch(getattr(patterns, problem.pattern), *inputs(problem, "cuda"))
    kernel = nl.compile(op, tuned=tuned)
    return kernel, len(kernel.htile.kernels)


def plain(problem: Problem) -> tuple[Callable[..., Any], int]:
    return ours(problem, tuned=False)


def torch_compiled(problem: Problem, mode: str | None = None) -> Callable[..., Any]:
    import patterns
    import torch

    torch._dynamo.reset()
    return torch.compile(getattr(patterns, problem.pattern), dynamic=False, mode=mode)


def flex(problem: Problem) -> Callable[..., Any] | None:
    """FlexAttention, where it can say the pattern."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if problem.pattern == "invariant_point":
        return None
    run = torch.compile(flex_attention, dynamic=False)
    n, pattern = problem.length, problem.pattern
    slope, seen = slopes(problem, "cuda").float(), visible(problem)

    def blocks(mask: Callable[..., Any], batch: int | None = None) -> Any:
        return create_block_mask(mask, batch, None, n, n, device="cuda", _compile=True)

    if pattern == "evoformer":

        def biased(q: Any, k: Any, v: Any, mask: Any, pair: Any, gate: Any) -> Any:
            def mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                return score + mask[0, b, j] + pair[0, h, i, j]

            return torch.sigmoid(gate) * run(q[0], k[0], v[0], score_mod=mod)[None]

        return torch.compile(biased, dynamic=False)
    if pattern == "differential":

        def both(q1: Any, q2: Any, k1: Any, k2: Any, v: Any) -> Any:
            return run(q1, k1, v) - WEIGHT * run(q2, k2, v)

        return torch.compile(both, dynamic=False)
    mods: dict[str, Callable[..., Any]] = {
        "alibi": lambda s, b, h, i, j: s - slope[h] * (i - j),
        "softcap": lambda s, b, h, i, j: CAP * torch.tanh(s / CAP),
    }
    if pattern == "document_mask":
        ids = inputs(problem, "cuda")[3]
        block = blocks(lambda b, h, i, j: ids[b, i] == ids[b, j], problem.batch)
    else:
        block = None if seen is None else blocks(lambda b, h, i, j: seen(i, j))
    mod, grouped = mods.get(pattern), pattern == "gqa"
    return lambda q, k, v, *_: run(q, k, v, score_mod=mod, block_mask=block, enable_gqa=grouped)


Broken: TypeAlias = MutableMapping[tuple[Problem, str], str]  # contestants that broke CUDA, and how

# -- one worker ------------------------------------------------------------------------------------------------------


def work(problems: list[Problem], autotune: bool, broken: Broken, together: Any, lock: Any, results: Any) -> None:
    """Compiles every contestant of its problems, waits for the other workers, then checks and times."""
    import torch

    torch.set_default_device("cuda")
    torch._dynamo.config.cache_size_limit = torch._dynamo.config.recompile_limit = 64
    ready = [(problem, prepared(problem, autotune, broken)) for problem in problems]
    torch.cuda.empty_cache()
    together.wait()
    for problem, contestants in ready:
        with lock:
            found = timed(problem, contestants)
            torch.cuda.empty_cache()
            results.put([asdict(m) for m in found])
            print(line(problem, found), flush=True)


def prepared(problem: Problem, autotune: bool, broken: Broken) -> list[Contestant]:
    import torch

    contestants = [
        Contestant("ours", ours),
        Contestant("ours in Triton", plain),
        Contestant("torch.compile", torch_compiled),
    ]
    if autotune:
        mode = "max-autotune-no-cudagraphs"
        contestants.append(Contestant(f"torch.compile {mode}", partial(torch_compiled, mode=mode)))
    contestants.append(Contestant("FlexAttention", flex))
    for contestant in contestants:
        began = time.perf_counter()
        contestant.note = broken.get((problem, contestant.name), "")
        for attempt in range(0 if contestant.note else PATIENCE):
            try:
                run_first(problem, contestant)
                break
            except torch.AcceleratorError as error:  # CUDA answers nothing else in this process
                broken[problem, contestant.name] = first_line(error)
                os._exit(BROKEN)
            except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
                contestant.call, contestant.note = None, first_line(error)
                torch.cuda.empty_cache()
                if not isinstance(error, torch.OutOfMemoryError) or attempt == PATIENCE - 1:
                    break
                time.sleep(10)  # another worker may hold the memory
        contestant.seconds = time.perf_counter() - began
        torch.cuda.empty_cache()
    return contestants


def run_first(problem: Problem, contestant: Contestant) -> None:
    """Compiles a contestant and runs it once."""
    import torch

    made = contestant.make(problem)
    contestant.call, contestant.kernels = made if isinstance(made, tuple) else (made, None)
    if contestant.call is None:
        contestant.note = "cannot say it"
        return
    contestant.call(*inputs(problem, "cuda"))
    torch.cuda.synchronize()
    contestant.note = ""


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def timed(problem: Problem, contestants: list[Contestant]) -> list[Measured]:
    import torch

    from neptune_lab.bench.clock import GpuTimer

    tensors = inputs(problem, "cuda")
    rows = torch.randperm(problem.length)[:ROWS].sort().values
    wanted = reference(problem, tensors, rows)
    found: dict[str, Measured] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for c in contestants:
        m = Measured(problem.pattern, problem.size, c.name, note=c.note, seconds=round(c.seconds, 1), kernels=c.kernels)
        found[c.name] = m
        if c.call is None:
            continue
        try:
            out = c.call(*tensors)
            out = out[0] if isinstance(out, tuple) else out
            if problem.pattern == "evoformer":
                out = out[0]
            m.error = float((out[:, :, rows].double() - wanted).norm() / wanted.norm())
            del out
        except Exception as error:  # noqa: BLE001 - as above; most often memory
            m.note = first_line(error)
            continue
        if m.error < WITHIN:
            calls[c.name] = partial(c.call, *tensors)
        else:
            m.note = "wrong: it has no time"
    for name, samples in GpuTimer(seconds=0.4, most=20).times(calls, cold=False).items():
        us = sorted(samples.us)
        found[name].us = us[len(us) // 2] if us else None
        found[name].note = found[name].note or samples.note
    return list(found.values())


def line(problem: Problem, found: list[Measured]) -> str:
    """One problem as a line of text."""
    cells = [f"{m.name} {m.us:.1f}" if m.us else f"{m.name} - ({m.note[:90]})" for m in found]
    kernels = next((m.kernels for m in found if m.name == "ours"), None)
    return f"{problem.pattern:16} {problem.size:16} [{kernels}] " + "  ".join(cells)


def means(measured: list[dict[str, Any]]) -> str:
    """Geometric means of the peers' times over ours."""
    of: dict[tuple[str, str], dict[str, float]] = {}
    for m in measured:
        if m["us"]:
            of.setdefault((m["pattern"], m["size"]), {})[m["name"]] = m["us"]
    pairs = [
        (us["ours"], {n: t for n, t in us.items() if not n.startswith("ours")}) for us in of.values() if "ours" in us
    ]
    compiled = [(us, [t for n, t in peers.items() if n.startswith("torch.compile")]) for us, peers in pairs]
    best = [min(times) / us for us, times in compiled if times]
    flexed = [peers["FlexAttention"] / us for us, peers in pairs if "FlexAttention" in peers]
    said = []
    for name, ratios in (("torch.compile's best", best), ("FlexAttention", flexed)):
        if ratios:
            said.append(f"over {name}: {geometric_mean(ratios):.2f} ({len(ratios)} problems, least {min(ratios):.2f})")
    return "; ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", required=True, help="such as 4x32x4096x64")
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--out", default="from_torch_speed.jsonl")
    chosen = parser.parse_args()
    import patterns

    from neptune_lab.files import write_text

    names = chosen.only.split(",") if chosen.only else list(patterns.ATTENTION)
    problems = [Problem(n, *map(int, size.split("x"))) for size in chosen.sizes.split(",") for n in names]
    context = multiprocessing.get_context("spawn")
    workers = min(chosen.workers, len(problems))
    together, lock, results = context.Barrier(workers), context.Lock(), context.Queue()
    broken: Broken = context.Manager().dict()

    def started(worker: int) -> Any:
        given = (problems[worker::workers], chosen.autotune, broken, together, lock, results)
        process = context.Process(target=work, args=given)
        process.start()
        return process

    processes = [started(w) for w in range(workers)]
    measured: list[dict[str, Any]] = []
    missing = len(problems)
    while missing:
        for w, process in enumerate(processes):
            if process.exitcode == BROKEN:
                processes[w] = started(w)
            elif process.exitcode:
                together.abort()
                sys.exit(f"worker {w} ended with status {process.exitcode}")
        try:
            measured += results.get(timeout=5)
        except queue.Empty:
            continue
        missing -= 1
        write_text(Path(chosen.out), "".join(json.dumps(m) + "\n" for m in measured))
    for process in processes:
        process.join()
    print(means(measured))


if __name__ == "__main__":
    main()
