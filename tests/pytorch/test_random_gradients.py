"""Random calls of `nl.attention` that record gradients of some tensors, with mods that stop some of them."""

from __future__ import annotations

import pytest
from random_gradients import draw, judged


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_a_random_call_with_gradients(seed: int):
    word, told = judged(draw(seed))
    assert word in ("right", "refused"), f"{told}\n{draw(seed)}"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 150))
def test_more_random_calls_with_gradients(seed: int):
    word, told = judged(draw(seed))
    assert word in ("right", "refused"), f"{told}\n{draw(seed)}"


def test_random_calls_are_of_every_kind():
    calls = [draw(seed) for seed in range(100)]
    assert {call.harmful for call in calls if call.stopped} == {True, False}
    assert any(not call.stopped for call in calls)
