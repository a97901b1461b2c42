"""Random steps for the program at hand, drawn from the declarations of primitives and the kinds of their arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neptune_lab.loop_schedule import Primitive, Schedule, Step
    from neptune_lab.loop_schedule.declare import Parameter

# Arguments that name loops.
_LOOPS = ("loop", "loops", "factors", "tiles")
# The largest size of a tile that is drawn.
_LARGEST = 4


def weight(primitive: Primitive) -> int:
    """How often a primitive is drawn: one that repairs most often, one that changes no value rarely, a remark never."""
    if primitive.silent:
        return 0
    if primitive.repairs:
        return 7
    if primitive.ours:
        return 3
    return 1 if primitive.same_values else 2


def step(rng: random.Random, sch: Schedule) -> Step:
    """One primitive with blocks, loops and sizes of the schedule's program; most are legal, some are not."""
    from neptune_lab.loop_schedule import PRIMITIVES, Step

    any_loop = any(sch.loops(block) for block in sch.blocks)
    drawn = [p for p in PRIMITIVES.values() if any_loop or not any(x.kind.control in _LOOPS for x in p.parameters)]
    (primitive,) = rng.choices(drawn, [weight(p) for p in drawn])
    return Step.of(primitive.name, **arguments(rng, primitive, sch))


def arguments(rng: random.Random, primitive: Primitive, sch: Schedule) -> dict[str, Any]:
    """Arguments of one step; of those with defaults, only choices are drawn, every other time."""
    block, loop = _place(rng, primitive, sch)
    made: dict[str, Any] = {}
    for p in primitive.parameters:
        if p.required or (p.kind.choices and rng.random() < 0.5):
            made[p.name] = _value(rng, p, sch, block, loop)
    return made


def _place(rng: random.Random, primitive: Primitive, sch: Schedule) -> tuple[str, str]:
    """A block, and a loop around it or around another block; mostly ones that can be fused, if Neptune fuses them."""
    block = rng.choice(sch.blocks)
    refs = sch.loops(block) or [ref for other in sch.blocks for ref in sch.loops(other)]
    loop = rng.choice(refs) if refs else ""
    controls = {p.kind.control: p.kind for p in primitive.parameters}
    if "block" in controls and "loop" in controls and not controls["loop"].own:
        pairs = fusible(sch) if primitive.ours and rng.random() < 0.8 else []
        block, loop = rng.choice(pairs or [(rng.choice(sch.blocks), loop)])
    return block, loop


def _value(rng: random.Random, p: Parameter, sch: Schedule, block: str, loop: str) -> Any:
    names = [ref.split(".")[1] for ref in sch.loops(block)]
    first = rng.randrange(len(names)) if names else 0
    size = rng.randint(1, _LARGEST)
    by_control: dict[str, Callable[[], Any]] = {
        "block": lambda: block,
        "loop": lambda: loop,
        "loops": lambda: rng.choice([rng.sample(names, len(names))[:2], names[first : first + 2]]),
        "buffer": lambda: rng.choice(_read(sch, block) or ["nothing"]),
        "factors": lambda: rng.choice([[None, size], [size, None]]),
        "tiles": lambda: dict.fromkeys(names[-2:], size),
    }
    if p.kind.control in by_control:
        return by_control[p.kind.control]()
    return rng.choice(p.kind.offered or (size if p.kind.control == "int" else "drawn",))


def _read(sch: Schedule, block: str) -> list[str]:
    from neptune_lab.loop_ir.tree import find_block
    from neptune_lab.loop_ir.walks import loads

    return [load.buffer for load in loads(find_block(sch.program, block)[1].body.value)]


def fusible(sch: Schedule) -> list[tuple[str, str]]:
    """(reduction, loop) of each reduction that reads another one's result, and the loops that the other one folds."""
    from neptune_lab.loop_ir.tree import blocks
    from neptune_lab.loop_ir.walks import loads, variables

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
