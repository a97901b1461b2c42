"""What rolling_update and split_k_update refuse, with what help, and that the schedule stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_operators as small
import torch
from tvm import te, tirx

import neptune_lab as nl
from neptune_lab.errors import RepairError, ScheduleError
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.loop_ir.tree import find_block
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.operators import custom, softmax
from neptune_lab.pipeline.record import phase_record

BOTH = pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])


def assert_refused(sch: Schedule, action: Callable[[], object], match: str) -> ScheduleError | RepairError:
    """The action raises our error with a help, and the schedule is what it was, the same objects."""
    program, steps, text = sch.program, sch.steps, str(sch)
    with pytest.raises((ScheduleError, RepairError), match=match) as caught:
        action()
    assert sch.program is program
    assert sch.steps == steps
    assert str(sch) == text
    return caught.value


@BOTH
@pytest.mark.parametrize(
    ("block", "loop", "match"),
    [
        ("s_exp", "s_max.j", "'s_exp' is not a reduction"),
        ("s_max", "s_max.j", "loop 's_max.j' encloses block 's_max' already"),
        ("s_max", "s_sum.j", "block 's_max' comes before loop 's_sum.j'"),
        ("s_sun", "s_max.j", "there is no block 's_sun'[^?]*did you mean 's_sum'"),
        ("s_sum", "s_max.jj", "block 's_max' has no loop 'jj' around it[^?]*did you mean 'j'"),
        ("s_sum", "s_max", "'s_max' does not name a loop"),
        (
            "s_sum",
            "s_max.i",
            "no tensor that it shares with the blocks there runs along loop 'i'|does not reduce along loop 'i'",
        ),
    ],
)
def test_targets_that_cannot_be(update: str, block: str, loop: str, match: str):
    sch = Schedule(softmax.figure1())
    assert_refused(sch, lambda: getattr(sch, update)(block, loop), match)


@BOTH
def test_unknown_policy_for_maps(update: str):
    sch = Schedule(softmax.figure1())
    assert_refused(sch, lambda: getattr(sch, update)("s_sum", "s_max.j", maps="some"), "maps='some' is not a policy")


@BOTH
def test_a_producer_that_is_not_fused_yet(update: str):
    """The middle reduction of a chain of three needs its own update first."""
    x = small.matrix()
    r = small.fold("max", "r", 3, 5, lambda i, j: x[i, j])
    s = small.fold("sum", "s", 3, 5, lambda i, j: te.exp(x[i, j] - r[i]))
    o = small.fold("sum", "o", 3, 5, lambda i, j: te.exp(x[i, j] - r[i]) / s[i])
    sch = small.schedule(([x], [o]))
    sch.split("r.j", (None, 2))
    error = assert_refused(sch, lambda: getattr(sch, update)("o", "r.j0"), "'o' depends on 's', which depends on r")
    assert error.help is not None
    assert f"apply {update}('s'" in error.help


UNPROVABLE: dict[str, tuple[Callable[[], small.Definition], str, str]] = {
    "mean and variance": (small.mean_variance, "prove Eq. 4", "not additive"),
    "c - r with sum": (lambda: small.pair(lambda c, r: c - r), "prove Eq. 4", "not additive"),
    "c * r with max": (lambda: small.pair(lambda c, r: c * r, "max"), "prove Eq. 4", "not monotone"),
    "erf(c - r)": (lambda: small.pair(lambda c, r: te.erf(c - r)), "invert", "erf has no known inverse"),
    "a condition on r": (
        lambda: small.pair(lambda c, r: te.if_then_else(c > r, c, r)),
        "separate",
        "changes with r",
    ),
    "c * r, r may end at 0": (lambda: small.pair(lambda c, r: c * r), "guard", "can be 0 before the loop ends"),
}


# Sums that rolling_update carries as a family (test_vector_repair.py).
CARRIED = ("mean and variance", "c - r with sum")


@pytest.mark.parametrize(
    ("update", "name"),
    [
        *(("rolling_update", name) for name in UNPROVABLE if name not in CARRIED),
        *(("split_k_update", name) for name in UNPROVABLE),
    ],
)
def test_terms_without_a_repair(update: str, name: str):
    definition, step, why = UNPROVABLE[name]
    sch = small.schedule(definition())
    sch.split("r.j", (None, 2))
    error = assert_refused(
        sch, lambda: getattr(sch, update)("o", "r.j0"), f"{update}.*no repair term, step '{step}' failed.*{why}"
    )
    assert isinstance(error, RepairRefused)
    assert error.node == "o"
    assert error.help
    assert [p.key for p in error.phases] == ["dataflow", "naive", "repair"]
    refusal = error.phases[-1].refusal
    assert refusal is not None
    assert refusal.step == step
    assert why in refusal.reason
    kept = phase_record(error.phases[-1]).derivation
    assert kept is not None
    assert kept.reducer == refusal.reducer == reducer_of(find_block(sch.program, "o")[1])
    assert error.phases[-1].derivation is None
    assert [p.wrong for p in error.phases] == [False, True, True]


@BOTH
def test_r_must_be_read_at_the_element_that_the_loop_computes(update: str):
    for index in (lambda i, j: 3 - i, lambda i, j: 0, lambda i, j: j):
        sch = small.schedule(small.elsewhere(index))
        sch.split("r.j", (None, 2))
        assert_refused(
            sch, lambda sch=sch: getattr(sch, update)("o", "r.j0"), r"would read r.*, but only .* is written by then"
        )


def test_a_map_under_the_loop_must_be_read_where_it_is_written():
    sch = small.schedule(small.mirrored())
    sch.split("c.j", (None, 2))
    sch.rolling_update("r", "c.j0")
    assert_refused(sch, lambda: sch.rolling_update("o", "c.j0"), r"would read c\[i, 3 - \(j0 \* 2 \+ j1\)\]")


@BOTH
def test_an_input_of_the_sum_that_is_computed_later(update: str):
    sch = small.schedule(small.late_weight())
    sch.split("r.j", (None, 2))
    assert_refused(sch, lambda: getattr(sch, update)("o", "r.j0"), "before 'w' writes it, once it is under r")
    sch.inline("w")
    getattr(sch, update)("o", "r.j0")
    assert sch.check()


@BOTH
def test_a_loop_of_a_map_that_reads_the_producer(update: str):
    """Under s_exp.j the max would be computed behind the exponential that reads it."""
    sch = Schedule(softmax.figure1())
    sch.split("s_exp.j", (None, 2))
    assert_refused(sch, lambda: getattr(sch, update)("s_sum", "s_exp.j0", maps="inline"), "would read 'xmax")


def test_the_rolling_loop_is_not_parallel():
    sch = small.schedule(small.scaled_first())
    sch.split("c.j", (None, 2))
    sch.bind("c.j0", "blockIdx.x")
    assert_refused(sch, lambda: sch.rolling_update("r", "c.j0"), "'c.j0' is bound to blockIdx.x")
    sch.split_k_update("r", "c.j0")
    sch.split_k_update("o", "c.j0")
    assert sch.check()


def test_tags_are_retired_last():
    sch = Schedule(softmax.figure1())
    sch.materialize_tags("s_max")
    sch.retire_tags("s_max")
    assert_refused(sch, lambda: sch.rolling_update("s_sum", "s_max.j"), "'xmax_0', whose tags are retired")


def test_the_start_value_is_taken_out_last():
    sch = Schedule(softmax.figure1())
    sch.decompose_reduction("s_sum", "s_sum.j")
    error = assert_refused(sch, lambda: sch.rolling_update("s_sum", "s_max.j"), "'s_sum' has no constant start value")
    assert error.help == "apply the primitive before decompose_reduction takes the start value out"


def test_an_output_keeps_no_tags_but_can_be_split():
    rolling = small.schedule(small.maximum_output())
    assert_refused(rolling, lambda: rolling.rolling_update("s", "r.j"), "'r' writes the output 'r'")
    assert small.updated(small.schedule(small.maximum_output()), "split_k_update", "s").check()


@BOTH
def test_tiles_past_the_end(update: str):
    """A tile without an element holds the reducer's identity, and repairs nothing."""
    sch = Schedule(softmax.figure1(cols=4))
    sch.split("s_max.j", (4, 2))
    getattr(sch, update)("s_sum", "s_max.j0")
    assert sch.check()


def test_splits_of_one_element_or_along_the_wrong_nest():
    sch = Schedule(softmax.figure1(cols=4))
    assert_refused(sch, lambda: sch.split_k_update("s_sum", "s_max.j"), "each split would have one element")
    sch = small.updated(small.schedule(small.two_sums()), "split_k_update", "s")
    assert_refused(sch, lambda: sch.split_k_update("q", "r.j0"), "loop 'r.j0' combines the splits of 'r'")


def _largest_quotient(read: Callable[[Any, Any, Any], Any], stage: Callable[[Any, Any], Any] | None = None) -> Any:
    """m is the largest of x / s, s the sum of magnitudes; the output folds what `read` makes of an element, m and n.

    `stage` makes a tensor of its own of an element and m, which `read` gets in place of the element.
    """
    x = te.placeholder((4, 48), "float32", name="x")
    j, k, n = (te.reduce_axis((0, 48), name=name) for name in "jkn")
    s = te.compute((4,), lambda i: te.sum(te.abs(x[i, j]), axis=j), name="s")
    m = te.compute((4,), lambda i: te.max(x[i, k] / s[i], axis=k), name="m")
    y = te.compute((4, 48), lambda i, l: stage(x[i, l] / s[i], m[i]), name="y") if stage else None

    def term(i: Any) -> Any:
        return read(x[i, n] / s[i] if y is None else y[i, n], m[i], n)

    return custom("place", [x], [te.compute((4,), lambda i: te.min(term(i), axis=n), name="place")])


def _moved(op: Any, update: str = "rolling_update") -> Schedule:
    sch = nl.Schedule(op)
    sch.split("s.j", (3, 16))
    sch.reorder("s", "j0", "i", "j1")
    getattr(sch, update)("m", "s.j0")
    return sch


def _place(found: Any, n: Any) -> Any:
    return te.if_then_else(found, n, tirx.const(48, "int32"))


TOLD = {
    "==": _largest_quotient(lambda y, m, n: _place(y == m, n)),
    ">=": _largest_quotient(lambda y, m, n: _place(y >= m, n)),
    "a difference": _largest_quotient(lambda y, m, n: _place(y - m == 0.0, n)),
    "a magnitude": _largest_quotient(lambda y, m, n: _place(te.abs(-m + y) <= 0.0, n)),
    "a quotient": _largest_quotient(lambda y, m, n: _place(y / m == 1.0, n)),
    "a stage": _largest_quotient(lambda d, m, n: _place(d >= 0.0, n), lambda y, m: y - m),
    "joined by or": _largest_quotient(lambda y, m, n: _place(tirx.any(y == m, n == 47), n)),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("op", [pytest.param(op, id=name) for name, op in TOLD.items()])
def test_an_extremum_that_elements_are_compared_with_is_not_moved(op: Any):
    """x / s equals the largest of x / s at one place to the last bit; what h moves equals no element."""
    for update in ("rolling_update", "split_k_update"):
        with pytest.raises(RepairRefused, match="compares 'm' with numbers"):
            _moved(op, update)
    kernel = nl.compile(op, block_kv=16)
    for seed in range(3):
        given = np.random.default_rng(seed).standard_normal((4, 48)).astype(np.float32)
        assert (kernel(torch.from_numpy(given)).numpy() == given.argmax(1)).all()


EDGES = {
    "a constant": lambda y, m, n: te.if_then_else(m >= 0.5, y, 0.0),
    "0 of a difference with a constant": lambda y, m, n: te.if_then_else(m - 0.25 > 0.0, y, 0.0),
    "floor": lambda y, m, n: te.floor(y / m),
    "ceil": lambda y, m, n: te.ceil(y - m),
    "a conversion": lambda y, m, n: (y / m).astype("int32"),
    "halves": lambda y, m, n: te.round(y / m * 0.5),
    "a root": lambda y, m, n: te.sqrt(m - y),
    "a logarithm": lambda y, m, n: te.log(m - y),
    "a pole": lambda y, m, n: 1.0 / (m - y),
}


@pytest.mark.parametrize("read", [pytest.param(read, id=name) for name, read in EDGES.items()])
def test_an_extremum_at_an_edge_is_not_moved(read: Any):
    """The root of max(y) - y is 0 at the largest y, and NaN if the maximum was rounded down."""
    with pytest.raises(RepairRefused, match="has an edge where an element is equal to it"):
        _moved(_largest_quotient(read))


SMOOTH = {
    "steps": lambda y, m, n: te.if_then_else(m == 0.0, 0.0, te.round(y / (m * (1 / 127)))).astype("int8"),
    "an infinity": lambda y, m, n: te.if_then_else(te.abs(m - y) < tirx.const(np.inf, "float32"), y, 0.0),
    "NaN": lambda y, m, n: te.if_then_else(m != m, 0.0, y - m),
    "a tolerance": lambda y, m, n: _place(tirx.any(y == m, te.abs(y - m) <= te.abs(m) * 2e-6), n),
    "an exponential": lambda y, m, n: te.exp(y - m) / (m + 2.0),
}


@pytest.mark.parametrize("read", [pytest.param(read, id=name) for name, read in SMOOTH.items()])
def test_an_extremum_that_is_read_otherwise_is_moved(read: Any):
    assert _moved(_largest_quotient(read)).check()


@BOTH
@pytest.mark.parametrize("reducer", ["max", "sum"])
def test_what_algebra_cancels_is_not_moved_past_a_nan(reducer: str, update: str):
    """x + r - r is x to algebra, and NaN in a kernel as long as r is -inf; so is x * r / r where r is 0."""
    x = small.matrix(n=3, m=6)
    r = small.fold(reducer, "r", 3, 6, lambda i, j: x[i, j])

    def term(i: Any, j: Any) -> Any:
        same = x[i, j] + r[i] - r[i] if reducer == "max" else x[i, j] * r[i] / r[i]
        return te.exp(te.min(same, 10.0))

    sch = small.schedule(([x], [small.fold("sum", "s", 3, 6, term)]))
    with pytest.raises(RepairRefused, match="is NaN, though"):
        small.updated(sch, update, "s")


def test_a_singular_point_that_a_constant_of_the_row_sets_is_named():
    """The sum is complete before the loop of the maximum; the term cannot start from a maximum of minus that sum."""
    x, y = small.matrix("x"), small.matrix("y")
    s = small.fold("sum", "s", 3, 5, lambda i, j: y[i, j])
    r = small.fold("max", "r", 3, 5, lambda i, j: x[i, j])
    o = small.fold("sum", "o", 3, 5, lambda i, j: te.abs(x[i, j]) * s[i] + te.abs(x[i, j]) * r[i])
    sch = Schedule(custom("shifted", [x, y], [o]))
    assert_refused(sch, lambda: sch.rolling_update("o", "r.j"), "'guard' failed: 'r' can be -s before the loop ends")


@BOTH
def test_the_help_names_no_argument_of_the_solver(update: str):
    """A maximum of x times a sum whose sign nothing tells: no primitive has `assumptions=`."""
    x = small.matrix("x")
    s = small.fold("sum", "s", 3, 5, lambda i, j: x[i, j])
    r = small.fold("max", "r", 3, 5, lambda i, j: x[i, j] * s[i])
    sch = Schedule(custom("signs", [x], [r]))
    sch.split("s.j", (None, 1))
    error = assert_refused(sch, lambda: getattr(sch, update)("r", "s.j0"), "may be negative")
    assert "repair='...'" in str(error.help)
    assert "assumptions" not in str(error)


def test_a_root_of_weights_is_fused():
    """exp(x - m) / s is not negative, also while s is 0."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x, -1) * torch.softmax(x, -1)).sqrt().sum(-1)

    x = torch.tensor([[0.5, -1.0, float("-inf"), 2.0, 0.0, 1.0], [float("-inf")] * 3 + [1.0, 0.0, -30.0]])
    op = nl.from_torch(function, x)
    sch = Schedule(op)
    sch.split("softmax_max.j", (None, 2))
    for block in ("softmax_sum", "sum"):
        sch.rolling_update(block, "softmax_max.j0")
    np.testing.assert_allclose(run_wide(sch.program, {"x": x.numpy()})["out"], function(x.double()).numpy())
    torch.testing.assert_close(nl.compile(op, "rolling_update", block_kv=2)(x), function(x))


@pytest.mark.parametrize("runs", [False, True])
def test_the_last_iteration_must_run_if_an_output_shows_it(runs: bool):
    """Of a row of -inf, the sum of exp(c - r) is NaN: the last iteration has no guard, and none of 13 to 15 runs."""
    x = small.matrix(m=13)
    r = small.fold("max", "r", 3, 13, lambda i, j: x[i, j])
    o = small.fold("sum", "o", 3, 13, lambda i, j: te.exp(x[i, j] - r[i]))
    sch = Schedule(custom("shown", [x], [o]))
    rows = np.stack([np.full(13, -np.inf), np.arange(13.0), np.where(np.arange(13) < 5, -np.inf, 0.0)])
    sch.split("r.j", (4, 4))
    if runs:
        sch.rolling_update("o", "r.j0")
        assert np.isnan(run_wide(sch.program, {"x": rows})["o"]).tolist() == [True, False, False]
    else:
        loop = sch.fuse("r", "j0", "j1")
        match = r"block 'o' does not run in the last iteration of loop 'j0j1', where .* < 13 is false"
        assert "roll over the outer" in str(assert_refused(sch, lambda: sch.rolling_update("o", loop), match).help)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (lambda sch: sch.rolling_update("o", "r_tile.j1"), "block 'o' repairs the value that it carries.*has fused it"),
        (lambda sch: sch.privatize_reduction("o.j0"), "block 'o' repairs the value that it carries"),
        (lambda sch: sch.privatize_reduction("r.j0"), "block 'r' keeps one value per tag"),
    ],
)
def test_a_block_that_a_step_has_repaired_is_told_so(step: Callable[[Schedule], object], match: str):
    """It was written with te.sum: the definition need not change."""
    sch = small.schedule(small.pair(lambda c, r: te.exp(c - r)))
    sch.split("r.j", (None, 2))
    sch.rolling_update("o", "r.j0")
    assert "before rolling_update" in str(assert_refused(sch, lambda: step(sch), match).help)
