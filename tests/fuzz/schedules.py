"""Random steps on random definitions: each refuses, or keeps the numbers; so do the tiles."""

from __future__ import annotations

import random
from typing import Any

import by_name

from fuzz import draw, judge, special
from fuzz.outcome import Wrong
from fuzz.random_steps import step


def draw_steps(rng: random.Random) -> dict[str, Any]:
    """Seeds of steps, and the template they follow, where they follow one."""
    made = draw.options(rng) if rng.random() < 0.5 else {"template": "", "options": {}}
    made["options"].pop("interleave", None)
    return {**made, "steps": [rng.randrange(1 << 30) for _ in range(rng.randint(2, 9))]}


def run_schedule(case: dict[str, Any], outcome: Any) -> None:
    """Applies the steps, each checked on its own; then tiles, where there are any."""
    import neptune_lab as nl
    from fuzz.run_case import check_kernel, check_texts, compare, count_kernel, custom_operator, reference_of
    from neptune_lab.errors import NeptuneError, ScheduleError
    from neptune_lab.loop_ir.run_in_python import run_in_python
    from neptune_lab.loop_schedule import PRIMITIVES, Schedule

    op = custom_operator(case["definition"])
    sch = by_name.schedule(op, case["template"], **case["options"]) if case["template"] else Schedule(op)
    reference, shapes, dtype, masks = reference_of(case["definition"])
    outputs = list(sch.definition.outputs)
    drawn = {kind: special.draw(kind, shapes, dtype, case["seed"]) for kind in ("ordinary", "leading -inf")}
    wanted = {kind: judge.expectations(reference, inputs, outputs) for kind, inputs in drawn.items()}
    refused: NeptuneError | None = None
    outcome.fused = any(PRIMITIVES[taken.primitive].repairs for taken in sch.steps)
    for seed in case["steps"]:
        before = sch.program
        drawn_step = step(random.Random(seed), sch)
        try:
            sch.apply(drawn_step)
        except NeptuneError as error:
            outcome.met[f"refused {drawn_step.primitive}"] += 1
            if sch.program is not before:
                raise AssertionError(f"{drawn_step} was refused and changed the schedule") from error
            refused = error
            continue
        outcome.met[f"primitive {drawn_step.primitive}"] += 1
        outcome.fused |= PRIMITIVES[drawn_step.primitive].repairs
        for kind, inputs in drawn.items():
            try:
                found = run_in_python(sch.program, inputs)
            except ScheduleError as error:
                raise Wrong(f"loops after {drawn_step}: {error.reason}") from error
            compare(f"loops after {drawn_step}", kind, found, wanted[kind], inputs, masks)
    if random.Random(case["seed"]).random() < 0.05 and not sch.check():
        raise Wrong(f"native loops: {sch.check()}")
    check_texts(sch, each=case["seed"] % 8 == 0)
    if refused is not None and not refused.help:
        raise refused
    if not sch.steps:
        raise refused or ScheduleError("no step was drawn", help="nothing to do")
    try:
        kernel = nl.compile(sch, validate="none")
    except NeptuneError as error:
        if not error.help:
            raise
        return
    count_kernel(case, kernel, outcome)
    check_kernel(case, kernel, reference, shapes, dtype, masks)
