"""Tries one candidate: compiles it, checks it against float64, then times it. Runs in a process of its own.

A `ChildProcess` calls these functions; each takes and returns plain data, and keeps inputs and reference on the GPU for
the next call of the same workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from neptune_lab.errors import LaunchError, MeasureError, NeptuneError
from neptune_lab.runtime.device import DeviceFacts, device_facts, interpreting
from neptune_lab.runtime.load import LoadedKernel, load
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.task import Task
from neptune_lab.runtime.timing import Resources, resources, sampler, summary
from neptune_lab.strict.typed import Number, Time, Words, pack, unpack

# A kernel that spills more registers per thread than this is not timed; a few spills cost little.
SPILLS = 128
# The most and the fewest samples of a kernel; in between, as many as fit the time.
SAMPLES, FEWEST = 30, 3
SAMPLE_MS = 200.0

# From a launch and whether L2 is cold, makes a function from a number of samples to their microseconds.
Sampler = Callable[[Callable[[], Any], bool], Callable[[int], list[float]]]


@dataclass(frozen=True, slots=True)
class MeasurementLimits:
    """Limits of a candidate, and how long it is timed.

    Args:
        spills: the most registers per thread that a kernel may spill.
        samples: the most samples that are taken.
        milliseconds: about how long to take them, if that is enough for the fewest.
    """

    spills: int = SPILLS
    samples: int = SAMPLES
    milliseconds: float = SAMPLE_MS


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one candidate: times in microseconds, or the reason that there are none.

    Args:
        us: the median; None for a failure.
        low, high: the tenth and the ninetieth percentile.
        error: the largest relative error against float64; None if it was not computed, or is not finite.
        resources: of each kernel.
        failure: why there is no time.
    """

    us: Time | None = None
    low: Time | None = None
    high: Time | None = None
    error: Number | None = None
    resources: tuple[Resources, ...] = ()
    failure: Annotated[str, Words()] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data."""
        return pack(self)

    @classmethod
    def from_json(cls, data: Any, where: str = "measurement") -> Measurement:
        """What `to_json` wrote; MeasureError names a field that is missing, not known, or not of its type."""
        return unpack(data, cls, where, MeasureError)


def facts() -> DeviceFacts:
    """The device of this process."""
    return device_facts()


def prepare(task: Task) -> None:
    """Makes the task's inputs and its reference, which takes a while if they are large."""
    _prepared(task)


def compile_ahead(spec: KernelSpec) -> str | None:
    """Compiles a module's kernels without running them; the compiler's error, or None.

    The result stays in Triton's cache on disk, where the measuring process finds it. The module's own entry function
    is called, with every launch turned into a compilation, on tensors that have a shape and no memory.
    """
    import torch

    if interpreting():
        return None
    kernel = load(spec)
    inputs = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in spec.inputs]
    try:
        with _compiling_only():
            getattr(kernel.module, spec.entry)(*inputs)
    except Exception as error:  # noqa: BLE001 - Triton's compiler raises whatever its passes meet; the tuner goes on
        return _in_short(error)
    return None


@contextmanager
def _compiling_only() -> Iterator[None]:
    """Inside, launches only compile."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return launch(self, *args, **{**kwargs, "warmup": True})

    JITFunction.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        JITFunction.run = launch  # type: ignore[method-assign]


def measure(
    task: Task, spec: KernelSpec, limits: MeasurementLimits | None = None, clock: Sampler | None = None
) -> Measurement:
    """Runs a kernel on the task's inputs, checks its numbers, and times it.

    Args:
        clock: times launches; None: the GPU's events (`timing.sampler`).

    Returns:
        A measurement; of a kernel that cannot be launched, spills too much, or is wrong, one with its `failure`.
        An error of CUDA itself is raised: the process cannot be used afterwards.
    """
    limits = limits or MeasurementLimits()
    inputs, wanted = _prepared(task)
    kernel = load(spec)
    try:
        outputs = kernel(*inputs)
    except LaunchError as error:
        return Measurement(failure=error.reason)
    taken = resources(kernel.module)
    spilled = max((r.spills or 0 for r in taken), default=0)
    if spilled > limits.spills:
        return Measurement(resources=taken, failure=f"spills {spilled} registers per thread")
    error = task.error(outputs, wanted)
    del outputs
    if not error <= task.tolerance:
        finite = error if error < float("inf") else None
        off = "NaN or infinity, which the reference does not have" if finite is None else f"relative error {error:.1e}"
        return Measurement(error=finite, resources=taken, failure=f"wrong: {off} (at most {task.tolerance:g} is right)")
    sample = _sampler(kernel, inputs, task, clock)
    times = sample(FEWEST)
    if (more := _fitting(times, limits) - FEWEST) > 0:
        times = times + sample(more)
    return Measurement(*summary(times), error, taken)


def _fitting(times: Sequence[float], limits: MeasurementLimits) -> int:
    """The number of samples like these (microseconds) that there is time for."""
    return min(limits.samples, int(limits.milliseconds * 1e3 / summary(times)[0]))


def remeasure(
    task: Task,
    specs: Sequence[KernelSpec],
    rounds: int = 5,
    limits: MeasurementLimits | None = None,
    clock: Sampler | None = None,
) -> tuple[Measurement, ...]:
    """Times kernels that were measured before, in turns, so that clocks and heat are the same for all.

    Returns:
        One measurement per kernel, in order; its `error` is None.
    """
    limits = limits or MeasurementLimits()
    inputs, _ = _prepared(task)
    made = []
    for spec in specs:
        kernel = load(spec)
        kernel(*inputs)
        made.append((_sampler(kernel, inputs, task, clock), resources(kernel.module)))
    samples: list[list[float]] = [[] for _ in made]
    for _ in range(rounds):
        for times, (sample, _) in zip(samples, made, strict=True):
            times += sample(max(1, _fitting(times, limits) // rounds) if times else 1)
    return tuple(Measurement(*summary(times), resources=taken) for times, (_, taken) in zip(samples, made, strict=True))


def _sampler(
    kernel: LoadedKernel, inputs: Sequence[Any], task: Task, clock: Sampler | None
) -> Callable[[int], list[float]]:
    def run() -> Any:
        return kernel(*inputs)

    return sampler(run, cold=task.cold) if clock is None else clock(run, task.cold)


# The last workload only: inputs and reference may take much of the GPU's memory.
_prepared_task: dict[tuple[str, int], tuple[tuple[Any, ...], tuple[Any, ...]]] = {}


def _prepared(task: Task) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The task's inputs and reference, made once."""
    import torch

    key = (task.key, task.seed)
    if key not in _prepared_task:
        _prepared_task.clear()
        inputs = task.make_inputs("cuda" if torch.cuda.is_available() else "cpu")
        _prepared_task[key] = (inputs, task.make_reference(inputs))
    return _prepared_task[key]


def _in_short(error: Exception) -> str:
    """An error's class, and the first and last line of its text: Triton quotes the source in between."""
    said = error.reason if isinstance(error, NeptuneError) else str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"[:300]
