"""Times the backward pass of `nl.attention` on a GPU, beside SDPA's backends and compiled FlexAttention.

    python scripts/backward_speed.py [--sizes 1x32x8192x128c,4x32x2048x64c] [--dtype bfloat16]
        [--only ours,any_order,cudnn,flash,flex] [--seconds 200] [--workers 1] [--start spawn] [--wait 1e6]
        [--both 0] [--parts] [--check] [--out FILE]

A size is batch x heads x length x head_dim, with "c" for causal and "b" for a bias of relative positions that is
trained, of which SDPA's backends have none; heads may be 32/8 for groups; "grid" is 1 and 4 times 32 heads of 64 and
128 columns, causal and full, of 1024 to 16384 positions. "any_order" is `nl.attention` with
kernel_options={"deterministic": False}. Times are of the backward pass alone, through torch.autograd.grad: the
contestants of a size take turns, each first once, and of four medians of `triton.testing.do_bench` the second counts
(of three calls each, where one takes longer than 10 ms); --both N times both passes together too, for at most N
positions. Memory is the peak of the backward pass above what was allocated before it, and of both passes above the
inputs and the cotangent. --parts times the device's part, a replayed CUDA graph of the backward pass, with cold caches
and in turns, and the host's, of backward passes that nothing waits for and that take less than 0.5 ms. Gradients of
one head are checked against float64; a contestant that is wrong is not timed. --workers processes compile at the same
time, and time one after another; each leaves out, and lists, what it does not start within --seconds, and those that
are not ready after --wait seconds are left out. With --start forkserver, they share their imports. With --check
nothing is timed. With TRITON_INTERPRET=1 it runs on the CPU, slowly and without times.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from backward_contestants import Measured, Ready, ready
from speed_checks import DEVICE

from neptune_lab.bench.clock import GpuTimer
from neptune_lab.files import write_text

TURNS = 4
# Milliseconds of a call from which fewer of them are timed.
LONG = 10.0
# Microseconds of a pass, up to which what it keeps the host is timed: of longer ones, launches wait for the GPU.
MOST_OF_HOST = 500.0
GRID = [
    f"{batch}x32x{length}x{width}{mask}"
    for length in (16384, 8192, 4096, 2048, 1024)
    for batch in (4, 1)
    for width in (128, 64)
    for mask in ("", "c")
]
# What a worker imports beside this script.
IMPORTED = ("neptune_lab.pipeline.with_gradients", "neptune_lab.pipeline.joint", "neptune_lab.pytorch.recording")
# Columns of the table beside times and speeds.
COLUMNS = ("mib", "step_mib", "both_us", "device_us", "host_us")


def timed(this: Ready, both: int, parts: bool) -> list[Measured]:
    """The times of a size's contestants; of both passes too, for at most `both` positions; by `parts`, of each part."""
    batch, heads, length, width = this.size.rstrip("cb").split("x")
    work = 2.5 * 4 * int(batch) * int(heads.partition("/")[0]) * int(length) ** 2 * int(width)
    work /= 2 if "c" in this.size else 1
    times: dict[str, list[float]] = {one.name: [] for one in this.right}
    of_both: dict[str, list[float]] = {one.name: [] for one in this.right}
    for turn in range(TURNS):
        first = turn % max(1, len(this.right))
        for one in (*this.right[first:], *this.right[:first]):
            times[one.name].append(microseconds(one.backward))
            if int(length) <= both:
                of_both[one.name].append(microseconds(one.both))
    of_device = device_parts(this) if parts and this.right else {}
    found = [*this.found]
    for one in this.right:
        us = sorted(times[one.name])[1]
        two = sorted(of_both[one.name])[1] if of_both[one.name] else None
        host = host_part(one.backward) if parts and us < MOST_OF_HOST else None
        more: Any = {"device_us": of_device.get(one.name), "host_us": host}
        row = Measured(this.size, one.name, one.error, us, work / us / 1e6, one.mib, two, step_mib=one.step_mib, **more)
        found.append(row)
    return found


def device_parts(this: Ready) -> dict[str, float]:
    """Microseconds of the contestants' backward passes in replayed CUDA graphs, with cold caches, in turns."""
    timer = GpuTimer(seconds=0.2, most=30, stream=torch.cuda.current_stream())
    found = timer.times({one.name: one.backward for one in this.right}, cold=True)
    for name, samples in found.items():
        if samples.note:
            print(f"{this.size} {name}: {samples.note}", flush=True)
    return {name: median(samples.us) for name, samples in found.items() if samples.us and not samples.note}


def host_part(call: Callable[[], Any]) -> float:
    """Microseconds that a call keeps the host, the least mean of a few rounds."""
    found: list[float] = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            call()
        found.append((time.perf_counter() - begin) / 50 * 1e6)
    torch.cuda.synchronize()
    return min(found)


def microseconds(call: Callable[[], Any]) -> float:
    """The median of calls; of three if one takes longer than 10 ms."""
    from triton.testing import do_bench

    def once() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    if once() > LONG:
        return sorted(once() for _ in range(3))[1] * 1e3
    found: Any = do_bench(call, warmup=10, rep=25, return_mode="median")
    return float(found) * 1e3


def worker(sizes: list[str], given: argparse.Namespace, main: Connection) -> None:
    """Makes sizes ready, waits for its turn, and sends what it measures of each."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    begin, made = time.monotonic(), []
    if DEVICE == "cuda":  # (a stream that graphs can be captured on: a backward pass goes where its forward pass went)
        torch.cuda.set_stream(torch.cuda.Stream())
    for size in sizes:
        if time.monotonic() - begin > given.seconds:
            print(f"{size}: left out after {given.seconds:.0f} s", flush=True)
            continue
        one = ready(size, getattr(torch, given.dtype), given.only.split(","))
        if given.check or DEVICE == "cpu":
            right = [Measured(size, c.name, c.error, mib=c.mib, note="right", step_mib=c.step_mib) for c in one.right]
            one = replace(one, right=[], found=[*one.found, *right])
        made.append(one)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    main.send(None)
    main.recv()
    for one in made:
        main.send(timed(one, given.both, given.parts))
    main.send(None)


def results_of(sizes: list[str], given: argparse.Namespace) -> Iterator[list[Measured]]:
    """What the workers measure, one after another, once all are ready, or all that are after --wait seconds."""
    # Workers are forked from a process that has imported what they need, and that must not start CUDA.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    context = get_context(given.start)
    context.set_forkserver_preload(["__main__", *IMPORTED])
    begin, started = time.monotonic(), list[tuple[Any, Connection, str]]()
    for n in range(min(given.workers, len(sizes))):
        mine, other = context.Pipe()
        process: Any = context.Process(target=worker, args=(sizes[n :: given.workers], given, other), daemon=True)
        process.start()
        other.close()
        started.append((process, mine, ", ".join(sizes[n :: given.workers])))
    living: list[Connection] = []
    for process, connection, own in started:
        with suppress(EOFError):  # (of a process that died, whose error it has printed)
            if connection.poll(max(0.0, begin + given.wait - time.monotonic())):
                connection.recv()
                living.append(connection)
            else:
                print(f"{own}: left out, not ready after {given.wait:.0f} s", flush=True)
                process.terminate()
    for connection in living:
        with suppress(EOFError):
            connection.send(None)
            while (found := connection.recv()) is not None:
                yield found


def table(results: list[Measured]) -> Iterator[str]:
    """One line per size: times, speed relative to the peers, and memory."""
    names = [*dict.fromkeys(r.name for r in results if r.us is not None)]
    peers = [name for name in ("cudnn", "flex") if name in names]
    yield " | ".join(("size", *names, *(f"{n} of {p}" for p in peers for n in names if n not in peers), *COLUMNS))
    for size in sorted({r.size for r in results}, key=lambda s: (s.rstrip("cb").split("x")[::3], len(s), s)):
        of = {r.name: r for r in results if r.size == size and r.us is not None}
        cells = [size, *(f"{of[n].us:.0f}" if n in of else "-" for n in names)]
        for peer in peers:
            for name in names:
                if name not in peers:
                    both = name in of and peer in of
                    cells.append(f"{(of[peer].us or 0) / (of[name].us or 1):.2f}" if both else "-")
        for field in COLUMNS:
            every = [getattr(of[n], field) if n in of else None for n in names]
            cells.append("" if {*every} == {None} else " / ".join("-" if x is None else f"{x:.0f}" for x in every))
        yield " | ".join(cells)


def main() -> None:
    """Measures, prints a table, and writes it with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4x32x2048x64c,1x32x2048x128c,1x32x8192x128c,1x32x8192x128,1x32x16384x64c")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="ours,any_order,cudnn,flash,flex")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--wait", type=float, default=1e6)
    parser.add_argument("--start", choices=("spawn", "forkserver"), default="spawn")
    parser.add_argument("--both", type=int, default=0)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    begin = time.monotonic()
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, Triton's interpreter"
    print(name, time.strftime("%Y-%m-%dT%H:%M:%S%z"), flush=True)
    results: list[Measured] = []
    for measured in results_of(GRID if given.sizes == "grid" else given.sizes.split(","), given):
        for one in measured:
            results.append(one)
            timed = "" if one.us is None else f"{one.us:9.1f} us {one.tflops:6.0f} TFLOP/s"
            both = "" if one.both_us is None else f"both {one.both_us:9.1f} us"
            memory = "" if one.mib is None else f"{one.mib:6} MiB, both {one.step_mib}"
            named = (("device", one.device_us), ("host", one.host_us))
            parts = " ".join(f"{part} {us:.1f}" for part, us in named if us is not None)
            found = f"error {one.error:.1e} {timed} {memory} {both} {parts} {one.note}"
            print(f"{one.size:20} {one.name:9} {found}", flush=True)
        if given.out is not None:
            write_text(given.out, json.dumps([asdict(r) for r in results], indent=1) + "\n")
    if any(r.us is not None for r in results):
        print(*table(results), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
