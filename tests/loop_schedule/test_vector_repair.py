"""Vector repair in loops: a mean and a variance in one pass, and their kin, against the unscheduled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_operators as small
import torch
from loop_texts import figure  # pyright: ignore[reportMissingImports]
from phases import assert_phases_hold
from small_operators import compute, fold, matrix, pair
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.operators import norms
from neptune_lab.repair import VectorRepair

# -- definitions -----------------------------------------------------------------------------------


def companions(program: Program, block: str) -> tuple[str, ...]:
    """The blocks that carry companion sums of `block` from tag to tag; retire_tags takes each before translation."""
    return tuple(b.name for b in tree.blocks(program) if b.companion_of == block and b.role is Role.SCAN)


def layer_norm_statistics(n: int = 3, m: int = 5) -> small.Definition:
    """The mean as a stage of its own, which the variance and an output read."""
    x = matrix(n=n, m=m)
    total = fold("sum", "total", n, m, lambda i, j: x[i, j])
    mean = compute((n,), lambda i: total[i] * (1.0 / m), name="mean")
    squares = fold("sum", "squares", n, m, lambda i, j: (x[i, j] - mean[i]) * (x[i, j] - mean[i]))
    return [x], [mean, compute((n,), lambda i: squares[i] * (1.0 / m), name="variance")]


def three_moments(n: int = 3, m: int = 5) -> small.Definition:
    """Second and third central moment of one map, which the output reads as well."""
    x = matrix(n=n, m=m)
    total = fold("sum", "total", n, m, lambda i, j: x[i, j])
    mean = compute((n,), lambda i: total[i] * (1.0 / m), name="mean")
    d = compute((n, m), lambda i, j: x[i, j] - mean[i], name="d")
    second = fold("sum", "second", n, m, lambda i, j: d[i, j] * d[i, j])
    third = fold("sum", "third", n, m, lambda i, j: d[i, j] * d[i, j] * d[i, j])
    return [x], [compute((n, m), lambda i, j: d[i, j] * second[i] + third[i], name="o")]


def scaled_by_the_mean(n: int = 3, m: int = 5) -> small.Definition:
    """A variance, then a sum that the paper's solver repairs; both read the mean's stage."""
    x = matrix(n=n, m=m)
    total = fold("sum", "total", n, m, lambda i, j: x[i, j])
    mean = compute((n,), lambda i: total[i] * (1.0 / m), name="mean")
    squares = fold("sum", "squares", n, m, lambda i, j: (x[i, j] - mean[i]) * (x[i, j] - mean[i]))
    scaled = fold("sum", "scaled", n, m, lambda i, j: te.exp(x[i, j] - te.tanh(mean[i])))
    return [x], [compute((n,), lambda i: squares[i] + scaled[i], name="o")]


def turning(n: int = 3, m: int = 5) -> small.Definition:
    """A sum of sines about the maximum, copied to the output."""
    x = matrix(n=n, m=m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    s = fold("sum", "s", n, m, lambda i, j: te.sin(x[i, j] - r[i]))
    return [x], [compute((n,), lambda i: s[i] * 1.0, name="o")]


def over_two_dimensions(n: int = 3, m: int = 5, k: int = 2) -> small.Definition:
    """Each element along the rolling loop has k terms, and all count."""
    x = te.placeholder((n, m, k), "float32", name="x")
    j, a = te.reduce_axis((0, m), name="j"), te.reduce_axis((0, k), name="a")
    r = compute((n,), lambda i: te.sum(x[i, j, a], axis=[j, a]), name="r")
    j, a = te.reduce_axis((0, m), name="j"), te.reduce_axis((0, k), name="a")
    o = compute((n,), lambda i: te.sum((x[i, j, a] - r[i] / 10) * (x[i, j, a] - r[i] / 10), axis=[j, a]), name="o")
    return [x], [o]


CHAINS: dict[str, tuple[Callable[[], small.Definition], str, tuple[str, ...]]] = {
    "mean and variance": (small.mean_variance, "r", ("o",)),
    "layer norm statistics": (layer_norm_statistics, "total", ("squares",)),
    "three moments": (three_moments, "total", ("second", "third")),
    "a scalar repair after a vector one": (scaled_by_the_mean, "total", ("squares", "scaled")),
    "a vector repair after a scalar one": (scaled_by_the_mean, "total", ("scaled", "squares")),
    "c - r about the maximum": (lambda: pair(lambda c, r: c - r), "r", ("o",)),
    "(c - r)**2 about the minimum": (lambda: pair(lambda c, r: (c - r) * (c - r), first="min"), "r", ("o",)),
    "fifth moment": (lambda: pair(lambda c, r: (c - r) * (c - r) * (c - r) * (c - r) * (c - r)), "r", ("o",)),
    "softmax entropy": (lambda: pair(lambda c, r: (c - r) * te.exp(c - r)), "r", ("o",)),
    "about a root": (
        lambda: pair(lambda c, r: (c - te.sqrt(r)) * (c - te.sqrt(r)), first="sum", of=lambda c: c * c),
        "r",
        ("o",),
    ),
    "(c / r - 1)**2": (
        lambda: pair(lambda c, r: (c / r - 1.0) * (c / r - 1.0), of=te.abs, dtype="float16"),
        "r",
        ("o",),
    ),
    "sines": (turning, "r", ("s",)),
}


def fused(name: str, tile: int | None, maps: str = "auto", draw: small.Draw = small.normal) -> Schedule:
    definition, first, chain = CHAINS[name]
    sch = small.schedule(definition(), draw)
    loop = f"{first}.j"
    if tile is not None:
        sch.split(loop, (None, tile))
        loop += "0"
    for block in chain:
        sch.rolling_update(block, loop, maps=maps)
    return sch


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", CHAINS)
def test_every_phase_of_every_chain(name: str):
    sch = fused(name, 2)
    assert_phases_hold(sch)
    assert sch.check(seed=1)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("tile", [None, 1, 3, 4, 5])
@pytest.mark.parametrize("name", ["mean and variance", "softmax entropy"])
def test_other_tiles(name: str, tile: int | None):
    sch = fused(name, tile)
    for seed in range(3):
        assert sch.check(seed=seed)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("maps", ["inline", "keep"])
@pytest.mark.parametrize("name", ["layer norm statistics", "three moments", "a scalar repair after a vector one"])
def test_stages_between_kept_or_inlined(name: str, maps: str):
    assert fused(name, 2, maps).check()


def test_leading_zeros():
    """r is 0 in the first tags, where (c/r - 1)**2 is singular."""
    sch = fused("(c / r - 1)**2", 1, draw=small.leading_zeros)
    for seed in range(3):
        assert sch.check(seed=seed)
    assert "guard(" in str(sch)


def test_tiles_past_the_end():
    """Five elements in four tiles of two: the last tile is empty, and nothing is counted there."""
    sch = small.schedule(layer_norm_statistics(m=5))
    sch.split("total.j", (4, 2))
    sch.rolling_update("squares", "total.j0")
    assert_phases_hold(sch)


def over_both(axes: str, n: int, m: int) -> small.Definition:
    """A mean over two dimensions, folded in the order `axes`, and the squares about it."""
    x = te.placeholder((2, n, m), "float32", name="x")

    def total(name: str, term: Callable[..., Any]) -> Any:
        of = {axis: te.reduce_axis((0, extent), name=axis) for axis, extent in (("a", n), ("b", m))}
        return compute((2,), lambda i: te.sum(term(i, of["a"], of["b"]), axis=[of[axis] for axis in axes]), name=name)

    r = total("r", lambda i, a, b: x[i, a, b])
    about = lambda i, a, b: x[i, a, b] - r[i] * (1.0 / (n * m))  # noqa: E731
    return [x], [total("o", lambda i, a, b: about(i, a, b) * about(i, a, b))]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 1), (5, 3)])
@pytest.mark.parametrize(("axes", "loop"), [("ab", "a"), ("ba", "a"), ("ab", "b")])
def test_iterations_of_one_of_two_dimensions_have_no_loop_of_their_own(axes: str, loop: str, n: int, m: int):
    """The other dimension comes before or behind the one that is rolled, and both may have one element."""
    sch = small.schedule(over_both(axes, n, m))
    if axes[0] != loop:
        sch.reorder("r", loop, axes[0])
    sch.rolling_update("o", f"r.{loop}")
    assert_phases_hold(sch)


def test_elements_of_fused_loops_are_counted_up_to_the_last():
    """13 elements in 16 iterations."""
    inputs, (_, variance) = layer_norm_statistics(m=13)
    sch = small.schedule((inputs, [variance]))
    sch.split("total.j", (4, 4))
    sch.rolling_update("squares", sch.fuse("total", "j0", "j1"))
    assert_phases_hold(sch)


@pytest.mark.parametrize("order", [("j1", "j0", "j2"), ("j2", "j1", "j0"), ("j0", "j1", "j2")])
@pytest.mark.parametrize("m", [23, 14])
def test_elements_of_tiles_in_turn_are_counted_as_they_come(m: int, order: tuple[str, str, str]):
    """If only iterations at the end fold fewer elements, they are counted; otherwise the count is refused."""
    sch = small.schedule(layer_norm_statistics(m=m))
    sch.split("total.j", (2, 3, 4))
    sch.reorder("total", *order)
    elements = [[j for j in range(m) if (j // 12, j // 4 % 3, j % 4)[int(order[0][1])] == tag] for tag in range(4)]
    counts = [len(of) for of in elements if of]
    if all(count == counts[0] for count in counts[:-1]) and counts[-1] <= counts[0]:
        sch.rolling_update("squares", f"total.{order[0]}")
        assert_phases_hold(sch)
    else:
        with pytest.raises(RepairRefused, match=f"fold unlike numbers of elements: {', '.join(map(str, counts))};"):
            sch.rolling_update("squares", f"total.{order[0]}")


@pytest.mark.nightly
def test_several_terms_an_element():
    sch = small.schedule(over_two_dimensions())
    sch.split("r.j", (None, 2))
    sch.rolling_update("o", "r.j0")
    assert_phases_hold(sch)


# -- what comes out --------------------------------------------------------------------------------


def test_layer_norm_statistics_in_one_loop(golden: Callable[[str, str], None]):
    sch = fused("layer norm statistics", 2)
    golden("layer_norm_statistics_vector_repair.txt", figure(sch.program))
    assert companions(sch.program, "squares") == ("squares_d1",)


def test_the_record_shows_family_matrix_and_proof():
    sch = fused("mean and variance", 2)
    assert [(p.key, p.wrong) for p in sch.phases] == [
        ("dataflow", False),
        ("naive", True),
        ("repair", True),
        ("repaired", False),
    ]
    repair = sch.phases[2]
    assert isinstance(repair.derivation, VectorRepair)
    record = repair.derivation.as_record()
    assert record["components"] == ["(x - r/5)**2", "x - r/5", "1"]
    assert len(record["matrix"]) == 3
    assert {proof["equation"] for proof in record["proofs"]} == {"Eq. 3", "Eq. 4", "composition"}
    assert "no repair term of its own (step 'prove Eq. 4':" in repair.note
    assert "o_d1 is carried with it" in sch.phases[3].note


def test_the_trace_of_a_vector_repair_is_written():
    from neptune_lab.pipeline.record import schedule_trace

    trace = schedule_trace(fused("mean and variance", 2))
    derivation = next(p.derivation for p in trace.steps[-1].phases if p.derivation is not None)
    assert all(step.ok for step in derivation.steps)
    assert any(step.title.startswith("Close:") for step in derivation.steps)


def test_the_tag_table_shows_the_companion():
    table = fused("mean and variance", 2).tag_table("j0")
    rows = {(row.label, row.kind): row.cells for row in table.rows}
    companion, own = rows["o_d1[0]", "value"], rows["o[0]", "value"]
    assert [cell.should_be for cell in companion if cell is not None] == [None] * 3
    assert own[-1] is not None
    assert own[-1].right
    assert ("o_d1[0]", "repair") in rows


def test_the_companion_before_is_compared_with_nothing_of_the_definition():
    sch = fused("mean and variance", 2)
    sch.retire_tags("o_d1")
    rows = {(row.label, row.kind): row.cells for row in sch.tag_table("j0").rows}
    before = [cell for cell in rows["o_d1_0[0]", "value"] if cell is not None]
    assert len(before) > 1
    assert {cell.should_be for cell in before} == {None}


def test_replayed_it_is_the_same_program():
    sch = fused("layer norm statistics", 2)
    assert Schedule.replay(sch.operator, sch.to_json()).program == sch.program


# -- refusals --------------------------------------------------------------------------------------


def test_a_family_that_cancels_is_refused():
    """r * sum c, made with r = -1 and moved to r = 1e-6, has no digit left of the sum."""
    sch = small.schedule(pair(lambda c, r: c * r))
    with pytest.raises(RepairRefused, match=r"step 'guard' failed: .*for a vector repair, step 'range' failed"):
        sch.rolling_update("o", "r.j")


def test_both_solvers_reasons_are_given():
    sch = small.schedule(pair(lambda c, r: te.tanh(c - r)))
    with pytest.raises(
        RepairRefused, match=r"step 'prove Eq\. 4' failed: .*and for a vector repair, step 'close'"
    ) as it:
        sch.rolling_update("o", "r.j")
    assert it.value.phases[-1].refusal is not None
    assert "in no family of at most 6 sums" in it.value.phases[-1].refusal[2]


@pytest.mark.nightly
def test_a_turning_family_needs_a_stage_before_the_output():
    sch = small.schedule(pair(lambda c, r: te.sin(c - r)))
    with pytest.raises(ScheduleError, match="'o' writes the output 'o', which cannot keep one value per tag"):
        sch.rolling_update("o", "r.j")
    assert sch.steps == ()


# -- float32 ---------------------------------------------------------------------------------------


def welford(x: np.ndarray) -> np.ndarray:
    """Welford's update, an element at a time, in float32."""
    mean = np.zeros(x.shape[0], np.float32)
    squares = np.zeros_like(mean)
    for n in range(x.shape[1]):
        difference = x[:, n] - mean
        mean = mean + difference / np.float32(n + 1)
        squares = squares + difference * (x[:, n] - mean)
    return squares / np.float32(x.shape[1])


def raw_moments(x: np.ndarray) -> np.ndarray:
    """E[x²] - E[x]², in float32."""
    count = np.float32(x.shape[1])
    mean = x.sum(axis=1, dtype=np.float32) / count
    return (x * x).sum(axis=1, dtype=np.float32) / count - mean * mean


def one_kernel(sch: Schedule, total: str, squares: str, rows: int, columns: int) -> Schedule:
    """Layer norm statistics as one kernel: a program for `rows` rows, rolling over tiles of `columns`."""
    sch.tile(total, i=rows, j=columns)
    sch.bind(f"{total}.i0", "blockIdx.x")
    sch.rolling_update(squares, f"{total}.j0")
    for block in ("mean", "variance"):
        sch.reverse_compute_at(block, f"{total}.i0")
    for block in (*companions(sch.program, squares), total):
        sch.retire_tags(block)
    sch.decompose_reduction(squares, f"{squares}.j0")
    for block in sch.blocks:
        if block not in ("mean", "variance"):
            sch.set_scope(block, "local")
    return sch


@pytest.mark.one_in(6)
@pytest.mark.parametrize("mean", [0.0, 1e4, 1e6])
@pytest.mark.parametrize("columns", [8, 16])
def test_one_pass_variance_is_as_stable_as_welfords(mean: float, columns: int):
    x = (np.random.default_rng(5).standard_normal((4, 67)) + mean).astype(np.float32)
    expected = x.astype(np.float64).var(axis=1)

    def error(found: np.ndarray) -> float:
        return float(np.max(np.abs(found - expected) / expected))

    sch = one_kernel(small.schedule(layer_norm_statistics(4, 67)), "total", "squares", 2, columns)
    bound = 2 * error(welford(x)) + 2e-6
    assert error(sch.run(x=x)["variance"]) <= bound
    found_mean, found = nl.compile(sch)(torch.from_numpy(x))
    assert error(found.numpy()) <= bound
    np.testing.assert_allclose(found_mean.numpy(), x.astype(np.float64).mean(axis=1), rtol=1e-6, atol=1e-6)
    if mean:
        assert error(raw_moments(x)) > max(1.0, 10 * bound)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("n", "m", "rows", "columns"), [(4, 8, 2, 4), (3, 5, 2, 2), (5, 37, 2, 16), (3, 7, 2, 7)])
def test_kernels_at_many_sizes(n: int, m: int, rows: int, columns: int):
    sch = one_kernel(small.schedule(layer_norm_statistics(n, m)), "total", "squares", rows, columns)
    assert sch.check()
    x = np.random.default_rng(1).standard_normal((n, m)).astype(np.float32)
    mean, variance = nl.compile(sch)(torch.from_numpy(x))
    np.testing.assert_allclose(mean.numpy(), x.astype(np.float64).mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), x.astype(np.float64).var(axis=1), rtol=1e-5)


@pytest.mark.nightly
def test_half_precision_inputs():
    """The companion is computed in float32 too, as the definition's own sums are."""
    sch = one_kernel(Schedule(norms.layer_norm_statistics(3, 21, dtype="float16")), "x_sum", "deviation_sum", 2, 8)
    assert sch.check()
    x = (np.random.default_rng(2).standard_normal((3, 21)) + 100).astype(np.float16)
    mean, variance = nl.compile(sch)(torch.from_numpy(x))
    np.testing.assert_allclose(mean.numpy(), x.astype(np.float64).mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(variance.numpy(), x.astype(np.float64).var(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    "term", [lambda c, r: te.exp(c - r) + 0.5, lambda c, r: c * c / (r * r) - c / r], ids=["a constant", "two powers"]
)
def test_parts_that_move_at_different_rates_are_refused(term):
    """exp(c - r) + 1/2 has a family; but when r grows by 31, what it adds up is e**31 times what it leaves."""
    sch = small.schedule(pair(term, of=te.abs))
    sch.split("r.j", (None, 2))
    before = sch.program
    with pytest.raises(ScheduleError, match="parts of the term grow at different rates"):
        sch.rolling_update("o", "r.j0")
    assert sch.program is before
