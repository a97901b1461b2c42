"""Records as a table."""

from __future__ import annotations

from collections.abc import Iterable

from neptune_lab.records import Record
from neptune_lab.runtime.choice import StoredChoice
from neptune_lab.strict.console import printable


def by_workload(records: Iterable[Record]) -> list[list[Record]]:
    """The records grouped by workload, GPU, and cold or warm L2, in their order."""
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for record in records:
        groups.setdefault((record.workload, record.device, record.cold), []).append(record)
    return list(groups.values())


def fastest(records: Iterable[Record]) -> list[Record]:
    """The fastest record of each workload that has one with a time."""
    timed = ([r for r in group if r.us is not None] for group in by_workload(records))
    return [min(group, key=lambda r: r.us or 0.0) for group in timed if group]


def table(records: Iterable[Record]) -> str:
    """The fastest record of each workload with its figures, as lines of text."""
    head = f"{'operator':<24} {'sizes':<44} {'device':<16}"
    lines = [f"{head} {'us':>10} {'error':>9} {'regs':>5} {'spills':>6} {'shared':>7}  candidate"]
    for group in by_workload(records):
        timed = [r for r in group if r.us is not None]
        first = group[0]
        sizes = " ".join(f"{k}={v}" for k, v in first.params.items() if isinstance(v, int) and not isinstance(v, bool))
        head = f"{first.operator:<24} {sizes:<44} {first.device:<16}"
        if not timed:
            lines.append(f"{head} {'-':>10}  {' '.join((first.failure or 'no time').split())}")
            continue
        best = min(timed, key=lambda r: r.us or 0.0)
        figures = [(r.registers or 0, r.spills or 0, r.shared or 0) for r in best.resources]
        registers, spills, shared = map(max, zip(*figures, strict=True)) if figures else (0, 0, 0)
        lines.append(
            f"{head} {best.us:>10.2f} {best.error or 0:>9.1e} {registers:>5} {spills:>6} "
            f"{shared:>7}  {StoredChoice(best.template, best.options)}"
            + (f"  ({len(group) - len(timed)} of {len(group)} failed)" if len(timed) < len(group) else "")
        )
    return printable("\n".join(lines)) + "\n"
