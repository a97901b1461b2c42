"""Times several contestants in turns, so that a drifting GPU clock affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from neptune_lab.runtime.timing import measure, sampler

# In torch's message when the process has lost the GPU.
LOST = "CUDA error"

Call = Callable[[], Any]


@dataclass(frozen=True)
class Samples:
    """Microseconds per launch, one per turn.

    Args:
        us: in the order in which they were taken; none if the call failed.
        note: how they were taken, if not in a CUDA graph, or why the call failed.
    """

    us: tuple[float, ...]
    note: str = ""


class KernelTimer(Protocol):
    """Times calls."""

    def quick(self, call: Call) -> float:
        """Approximate microseconds of a call, after a warm-up call."""
        ...

    def times(self, calls: Mapping[str, Call], cold: bool) -> dict[str, Samples]:
        """Samples of every call, taken in turns."""
        ...


@dataclass(frozen=True)
class GpuTimer:
    """CUDA events around replayed graphs.

    Args:
        seconds: about how long a setup is timed.
        least, most: the numbers of turns.
        stream: as for `sampler`.
    """

    seconds: float = 1.0
    least: int = 7
    most: int = 60
    stream: Any = None

    def quick(self, call: Call) -> float:
        """The median of a few launches without flushing L2."""
        return measure(call, warmup=1, repetitions=5, flush_l2=False).us

    def times(self, calls: Mapping[str, Call], cold: bool) -> dict[str, Samples]:
        """One sample of each call per turn, each turn starting with another call."""
        sample: dict[str, Callable[[int], list[float]]] = {}
        notes: dict[str, str] = {}
        for name, call in calls.items():
            sample[name], notes[name] = self._sampler(call, cold)
        taken: dict[str, list[float]] = {name: [] for name in calls}
        failed: dict[str, str] = {}
        names = list(calls)
        began, turn = time.perf_counter(), 0
        while turn < self.most and (turn < self.least or time.perf_counter() - began < self.seconds):
            for n in range(len(names)):
                name = names[(turn + n) % len(names)]
                if name in failed:
                    continue
                try:
                    taken[name] += sample[name](1)
                except RuntimeError as error:  # one call that runs out of memory does not end the others
                    if LOST in str(error):
                        raise
                    failed[name] = f"could not be timed: {str(error).splitlines()[0]}"
            turn += 1
        return {
            name: Samples((), failed[name]) if name in failed else Samples(tuple(us), notes[name])
            for name, us in taken.items()
        }

    def _sampler(self, call: Call, cold: bool) -> tuple[Callable[[int], list[float]], str]:
        try:
            return sampler(call, cold=cold, stream=self.stream), ""
        except RuntimeError as error:  # torch refuses to capture what synchronises
            if LOST in str(error) and "captur" not in str(error):
                raise
            torch.cuda.synchronize()

            def eager(count: int) -> list[float]:
                return [measure(call, warmup=1, repetitions=count, flush_l2=cold).us]

            return eager, "launched call by call: it cannot be captured in a CUDA graph"


@dataclass(frozen=True)
class HostTimer:
    """The host's clock, for a machine without a GPU: timings of interpreted kernels say nothing about a GPU."""

    turns: int = 2

    def quick(self, call: Call) -> float:
        """One call."""
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6

    def times(self, calls: Mapping[str, Call], cold: bool) -> dict[str, Samples]:
        """A few turns; there is no cache to flush."""
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.turns):
            for name, call in calls.items():
                taken[name].append(self.quick(call))
        return {name: Samples(tuple(us)) for name, us in taken.items()}


def clock() -> KernelTimer:
    """The timer of this machine."""
    return GpuTimer() if torch.cuda.is_available() else HostTimer()
