"""Which exceptions of docs/concepts/numbers.md apply to a compiled program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neptune_lab.htile.nodes import Elementwise, TileExpr
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.shapes import operation
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.loop_ir.nodes import Cast, Load
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.tree import blocks, find_block
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule import PRIMITIVES
from neptune_lab.loop_schedule.schedule import Applied, Schedule
from neptune_lab.pipeline.record import AppliedPass
from neptune_lab.repair import RepairTerm, VectorRepair
from neptune_lab.strict.dtypes import EIGHTS, HALVES


def exceptions_met(scheduled: Schedule, translated: TileProgram, passes: Sequence[AppliedPass]) -> tuple[str, ...]:
    """Titles of the exceptions, in the order of the page.

    Args:
        scheduled: the schedule, with the derivations of its steps.
        translated: the HTile program before the passes.
        passes: each pass with the program after it and its proof.
    """
    program = scheduled.definition
    repairs = _repairs(scheduled)
    sums = [b for b in blocks(program) if reducer_of(b) == "sum" and "float" in program.buffer(b.writes).dtype]
    # The partition assumes that a masked element adds nothing: 0 · v is 0 if v is finite.
    assumed = any(note.strip().startswith("assumed:") for applied in passes for note in applied.notes)
    last = passes[-1].program if passes else translated
    computed = [
        expr for kernel in last.kernels for store in stores(kernel.body) for expr in subexpressions(store.value)
    ]
    met = {
        "near the largest float": bool(sums),
        "beyond 1e-18 to 1e18": any(True for _ in repairs),
        "absolute errors": any(isinstance(e, Elementwise) and operation(e.op).absolute_error for e in computed),
        "vector repairs": bool(repaired_by_vectors(scheduled)),
        "masked tiles are not visited": assumed,
        "distributed products": any(map(_distributes_rounded, scheduled.history)),
        "large common offsets": any(map(_is_offset_exponential, computed)),
        "float16 outputs": any(spec.dtype == "float16" for spec in scheduled.operator.outputs),
    }
    return tuple(title for title, holds in met.items() if holds)


def repaired_by_vectors(scheduled: Schedule) -> frozenset[str]:
    """The stages of the definition that a vector repair computes: if one overflows, the kernel may have NaN."""
    return frozenset(
        find_block(applied.before, str(dict(applied.step.arguments)["block"]))[1].origin
        for applied, repair in _repairs(scheduled)
        if isinstance(repair, VectorRepair)
    )


def _repairs(scheduled: Schedule) -> Iterator[tuple[Applied, RepairTerm | VectorRepair]]:
    """Each repair of the schedule with the step that derived it; repairs in cuts and remarks were not used."""
    for applied in scheduled.history:
        if not PRIMITIVES[applied.step.primitive].repairs:
            continue
        for phase in applied.outcome.phases:
            if phase.derivation is not None and phase.refusal is None:
                yield applied, phase.derivation


def _distributes_rounded(applied: Applied) -> bool:
    """Whether the step made two products of one whose factor is rounded to 8 or 16 bits."""
    program = applied.outcome.program
    if applied.step.primitive != "distribute":
        return False
    terms = [find_block(program, name)[1].body.value for name in applied.outcome.made]
    narrow = (*EIGHTS, *HALVES)
    rounded = {b.name for b in program.buffers if b.dtype in narrow and b.name not in program.inputs}
    return any(
        (isinstance(e, Load) and e.buffer in rounded) or (isinstance(e, Cast) and e.dtype in narrow)
        for term in terms
        for e in walk(term)
    )


def _is_offset_exponential(expr: TileExpr) -> bool:
    """Whether it is exp2(x · c − m · c), whose products are rounded separately."""
    match expr:
        case Elementwise(op="exp2", args=(Elementwise(op="sub"),)):
            return True
    return False


__all__ = ["exceptions_met", "repaired_by_vectors"]
