"""Traffic by kernel: the nests of a loop program and the emitted kernels, whose sums are those of the whole."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.operators import attention, gemm_chain, norms, softmax
from neptune_lab.pipeline.schedule_traffic import schedule_traffic
from neptune_lab.target import Target

FIELDS = ("read", "written", "moved", "chip", "operations")
OPERATORS = [
    lambda: softmax.figure1(rows=2, cols=8),
    lambda: attention.causal(heads=2, seq=32, head_dim=16),
    lambda: norms.rms_norm_quantize(rows=4, cols=16),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", OPERATORS, ids=["figure1", "attention", "rms_norm"])
def test_the_stages_of_every_form_add_up_to_it(make):
    found = nl.compile(make(), validate="none").traffic("h200", blocks=1)
    for form in found.forms:
        for name in FIELDS:
            assert sum(getattr(stage, name) for stage in form.stages) == getattr(form, name), (form.name, name)


def test_a_stage_of_the_definition_is_a_nest_with_its_own_bytes():
    rows, cols = 2, 8
    op = softmax.figure1(rows=rows, cols=cols)
    stages = {s.name: s for s in nl.compile(op, validate="none").traffic("h200", blocks=1).definition.stages}
    assert list(stages) == ["s_max", "s_exp", "s_sum"]
    matrix, vector = 4 * rows * cols, 4 * rows
    assert (stages["s_max"].read, stages["s_max"].written) == (matrix, vector)
    assert (stages["s_exp"].read, stages["s_exp"].written) == (matrix + vector, matrix)
    assert (stages["s_sum"].read, stages["s_sum"].written) == (matrix, vector)
    assert stages["s_exp"].operations == 2 * rows * cols  # a difference and an exponential


@pytest.mark.nightly
def test_each_emitted_kernel_is_a_stage():
    op = attention.full(1, 2, q_len=1, kv_len=256, head_dim=16)
    kernel = nl.compile(op, "split_k_update", validate="none")
    found = kernel.traffic("h200", blocks=1).kernel
    assert [s.name for s in found.stages] == [k.name for k in kernel.htile.kernels]
    assert len(found.stages) > 1
    # The second kernel reads the partial results that the first one wrote, which the L2 cache still holds.
    assert found.stages[1].read == 0
    assert found.stages[1].moved > 0


@pytest.mark.nightly
def test_fused_blocks_are_one_stage():
    kernel = nl.compile(attention.full(heads=2, seq=64, head_dim=16), "rolling_update", validate="none")
    found = kernel.traffic("h200", blocks=1)
    forms = found.forms
    assert repr(found) == f"<TrafficRecord of {len(forms)} forms on h200>\n{found}"
    assert len(forms[-2].stages) == 1
    assert "acc" in forms[-2].stages[0].name.split(", ")
    assert len(forms[0].stages) > 5


def test_a_schedule_without_a_kernel_has_forms_too():
    sch = nl.Schedule(softmax.figure1(rows=2, cols=8))
    sch.rolling_update("s_sum", "s_max.j", maps="keep")
    found = schedule_traffic(sch, None, Target("h200"))
    assert [(f.step, f.phase) for f in found.forms] == [(0, "definition")] + [
        (1, phase.key) for phase in sch.history[0].outcome.phases
    ]
    assert found.kernel is found.forms[-1]


def test_the_intermediates_of_a_chain_are_read_and_written_by_other_stages():
    op = gemm_chain.gemm_chain(batch=1, m=32, n=32, k=16, h=16)
    definition = nl.compile(op, validate="none").traffic("h200", blocks=1).definition
    between = [t for t in definition.tensors if t.read and t.written]
    assert between
    assert sum(s.written for s in definition.stages) == definition.written
