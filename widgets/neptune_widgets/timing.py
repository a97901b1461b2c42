"""Timing: `nl.time(kernel, against=[…])` in a cell, and the explorer's timing pane. A runner says where it runs."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import INT32_MAX, check_integer, check_switch, items_of
from neptune_widgets import checks

if TYPE_CHECKING:
    from neptune_lab import Kernel
    from neptune_lab.pipeline.timing import Runner, TimingRow

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to time; without one, `note` says why."""

    name: str
    kernel: Kernel | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Timings:
    """The result of `nl.time`: one row per kernel, shown as a table.

    Args:
        rows: the figures, those of failed kernels aside.
        failed: (name, why) of the others.
        jobs: what was timed.
        note: where, or that there was no GPU.
        cancelled: it was stopped, and some figures are of fewer runs, or missing.
    """

    rows: tuple[TimingRow, ...]
    failed: tuple[tuple[str, str], ...]
    jobs: tuple[Job, ...]
    note: str
    cancelled: bool = False

    def as_state(self, progress: float, running: bool) -> State:
        """As the page takes it."""
        state = "running" if running else "cancelled" if self.cancelled else "done"
        if not running and self.rows and all(r.measured is None for r in self.rows):
            state = "none"
        rows = [row_json(r) for r in self.rows] + [_failed_json(name, why) for name, why in self.failed]
        return {"state": state, "progress": progress, "rows": rows, "note": self.note}

    def __str__(self) -> str:
        lines = [self.note]
        for row in self.rows:
            texts = (f"{text} {head}" if head in _RATES else text for head, text in _figures(row) if text)
            lines.append("  ".join([f"{row.name:<20}", *texts]))
        return "\n".join([*lines, *(f"{name:<20}  {why}" for name, why in self.failed)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = list(dict.fromkeys(head for row in self.rows for head, _ in _figures(row)))
        body = []
        for row in self.rows:
            figures = dict(_figures(row))
            cells = "".join(f"<td>{escape(figures.get(head, ''))}</td>" for head in heads)
            body.append(f'<tr><th scope="row">{escape(row.name)}</th>{cells}</tr>')
        for name, why in self.failed:
            body.append(f'<tr><th scope="row">{escape(name)}</th><td colspan="{len(heads)}">{escape(why)}</td></tr>')
        head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
        return (
            f'<div class="neptune-times"><style>{_STYLE}</style><p>{escape(self.note)}</p>'
            f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>{self._diffs()}</div>"
        )

    def _diffs(self) -> str:
        """The Triton of each other kernel against the first one's."""
        with_code = [(j.name, j.kernel) for j in self.jobs if j.kernel is not None]
        if len(with_code) < 2:
            return ""
        (first, base), *others = with_code
        folds = []
        for name, kernel in others:
            lines = difflib.unified_diff(
                base.source.splitlines(), kernel.source.splitlines(), first, name, lineterm="", n=2
            )
            text = escape("\n".join(lines)) or "the same code"
            folds.append(
                f"<details><summary>Triton: {escape(first)} and {escape(name)}</summary><pre>{text}</pre></details>"
            )
        return "".join(folds)


def time(
    kernel: Kernel,
    against: Sequence[Kernel] | dict[str, Kernel] = (),
    *,
    repetitions: int = 100,
    warmup: int = 10,
    flush_l2: bool = True,
    runner: Runner | None = None,
) -> Timings:
    """Times a kernel, and others for comparison; interrupting the cell keeps the measurements so far.

    Without a GPU nothing is timed: the rows are estimates, marked as such, and say whether the kernel's numbers are
    right in Triton's interpreter.

    Args:
        kernel: from `nl.compile`.
        against: other kernels, as a sequence or by name.
        repetitions: timed runs of each.
        warmup: runs before them.
        flush_l2: start each run with a cold L2 cache.
        runner: where to time; the local GPU by default.

    Returns:
        One row per kernel, shown as a table: times in microseconds, TFLOP/s, GB/s, and the fraction of the roofline.

    Raises:
        MeasureError: `kernel` or one of `against` is not a kernel.
    """
    others = items_of(against.values() if isinstance(against, dict) else against)
    if others is None:
        raise MeasureError(
            f"against={shown(against)}: expected kernels, as a list or by name", help="such as [nl.compile(op)]"
        )
    check_integer("repetitions", repetitions, 1, INT32_MAX, MeasureError)
    check_integer("warmup", warmup, 0, INT32_MAX, MeasureError)
    check_switch("flush_l2", flush_l2, MeasureError)
    for given in (kernel, *others):
        if not hasattr(given, "triton"):
            raise MeasureError(f"{shown(given)} is no kernel", help="compile one first: nl.time(nl.compile(op))")
    named = dict(against) if isinstance(against, dict) else {f"other {n}": k for n, k in enumerate(others, 1)}
    if not isinstance(against, dict) and len(others) == 1:
        named = {"other": others[0]}
    jobs = [Job("kernel", kernel), *(Job(n, k) for n, k in named.items())]
    made = Timings((), (), tuple(jobs), "", cancelled=True)
    line = _StatusLine()
    limits = {"repetitions": repetitions, "warmup": warmup, "flush_l2": flush_l2}
    try:
        with line:
            for latest in _timings(jobs, runner, progress=lambda part: line.say(f"timing: {part:.0%}"), **limits):
                made = latest
                line.say(f"timed {len(made.rows)} of {len(jobs)}; interrupt the cell to stop")
    except KeyboardInterrupt:
        made = replace(made, cancelled=True, note=f"{made.note}; interrupted".lstrip("; "))
    return made


class _StatusLine:
    """A line under the cell while something runs, in a notebook; nothing elsewhere."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __enter__(self) -> None:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if shell is not None and getattr(shell, "kernel", None) is not None:
            from IPython.display import display

            self._handle = display({"text/plain": "timing"}, raw=True, display_id=True)

    def say(self, text: str) -> None:
        """Shows another text."""
        if self._handle is not None:
            self._handle.update({"text/plain": text}, raw=True)

    def __exit__(self, *_: object) -> None:
        self.say("")


def run_jobs(
    jobs: Sequence[Job],
    *,
    cancel: Callable[[], bool],
    progress: Callable[[State], None],
    runner: Runner | None = None,
) -> Iterator[State]:
    """Times kernels one by one; the state after each, and through `progress` between."""
    latest = Timings((), (), tuple(jobs), "")
    yield latest.as_state(0.0, running=True)

    def share(part: float) -> None:
        done = len(latest.rows) + len(latest.failed)
        progress(latest.as_state((done + part) / len(jobs), running=True))

    for latest in _timings(jobs, runner, cancel=cancel, progress=share):
        done = len(latest.rows) + len(latest.failed)
        if done < len(jobs) and not latest.cancelled:
            yield latest.as_state(done / len(jobs), running=True)
    yield latest.as_state(1.0, running=False)


def _timings(jobs: Sequence[Job], runner: Runner | None, **limits: Any) -> Iterator[Timings]:
    """The table after each kernel."""
    from neptune_lab.pipeline.timing import TimingLimits, local

    where = runner or local(checks.smaller_kernel)
    note = where.name
    rows: list[TimingRow] = []
    failed: list[tuple[str, str]] = []
    bounds = TimingLimits(**limits)
    for job in jobs:
        cancelled = bounds.cancel is not None and bounds.cancel()
        if not cancelled:
            try:
                if job.kernel is None:
                    raise MeasureError(job.note)
                rows.append(where.time(job.name, job.kernel, bounds))
            except NeptuneError as error:
                failed.append((job.name, error.reason))
            cancelled = bounds.cancel is not None and bounds.cancel()
        yield Timings(tuple(rows), tuple(failed), tuple(jobs), _note(note, rows), cancelled)
        if cancelled:
            return


def _note(where: str, rows: list[TimingRow]) -> str:
    """Where it ran; what estimates stand on."""
    ceilings = {r.ceiling for r in rows if r.ceiling is not None}
    if rows and all(r.measured is None for r in rows) and ceilings:
        c = ceilings.pop()
        return (
            f"{where}: nothing was timed. Estimates: the least time on an {c.device}, at {c.tflops:g} TFLOP/s and "
            f"{c.gbps:g} GB/s ({c.assumed})."
        )
    against = "".join(f"; roofline of {c.tflops:g} TFLOP/s and {c.gbps:g} GB/s ({c.assumed})" for c in ceilings)
    cold = "cold L2" if any(r.measured and r.measured.cold for r in rows) else "warm L2"
    return f"{where}, {cold}{against}" if rows else where


def row_json(row: TimingRow) -> State:
    """A row as the page takes it."""
    data = {"name": row.name, "us": None, "spread": None, "low": None, "high": None, "tflops": None, "gbps": None}
    data |= {"roofline": row.roofline, "registers": None, "shared": None, "estimate": row.measured is None}
    taken = [x for x in row.resources if x.registers is not None]
    if taken:
        data |= {"registers": max(x.registers or 0 for x in taken), "shared": max(x.shared or 0 for x in taken)}
    if row.measured is not None:
        m = row.measured
        data |= {"us": m.us, "spread": (m.high - m.low) / 2, "low": m.low, "high": m.high}
        data |= {"tflops": m.tflops(row.work.flops), "gbps": m.gbps(row.work.bytes)}
    elif row.estimate_us is not None:
        data["us"] = row.estimate_us
    return {**data, "note": _row_note(row)}


def _failed_json(name: str, why: str) -> State:
    empty = dict.fromkeys(("us", "spread", "low", "high", "tflops", "gbps", "roofline", "registers", "shared"), None)
    return {"name": name, **empty, "estimate": False, "note": why}


def _row_note(row: TimingRow) -> str:
    parts = ["estimate, not measured"] if row.measured is None else []
    if row.measured is not None and row.roofline is not None:
        parts.append(f"{row.roofline:.0%} of the roofline")
    for taken in row.resources:
        if taken.registers is not None:
            spills = f", {taken.spills} spilled" if taken.spills else ""
            parts.append(f"{taken.registers} registers{spills}, {(taken.shared or 0) / 1024:.0f} KiB shared")
    if row.measured is not None and row.measured.cancelled:
        parts.append(f"cancelled after {row.measured.runs} runs")
    return "; ".join([*parts, *([row.note] if row.note else [])])


def _figures(row: TimingRow) -> list[tuple[str, str]]:
    """Heads and texts of a row's cells."""
    data = row_json(row)
    if row.measured is None:
        us = "" if data["us"] is None else f"≥ {data['us']:.4g} µs (estimate)"
        work = f"{row.work.flops / 1e9:.3g} GFLOP, {row.work.bytes / 2**20:.3g} MiB"
        return [("least time", us), ("work", work), ("note", row.note)]
    return [
        ("median", f"{data['us']:.1f} µs"),
        ("10 to 90 %", f"{data['low']:.1f} to {data['high']:.1f}"),
        ("TFLOP/s", f"{data['tflops']:.1f}"),
        ("GB/s", f"{data['gbps']:.0f}"),
        ("note", data["note"]),
    ]


# Heads of figures that are units too: a line of plain text has no heads.
_RATES = ("TFLOP/s", "GB/s")
_STYLE = (
    ".neptune-times{font:13px/1.5 system-ui,sans-serif;color:inherit}.neptune-times table{border-collapse:collapse}"
    ".neptune-times th,.neptune-times td{border-bottom:1px solid rgba(128,128,128,.35);padding:3px 12px 3px 0;"
    "text-align:left;color:currentColor;background:none;font-variant-numeric:tabular-nums}"
    ".neptune-times pre{overflow-x:auto;font:12px/1.5 ui-monospace,monospace;color:inherit}"
)

__all__ = ["Job", "Timings", "row_json", "run_jobs", "time"]
