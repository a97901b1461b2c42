"""What cannot be fused is computed by separate kernels, with a remark; the numbers are those of the definition."""

from __future__ import annotations

from functools import cache
from typing import Any

import by_name
import numpy as np
import pytest
import torch
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import ScheduleError, TileError
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import attention, custom, norms, rows
from neptune_lab.pipeline.fallback import schedule_apart
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import translated_and_verified
from neptune_lab.runtime import call_on_arrays
from neptune_lab.trace import links
from tests.pipeline.odd import ODD, operator

INF = np.inf
# Fused whole, in one kernel that reads its elements by pointers.
GATHERED = ("strided", "reversed_reads", "diagonal", "trace", "conv1d", "conv_softmax", "relative_bias", "gather")
GATHERED += ("table_by_permutation", "nested_gather", "reshape_sum", "upsample", "window_norm", "bool_gather")


@cache
def compiled(name: str) -> Kernel:
    """The operator called `name`, compiled as the compiler chooses; the tests here look at one kernel of each."""
    return nl.compile(operator(name))


def assert_same(kernel: Kernel, inputs: dict[str, np.ndarray], tolerance: float = 2e-4) -> None:
    """The kernel's outputs are those of the definition, computed stage by stage in float64."""
    with np.errstate(all="ignore"):
        want = run_wide(kernel.operator.program, inputs)
        found = call_on_arrays(kernel._loaded, tuple(inputs.values()))
    for spec, values in zip(kernel.operator.outputs, found, strict=True):
        expected = want[spec.name]
        scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-30)
        rough = 1e-2 if spec.dtype == "float16" else tolerance
        np.testing.assert_allclose(values, expected, rtol=rough, atol=rough * scale, err_msg=spec.name)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", GATHERED)
def test_reads_that_are_no_tile_mean_the_same_in_htile(name: str):
    kernel = compiled(name)
    assert len(kernel.triton.kernels) == 1
    assert "gather(" in kernel.htile_text
    inputs = kernel.operator.random_inputs(2)
    want = run_wide(kernel.operator.program, inputs)
    found = interpret(kernel.htile, inputs, dtype="float64")
    for spec in kernel.operator.outputs:
        np.testing.assert_allclose(found[spec.name], want[spec.name], rtol=1e-9, atol=1e-9)


def cuts(kernel: Kernel) -> list[str]:
    """The stages that start a part of the definition."""
    return [str(dict(s.arguments)["block"]) for s in kernel.schedule.steps if s.primitive == "cut"]


@pytest.mark.one_in(144)
@pytest.mark.parametrize("name", ODD)
def test_numbers(name: str):
    kernel = compiled(name)
    assert_same(kernel, kernel.operator.random_inputs(0))


# The first stage of a part, by operator, and what the remark says of why it is apart.
APART = {
    "linear_attention": ("den", "z, den have no independent dimension in common"),
    "column_sum_then_product": ("d", "one program would compute all of i of 'd'"),
    "column_scale_then_row_sum": ("r", "one program would compute all of i of 'r'"),
    "qk_norm": ("s", "s and what follows it are computed apart from kn, which is kept in global memory."),
    "chunk_max": ("o", "o is computed apart from m, which is kept in global memory."),
    "norm_of_all": ("o", "o is computed apart from s"),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", APART)
def test_parts_and_why(name: str):
    stage, why = APART[name]
    kernel = compiled(name)
    stages = [b.name for b in tree.blocks(kernel.operator.program)]
    before = stages[: stages.index(stage)]
    assert stage in cuts(kernel)
    assert any(why in said for said in kernel.remarks), kernel.remarks
    for nest in kernel.program.body:
        origins = {b.origin for b in tree.blocks_under(nest)}
        assert not (origins & set(before) and origins - set(before)), "no kernel has stages of both sides of the cut"


@pytest.mark.parametrize(("name", "kernels"), [("nested_norm", 2), ("scores_without_q_and_k", 1)])
def test_sizes_are_taken_where_scores_are_positions_and_where_maps_read_reduced_tiles(name: str, kernels: int):
    """A sum over positions alone is in the loop of its maximum; a map of what a loop reduces tile by tile is apart."""
    kernel = by_name.compile(operator(name), "rolling_update", block_q=2, block_kv=4, validate="none")
    assert len(kernel.htile.kernels) == kernels
    inputs = kernel.operator.random_inputs(0)
    want, found = run_wide(kernel.operator.program, inputs), interpret(kernel.htile, inputs)
    for spec in kernel.operator.outputs:
        np.testing.assert_allclose(found[spec.name], want[spec.name], rtol=1e-5)


def test_whole_numbers_have_a_loop_of_their_own():
    kernel = compiled("whole_numbers")
    why = "o starts a loop of its own: rolling_update('o', 'm.j0'): no repair term, step 'read' failed: 'o_tile' is of"
    assert any(why in said for said in kernel.remarks), kernel.remarks
    assert kernel.relative_error() == 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["qk_norm", "sums_that_wait_for_each_other", "group_norm"])
def test_the_steps_replay_and_the_record_shows_the_cut(name: str):
    kernel = compiled(name)
    again = nl.Schedule.replay(kernel.operator, kernel.schedule.to_json())
    assert again.program == kernel.program
    steps = [step for step in kernel.trace.steps if step.primitive == "cut"]
    assert [step.arguments["block"] for step in steps] == cuts(kernel)


@pytest.mark.nightly
def test_special_values_pass_through_separate_kernels():
    for name in ("column_sum_then_product", "diagonal", "group_norm", "sums_that_wait_for_each_other", "conv1d"):
        kernel = compiled(name)
        for value in (0.0, 1e10, -1e10, INF, -INF, np.nan):
            inputs = kernel.operator.random_inputs(0)
            first = next(iter(inputs.values()))
            first.flat[3] = value
            assert_same(kernel, inputs)
            if abs(value) != 1e10:  # the mean of large equal numbers is rounded, which group_norm makes large
                first[...] = value
                assert_same(kernel, inputs)


@pytest.mark.parametrize("name", ["elementwise", "transpose", "flip", "reshape"])
def test_what_has_no_reduction_is_a_kernel(name: str):
    kernel = compiled(name)
    assert len(kernel.triton.kernels) == 1
    assert not cuts(kernel)


def test_the_record_has_the_phases_that_a_refused_repair_reached():
    """They are shown at the cut, before what the cut itself did."""
    op = operator("no_repair")
    tried = nl.Schedule(op)
    tried.split("m.j", (None, 3))
    with pytest.raises(ScheduleError) as caught:
        tried.rolling_update("o", "m.j0")
    sch = nl.Schedule(op)
    sch.cut("o")
    sch.preface(caught.value.phases)  # pyright: ignore[reportAttributeAccessIssue]
    assert [phase.key for phase in sch.phases] == ["dataflow", "naive", "repair", "cut"]
    assert sch.phases[2].refusal is not None
    assert sch.check()


def test_a_template_that_is_asked_for_is_taken_or_refused():
    with pytest.raises(ScheduleError, match="no reduction"):
        nl.compile(operator("elementwise"), "rolling_update")
    with pytest.raises(TileError, match="read before any store"):
        nl.compile(operator("boolmask"), config=nl.TileConfig(block_q=2, normalise=False))


@pytest.mark.parametrize("name", ["boolmask", "embedding_rms"])
def test_a_map_of_inputs_is_no_kernel_of_its_own(name: str):
    kernel = nl.compile(operator(name), block_q=2)
    assert cuts(kernel) == []
    assert "inline_map" in {step.primitive for step in kernel.schedule.steps}
    assert_same(kernel, kernel.operator.random_inputs(0))


@pytest.mark.nightly
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("sizes", [{}, {"block_q": 2, "block_kv": 3}])
def test_a_template_plans_again_behind_a_refusal(template: str, sizes: dict[str, int]):
    """Two nests, each with a term that no repair fits: what is left of a nest leaves out what has been tiled."""
    options: dict[str, Any] = {"validate": "none", **sizes}
    kernel = by_name.compile(operator("features_with_eps"), template, **options)
    assert any("starts a loop of its own" in remark for remark in kernel.remarks)
    assert_same(kernel, kernel.operator.random_inputs(0))


def test_a_template_that_plans_again_needs_no_cut():
    """The last sum reads the one before: it starts a loop, and the two share a kernel."""
    kernel = compiled("sums_that_wait_for_each_other")
    assert cuts(kernel) == []
    assert any(remark.startswith("o starts a loop of its own") for remark in kernel.remarks)
    assert len(kernel.triton.kernels) == 2


@pytest.mark.nightly
def test_a_loop_that_starts_anew_has_the_phases_of_the_refusal():
    """As after a cut: the step that was refused is in the record up to where the algebra refused."""
    kernel = nl.compile(operator("features_with_eps"), "rolling_update", validate="none")
    started = [s for s in kernel.trace.steps if "starts a loop of its own" in str(s.arguments)]
    assert ["dataflow", "naive", "repair", "remark"] in [[phase.key for phase in step.phases] for step in started]
    links(kernel.trace)


@pytest.mark.nightly
def test_layers_that_repeat_are_parts_of_one_length_after_all_attempts():
    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x + torch.softmax(x, -1)
        return x

    def check(scheduled: nl.Schedule) -> None:
        if len(translated_and_verified(scheduled).kernels) > 1:
            raise TileError("more than one kernel")

    refusal = TileError("the whole is refused")
    scheduled = schedule_apart(nl.from_torch(layers, torch.zeros(2, 8)), refusal, check)
    cuts = [step.arguments for step in scheduled.steps if step.primitive == "cut"]
    assert [dict(arguments)["block"] for arguments in cuts] == [f"softmax_max_{n}" for n in range(2, 6)]


def test_a_stage_that_is_no_kernel_is_named_with_its_line():
    op = operator("column_sum_then_product")

    def check(scheduled: nl.Schedule) -> None:
        if scheduled.has_block("z"):
            raise TileError("a tile of it is too large", help="choose a smaller one")

    match = r"stage 'z' of column_sum_then_product cannot be[^$]*too large\n  in z\[a\] = sum\(y\[j, a\] for j in"
    with pytest.raises(TileError, match=match) as caught:
        schedule_apart(op, ScheduleError("not whole"), check)
    assert caught.value.node == "z"
    assert caught.value.help == "choose a smaller one"


@pytest.mark.nightly
def test_what_is_fused_stays_fused():
    for op in (attention.causal(1, 1, 32, 16), norms.layer_norm(4, 64), rows.softmax(4, 40)):
        assert not cuts(nl.compile(op))


def test_a_cut_keeps_what_is_before_it_apart():
    sch = nl.Schedule(rows.softmax(rows=6, cols=24))
    sch.cut("s_sum")
    with pytest.raises(ScheduleError, match="a cut separates block 's_max' from block 's_sum'"):
        sch.rolling_update("s_sum", "s_max.j")
    sch.split("s_sum.j", (None, 8))
    assert sch.check()
    sch.undo()
    sch.undo()
    sch.rolling_update("s_sum", "s_max.j")
    assert sch.check()


def test_cuts_that_are_refused():
    sch = nl.Schedule(rows.softmax(rows=6, cols=24))
    with pytest.raises(ScheduleError, match="nothing comes before block 's_max'"):
        sch.cut("s_max")
    sch.rolling_update("s_sum", "s_max.j")
    with pytest.raises(ScheduleError, match="block 's_sum' shares a nest with"):
        sch.cut("s_sum")


def test_a_refusal_of_given_tiles_says_that_parts_would_do():
    """The weights are read backwards where they are computed: refused in one kernel, and right in several."""
    x = te.placeholder((4, 48), "float32", name="x")
    j, k = te.reduce_axis((0, 48), name="j"), te.reduce_axis((0, 48), name="k")
    most = te.compute((4,), lambda i: te.max(x[i, j], axis=j), name="most")
    weight = te.compute((4, 48), lambda i, c: te.exp(x[i, c] - most[i]), name="weight")
    total = te.compute((4,), lambda i: te.sum(weight[i, 47 - k], axis=k), name="total")
    out = te.compute((4, 48), lambda i, c: weight[i, c] / total[i], name="out")
    op = custom("backwards", [x], [out])
    with pytest.raises(TileError, match="leave out the template and its sizes") as refused:
        nl.compile(op, block_q=1, block_kv=16)
    assert str(refused.value).count("help:") == 1
    assert nl.compile(op).relative_error() < 1e-6
