"""The tuner on the command line: `tune`, `bundle`, `report`, `records`. Results go to standard output."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from neptune_lab.errors import DefinitionError, MeasureError, TuneError
from neptune_lab.files import quoted, writable

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


class TuneRequest(Protocol):
    """What `cli.with_operator` passes to a command: an operator, and whether the command line chooses options."""

    @property
    def operator(self) -> Any: ...

    @property
    def chosen(self) -> bool: ...


def tune_command(
    request: TuneRequest,
    seconds: Annotated[float, typer.Option(help="Time limit of the search, in seconds.")] = 60.0,
    trials: Annotated[int | None, typer.Option(min=1, help="Maximum number of candidates to try.")] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="A dask scheduler whose workers measure, such as tcp://host:8786.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Numbers of local GPUs, such as 0,1 (default: all).")] = None,
    records: Annotated[Path | None, typer.Option(help="The file of records (default: in the cache).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search and of the inputs.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Measure again what is already in the records.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Search for an operator's fastest template and options.

    Candidates are measured on the local GPU; the measurements are recorded.
    """
    from neptune_lab.records import Store
    from neptune_lab.tuning.tune import tune

    if request.chosen:
        raise TuneError(
            "tune chooses template, tiles and options itself", help="omit --template, --block-q, --block-kv and -O"
        )
    result = tune(
        request.operator,
        seconds=seconds,
        trials=trials,
        store=Store(records),
        scheduler=scheduler,
        gpus=None if gpus is None else _numbers(gpus),
        seed=seed,
        fresh=again,
        progress=not quiet,
        command="neptune-lab " + shlex.join(sys.argv[1:]),
    )
    typer.echo(str(result))
    if result.unsaved:
        if result.rescued is None:
            from neptune_lab.records import dump

            typer.echo("the records that could not be stored follow", err=True)
            typer.echo(dump(result.unsaved), nl=False)
        raise typer.Exit(1)


def bundle_command(
    operators: Annotated[
        list[str],
        typer.Argument(
            metavar="OPERATOR",
            help="Operators or presets with their sizes: causal_pf:seq=2048, gemm_chain:m=512,n=256,k=64,h=64",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Number of candidates per operator (default: one, the choice of compile).")
    ] = None,
    tuned: Annotated[bool, typer.Option("--tuned", help="Use the best records for the GPU named by --device.")] = False,
    device: Annotated[str, typer.Option(help="The GPU that will run the bundle, by torch's name.")] = "NVIDIA H200",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs, and of the choice of candidates.")] = 0,
) -> None:
    """Write kernels, and a runner that times them elsewhere.

    The other machine needs only torch and Triton.
    """
    from neptune_lab.target import Target
    from neptune_lab.tuning.bundle import chosen, write_bundle

    if candidates is not None and tuned:
        raise TuneError("--candidates and --tuned were both given", help="give one of them")
    choices = {op: chosen(op, candidates, tuned, device, seed) for op in map(operator_of, operators)}
    folder = write_bundle(choices, output, target=Target.known(device), seed=seed)
    count = f"{len(choices)} operator{'s' if len(choices) > 1 else ''}"
    typer.echo(f"{folder}: {count}; copied to a machine with a GPU: python {quoted(Path(folder.name) / 'run.py')}")


def report_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a bundle whose run.py has been run.", metavar="DIR")],
    results: Annotated[
        Path | None, typer.Option(help="The file that run.py wrote (default: DIR/results.json).")
    ] = None,
    records: Annotated[Path | None, typer.Option(help="The file of records (default: in the cache).")] = None,
    export: Annotated[
        Path | None, typer.Option(callback=writable, help="Also write the best records to this JSON file.")
    ] = None,
) -> None:
    """Add a bundle's results to the records, and print the fastest."""
    from neptune_lab.records import Store
    from neptune_lab.tuning.bundle import collect
    from neptune_lab.tuning.report import fastest, table

    store = Store(records)
    collected = collect(folder, store, results)
    typer.echo(table(collected), nl=False)
    if export is not None:
        store.export(export, fastest(collected))


def records_command(
    records: Annotated[Path | None, typer.Option(help="The file of records (default: in the cache).")] = None,
    load: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="First add the records of this JSON file (can be repeated)."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(callback=writable, help="Write the best record of each workload and GPU to this JSON file."),
    ] = None,
    mend: Annotated[
        bool, typer.Option("--mend", help="Move a damaged file aside, and keep its readable records.")
    ] = False,
    with_shipped: Annotated[bool, typer.Option("--shipped", help="Also print the records of the package.")] = False,
) -> None:
    """Print the fastest recorded kernels; export and load records."""
    from neptune_lab.records import Store, shipped
    from neptune_lab.tuning.report import fastest, table

    store = Store(records)
    if mend:
        kept, aside = store.mend()
        typer.echo(f"kept {kept} records in {store.path}; the damaged file is {aside}", err=True)
    for path in load or ():
        store.load(path)
    own = store.find()
    shown = (*own, *shipped()) if with_shipped else own
    if not shown:
        if export is not None:
            raise MeasureError(
                f"no records in {store.path} yet: nothing to export",
                help="--shipped exports the records of the package",
            )
        typer.echo(f"no records in {store.path} yet; --shipped prints the records of the package", err=True)
        return
    if export is not None:
        store.export(export, fastest(shown))
    typer.echo(table(shown), nl=False)


def operator_of(text: str) -> Operator:
    """The operator that `name:size=value,...` names.

    >>> operator_of("gemm_chain:m=32,n=16,dtype=bfloat16").params["m"]
    32

    Raises:
        DefinitionError: no such operator, or an option that it does not take.
    """
    import inspect

    from neptune_lab.operators import find

    name, _, rest = text.partition(":")
    make = find(name)
    known = inspect.signature(make).parameters
    given = {}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        if not equals or option not in known:
            raise DefinitionError(
                f"{text!r}: {part!r} is not an option of {name}",
                help=f"write option=value; it takes {', '.join(known)}",
            )
        if option in given:
            raise DefinitionError(f"{text!r}: {option} is given twice", help="leave one of the two out")
        given[option] = _value(value)
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in given]
    if missing:
        raise DefinitionError(f"{text!r}: {name} needs {missing[0]}", help=f"write {name}:{missing[0]}=...")
    return make(**given)


def _value(text: str) -> int | float | bool | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _numbers(text: str) -> list[int]:
    try:
        return [int(n) for n in text.split(",")]
    except ValueError as error:
        raise TuneError(
            f"--gpus {text}: expected numbers separated by commas, such as 0,1",
            help="nvidia-smi -L lists the numbers of the GPUs",
        ) from error
