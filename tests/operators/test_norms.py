"""Norms: definition against reference, the numbers that make each definition the stable one, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from definitions import assert_defined_as_referenced, outputs_and_references, stages

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import norms

ALL = [norms.l2_norm, norms.rms_norm_max, norms.rms_norm_quantize, norms.layer_norm_statistics, norms.layer_norm]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", ALL)
def test_a_norm_equals_its_reference(make, seed: int) -> None:
    assert_defined_as_referenced(make(rows=3, cols=5), seed)
    assert_defined_as_referenced(make(rows=1, cols=1), seed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("make", ALL)
def test_the_dtype_is_that_of_the_inputs_and_sums_are_in_float32(make, dtype: str) -> None:
    op = make(rows=2, cols=4, dtype=dtype)
    assert {op.program.buffer(spec.name).dtype for spec in op.inputs} == {dtype}
    written = {b.name: b.dtype for b in op.program.buffers if b.name not in op.program.params}
    assert set(written.values()) == {"float32"}
    assert {s.name: s.dtype for s in op.outputs} == {n: op.program.buffer(n).dtype for n in op.program.outputs}


def test_the_stages_are_the_papers() -> None:
    assert stages(norms.l2_norm()) == ["x_max", "x_scaled", "s_sum", "out"]
    assert stages(norms.rms_norm_max()) == ["x2_sum", "mean_square", "y", "y_max"]
    assert stages(norms.rms_norm_quantize()) == ["x2_sum", "mean_square", "y", "y_max", "scale", "q"]
    assert stages(norms.layer_norm_statistics()) == ["x_sum", "mean", "deviation_sum", "variance"]
    assert stages(norms.layer_norm()) == ["x_sum", "mean", "deviation_sum", "variance", "out"]


def test_the_l2_norm_does_not_overflow_and_a_row_of_zeros_has_norm_0() -> None:
    op = norms.l2_norm(3, 4)
    x = np.array([[3e30, 4e30, 0, 0], [0, 0, 0, 0], [0, 0, 0, -2]], dtype=np.float32)
    [(found, reference)] = outputs_and_references(op, {"x": x}, wide=False)
    with np.errstate(over="ignore"):
        assert np.isinf(np.square(x)).any()  # the squares alone would not do
    np.testing.assert_allclose(found, [5e30, 0, 2], rtol=1e-6)
    np.testing.assert_allclose(reference, [5e30, 0, 2], rtol=1e-6)


@pytest.mark.nightly
def test_quantized_rows_are_within_half_a_step_and_a_row_of_zeros_is_0() -> None:
    op = norms.rms_norm_quantize(2, 5)
    x = np.zeros((2, 5), dtype=np.float32)
    x[1] = np.random.default_rng(0).standard_normal(5)
    q, scale = op.reference(x)
    assert not q[0].any()
    assert scale[0] == 0
    y = x[1] / np.sqrt(np.mean(x[1].astype(np.float64) ** 2) + 1e-6)
    assert np.abs(q[1] * scale[1] - y).max() <= scale[1] / 2 * (1 + 1e-12)
    assert np.abs(q[1]).max() == 127
    (found, _), (found_scale, _) = outputs_and_references(op, {"x": x}, wide=False)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, q)
    np.testing.assert_allclose(found_scale, scale, rtol=1e-6)


def test_layer_norm_is_as_torch_has_it() -> None:
    op = norms.layer_norm(3, 6, eps=1e-3)
    x, gamma, beta = (torch.from_numpy(a).double() for a in op.random_inputs(2).values())
    expected = torch.nn.functional.layer_norm(x, (6,), gamma, beta, eps=1e-3)
    np.testing.assert_allclose(op.reference(x, gamma, beta), expected.numpy(), rtol=1e-12, atol=1e-12)
    mean, variance = norms.layer_norm_statistics(3, 6).reference(x)
    np.testing.assert_allclose(mean, x.mean(dim=1).numpy(), rtol=1e-12)
    np.testing.assert_allclose(variance, x.var(dim=1, correction=0).numpy(), rtol=1e-12)


@pytest.mark.parametrize("make", ALL)
def test_a_norm_refuses_and_names_the_argument(make) -> None:
    with pytest.raises(DefinitionError, match="rows=0: expected a positive integer"):
        make(rows=0)
    with pytest.raises(DefinitionError, match="dtype='int8': expected one of float16, bfloat16, float32"):
        make(dtype="int8")


@pytest.mark.parametrize("eps", [0, -1.0, float("nan"), float("inf"), True, "small"])
def test_eps_is_positive(eps) -> None:
    with pytest.raises(DefinitionError, match=r"eps=.*: expected a positive finite number"):
        norms.rms_norm_max(eps=eps)
