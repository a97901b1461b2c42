"""`nl.attention` on random calls with special values; the generator and its judge are call_cases.py and
call_judge.py."""

from __future__ import annotations

import os

import pytest
from call_attempt import BAD
from call_cases import Case, draw
from call_judge import Verdict, compare, judge, shrunk
from random_calls import run


@pytest.mark.one_in(18)
@pytest.mark.parametrize("seed", range(10))
def test_a_random_call(seed):
    verdict = judge(draw(seed))
    assert verdict.word in ("right", "refused"), f"{verdict.told}\n{draw(seed)}"


@pytest.mark.nightly
def test_250_random_calls():
    words = run(250, seed=1000, jobs=os.cpu_count() or 1)
    assert not any(words[word] for word in BAD)
    assert words["right"] > 237


def test_the_judge_sees_what_is_wrong():
    import math

    import torch

    v = torch.ones(1, 1, 2, 2)
    good = torch.tensor([[[[1.0, math.nan], [math.inf, 0.0]]]])
    one = torch.ones(1, 1, 2, 1)
    assert compare(good, good, good.double(), one, v) == Verdict("right")
    for at, value in (((0, 0), 1.01), ((0, 0), math.nan), ((0, 1), 0.0), ((1, 0), 3.0), ((1, 1), math.inf)):
        bad = good.clone()
        bad[(0, 0, *at)] = value
        assert compare(bad, good, good.double(), one, v).word == "wrong"


def test_the_judge_compares_row_by_row_what_rounding_leaves():
    import torch

    v, good = torch.ones(1, 1, 2, 1), torch.zeros(1, 1, 2, 1)
    size = torch.tensor([1.0, 1e6]).reshape(1, 1, 2, 1)
    for row, decided, word in ((0, False, "wrong"), (1, False, "right"), (1, True, "wrong")):
        bad = good.clone()
        bad[0, 0, row] = 0.01
        rows = torch.full((1, 1, 2, 1), decided)
        assert compare(bad, good, good.double(), size, v, rows).word == word


def test_shrinking_keeps_the_verdict_and_drops_the_rest():
    case = Case((2, 3, 1, 17, 24, 16, 8), "float32", "(s) * 2.0", "(q >= kv) & (kv < 5)", (("k", "nan", 3),), 0.5, 0)
    small = shrunk(case, lambda c: Verdict("wrong" if "kv < 5" in c.mask else "right"))
    assert small == Case((1, 1, 1, 1, 1, 1, 1), "float32", "", "kv < 5", (), None, 0)
