"""Backward passes in one kernel whose last row block stores the gradient of the queries: numbers, simulated, and where
a kernel of its own stores it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import neptune_lab as nl
from neptune_lab.htile_to_gluon.joint import finish, joined
from neptune_lab.operators import attention
from neptune_lab.operators.reverse_mode import groups
from tests.gluon.joint_kernels import IN_ORDER, JOINT, backward, simulated


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets few heads have a total at a time."""

    def allow(heads: int) -> None:
        monkeypatch.setattr(finish, "_slots", lambda all_heads, *_: min(heads, all_heads))

    return allow


def finished(op: Any, **options: Any) -> finish.Finish | None:
    return joined(backward(op, IN_ORDER).htile, in_order=True, **options).finish


@pytest.mark.one_in(6)
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("width", [64, 128])
def test_a_total_is_used_by_one_head_after_the_other(few: Callable[[int], None], slots: int, width: int):
    few(slots)
    op = attention.full(2, 2, q_len=256, kv_len=300, head_dim=width)
    found = finished(op)
    assert found == finish.Finish(4, slots, 3)
    source = backward(op, IN_ORDER).source
    assert f"torch.empty(({slots}, 256, {width}), dtype=torch.float32" in source
    assert source.count("](\n") == 2  # launches
    assert simulated(op, code=IN_ORDER) < 3e-3


def random_case(seed: int) -> tuple[Any, int]:
    """Attention without a mask, and how many heads have a total at a time."""
    drawn = random.Random(seed)
    width, batch, heads = drawn.choice((64, 128)), drawn.randint(1, 2), drawn.randint(1, 3)
    tile = 128 if width == 64 else 64
    queries = drawn.choice((tile * drawn.randint(256 // tile, 448 // tile), drawn.randint(257, 400)))
    sizes: Any = {"q_len": queries, "kv_len": drawn.randint(257, 400), "head_dim": width}
    slots = drawn.choice([n for n in range(1, batch * heads + 1) if batch * heads % n == 0])
    return attention.full(batch, heads, **sizes), slots


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 40))])
def test_random_lengths(few: Callable[[int], None], seed: int):
    op, slots = random_case(seed)
    few(slots)
    tile = 128 if op.inputs[0].shape[-1] == 64 else 64
    assert (finished(op) is not None) == (op.inputs[0].shape[2] % tile == 0)
    assert simulated(op, code=IN_ORDER) < 3e-3


@pytest.mark.nightly
def test_heads_that_run_at_the_same_time_each_have_a_total(few: Callable[[int], None]):
    few(1)
    op = attention.full(1, 4, 256, 64)
    assert finished(op) == finish.Finish(4, 1, 2)
    assert finished(op, together=4) == finish.Finish(4, 4, 2)
    code = nl.CodeOptions(code="gluon", joint=True, heads_together=2)
    assert "torch.empty((2, 256, 64), dtype=torch.float32" in backward(op, code).source
    assert simulated(op, code=code) < 3e-3


REFUSED: dict[str, Callable[[], Any]] = {
    "hidden tiles": lambda: attention.causal(1, 2, 256, 64),
    "a window": lambda: attention.window(1, 1, 512, 128, window=200),
    "a tile of queries that is not whole": lambda: attention.full(1, 2, q_len=320, kv_len=256, head_dim=64),
    "heads of a group": lambda: attention.gqa(1, 4, 256, 128, causal=False, kv_heads=2),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", REFUSED)
def test_elsewhere_a_kernel_of_its_own_stores_the_result(
    monkeypatch: pytest.MonkeyPatch, few: Callable[[int], None], name: str
):
    few(1)
    monkeypatch.setattr(groups, "FEWEST_ROWS", 1)
    assert finished(REFUSED[name]()) is None


@pytest.mark.nightly
def test_in_any_order_there_is_no_last_row_block(few: Callable[[int], None]):
    few(1)
    assert joined(backward(attention.full(1, 2, 256, 64), JOINT).htile).finish is None


def test_a_total_of_more_elements_than_an_offset_reaches(monkeypatch: pytest.MonkeyPatch, few: Callable[[int], None]):
    few(1)
    monkeypatch.setattr(finish, "REACHED", 2 * 256 * 64)
    assert finished(attention.full(1, 2, 256, 64)) is None


def test_short_heads_each_have_a_total():
    """Less memory is not worth the time there."""
    assert finished(attention.full(1, 2, 256, 64)) is None
