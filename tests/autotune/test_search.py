"""The search: it finds what brute force finds, bears failures, and always comes to an end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from by_name import choice
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.autotune.correction import Settings, fit
from neptune_lab.autotune.cost_model import CostModel
from neptune_lab.autotune.search import Search
from neptune_lab.autotune.space import space
from neptune_lab.errors import TuneError
from neptune_lab.operators import attention
from neptune_lab.pipeline import Choice
from neptune_lab.target import Target

OPERATOR = attention.preset("causal_pf", seq=8192)
H200 = Target("h200")
WHOLE = space(OPERATOR, H200)
# One subspace: the one that the costs below speak of.
SPACE, MODEL = replace(WHOLE, subspaces=WHOLE.subspaces[:1]), CostModel(OPERATOR, H200)

# What each value is worth where the model sees no difference, roughly as on an H200.
FACTORS = {
    ("interleave", 2): 0.9,
    ("loads", "descriptors"): 0.97,
    ("num_warps", 4): 0.98,
    ("num_stages", 4): 1.1,
    ("block_kv", 32): 1.3,
    ("block_q", 64): 1.1,
    ("block_q", 256): 1.4,
}


@cache
def every() -> tuple[Choice, ...]:
    """All candidates; listing them takes as long as some tests, in each worker that collects them."""
    return tuple(SPACE)


def cost(candidate: Choice) -> float:
    """Microseconds of a candidate in these tests."""
    time = MODEL(candidate) * 1e6
    for option in candidate.options:
        time *= FACTORS.get(option, 1.0)
    return time * random.Random(str(candidate)).uniform(1.0, 1.03)


def run(search: Search, time=cost, at_once: int = 8) -> list[Choice]:
    """Asks until the search has finished; all that was asked for."""
    asked: list[Choice] = []
    while new := search.ask(at_once):
        for candidate in new:
            search.tell(candidate, time(candidate))
        asked += new
    assert search.finished
    return asked


@cache
def finished(seed: int) -> tuple[Search, list[Choice]]:
    """A search that has finished, and what it asked for."""
    search = Search(SPACE, MODEL, seed)
    return search, run(search)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(4))
def test_it_comes_near_the_best_of_all_and_asks_for_fewer(seed):
    search, asked = finished(seed)
    ranking = sorted(map(cost, every()))
    assert search.best is not None
    assert search.best[1] <= ranking[2]
    assert len(asked) < len(every())
    assert len(asked) == len(set(asked))


def test_it_learns_what_the_model_does_not_see():
    """Interleaved candidates, which the model takes for equal to others, are asked for once a few are known."""

    def share(candidates: Sequence[Choice]) -> float:
        return sum(c.code.interleave == 2 for c in candidates) / len(candidates)

    assert share(finished(1)[1][16:32]) > share(every())


@pytest.mark.nightly
def test_the_same_seed_asks_for_the_same():
    asked = finished(1)[1]
    assert run(Search(SPACE, MODEL, 1)) == asked
    assert finished(2)[1] != asked


@pytest.mark.nightly
def test_a_candidate_that_fails_is_not_asked_again_and_ends_nothing():
    def half_fail(candidate: Choice) -> float | None:
        return cost(candidate) if candidate.code.loads == "pointers" else None

    search = Search(SPACE, MODEL, 0)
    asked = run(search, half_fail)
    assert len(asked) == len(set(asked))
    assert search.best is not None
    assert search.best[0].code.loads == "pointers"


@pytest.mark.nightly
def test_where_all_fail_it_tries_everything_and_then_ends():
    search = Search(SPACE, MODEL, 0, patience=5)
    asked = run(search, lambda _: None)
    assert search.best is None
    assert len(asked) > 0.9 * len(every())


@pytest.mark.nightly
@settings(max_examples=4)
@given(st.integers(0, 99), st.integers(1, 20), st.integers(0, 19))
def test_answers_may_come_late_and_out_of_order(seed, at_once, delay):
    """As from several workers: up to `delay` candidates are still being measured when the next are asked for."""
    search, rng = Search(SPACE, MODEL, seed, patience=10), random.Random(seed)
    waiting: list[Choice] = []
    seen: set[Choice] = set()
    while not search.finished or waiting:
        new = search.ask(at_once)
        assert not seen & set(new)
        seen |= set(new)
        waiting += new
        assert search.waiting == len(waiting)
        while len(waiting) > delay or (waiting and not new):
            search.tell(candidate := waiting.pop(rng.randrange(len(waiting))), cost(candidate))
    assert search.best is not None
    assert search.best[1] == min(t for t in search.times.values() if t is not None)


def test_a_correction_moves_towards_what_was_measured():
    def at(warps: int, loads: str) -> Settings:
        return ("template", "rolling_update"), ("loads", loads), ("num_warps", warps)

    seen = [(at(w, loads), 0.0, {4: 0.0, 8: 1.0}[w]) for w in (4, 8) for loads in ("pointers", "descriptors")]
    correct = fit(seen)
    assert correct(at(8, "pointers"), 0.0) > correct(at(4, "pointers"), 0.0)
    assert correct(at(8, "pointers"), 0.0) == pytest.approx(correct(at(8, "descriptors"), 0.0))
    # A value that was never seen is what the estimate says, on the usual level.
    assert correct((("template", "split_k_update"),), 2.0) == pytest.approx(2.5)
    assert fit([(at(4, "pointers"), 0.0, None)])(at(8, "pointers"), 7.0) == 7.0


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda s, c: s.tell(choice("rolling_update"), 1.0), "was not asked for"),
        (lambda s, c: (s.tell(c, 1.0), s.tell(c, 1.0)), "was told before"),
        (lambda s, c: s.tell(c, -1.0), "expected a positive number, or None"),
        (lambda s, c: s.tell(c, float("nan")), "expected a positive number, or None"),
    ],
)
def test_wrong_answers_are_refused(answer, message):
    search = Search(SPACE, MODEL)
    with pytest.raises(TuneError, match=message):
        answer(search, search.ask(1)[0])


def test_sizes_are_positive():
    with pytest.raises(TuneError, match="batch=0: expected a positive number"):
        Search(SPACE, MODEL, batch=0)
