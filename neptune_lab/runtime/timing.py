"""Times launches on the GPU by CUDA events, with cold or warm L2; and the ceilings to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.arrays import inputs_of
from neptune_lab.runtime.load import LoadedKernel
from neptune_lab.strict.typed import Count, Line

_CHUNK = 10
# Bytes that replace the contents of L2 before each run: several times the largest L2.
_FLUSH_BYTES = 256 << 20
# How long the GPU waits before a timed run (about 0.1 ms), so that the host has queued the whole run by then.
_SLEEP_CYCLES = 200_000
# A CUDA graph holds so many warm launches that they take about this long together; events resolve no shorter times.
_GRAPH_MS = 2.0
_GRAPH_LAUNCHES = 500


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A device's best rates; `assumed` says where the two figures are from."""

    device: str
    tflops: float
    gbps: float
    assumed: str

    def seconds(self, flops: float, moved: float) -> float:
        """The roofline's time: the longer of computing and moving."""
        return max(flops / (self.tflops * 1e12), moved / (self.gbps * 1e9))


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of one launch.

    Args:
        us: the median, in microseconds.
        low, high: the tenth and the ninetieth percentile.
        runs: how many were timed.
        device: the GPU's name.
        cold: L2 was flushed before each run.
        cancelled: fewer runs than asked for.
    """

    us: float
    low: float
    high: float
    runs: int
    device: str
    cold: bool
    cancelled: bool = False

    def tflops(self, flops: float) -> float:
        """The rate, in TFLOP/s, for this many operations per launch."""
        return flops / self.us / 1e6

    def gbps(self, moved: float) -> float:
        """The rate, in GB/s, for this many bytes per launch."""
        return moved / self.us / 1e3


def has_gpu() -> bool:
    """Whether there is a CUDA GPU to measure on."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def measure(
    run: Callable[[], Any],
    *,
    warmup: int = 10,
    repetitions: int = 100,
    flush_l2: bool = True,
    device: int | None = None,
    cancel: Callable[[], bool] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Measured:
    """Times `run`, which launches on the current stream, by CUDA events.

    May be called from any thread: the device is set here, since CUDA's current device does not follow into threads.

    Args:
        run: launches once; its first call may compile.
        warmup: runs that are not timed, after the first one.
        repetitions: runs that are timed, each separately.
        flush_l2: empty the L2 cache before each run.
        device: index of the GPU; None: the current one of this thread.
        cancel: called after every few runs; True ends the measurement, which keeps its times so far.
        progress: called with the share that is done, from 0 to 1.

    Raises:
        MeasureError: no GPU here, or it was cancelled before the first timed run.
    """
    if not has_gpu():
        raise MeasureError("no GPU here: nothing can be timed", help="run on a machine with a CUDA GPU")
    if repetitions < 1 or warmup < 0:
        raise MeasureError(
            f"repetitions={repetitions}, warmup={warmup}: expected at least 1 and 0",
            help="leave both out for the defaults",
        )
    import torch

    with torch.cuda.device(torch.cuda.current_device() if device is None else device):
        flush = flusher() if flush_l2 else None
        run()
        torch.cuda.synchronize()
        if not (cancel and cancel()):
            for _ in range(warmup):
                run()
        times: list[float] = []
        cancelled = False
        while len(times) < repetitions:
            if cancel and cancel():
                cancelled = True
                break
            times += _chunk(torch, run, flush, min(_CHUNK, repetitions - len(times)))
            if progress:
                progress(len(times) / repetitions)
        name = torch.cuda.get_device_name()
    if not times:
        raise MeasureError("the measurement was cancelled before its first run", help="start it again")
    median, low, high = (ms * 1e3 for ms in summary(times))
    return Measured(median, low, high, len(times), name, flush_l2, cancelled)


def flusher() -> Callable[[], None]:
    """A function that empties the current GPU's L2.

    It writes one buffer and then reads a second, clean one: with the first alone, dirty lines would be written back to
    memory while the timed kernel runs.
    """
    import torch

    dirty = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    clean = torch.zeros_like(dirty)

    def flush() -> None:
        dirty.zero_()
        clean.sum()

    return flush


def _chunk(torch: Any, run: Callable[[], Any], flush: Callable[[], None] | None, count: int) -> list[float]:
    """Milliseconds of each of `count` runs; the host waits once, at the end."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in events:
        if flush is not None:
            flush()
        torch.cuda._sleep(_SLEEP_CYCLES)
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def sampler(run: Callable[[], Any], *, cold: bool, stream: Any = None) -> Callable[[int], list[float]]:
    """A function that times `run`, captured in a CUDA graph: from a number of samples to their microseconds per launch.

    It is made once and called several times, so that samples of several kernels can be taken in turns.

    Args:
        run: launches on the current stream; it ran before, so nothing is compiled here.
        cold: flush L2 before each launch and time it separately; otherwise several launches are in the graph, and a
            sample is their mean.
        stream: where the graph is captured, if `run` launches on that one whatever the current stream is, as torch's
            backward passes do; None: a stream of its own.
    """
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    side = stream or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a graph is captured beside the default stream, after a run there
        run()
        start.record(side)
        run()
        end.record(side)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    once = max(start.elapsed_time(end), 1e-3)
    launches = 1 if cold else max(1, min(_GRAPH_LAUNCHES, int(_GRAPH_MS / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(launches):
            run()
    flush = flusher() if cold else None
    graph.replay()
    torch.cuda.synchronize()

    def sample(count: int) -> list[float]:
        return [ms * 1e3 / launches for ms in _chunk(torch, graph.replay, flush, count)]

    return sample


def summary(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, tenth and ninetieth percentile of samples, of which there is at least one.

    >>> summary([3.0, 1.0, 2.0])
    (2.0, 1.2, 2.8)
    """
    ordered = sorted(samples)
    return _quantile(ordered, 0.5), _quantile(ordered, 0.1), _quantile(ordered, 0.9)


def _quantile(ordered: list[float], q: float) -> float:
    """Interpolated between the two nearest of sorted values."""
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a compiled kernel: registers and spills per thread, bytes of shared memory per program, warps."""

    kernel: Line
    registers: Count | None
    spills: Count | None
    shared: Count | None
    warps: Count | None


def resources(module: ModuleType) -> tuple[Resources, ...]:
    """The resources of every launched kernel of a generated module; empty in the interpreter."""
    launched = []
    for name, function in vars(module).items():
        caches = getattr(function, "device_caches", None)  # a triton.JITFunction of Triton 3.x
        if not isinstance(caches, dict):
            continue
        for cache in caches.values():
            for compiled in (cache[0] if isinstance(cache, tuple) else cache).values():
                metadata = getattr(compiled, "metadata", None)
                launched.append(
                    Resources(
                        name,
                        getattr(compiled, "n_regs", None),
                        getattr(compiled, "n_spills", None),
                        getattr(metadata, "shared", None),
                        getattr(metadata, "num_warps", None),
                    )
                )
    return tuple(launched)


def time_loaded(
    kernel: LoadedKernel,
    arrays: Sequence[np.ndarray],
    *,
    device: int = 0,
    warmup: int = 10,
    repetitions: int = 100,
    flush_l2: bool = True,
    cancel: Callable[[], bool] | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Measured, tuple[Resources, ...]]:
    """Times a loaded kernel on inputs copied to the GPU once; its times, and the resources of its compiled kernels.

    Raises:
        MeasureError: no GPU here, the process interprets kernels, or it was cancelled before the first timed run.
    """
    if not has_gpu():
        raise MeasureError("no GPU here: nothing can be timed", help="run on a machine with a CUDA GPU")
    if kernel.interpreter:
        raise MeasureError(
            "Triton's interpreter is on: its times mean nothing", help="start without TRITON_INTERPRET=1"
        )
    import torch

    with torch.cuda.device(device):
        tensors = inputs_of(kernel, arrays, "cuda")
        measured = measure(
            lambda: kernel(*tensors),
            warmup=warmup,
            repetitions=repetitions,
            flush_l2=flush_l2,
            device=device,
            cancel=cancel,
            progress=progress,
        )
    return measured, resources(kernel.module)
