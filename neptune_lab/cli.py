"""The command line: compile, explain, run, tune, bundle, report, bench and more. One-line errors go to standard error.

Exit status: 0 success; 1 a wrong result (`run`, `accuracy`); 2 bad arguments or a refusal, with one line that gives
the reason.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neptune_lab.autotune.command import bundle_command, records_command, report_command, tune_command
from neptune_lab.bench.command import bench
from neptune_lab.errors import DefinitionError, NeptuneError
from neptune_lab.files import write_text
from neptune_lab.strict.console import printable
from neptune_lab.strict.values import check_number

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Choice

app = typer.Typer(
    name="neptune-lab",
    help="Compile tensor operators to fused Triton kernels, and show each step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    trace = "trace"


# Of Triton's compiler, which `Kernel.machine_code` runs.
MACHINE_CODE = (Emit.ttir, Emit.ttgir, Emit.llir, Emit.ptx, Emit.sass, Emit.amdgcn, Emit.resources)


Size = Annotated[int | None, typer.Option(min=1)]

# Options of every command that takes an operator: the operator's sizes, then the template's.
SIZES = (
    "batch", "heads", "kv_heads", "seq", "q_len", "kv_len", "head_dim", "v_head_dim", "window", "prefix",
    "rows", "cols", "features", "m", "n", "k", "h",
)  # fmt: skip
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(SIZES, Size),
    "cap": Annotated[float | None, typer.Option(help="For attention.softcap: scores are limited to ±cap.")],
    "eps": Annotated[float | None, typer.Option(help="The constant added under a square root, or to an exponential.")],
    "causal": Annotated[bool | None, typer.Option("--causal/--no-causal", help="Whether to apply the causal mask.")],
    "return_lse": Annotated[bool | None, typer.Option("--return-lse", help="Also return the log-sum-exp.")],
    "dtype": Annotated[str | None, typer.Option(help="Dtype of the inputs: float16, bfloat16 or float32.")],
}
TILES = ("block_q", "block_kv")
SHARED: dict[str, Any] = {
    "operator": Annotated[
        str,
        typer.Argument(help="Operator or preset; `neptune-lab list` shows them with their sizes.", metavar="OPERATOR"),
    ],
    **OPTIONS,
    "template": Annotated[
        str | None, typer.Option(help="rolling_update or split_k_update (default: chosen by shape).")
    ],
    **dict.fromkeys(TILES, Size),
    "option": Annotated[
        list[str] | None,
        typer.Option("--option", "-O", help="Any other option of the template or of code generation, as name=value."),
    ],
}


@dataclass(frozen=True, slots=True)
class Request:
    """The operator that a command line names, and the choice of template and options to compile it with; `chosen` says
    whether the command line gives any."""

    operator: Operator
    choice: Choice
    chosen: bool


def with_operator(command: Callable[..., None]) -> Callable[..., None]:
    """`command(request, **its own options)` as a command that takes the shared options too."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run_command(**given: Any) -> None:
        shared = {name: given.pop(name) for name in SHARED}
        made = _operator(shared["operator"], {n: shared[n] for n in OPTIONS})
        options = {n: shared[n] for n in TILES if shared[n] is not None}
        options |= dict(map(_option, shared["option"] or ()))
        choice = _choice(shared["template"], options)
        command(Request(made, choice, shared["template"] is not None or bool(options)), **given)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(n, kind, annotation=a, default=inspect.Parameter.empty if n == "operator" else None)
        for n, a in SHARED.items()
    ]
    parameters += [p.replace(kind=kind) for p in own]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    run_command.__name__, run_command.__doc__ = command.__name__, command.__doc__
    return run_command


def _choice(template: str | None, options: dict[str, Any]) -> Choice:
    """The choice of `--template`, `--block-q`, `--block-kv` and `-O name=value ...`."""
    from neptune_lab.pipeline import Choice

    return Choice.of(template, options, "--option")


def _option(text: str) -> tuple[str, Any]:
    """`splits=4`, `loads=descriptors`, `block_q=64,32` (one a nest), `interleave=2`, `persistent=true`."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise DefinitionError(f"--option {text!r}: expected name=value", help="for example --option splits=4")
    known = {"true": True, "false": False, "none": None}

    def one(part: str) -> Any:
        return known[part.lower()] if part.lower() in known else int(part) if part.lstrip("-").isdigit() else part

    parts = [one(part) for part in value.split(",")]
    return name, tuple(parts) if len(parts) > 1 or name == "disable_passes" else parts[0]


def _operator(name: str, sizes: dict[str, Any]) -> Any:
    """The operator, made from the options that were given; DefinitionError names one it does not take."""
    from neptune_lab.operators import find

    make = find(name)
    parameters = inspect.signature(make).parameters
    given = {k: v for k, v in sizes.items() if v is not None}
    for option in given:
        if option not in parameters:
            known = [f"--{p.replace('_', '-')}" for p in parameters if p in sizes]
            raise DefinitionError(
                f"{name} has no option --{option.replace('_', '-')}", help=f"it takes {', '.join(known)}"
            )
    missing = [p for p, v in parameters.items() if v.default is inspect.Parameter.empty and p not in given]
    if missing:
        raise DefinitionError(
            f"{name} needs --{missing[0].replace('_', '-')}",
            help="`neptune-lab list` lists the arguments of each operator",
        )
    return make(**given)


@app.command("compile")
@with_operator
def compile_command(
    request: Request,
    emit: Annotated[Emit, typer.Option(help="Which stage to print.")] = Emit.triton,
    target: Annotated[
        str | None,
        typer.Option(help="GPU architecture of ttir to resources, such as sm_80 or gfx942 (default: sm_90)."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
) -> None:
    """Compile an operator and print one of its stages."""
    op = request.operator
    if target is not None and emit not in MACHINE_CODE:
        raise DefinitionError(
            f"--target={target} is for the stages of machine code, not for --emit {emit}",
            help=f"give --emit {', '.join(MACHINE_CODE[:-1])} or {MACHINE_CODE[-1]}",
        )
    if emit is Emit.definition:
        from neptune_lab.loop_ir.render import definition

        text = "".join(f"{line.text}\n" for line in definition(op.program))
    else:
        from neptune_lab.pipeline import compile_choice, schedule

        if emit is Emit.loops:
            from neptune_lab.loop_ir.printer import to_text

            text = to_text(schedule(op, request.choice.template, config=request.choice.config).program)
        else:
            kernel = compile_choice(op, request.choice)
            if emit is Emit.htile:
                text = kernel.htile_text
            elif emit is Emit.outline:
                text = kernel.outline
            elif emit is Emit.triton:
                text = kernel.source
            elif emit in MACHINE_CODE:
                from neptune_lab.machine_code import to_text as resources_text

                code = kernel.machine_code(target)
                text = resources_text(code) if emit is Emit.resources else code.text(emit.value)
            else:
                from dataclasses import replace

                from neptune_lab.trace import to_json

                text = to_json(replace(kernel.trace, command="neptune-lab " + " ".join(sys.argv[1:]))) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


@app.command()
@with_operator
def explain(
    request: Request,
    programs: Annotated[bool, typer.Option(help="Also print the program after every phase.")] = False,
) -> None:
    """Print the derivation: each fusion, its phases, and the algebra of its repair term."""
    from neptune_lab.loop_ir.render import as_figure
    from neptune_lab.pipeline import schedule

    op = request.operator
    made = schedule(op, request.choice.template, config=request.choice.config)
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
) -> None:
    """Compile, run on random inputs, and compare with the float64 reference."""
    from neptune_lab.pipeline import compile_choice
    from neptune_lab.runtime import device_facts

    check_number("--tolerance", tolerance, DefinitionError, optional=True, positive=True)
    op = request.operator
    facts = device_facts()
    kernel = compile_choice(op, request.choice)
    error = kernel.relative_error(seed)
    if tolerance is None:
        tolerance = 8e-3 if any(t.dtype == "bfloat16" for t in op.outputs) else 1e-3
    ok = error <= tolerance
    launches = ", ".join(f"{k.name}{k.grid}" for k in kernel.triton.kernels)
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
    """Print the numerical errors of the ten attention operators and of torch's kernels (Neptune, appendix F).

    Exit status 1 if our root mean square error is more than 1.2 times the best peer's.
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
def list_command() -> None:
    """List operators with their options, presets, templates, and primitives."""
    from neptune_lab.loop_schedule import PRIMITIVES
    from neptune_lab.loop_schedule.templates import TEMPLATES
    from neptune_lab.operators import OPERATORS, PRESETS, gemm_chain

    typer.echo("operators")
    for name, make in OPERATORS.items():
        options = [f"--{p.replace('_', '-')}" for p in inspect.signature(make).parameters if p in OPTIONS]
        typer.echo(f"  {name:<20} {' '.join(options)}")
    typer.echo("\npresets (published sizes, which options can change; presets without a length need --seq)")
    for preset in PRESETS.values():
        sizes = " ".join(f"{n}={v}" for n, v in preset.sizes.items())
        operator = f"attention.{preset.operator.removesuffix('_')}"
        typer.echo(f"  {preset.name:<12} {operator:<18} {sizes} ({preset.model}; {preset.paper})")
    for name, chain in gemm_chain.PRESETS.items():
        sizes = " ".join(f"{n}={v}" for n, v in chain.items())
        typer.echo(f"  {name:<12} {'gemm_chain':<18} {sizes} (MCFuser, Table II)")
    typer.echo("\ntemplates")
    for name, template in TEMPLATES.items():
        typer.echo(f"  {name:<20} {(inspect.getdoc(template) or '').splitlines()[0]}")
    for title, ours in (("our primitives", True), ("TVM's primitives", False)):
        typer.echo(f"\n{title}")
        for primitive in PRIMITIVES.values():
            if primitive.ours is ours:
                typer.echo(f"  {primitive.name:<20} {primitive.summary}")


@app.command()
def opt(
    file: Annotated[
        Path | None,
        typer.Argument(help="File with the text of a tile program; - reads standard input.", metavar="FILE"),
    ] = None,
    passes: Annotated[list[str] | None, typer.Option("--pass", help="A pass to run; several run in order.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the passes and exit.")] = False,
) -> None:
    """Run passes on the text of a tile program, and print the resulting program.

    `neptune-lab compile ... --emit htile` prints such a text. Without --pass, the program is only verified and printed.
    """
    from neptune_lab.pipeline.opt import list_passes, read, run_passes

    if not list_ and file is None:
        raise DefinitionError("opt needs FILE", help="give the path of a file, or - for standard input")
    typer.echo(list_passes() if file is None else run_passes(*read(file), passes or ()), nl=False)


@app.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, and the GPU or the interpreter that kernels run on."""
    from dataclasses import asdict

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
        status = app(standalone_mode=False)
    except NeptuneError as error:
        _fail(str(error).replace("\n  help: ", "; ").replace("\n", "; "))
    except usage_errors as error:  # type: ignore[misc]
        _fail(error.format_message())
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has closed the pipe
        sys.exit(0)
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        _fail(f"{about}{error.strerror or error}")
    except UnicodeError as error:
        _fail(f"a text on the command line is not Unicode: {error}")
    except MemoryError:
        _fail("there is not enough memory: choose smaller sizes")
    except (typer.Abort, KeyboardInterrupt):
        print("neptune-lab: interrupted", file=sys.stderr)
        sys.exit(130)
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    print(f"neptune-lab: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
