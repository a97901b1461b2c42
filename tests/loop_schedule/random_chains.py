"""Chains of reductions drawn at random, as plain tuples that a person can read and paste, and what becomes of them.

A term is a nested tuple such as ("exp", ("sub", "x", "r0")): x and y are inputs at [i, j], k is an input at [i], r0, r1
and so on are the stages before, a number is itself.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import small_operators as small
from hypothesis import strategies as st
from tvm import te, tirx

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.run import as_float64, compare, run
from neptune_lab.loop_schedule import Schedule

Term = Any  # str | float | tuple of an operator's name and terms


def _reducer(name: str, combine: Any, start: Any) -> Any:
    return te.comm_reducer(combine, lambda dtype: tirx.const(start, dtype), name=name)


REDUCERS: dict[str, Any] = {
    **small.REDUCERS,
    "prod": _reducer("prod", lambda a, b: a * b, 1),
    "any": _reducer("any", lambda a, b: tirx.Or(a, b), False),
    "all": _reducer("all", lambda a, b: tirx.And(a, b), True),
}
OPERATORS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": te.max,
    "min": te.min,
    "neg": lambda a: a * -1.0,
    "square": lambda a: a * a,
    "exp": te.exp,
    "tanh": te.tanh,
    "sigmoid": te.sigmoid,
    "sqrt": te.sqrt,
    "rsqrt": te.rsqrt,
    "log": te.log,
    "abs": te.abs,
    "relu": lambda a: te.max(a, small_float(0.0)),
    "above": lambda a, b: a > b,
    "select": lambda condition, a, b: te.if_then_else(condition, a, b),
}


def small_float(value: float) -> Any:
    return tirx.const(value, "float32")


class Stage(NamedTuple):
    reducer: str
    term: Term


@dataclass(frozen=True)
class Chain:
    """Stage number n is named after what it writes, r<n>; the last is the output."""

    stages: tuple[Stage, ...]
    n: int = 2
    m: int = 5
    tile: int = 2
    update: str = "rolling_update"
    retire: bool = True

    def definition(self) -> small.Definition:
        n, m = self.n, self.m
        x, y = small.matrix("x", n, m), small.matrix("y", n, m)
        k = te.placeholder((n,), "float32", name="k")
        made: list[Any] = []

        def build(term: Term, i: Any, j: Any) -> Any:
            if isinstance(term, float):
                return small_float(term)
            if isinstance(term, tuple):
                return OPERATORS[term[0]](*(build(inner, i, j) for inner in term[1:]))
            if term in ("x", "y"):
                return (x if term == "x" else y)[i, j]
            return k[i] if term == "k" else made[int(term[1:])][i]

        def add(number: int, stage: Stage) -> None:
            j, fold = te.reduce_axis((0, m), name="j"), REDUCERS[stage.reducer]
            made.append(small.compute((n,), lambda i: fold(build(stage.term, i, j), axis=j), name=f"r{number}"))

        for number, stage in enumerate(self.stages):
            add(number, stage)
        return [x, y, k], [made[-1]]


def check_chain(chain: Chain) -> str:
    """What became of it: "fused" whole, "part" of it, "refused", or "unfit" where no order of summation keeps the
    numbers.  Whatever was taken equals the definition, and a refusal leaves the schedule as it was."""
    sch: Schedule = small.schedule(chain.definition())
    rng = np.random.default_rng(7)
    inputs = [_inputs(chain, rng, zeros) for zeros in (0, 0, min(2, chain.m - 1))]
    inputs = [drawn for drawn in inputs if _well_conditioned(sch, drawn)]
    names = [name for name in sch.blocks if name.startswith("r")]
    if not inputs or len(names) < 2:
        return "unfit"
    sch.split(f"{names[0]}.j", (None, min(chain.tile, chain.m)))
    taken, before, reason = 0, sch.program, None
    for block in names[1:]:
        first = f"{names[0]}_local"
        loop = f"{first if sch.has_block(first) else names[0]}.j0"
        before = sch.program
        try:
            getattr(sch, chain.update)(block, loop)
        except ScheduleError as error:
            reason = error
            break
        taken += 1
    if reason is not None:
        assert sch.program is before
        assert reason.help, f"refused without help: {reason}"
    if chain.retire:
        for buffer in [b.name for b in sch.program.buffers if b.tagged]:
            sch.retire_tags(buffer)
    for drawn in inputs if taken else ():
        agreement = compare(sch.program, sch.definition, drawn)
        assert agreement, f"{agreement}\n{chain}\n{sch}"
    return "refused" if not taken else "fused" if taken == len(names) - 1 else "part"


def _inputs(chain: Chain, rng: np.random.Generator, zeros: int) -> dict[str, np.ndarray]:
    """Ordinary numbers, after so many leading zeros in each row."""
    x, y = (rng.uniform(0.2, 1.5, (chain.n, chain.m)) * rng.choice([-1, 1], (chain.n, chain.m)) for _ in range(2))
    x[:, :zeros] = 0
    return {"x": x, "y": y, "k": rng.uniform(0.5, 1.5, chain.n)}


def _well_conditioned(sch: Schedule, drawn: dict[str, np.ndarray]) -> bool:
    """Finite and moderate at every stage, and the same when the elements are folded in the other order.

    A definition that divides by 0 on its way and is finite in the end (exp of -inf) is arithmetic of floats, not of
    the reals.
    """
    backwards = {name: value[:, ::-1] if value.ndim == 2 else value for name, value in drawn.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = as_float64(sch.definition)
        one, other = (run(program, each) for each in (drawn, backwards))
    return all(
        np.isfinite(a).all() and (np.abs(a) < 1e8).all() and np.allclose(a, b, rtol=1e-12, atol=0)
        for a, b in ((one[name], other[name]) for name in one if name not in drawn)
    )


# -- the grammar ---------------------------------------------------------------------------------------------------

_INPUTS = st.sampled_from(
    [
        *("x", "x", "y", ("mul", "x", "y"), ("square", "x"), ("abs", "x"), ("exp", "x"), ("tanh", "y"), ("relu", "x")),
        *(("mul", "x", "k"), ("select", ("above", "y", 0.0), "x", 0.0), ("max", "x", "y")),
    ]
)


def _producer_terms(producers: list[str]) -> st.SearchStrategy[Term]:
    """Nothing that grows faster than r: exp(exp(r)) overflows at some tag where it does not in the end."""
    r = st.sampled_from(producers)
    one = st.one_of(
        r,
        r,
        st.tuples(st.sampled_from(["tanh", "sigmoid", "abs", "neg", "log"]), r),
        st.tuples(st.just("add"), r, st.sampled_from([1.0, 0.5, "k"])),
        st.builds(lambda p: ("sqrt", ("add", ("abs", p), 0.25)), r),
        st.builds(lambda p: ("rsqrt", ("add", ("square", p), 0.25)), r),
        st.builds(lambda p: ("add", ("abs", p), 1.0), r),
    )
    return st.one_of(one, one, st.tuples(st.sampled_from(["add", "mul"]), one, one))


def _terms(producers: list[str]) -> st.SearchStrategy[Term]:
    """Mostly a form that can be taken apart; sometimes anything at all."""
    c, r = _INPUTS, _producer_terms(producers)
    apart = st.one_of(
        st.builds(lambda a, b: ("exp", ("sub", a, b)), c, r),
        st.builds(lambda a, b, w: ("mul", ("exp", ("sub", a, b)), w), c, r, c),
        st.tuples(st.just("mul"), c, r),
        st.tuples(st.just("div"), c, r),
        st.builds(lambda a, b, d: ("div", ("exp", ("sub", a, b)), d), c, r, r),
        st.builds(lambda a, b: ("square", ("div", a, b)), c, r),
        st.tuples(st.sampled_from(["sub", "add"]), c, r),
    )
    masked = st.builds(
        lambda term, other: ("select", ("above", "y", 0.0), term, other), apart, st.sampled_from([0.0, "x"])
    )
    leaves = st.one_of(st.sampled_from(["x", "y", "k", 2.0]), st.sampled_from(producers))
    anything = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["add", "sub", "mul", "div", "max", "min"]), inner, inner),
            st.tuples(st.sampled_from(["exp", "tanh", "sigmoid", "sqrt", "abs", "square", "relu", "log"]), inner),
        ),
        max_leaves=4,
    )
    return st.one_of(apart, apart, apart, masked, anything)


def _kept_in_range(first: Stage) -> st.SearchStrategy[Term]:
    """Terms whose repair is right in floats too: they shrink as the first stage's result moves, which is folded of
    the same values."""
    c, weight = first.term, st.sampled_from(["y", "x", 1.0, ("tanh", "x")])
    scaled = st.builds(lambda w: ("div", w, ("add", ("abs", "r0"), 1.0)), weight)
    if first.reducer not in ("max", "min"):
        return scaled
    power = ("sub", c, "r0") if first.reducer == "max" else ("sub", "r0", c)
    return st.one_of(scaled, st.builds(lambda w: ("mul", ("exp", power), w), weight), st.just(("exp", power)))


@st.composite
def chains(draw: Any, most: int = 5) -> Chain:
    """Two to `most` stages: the first folds inputs, each later one a term of inputs and of any stages before it."""
    first = st.tuples(st.sampled_from(["max", "max", "sum", "min", "prod"]), _INPUTS)
    stages = [Stage(*draw(first))]
    count = draw(st.integers(2, most))
    while len(stages) < count:
        producers = [f"r{n}" for n in range(len(stages))]
        term = draw(st.one_of(_terms(producers), _kept_in_range(stages[0])))
        kinds = ["sum", "sum", "sum", "max", "min", "prod"]
        if len(stages) == count - 1:
            kinds += ["any", "all"]
        reducer = draw(st.sampled_from(kinds))
        stages.append(Stage(reducer, ("above", term, 0.0) if reducer in ("any", "all") else term))
    return Chain(
        tuple(stages),
        n=draw(st.integers(1, 3)),
        m=draw(st.integers(2, 7)),
        tile=draw(st.integers(1, 4)),
        update=draw(st.sampled_from(["rolling_update", "rolling_update", "split_k_update"])),
        retire=draw(st.booleans()),
    )
