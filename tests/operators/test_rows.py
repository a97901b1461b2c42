"""Softmax, log-sum-exp, cross-entropy: definition against reference, torch, and the corner cases named in the text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from definitions import assert_defined_as_referenced, outputs_and_references, stages

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import rows

ALL = [rows.softmax, rows.log_sum_exp, rows.cross_entropy]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", ALL)
def test_a_row_operator_equals_its_reference(make, seed: int) -> None:
    assert_defined_as_referenced(make(rows=3, cols=5), seed)
    assert_defined_as_referenced(make(rows=1, cols=1), seed)


def test_the_references_are_as_torch_has_them() -> None:
    inputs = rows.cross_entropy(4, 6).random_inputs(3)
    logits, labels = torch.from_numpy(inputs["logits"]).double(), torch.from_numpy(inputs["labels"]).long()
    pairs = [
        (rows.softmax(4, 6).reference(logits), logits.softmax(dim=1)),
        (rows.log_sum_exp(4, 6).reference(logits), logits.logsumexp(dim=1)),
        (
            rows.cross_entropy(4, 6).reference(logits, labels),
            torch.nn.functional.cross_entropy(logits, labels, reduction="none"),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0, -1000.0]], dtype=np.float32)
    [(found, reference)] = outputs_and_references(rows.log_sum_exp(1, 3), {"x": x}, wide=False)
    np.testing.assert_allclose([found, reference], [[1000 + np.log(2)]] * 2, rtol=1e-6)


def test_a_row_of_minus_infinity() -> None:
    x = np.array([[-np.inf] * 3, [0.0, -np.inf, 0.0]], dtype=np.float32)
    for make, value in ((rows.softmax, np.nan), (rows.log_sum_exp, -np.inf)):
        [(found, reference)] = outputs_and_references(make(2, 3), {"x": x})
        np.testing.assert_array_equal(reference[0], np.full_like(reference[0], value))
        np.testing.assert_allclose(found, reference)


def test_a_label_outside_picks_nothing() -> None:
    logits = np.array([[1.0, 2.0, 3.0]] * 4, dtype=np.float32)
    inputs = {"logits": logits, "labels": np.array([0, 2, -1, 3], dtype=np.int32)}
    [(found, reference)] = outputs_and_references(rows.cross_entropy(4, 3), inputs)
    total = np.log(np.exp([1, 2, 3]).sum())
    np.testing.assert_allclose(reference, [total - 1, total - 3, total, total], rtol=1e-12)
    np.testing.assert_allclose(found, reference, rtol=1e-12)


def test_the_target_is_a_reduction_of_its_own() -> None:
    op = rows.cross_entropy(dtype="float16")
    assert stages(op) == ["s_max", "s_exp", "s_sum", "target", "loss"]
    assert [str(t) for t in (*op.inputs, *op.outputs)] == [
        "logits: float16[2, 4]",
        "labels: int32[2]",
        "loss: float32[2]",
    ]
    assert set(op.random_inputs(0)["labels"]) <= set(range(4))


@pytest.mark.parametrize("make", ALL)
def test_a_row_operator_refuses_and_names_the_argument(make) -> None:
    with pytest.raises(DefinitionError, match=r"cols=2\.5: expected a positive integer"):
        make(cols=2.5)
    with pytest.raises(DefinitionError, match="dtype='float64': expected one of float16, bfloat16, float32"):
        make(dtype="float64")
