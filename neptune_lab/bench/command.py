"""`neptune-lab bench`: measure on the local GPU, or draw a report from existing results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neptune_lab.errors import MeasureError
from neptune_lab.files import writable, write_text

if TYPE_CHECKING:
    from neptune_lab.bench.measured import BenchmarkResults
    from neptune_lab.bench.run import BenchmarkPlan

SHIPPED = Path(__file__).parent / "results" / "h200.json"
_OUT = Path("bench.json")


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Results, written after each setup; a new start resumes.")]
    = _OUT,
    only: Annotated[str | None, typer.Option(help="Setups, rows or groups, with * and commas: causal_pf,*_dc-8192.")]
    = None,
    budget: Annotated[float, typer.Option(min=0, help="Time in seconds after which no new setup is started.")] = 1200.0,
    workers: Annotated[int, typer.Option(min=0, help="Number of processes that compile in advance.")] = 0,
    gpus: Annotated[str | None, typer.Option(help="GPUs to measure on at once, such as 0,1 (default: one).")] = None,
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
    html: Annotated[Path | None, typer.Option(callback=writable, help="Write the report to this HTML file.")] = None,
    markdown: Annotated[Path | None, typer.Option(callback=writable, help="Write its tables to this Markdown file.")]
    = None,
    readme: Annotated[Path | None, typer.Option(callback=writable, help="Update the marked table of this file.")]
    = None,
    drawn: Annotated[int | None, typer.Option(min=1, help="Measure this many problems drawn with --seed instead.")]
    = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of drawn problems.")] = 0,
    tune_drawn: Annotated[int, typer.Option(min=0, help="Tune so many of the drawn problems for 30 s each, too.")] = 0,
    peer_limit: Annotated[float, typer.Option(min=1.0, help="Seconds for one drawn problem with its peers.")] = 240.0,
    drawn_report: Annotated[Path | None, typer.Option(help="Print the summary of this file of drawn problems.")]
    = None,
) -> None:  # fmt: skip
    """Measure our kernels and their alternatives, and print a report.

    Without a GPU, --tiny checks every number in Triton's interpreter, and --report draws the results of an H200.
    """
    if drawn_report is not None:
        from neptune_lab.bench.drawn.results import read as read_drawn
        from neptune_lab.bench.drawn.summary import to_markdown as drawn_summary

        typer.echo(drawn_summary(read_drawn(drawn_report)), nl=False)
        return
    if drawn is not None:
        others = {"--only": only, "--tune": tune, "--kernels": kernels, "--export-kernels": export_kernels,
                  "--device": device, "--workers": workers, "--gpus": gpus, "--again": again, "--autotuned": autotuned,
                  "--report": report, "--html": html, "--markdown": markdown, "--readme": readme}  # fmt: skip
        plan = (drawn, seed, Path(f"drawn-{seed}.jsonl") if out == _OUT else out, budget, tiny, tune_drawn, peer_limit)
        _drawn(plan, [name for name, value in others.items() if value])
        return
    if seed or tune_drawn or peer_limit != 240.0:
        raise MeasureError(
            "--seed, --tune-drawn and --peer-limit are for --drawn", help="add --drawn N, or leave them out"
        )
    if results is not None and not report:
        raise MeasureError("--results is for --report", help="add --report, or name the file to write with --out")
    from neptune_lab.bench.measured import read

    if export_kernels is not None and not report:
        _export(export_kernels, _chosen(only, tiny), device)
        return
    if report:
        run_results = read(results or SHIPPED)
    else:
        request = _Request(out, only, budget, workers, gpus, autotuned, again, tiny, kernels, device)
        run_results = _measure(request) if tune is None else _tune(request, tune)
    _write(run_results, Path("bench.html") if report and html is None else html, markdown, readme)


@dataclass(frozen=True)
class _Request:
    """What the command line asks to measure; the fields are options of `bench`."""

    out: Path
    only: str | None
    budget: float
    workers: int
    gpus: str | None
    autotuned: str | None
    again: bool
    tiny: bool
    kernels: Path | None
    device: str | None


def _drawn(plan: tuple[int, int, Path, float, bool, int, float], others: list[str]) -> None:
    """Measures drawn problems, and prints their summary; MeasureError for options of the other benchmark."""
    if others:
        raise MeasureError(
            f"--drawn does not take {', '.join(others)}",
            help="it takes --seed, --out, --budget, --tiny, --tune-drawn and --peer-limit",
        )
    from neptune_lab.bench.available import check_device

    check_device(plan[4])
    from neptune_lab.bench.drawn.run import DrawnPlan, run
    from neptune_lab.bench.drawn.summary import to_markdown

    count, seed, out, budget, tiny, tuned, limit = plan
    asked = DrawnPlan(count, seed, out, budget, tiny, tuned, peer_limit_s=limit)
    typer.echo(to_markdown(run(asked, progress=_tell)), nl=False)


def _measure(request: _Request) -> BenchmarkResults:
    from neptune_lab.bench.available import check_device

    check_device(request.tiny)
    from neptune_lab.bench.run import run

    return run(_plan(request), progress=_tell)


def _tune(request: _Request, seconds: float) -> BenchmarkResults:
    from neptune_lab.bench.available import check_device

    check_device(request.tiny)
    if request.gpus is not None:
        raise MeasureError("--tune does not take --gpus", help="leave it out; neptune-lab tune uses several GPUs")
    from neptune_lab.bench.run import tune_setups
    from neptune_lab.bench.tuning import TUNED_SETUPS

    if request.only is None and not request.tiny:
        request = replace(request, only=",".join(TUNED_SETUPS))
    return tune_setups(_plan(request), seconds, _tell)


def _plan(request: _Request) -> BenchmarkPlan:
    from neptune_lab.bench.run import AUTOTUNED, BenchmarkPlan
    from neptune_lab.bench.warm import Source

    setups = _chosen(request.only, request.tiny)
    autotuned = request.autotuned
    search = AUTOTUNED if autotuned is None else () if autotuned == "none" else _split(autotuned)
    again = frozenset(s.name for s in setups) if request.again else frozenset[str]()
    source = Source(request.kernels, request.device)
    source.check()  # before the file of results is written
    gpus = _gpus(request.gpus, request.tiny)
    return BenchmarkPlan(setups, request.out, request.budget, request.workers, gpus, source, search, again=again)


def _gpus(text: str | None, tiny: bool) -> tuple[str, ...]:
    """The values of CUDA_VISIBLE_DEVICES for numbers of GPUs; MeasureError for others than this machine has."""
    from neptune_lab.runtime.gpu_worker import gpu_count, visible_gpu

    if text is None:
        return ()
    numbers, count = _split(text), gpu_count()
    if not numbers or not all(n.isdecimal() and (tiny or int(n) < count) for n in numbers):
        raise MeasureError(
            f"--gpus {text}: expected numbers of this machine's {count} GPUs, separated by commas, such as 0,1",
            help="nvidia-smi -L lists the numbers of the GPUs",
        )
    if len(set(numbers)) < len(numbers):
        raise MeasureError(f"--gpus {text}: a GPU is named twice", help="two processes on a GPU would share its time")
    return tuple(visible_gpu(int(n)) for n in numbers)


def _write(results: BenchmarkResults, html: Path | None, markdown: Path | None, readme: Path | None) -> None:
    """Prints the targets, and writes the reports that are asked for."""
    from neptune_lab.bench.tables import target_rows, to_markdown

    for operators, _, least, figure, verdict, _ in target_rows(results):
        typer.echo(f"{operators:<48} at least {least:<5} {figure:<32} {verdict.replace('**', '')}")
    if html is not None:
        from neptune_lab.bench.report import to_html

        write_text(html, to_html(results))
        typer.echo(f"wrote {html}", err=True)
    if markdown is not None:
        write_text(markdown, to_markdown(results))
    if readme is not None:
        from neptune_lab.bench.report import write_readme

        write_readme(readme, results)


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
