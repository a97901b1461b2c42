"""Kernels compiled without a GPU: each stage's lines, the links to HTile and loops, and resources."""

from __future__ import annotations

import re

import pytest

import neptune_lab as nl
from neptune_lab.errors import MachineCodeError
from neptune_lab.machine_code import ARCHITECTURES, machine_code
from neptune_lab.machine_code import compile as compiling
from neptune_lab.operators import attention
from neptune_lab.runtime import KernelSpec
from neptune_lab.tensor_spec import TensorSpec


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(attention.causal(heads=1, seq=64, head_dim=32), block_q=32, block_kv=32, validate="none")


@pytest.fixture(scope="module", autouse=True)
def cached(tmp_path_factory):
    """Triton's cache of these tests: else a failure would stay hidden behind what an earlier run compiled."""
    patch = pytest.MonkeyPatch()
    patch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.setattr(compiling, "_child", [])
    patch.setattr(compiling, "_killed", False)
    yield
    for child in compiling._child:
        child.close()
    patch.undo()


@pytest.fixture(scope="module", params=["sm_80", "sm_90", "sm_120", "gfx942", "gfx1100"])
def code(request, kernel):
    return kernel.machine_code(request.param)


def line_with(kernel, text: str, nth: int = 0) -> int:
    """The number of the nth line of the source with `text`."""
    return [n for n, line in enumerate(kernel.source.splitlines(), 1) if text in line][nth]


@pytest.mark.one_in(6)
def test_each_stage_has_its_text_and_no_path_of_this_machine(code):
    (compiled,) = code.kernels
    assert tuple(s.name for s in compiled.stages) == ARCHITECTURES[code.target].stages
    for stage in compiled.stages:
        assert len(stage.text.splitlines()) == len(stage.lines)
        assert "triton_module.py" not in stage.text
        assert ".loc" not in stage.text.replace("local", "")
    assert "tt.dot" in code.ttir
    assert "#ttg." in code.ttgir
    assert "define" in code.llir


@pytest.mark.one_in(5)
def test_matrix_products_come_from_the_lines_with_tl_dot(kernel, code):
    dots = {n for n, line in enumerate(kernel.source.splitlines(), 1) if "tl.dot(" in line}
    word = {"sm": "HMMA", "gf": ("v_mfma", "v_wmma")}[code.target[:2]]
    (compiled,) = code.kernels
    stage = compiled.stage(code.last)
    found = [
        set(frames)
        for text, frames in zip(stage.text.splitlines(), stage.lines, strict=True)
        if text.rpartition("*/")[2].strip().startswith(word)
    ]
    assert len(found) == sum(m.count for m in compiled.resources.counts.matrix) > 0
    assert set.union(*found) == dots
    assert all(frames <= dots for frames in found)


def test_a_line_of_a_helper_is_linked_to_the_lines_that_call_it(kernel, code):
    calls = {n for n, line in enumerate(kernel.source.splitlines(), 1) if "_max(score" in line}
    (compiled,) = code.kernels
    helper = line_with(kernel, "return tl.reduce(x, axis, _maximum)")
    for stage in compiled.stages:
        callers = {n for frames in stage.lines if helper in frames for n in frames[frames.index(helper) + 1 :]}
        assert callers == calls, stage.name


def test_machine_code_reaches_htile_and_the_loop_program(kernel, code):
    products = [n for n, line in enumerate(kernel.source.splitlines(), 1) if "tl.dot(" in line]
    assert all(code.lines_of(n) for n in products)
    record = {line.number: line for line in kernel.trace.kernel.triton}
    assert {block for n in products for block in record[n].blocks} == {"store:qk", "store:acc"}
    for n, line in record.items():
        if not line.nodes:
            assert not code.lines_of(n), line.text  # what computes has a node


def test_resources_are_those_of_the_text(code):
    (compiled,) = code.kernels
    needs = compiled.resources
    assert needs.threads == needs.warps * ARCHITECTURES[code.target].lanes
    assert 0 < needs.registers < 256
    assert (needs.local_bytes > 0) == any(m.kind.startswith("spill") for m in needs.counts.memory)
    assert 0 < needs.shared_bytes <= 64 * 1024
    assert needs.occupancy.blocks > 0
    stored = sum(m.bytes * m.count for m in needs.counts.memory if m.kind == "global store")
    tile = 32 * 32 * 2
    if ARCHITECTURES[code.target].cuda:
        assert stored * needs.threads == tile
    else:  # threads that hold the same element of a product mask the store
        assert stored * needs.threads % tile == 0
    if code.target == "gfx942":
        assert f"; Occupancy: {dict(needs.occupancy.limits)['registers'] * needs.warps // 4}" in code.amdgcn


def test_it_is_compiled_once(kernel, monkeypatch):
    first = kernel.machine_code("sm_90")
    monkeypatch.setattr(compiling, "_compile", None)
    assert kernel.machine_code("h200") is first
    assert kernel.machine_code(nl.Target("cuda", (9, 0))) is first


@pytest.mark.nightly
def test_persistent_programs_are_compiled_without_a_gpu():
    """Their grid depends on the number of multiprocessors, which is asked of the GPU otherwise."""
    op = attention.causal(1, 1, 256, 64)
    code = nl.CodeOptions(code="gluon", persistent=True, tie=True)
    made = nl.compile(op, code=code, target="h200", validate="none").machine_code("sm_90")
    assert made.kernels[0].resources.counts.matrix[0].name.startswith("HGMMA")


@pytest.mark.nightly
def test_gluon_is_compiled_for_hopper_and_refused_elsewhere():
    op = attention.causal(heads=1, seq=256, head_dim=64)
    kernel = nl.compile(op, code=nl.CodeOptions(code="gluon"), target="h200", validate="none")
    code = kernel.machine_code()
    (compiled,) = code.kernels
    assert [s.name for s in compiled.stages] == ["ttgir", "llir", "ptx", "sass"]
    assert compiled.resources.counts.matrix[0].name.startswith("HGMMA.64x64x16")
    assert any(m.kind == "tile load" for m in compiled.resources.counts.memory)
    source = kernel.source.splitlines()
    sass = compiled.stage("sass")
    copies = [f for x, f in zip(sass.text.splitlines(), sass.lines, strict=True) if "UTMALDG" in x]
    assert copies
    assert all("_copy_in(" in source[frames[0] - 1] for frames in copies)
    with pytest.raises(MachineCodeError, match="written in Gluon, which is for sm_90; target='sm_80'"):
        kernel.machine_code("sm_80")
    with pytest.raises(MachineCodeError, match=r"has no stage 'ttir'\n  help: its stages are ttgir, llir, ptx, sass"):
        code.ttir


BAD = """import triton
import triton.language as tl


@triton.jit
def bad_kernel(x_ptr):
    i = tl.arange(0, 24)
    tl.store(x_ptr + i, 0.0)


def bad(x):
    bad_kernel[(1,)](x)
    return x
"""


def bad(text: str) -> KernelSpec:
    tensor = TensorSpec("x", (32,), "float32")
    return KernelSpec("bad", "bad", text, (tensor,), (tensor,))


@pytest.mark.nightly
def test_what_triton_refuses_is_one_plain_error():
    with pytest.raises(MachineCodeError, match=r"Triton fails on bad_kernel for sm_90: .*power of 2") as caught:
        machine_code(bad(BAD))
    assert caught.value.help is not None
    assert "\n" not in caught.value.reason
    assert machine_code(bad(BAD.replace("24", "32"))).kernels[0].name == "bad_kernel"


def test_what_the_assembler_refuses_names_it():
    text = BAD.replace("24", "32").replace(
        "tl.store(x_ptr + i, 0.0)",
        'tl.store(x_ptr + i, tl.inline_asm_elementwise("no.such $0, $1;", "=r,r", [i], tl.int32, True, 1))',
    )
    with pytest.raises(MachineCodeError, match=r"ptxas fails on bad_kernel for sm_90: .*error"):
        machine_code(bad(text))


PRODUCTS = re.compile(r"wgmma\.mma_async\S*\.(\w+)\.(\w+)\b")


def of_eights(head_dim: int = 64, **formats: object):
    """PTX of attention on e4m3 for Hopper."""
    own = dict.fromkeys(("q_dtype", "k_dtype", "v_dtype"), "float8_e4m3fn")
    op = attention.general(1, 2, 128, 128, head_dim, None, None, "bfloat16", v_scale=(1, 2), **own, **formats)  # type: ignore[arg-type]
    kernel = nl.compile(op, block_q=64, block_kv=64, validate="none", target="h200")
    return kernel.machine_code("sm_90").text("ptx")


@pytest.mark.nightly
def test_e4m3_is_multiplied_by_instructions_of_its_own():
    """Weights of 16 bits: the product of q and k alone; weights of e4m3: both."""
    assert set(PRODUCTS.findall(of_eights())) == {("e4m3", "e4m3"), ("f16", "f16")}
    ptx = of_eights(weights_dtype="float8_e4m3fn", v_transposed=True)
    assert set(PRODUCTS.findall(ptx)) == {("e4m3", "e4m3")}
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx


@pytest.mark.nightly
def test_a_short_product_of_e4m3_is_one_of_float16():
    """One instruction sums 32 bytes: Triton refuses a product of e4m3 over 16 elements."""
    ptx = of_eights(16, weights_dtype="float8_e4m3fn", v_transposed=True)
    assert set(PRODUCTS.findall(ptx)) == {("f16", "f16"), ("e4m3", "e4m3")}


@pytest.mark.nightly
def test_weights_of_8_bits_cannot_exceed_the_largest():
    """No product is fused with a difference, so that exp2(x * c - m * c) is at most 1 if x <= m, however large m is."""
    assert "fma.rn.f32" in of_eights()
    assert "fma.rn.f32" not in of_eights(weights_dtype="float8_e4m3fn", v_transposed=True)
