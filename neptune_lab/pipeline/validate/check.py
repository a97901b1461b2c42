"""Validation of one compile: the emitted kernel against the definition, in full or at small sizes."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from neptune_lab.choice import CodeOptions
from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.hashed import full_text
from neptune_lab.htile import printer
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.walk import loops_in
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.render import as_figure
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.loop_schedule.outcome_cache import clear_outcomes
from neptune_lab.loop_schedule.range_cache import clear_ranges
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.operators.strided import sharing
from neptune_lab.pipeline.exceptions import repaired_by_vectors
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import lower
from neptune_lab.pipeline.validate import numpy_tiles, triton_numpy
from neptune_lab.pipeline.validate.compare import Difference, Wanted, expectations, may_remove
from neptune_lab.pipeline.validate.data import data_sets
from neptune_lab.pipeline.validate.forms import (
    Run,
    input_dtypes,
    input_strides,
    is_plain,
    run_triton,
    tile_programs,
    wrong_result,
)
from neptune_lab.pipeline.validate.replay import small_schedule, specs_of
from neptune_lab.pipeline.validate.report import Validated, failed, shapes_of
from neptune_lab.pipeline.validate.resize import ResizedSchedule, resized_schedule
from neptune_lab.pipeline.validate.sizes import Plan, plan
from neptune_lab.strict.values import check_choice
from neptune_lab.tensor_spec import Strides

if TYPE_CHECKING:
    from neptune_lab.target import Target

MODES = ("quick", "full", "none")
Arrays = Mapping[str, np.ndarray]

# A program whose definition has at most this many elements, over all stages, is run at its own sizes.
_POINTS = {"quick": 1 << 18, "full": 1 << 22}
_INSTANCES = {"quick": 400, "full": 20_000}
# The same of a program at small sizes, which is run in any mode: MLA's latents keep their width.
_SMALL_POINTS, _SMALL_INSTANCES = 1 << 24, 20_000
# Kinds of data, and the most elements of a loop program that is run in plain Python.
_SETS = {"quick": 4, "full": 12}
_LOOP_POINTS = 1 << 17

_seen: OrderedDict[tuple[str, str, Hashable], Validated] = OrderedDict()
_MOST_SEEN = 512


def validate(kernel: Kernel, code: CodeOptions, target: Target | None, mode: str) -> Validated:
    """Runs the kernel against its definition, and says what was run; a structure that was validated before is not run
    again.

    Args:
        mode: "quick": the emitted module on a few kinds of data. "full": each stage on all of them, Triton's own
            interpreter too. "none": nothing.

    Raises:
        ValidationError: an element differs; it names the stage and has a script.
        ScheduleError: no such mode.
    """
    check_choice("validate", mode, MODES, ScheduleError, help='validate="quick" is the default')
    if mode == "none":
        return Validated(mode)
    large = _is_large(kernel, mode)
    planned, small = None, None
    if large:
        try:
            planned = plan(kernel.schedule)
        except NeptuneError as error:
            return Validated(mode, note=f"too large to run: {error.reason}")
        small = _resized(kernel.schedule, planned)
    whole = large and _has_whole_loop(kernel)
    key = (mode, full_text(code), (whole, _form(kernel, planned, small)))
    if key not in _seen:
        validated = (
            _validate(kernel, code, mode)
            if planned is None
            else _validate_small(kernel, planned, small, code, target, mode, whole=whole)
        )
        _seen[key] = validated
        if len(_seen) > _MOST_SEEN:
            _seen.popitem(last=False)
    _seen.move_to_end(key)
    return _seen[key]


def forget() -> None:
    """Every structure is validated again, and every step applied again: for tests that change the compiler."""
    _seen.clear()
    clear_outcomes()
    clear_ranges()


def structure(kernel: Kernel) -> str:
    """The definition, the steps, the tiles and the emitted module, with each size replaced by the order in which it
    first occurs: two kernels that differ in sizes alone, in the same way everywhere, have one structure.

    Numbers that are no sizes (of floats) stay.
    """
    text = "\n".join(
        [
            as_figure(kernel.schedule.definition),
            *map(str, kernel.schedule.steps),
            printer.to_text(kernel.htile),
            kernel.triton.text,
        ]
    )
    names: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        number = match.group()
        return number if len(number) == 1 and number < "3" else names.setdefault(number, f"#{len(names)}")

    return re.sub(r"(?<![\w.])\d+(?![\w.])", rename, text)


def _form(kernel: Kernel, planned: Plan | None, small: ResizedSchedule | None) -> Hashable:
    """The key of a kernel: of several with one key, only the first is run."""
    if planned is None:
        return structure(kernel)
    strides = tuple(t.strides for t in (*kernel.operator.inputs, *kernel.operator.outputs))
    return strides, planned.key if small is None else (planned.definition, small.program)


def _has_whole_loop(kernel: Kernel) -> bool:
    """Whether a loop of a kernel stays one for the sake of Triton, so that those of its small form do too."""
    divided = next((done.program for done in kernel.passes if done.name == "partition_masked_loops"), kernel.htile)
    return any(loop.part == "whole" for part in divided.kernels for loop in loops_in(part.body))


def _resized(scheduled: Schedule, planned: Plan) -> ResizedSchedule | None:
    """The scheduled program at small sizes; None if the meaning of a number in it is not known from its position."""
    try:
        return resized_schedule(scheduled, planned)
    except NeptuneError:
        return None


def _validate_small(
    kernel: Kernel,
    planned: Plan,
    small: ResizedSchedule | None,
    code: CodeOptions,
    target: Target | None,
    mode: str,
    *,
    whole: bool,
) -> Validated:
    """As `_validate`, at small sizes.  Gluon has no small form: its program of tiles is run.

    The program of the kernel is run, resized. If it could not be resized, or was resized wrongly (it differs from the
    definition), the steps are applied to the small definition, and what they make is run: a difference there is the
    compiler's.
    """
    gluon = code.code == "gluon"
    if gluon:
        code = code.in_triton
    if small is not None:
        try:
            result = _compared(lower(small, code, target, each=False, whole=whole), mode, gluon)
        except NeptuneError:
            result = None
        if isinstance(result, Validated):
            return result
    try:
        replayed = lower(small_schedule(kernel.schedule, planned), code, target, whole=whole)
    except NeptuneError as error:
        return Validated(mode, note=f"too large to run, and cannot be resized: {error.reason.splitlines()[0]}")
    if _exceeds(replayed, _SMALL_POINTS, _SMALL_INSTANCES):
        return Validated(mode, note="too large to run, even at small sizes")
    return _validate(replayed, code, mode, gluon)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A form of the program that differs from the definition, and on what.

    Args:
        what: the difference, or an error's text.
    """

    stage: str
    what: Difference | str
    kind: str
    inputs: Arrays
    wanted: Mapping[str, Wanted]
    removes: bool


def _validate(kernel: Kernel, code: CodeOptions, mode: str, gluon: bool = False) -> Validated:
    result = _compared(kernel, mode, gluon)
    if isinstance(result, _Wrong):
        stage, what = _first_stage(kernel, result)
        raise failed(stage, kernel.schedule, code, result.kind, result.inputs, str(what))
    return result


def _compared(kernel: Kernel, mode: str, gluon: bool) -> Validated | _Wrong:
    """Runs what the mode runs, up to the first difference."""
    note = ""
    definition = kernel.schedule.definition
    captured = kernel.operator.captured
    stages: dict[str, None] = {}
    kinds = []
    sets = [(kind, _shared(kernel, inputs)) for kind, inputs in data_sets(definition, captured, _SETS[mode])]
    for kind, inputs, wanted, known in _sets(kernel, sets, mode, gluon):
        removes = may_remove(definition, inputs)
        for stage, run in _stages(kernel, mode, inputs, gluon, known):
            what = _difference(run, wanted, removes)
            if what is _UNKNOWN:
                note = "the emitted module uses what the NumPy form of Triton does not know"
                continue
            if what is not None:
                return _Wrong(stage, what, kind, inputs, wanted, removes)
            stages[stage] = None
        kinds.append(kind)
    if not stages:
        return Validated(mode, note=note)
    return Validated(mode, tuple(stages), tuple(kinds), shapes_of(definition), note)


def _shared(kernel: Kernel, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs, with one value for elements that share memory."""
    strides = input_strides(kernel)
    return {name: sharing(array, strides.get(name)) for name, array in inputs.items()}


_UNKNOWN = "unknown"


def _sets(
    kernel: Kernel, sets: list[tuple[str, dict[str, np.ndarray]]], mode: str, gluon: bool
) -> Iterator[tuple[str, Arrays, dict[str, Wanted], Arrays | None]]:
    """Each set of inputs with its kind, what is wanted, and what the emitted Triton gives, if it was run already.

    "quick" evaluates the definition and runs the kernel on all sets at once. "full", whose programs may be larger,
    holds the arrays of one set at a time.
    """
    definition = kernel.schedule.definition
    by_vectors = repaired_by_vectors(kernel.schedule)
    if mode == "full":
        for kind, inputs in sets:
            yield kind, inputs, expectations(definition, [inputs], by_vectors)[0], None
        return
    all_inputs = [inputs for _, inputs in sets]
    wanted = expectations(definition, all_inputs, by_vectors)
    results = _triton_on_sets(kernel, all_inputs) if is_plain(kernel) and not gluon else None
    for n, (kind, inputs) in enumerate(sets):
        yield kind, inputs, wanted[n], None if results is None else {name: array[n] for name, array in results.items()}


def _stages(
    kernel: Kernel, mode: str, inputs: Arrays, gluon: bool = False, known: Arrays | None = None
) -> list[tuple[str, Run]]:
    """The forms of the program that a mode runs.

    Args:
        known: what the emitted Triton gives, if it was run.
    """
    plain = is_plain(kernel)
    stages: list[tuple[str, Run]] = []
    if mode == "full":
        if tree.stores(kernel.program) <= _LOOP_POINTS:
            stages.append(("loops", lambda: run_in_python(kernel.program, inputs)))
        stages.append(("tiles before the passes", lambda: interpret(kernel.translated, inputs)))
    if mode == "full" or gluon or not plain:
        stages.append(("tiles", lambda: interpret(kernel.htile, inputs)))
    if plain and (mode == "full" or not gluon):
        stages.append(("Triton", lambda: run_triton(kernel, inputs) if known is None else known))
        if mode == "full" and _interpreter():
            stages.append(("Triton in its interpreter", lambda: _interpreted(kernel, inputs)))
    return stages


def _difference(run: Run, wanted: Mapping[str, Wanted], removes: bool) -> Difference | str | None:
    """The error of a form of the program; None if it is right."""
    try:
        return wrong_result(run, wanted, removes)
    except triton_numpy.UnknownSpelling:
        return _UNKNOWN


def _first_stage(kernel: Kernel, wrong: _Wrong) -> tuple[str, Difference | str]:
    """The earliest form of the program that is wrong already, and what is wrong with it."""
    inputs = wrong.inputs
    earlier: list[tuple[str, Run]] = []
    if tree.stores(kernel.program) <= _LOOP_POINTS:
        earlier.append(("the scheduled loops", lambda: run_in_python(kernel.program, inputs)))
    for name, tiles in tile_programs(kernel):
        after = f" after {name}" if name else ""
        earlier.append((f"the program of tiles{after}", lambda tiles=tiles: interpret(tiles, inputs)))
    for name, run in earlier:
        differs = _difference(run, wrong.wanted, wrong.removes)
        if differs is not None:
            return name, differs
    return wrong.stage, wrong.what


def _triton_on_sets(kernel: Kernel, sets: Sequence[Arrays]) -> Arrays | None:
    """What the emitted Triton gives, by output, the first axis the set; None if each set has to be run separately: the
    kernel fails on one, or does not do the same on all."""
    definition = kernel.schedule.definition
    try:
        order, strides = definition.inputs, input_strides(kernel)
        arrays = triton_numpy.run_sets(kernel.triton, sets, input_dtypes(kernel), order, strides)
    except (triton_numpy.UnknownSpelling, numpy_tiles.SetsDiffer, IndexError):
        return None
    return dict(zip(definition.outputs, arrays, strict=True))


def _interpreter() -> bool:
    """Whether Triton interprets kernels in this process."""
    from neptune_lab.errors import LaunchError
    from neptune_lab.runtime import interpreting

    try:
        return interpreting()
    except LaunchError:
        return False


def _interpreted(kernel: Kernel, inputs: Arrays) -> Arrays:
    from neptune_lab.runtime import call_on_arrays, load

    definition = kernel.schedule.definition
    given = [np.asarray(inputs[name], definition.buffer(name).dtype) for name in definition.inputs]
    arrays = call_on_arrays(load(kernel.spec), given)
    return dict(zip(definition.outputs, arrays, strict=True))


def _is_large(kernel: Kernel, mode: str) -> bool:
    return _exceeds(kernel, _POINTS[mode], _INSTANCES[mode])


def _exceeds(kernel: Kernel, most_points: int, most_instances: int) -> bool:
    points = sum(prod(it.extent for it in b.iters) for b in tree.blocks(kernel.schedule.definition))
    instances = sum(prod(axis.extent for axis in k.grid) for k in kernel.htile.kernels)
    return points > most_points or instances > most_instances


def repeat(
    definition: Program,
    steps: str,
    code: CodeOptions,
    inputs: Arrays,
    strides: Mapping[str, Strides] = MappingProxyType({}),
) -> None:
    """What a script of a ValidationError calls: compiles the same program again, and prints the first difference.

    Args:
        strides: of the inputs and outputs that are not contiguous.
    """
    from neptune_lab.operators import Operator

    def unused(*_: object) -> tuple[np.ndarray, ...]:
        raise NotImplementedError

    operator = Operator(
        name=definition.name, title=definition.name, doc="", params={},
        inputs=specs_of(definition, definition.inputs), outputs=specs_of(definition, definition.outputs),
        source="", build=lambda: definition, compute=unused, draw=unused,
    )  # fmt: skip
    kernel = lower(Schedule.replay(operator.with_strides(**strides), steps), replace(code), None)
    wanted = expectations(definition, [inputs], repaired_by_vectors(kernel.schedule))[0]
    removes = may_remove(definition, inputs)
    for stage, run in _stages(kernel, "full", inputs):
        what = _difference(run, wanted, removes)
        print(f"{stage}: {'as the definition' if what is None else what}")


__all__ = ["MODES", "forget", "repeat", "structure", "validate"]
