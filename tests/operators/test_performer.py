"""Performer: the split of exp + eps into separate sums is the plain formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from definitions import assert_defined_as_referenced, outputs_and_references, stages

import neptune_lab as nl
from neptune_lab import Schedule
from neptune_lab.errors import DefinitionError
from neptune_lab.operators import performer

SIZES: Any = {"batch": 2, "heads": 2, "seq": 5, "head_dim": 4, "features": 6}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("eps", [0.0, 1e-4, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_performer_equals_the_plain_formula(eps: float, seed: int) -> None:
    assert_defined_as_referenced(performer.performer(**SIZES, eps=eps), seed)


def test_eps_matters_and_0_leaves_its_stages_out() -> None:
    plain, shifted = performer.performer(**SIZES, eps=0), performer.performer(**SIZES, eps=0.5)
    inputs = list(plain.random_inputs(0).values())
    assert np.abs(np.subtract(plain.reference(*inputs), shifted.reference(*inputs))).max() > 1e-2
    assert set(stages(shifted)) - set(stages(plain)) == {"v_sum", "k_total", "kv_total"}
    assert set(stages(plain)) < set(stages(shifted))


def test_the_output_averages_values() -> None:
    """Weights are positive and add up to 1, so equal values come back."""
    op = performer.performer(**SIZES)
    inputs = op.random_inputs(0)
    inputs["v"] = np.full_like(inputs["v"], 3)
    [(found, reference)] = outputs_and_references(op, inputs)
    np.testing.assert_allclose(reference, 3, rtol=1e-12)
    np.testing.assert_allclose(found, 3, rtol=1e-9)


def test_many_features_come_near_softmax_attention() -> None:
    op = performer.performer(seq=6, head_dim=4, features=20_000, eps=0)
    q, k, v, proj = (a.astype(np.float64) for a in op.random_inputs(0).values())
    q, k = q / 2, k / 2  # short vectors, whose features vary little
    scores = np.exp(q @ np.swapaxes(k, -1, -2) / 2)
    exact = scores @ v / scores.sum(axis=-1, keepdims=True)
    assert np.abs(np.subtract(op.reference(q, k, v, proj), exact)).max() < 0.02


@pytest.mark.nightly
def test_16_bit_numbers_stay_close() -> None:
    op = performer.performer(1, 2, 16, 8, 16)
    [(found, reference)] = outputs_and_references(op, op.random_inputs(0), wide=False)
    assert found.dtype == np.float16
    assert np.linalg.norm(found - reference) < 2e-3 * np.linalg.norm(reference)


@pytest.mark.nightly
def test_without_eps_performer_fuses_into_two_kernels() -> None:
    """Neptune's appendix C: one nest of keys with three fused reductions, one of queries with three."""
    schedule = Schedule(performer.performer(1, 2, 20, 16, 32, eps=0))
    schedule.tile("k_dot", i=16)
    for loop, axis in (("b", "y"), ("h", "x")):
        schedule.bind(f"k_dot.{loop}", f"blockIdx.{axis}")
    schedule.reverse_compute_at("k_dash", "k_dot.i0")
    for block in ("k_max", "k_exp_sum", "kv_exp"):
        schedule.rolling_update(block, "k_dot.i0")
    for block in ("k_diag", "k_square"):
        schedule.compute_at(block, "k_dot.i0")
    for block in ("k_sum", "kv"):
        schedule.reverse_compute_at(block, "k_dot.h")
    schedule.tile("q_dot", i=16, m=16)
    for loop, axis in (("b", "z"), ("h", "y"), ("i0", "x")):
        schedule.bind(f"q_dot.{loop}", f"blockIdx.{axis}")
    schedule.reverse_compute_at("q_dash", "q_dot.m0")
    for block in ("q_max", "den_exp", "num_exp"):
        schedule.rolling_update(block, "q_dot.m0")
    for block in ("q_diag", "q_square"):
        schedule.compute_at(block, "q_dot.i0")
    for block in ("den", "num", "out"):
        schedule.reverse_compute_at(block, "q_dot.i0")
    for block in ("k_max", "q_max"):
        schedule.retire_tags(block)
    for loop, folded in (("i0", ("k_exp_sum", "kv_exp")), ("m0", ("den_exp", "num_exp"))):
        for block in folded:
            schedule.decompose_reduction(block, f"{block}.{loop}")
    assert schedule.check()
    kernel = nl.compile(schedule)
    assert len(kernel.triton.kernels) == 2
    assert kernel.relative_error() < 2e-3


def test_performer_refuses_and_names_the_argument() -> None:
    with pytest.raises(DefinitionError, match="features=0: expected a positive integer"):
        performer.performer(features=0)
    with pytest.raises(DefinitionError, match="dtype='int32': expected one of float16, bfloat16, float32"):
        performer.performer(dtype="int32")
    wrong: tuple[Any, ...] = (-1e-4, float("nan"), "none", True)
    for eps in wrong:
        with pytest.raises(DefinitionError, match=r"eps=.*: expected a finite number, 0 or above"):
            performer.performer(eps=eps)
