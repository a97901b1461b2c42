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

from from_torch_problems import CAP, WEIGHT, Problem, inputs, reference, slopes, visible

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "torch_to_stages"))

ROWS = 16  # checked rows of queries
WITHIN = 2e-3
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


@dataclass
class Contestant:
    """A call that is compiled, or the reason why it cannot be."""

    name: str
    make: Callable[[Problem], Callable[..., Any] | tuple[Callable[..., Any], int] | None]
    call: Callable[..., Any] | None = None
    note: str = ""
    seconds: float = 0.0
    kernels: int | None = field(default=None)


# -- contestants -----------------------------------------------------------------------------------------------------


def ours(problem: Problem, *, tuned: bool = True) -> tuple[Callable[..., Any], int]:
    """With `tuned`, as users should call it: a record or, on a Hopper GPU, Gluon where it can be written."""
    import patterns  # pyright: ignore[reportMissingImports]

    import neptune_lab as nl

    op = nl.from_torch(getattr(patterns, problem.pattern), *inputs(problem, "cuda"))
    kernel = nl.compile(op, tuned=tuned)
    return kernel, len(kernel.htile.kernels)


def plain(problem: Problem) -> tuple[Callable[..., Any], int]:
    return ours(problem, tuned=False)


def torch_compiled(problem: Problem, mode: str | None = None) -> Callable[..., Any]:
    import patterns  # pyright: ignore[reportMissingImports]
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
    import patterns  # pyright: ignore[reportMissingImports]

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
