"""Times kernels by a runner on the local GPU, or, without one, estimates and checks them; never mixes the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from neptune_lab.errors import NeptuneError
from neptune_lab.pipeline.facts import Work, work
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.runtime import Ceiling, Measured, Resources, device_facts, has_gpu, time_loaded
from neptune_lab.target import DEFAULT, Target

# Operations that take Triton's interpreter at most a second or two.
INTERPRETED_FLOPS = 5e7


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One kernel's figures; `measured` is None in an estimate.

    Args:
        name: for people.
        work: the least work of the kernel.
        measured: times on a GPU.
        resources: registers and shared memory of its launches.
        ceiling: the device's, or an example's.
        estimate_us: the roofline's time.
        note: a remark, such as the result of the interpreter's check.
    """

    name: str
    work: Work
    measured: Measured | None = None
    resources: tuple[Resources, ...] = ()
    ceiling: Ceiling | None = None
    note: str = ""

    @property
    def estimate_us(self) -> float | None:
        """The least time that the ceilings allow."""
        return None if self.ceiling is None else self.ceiling.seconds(self.work.flops, self.work.bytes) * 1e6

    @property
    def roofline(self) -> float | None:
        """The share of the roofline that was reached."""
        return None if self.measured is None or self.estimate_us is None else self.estimate_us / self.measured.us


@dataclass(frozen=True, slots=True)
class TimingLimits:
    """How long to measure."""

    warmup: int = 10
    repetitions: int = 100
    flush_l2: bool = True
    cancel: Callable[[], bool] | None = field(default=None, compare=False)
    progress: Callable[[float], None] | None = field(default=None, compare=False)


class Runner(Protocol):
    """Where kernels are timed: the local GPU, or another runner."""

    @property
    def name(self) -> str:
        """For people, such as "NVIDIA H200"."""
        ...

    def time(self, name: str, kernel: Kernel, limits: TimingLimits) -> TimingRow:
        """Figures of one kernel; MeasureError or LaunchError if it cannot be timed."""
        ...


class LocalGpu:
    """The local CUDA device.

    Args:
        device: its index.
    """

    def __init__(self, device: int = 0) -> None:
        self.device = device

    @property
    def name(self) -> str:
        """The GPU's name."""
        return device_facts().name

    def time(self, name: str, kernel: Kernel, limits: TimingLimits) -> TimingRow:
        """Times launches on random inputs that are on the GPU already."""
        measured, taken = time_loaded(
            kernel._loaded,
            tuple(kernel.operator.random_inputs(0).values()),
            device=self.device,
            warmup=limits.warmup,
            repetitions=limits.repetitions,
            flush_l2=limits.flush_l2,
            cancel=limits.cancel,
            progress=limits.progress,
        )
        todo = work(kernel.operator.program, kernel.program)
        known = Target.known(measured.device)
        return TimingRow(name, todo, measured, taken, known.ceiling if known else None)


class NoGpu:
    """A machine without a GPU: the roofline's estimate, and whether the kernel is right in Triton's interpreter.

    Args:
        smaller: returns a kernel of the same steps at sizes that the interpreter runs in seconds and a description, or
            None.
    """

    name = "no GPU here"

    def __init__(self, smaller: Callable[[Kernel], tuple[Kernel, str] | None] | None = None) -> None:
        self._smaller = smaller

    def time(self, name: str, kernel: Kernel, limits: TimingLimits) -> TimingRow:
        """An estimate for an H200, marked as one."""
        todo = work(kernel.operator.program, kernel.program)
        if todo.flops <= INTERPRETED_FLOPS:
            note = interpreted(kernel)
        elif self._smaller and (smaller := self._smaller(kernel)):
            note = f"{interpreted(smaller[0])}; {smaller[1]}"
        else:
            note = f"not run in the interpreter: {todo.flops / 1e9:.3g} GFLOP"
        return TimingRow(name, todo, None, (), DEFAULT.ceiling, note)


def interpreted(kernel: Kernel) -> str:
    """What Triton's interpreter says about the kernel's numbers, in a sentence."""
    try:
        error = kernel.relative_error()
    except NeptuneError as refusal:
        return f"not run in the interpreter: {refusal.reason}"
    verdict = "right" if error <= 1e-2 else "WRONG"
    return f"{verdict} in Triton's interpreter: relative error {error:.1e}"


def local(smaller: Callable[[Kernel], tuple[Kernel, str] | None] | None = None) -> Runner:
    """The runner for this machine; `smaller` as in `NoGpu`."""
    return LocalGpu() if has_gpu() else NoGpu(smaller)
