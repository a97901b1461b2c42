"""`neptune-lab bench`: measure on the GPU at hand, or draw the report of results that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text

SHIPPED = Path(__file__).parent / "results" / "h200.json"


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Results, written after each setup; a second start goes on.")]
    = Path("bench.json"),
    only: Annotated[str | None, typer.Option(help="Setups, rows or groups, with * and commas: causal_pf,*_dc-8192.")]
    = None,
    budget: Annotated[float, typer.Option(min=0, help="Seconds after which no setup is begun.")] = 1200.0,
    workers: Annotated[int, typer.Option(min=0, help="Processes that compile ahead.")] = 0,
    autotuned: Annotated[str | None, typer.Option(help="Setups on which torch's compilers also search; 'none': none.")]
    = None,
    again: Annotated[bool, typer.Option("--again", help="Measure the chosen setups though the file has them.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Toy sizes, to try it without a GPU.")] = False,
    tune: Annotated[float | None, typer.Option(min=1, help="Tune setups so many seconds each instead.")]
    = None,
    kernels: Annotated[Path | None, typer.Option(help="Take our kernels from this directory; needs no TVM.")] = None,
    export_kernels: Annotated[Path | None, typer.Option(help="Write our kernels to this directory, measure nothing.")]
    = None,
    device: Annotated[str | None, typer.Option(help="Whose records of tuning to use, such as 'NVIDIA H200'.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Draw the report of the results, measure nothing.")] = False,
    results: Annotated[Path | None, typer.Option(help="Results to report (default: those that are shipped).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write its tables to this file.")] = None,
    readme: Annotated[Path | None, typer.Option(help="Renew the table between this file's markers.")] = None,
) -> None:  # fmt: skip
    """Measure our kernels and what a user would take instead, and report it.

    Without a GPU --tiny checks every number in Triton's interpreter, and --report draws the results of an H200.
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

        ask_for_interpreter()  # before Triton's import, which the contestants' modules begin with
        from neptune_lab.bench.run import AUTOTUNED, Plan, run, tune_setups
        from neptune_lab.bench.tensors import device_name
        from neptune_lab.bench.warm import Source

        if device_name() == "cpu" and not tiny:
            raise MeasureError(
                "no GPU here: nothing can be timed", help="--tiny checks numbers, --report draws a report"
            )
        if tune is not None and only is None and not tiny:
            from neptune_lab.bench.tuning import TUNED_SETUPS

            only = ",".join(TUNED_SETUPS)
        setups = _chosen(only, tiny)
        search = AUTOTUNED if autotuned is None else () if autotuned == "none" else _split(autotuned)
        names = frozenset(s.name for s in setups) if again else frozenset()
        plan = Plan(setups, out, budget, workers, Source(kernels, device), search, again=names)
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
