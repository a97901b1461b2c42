"""Sizes with a name: one kernel for every size."""

import sys
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab import htile_passes, trace
from neptune_lab.errors import DefinitionError, LaunchError, NeptuneError, ScheduleError, TileError
from neptune_lab.operators import attention, gemm_chain, norms, performer, rows
from neptune_lab.pipeline import for_sizes
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.size_samples import Tiling

n, m, batch = nl.dim("n"), nl.dim("m"), nl.dim("batch")
# Of these, one loop is over all columns: it compiles in a third of the time that splits take.
few_n, few_m = nl.dim("n", 128), nl.dim("m", 128)

# Operators, and sizes to run the kernel at: one element, a part of a tile, whole tiles, more.
EVERY = {
    "causal": (lambda: attention.causal(1, 2, n, 32), [(1,), (63,), (64,), (201,)]),
    "full, two lengths": (
        lambda: attention.full(1, 2, q_len=few_m, kv_len=few_n, head_dim=32), [(1, 70), (129, 3), (65, 65)]
    ),
    "columns": (lambda: rows.softmax(3, n), [(1,), (1024,), (2500,)]),
    "groups in decoding": (
        lambda: attention.gqa(1, 4, q_len=1, kv_len=few_n, head_dim=32, kv_heads=2), [(2,), (130,), (1025,)]
    ),
    "window": (lambda: attention.window(1, 1, few_n, 32, window=150), [(5,), (149,), (151,), (500,)]),
    "biases": (lambda: attention.alibi(1, 2, few_n, 32), [(33,), (130,)]),
    "documents": (
        lambda: attention.general(1, 1, few_n, few_n, 32, mask_mod=lambda b, h, q, kv: q // 12 == kv // 12),
        [(1,), (13,), (150,)],
    ),
    "sinks": (
        lambda: attention.general(1, 1, few_n, few_n, 32, mask_mod=lambda b, h, q, kv: (kv < 4) | (q + 30 - kv < 11)),
        [(2,), (33,), (150,)],
    ),
    "samples": (lambda: attention.causal(batch, 2, 40, 32), [(1,), (3,), (9,)]),
    "samples and lengths": (lambda: attention.causal(batch, 1, few_n, 32), [(1, 65), (3, 20)]),
    "rows": (lambda: rows.softmax(m, 50), [(1,), (7,), (130,)]),
    "decoding": (lambda: attention.causal(1, 2, q_len=1, kv_len=n, head_dim=32), [(1,), (64,), (700,)]),
    "rows and columns": (lambda: rows.log_sum_exp(m, n), [(1, 1), (5, 1025), (33, 100)]),
    "rows that are columns": (lambda: rows.log_sum_exp(few_n, few_n), [(1,), (2,), (63,), (97,)]),
    "classes": (lambda: rows.cross_entropy(5, n), [(2,), (1500,)]),
    "a mean of columns": (lambda: norms.layer_norm(5, n), [(1025,), (1500,), (2048,)]),
    "a chain's rows": (lambda: gemm_chain.gemm_chain(1, m, 48, 32, 32), [(1,), (100,)]),
    "a chain's columns": (lambda: gemm_chain.gemm_chain(1, 40, n, 32, 32), [(5,), (150,)]),
    "eps times the length": (lambda: performer.performer(1, 1, nl.dim("n", 512), 16, features=32), [(20,), (150,)]),
}  # fmt: skip


def given(op):
    return [torch.from_numpy(array) for array in op.random_inputs().values()]


def error(got, want) -> float:
    """The largest relative error of an output."""
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    return max(
        float(np.linalg.norm(a.double().numpy() - b) / np.linalg.norm(b)) for a, b in zip(got, want, strict=True)
    )


@cache
def kernel_of(name: str) -> Kernel:
    return nl.compile(EVERY[name][0]())


@pytest.mark.one_in(32)
@pytest.mark.parametrize("name", EVERY)
def test_one_kernel_is_right_at_every_size(name: str):
    make, samples = EVERY[name]
    op, kernel = make(), kernel_of(name)
    for sample in samples:
        own = op.at(**dict(zip(op.family.hint, sample, strict=True)))
        inputs = given(own)
        assert error(kernel(*inputs), own.reference(*inputs)) < 2e-3, sample


def test_names_stand_in_shapes_programs_and_code():
    assert str(attention.causal(1, 2, n, 32).inputs[0]) == "q: float16[1, 2, n, 32]"
    kernel = kernel_of("causal")
    assert str(kernel.spec.outputs[0]) == "out: float16[1, 2, n, 32]"
    assert "size    n  # known at the launch" in kernel.htile_text
    assert "(n+63)//64" in kernel.htile_text
    assert "(n + 63) // 64 - 1 - i0" in kernel.source, "no sum of a negative number"
    assert kernel.trace.operator.params["n"] == "any from 1 to 1048560"
    assert kernel.operator.params["q_len"] == 4096


@pytest.mark.nightly
def test_the_hint_chooses_the_template():
    few = nl.compile(attention.causal(1, 2, q_len=1, kv_len=few_n, head_dim=32))
    assert len(kernel_of("decoding").triton.kernels) == 2  # (splits, and what combines them)
    assert len(few.triton.kernels) == 1


@pytest.mark.nightly
def test_what_a_kernel_offers_works_with_names(tmp_path):
    kernel = nl.compile(rows.softmax(8, nl.dim("n", 2048)))
    assert kernel.relative_error() < 1e-5
    assert kernel.export(tmp_path / "softmax.py").read_text(encoding="utf-8").count("@triton.jit") >= 1
    x = torch.randn(8, 77)
    assert torch.allclose(kernel.as_torch_op()(x), x.softmax(1), atol=1e-6)
    trace.save(kernel.trace, tmp_path / "softmax.json")
    assert nl.load_trace(tmp_path / "softmax.json") == kernel.trace
    assert kernel.traffic().forms
    assert kernel.outline


@pytest.mark.nightly
def test_a_prefix_says_from_which_length_on():
    """Below the prefix, the kernel would read keys that are not there."""
    op = attention.prefix(1, 1, n, 32, prefix=200)
    kernel = nl.compile(op)
    ((name, least, _),) = kernel.spec.ranges
    assert name == "n"
    assert least > 128
    with pytest.raises(LaunchError, match=f"takes {least} to"):
        kernel(*given(op.at(n=100)))
    for length in (least, least + 7, 448, 648, 1000):
        own = op.at(n=length)
        inputs = given(own)
        assert error(kernel(*inputs), own.reference(*inputs)) < 2e-3, length


def test_sizes_below_one_at_which_a_kernel_is_wrong_are_not_taken(monkeypatch):
    monkeypatch.setattr(for_sizes, "wrong_at", lambda _, sample: "wrong" if sample["n"] < 100 else None)
    module: Any = SimpleNamespace(kernels=[SimpleNamespace(language="triton")])
    least, said = for_sizes._checked_at_small_sizes(module, lambda sample: sample, {"n": Tiling(64, 64, 1)}, 0, 1)
    assert least == {"n": 129}, "the first after the tile of 100"
    assert "6 sizes (n from 129 on)" in str(said)


@pytest.mark.parametrize(
    ("tile", "part", "splits", "between"), [(1024, 2, 1, ()), (128, 64, 4, ()), (1024, 2, 1, (64,)), (64, 8, 2, (32,))]
)
def test_samples_of_a_size_that_two_loops_cut(tile: int, part: int, splits: int, between: tuple[int, ...]):
    """Where the smaller tiles are many, the last tile holds other numbers of them, so that no count of theirs is a
    multiple of the other count; and no loop's tiles are whole, so that a bound by any of them is needed."""
    lengths = Tiling(tile, part, splits, between).lengths(1, 0)
    for larger, smaller in pairwise((tile, *between, part)):
        assert all(-(-length // smaller) * smaller < -(-length // larger) * larger for length in lengths)
    if tile > 2 * part and not between:
        assert len({length % tile for length in lengths}) == len(lengths)


@pytest.mark.nightly
def test_a_name_may_stand_for_rows_and_columns_of_unlike_tiles():
    """A program of four rows has tiles of 64 columns: 16 tiles of rows are as long as one of columns."""
    op = rows.log_sum_exp(few_n, few_n)
    kernel = nl.compile(op, template="rolling_update", block_q=4, block_kv=64)
    for length in (3, 64, 197):
        own = op.at(n=length)
        inputs = given(own)
        assert error(kernel(*inputs), own.reference(*inputs)) < 1e-5, length


@pytest.mark.nightly
def test_a_constant_over_a_size_is_one_whatever_its_last_bit():
    """Algebra keeps 15 digits of 1 / n, so that a mean of squares that it simplified has another last bit."""
    op = norms.rms_norm_max(3, few_n)
    own = op.at(n=77)
    inputs = given(own)
    assert error(nl.compile(op)(*inputs), own.reference(*inputs)) < 1e-5


BY_DESCRIPTORS = nl.CodeOptions(loads="descriptors")


def cubes(b, h, q, kv):
    return kv * kv * kv % 7 < 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (lambda: nl.dim("not a name"), DefinitionError, "name='not a name'"),
        (lambda: nl.dim("n", 0), DefinitionError, "hint=0"),
        (lambda: attention.causal(1, 1, nl.dim("n", 8), nl.dim("n", 16)), DefinitionError, "hints 8 and 16"),
        (lambda: attention.causal(1, 1, n).at(k=3), DefinitionError, "there is no size 'k'"),
        (lambda: attention.causal(1, 1, n).at(n=0), DefinitionError, "n=0"),
        (lambda: attention.causal(1, 1, n).with_strides(q=(1, 1, 1, 1)), DefinitionError, "sizes with a name"),
        (lambda: nl.compile(nl.Schedule(attention.causal(1, 1, n))), ScheduleError, r"op\.at\(n=4096\)"),
        (lambda: nl.compile(attention.causal(1, 1, n), code=BY_DESCRIPTORS), ScheduleError, "loads"),
        (lambda: nl.compile(attention.causal(1, 1, 64, nl.dim("d", 64))), NeptuneError, "same extent at all sizes"),
        (lambda: nl.compile(attention.window(1, 1, n, 32, window=3000)), NeptuneError, "compares positions with"),
        (lambda: nl.compile(attention.causal(1, 1, nl.dim("h"), 32)), TileError, r'"n_h"'),
        (lambda: nl.compile(attention.general(1, 1, 1, few_n, 32, mask_mod=cubes)), TileError, "at small sizes only"),
        (lambda: nl.tune(attention.causal(1, 1, n, 32)), ScheduleError, "sizes with a name"),
    ],
)  # fmt: skip
def test_what_is_refused(make, kind, why):
    with pytest.raises(kind, match=why):
        make()


@pytest.mark.nightly
def test_passes_that_ask_where_a_row_begins_are_left_out():
    """Their statements differ from one length to the next, so no kernel for all lengths would be one program."""
    ask = {name for name, made in htile_passes.PASSES.items() if "head_of" in vars(sys.modules[made.__module__])}
    assert ask >= {"align_grid_tiles", "align_row_loops"}
    every = {applied.name for applied in nl.compile(rows.softmax(few_m, 50)).passes}
    assert not ask & every
