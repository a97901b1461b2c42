"""Rows that are held as they were loaded: the emitted kernel, its registers, and which rows they are."""

from __future__ import annotations

import re

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.htile.held_rows import FEWEST, MOST
from neptune_lab.htile_passes import hold_rows_as_loaded
from neptune_lab.htile_to_triton.held_rows import BESIDE, registers
from neptune_lab.operators import Operator, norms, rows
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.target import NVIDIA_REGISTERS


@pytest.fixture
def two_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_rows_as_loaded, "FEWEST", 16)
    monkeypatch.setitem(MOST, 2, 96)


def compiled(op: Operator, *disabled: str, target: str = "h200") -> nl.Kernel:
    config = nl.TileConfig(block_q=1, block_kv=op.inputs[0].shape[1], num_warps=2)
    code = nl.CodeOptions(disable_passes=("read_vectors_first", *disabled))  # (it is for rows as short as these)
    return nl.compile(op, "rolling_update", config=config, code=code, target=target, validate="none")


def numbers(kernel: nl.Kernel) -> tuple[np.ndarray, ...]:
    op = kernel.operator
    arrays = dict(op.random_inputs(5))
    return triton_numpy.run(kernel.triton, arrays, {t.name: t.dtype for t in op.inputs}, tuple(arrays))


@pytest.mark.usefixtures("two_warps")
@pytest.mark.parametrize(("cols", "dtype"), [(1200, "float16"), (1201, "bfloat16")])
def test_the_same_bits(cols: int, dtype: str):
    op = norms.layer_norm(rows=3, cols=cols, dtype=dtype)
    held, before = compiled(op), compiled(op, "hold_rows_as_loaded")
    assert held.source.count(" = _again(") > 2
    assert "maxnreg=" in held.source
    assert "_again(" not in before.source
    assert "maxnreg=" not in before.source
    for found, expected in zip(numbers(held), numbers(before), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("two_warps")
def test_rows_pass_the_first_level_cache_and_vectors_stay_in_it():
    text = re.sub(r"\(\n\s+", "(", compiled(norms.layer_norm(rows=3, cols=1200, dtype="float16")).source)
    loads = re.findall(r"(x|gamma|beta)(?:_\d+)? = tl\.load\((.*(?:\n        .*)*)", text)
    assert {name for name, _ in loads} == {"x", "gamma", "beta"}
    assert all(('".cg"' if name == "x" else '"evict_last"') in rest for name, rest in loads)


@pytest.mark.usefixtures("two_warps")
def test_on_other_gpus_the_compiler_takes_the_registers_that_it_likes():
    made = compiled(norms.layer_norm(rows=3, cols=1200, dtype="float16"), target="gfx942").source
    assert "maxnreg" not in made
    assert ".cg" not in made


@pytest.mark.parametrize("warps", MOST)
def test_programs_have_room_on_a_multiprocessor(warps: int):
    for of_lane in range(FEWEST, MOST[warps] + 1, 8):
        found = registers(warps, of_lane)
        assert of_lane // 2 + BESIDE <= found <= 255
        assert NVIDIA_REGISTERS // (32 * warps * found) >= 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("op", "hints"),
    [
        (norms.layer_norm(rows=5000, cols=9001, dtype="float16"), ""),
        (norms.layer_norm(rows=5000, cols=14001, dtype="float16"), "num_warps=8, maxnreg=64"),
        (norms.layer_norm(rows=3000, cols=24576, dtype="bfloat16"), "num_warps=8, maxnreg=80"),
        (norms.layer_norm(rows=3000, cols=30001, dtype="float16"), "num_warps=16, maxnreg=64"),
        (norms.layer_norm(rows=3000, cols=33001, dtype="float16"), ""),
        (rows.softmax(rows=5000, cols=14001, dtype="float16"), ""),
        (rows.cross_entropy(rows=5000, cols=14001, dtype="float16"), ""),
    ],
    ids=lambda value: f"{value.name}-{value.inputs[0].shape[1]}" if isinstance(value, Operator) else "",
)
def test_which_rows_are_held_as_they_were_loaded_on_an_h200(op: Operator, hints: str):
    source = nl.compile(op, target="h200", validate="none").source
    assert (" = _again(" in source) == bool(hints)
    assert hints in source


@pytest.mark.nightly
def test_the_assembler_holds_no_wider_values():
    made = nl.compile(norms.layer_norm(rows=3000, cols=20601, dtype="float16"), target="h200", validate="none")
    (kernel,) = (k for k in made.machine_code("sm_90").kernels if k.name == "layer_norm_kernel")
    assert (kernel.resources.registers, kernel.resources.local_bytes) == (80, 0)
