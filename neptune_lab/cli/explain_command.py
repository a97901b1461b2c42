"""The command `explain`: prints the fusions of an operator, or of a function's graph, and why they are right."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neptune_lab.cli.from_file import FromFile
from neptune_lab.cli.request import Request
from neptune_lab.errors import DefinitionError
from neptune_lab.files import writable

if TYPE_CHECKING:
    from neptune_lab.loop_schedule import Schedule


def explain(
    request: Request,
    programs: Annotated[bool, typer.Option(help="Also print the program after every phase.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(callback=writable, help="For FILE.py:NAME: also write a page with the explorer of each region."),
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
        raise DefinitionError(
            "--html is for FILE.py:NAME",
            help="an operator's page is written in Python: nl.explore(nl.compile(op)).export_html('page.html')",
        )

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


__all__ = ["explain"]
