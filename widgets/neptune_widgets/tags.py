"""Tag tables for the page: which programs are small enough, on which inputs, by which loop, and as JSON."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets.session import prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neptune_lab import Schedule
    from neptune_lab.loop_ir.nodes import Program
    from neptune_lab.loop_ir.tag_table import Cell
    from neptune_lab.operators import Operator

# Stores up to which a program is recorded in plain Python when asked, about a second; and up to which all phases
# together are recorded beforehand.
LARGEST = 20_000
BEFOREHAND = 4_000

SIGNS = {"": "", "right": "✓", "early": "!", "repaired": "↻", "wrong": "✗"}
Inputs = dict[str, np.ndarray]


def size(schedule: Schedule) -> int:
    """Stores of the largest program that a table of the schedule records."""
    from neptune_lab.pipeline.facts import stores

    return max(stores(schedule.definition), *(stores(a.outcome.program) for a in schedule.history), 0)


def too_large(schedule: Schedule) -> str:
    """Why there is no tag table, with what would have one; "" where there is."""
    found = size(schedule)
    if found <= LARGEST:
        return ""
    from neptune_widgets.checks import small_enough

    smaller = small_enough(schedule.operator)
    if smaller:
        advice = f"; {smaller} is small enough"
    elif schedule.operator.python:
        advice = ". Trace the function on small tensors, too: nl.explore(op, sample=nl.from_torch(f, *small_tensors))"
    else:
        advice = ". Make the operator at small sizes, too, and give it as a sample: nl.explore(op, sample=small_op)"
    return f"No tag tables: a run makes {found:,} stores, tables are made up to {LARGEST:,}{advice}."


def shown(schedule: Schedule, smaller: Operator | None = None, *, most: int | None = None) -> tuple[Schedule, str]:
    """The schedule that tables are made of, and a note: itself, or a sample of it where it is too large.

    Args:
        schedule: what is explored.
        smaller: its operator at sizes for a sample, if the operator cannot be made again from its parameters.
        most: stores of all phases together from which on a sample is preferred, if there is one.

    Raises:
        ScheduleError: it is too large, and there is no sample of it, or only one that is too large.
    """
    from neptune_widgets.sample import sample

    note = too_large(schedule)
    if not note and (most is None or size(schedule) * len(_phases(schedule)) <= most):
        return schedule, ""
    found = sample(schedule, smaller)
    if not note and (found is None or size(found[0]) >= size(schedule)):
        return schedule, ""
    if found is None and smaller is not None:
        raise ScheduleError("No tag tables: the steps of this schedule are refused at the sizes of the sample.")
    if found is None:
        raise ScheduleError(note)
    if size(found[0]) > LARGEST:
        raise ScheduleError(
            f"No tag tables: the sample makes {size(found[0]):,} stores; tables are made up to {LARGEST:,}."
            if smaller is not None
            else note
        )
    return found[0], f"A sample: the same steps at {found[1]}. The program itself makes {size(schedule):,} stores."


def default_inputs(operator: Operator) -> Inputs:
    """Random inputs of two decimals, so that what is shown is what was computed with."""
    return {name: np.round(a.astype(np.float64), 2).astype(a.dtype) for name, a in operator.random_inputs(0).items()}


def read_inputs(operator: Operator, given: Any) -> Inputs:
    """Inputs as the page sends them, `{name: nested lists}`; ScheduleError where they are not the operator's."""
    if not isinstance(given, dict):
        raise ScheduleError("inputs are given by name, as nested lists of numbers")
    arrays: Inputs = {}
    for spec in operator.inputs:
        if spec.name not in given:
            raise ScheduleError(f"there are no values for input {spec.name!r}")
        try:
            array = np.asarray(given[spec.name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ScheduleError(f"input {spec.name!r} is not an array of numbers: {error}") from error
        if array.shape != spec.shape:
            raise ScheduleError(f"input {spec.name!r} has shape {array.shape}, expected {spec.shape}")
        if not np.isfinite(array).all() and np.dtype(spec.dtype).kind in "iub":
            raise ScheduleError(f"input {spec.name!r} of {spec.dtype} has no infinities and no nan")
        with np.errstate(over="ignore"):
            arrays[spec.name] = array.astype(spec.dtype)
    return arrays


def inputs_json(operator: Operator, arrays: Inputs) -> list[dict[str, Any]]:
    """Inputs for the page."""
    return [
        {"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "values": _nested(arrays[s.name])}
        for s in operator.inputs
    ]


def _nested(array: np.ndarray) -> Any:
    if array.ndim:
        return [_nested(part) for part in array]
    value = float(array)
    return float(f"{value:.7g}") if isfinite(value) else str(value)


def rolling_loops(schedule: Schedule) -> list[str]:
    """Loops that a table can have as columns, over all phases; the one that fits the end best comes first."""
    from neptune_lab.pipeline.facts import loop_names

    names = [*loop_names(schedule.program)]
    for applied in schedule.history:
        names += loop_names(applied.before)
    best = best_loop(schedule)
    return list(dict.fromkeys([best, *names] if best else names))


def best_loop(schedule: Schedule, phase: str | None = None) -> str | None:
    """The loop that the schedule rolls over; else the outer one of a reduction, first of one that is read early."""
    from neptune_lab.loop_schedule import PRIMITIVES
    from neptune_lab.pipeline.facts import loop_names, reduction_loops

    shown = next((p for p in schedule.phases if p.key == phase), None)
    program = schedule.program if shown is None else shown.program
    present = loop_names(program)
    for step in reversed(schedule.steps):
        loop = dict(step.arguments).get("loop")
        if PRIMITIVES[step.primitive].partial and isinstance(loop, str):
            var = loop.partition(".")[2]
            if var in present:
                return var
    early = {producer for _, producer in shown.reads_early} if shown is not None else set()
    along = reduction_loops(program)
    for block in sorted(along, key=lambda name: name not in early):
        if along[block]:
            return along[block][0]
    return present[0] if present else None


def table(
    schedule: Schedule, step: int, phase: str, rolling: str | None, inputs: Inputs, note: str = ""
) -> dict[str, Any]:
    """The table of one phase of a schedule's step, as JSON.

    Args:
        step: as in the trace, where step 0 is the definition.
        phase: its key.
        rolling: the columns' loop; the best one where the program has none of that name.
        note: what `shown` said of the schedule.
    """
    from neptune_lab.pipeline.facts import loop_names

    until = prefix(schedule, step)
    program = next((p.program for p in until.phases if p.key == phase), until.program)
    if not rolling or rolling not in loop_names(program):
        rolling = best_loop(until, phase)
    if rolling is None:
        raise ScheduleError("this program has no loop for the columns of a tag table")
    made = until.tag_table(rolling, phase=phase if step else None, inputs=inputs)
    hidden = f"{made.hidden} more rows are not shown." if made.hidden else ""
    wrong = (f"{text}." for text in made.wrong_notes())
    note = " ".join(filter(None, (*wrong, note, hidden)))
    relative = of_a_part(program)
    repaired = {r.block for r in made.rows if r.kind == "repair"}
    rows = [
        {
            "label": r.label,
            "kind": r.kind,
            "buffer": r.buffer,
            "block": r.block,
            "cells": _cells(r.cells, rolling, r.block in relative, r.block in repaired),
        }
        for r in made.rows
    ]
    return {"title": made.title, "rolling": rolling, "columns": list(made.columns), "rows": rows, "note": note}


def of_a_part(program: Program) -> frozenset[str]:
    """Blocks whose values stand relative to a part of the whole: what a split has reduced, and what is made of that.

    Among them are the sums that a vector repair carries along, which the definition does not have.
    """
    from neptune_lab.pipeline.facts import Role, block_facts
    from neptune_lab.pipeline.record import program_lines

    facts = block_facts(program)
    stage = {line.node.removeprefix("store:"): line.origin for line in program_lines(program)}
    combined = {b.name for b in facts if b.role is Role.GLOBAL}
    rolled = {b.writes for b in facts if b.role in (Role.CURRENT, Role.RETIRE) and stage[b.name] in combined}
    parts = {b.writes for b in facts if b.role is Role.LOCAL} | rolled
    found: set[str] = set()
    for b in facts:
        if not b.reduces and parts & set(b.reads):
            found.add(b.name)
            parts.add(b.writes)
    return frozenset(found)


def _cells(cells: tuple[Any, ...], rolling: str, relative: bool, repaired: bool) -> list[dict[str, Any] | None]:
    last = last_of(cells, rolling)
    return [None if c is None else _cell(c, is_compared(c, rolling, last, relative, repaired)) for c in cells]


def last_of(cells: Iterable[Cell | None], rolling: str) -> int | None:
    """The last iteration of a loop in which one of the cells was written; None if none was."""
    return max((dict(c.tag)[rolling] for c in cells if c is not None and rolling in dict(c.tag)), default=None)


def is_compared(cell: Cell, rolling: str, last: int | None, relative: bool, repaired: bool) -> bool:
    """Whether a cell is compared with the unscheduled program.

    A relative value, which that program does not have, is compared only where it is read early on purpose, or carried
    by a repair that is not proved. So a repaired value is compared where it is complete: on the way it is relative to
    its own tag.

    Args:
        cell: of a row.
        rolling: the loop that the columns are of.
        last: `last_of` the row.
        relative: the row's values are of a part of the whole, as `of_a_part` says.
        repaired: the row's block applies a repair.
    """
    if cell.should_be is None:
        return False
    on_the_way = dict(cell.tag).get(rolling) not in (None, last)
    moves = on_the_way and (repaired or cell.sign == "repaired")
    return cell.right or cell.sign in ("early", "wrong") or not (relative or moves)


def _cell(cell: Cell, compared: bool) -> dict[str, Any]:
    from neptune_lab.pipeline.facts import number_texts

    value, should_be = number_texts(cell)
    return {
        "value": value,
        "tag": ", ".join(f"{var}={at}" for var, at in cell.tag),
        "sign": SIGNS[cell.sign],
        "reads": [{"text": r.text, "state": r.state} for r in cell.reads],
        "should_be": (value if should_be is None else should_be) if compared else None,
        "right": cell.right if compared else None,
    }


def _phases(schedule: Schedule) -> list[tuple[int, str, str]]:
    """Every phase: its step, its key, and the step's primitive."""
    steps = [(n, p.key, a.step.primitive) for n, a in enumerate(schedule.history, 1) for p in a.outcome.phases]
    return [(0, "definition", ""), *steps]


def tables(schedule: Schedule, inputs: Inputs, most: int = BEFOREHAND, note: str = "") -> dict[str, Any]:
    """The tables of all phases, where together they make at most `most` stores; otherwise none."""
    from neptune_lab.loop_schedule import PRIMITIVES

    phases = _phases(schedule)
    if size(schedule) * len(phases) > most:
        return {}
    found: dict[str, Any] = {}
    last = None
    for step, phase, primitive in phases:
        try:
            several = sum(n == step for n, _, _ in phases) > 1  # a refusal's phases are programs of their own
            same = primitive in PRIMITIVES and PRIMITIVES[primitive].same_values
            if several or not same or last is None:
                last = table(schedule, step, phase, None, inputs, note)
        except NeptuneError:
            last = None  # a phase that cannot be run shows no table, and says why when it is asked for
            continue
        found[f"{step}.{phase}"] = last
    return found
