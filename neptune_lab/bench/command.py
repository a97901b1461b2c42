"""`neptune-lab bench`: measure on the local GPU, or draw a report from existing results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text

SHIPPED = Path(__file__).parent / "results" / "h200.json"


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Results, written after each setup; a new start resumes.")]
    = Path("bench.json"),
    only: Annotated[str | None, typer.Option(help="Setups, rows or groups, with * and commas: causal_pf,*_dc-8192.")]
    = None,
    budget: Annotated[float, typer.Option(min=0, help="Time in seconds after which no new setup is started.")] = 1200.0,
    workers: Annotated[int, typer.Option(min=0, help="Number of processes that compile in advance.")] = 0,
    autotuned: Annotated[str | None, typer.Option(help="Setups on which torch's compilers also search; 'none': none.")]
    = None,
    again: Annotated[bool, typer.Option("--again", help="Measure chosen setups even if the file has them.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny sizes, to try the benchmark without a GPU.")] = False,
    tune: Annotated[float | None, typer.Option(min=1, help="Tune each setup for this many seconds instead.")]
    = None,
    kernels: Annotated[Path | None, typer.Option(help="Use the kernels in this directory; needs no TVM.")] = None,
    export_kernels: Annotated[Path | None, typer.Option(help="Only write our kernels to this directory.")]
    = None,
    device: Annotated[str | None, typer.Option(help="GPU whose records are used, such as 'NVIDIA H200'.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Only draw the report of the results.")] = False,
    results: Annotated[Path | None, typer.Option(help="Results to report (default: those in the package).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report to this HTML file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write its tables to this Markdown file.")] = None,
    readme: Annotated[Path | None, typer.Option(help="Update the table between the markers in this file.")] = None,
) -> None:  # fmt: skip
    """Measure our kernels and their alternatives, and print a report.

    Without a GPU, --tiny checks every number in Triton's interpreter, and --report draws the results of an H200.
    """
    from neptune_lab.bench.measured import read
    from neptune_lab.bench.tables import target_rows

    if report:
        found = read(results or SHIPPED)
        html = html or Path("bench.html")
    elif export_kernels is not None:
        _export(export_kernels, _chosen(only, tiny), device)
        return
    else:
        from neptune_lab.runtime.device import ask_for_interpreter

        ask_for_interpreter()  # before the modules of the contestants import Triton
        from neptune_lab.bench.run import AUTOTUNED, BenchmarkPlan, run, tune_setups
        from neptune_lab.bench.tensors import device_name
        from neptune_lab.bench.warm import Source

        if device_name() == "cpu" and not tiny:
            raise MeasureError(
                "no CUDA GPU was found: nothing can be timed",
                help="--tiny checks the numbers, --report draws the results of an H200",
            )
        if tune is not None and only is None and not tiny:
            from neptune_lab.bench.tuning import TUNED_SETUPS

            only = ",".join(TUNED_SETUPS)
        setups = _chosen(only, tiny)
        search = AUTOTUNED if autotuned is None else () if autotuned == "none" else _split(autotuned)
        names = frozenset(s.name for s in setups) if again else frozenset()
        plan = BenchmarkPlan(setups, out, budget, workers, Source(kernels, device), search, again=names)
        found = run(plan, progress=_tell) if tune is None else tune_setups(plan, tune, _tell)
    for row in target_rows(found):
        verdict = row[4].replace("**", "")
        typer.echo(f"{row[0]:<48} at least {row[2]:<5} {row[3]:<32} {verdict}")
    if html is not None:
        from neptune_lab.bench.report import to_html

        write_text(html, to_html(found))
        typer.echo(f"wrote {html}", err=True)
    if markdown is not None:
        from neptune_lab.bench.tables import to_markdown

        write_text(markdown, to_markdown(found))
    if readme is not None:
        from neptune_lab.bench.report import write_readme

        write_readme(readme, found)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _chosen(only: str | None, tiny: bool):
    from neptune_lab.bench.setups import all_setups, choose, tiny_setups

    return choose(tiny_setups() if tiny else all_setups(), _split(only or ""))


def _export(directory: Path, setups: tuple, device: str | None) -> None:
    from neptune_lab.bench.ablation import variants
    from neptune_lab.bench.kernels import compiled, export

    pairs = [(setup, variant) for setup in setups for variant in variants(setup)]
    path = export(pairs, directory, lambda s, v: compiled(s, v, device), _tell)
    typer.echo(f"wrote {path}")
