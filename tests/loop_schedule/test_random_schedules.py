"""Random steps, ours and TVM's mixed: each refuses, or keeps the numbers; and what can be tiled keeps them in HTile."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import small_operators as small

from neptune_lab.errors import NeptuneError, TileError
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir.nodes import loads
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.loop_ir.tree import find_block
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_to_htile import translate
from neptune_lab.operators import Operator, attention, softmax

OPERATORS: dict[str, Callable[[], Operator]] = {
    "figure 1": lambda: softmax.figure1(3, 5),
    "late reader": lambda: small.operator(small.late_reader()),
    "weighted": lambda: small.operator(small.weighted()),
    "two sums": lambda: small.operator(small.two_sums()),
    "map first": lambda: small.operator(small.scaled_first()),
    "prefix": lambda: small.operator(small.prefix()),
    "permuted": lambda: small.operator(small.permuted()),
    "attention": lambda: attention.causal(1, 1, q_len=3, kv_len=4, head_dim=2),
}

# How often each primitive is drawn: those that repair most of all.
WEIGHTS = {
    "rolling_update": 8, "split_k_update": 5, "retire_tags": 2, "materialize_tags": 1, "privatize_reduction": 1,
    "split": 2, "tile": 1, "reorder": 1, "fuse": 1, "bind": 1, "annotate": 1, "compute_at": 1, "reverse_compute_at": 2,
    "fuse_under": 3, "tile_outermost": 2,
    "inline": 1, "cache_read": 1, "cache_write": 1, "set_scope": 1, "decompose_reduction": 1,
}  # fmt: skip


def draw_step(rng: random.Random, sch: Schedule) -> Callable[[], object]:
    """One primitive with blocks, loops and sizes of the program at hand."""
    block, other = rng.choice(sch.blocks), rng.choice(sch.blocks)
    loops = sch.loops(block)
    loop, names = rng.choice(loops), [ref.split(".")[1] for ref in loops]
    first = rng.randrange(len(names))
    read = [r.buffer for r in loads(find_block(sch.program, block)[1].body.value)] or ["nothing"]
    maps = rng.choice(["auto", "auto", "keep", "inline"])
    size = rng.randint(1, 3)
    (name,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
    return {
        "rolling_update": lambda: sch.rolling_update(other, loop, maps),
        "split_k_update": lambda: sch.split_k_update(other, loop, maps),
        "retire_tags": lambda: sch.retire_tags(block),
        "materialize_tags": lambda: sch.materialize_tags(block),
        "privatize_reduction": lambda: sch.privatize_reduction(loop),
        "split": lambda: sch.split(loop, (None, size)),
        "tile": lambda: sch.tile(block, **dict.fromkeys(names[-2:], 2)),
        "reorder": lambda: sch.reorder(block, *rng.sample(names, len(names))[:2]),
        "fuse": lambda: sch.fuse(block, *names[first : first + 2]),
        "bind": lambda: sch.bind(loop, "blockIdx." + rng.choice("xyz")),
        "annotate": lambda: sch.annotate(loop, "num_warps", 4),
        "compute_at": lambda: sch.compute_at(other, loop),
        "reverse_compute_at": lambda: sch.reverse_compute_at(other, loop),
        "fuse_under": lambda: sch.fuse_under(other, loop),
        "tile_outermost": lambda: sch.tile_outermost(loop, size),
        "inline": lambda: sch.inline(block),
        "cache_read": lambda: sch.cache_read(block, rng.choice(read)),
        "cache_write": lambda: sch.cache_write(block),
        "set_scope": lambda: sch.set_scope(block, rng.choice(["local", "shared", "global"])),
        "decompose_reduction": lambda: sch.decompose_reduction(block, loop),
    }[name]


def check_random_schedule(op: Operator, seed: int, draws: int) -> int:
    """How many of the drawn steps were taken."""
    rng, sch = random.Random(seed), Schedule(op)
    for _ in range(draws):
        before = sch.program
        try:
            draw_step(rng, sch)()
        except NeptuneError:
            assert sch.program is before
            continue
        assert sch.check(), f"seed {seed}\n{sch.to_python()}\n{sch}"
    assert Schedule.replay(op, sch.to_json()).program == sch.program
    try:
        tiles = translate(sch.program)
    except TileError:
        return len(sch.steps)
    inputs = op.random_inputs(0)
    found, expected = interpret(tiles, inputs, dtype="float64"), run_wide(sch.definition, inputs)
    for name in sch.definition.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, err_msg=f"seed {seed}\n{sch.to_python()}")
    return len(sch.steps)


@pytest.mark.parametrize("name", OPERATORS)
def test_random_schedules(name: str):
    op = OPERATORS[name]()
    assert sum(check_random_schedule(op, seed, draws=10) for seed in range(2)) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPERATORS)
def test_many_random_schedules(name: str):
    op = OPERATORS[name]()
    for seed in range(1000, 1040):
        check_random_schedule(op, seed, draws=24)
