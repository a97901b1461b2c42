"""Runs a measurement bundle: kernels, a manifest and what to check them against, without the compiler.

DIR/manifest.json    {"schema", "made_by", "entries": [entry...]}; an entry is a workload (`Task.to_json`) with
                     "name", "title", "params", "values" (a file or null) and its "kernels"
DIR/kernels/*.py     modules as `kernel.export` writes them
DIR/values/*.npz     inputs that are not drawn from a seed
DIR/lib/             the part of this package that runs here
DIR/results.json     {"schema", "device", "results": {kernel's file: measurement}}, written after each kernel
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.files import LongRun, quoted, write_text
from neptune_lab.runtime.choice import StoredChoice
from neptune_lab.runtime.device import DeviceFacts
from neptune_lab.runtime.gpu_worker import RUNNER, GpuWorker
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.process import WAKE_SECONDS
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.task import Task
from neptune_lab.runtime.timing import has_gpu
from neptune_lab.strict.archives import read_npz
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import MIB, inside, read_text, shown_path
from neptune_lab.strict.json_text import at_place, check_schema, field_of, read_json
from neptune_lab.strict.typed import Line, Name, Text, pack, unpack

SCHEMA = 1
# The most bytes of a kernel's source; the largest of ours has 40 KiB.
MOST_SOURCE = 4 * MIB
KERNEL = re.compile(r"kernels/[\w.-]{1,150}\.py")
VALUES = re.compile(r"values/[\w.-]{1,150}\.npz")
_REWRITE = "write the bundle again with this version (neptune-lab bundle), and measure it"
# How many of a workload's fastest kernels are timed again, in turns.
AGAIN = 5


@dataclass(frozen=True, eq=False)
class BundleEntry:
    """A workload of a bundle and its kernels, by file."""

    name: str
    task: Task
    kernels: Mapping[str, KernelSpec]


@dataclass(frozen=True, slots=True)
class Listed:
    """A kernel in a manifest: its file, its entry function, and the choice that it was compiled from."""

    file: Annotated[str, Text(200)]
    name: Line
    entry: Name
    source: Line
    candidate: StoredChoice


@dataclass(frozen=True, slots=True)
class Workload:
    """An entry of a manifest; `task` is read by `Task.from_json`."""

    name: Line
    operator: Line
    title: Line
    params: dict[str, Any]
    task: dict[str, Any]
    values: Annotated[str, Text(200)] | None
    kernels: tuple[Listed, ...]


def read_manifest(folder: Path) -> tuple[Workload, ...]:
    """The entries of a bundle's manifest; MeasureError if there is none, or a field is not of its type."""
    path = folder / "manifest.json"
    data = _read(path, "manifest of a bundle")
    with at_place(shown_path(path), MeasureError, help=_REWRITE):
        entries = unpack(_field(data, "entries"), tuple[Workload, ...], "entries", MeasureError)
        for kernel in (k for entry in entries for k in entry.kernels):
            if not KERNEL.fullmatch(kernel.file):
                raise MeasureError(
                    f"{shown(kernel.file)} is not a kernel's file: expected kernels/<name>.py", help=_REWRITE
                )
        for entry in entries:
            if entry.values is not None and not VALUES.fullmatch(entry.values):
                raise MeasureError(
                    f"{shown(entry.values)} is not a file of values: expected values/<name>.npz", help=_REWRITE
                )
    return entries


def read_entry(folder: Path, data: Workload) -> BundleEntry:
    """An entry with its kernels' sources and its values; MeasureError if one is missing or differs."""
    values: dict[str, np.ndarray] = {}
    if data.values is not None:
        values = read_npz(inside(folder, data.values, MeasureError), MeasureError)
    with at_place(shown_path(folder / "manifest.json"), MeasureError, help=_REWRITE):
        task = Task.from_json(data.task, values)
    kernels = {
        k.file: KernelSpec(
            k.name,
            k.entry,
            read_text(inside(folder, k.file, MeasureError), MOST_SOURCE, MeasureError),
            task.inputs,
            task.outputs,
        )
        for k in data.kernels
    }
    return BundleEntry(data.name, task, kernels)


class BundleResults:
    """The measurements so far, in a file that is written after each kernel, whole or not at all.

    Args:
        path: of the file; results of an interrupted run are read from it.
        facts: the device; a file of another device is refused.

    Raises:
        MeasureError: the file is of another device.
        FileError: the file cannot be written; this is checked before anything is measured.
    """

    def __init__(self, path: Path, facts: DeviceFacts) -> None:
        self.path, self._device = path, facts
        self.measured: dict[str, Measurement] = {}
        self.due: set[str] = set()  # measured before, and to be measured again
        self._lock = threading.Lock()
        self._file = LongRun(path)
        if path.is_file():
            device, self.measured = read_results(path)
            if device != self._device:
                raise MeasureError(
                    f"{path.name} is of {device.name} with Triton {device.triton}, this is {facts.name} with "
                    f"Triton {facts.triton}",
                    help="give --results another file name",
                )
        write_text(path, self._text())

    def add(self, measured: Mapping[str, Measurement]) -> str | None:
        """Adds or replaces measurements and writes the file; a new reason that it cannot be written, or None."""
        with self._lock:
            self.measured.update(measured)
            self.due.difference_update(measured)
            return self._file.save(self._text())

    def finish(self) -> None:
        """Writes what could not be written before; FileError if that fails, with the place of the results."""
        with self._lock:
            self._file.finish()

    def _text(self) -> str:
        data = pack({"schema": SCHEMA, "device": self._device, "results": dict(sorted(self.measured.items()))})
        return json.dumps(data, indent=1, allow_nan=False) + "\n"


def read_results(path: Path) -> tuple[DeviceFacts, dict[str, Measurement]]:
    """The device and the measurements, by kernel file, of a results file; MeasureError if there are none."""
    if not path.is_file() and (path.parent / "manifest.json").is_file():
        run = f"python {quoted(path.parent / 'run.py')}"
        raise MeasureError(
            f"there is no file {shown_path(path)} yet", help=f"{run} writes it, on a machine with a GPU: copy it back"
        )
    data = _read(path, "results")
    with at_place(shown_path(path), MeasureError, help=_REWRITE):
        device = unpack(_field(data, "device"), DeviceFacts, "device", MeasureError)
        results = unpack(_field(data, "results"), dict[Line, Measurement], "results", MeasureError)
    return device, results


def _read(path: Path, what: str) -> dict[str, Any]:
    data = read_json(path, MeasureError, help="is this a bundle's folder?")
    return check_schema(data, SCHEMA, shown_path(path), what, MeasureError, help=_REWRITE)


def _field(data: dict[str, Any], name: str) -> Any:
    return field_of(data, name, "the file", MeasureError)


def run(
    folder: Path,
    results: Path,
    workers: Sequence[GpuWorker],
    *,
    only: str = "",
    again: bool = False,
    say: Callable[[str], None] = print,
) -> BundleResults:
    """Measures every kernel of a bundle that has no result yet.

    Args:
        folder: the bundle's.
        results: the file to write; an interrupted run resumes from it.
        workers: one per GPU; each takes the next workload that is left.
        only: measure only entries whose name contains this text.
        again: also measure kernels that have a result.
        say: called with one line per kernel, and per workload that was given up; the next run tries it again.

    Raises:
        MeasureError: no bundle there, results of another device, or a GPU that does not answer at first.
        FileError: results cannot be written; after the start, it says where they are.
    """
    kept = BundleResults(results, workers[0].facts())
    if again:
        kept.due.update(kept.measured)
    left = [data for data in read_manifest(folder) if only in data.name]
    lock = threading.Lock()

    def serve(worker: GpuWorker) -> None:
        while True:
            with lock:
                if not left:
                    return
                data = left.pop(0)
            try:
                _measure(read_entry(folder, data), worker, kept, say)
            except MeasureError as error:  # of the workload itself, such as a reference that does not fit the GPU
                say(f"{data.name:<40} given up: {error.reason}")

    with ThreadPoolExecutor(len(workers)) as pool:
        try:
            serving = {pool.submit(serve, worker) for worker in workers}
            while serving:
                done, serving = wait(serving, WAKE_SECONDS, FIRST_COMPLETED)
                for served in done:
                    served.result()
        except BaseException:  # Ctrl-C, or a lost GPU: end the threads now, not after the last entry
            with lock:
                left.clear()
            for worker in workers:
                worker.kill()
            raise
        finally:
            pool.shutdown()
            kept.finish()
    return kept


def _measure(entry: BundleEntry, worker: GpuWorker, kept: BundleResults, say: Callable[[str], None]) -> None:
    """Measures every kernel of an entry in order, while threads, one per process, compile the next ones."""
    todo = {file: spec for file, spec in entry.kernels.items() if file not in kept.measured or file in kept.due}
    if not todo:
        return
    with ThreadPoolExecutor(worker.size) as pool:
        compiled: dict[str, Future[str | None]] = {f: pool.submit(worker.compile, s) for f, s in todo.items()}
        for file, spec in todo.items():
            refused = compiled[file].result()
            measured = worker.time(entry.task, spec) if refused is None else Measurement(failure=refused)
            if failed := kept.add({file: measured}):
                say(failed)
            say(f"{entry.name:<40} {_measured_text(measured)}  {file}")
    timed = {f: m for f in entry.kernels if (m := kept.measured[f]).us is not None}
    best = sorted(timed, key=lambda f: timed[f].us or 0.0)[:AGAIN]
    if len(best) > 1:
        again = worker.remeasure(entry.task, [entry.kernels[f] for f in best])
        kept.add({f: replace(timed[f], us=m.us, low=m.low, high=m.high) for f, m in zip(best, again, strict=True)})


def _measured_text(measured: Measurement) -> str:
    if measured.us is None:
        return f"{'-':>11}     {measured.failure}"
    return f"{measured.us:>11.2f} us  error {measured.error:.1e}"


def _gpu_numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(_count(part) for part in text.split(","))
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} names a GPU twice")
    return numbers


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def main(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """`python run.py`: measures the bundle in `folder`.

    Returns:
        The exit status: 0; 1 if a kernel has no result; 2 if nothing could be measured; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description="Measures the kernels of this bundle and writes results.json.")
    parser.add_argument("--results", type=Path, default=folder / "results.json", help="the file to write")
    parser.add_argument("--only", default="", metavar="TEXT", help="entries whose name contains TEXT")
    parser.add_argument(
        "--gpus", type=_gpu_numbers, default=(0,), help="numbers of the GPUs to use, separated by commas"
    )
    parser.add_argument("--jobs", type=_count, default=0, help="processes that compile, for each GPU")
    parser.add_argument("--again", action="store_true", help="also measure kernels that have a result")
    parser.add_argument("--runner", default=RUNNER, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.runner == RUNNER and not has_gpu():
        print("no GPU here: nothing can be timed; run this on a machine with a CUDA GPU", file=sys.stderr)
        return 2
    gpus = given.gpus
    jobs = given.jobs or max(1, ((os.cpu_count() or 2) - 1) // len(gpus) - 1)
    workers = [GpuWorker(gpu, jobs, given.runner) for gpu in gpus]
    try:
        kept = run(folder, given.results, workers, only=given.only, again=given.again)
    except NeptuneError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {given.results}", file=sys.stderr)
        return 130
    finally:
        for worker in workers:
            worker.close()
    failed = sum(m.us is None for m in kept.measured.values())
    print(f"{len(kept.measured)} kernels, {failed} without a time; results in {given.results}")
    entries = [data for data in read_manifest(folder) if given.only in data.name]
    return int(any(k.file not in kept.measured for data in entries for k in data.kernels))
