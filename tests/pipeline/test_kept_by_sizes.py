"""What is compiled for the shapes of a call is kept, and threads that need it at once compile it once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from neptune_lab.pipeline.kept_by_sizes import MOST, KeptBySizes, Shapes

ONE, TWO = ((1, 2),), ((3, 4),)


def test_threads_that_need_one_at_once_make_it_once():
    begun, go, made = threading.Event(), threading.Event(), []

    def make(shapes: Shapes) -> object:
        begun.set()
        assert go.wait(300)
        made.append(shapes)
        return object()

    kept = KeptBySizes(make)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(kept.of, ONE)
        assert begun.wait(300)
        others = [pool.submit(kept.of, ONE) for _ in range(3)]
        go.set()
        assert {id(other.result(300)) for other in others} == {id(first.result(300))}
    assert made == [ONE]


def test_a_known_one_does_not_wait_for_another():
    go = threading.Event()
    kept = KeptBySizes(lambda shapes: shapes if shapes == ONE else go.wait(300))
    kept.of(ONE)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(kept.of, TWO)
        assert pool.submit(kept.of, ONE).result(300) == ONE
        go.set()
        assert slow.result(300) is True


def test_errors_are_not_kept_and_the_last_ones_are():
    def make(shapes: Shapes) -> Shapes:
        if shapes == ONE and not tried:
            tried.append(shapes)
            raise ValueError("no")
        return shapes

    tried: list[Shapes] = []
    kept = KeptBySizes(make)
    with pytest.raises(ValueError, match="no"):
        kept.of(ONE)
    kept.of(ONE)
    for n in range(MOST):
        kept.of(((n, n),))
        kept.of(ONE)
    assert len(kept) == MOST
    assert kept._found(ONE)
    assert not kept._found(((0, 0),))
