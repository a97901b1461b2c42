"""Ceilings are measured where there is a GPU, and refused where there is none."""

from __future__ import annotations

import pytest

from neptune_lab.errors import MeasureError
from neptune_lab.runtime import device_facts, has_gpu
from neptune_lab.runtime.ceilings import measure_ceilings
from neptune_lab.target import Target


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured():
    with pytest.raises(MeasureError, match="no GPU here: its ceilings cannot be measured"):
        measure_ceilings()


@pytest.mark.gpu
def test_what_is_measured_is_below_the_datasheet():
    found, sheet = measure_ceilings(), Target.current().ceiling
    assert found.gbps > 100
    assert found.tflops > 10
    if sheet is not None:
        assert found.gbps < sheet.gbps
        assert found.tflops < sheet.tflops


@pytest.mark.gpu
def test_the_device_tells_what_rules_need():
    facts = device_facts()
    assert facts.shared_memory is not None
    assert facts.shared_memory >= 48 * 1024
    assert facts.l2_bytes is not None
    assert facts.registers is not None
