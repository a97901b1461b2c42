"""Random chains of reductions: every primitive refuses with a reason, or the program keeps its numbers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_operators as small
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tvm import te

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.run import as_float64, compare, run
from neptune_lab.loop_schedule import Schedule

Term = Callable[[Any, Any], Any]
FIRST: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max c": ("max", lambda c: c),
    "min c": ("min", lambda c: c),
    "max |c|": ("max", te.abs),
    "sum c": ("sum", lambda c: c),
    "sum c²": ("sum", lambda c: c * c),
    "sum exp c": ("sum", te.exp),
}
TERMS: dict[str, Term] = {
    "exp(c - r)": lambda c, r: te.exp(c - r),
    "exp(r - c)": lambda c, r: te.exp(r - c),
    "exp(c - r) c": lambda c, r: te.exp(c - r) * c,
    "c / (r + 1)": lambda c, r: c / (r + 1.0),
    "c / r": lambda c, r: c / r,
    "(c / r)²": lambda c, r: (c / r) * (c / r),
    "c r": lambda c, r: c * r,
    "c - r": lambda c, r: c - r,
    "c + 2 r": lambda c, r: c + r * 2.0,
    "c / sqrt(r + eps)": lambda c, r: c / te.sqrt(r + 1e-3),
    "r": lambda c, r: r,
}


def chain(first: str, middle: tuple[str, str] | None, last: tuple[str, str], n: int, m: int) -> small.Definition:
    """r folds x; s, if there is one, folds a term of x and r; o folds a term of x and of the nearest of them."""
    x = small.matrix(n=n, m=m)
    reducer, of = FIRST[first]
    r = small.fold(reducer, "r", n, m, lambda i, j: of(x[i, j]))
    near = r
    if middle is not None:
        f, g = middle
        near = small.fold(f, "s", n, m, lambda i, j: TERMS[g](x[i, j], r[i]))
    f, g = last
    return [x], [
        small.fold(f, "o", n, m, lambda i, j: TERMS[g](x[i, j], near[i] if middle is None else near[i] + r[i]))
    ]


stage = st.tuples(st.sampled_from(sorted(small.REDUCERS)), st.sampled_from(sorted(TERMS)))
CHAIN = {
    "first": st.sampled_from(sorted(FIRST)),
    "middle": st.one_of(st.none(), stage),
    "last": stage,
    "n": st.integers(1, 3),
    "m": st.integers(1, 7),
    "tile": st.integers(1, 4),
    "update": st.sampled_from(["rolling_update", "split_k_update"]),
    "retire": st.booleans(),
}


def check_chain(first, middle, last, n, m, tile, update, retire) -> str:
    """What became of it: "refused", "equal", or "unfit" where no order of summation keeps the numbers."""
    sch: Schedule = small.schedule(chain(first, middle, last, n, m))
    inputs = [sch.operator.random_inputs(seed) for seed in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = run(as_float64(sch.definition), inputs[0])
    if not all(np.isfinite(a).all() and (np.abs(a) < 1e8).all() for a in reference.values()):
        return "unfit"
    sch.split("r.j", (None, min(tile, m)))
    try:
        for block in ("s", "o"):
            if sch.has_block(block):
                loops = "r_local" if sch.has_block("r_local") else "r"
                getattr(sch, update)(block, f"{loops}.j0")
        for buffer in [b.name for b in sch.program.buffers if b.tagged and retire]:
            sch.retire_tags(buffer)
    except ScheduleError as error:
        return "refused" if error.help else f"refused without help: {error}"
    finally:
        for applied, seed in itertools.product(sch.history, range(2)):
            agreement = compare(applied.outcome.program, sch.definition, inputs[seed])
            assert agreement, f"{applied.step}, seed {seed}: {agreement}\n{sch}"
    return "equal"


@settings(max_examples=30, derandomize=True, deadline=None)
@given(**CHAIN)
def test_random_chains(first, middle, last, n, m, tile, update, retire):
    outcome = check_chain(first, middle, last, n, m, tile, update, retire)
    assume(outcome != "unfit")
    assert outcome in ("equal", "refused")


@pytest.mark.nightly
@settings(max_examples=500, deadline=None)
@given(**CHAIN)
def test_many_random_chains(first, middle, last, n, m, tile, update, retire):
    outcome = check_chain(first, middle, last, n, m, tile, update, retire)
    assume(outcome != "unfit")
    assert outcome in ("equal", "refused")


def test_both_ends_are_reached():
    """The random test would be idle if everything were refused, or nothing."""
    common = {"n": 2, "m": 5, "tile": 2, "update": "rolling_update", "retire": True}
    assert check_chain("max c", ("sum", "exp(c - r)"), ("sum", "exp(c - r)"), **common) == "equal"
    assert check_chain("max c", None, ("sum", "c - r"), **common) == "refused"
