"""A step that is applied again gives what it gave before, and only if nothing that matters is different."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace

import pytest
from small_operators import pair, schedule
from tvm import te

from neptune_lab.collector import uncollected
from neptune_lab.errors import ScheduleError
from neptune_lab.hashed import Hashed
from neptune_lab.htile.nodes import Literal
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Const, Load, Op, Var
from neptune_lab.loop_schedule import Step, outcome_cache, repairing
from neptune_lab.loop_schedule.outcome import plain
from neptune_lab.loop_schedule.outcome_cache import at_other_sizes, cached_outcome, clear_outcomes
from neptune_lab.loop_schedule.primitives import Primitive


@pytest.fixture(autouse=True)
def nothing_remembered():
    clear_outcomes()
    yield
    clear_outcomes()


def softmax():
    return schedule(pair(lambda c, r: te.exp(c - r)))


def counting():
    """A primitive that renames the program, and the calls of it."""
    calls = []

    def apply(program, **arguments):
        calls.append(arguments)
        return plain("count", replace(program, name=f"{program.name}_{len(calls)}"), "")

    return Primitive("count", apply, True, "", ()), calls


def test_the_same_step_of_an_equal_program_is_applied_once():
    primitive, calls = counting()
    first = cached_outcome(primitive, softmax().program, {"n": 1})
    assert cached_outcome(primitive, softmax().program, {"n": 1}) is first
    assert len(calls) == 1


@pytest.mark.parametrize("other", [True, 1.0, "1", 2])
def test_arguments_that_python_takes_for_equal_are_different(other):
    primitive, calls = counting()
    program = softmax().program
    cached_outcome(primitive, program, {"n": 1})
    cached_outcome(primitive, program, {"n": other})
    assert len(calls) == 2


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (1, True)])
def test_constants_that_python_takes_for_equal_are_different(one, other):
    primitive, calls = counting()
    program = softmax().program

    def with_constant(value):
        last = tree.blocks(program)[-1]
        body = replace(last.body, value=Op("add", (last.body.value, Const(value, "float32"))))
        return tree.replace_block(program, last.name, replace(last, body=body))

    cached_outcome(primitive, with_constant(one), {})
    cached_outcome(primitive, with_constant(other), {})
    assert len(calls) == 2


def test_a_step_that_was_applied_is_refused_where_an_argument_has_another_type():
    sch = softmax()
    sch.apply(Step.of("split", loop="r.j", factors=(None, 1)))
    with pytest.raises(ScheduleError):
        softmax().apply(Step.of("split", loop="r.j", factors=(None, True)))


def test_a_refusal_is_not_remembered():
    refused = []

    def apply(program, **_):
        refused.append(1)
        raise ScheduleError("no")

    primitive = Primitive("refuse", apply, True, "", ())
    program = softmax().program
    for _ in range(2):
        with pytest.raises(ScheduleError):
            cached_outcome(primitive, program, {})
    assert len(refused) == 2


def test_the_store_of_outcomes_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcome_cache, "_MOST", 3)
    primitive, calls = counting()
    program = softmax().program
    for n in range(4):
        cached_outcome(primitive, program, {"n": n})
    cached_outcome(primitive, program, {"n": 3})
    assert len(calls) == 4
    cached_outcome(primitive, program, {"n": 0})
    assert len(calls) == 5


def test_what_is_applied_at_other_sizes_does_not_stand_for_what_was_checked(monkeypatch: pytest.MonkeyPatch):
    """The numeric checks of h run for the program that is compiled, whatever was applied at other sizes before."""
    ran = []
    check = repairing.check_range
    monkeypatch.setattr(repairing, "check_range", lambda loop: ran.append(1) or check(loop))
    steps = [Step.of("split", loop="r.j", factors=(None, 2)), Step.of("rolling_update", block="o", loop="r.j0")]

    def applied():
        sch = softmax()
        for step in steps:
            sch.apply(step)
        return sch

    with at_other_sizes():
        small = applied()
    assert not ran
    full = applied()
    assert ran
    assert full.program == small.program
    assert any("random points" in phase.note for phase in full.phases)


def test_a_hash_is_no_part_of_a_node():
    node = Op("add", (Load("x", (Var("i"),)), Const(1)))
    assert isinstance(node, Hashed)
    fresh = repr(node)
    number = hash(node)
    assert repr(node) == fresh
    other = pickle.loads(pickle.dumps(node))
    assert not hasattr(other, "_hash")  # another process hashes strings differently
    assert other == node
    assert hash(other) == number
    assert hash(replace(node, name="sub")) != number


def test_constants_of_two_signs_of_zero_differ():
    for kind in (Const, Literal):
        assert kind(0.0, "float32") != kind(-0.0, "float32")
        assert kind(0.0, "float32") == kind(0, "float32")
        assert kind(float("-inf"), "float32") == kind(float("-inf"), "float32")
        assert kind(1.0, "float32") != kind(1.0, "float16")
        assert kind(1.0, "float32") != 1.0
    assert len({Op("div", (Var("x"), Const(zero, "float32"))) for zero in (0.0, -0.0)}) == 2


def test_collections_go_on_after_work_that_fails():
    seen = []

    def fails():
        seen.append(gc.isenabled())
        raise ValueError("as asked")

    with pytest.raises(ValueError, match="as asked"):
        uncollected(fails)()
    assert seen == [False]
    assert gc.isenabled()


def test_collections_that_were_off_stay_off():
    gc.disable()
    try:
        uncollected(lambda: None)()
        assert not gc.isenabled()
    finally:
        gc.enable()
