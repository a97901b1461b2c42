"""The command line: compile, explain, run, tune, bundle, report, bench and more. One-line errors go to standard error.

Exit status: 0 success; 1 a wrong result (`run`, `accuracy`); 2 bad arguments or a refusal, with one line that gives
the reason.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from neptune_lab.bench.command import bench
from neptune_lab.cli.compile_command import compile_command
from neptune_lab.cli.explain_command import explain
from neptune_lab.cli.request import OPTIONS, Request, with_operator
from neptune_lab.errors import DefinitionError, NeptuneError, brief
from neptune_lab.files import writable, write_text
from neptune_lab.strict.console import printable
from neptune_lab.strict.files import help_of
from neptune_lab.strict.values import check_number
from neptune_lab.tuning.command import bundle_command, records_command, report_command, tune_command

_EXAMPLES = """\b
Examples:
  neptune-lab list                               # what can be compiled
  neptune-lab compile rows.softmax --emit outline --rows 64 --cols 512
  neptune-lab explain softmax.figure1 --cols 8   # why fusion is right
  neptune-lab run causal_pf --seq 256 --heads 2  # compared with float64
  neptune-lab compile --help                     # a command's options
"""

app = typer.Typer(
    name="neptune-lab",
    help="Compile tensor operators to fused Triton kernels, and show each step.",
    epilog=_EXAMPLES,
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


app.command("compile")(with_operator(compile_command))
app.command("explain")(with_operator(explain))


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
    json_file: Annotated[
        Path | None, typer.Option("--json", callback=writable, help="Also write the table to this JSON file.")
    ] = None,
) -> None:
    """Print the errors of the attention operators and of torch's.

    The ten operators are those of Neptune's appendix F. Exit status 1 if our root mean square error is more than 1.2
    times the best peer's.
    """
    from neptune_lab.operators.presets import TEN
    from neptune_lab.pipeline.accuracy import AccuracySetup, accuracy
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


_INTERRUPTED = 130


def main() -> None:
    """The console script: runs `app`, and turns every expected error into one line and exit status 2."""
    usage_errors = typer.BadParameter.__mro__[2]  # ClickException, wherever this typer keeps its click
    try:
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except NeptuneError as error:
        _fail(str(error).replace("\n  help: ", "; help: ").replace("\n", "; "))
    except usage_errors as error:  # type: ignore[misc]
        _fail(f"{_usage(error)}; help: {_help_command(error)}")
    except BrokenPipeError:
        _end_with_the_reader()
    except OSError as error:
        about = f"{brief(str(error.filename))}: " if error.filename else ""
        _fail(f"{about}{error.strerror or error}; help: {help_of(error)}")
    except UnicodeError as error:
        _fail(f"a text on the command line is not Unicode: {error}; help: write it in UTF-8")
    except MemoryError:
        _fail("there is not enough memory; help: choose smaller sizes")
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer exits itself
            _end_with_the_reader()
        # Not of the app, which returns its status: of a function of FILE.py that was traced.
        _fail(
            f"the function ended the program: sys.exit({'' if error.code is None else repr(error.code)}); "
            "help: remove the call, or name a function that returns its result"
        )
    except (typer.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    if status == _INTERRUPTED:  # which typer makes of Ctrl-C in a command
        print("neptune-lab: interrupted", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


def _usage(error: Any) -> str:
    """typer's message, with the value that an option does not take if it is pydantic's, which may not name it."""
    message = brief(error.format_message()).removesuffix(".").replace("Value error, ", "")
    found = getattr(error.__cause__, "errors", list)()
    values = [value for e in found if "input" in e and (value := repr(e["input"])) not in message]
    return f"{message}: {', '.join(values)}" if values else message


def _help_command(error: Any) -> str:
    """Which command lists what may be written where `error` was."""
    context = getattr(error, "ctx", None)
    if context is None or context.parent is None:
        return "neptune-lab --help lists the commands"
    return f"neptune-lab {context.info_name} --help lists the arguments"


def _end_with_the_reader() -> NoReturn:
    """The end of a command whose reader (head, less) has closed the pipe."""
    sys.stderr.close()
    sys.exit(0)


def _fail(message: str) -> None:
    print(f"neptune-lab: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
