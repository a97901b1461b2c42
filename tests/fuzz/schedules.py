"""Random steps on random definitions: each refuses, or keeps the numbers; so do the tiles."""

from __future__ import annotations

import random
from typing import Any

from fuzz import draw, judge, special
from fuzz.outcome import Wrong

# How often each primitive is drawn.
WEIGHTS = {
    "rolling_update": 8, "split_k_update": 5, "retire_tags": 3, "materialize_tags": 2, "privatize_reduction": 2,
    "fuse_under": 3, "tile_outermost": 3, "split": 3, "tile": 2, "reorder": 2, "fuse": 2, "bind": 1, "annotate": 1,
    "compute_at": 2, "reverse_compute_at": 3, "inline": 3, "cache_read": 2, "cache_write": 2, "set_scope": 1,
    "decompose_reduction": 2, "cut": 3,
}  # fmt: skip

FUSING = ("rolling_update", "split_k_update")


def draw_steps(rng: random.Random) -> dict[str, Any]:
    """Seeds of steps, and the template they follow, where they follow one."""
    made = draw.options(rng) if rng.random() < 0.5 else {"template": "", "options": {}}
    made["options"].pop("interleave", None)
    return {**made, "steps": [rng.randrange(1 << 30) for _ in range(rng.randint(2, 9))]}


def _fusible(sch: Any) -> list[tuple[str, str]]:
    """(reduction, loop) of each reduction that reads another one's result, and the loops that the other one folds."""
    from neptune_lab.loop_ir.nodes import loads, variables
    from neptune_lab.loop_ir.tree import blocks

    found = []
    reductions = [b for b in blocks(sch.program) if b.is_reduction]
    for block in reductions:
        read = {load.buffer for load in loads(block.body.value)} - {block.writes}
        for producer in reductions:
            folded = {v for it in producer.iters if it.kind == "reduce" for v in variables(it.binding)}
            if producer.writes in read and producer.name != block.name:
                names = [ref for ref in sch.loops(producer.name) if ref.split(".")[1] in folded]
                found += [(block.name, ref) for ref in names]
    return found


def step(rng: random.Random, sch: Any) -> Any:
    """One primitive with blocks, loops and sizes of the program at hand."""
    from neptune_lab.loop_ir.nodes import loads
    from neptune_lab.loop_ir.tree import find_block
    from neptune_lab.loop_schedule.schedule import Step

    block, other = rng.choice(sch.blocks), rng.choice(sch.blocks)
    loops = sch.loops(block)
    (name,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
    if not loops:
        return Step.of("inline", block=block)
    loop, names = rng.choice(loops), [ref.split(".")[1] for ref in loops]
    if name in ("rolling_update", "split_k_update", "fuse_under") and rng.random() < 0.8:
        other, loop = rng.choice(_fusible(sch) or [(other, loop)])
    first = rng.randrange(len(names))
    read = [r.buffer for r in loads(find_block(sch.program, block)[1].body.value)] or ["nothing"]
    maps = rng.choice(["auto", "auto", "keep", "inline"])
    size = rng.randint(1, 4)
    return {
        "rolling_update": lambda: Step.of("rolling_update", block=other, loop=loop, maps=maps),
        "split_k_update": lambda: Step.of("split_k_update", block=other, loop=loop, maps=maps),
        "retire_tags": lambda: Step.of("retire_tags", block=block),
        "materialize_tags": lambda: Step.of("materialize_tags", block=block),
        "privatize_reduction": lambda: Step.of("privatize_reduction", loop=loop),
        "fuse_under": lambda: Step.of("fuse_under", block=other, loop=loop),
        "tile_outermost": lambda: Step.of("tile_outermost", loop=loop, size=size),
        "split": lambda: Step.of("split", loop=loop, factors=rng.choice([[None, size], [size, None]])),
        "tile": lambda: Step.of("tile", block=block, tiles=dict.fromkeys(names[-2:], rng.randint(1, 3))),
        "reorder": lambda: Step.of("reorder", block=block, loops=rng.sample(names, len(names))[:2]),
        "fuse": lambda: Step.of("fuse", block=block, loops=names[first : first + 2]),
        "bind": lambda: Step.of("bind", loop=loop, thread="blockIdx." + rng.choice("xyz")),
        "annotate": lambda: Step.of("annotate", loop=loop, key="num_warps", value=4),
        "compute_at": lambda: Step.of("compute_at", block=other, loop=loop),
        "reverse_compute_at": lambda: Step.of("reverse_compute_at", block=other, loop=loop),
        "inline": lambda: Step.of("inline", block=block),
        "cache_read": lambda: Step.of("cache_read", block=block, buffer=rng.choice(read), scope="shared"),
        "cache_write": lambda: Step.of("cache_write", block=block, scope="local"),
        "set_scope": lambda: Step.of("set_scope", block=block, scope=rng.choice(["local", "shared", "global"])),
        "decompose_reduction": lambda: Step.of("decompose_reduction", block=block, loop=loop),
        "cut": lambda: Step.of("cut", block=other),
    }[name]()


def run_schedule(case: dict[str, Any], outcome: Any) -> None:
    """Applies the steps, each checked on its own; then tiles, where there are any."""
    import neptune_lab as nl
    from fuzz.run_case import check_kernel, check_texts, compare, count_kernel, custom_operator, reference_of
    from neptune_lab.errors import NeptuneError, ScheduleError
    from neptune_lab.loop_ir.run_in_python import run_in_python
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.pipeline import schedule

    op = custom_operator(case["definition"])
    sch = schedule(op, case["template"], **case["options"]) if case["template"] else Schedule(op)
    reference, shapes, dtype, masks = reference_of(case["definition"])
    outputs = list(sch.definition.outputs)
    drawn = {kind: special.draw(kind, shapes, dtype, case["seed"]) for kind in ("ordinary", "leading -inf")}
    wanted = {kind: judge.expectations(reference, inputs, outputs) for kind, inputs in drawn.items()}
    refused: NeptuneError | None = None
    outcome.fused = any(step.primitive in FUSING for step in sch.steps)
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
        outcome.fused |= drawn_step.primitive in FUSING
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
