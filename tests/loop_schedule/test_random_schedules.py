"""Random steps, ours and TVM's mixed: each refuses, or keeps the numbers; and what can be tiled keeps them in HTile."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import small_operators as small
from fuzz.random_steps import step

from neptune_lab.errors import NeptuneError, TileError
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir.run import run_wide
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


def check_random_schedule(op: Operator, seed: int, draws: int) -> int:
    """How many of the drawn steps were taken."""
    rng, sch = random.Random(seed), Schedule(op)
    for _ in range(draws):
        before = sch.program
        try:
            sch.apply(step(rng, sch))
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


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_random_schedules(name: str):
    op = OPERATORS[name]()
    assert sum(check_random_schedule(op, seed, draws=10) for seed in range(2)) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPERATORS)
def test_many_random_schedules(name: str):
    op = OPERATORS[name]()
    for seed in range(1000, 1020):
        check_random_schedule(op, seed, draws=24)
