"""One case through the compiler: accepted, fused, refused, wrong, or another exception than ours."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import by_name
import numpy as np

from fuzz import draw, judge, special
from fuzz.chains import chain, two_axes
from fuzz.definitions import evaluate, tensor_expressions
from fuzz.judge import Expected
from fuzz.outcome import Outcome, Wrong

Case = dict[str, Any]
T = TypeVar("T")


def make(seed: str) -> Case:
    """The case of a seed, as JSON data."""
    rng = random.Random(seed)
    kind = rng.choices(["operator", "schedule", "attention"], [58, 20, 22])[0]
    if (
        kind == "operator" and random.Random(f"{seed} gradient").random() < 0.15
    ):  # the draws of others stay as they were
        kind = "gradient"
    if kind == "operator" and random.Random(f"{seed} long rows").random() < 0.06:
        kind = "long rows"
    if kind == "operator" and random.Random(f"{seed} row vectors").random() < 0.04:
        kind = "row vectors"
    if kind == "operator" and random.Random(f"{seed} typed").random() < 0.15:
        kind = "typed"
    if kind == "attention":
        kind = random.Random(f"{seed} attention").choices([kind, "gluon", "few rows"], [88, 5, 7])[0]
    case: Case = {"kind": kind, "seed": rng.randrange(1 << 30)}
    if kind == "attention":
        from fuzz.attention import draw_attention

        case.update(draw_attention(rng))
    elif kind == "gluon":
        from fuzz.gluon import draw_gluon

        case.update(draw_gluon(rng))
    elif kind == "few rows":
        from fuzz.attention import draw_few_rows

        case.update(draw_few_rows(rng))
    elif kind == "long rows":
        from fuzz.long_rows import draw_long_rows

        case.update(draw_long_rows(random.Random(f"{seed} long rows of a case")))
    elif kind == "row vectors":
        from fuzz.row_vectors import draw_row_vectors

        case.update(draw_row_vectors(random.Random(f"{seed} row vectors of a case")))
    elif kind == "typed":
        from fuzz.typed_cases import draw_typed

        case.update(draw_typed(random.Random(f"{seed} typed of a case")))
    elif kind == "gradient":
        from fuzz.gradients import draw_gradient

        case.update(draw_gradient(rng))
    else:
        drawn = random.Random(f"{seed} definition")
        way = drawn.choices([None, chain, two_axes], [80, 10, 10])[0]
        case["definition"] = draw.definition(rng) if way is None else way(drawn)
        if kind == "schedule":
            from fuzz.schedules import draw_steps

            case.update(draw_steps(rng))
        else:
            case.update(draw.options(rng))
    case["data"] = ["ordinary", *special.some_kinds(rng, 3)]
    return case


def run(case: Case) -> Outcome:
    """Runs a case; every exception becomes an outcome."""
    from neptune_lab.errors import NeptuneError

    outcome = Outcome("accepted")
    try:
        if case["kind"] == "operator":
            _operator(case, outcome)
        elif case["kind"] == "schedule":
            from fuzz.schedules import run_schedule

            run_schedule(case, outcome)
        elif case["kind"] == "gradient":
            from fuzz.gradients import run_gradient

            run_gradient(case, outcome)
        elif case["kind"] == "long rows":
            from fuzz.long_rows import run_long_rows

            run_long_rows(case, outcome)
        elif case["kind"] == "row vectors":
            from fuzz.row_vectors import run_row_vectors

            run_row_vectors(case, outcome)
        elif case["kind"] == "typed":
            from fuzz.typed_cases import run_typed

            run_typed(case, outcome)
        elif case["kind"] == "gluon":
            from fuzz.gluon import run_gluon

            run_gluon(case, outcome)
        else:
            from fuzz.attention import run_attention

            run_attention(case, outcome)
    except Wrong as error:
        outcome.verdict, outcome.detail = "wrong", str(error)
    except NeptuneError as error:
        clear = bool(error.help) and not _is_internal(error)
        outcome.verdict = "refused" if clear else "unclear"
        outcome.detail = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome.verdict = "foreign"
        outcome.detail = f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
    return outcome


def _is_internal(error: Exception) -> bool:
    return error.__cause__ is not None and type(error.__cause__).__module__.startswith("tvm")


def custom_operator(definition: dict[str, Any]) -> Any:
    """The definition as an operator."""
    from neptune_lab.operators import custom

    return custom("f", *tensor_expressions(definition))


def _operator(case: Case, outcome: Outcome) -> None:

    op = custom_operator(case["definition"])
    kernel = by_name.compile(op, case["template"], validate="none", **case["options"])
    count_kernel(case, kernel, outcome)
    check_kernel(case, kernel, *reference_of(case["definition"]))
    if case["seed"] % 8 == 0:
        check_validation(kernel)


def check_validation(kernel: Any) -> None:
    """What was found right is validated too: validation raises no false alarm, and knows all that is emitted."""
    from neptune_lab.choice import CodeOptions
    from neptune_lab.errors import ValidationError
    from neptune_lab.pipeline.validate import validate

    try:
        said = validate(kernel, CodeOptions(), None, "quick")
    except ValidationError as error:
        raise Wrong(f"validation: {error.reason}") from error
    if said.note:
        raise Wrong(f"validation: {said}")


def count_kernel(case: Case, kernel: Any, outcome: Outcome) -> None:
    """Which primitives and passes took part, and whether reductions share a kernel.

    Of one case in four, the texts of its programs are read back; it took a fifth of the time.
    """
    from neptune_lab.loop_schedule import PRIMITIVES

    outcome.met.update(f"primitive {step.primitive}" for step in kernel.schedule.steps)
    texts = case["seed"] % 4 == 0
    if texts:
        check_texts(kernel.schedule, each=case["seed"] % 8 == 0)
        check_text("translation", kernel.translated)
    for done in kernel.passes:
        if done.changed:
            outcome.met[f"pass {done.name}"] += 1
            if texts:
                check_text(done.name, done.program)
    updates = sum(PRIMITIVES[step.primitive].repairs for step in kernel.schedule.steps)
    reductions = sum(len(stage_names) for stage_names in [_reductions(kernel)])
    outcome.fused |= updates > 0 or (reductions > 1 and len(kernel.htile.kernels) < reductions)


def check_text(stage: str, tiles: Any) -> None:
    """The text of the tile program after a stage has all of it."""
    from neptune_lab.htile import from_text, to_text

    _check_text(stage, tiles, to_text, from_text)


def check_texts(schedule: Any, *, each: bool) -> None:
    """The text of the loop program after the last step, or after each phase of each step, has all of it."""
    from neptune_lab.loop_ir.parser import from_text
    from neptune_lab.loop_ir.printer import to_text

    before = schedule.definition
    _check_text("the last step", schedule.program, to_text, from_text)
    for applied in schedule.history if each else ():
        for program in (*(phase.program for phase in applied.outcome.phases), applied.outcome.program):
            if program is not before:
                _check_text(str(applied.step), program, to_text, from_text)
            before = program


def _check_text(stage: str, program: T, to_text: Callable[[T], str], from_text: Callable[[str], T]) -> None:
    from neptune_lab.errors import TextError

    text = to_text(program)
    try:
        same = from_text(text) == program
    except TextError as error:
        raise Wrong(f"text after {stage}: {error.reason}") from error
    if not same:
        raise Wrong(f"text after {stage}: it is read as another program:\n{text}")


def _reductions(kernel: Any) -> list[str]:
    from neptune_lab.loop_ir.tree import blocks

    return [b.name for b in blocks(kernel.schedule.definition) if b.is_reduction]


def reference_of(definition: dict[str, Any]) -> tuple[judge.Evaluate, dict[str, list[int]], str, bool]:
    """How the definition is evaluated, its inputs' shapes and dtype, and whether it has masks."""

    def reference(inputs: Any, dtype: str) -> dict[str, np.ndarray]:
        return evaluate(definition, inputs, dtype)

    return reference, definition["inputs"], definition["dtype"], '"where"' in str(definition).replace("'", '"')


def check_kernel(
    case: Case, kernel: Any, reference: judge.Evaluate, shapes: dict[str, list[int]], dtype: str, masks: bool
) -> None:
    """Tiles interpreted and Triton interpreted, on every kind of data of the case."""
    from neptune_lab.htile.interpret import interpret

    outputs = list(kernel.htile.outputs)
    for n, kind in enumerate(case["data"]):
        inputs = special.draw(kind, shapes, dtype, case["seed"] + n)
        wanted = judge.expectations(reference, inputs, outputs)
        compare("tiles", kind, interpret(kernel.htile, inputs), wanted, inputs, masks)
        compare("Triton", kind, triton_outputs(kernel, inputs, case, n), wanted, inputs, masks)


def triton_outputs(kernel: Any, inputs: dict[str, np.ndarray], case: Case, n: int) -> dict[str, np.ndarray]:
    """The emitted module's outputs by name: run in NumPy, and of one case in ten in Triton's own interpreter."""
    from neptune_lab.pipeline.validate import triton_numpy
    from neptune_lab.runtime import call_on_arrays, load

    definition = kernel.schedule.definition
    if n or case["seed"] % 10:
        dtypes = {b.name: b.dtype for b in definition.buffers}
        made = triton_numpy.run(kernel.triton, inputs, dtypes, definition.inputs)
        return dict(zip(definition.outputs, made, strict=True))
    found = call_on_arrays(load(kernel.spec), [inputs[name] for name in kernel.htile.inputs])
    return dict(zip(kernel.htile.outputs, found, strict=True))


def compare(
    stage: str, kind: str, found: dict[str, np.ndarray], wanted: dict[str, Expected], inputs: dict[str, Any],
    masks: bool, unit: float = 2.0**-20,
) -> None:  # fmt: skip
    """Raises Wrong with the first element that breaks the promise."""
    finite = all(np.isfinite(a).all() for a in inputs.values() if a.dtype.kind == "f")
    for name, want in wanted.items():
        at = judge.wrong(found[name], want, masks=masks, inputs_finite=finite, unit=unit)
        if at is not None:
            got = np.asarray(found[name], "float64").reshape(want.double.shape)[at]
            raise Wrong(
                f"{stage}, {kind}: {name}{list(at)} is {got:g}, expected {want.double[at]:g} "
                f"(float32: {float(want.single[at]):g})"
            )
