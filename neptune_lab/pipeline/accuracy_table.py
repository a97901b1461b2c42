"""The accuracy report as a table for people."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from neptune_lab.pipeline.accuracy import OURS, AccuracyRow, Report
from neptune_lab.runtime.accuracy import ALLOWED, ErrorSummary

_WIDE = 400  # so wide that rich neither cuts nor wraps


def to_text(report: Report) -> str:
    """One row per operator, then what each column is and where it ran, the inputs, and what was not run, and why."""
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("operator")
    for column in report.columns:
        table.add_column(f"{column}\nRMS / 90th / 99th %", justify="right")
    table.add_column("RMS over\nbest peer's", justify="right")
    for row in report.rows:
        cells = [_cell(row.errors.get(column)) for column in report.columns]
        table.add_row(row.operator, *cells, _verdict(row))
    out = io.StringIO()
    Console(file=out, width=_WIDE, color_system=None, highlight=False).print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    lines += ["", "Absolute errors against a float64 reference, all samples together."]
    lines += [f"  {column}: {about}" for column, about in report.columns.items()]
    lines.append(f"  inputs: {report.inputs}; samples: {report.samples}")
    sizes: dict[str, list[str]] = {}
    for row in report.rows:
        sizes.setdefault(" ".join(f"{n}={v}" for n, v in row.sizes.items()), []).append(row.operator)
    lines += [f"  {', '.join(names)}: {size}" for size, names in sizes.items()]
    lines += [f"  {row.operator}: no {peer}: {why}" for row in report.rows for peer, why in row.reasons.items()]
    without = [row.operator for row in report.rows if row.ratio is None]
    if without:
        lines.append(f"  no fused peer here for {', '.join(without)}: nothing to compare with")
    verdict = f"at most {ALLOWED} times the best peer's RMS error: {'yes' if report.ok else 'NO'}"
    lines.append(f"{OURS} has {verdict}")
    return "".join(f"{line}\n" for line in lines)


def _cell(errors: ErrorSummary | None) -> str:
    return "-" if errors is None else f"{errors.rms:.1e} {errors.p90:.1e} {errors.p99:.1e}"


def _verdict(row: AccuracyRow) -> str:
    if row.ratio is None:
        return "-"
    return f"{row.ratio:.2f}" if row.ok else f"{row.ratio:.2f} ABOVE {ALLOWED}"
