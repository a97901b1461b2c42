"""The results of a run as frozen data with a versioned JSON form; every table and figure is drawn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text
from neptune_lab.runtime.timing import Resources
from neptune_lab.strict.files import read_text, shown_path
from neptune_lab.strict.json_text import MOST_BYTES, at_place, check_schema, parse
from neptune_lab.strict.typed import Count, Extent, Line, Number, OneOf, Time, Words, pack, unpack

SCHEMA = 1

# Names of contestants; a mode follows after a comma.
OURS = "neptune_lab"
DEFAULT = "default options"
# Our kernel as `compile` chooses it if there is no tuning record of the setup's very sizes.
NO_RECORD = "neptune_lab, untuned"
FLEX = "FlexAttention"
COMPILE = "torch.compile"
HAND = "Triton by hand"
CUDNN = "SDPA cuDNN"
FLASH = "SDPA flash"
EFFICIENT = "SDPA efficient"
EAGER = "PyTorch eager"

# An answer is right if the relative error (Frobenius norm) of every checked block of so many rows is at most this.
# Float16 rounding is an order of magnitude below it, a wrong tile an order above.
BOUND = 1e-2
BLOCK_ROWS = 128
# How many blocks are checked if not all are.
SAMPLED = 64

# Kinds of contestants.  Compilers and libraries as in Neptune's section 7: a compiler is given the operator, a library
# contains it.
Kind: TypeAlias = Annotated[str, OneOf(frozenset({"ours", "ablation", "compiler", "library"}))]
# "same": an ablation whose kernel is the one with default options, word for word.
# "lost": its process ended or took too long, so that a resumed run measures the setup again.
Status: TypeAlias = Annotated[str, OneOf(frozenset({"ok", "wrong", "failed", "lost", "skipped", "same"}))]


@dataclass(frozen=True)
class ContestantResult:
    """One contestant on one setup.

    Args:
        name: of the contestant.
        kind: one of `Kind`.
        status: one of `Status`; only "ok" has a time.
        us, low, high: median, tenth and ninetieth percentile, in microseconds.
        runs: the number of samples.
        error: the relative error of the worst block against float64.
        note: why it has no time, or other remarks.
        options: the template's and emitter's options, if it is our kernel.
        resources: registers, spills, shared memory and warps of each launched kernel, if it is ours.
    """

    name: Line
    kind: Kind
    status: Status
    us: Time | None = None
    low: Time | None = None
    high: Time | None = None
    runs: Count = 0
    error: Number | None = None
    note: Annotated[str, Words()] = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    resources: tuple[Resources, ...] = ()


@dataclass(frozen=True)
class SetupResult:
    """Everything that was measured on one setup.

    Args:
        name, row, group: the setup's.
        sizes: its sizes, for display and for axes.
        cold: whether L2 was flushed.
        flops, bytes, kv_bytes: its least work.
        checked: the part of the answers that was compared with float64.
        entries: one per contestant.
        load: clocks, power and temperature while our kernel ran, as nvidia-smi gives them.
    """

    name: Line
    row: Line
    group: Line
    sizes: Mapping[str, Any]
    cold: bool
    flops: Number
    bytes: Count
    kv_bytes: Count
    checked: Line
    entries: tuple[ContestantResult, ...]
    load: Mapping[str, Any] = field(default_factory=dict)

    def time(self, name: str) -> float | None:
        """The median of a contestant whose answer is right, else None."""
        return next((e.us for e in self.entries if e.name == name and e.status == "ok"), None)

    @property
    def is_complete(self) -> bool:
        """Whether no contestant was lost with its process."""
        return all(entry.status != "lost" for entry in self.entries)

    @property
    def ours(self) -> float | None:
        """Our median; None if our answer is not right."""
        return self.time(OURS)

    def best(self, *kinds: str) -> ContestantResult | None:
        """The fastest contestant of these kinds whose answer is right."""
        right = [e for e in self.entries if e.kind in kinds and e.status == "ok" and e.us]
        return min(right, key=lambda e: e.us or 0.0, default=None)

    def speedup(self, *kinds: str) -> float | None:
        """The time of the best of these kinds over ours; None without either."""
        best = self.best(*kinds)
        return best.us / self.ours if best and best.us and self.ours else None

    def over(self, name: str) -> float | None:
        """The time of the contestant, in its fastest mode, over ours."""
        times = [e.us for e in self.entries if e.name.split(", ")[0] == name and e.status == "ok" and e.us]
        return min(times) / self.ours if times and self.ours else None


@dataclass(frozen=True)
class BenchmarkResults:
    """A run.

    Args:
        device: from `bench.device`: name, memory, driver, capability.
        versions: of torch, Triton, CUDA, cuDNN, ours.
        rates: copy_gbps, matmul_tflops, empty_us (overhead of an empty event pair).
        started: UTC, ISO 8601.
        seconds: the time of all of its parts.
        command: repeats it.
        setups: in the order in which they were measured.
        tuning: one entry per tuned setup: its seconds, and for each candidate predicted and measured microseconds and
            estimated and actual bytes of shared memory (MCFuser's Figures 10 and 11).
    """

    device: Mapping[str, Any]
    versions: Mapping[Line, Line]
    rates: Mapping[str, Time]
    started: Line
    seconds: Number
    command: Annotated[str, Words()]
    setups: tuple[SetupResult, ...] = ()
    tuning: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether the times were measured on a GPU."""
        return bool(self.device.get("gpu"))

    def group(self, *groups: str) -> tuple[SetupResult, ...]:
        """The setups of these groups."""
        return tuple(s for s in self.setups if s.group in groups)

    def with_setup(self, done: SetupResult, seconds: float) -> BenchmarkResults:
        """These results with the setup added, or replaced if there is one of its name."""
        by_name = {s.name: s for s in self.setups} | {done.name: done}
        return replace(self, setups=tuple(by_name.values()), seconds=seconds)

    def with_tuning(self, told: Mapping[str, Any], seconds: float) -> BenchmarkResults:
        """These results with the setup's tuning added, or replaced if there is one."""
        by_name = {t["setup"]: t for t in self.tuning} | {told["setup"]: told}
        return replace(self, tuning=tuple(by_name.values()), seconds=seconds)


def to_json(results: BenchmarkResults) -> str:
    """The results as JSON text."""
    return json.dumps({"schema": SCHEMA, **pack(results)}, indent=1, allow_nan=False) + "\n"


def from_json(text: str, where: str = "the results") -> BenchmarkResults:
    """The results in a JSON text.

    Raises:
        MeasureError: not JSON, not results, or of another schema.
    """
    with at_place(where, MeasureError, help=_WRITTEN):
        record = parse(text, MeasureError)
    del check_schema(record, SCHEMA, where, "benchmark results", MeasureError, help=_WRITTEN)["schema"]
    with at_place(where, MeasureError, help=_CHANGED):
        results = unpack(record, BenchmarkResults, "results", MeasureError)
        _check_parts(results)
    return results


_WRITTEN = "neptune-lab bench -o FILE writes them"
_CHANGED = "the file was changed: measure again with neptune-lab bench"
# Sizes that tables and figures calculate with.
_SIZES = ("kv_len", "q_len", "cols", "seq", "n", "batch", "rows", "heads")


@dataclass(frozen=True)
class _Device:
    name: Line
    gpu: bool


@dataclass(frozen=True)
class _Rates:
    copy_gbps: Time
    matmul_tflops: Time
    empty_us: Time


@dataclass(frozen=True)
class _Trial:
    us: Time | None
    predicted_us: Time | None
    shared: Count | None
    shared_estimate: Count | None


@dataclass(frozen=True)
class _Tuning:
    setup: Line
    seconds: Time
    ended: Line
    trials: tuple[_Trial, ...]


def _check_parts(results: BenchmarkResults) -> None:
    """Checks the fields that tables and figures read from the parts that are plain JSON."""
    known = {name: value for name, value in results.device.items() if name in ("name", "gpu")}
    unpack(known, _Device, "results.device", MeasureError)
    if results.rates:
        unpack(dict(results.rates), _Rates, "results.rates", MeasureError)
    for n, tuning in enumerate(results.tuning):
        unpack(tuning, _Tuning, f"results.tuning[{n}]", MeasureError)
    for n, setup in enumerate(results.setups):
        where = f"results.setups[{n}]"
        unpack({k: v for k, v in setup.sizes.items() if k in _SIZES}, dict[str, Extent], f"{where}.sizes", MeasureError)
        unpack(dict(setup.load), dict[str, Number | Line], f"{where}.load", MeasureError)
        if setup.group == "batch" and "batch" not in setup.sizes:
            raise MeasureError(f"{where}.sizes has no field 'batch'", help=_CHANGED)
        for m, entry in enumerate(setup.entries):
            if (entry.status == "ok") != (entry.us is not None):
                raise MeasureError(f"{where}.entries[{m}] has status {entry.status!r} and us={entry.us}", help=_CHANGED)


def read(path: Path) -> BenchmarkResults:
    """The results in a file; MeasureError if there are none."""
    if not path.is_file():
        raise MeasureError(f"there is no file {shown_path(path)}", help="neptune-lab bench -o writes one")
    return from_json(read_text(path, MOST_BYTES, MeasureError, help=_WRITTEN), shown_path(path))


def write(path: Path, results: BenchmarkResults) -> None:
    """Saves the file whole or not at all, so that an interrupted run leaves the last state; FileError if it cannot."""
    write_text(path, to_json(results), parents=True)
