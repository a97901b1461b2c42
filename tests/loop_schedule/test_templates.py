"""Templates take any operator: which blocks share a nest, what joins it, and what happens where a fusion is refused."""

from __future__ import annotations

from typing import Any

import by_name
import numpy as np
import pytest
import small_operators as small
import torch
from by_turns import in_turn
from tvm import te

import neptune_lab as nl
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.loop_ir.tvm_compat import TvmRefusal, apply
from neptune_lab.loop_schedule import Schedule, tvm_steps
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.templates import TEMPLATES, choose_template
from neptune_lab.operators import Operator, attention, custom, gemm_chain, norms, performer, softmax

CHAINS = (
    *("l2_norm", "rms_max", "late_reader", "two_sums", "weighted", "two_producers", "maximum_output"),
    *("scaled_first", "late_weight", "mean_variance", "two_inputs"),
)
WAYS: tuple[tuple[str, dict], ...] = (("rolling_update", {}), ("split_k_update", {}), ("split_k_update", {"splits": 2}))


def remarks(sch: Schedule) -> list[str]:
    return [str(dict(s.arguments)["text"]) for s in sch.steps if s.primitive == "remark"]


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("name", "way"), in_turn(CHAINS, WAYS, every=2))
def test_chains(name: str, way: tuple[str, dict]):
    """Rows and columns that divide nothing; the last split of two is shorter, and has tiles past the end."""
    template, options = way
    sch = by_name.apply(template, small.schedule(getattr(small, name)(5, 37)), block_q=4, block_kv=8, **options)
    assert sch.check()
    inputs = sch.operator.random_inputs(1)
    found = interpret(nl.compile(sch).htile, inputs)
    want = run_wide(sch.definition, inputs)
    for output in sch.definition.outputs:
        np.testing.assert_allclose(found[output], want[output], rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("splits", [1, 2, 3, 5, 7, 100])
def test_split_counts_need_not_divide(splits: int):
    op = attention.causal(batch=1, heads=1, q_len=3, kv_len=101, head_dim=8)
    kernel = nl.compile(op, "split_k_update", block_q=4, block_kv=16, config=nl.SplitKConfig(splits=splits))
    assert kernel.schedule.check()
    assert kernel.relative_error() < 1e-3
    # 7 tiles: whole ones to each split, none of them empty.
    wanted = {1: 1, 2: 2, 3: 3, 5: 4, 7: 7, 100: 7}[splits]
    assert kernel.triton.kernels[0].grid[0] == wanted


def test_a_nest_of_attention():
    (nest,) = plan(attention.causal(1, 2, 100, 16).program)
    assert (nest.first, nest.reduce_axis, nest.parallel_axes, nest.row_axis) == ("qk", "j", ("b", "h", "i"), "i")
    assert nest.maps == ("score",)
    assert nest.reductions == ("s_max", "s_sum", "acc")


@pytest.mark.nightly
def test_the_heads_of_a_group_are_rows_in_decoding():
    op = attention.gqa(1, 8, q_len=1, kv_len=100, head_dim=16, kv_heads=2)
    (nest,) = plan(op.program)
    assert (nest.row_axis, nest.row_size) == ("h", 4)
    for template, options in WAYS:
        kernel = by_name.compile(op, template, block_kv=16, **options)
        assert "tl.dot(q, k)" in kernel.source or "tl.dot(q_tile, k)" in kernel.source
        assert kernel.relative_error() < 1e-3


def test_heads_are_no_rows_where_queries_are_or_where_each_has_its_own_keys():
    (nest,) = plan(attention.gqa(1, 8, q_len=5, kv_len=100, head_dim=16, kv_heads=2).program)
    assert nest.row_axis == "i"
    (nest,) = plan(attention.causal(1, 8, q_len=1, kv_len=100, head_dim=16).program)
    assert nest.row_axis is None


def test_performer_is_two_nests():
    keys, queries = plan(performer.performer(1, 2, 40, 16, 20).program)
    assert keys.first == "k_dot"
    assert keys.reductions == ("k_max", "k_exp_sum", "kv_exp", "v_sum")
    assert queries.first == "q_dot"
    assert queries.reductions == ("q_max", "den_exp", "num_exp")


@pytest.mark.nightly
def test_performer_is_two_kernels():
    kernel = nl.compile(performer.performer(1, 2, 40, 16, 20), "rolling_update", block_q=16, block_kv=16)
    assert len(kernel.triton.kernels) == 2
    assert kernel.schedule.check()
    assert kernel.relative_error() < 1e-3


@pytest.mark.nightly
def test_a_nest_that_fills_a_gpu_is_not_split_beside_one_that_does_not():
    """Performer's keys are 8 programs, which are split; its queries are 256 a head already, in tiles of features."""
    op = performer.performer(1, 8, 2048, 64, 256)
    sch = TEMPLATES["split_k_update"](Schedule(op), block_kv=(None, 64), block_q=64)
    assert remarks(sch) == ["The nest of q_dot rolls instead of being split: 256 programs fill the GPU."]
    kernel = nl.compile(sch)
    assert len(kernel.triton.kernels) == 3


def test_gemm_chain_is_one_kernel():
    kernel = nl.compile(gemm_chain.gemm_chain(2, 70, 50, 32, 40), block_q=16, block_kv=16)
    assert len(kernel.triton.kernels) == 1
    # Whole tiles and the last one each in a loop; in both, the second product adds to what the first loop carries.
    assert kernel.source.count("tl.dot(") == 4


def test_a_mean_and_a_variance_are_one_loop():
    kernel = nl.compile(norms.layer_norm_statistics(9, 70), "rolling_update", block_q=16, block_kv=16)
    assert len(kernel.triton.kernels) == 1
    assert not remarks(kernel.schedule)
    assert kernel.relative_error() < 1e-6


def two_rows() -> Operator:
    """The statistics of the rows of two inputs, and a sum over both rows that has no repair, as in a divergence."""
    x, y = small.matrix("x"), small.matrix("y")
    r, q = (small.fold("max", n, 3, 5, lambda i, j, a=a: a[i, j]) for n, a in (("r", x), ("q", y)))
    first = small.fold("sum", "first", 3, 5, lambda i, j: te.tanh(x[i, j] - r[i]))
    s = small.fold("sum", "s", 3, 5, lambda i, j: te.exp(y[i, j] - q[i]))
    o = small.fold("sum", "o", 3, 5, lambda i, j: first[i] + te.tanh(x[i, j] - r[i]) * te.tanh(y[i, j] - q[i]) / s[i])
    return custom("two_rows", [x, y], [o])


@pytest.mark.nightly
def test_what_others_need_is_in_the_loop_before_what_was_refused():
    sch = TEMPLATES["rolling_update"](Schedule(two_rows()), block_kv=2)
    fused = {
        str(dict(s.arguments)["block"]): str(dict(s.arguments)["loop"]) for s in sch.steps if "update" in s.primitive
    }
    assert fused["q"] == fused["s"] == "r.j0"
    assert sch.check()


def test_a_second_walk_over_the_columns_runs_in_tiles():
    """The normalised row is as long as its input: it is written tile by tile, behind the rolling loop."""
    kernel = nl.compile(norms.layer_norm(9, 70), "rolling_update", block_q=16, block_kv=16)
    assert len(kernel.triton.kernels) == 1
    assert kernel.source.count("for j0") >= 2


def test_what_cannot_be_fused_starts_a_loop_of_its_own():
    sch = TEMPLATES["rolling_update"](small.schedule(small.maximum_output(5, 37)), block_q=4, block_kv=8)
    (said,) = remarks(sch)
    assert said.startswith("s starts a loop of its own: block 'r' writes the output 'r'")
    assert sch.check()


@pytest.mark.nightly
@pytest.mark.parametrize(("template", "options"), WAYS)
def test_a_loop_that_is_refused_the_next_keeps_its_tiles(template: str, options: dict):
    """The mean absolute deviation has no repair term: two loops, and none of them holds a whole row."""
    from tvm import te

    x = te.placeholder((9, 300), "float32", name="x")
    j = te.reduce_axis((0, 300), name="j")
    total = te.compute((9,), lambda i: te.sum(x[i, j], axis=j), name="total")
    mean = te.compute((9,), lambda i: total[i] / 300, name="mean")
    spread = te.compute((9,), lambda i: te.sum(te.abs(x[i, j] - mean[i]), axis=j), name="spread")
    op = custom("mean_deviation", [x], [spread], reference=lambda x: np.abs(x - x.mean(1, keepdims=True)).sum(1))
    kernel = by_name.compile(op, template, block_q=4, block_kv=16, **options)
    assert any(said.startswith("spread starts a loop of its own") for said in remarks(kernel.schedule))
    assert "0:300]" not in kernel.outline
    assert kernel.relative_error() < 1e-6


@pytest.mark.nightly
def test_what_cannot_be_combined_from_splits_rolls():
    sch = TEMPLATES["split_k_update"](small.schedule(small.mean_variance(5, 37)), block_q=4, block_kv=8)
    (said,) = remarks(sch)
    assert "rolls instead of being split" in said
    assert "no repair term" in said
    assert sch.check()


@pytest.mark.parametrize(
    ("op", "name", "why"),
    [
        (lambda: attention.causal(4, 32, 2048, 64), "rolling_update", "2048 programs of up to 128 rows are enough"),
        (
            lambda: attention.causal(1, 32, q_len=1, kv_len=8192, head_dim=64),
            "split_k_update",
            "32 programs of one row",
        ),
        (lambda: attention.causal(64, 32, q_len=1, kv_len=8192), "rolling_update", "2048 programs"),
        (lambda: attention.gqa(1, 8, q_len=1, kv_len=4096, kv_heads=2), "split_k_update", "2 programs of up to 4 rows"),
        (lambda: attention.causal(1, 2, 100, 16), "rolling_update", "j has 2 tiles of 64: too few to split"),
        (lambda: softmax.figure1(), "rolling_update", "too few to split"),
        (lambda: small.operator(small.doubled()), "rolling_update", "no reduction to split"),
    ],
)
def test_the_template_is_chosen_by_shape(op, name: str, why: str):
    chosen, reason = choose_template(op().program)
    assert chosen == name
    assert why in reason


@pytest.mark.nightly
def test_the_choice_stands_in_the_record():
    kernel = nl.compile(attention.causal(1, 2, 100, 16))
    assert remarks(kernel.schedule) == ["rolling_update: j has 2 tiles of 64: too few to split."]
    assert not remarks(nl.compile(attention.causal(1, 2, 100, 16), "rolling_update").schedule)


@pytest.mark.parametrize("splits", [0, -1])
def test_no_splits(splits: int):
    with pytest.raises(nl.errors.ScheduleError, match=r"splits=.*expected a positive integer"):
        nl.compile(attention.causal(1, 2, 100, 16), "split_k_update", config=nl.SplitKConfig(splits=splits))


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_refuses_leaves_the_schedule_as_it_was(template: str):
    sch = Schedule(attention.causal(1, 2, 100, 16))
    sch.tile("qk", i=16, j=16)
    before = sch.steps
    with pytest.raises(nl.errors.ScheduleError):
        TEMPLATES[template](sch)
    assert sch.steps == before


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_interrupted_template_leaves_nothing_behind(template: str, monkeypatch: pytest.MonkeyPatch):
    sch = Schedule(softmax.figure1(8, 64))
    sch.remark("Before.")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Schedule, "set_scope", interrupt)
    with pytest.raises(KeyboardInterrupt):
        TEMPLATES[template](sch, block_kv=8)
    assert remarks(sch) == ["Before."]
    assert len(sch.steps) == 1


def _refused_by_tvm(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What TVM refuses from now on."""
    refused: list[str] = []

    def noted(*arguments: Any) -> Program:
        try:
            return apply(*arguments)
        except TvmRefusal as error:
            refused.append(error.reason)
            raise

    monkeypatch.setattr(tvm_steps, "apply", noted)
    return refused


@pytest.mark.one_in(4)
@pytest.mark.parametrize("q_len", [37, 1])
@pytest.mark.parametrize(("template", "options"), [("rolling_update", {}), ("split_k_update", {"splits": 2})])
def test_tvm_is_not_asked_for_what_it_refuses(
    monkeypatch: pytest.MonkeyPatch, q_len: int, template: str, options: dict[str, int]
):
    """The first error of a process takes TVM a second: tiles that divide nothing are scheduled without one."""
    refused = _refused_by_tvm(monkeypatch)
    op = attention.general(1, 4, q_len, 41, 8, mask_mod=lambda b, h, q, k: q >= k, kv_heads=2, empty_rows="zero")
    sch = by_name.apply(template, Schedule(op), block_q=8, block_kv=8, **options)
    assert not refused
    assert sch.check()


@pytest.mark.nightly
def test_nor_for_weights_that_need_the_whole_row(monkeypatch: pytest.MonkeyPatch):
    """What normalises them is computed outside of the loop that they would be moved into."""
    refused = _refused_by_tvm(monkeypatch)

    def attend(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(scores.view(2, 2, 64, 64), -1).to(torch.bfloat16)
        return torch.bmm(weights.view(4, 64, 64).float(), v), weights

    op = nl.from_torch(attend, torch.zeros(4, 64, 64), torch.zeros(4, 64, 16))
    kernel = nl.compile(op, validate="none")
    assert not refused
    assert kernel.schedule.check()
