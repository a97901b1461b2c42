"""The emitter's choices: each writes what it says, keeps the numbers, and is refused where the GPU cannot do it."""

from __future__ import annotations

import re
from functools import cache

import by_name
import pytest

import neptune_lab as nl
from neptune_lab.errors import EmitError, ScheduleError
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.operators import attention
from neptune_lab.target import ANY, Target

HOPPER = Target("cuda", (9, 0))
A100 = Target("cuda", (8, 0))
AMD = Target("hip")
CAUSAL = attention.causal(heads=2, seq=128, head_dim=32)
DECODE = attention.gqa(heads=4, kv_heads=2, q_len=1, kv_len=256, head_dim=32, causal=False)
TILES = {"block_q": 32, "block_kv": 32}


def compiled(operator=CAUSAL, template="rolling_update", **options):
    return by_name.compile(operator, template, target=options.pop("target", HOPPER), **TILES, **options)


@cache
def plain_error(operator) -> float:
    return compiled(operator).relative_error()


CHOICES = (
    {"loads": "descriptors"},
    {"loads": "host_descriptors"},
    {"interleave": 2},
    {"interleave": 2, "loads": "host_descriptors"},
)
OPERATORS = (
    CAUSAL,
    attention.causal(heads=2, seq=100, head_dim=32),
    attention.window(heads=2, seq=128, head_dim=32, window=40),
    attention.softcap(heads=2, kv_heads=1, seq=96, head_dim=32),
    attention.alibi(heads=2, seq=128, head_dim=32, dtype="bfloat16"),
)


# A length that tiles do not divide with every choice, each other operator with two of them in turn; all at night.
@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    ("operator", "options"),
    [
        pytest.param(
            operator,
            options,
            id=f"{operator.name}-{operator.inputs[0].shape[2]}-{options}",
            marks=() if n == 1 or n % 2 == m % 2 else pytest.mark.nightly,
        )
        for n, operator in enumerate(OPERATORS)
        for m, options in enumerate(CHOICES)
    ],
)
def test_numbers_stay(operator, options):
    assert compiled(operator, **options).relative_error() == pytest.approx(plain_error(operator), rel=0.1)


def test_descriptors_in_the_kernel():
    text = compiled(loads="descriptors").source
    assert "q_rows = tl.make_tensor_descriptor(q_base, [128, 32], [32, 1], [32, 32])" in text
    assert "out_rows.store(" in text
    assert "triton.set_allocator(_scratch)" in text
    assert not re.search(r"tl\.(load|store)\(", text)


@pytest.mark.nightly
def test_descriptors_from_the_host_hold_the_whole_tensor():
    text = compiled(loads="host_descriptors").source
    assert "TensorDescriptor(q, [256, 32], [32, 1], [32, 32])" in text
    assert "set_allocator" not in text
    head = next(line for line in text.splitlines() if line.startswith("def attention_causal_kernel"))
    assert "_ptr" not in head, "tensors reached through descriptors are no parameters"


def test_a_tile_past_the_end_takes_pointers_where_the_host_makes_descriptors():
    """A descriptor of the whole tensor would read the next head's rows."""
    uneven = attention.causal(heads=2, seq=100, head_dim=32)
    text = compiled(uneven, loads="host_descriptors").source
    assert "k_rows.load(" in text, "the interior's tiles end inside"
    assert re.search(r"= tl\.load\(\n? *k_base", text), "the last one does not"
    assert "out_rows" not in text
    assert "make_tensor_descriptor" in compiled(uneven, loads="descriptors").source


def test_padded_tiles_take_pointers():
    odd = attention.causal(heads=2, seq=128, head_dim=24)
    assert "descriptor" not in compiled(odd, loads="descriptors").source.lower()


@pytest.mark.nightly
def test_tanh_of_the_hardware():
    softcap = attention.softcap(heads=2, kv_heads=2, seq=64, head_dim=32)
    text = compiled(softcap, tanh="hardware").source
    assert "tanh.approx.f32" in text
    assert "if INTERPRETED:" in text
    assert "tanh.approx" not in compiled(softcap).source
    assert compiled(softcap, tanh="hardware").relative_error() < 1e-3


@pytest.mark.nightly
def test_dependent_launch_waits_before_it_reads():
    kernel = compiled(DECODE, "split_k_update", dependent_launch=True)
    local, combine = (k.text for k in kernel.triton.kernels)
    assert local.index("_launch_dependents()") < local.index("tl.load(")
    assert combine.index("_wait()") < combine.index("tl.load(")
    assert kernel.source.count("launch_pdl=True") == 1
    assert kernel.relative_error() < 1e-3


def test_loops_without_products_load_ahead():
    row = nl.operators.norms.l2_norm(rows=2, cols=256)
    text = nl.compile(row, "rolling_update", block_q=1, block_kv=64, code=nl.CodeOptions(loop_stages=3)).source
    assert "tl.range(0, 4, num_stages=3)" in text
    assert "tl.range" not in compiled(loop_stages=3).source, "products have Triton's own pipeline"


@pytest.mark.parametrize("target", [ANY, A100, AMD], ids=str)
@pytest.mark.parametrize(
    "options", [{"loads": "descriptors"}, {"loads": "host_descriptors"}, {"dependent_launch": True}], ids=str
)
def test_what_a_gpu_cannot_do_is_refused(target, options):
    with pytest.raises(EmitError, match=f"not available on target {re.escape(str(target))}") as caught:
        compiled(target=target, **options)
    assert "Target('cuda', (9, 0))" in str(caught.value)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_e4m3_by_capability(dtype):
    """Triton has no conversion of e4m3 before Ada, and says so with an internal error."""
    op = attention.general(1, 1, 32, 64, 16, None, None, "float16", k_dtype=dtype)
    assert dtype in compiled(op, target=HOPPER).source
    if dtype == "float8_e5m2":
        assert dtype in compiled(op, target=A100).source
        return
    with pytest.raises(EmitError, match="tensor k has dtype float8_e4m3fn, which is not available on target cuda 8"):
        compiled(op, target=A100)


def test_tanh_of_the_hardware_by_capability():
    assert EmitOptions(tanh="hardware", target=A100).tanh == "hardware"
    with pytest.raises(EmitError, match="tanh='hardware' is not available on target hip"):
        EmitOptions(tanh="hardware", target=AMD)


@pytest.mark.nightly
def test_default_code_runs_anywhere():
    """Of the same sizes: those that are chosen by shape suit the target's matrix units, if these are known."""
    hints = {"num_warps": 4, "num_stages": 2}
    for target in (ANY, A100, AMD, HOPPER):
        assert compiled(target=target, **hints).source == compiled(target=ANY, **hints).source
    for target in (AMD, HOPPER):
        assert compiled(target=target).source == compiled(target=ANY).source


def test_options_that_do_not_exist():
    with pytest.raises(EmitError, match="loads='pointer': expected one of 'pointers', 'descriptors'"):
        compiled(loads="pointer")
    with pytest.raises(ScheduleError, match="interleave=3: expected one of 1, 2"):
        compiled(interleave=3)
    with pytest.raises(ScheduleError, match="there is no such pass") as caught:
        compiled(disable_passes=("partition_masked_loop",))
    assert "partition_masked_loops" in str(caught.value)


def test_a_pass_left_out_leaves_its_work_undone():
    whole, without = compiled(), compiled(disable_passes=("exponentials_to_base_two",))
    assert "tl.exp(" in without.source
    assert "tl.exp(" not in whole.source
    assert without.relative_error() == pytest.approx(whole.relative_error(), rel=0.1)
    assert [name for name, *_ in without.passes] == [
        name for name, *_ in whole.passes if name != "exponentials_to_base_two"
    ]
