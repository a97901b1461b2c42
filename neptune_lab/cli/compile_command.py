"""The command `compile`: prints one stage of the compilation of an operator."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from neptune_lab.cli.request import Request
from neptune_lab.errors import DefinitionError
from neptune_lab.files import writable, write_text


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


def compile_command(
    request: Request,
    emit: Annotated[
        Emit, typer.Option(metavar="STAGE", help=f"Which stage to print: {', '.join(Emit)}.")
    ] = Emit.triton,
    target: Annotated[
        str | None,
        typer.Option(
            help="Architecture of ttir to resources, such as sm_80 or gfx942 (default: sm_90); GPU of traffic, such as "
            "a100 (default: h200)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print traffic or resources as JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", callback=writable, help="Write to this file instead.")
    ] = None,
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
        from neptune_lab.trace import to_json

        return to_json(replace(kernel.trace, command="neptune-lab " + " ".join(sys.argv[1:]))) + "\n"
    return {Emit.htile: kernel.htile_text, Emit.outline: kernel.outline, Emit.triton: kernel.source}[emit]


__all__ = ["Emit", "compile_command"]
