"""Rows that are too long for registers are loaded once for each pass over them, if the first-level cache holds them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.htile_to_triton import EmitOptions, emit
from neptune_lab.htile_to_triton import loaded_again as module
from neptune_lab.htile_to_triton.loaded_again import PROGRAMS, REGISTERS, loaded_again
from neptune_lab.operators import Operator, norms, rows
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.target import ANY, NVIDIA_REGISTERS, Target

H200 = Target("h200")
OPERATORS = {
    "softmax": lambda: rows.softmax(rows=3, cols=1400, dtype="float16"),
    "a softmax of odd rows": lambda: rows.softmax(rows=3, cols=1401, dtype="bfloat16"),
    "a softmax of one tile": lambda: rows.softmax(rows=3, cols=1024, dtype="float16"),
    "layer_norm": lambda: norms.layer_norm(rows=3, cols=1200, dtype="float16"),
}


def compiled(op: Operator, target: str = "h200", warps: int = 2) -> nl.Kernel:
    config = nl.TileConfig(block_q=1, block_kv=op.inputs[0].shape[1], num_warps=warps)
    code = nl.CodeOptions(disable_passes=("read_vectors_first",))  # (it is for rows as short as these)
    return nl.compile(op, "rolling_update", config=config, code=code, target=target, validate="none")


def numbers(kernel: nl.Kernel) -> tuple[np.ndarray, ...]:
    op = kernel.operator
    arrays = dict(op.random_inputs(5))
    return triton_numpy.run(kernel.triton, arrays, {t.name: t.dtype for t in op.inputs}, tuple(arrays))


def passes(kernel: nl.Kernel) -> list[tuple[str, str]]:
    """The block of each load of x and its policy, once for loads that follow on each other and are alike."""
    found, origin = [], ""
    for line in re.sub(r"\(\n\s+", "(", kernel.source).replace(",\n       ", ",").splitlines():
        origin = line.strip(" #") if line.startswith("    # ") else origin
        if match := re.search(r"tl\.load\(x_(?:row|base|ptr)(?:.*eviction_policy=\"(\w+)\")?", line):
            found.append((origin, match[1] or ""))
    return list(dict.fromkeys(found))


@pytest.fixture(autouse=True)
def few_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRAMS", {2: 2})


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 0)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_HELD", 1 << 20)
    held = compiled(OPERATORS[name]())
    monkeypatch.setattr(module, "MOST_HELD", 0)
    again = compiled(held.operator)
    assert "maxnreg" not in held.source
    assert f"maxnreg={REGISTERS}" in again.source
    assert again.source.count("tl.load(x_") > held.source.count("tl.load(x_")
    for found, expected in zip(numbers(again), numbers(held), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.nightly
@pytest.mark.usefixtures("always")
def test_triton_does_not_join_the_loads_of_two_passes():
    """Policies differ from pass to pass, so each is a load of its own in the machine code too."""
    kernel = compiled(OPERATORS["layer_norm"]())
    policies = [policy for _, policy in passes(kernel)]
    assert policies == ["evict_last", "", "evict_first"]
    ptx = kernel.machine_code("sm_90").text("ptx")
    loads = re.findall(r"ld\.global(?:\.L1::(\w+))?", ptx)
    assert 0 < loads.count("evict_last") == loads.count("evict_first") < loads.count("")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(lambda: compiled(OPERATORS["softmax"](), target="any"), id="on other GPUs"),
        pytest.param(lambda: compiled(rows.softmax(rows=3, cols=1400, dtype="float32")), id="of 32 bits"),
        pytest.param(
            lambda: compiled(rows.softmax(rows=3, cols=1400, dtype="float16"), warps=4), id="of other programs"
        ),
        pytest.param(lambda: compiled(norms.l2_norm(rows=3, cols=1400, dtype="float16")), id="that is only reduced"),
        pytest.param(lambda: compiled(norms.rms_norm_max(rows=3, cols=1400, dtype="float16")), id="and its maximum"),
    ],
)
def test_where_registers_hold_the_row(kernel):
    made = kernel()
    assert "maxnreg" not in made.source
    assert not any(policy for _, policy in passes(made))


@pytest.mark.usefixtures("always")
def test_rows_that_the_cache_does_not_hold(monkeypatch: pytest.MonkeyPatch):
    program = compiled(OPERATORS["softmax"]()).htile
    (kernel,) = program.kernels
    assert loaded_again(program, kernel, H200)
    assert not loaded_again(program, kernel, ANY)
    monkeypatch.setattr(module, "CACHE", 2 * 2 * 1400 - 1)
    assert not loaded_again(program, kernel, H200)


def test_programs_have_room_on_a_multiprocessor():
    assert {32 * warps * programs * REGISTERS for warps, programs in PROGRAMS.items()} == {NVIDIA_REGISTERS}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("op", "warps"),
    [
        (rows.softmax(rows=4096, cols=8192, dtype="float16"), 0),
        (rows.softmax(rows=4096, cols=30001, dtype="float16"), 16),
        (rows.softmax(rows=4096, cols=44001, dtype="float16"), 0),
        (rows.softmax(rows=300, cols=44001, dtype="bfloat16"), 32),
        (rows.softmax(rows=300, cols=32768, dtype="float16"), 0),
        (norms.layer_norm(rows=4096, cols=44001, dtype="float16"), 16),
        (norms.layer_norm(rows=400, cols=57001, dtype="float16"), 32),
        (norms.layer_norm(rows=300, cols=40001, dtype="float16"), 0),
    ],
    ids=lambda value: (
        f"{value.name}-{'x'.join(map(str, value.inputs[0].shape))}" if isinstance(value, Operator) else ""
    ),
)
def test_which_rows_are_loaded_again_on_an_h200(op: Operator, warps: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PROGRAMS", PROGRAMS)
    made = nl.compile(op, target="h200", validate="none")
    found = re.findall(rf"num_warps=(\d+), maxnreg={REGISTERS}", made.source)
    assert found == [str(warps)] * bool(warps)
    vectors = re.findall(r"tl\.load\((?:gamma|beta)_shifted[^\n]*", made.source)
    assert all(".cg" in line for line in vectors if warps)


@pytest.mark.usefixtures("always")
def test_programs_that_share_rows_load_them_as_before(monkeypatch: pytest.MonkeyPatch):
    op = rows.softmax(rows=7, cols=2400, dtype="float16")
    config = nl.TileConfig(block_q=1, block_kv=2400, num_warps=2)
    made = nl.compile(op, config=config, code=nl.CodeOptions(combine="waiting"), target="h200", validate="none")
    monkeypatch.setattr(module, "MOST_HELD", 1 << 20)
    assert emit(made.htile, EmitOptions(combine="waiting", target=H200)).text == made.source


def test_rows_of_another_width_in_memory_keep_their_programs():
    """Rows of 8 bits are written: they were measured in registers only."""
    op = norms.rms_norm_quantize(rows=3000, cols=30001, dtype="float16")
    assert "num_warps=8)" in nl.compile(op, target="h200", validate="none").source
