"""The results file: one JSON object per line, the run's facts first, then a line per problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.measured import OURS, ContestantResult
from neptune_lab.errors import MeasureError
from neptune_lab.strict.files import read_text, shown_path
from neptune_lab.strict.json_text import MOST_BYTES, at_place, check_schema, parse
from neptune_lab.strict.typed import OMIT_DEFAULT, Count, Line, Number, Time, pack, unpack

SCHEMA = 1
# Time limit of one problem, with all its contestants' compilations.
LIMIT_S = 240.0


@dataclass(frozen=True)
class DrawnResult:
    """One problem.

    Args:
        problem: what was drawn.
        entries: ours first, then the peers.
        checked: the part of the answer that was compared with float64.
        first_call_s: seconds of the first call, compilation included, of ours and of FlexAttention.
        absent: optional peers that were not run, with the reason.
        fatal: the process could not use the GPU any more.
    """

    problem: Problem
    entries: tuple[ContestantResult, ...]
    checked: str = ""
    first_call_s: Mapping[str, Number] = field(default_factory=dict)
    absent: Mapping[str, Line] = field(default_factory=dict)
    fatal: bool = False

    @property
    def ours(self) -> ContestantResult:
        """Our result."""
        return next(e for e in self.entries if e.name == OURS)

    def ratio(self, *kinds: str) -> float | None:
        """The time of the fastest right peer of these kinds over ours; None if either has no time."""
        peers = [e.us for e in self.entries if e.kind in kinds and e.status == "ok" and e.us]
        return min(peers) / self.ours.us if peers and self.ours.status == "ok" and self.ours.us else None


@dataclass(frozen=True)
class TunedResult:
    """One problem that was tuned, and measured with the choice before and after in turns.

    Args:
        index: the problem's number.
        untuned_us, tuned_us: medians, in microseconds; None if tuning failed.
        seconds: how long it was tuned.
        note: the tuned choice, or why it failed.
    """

    index: Count
    untuned_us: Time | None
    tuned_us: Time | None
    seconds: Number
    note: Line = ""


@dataclass(frozen=True)
class DrawnRun:
    """A results file.

    Args:
        seed: of the drawing.
        tiny: sizes for the interpreter.
        device: the device's name.
        gpu: whether times are of a GPU.
        versions: of the packages.
        results: the problems that were measured, by number.
        copy_gbps: the rate of a large copy on the device, in 10**9 bytes read and written per second; None: not known.
        tuned: the problems that were tuned.
        peer_limit_s: the time limit of a problem with its peers; our kernel alone has `LIMIT_S`.
    """

    seed: Count
    tiny: bool
    device: Line
    gpu: bool
    versions: Mapping[str, Line] = field(default_factory=dict)
    results: tuple[DrawnResult, ...] = ()
    copy_gbps: Time | None = field(default=None, metadata=OMIT_DEFAULT)
    tuned: tuple[TunedResult, ...] = field(default=(), metadata=OMIT_DEFAULT)
    peer_limit_s: Number = field(default=LIMIT_S, metadata=OMIT_DEFAULT)


def to_text(run: DrawnRun) -> str:
    """The run as lines of JSON."""
    head = {"schema": SCHEMA, **pack(run)}
    head.pop("results", None)
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in (head, *map(pack, run.results)))


def read(path: Path) -> DrawnRun:
    """The run in a file.

    Raises:
        MeasureError: no file, no JSON lines, or lines of something else.
    """
    where, help = shown_path(path), "neptune-lab bench --drawn writes such a file"
    if not path.is_file():
        raise MeasureError(f"there is no file {where}", help=help)
    lines = read_text(path, MOST_BYTES, MeasureError, help=help).splitlines()
    if not lines:
        raise MeasureError(f"{where} is empty", help=help)
    with at_place(where, MeasureError, help=help):
        head = parse(lines[0], MeasureError)
    check_schema(head, SCHEMA, where, "drawn problems", MeasureError, help=help)
    del head["schema"]
    parts, help = [], "the file was changed: measure again with neptune-lab bench --drawn"
    with at_place(where, MeasureError, help=help):
        for number, line in enumerate(lines[1:], 2):
            place = f"line {number}"
            result = unpack(parse(line, MeasureError, where=place), DrawnResult, place, MeasureError)
            if not any(e.name == OURS for e in result.entries):
                raise MeasureError(f"{place} has no entry of {OURS}", help=help)
            parts.append(result)
        run = unpack({**head, "results": []}, DrawnRun, "line 1", MeasureError)
    return replace(run, results=tuple(parts))
