"""The first form of a compiled program that computes something else, and the first element there that departs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.run import EACH_INPUT
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.pipeline.bisect.departure import Departure, as_index, first_departing, is_close
from neptune_lab.pipeline.bisect.emitted import observe_triton, statement_at
from neptune_lab.pipeline.bisect.loops import block_text, observe_loops, observe_stages
from neptune_lab.pipeline.bisect.observed import Observed
from neptune_lab.pipeline.bisect.tiles import observe_tiles, statement_text
from neptune_lab.pipeline.exceptions import repaired_by_vectors
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.validate.compare import Difference, Wanted, expectations, may_remove
from neptune_lab.pipeline.validate.data import data_sets
from neptune_lab.pipeline.validate.forms import input_dtypes, is_plain, run_triton, tile_programs, wrong_result
from neptune_lab.strict.console import class_of, shown
from neptune_lab.strict.values import check_kind

Arrays = Mapping[str, np.ndarray]

# Stores of a loop program, and elements of a definition, that are run.
_MOST_STORES = 200_000
_MOST_SETS = 12


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """A form of the program.

    Args:
        name: as messages say it.
        run: its outputs on inputs.
        observe: every store on inputs.
        stages: of a loop program, every write that is part of a stage of the definition; else None.
        text: the text of a statement, by its id and its line in the emitted text.
    """

    name: str
    run: Callable[[Arrays], Arrays]
    observe: Callable[[Arrays], Observed]
    text: Callable[[str, int], str]
    stages: Callable[[Arrays], Observed] | None = None


Reference = Callable[..., Any]


def bisect(
    program: Kernel | ir.Program | Program,
    reference: ir.Program | Program | Reference | None = None,
    inputs: Arrays | None = None,
) -> Departure | None:
    """Looks for the first stage of compilation, statement, tile and element whose numbers are wrong.

    A kernel is compared with its definition, evaluated in float64. Each form of the program runs in NumPy: the loop
    program after each step of the schedule, the tiles as translated, the tiles after each pass, the emitted Triton.
    The first form with a wrong result is compared with the form before it, store by store.

    Args:
        program: a compiled operator of small sizes, as of `nl.compile(op, validate="none")`; or an HTile or a loop
            program.
        reference: for a kernel, a function that takes the inputs as arrays, in order, and returns the outputs: the
            definition is compared with it first; default: the definition alone. For a program, the right one of the
            same kind, with the same inputs and outputs.
        inputs: an array for each input, by name, of its shape; default: the kinds of data that validation uses, for
            two HTile programs random numbers.

    Returns:
        The departure; None if nothing departs.

    Raises:
        ScheduleError: the program is too large to run in NumPy; an input is missing or has another shape; the two
            programs are not of one kind.
    """
    if inputs is not None:
        check_kind(
            "inputs", inputs, Mapping, "an array for each input, by name, or None", ScheduleError, help=EACH_INPUT
        )
    if isinstance(program, Kernel):
        return _bisect_kernel(program, reference, inputs)
    if not isinstance(program, ir.Program | Program) or type(program) is not type(reference):
        raise ScheduleError(
            f"bisect compares a kernel with a function, or two programs of one kind; it was given "
            f"{class_of(program)} and {class_of(reference)}",
            help="such as bisect(kernel), or bisect(program, reference) with two HTile programs",
        )
    return _bisect_programs(program, reference, inputs)


def _bisect_kernel(kernel: Kernel, reference: Any, inputs: Arrays | None) -> Departure | None:
    if reference is not None and (isinstance(reference, ir.Program | Program) or not callable(reference)):
        raise ScheduleError(
            f"the reference of a kernel is a function of its inputs, not {class_of(reference)}",
            help="such as bisect(kernel, lambda q, k, v: ...), which takes and returns arrays",
        )
    definition = kernel.schedule.definition
    _check_size(definition, kernel.operator.params)
    sets = (
        data_sets(definition, kernel.operator.captured, _MOST_SETS)
        if inputs is None
        else [("the inputs given", _checked_inputs(definition, inputs))]
    )
    forms = list(_forms(kernel))
    for kind, arrays in sets:
        wanted = expectations(definition, [arrays], repaired_by_vectors(kernel.schedule))[0]
        if reference is not None and (found := _against(reference, definition, wanted, arrays, kind)) is not None:
            return found
        judge = _Judge(wanted, arrays, may_remove(definition, arrays))
        if judge.wrong(forms[-1]) is not None:
            return _locate(definition.outputs, forms, judge, kind)
    return None


def _bisect_programs(program: Any, right: Any, inputs: Arrays | None) -> Departure | None:
    """As `bisect`, of two HTile programs or two loop programs."""
    if isinstance(program, ir.Program):
        before, form = _tiles("the reference", right), _tiles("the program", program)
        dtypes = {t.name: (t.shape, t.dtype) for t in program.tensors}
    else:
        _check_size(program, {})
        before, form = _loops("the reference", right, right), _loops("the program", program, right)
        dtypes = {b.name: (b.shape, b.dtype) for b in program.buffers}
    if (program.inputs, program.outputs) != (right.inputs, right.outputs):
        raise ScheduleError(
            f"the programs take {program.inputs} and {right.inputs}, and return {program.outputs} and {right.outputs}",
            help="give two forms of one program",
        )
    kind = "random numbers" if inputs is None else "the inputs given"
    arrays = inputs if inputs is not None else _random({name: dtypes[name] for name in program.inputs})
    expected, found = before.run(arrays), form.run(arrays)
    for name in program.outputs:
        wrong = ~is_close(np.asarray(expected[name], np.float64), np.asarray(found[name], np.float64))
        if wrong.any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            what = Difference(name, at, float(expected[name][at]), float(found[name][at]))
            return _departure(program.outputs, before, form, what, arrays, kind)
    return None


def _check_size(definition: Program, params: Mapping[str, Any]) -> None:
    """ScheduleError for a program too large to run, with the sizes (of the operator's `params`) to make smaller."""
    count = tree.stores(definition)
    if count > _MOST_STORES:
        sizes = {name: n for name, n in params.items() if isinstance(n, int) and not isinstance(n, bool) and n > 1}
        now = f" than {', '.join(f'{name}={n}' for name, n in sizes.items())}" if sizes else ""
        raise ScheduleError(
            f"{definition.name} has {count:,} elements over all stages; bisect runs at most {_MOST_STORES:,}",
            help=f"make the operator at smaller sizes{now}, compile it with the same template and tiles of 4 to 16, "
            'and give that kernel: nl.bisect(nl.compile(op, block_q=16, block_kv=16, validate="none"))',
        )


def _against(
    reference: Reference, definition: Program, wanted: Mapping[str, Wanted], inputs: Arrays, kind: str
) -> Departure | None:
    """Where the definition departs from the user's reference."""
    given = reference(*(inputs[name] for name in definition.inputs))
    outputs = given if isinstance(given, tuple) else (given,)
    shapes = [tuple(definition.buffer(name).shape) for name in definition.outputs]
    found = [np.shape(output) for output in outputs]
    if found != shapes:
        raise ScheduleError(
            f"the reference returns arrays of shapes {shown(found)}; expected {shapes}",
            help=f"return {', '.join(definition.outputs)}, as a tuple if there are several",
        )
    for name, array in zip(definition.outputs, outputs, strict=True):
        right = np.asarray(array, np.float64)
        stated = wanted[name].wide.reshape(right.shape)
        wrong = ~is_close(right, stated)
        if wrong.any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            what = Difference(name, at, float(right[at]), float(stated[at]))
            return Departure("the definition", "", name, at, "", 0, (), what.found, what.expected, kind, str(what))
    return None


def _random(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(shape).astype("float32" if dtype == "bfloat16" else dtype)
        if "float" in dtype
        else rng.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in tensors.items()
    }


def _checked_inputs(definition: Program, inputs: Arrays) -> Arrays:
    """The inputs as arrays; ScheduleError where one is missing or of another shape."""
    found = {}
    for name in definition.inputs:
        shape = definition.buffer(name).shape
        if name not in inputs or np.shape(inputs[name]) != shape:
            given = np.shape(inputs[name]) if name in inputs else None
            raise ScheduleError(f"input {name!r} has shape {given}; expected {shape}", help=EACH_INPUT)
        found[name] = np.asarray(inputs[name])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Judge:
    """What the results should be on some inputs."""

    wanted: Mapping[str, Wanted]
    inputs: Arrays
    removes: bool

    def wrong(self, form: _Form) -> Difference | str | None:
        """The first wrong element of the form's results, or why it cannot be run to its end; None if it is right."""
        return wrong_result(lambda: form.run(self.inputs), self.wanted, self.removes)


def _locate(outputs: tuple[str, ...], forms: list[_Form], judge: _Judge, kind: str) -> Departure:
    """The departure in the first wrong form; the last form is known to be wrong."""
    before: _Form | None = None
    for form in forms:
        what = judge.wrong(form)
        if what is None:
            before = form
            continue
        return _departure(outputs, before, form, what, judge.inputs, kind)
    raise AssertionError("the last form was wrong before")


def _departure(
    outputs: tuple[str, ...], before: _Form | None, form: _Form, what: Difference | str, inputs: Arrays, kind: str
) -> Departure:
    """The departure of a wrong form from the right one before it."""
    stage, right = form.name, "" if before is None else before.name
    if before is not None:
        same_statements = before.stages is None or form.stages is None
        if before.stages is not None and form.stages is not None:
            expected_run, observed = before.stages(inputs), form.stages(inputs)
        else:
            expected_run, observed = before.observe(inputs), form.observe(inputs)
        place = first_departing(expected_run, observed, exact_units=outputs)
        if place is not None:
            write = observed.writes[place.write]
            return Departure(
                stage, right, write.tensor, as_index(place.element, observed.shapes[write.tensor]),
                form.text(write.statement, write.line), write.line, write.loops, place.found, place.expected, kind,
                str(what), place.writes if same_statements and not observed.stopped else (0, 0),
            )  # fmt: skip
        if isinstance(what, str) and observed.stopped:
            text = form.text("", observed.stopped)
            return Departure(stage, right, "", (), text, observed.stopped, (), np.nan, np.nan, kind, what)
    if isinstance(what, str):
        return Departure(stage, right, "", (), "", 0, (), np.nan, np.nan, kind, what)
    return Departure(stage, right, what.output, what.index, "", 0, (), what.found, what.expected, kind, str(what))


def _forms(kernel: Kernel) -> Iterator[_Form]:
    """The forms of the program in the order in which the compiler makes them."""
    definition = kernel.schedule.definition
    programs = [("the definition", definition)]
    programs += [(f"the loop program after {a.step}", a.outcome.program) for a in kernel.schedule.history]
    last: Program | None = None
    for name, program in programs:
        if program is not last and tree.stores(program) <= _MOST_STORES:
            yield _loops(name, program, definition)
        last = program
    for name, tiles in tile_programs(kernel):
        yield _tiles(f"the program of tiles {f'after {name}' if name else 'as translated'}", tiles)
    if is_plain(kernel):
        yield _triton(kernel)


def _loops(name: str, program: Program, definition: Program) -> _Form:
    return _Form(
        name,
        lambda inputs: run_in_python(program, inputs),
        lambda inputs: observe_loops(program, inputs),
        lambda statement, _: block_text(program, statement),
        lambda inputs: observe_stages(program, definition, inputs),
    )


def _tiles(name: str, tiles: ir.Program) -> _Form:
    return _Form(
        name,
        lambda inputs: interpret(tiles, inputs),
        lambda inputs: observe_tiles(tiles, inputs),
        lambda statement, _: statement_text(tiles, statement),
    )


def _triton(kernel: Kernel) -> _Form:
    order = kernel.schedule.definition.inputs
    return _Form(
        "the emitted Triton",
        lambda inputs: run_triton(kernel, inputs),
        lambda inputs: observe_triton(kernel.triton, kernel.htile, inputs, input_dtypes(kernel), order),
        lambda _, line: statement_at(kernel.triton.text, line),
    )
