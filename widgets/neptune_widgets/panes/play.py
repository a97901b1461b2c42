"""Runs to play: the naive and the repaired program of a step, as frames; made when the pane is opened."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets import tags
from neptune_widgets.pane import Message, answers, pane_data
from neptune_widgets.session import Session, prefix

if TYPE_CHECKING:
    from neptune_lab import Schedule
    from neptune_lab.loop_ir.frames import PlayedRun, PlayedTensor, Shown
    from neptune_lab.loop_ir.tag_table import Cell
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline.playing import Playable

# How far a result may be from the definition in float64, relative to it and to the largest one.
_TOLERANCES = {"float16": 5e-3, "bfloat16": 4e-2}
# The "step" of the kernel's tiles.
_TILES = -1
# Stores of all runs up to which a page without Python has them: each is about 30 bytes of the page.
_KEPT = 60_000


@pane_data
def plays(session: Session) -> dict[str, Any]:
    """What can be played, without the runs."""
    from neptune_lab.pipeline.playing import playable

    schedule, note = tags.shown(session.schedule, session.sample)
    listed = [_listed(p) for p in playable(schedule)]
    return {"plays": [*listed, _tiles_listed()] if session.kernel is not None else listed, "note": note}


@answers("play")
def answer(session: Session, message: Message) -> Message:
    """The runs of a step, on the inputs that the page sends or on those of the payload; or why there are none."""
    from neptune_lab.pipeline.playing import playable

    try:
        schedule, _ = tags.shown(session.schedule, session.sample)
        given = message.get("inputs")
        inputs = tags.default_inputs(schedule.operator) if given is None else tags.read_inputs(schedule.operator, given)
        if message["step"] == _TILES:
            return {"kind": "play", "film": _tiles(schedule, inputs)}
        found = next((p for p in playable(schedule) if p.step == message["step"]), None)
        if found is None:
            raise ScheduleError(f"step {message['step']} cannot be played")
        return {"kind": "play", "film": _film(schedule, found, inputs)}
    except NeptuneError as error:
        return {"kind": "play_error", "message": str(error)}


def films(session: Session) -> list[dict[str, Any]]:
    """The runs of every step that can be played.

    Raises:
        ScheduleError: together they have too many values for a page that is saved.
    """
    from neptune_lab.pipeline.playing import playable

    schedule, _ = tags.shown(session.schedule, session.sample)
    found = playable(schedule)
    if tags.size(schedule) * sum(len(p.phases) for p in found) > _KEPT:
        raise ScheduleError("This page has no runs to play: they have too many values. Open it in a notebook.")
    inputs = tags.default_inputs(schedule.operator)
    made = [_film(schedule, p, inputs) for p in found]
    return [*made, _tiles(schedule, inputs)] if session.kernel is not None else made


def _tiles_listed() -> dict[str, Any]:
    return {"step": _TILES, "what": "tiles", "block": ""}


def _tiles(schedule: Schedule, inputs: tags.Inputs) -> dict[str, Any]:
    """The HTile program of the sample, store by store."""
    from neptune_lab.pipeline.playing_tiles import play_tiles

    made = _run(play_tiles(schedule, inputs), frozenset())
    _judge(made["tensors"], schedule.operator, inputs)
    return {**_tiles_listed(), "sides": [{"phase": "htile", "title": "HTile", "wrong": False, **made}]}


def _judge(tensors: list[dict[str, Any]], operator: Operator, inputs: tags.Inputs) -> None:
    """Compares the results that tiles store with the definition in float64, each element where it is written last.

    A tile on chip is no value of the definition: nothing is said of it.
    """
    found = operator.reference(*inputs.values())
    wanted = dict(zip((t.name for t in operator.outputs), found if isinstance(found, tuple) else (found,), strict=True))
    for tensor in tensors:
        if tensor["name"] not in wanted:
            continue
        expected = wanted[tensor["name"]].reshape(-1)
        dtype = next(t.dtype for t in operator.outputs if t.name == tensor["name"])
        last = {write[0]: write for frame in tensor["frames"] for write in frame}
        finite = np.abs(expected[np.isfinite(expected)])
        scale = float(finite.max()) if finite.size else 0.0
        for position, write in last.items():
            value, should = float(write[1]), float(expected[position])
            near = abs(value - should) <= _TOLERANCES.get(dtype, 1e-5) * max(abs(should), 0.1 * scale)
            right = near or value == should or (isnan(value) and isnan(should))
            write += [None, None, "", right]
            if not right:
                write[1], wanted_there = _apart(value, should)
                write.append(wanted_there)


def _listed(play: Playable) -> dict[str, Any]:
    return {"step": play.step, "what": play.what, "block": play.block}


def _film(schedule: Schedule, play: Playable, inputs: tags.Inputs) -> dict[str, Any]:
    """The sides of a step, each as JSON."""
    from neptune_lab.pipeline.playing import play as run

    until = prefix(schedule, play.step)
    sides = []
    for key in play.phases:
        phase = next((p for p in until.phases if p.key == key), None)
        rolling = tags.best_loop(until, key)
        if rolling is None:
            raise ScheduleError("this program has no loop to play")
        program = schedule.definition if phase is None else phase.program
        relative = tags.of_a_part(program)
        made = run(schedule, play.step, key, rolling, inputs)
        head = {
            "phase": key,
            "title": "definition" if phase is None else phase.title,
            "wrong": bool(phase and phase.wrong),
        }
        sides.append({**head, **_run(made, relative)})
    return {**_listed(play), "sides": sides}


def _run(run: PlayedRun, relative: frozenset[str]) -> dict[str, Any]:
    """A run as JSON; `pool` has the rows and columns of the tag table."""
    pool: dict[str, int] = {}
    frames = [{"name": f.name, "segment": f.segment, "blocks": list(f.blocks), "loop": f.loop} for f in run.frames]
    tensors = [
        {
            "name": t.name,
            "kind": t.kind,
            "shape": list(t.shape),
            "blocks": list(t.blocks),
            "frames": _frames(t, run.rolling, not relative.isdisjoint(t.blocks), pool),
        }
        for t in run.tensors
    ]
    return {"rolling": run.rolling, "frames": frames, "tensors": tensors, "pool": list(pool)}


def _frames(tensor: PlayedTensor, rolling: str, relative: bool, pool: dict[str, int]) -> list[list[list[Any]]]:
    """What a tensor gets in each frame: [position, value, row, column, sign, right, what it should be]; of an input the
    first two, and what it should be only if it is not right."""
    rows: dict[str, list[Cell | None]] = {}
    for frame in tensor.frames:
        for shown in frame:
            rows.setdefault(shown.label, []).append(shown.cell)
    last = {label: tags.last_of(cells, rolling) for label, cells in rows.items()}

    def write(shown: Shown) -> list[Any]:
        place = 0
        for index, size in zip(shown.index, tensor.shape, strict=True):
            place = place * size + index
        found: list[Any] = [place, _number(shown.value)]
        if not shown.label:
            return found
        found += [pool.setdefault(text, len(pool)) for text in (shown.label, shown.column)]
        cell = shown.cell
        if cell is None:
            return [*found, "", None]
        compared = tags.is_compared(cell, rolling, last[shown.label], relative, tensor.repaired)
        found += [tags.SIGNS[cell.sign], cell.right if compared else None]
        if compared and not cell.right and cell.should_be is not None:
            found[1], should = _apart(shown.value, cell.should_be)
            found.append(should)
        return found

    return [[write(shown) for shown in frame] for frame in tensor.frames]


def _apart(value: float | int | bool, should: float | int | bool) -> tuple[float | int | str, float | int | str]:
    """Both numbers, with so many digits that they differ in the page."""
    from neptune_lab.pipeline.facts import digits_apart

    digits = digits_apart(value, should, 6)
    return _number(value, digits), _number(should, digits)


def _number(value: float | int | bool, digits: int = 6) -> float | int | str:
    """A number that JSON has; others as text."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    return float(f"{value:.{digits}g}") if isfinite(value) else str(value)
