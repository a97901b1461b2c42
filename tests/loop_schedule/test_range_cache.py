"""A loop is run in float32 once, whatever its sizes and names; what decides the outcome is told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import neptune_lab as nl
from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Const, Op
from neptune_lab.loop_schedule import Schedule, range_cache, repairing
from neptune_lab.loop_schedule.float_range import check_range
from neptune_lab.loop_schedule.outcome_cache import clear_outcomes
from neptune_lab.loop_schedule.range_cache import cache_key, cached, clear_ranges
from neptune_lab.loop_schedule.scalar_loop import ScalarLoop
from neptune_lab.operators import attention, rows, softmax
from neptune_lab.operators.base import Operator


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    clear_outcomes()
    clear_ranges()
    yield
    clear_outcomes()
    clear_ranges()


def loops_of(op: Operator, monkeypatch: pytest.MonkeyPatch) -> list[ScalarLoop]:
    """The loops that a rolling update of the operator asks about."""
    asked: list[ScalarLoop] = []
    with monkeypatch.context() as context:
        context.setattr(repairing, "check_range", lambda loop: asked.append(loop) or check_range(loop))
        nl.compile(op, "rolling_update", validate="none")
    return asked


@pytest.mark.nightly
def test_sizes_decide_nothing(monkeypatch: pytest.MonkeyPatch):
    small = loops_of(attention.causal(heads=2, seq=64, head_dim=16), monkeypatch)
    large = loops_of(attention.causal(heads=4, seq=320, head_dim=16), monkeypatch)
    assert [cache_key(a) for a in small] == [cache_key(b) for b in large]
    ran: list[ScalarLoop] = []
    for loop in (*small, *large):
        cached(loop, lambda loop: ran.append(loop) or "why")
    assert not ran  # `check_range` has met them all


def test_what_decides_is_told_apart(monkeypatch: pytest.MonkeyPatch):
    sizes: dict[str, Any] = {"heads": 2, "seq": 64, "head_dim": 16}
    ops = [
        attention.full(**sizes),
        attention.full(**sizes, dtype="float32"),
        attention.causal(**sizes),
        attention.softcap(**sizes, cap=2.0),
        rows.softmax(8, 64),
    ]
    texts = [tuple(cache_key(loop) for loop in loops_of(op, monkeypatch)) for op in ops]
    assert all(texts)
    assert len(set(texts)) == len(ops)


def test_every_part_of_a_loop_is_told_apart():
    found: list[ScalarLoop] = []
    with pytest.MonkeyPatch.context() as context:
        context.setattr(repairing, "check_range", lambda loop: found.append(loop) or "why")
        Schedule(softmax.figure1(4, 8)).rolling_update("s_sum", "s_max.j")
    (loop,) = found
    (producer,) = loop.places
    before, now = loop.places[producer]
    other = Op("mul", (loop.terms[0], Const(-0.0, "float32")))
    changed = [
        loop,
        replace(loop, reducer="max"),
        replace(loop, terms=(other,)),
        replace(loop, terms=(replace(other, args=(loop.terms[0], Const(0.0, "float32"))),)),
        replace(loop, moved=loop.carried),
        replace(loop, places={producer: (now, before)}),
        replace(loop, points={}),
        replace(loop, estimates=frozenset({producer})),
        replace(loop, folds={producer: ("min", loop.folds[producer][1])}),
        replace(loop, inner=frozenset()),
        replace(loop, told=not loop.told),
    ]
    assert len({cache_key(one) for one in changed}) == len(changed)


def test_a_refusal_is_not_remembered_and_the_store_is_bounded(monkeypatch: pytest.MonkeyPatch):
    found: list[ScalarLoop] = []
    with monkeypatch.context() as context:
        context.setattr(repairing, "check_range", lambda loop: found.append(loop) or "why")
        Schedule(softmax.figure1(4, 8)).rolling_update("s_sum", "s_max.j")
    loop, ran = found[0], []

    def refuse(loop: ScalarLoop) -> str:
        ran.append(loop)
        raise RepairError("wrong", step="range", expression="h")

    for _ in range(2):
        with pytest.raises(RepairError):
            cached(loop, refuse)
    assert len(ran) == 2
    monkeypatch.setattr(range_cache, "_MOST", 2)
    for told in (True, False):
        cached(replace(loop, told=told), lambda loop: ran.append(loop) or "why")
    cached(replace(loop, reducer="max"), lambda loop: ran.append(loop) or "why")
    assert len(ran) == 5
    cached(replace(loop, told=True), lambda loop: ran.append(loop) or "why")
    assert len(ran) == 6
