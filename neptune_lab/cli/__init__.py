"""The command line: compile, explain, run, tune, bundle, report, bench and more. One-line errors go to standard error.

Exit status: 0 success; 1 a wrong result (`run`, `accuracy`); 2 bad arguments or a refusal, with one line that gives
the reason.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neptune_lab.bench.command import bench
from neptune_lab.cli.from_file import FromFile
from neptune_lab.cli.request import OPTIONS, Request, with_operator
from neptune_lab.errors import DefinitionError, NeptuneError
from neptune_lab.files import write_text
from neptune_lab.strict.console import printable
from neptune_lab.strict.files import help_of
from neptune_lab.strict.values import check_number
from neptune_lab.tuning.command import bundle_command, records_command, report_command, tune_command

if TYPE_CHECKING:
    from neptune_lab.loop_schedule import Schedule

app = typer.Typer(
    name="neptune-lab",
    help="Compile tensor operators to fused Triton kernels, and show each step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from neptune_lab import __version__

        typer.echo(f"neptune_lab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that go before the name of a command."""


class Emit(StrEnum):
    """What `compile` prints."""

    definition = "definition"
    loops = "loops"
    htile = "htile"
    outline = "outline"
    triton = "triton"
    ttir = "ttir"
    ttgir = "ttgir"
    llir = "llir"
    ptx = "ptx"
    sass = "sass"
    amdgcn = "amdgcn"
    resources = "resources"
    traffic = "traffic"
    trace = "trace"


# Of Triton's compiler, which `Kernel.machine_code` runs.
MACHINE_CODE = (Emit.ttir, Emit.ttgir, Emit.llir, Emit.ptx, Emit.sass, Emit.amdgcn, Emit.resources)
OF_A_GPU = (*MACHINE_CODE, Emit.traffic)
AS_JSON = (Emit.traffic, Emit.resources)


@app.command("compile")
@with_operator
def compile_command(
    request: Request,
    emit: Annotated[Emit, typer.Option(help="Which stage to print.")] = Emit.triton,
    target: Annotated[
        str | None,
        typer.Option(
            help="Architecture of ttir to resources, such as sm_80 or gfx942 (default: sm_90); GPU of traffic, such as "
            "a100 (default: h200)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print traffic or resources as JSON.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
) -> None:
    """Compile an operator and print one of its stages."""
    if as_json and emit not in AS_JSON:
        raise DefinitionError(
            f"--json is for traffic and resources, not for --emit {emit}",
            help="give --emit traffic or --emit resources; --emit trace prints the whole record, which is JSON",
        )
    if target is not None and emit not in OF_A_GPU:
        raise DefinitionError(
            f"--target={target} is for machine code and traffic, not for --emit {emit}",
            help=f"give --emit {', '.join(OF_A_GPU[:-1])} or {OF_A_GPU[-1]}",
        )
    text = _figures(request, emit, target) if as_json else _stage(request, emit, target)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def _figures(request: Request, emit: Emit, target: str | None) -> str:
    """The traffic or the resources of the operator's compilation, as JSON."""
    from neptune_lab.pipeline import compile_choice

    kernel = compile_choice(request.operator, request.choice)
    if emit is Emit.traffic:
        found = kernel.traffic(target).as_record()
    else:
        code = kernel.machine_code(target)
        kernels = [{"name": k.name, "grid": k.grid, **asdict(k.resources)} for k in code.kernels]
        found = {"target": code.target, "kernels": kernels}
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _stage(request: Request, emit: Emit, target: str | None) -> str:
    """The text of a stage of the operator's compilation; `target` is for machine code and traffic."""
    op = request.operator
    if emit is Emit.definition:
        from neptune_lab.loop_ir.render import definition

        return "".join(f"{line.text}\n" for line in definition(op.program))
    from neptune_lab.pipeline import compile_choice, schedule

    if emit is Emit.loops:
        from neptune_lab.loop_ir.printer import to_text

        return to_text(schedule(op, request.choice.template, config=request.choice.config).program)
    kernel = compile_choice(op, request.choice)
    if emit is Emit.traffic:
        return f"{kernel.traffic(target)}\n"
    if emit in MACHINE_CODE:
        from neptune_lab.machine_code import to_text as resources_text

        code = kernel.machine_code(target)
        return resources_text(code) if emit is Emit.resources else code.text(emit.value)
    if emit is Emit.trace:
        from dataclasses import replace

        from neptune_lab.trace import to_json

        return to_json(replace(kernel.trace, command="neptune-lab " + " ".join(sys.argv[1:]))) + "\n"
    return {Emit.htile: kernel.htile_text, Emit.outline: kernel.outline, Emit.triton: kernel.source}[emit]


@app.command()
@with_operator
def explain(
    request: Request,
    programs: Annotated[bool, typer.Option(help="Also print the program after every phase.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="For FILE.py:NAME: also write a page with the explorer of each region.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print each fusion, its phases, and the algebra of its repair.

    Of FILE.py:NAME: the graph's regions that are fused under inference, and why the rest stays apart.
    """
    if isinstance(request.named, FromFile):
        if programs or request.chosen:
            raise DefinitionError(
                "explain of FILE.py:NAME takes no template and no --programs", help="leave them out, or use compile"
            )
        _explain_model(request.named, html, as_json)
        return
    if html is not None:
        raise DefinitionError("--html is for FILE.py:NAME", help="write the explorer of an operator in a notebook")

    from neptune_lab.loop_ir.render import as_figure
    from neptune_lab.pipeline import schedule

    op = request.operator
    made = schedule(op, request.choice.template, config=request.choice.config)
    if as_json:
        typer.echo(json.dumps(_derivation(made, programs), indent=2, allow_nan=False))
        return
    typer.echo(f"{op.title}\n")
    for applied in made.history:
        if not any(p.derivation for p in applied.outcome.phases) and not programs:
            continue
        typer.echo(str(applied.step))
        for n, phase in enumerate(applied.outcome.phases, 1):
            sign = "  ! wrong on purpose" if phase.wrong and phase.key == "naive" else ""
            typer.echo(f"  {n}. {phase.title}{sign}: {phase.note}")
            if phase.derivation is not None:
                typer.echo(_indent(phase.derivation.to_text(), "       "))
            if programs:
                typer.echo(_indent(as_figure(phase.program).rstrip(), "       | "))
        typer.echo("")
    typer.echo(f"The scheduled program {made.check()}.")


def _derivation(made: Schedule, programs: bool) -> dict[str, Any]:
    """The steps of a schedule as its record has them, without graphs; without programs, if these are not wanted."""
    from neptune_lab.pipeline import schedule_trace

    left_out = {"graph", *(() if programs else ("program",))}
    steps = []
    for step in schedule_trace(made).steps:
        phases = [{k: v for k, v in asdict(phase).items() if k not in left_out} for phase in step.phases]
        steps.append({"primitive": step.primitive, "arguments": step.arguments, "phases": phases})
    return {"operator": made.operator.name, "steps": steps, "check": str(made.check())}


def _explain_model(named: FromFile, html: Path | None, as_json: bool) -> None:
    """Prints the explanation of a function, and writes its page."""
    from neptune_lab import explain as explained

    found = explained(named.function, *named.arguments, inference=True)
    if as_json:
        typer.echo(json.dumps(found.as_record(), indent=2, allow_nan=False))
    else:
        typer.echo(str(found), nl=False)
    if html is not None:
        found.export_html(html)


def _indent(text: str, pad: str) -> str:
    return "\n".join(f"{pad}{line}".rstrip() for line in text.splitlines())


@app.command()
@with_operator
def run(
    request: Request,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative error (Frobenius norm) that passes (default: 0.001; bfloat16: 0.008)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compile, run on random inputs, and compare with float64."""
    from neptune_lab.pipeline import compile_choice
    from neptune_lab.runtime import device_facts

    if tolerance is not None:
        check_number("--tolerance", tolerance, DefinitionError, positive=True)
    op = request.operator
    facts = device_facts()
    kernel = compile_choice(op, request.choice)
    error = kernel.relative_error(seed)
    if tolerance is None:
        tolerance = 8e-3 if any(t.dtype == "bfloat16" for t in op.outputs) else 1e-3
    ok = error <= tolerance
    launches = ", ".join(f"{k.name}{k.grid}" for k in kernel.triton.kernels)
    if as_json:
        found = {
            "operator": op.name,
            "kernels": [{"name": k.name, "grid": k.grid} for k in kernel.triton.kernels],
            "device": facts.name,
            "validated": str(kernel.validated),
            "error": error if math.isfinite(error) else None,
            "tolerance": tolerance,
            "ok": ok,
        }
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        typer.echo(f"{op.title}\n  kernels   {launches}\n  ran on    {facts.name}\n  compiled  {kernel.validated}")
        typer.echo(f"  error     {error:.2e} relative to float64 ({'within' if ok else 'ABOVE'} {tolerance:g})")
    if not ok:
        raise typer.Exit(1)


@app.command()
def accuracy(
    seq: Annotated[int | None, typer.Option(min=1, help="Number of keys (default: 256; on a GPU 2048).")] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of query heads (default: 4; on a GPU all).")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of random inputs whose errors are pooled.")] = 1,
    operators: Annotated[str | None, typer.Option(help="Presets, separated by commas (default: the ten).")] = None,
    inputs: Annotated[Path | None, typer.Option(help="Recorded q, k, v: a .npz or .pt file of tensors.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the table to this JSON file.")] = None,
) -> None:
    """Print the errors of the attention operators and of torch's.

    The ten operators are those of Neptune's appendix F. Exit status 1 if our root mean square error is more than 1.2
    times the best peer's.
    """
    from neptune_lab.pipeline.accuracy import TEN, AccuracySetup, accuracy
    from neptune_lab.pipeline.accuracy_table import to_text
    from neptune_lab.runtime.accuracy import read_tensors

    names = TEN if operators is None else tuple(n.strip() for n in operators.split(","))
    recorded = None if inputs is None else read_tensors(inputs)
    report = accuracy(AccuracySetup(names, seq, heads, samples, recorded), lambda n: typer.echo(f"{n} ...", err=True))
    typer.echo(to_text(report), nl=False)
    if json_file is not None:
        write_text(json_file, json.dumps(report.as_record(), indent=2) + "\n")
    if not report.ok:
        raise typer.Exit(1)


@app.command("list")
def list_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List operators, their options, presets, templates, primitives."""
    from neptune_lab.cli.listing import as_text, listing

    found = listing(OPTIONS)
    typer.echo(json.dumps(found, indent=2) if as_json else as_text(found))


@app.command()
def opt(
    file: Annotated[
        Path | None,
        typer.Argument(help="File with the text of a tile program; - reads standard input.", metavar="FILE"),
    ] = None,
    passes: Annotated[list[str] | None, typer.Option("--pass", help="A pass to run; several run in order.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the passes and exit.")] = False,
) -> None:
    """Run passes on the text of a tile program, and print the result.

    `neptune-lab compile ... --emit htile` prints such a text. Without --pass, the program is only verified and printed.
    """
    from neptune_lab.pipeline.opt import list_passes, read, run_passes

    if not list_ and file is None:
        raise DefinitionError("opt needs FILE", help="give the path of a file, or - for standard input")
    typer.echo(list_passes() if file is None else run_passes(*read(file), passes or ()), nl=False)


@app.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, and the GPU or interpreter that runs kernels."""
    from neptune_lab.pipeline import versions
    from neptune_lab.runtime import device_facts

    numbers, facts = versions(), device_facts()
    if as_json:
        typer.echo(json.dumps({"versions": numbers, "device": asdict(facts)}, indent=2))
        return
    for package, number in numbers.items():
        typer.echo(f"{package:<12} {number}")
    memory = f", {facts.memory_bytes / 2**30:.0f} GiB, {facts.sm_count} SMs" if facts.memory_bytes else ""
    typer.echo(f"{'device':<12} {facts.name}{memory}")


app.command("tune")(with_operator(tune_command))
app.command("bundle")(bundle_command)
app.command("report")(report_command)
app.command("records")(records_command)
app.command("bench")(bench)


def main() -> None:
    """The console script: runs `app`, and turns every expected error into one line and exit status 2."""
    usage_errors = typer.BadParameter.__mro__[2]  # ClickException, wherever this typer keeps its click
    try:
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except NeptuneError as error:
        _fail(str(error).replace("\n  help: ", "; help: ").replace("\n", "; "))
    except usage_errors as error:  # type: ignore[misc]
        _fail(f"{error.format_message().removesuffix('.')}; help: {_help_command(error)} lists the arguments")
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has closed the pipe
        sys.exit(0)
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        _fail(f"{about}{error.strerror or error}; help: {help_of(error)}")
    except UnicodeError as error:
        _fail(f"a text on the command line is not Unicode: {error}; help: write it in UTF-8")
    except MemoryError:
        _fail("there is not enough memory; help: choose smaller sizes")
    except SystemExit as error:  # not of the app, which returns its status: of a function of FILE.py that was traced
        _fail(
            f"the function ended the program: sys.exit({'' if error.code is None else repr(error.code)}); "
            "help: remove the call, or name a function that returns its result"
        )
    except (typer.Abort, KeyboardInterrupt):
        print("neptune-lab: interrupted", file=sys.stderr)
        sys.exit(130)
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _help_command(error: Any) -> str:
    """The command that lists what may be written where `error` was."""
    context = getattr(error, "ctx", None)
    names = [] if context is None else [context.info_name] if context.parent is not None else []
    return " ".join(["neptune-lab", *names, "--help"])


def _fail(message: str) -> None:
    print(f"neptune-lab: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
