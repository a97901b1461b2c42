"""Row statistics, rows and sums of columns in one pass over the rows."""

from __future__ import annotations

import pytest
import torch
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.templates import row_groups as row_groups_module
from neptune_lab.loop_schedule.templates.row_groups import row_groups, row_groups_of
from neptune_lab.operators import Operator, attention, backward, custom, norms, rows

SMALL_GPU = nl.TileConfig(multiprocessors=3)


def _norm(n: int, width: int) -> Operator:
    return backward(norms.layer_norm(n, width))


def _sums(name: str, of, row=None, n: int = 24, width: int = 6) -> Operator:
    """y[i, j] = of(x, s)(i, j), where s sums rows, and w[j] sums the columns of x * y."""
    x = te.placeholder((n, width), "float32", name="x")
    j, i = te.reduce_axis((0, width), name="j"), te.reduce_axis((0, n), name="i")
    s = te.compute((n,), lambda a: te.sum(x[a, j], axis=j), name="s")
    y = te.compute((n, width), of(x, s), name="y")
    w = te.compute((width,), lambda b: te.sum(x[i, b] * y[i, b], axis=i), name="w")
    return custom(name, [x], [y, w] if row is None else [row(x, y, w), w])


def _shifted(x, s):
    return lambda a, b: x[a, b] - s[a]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("n", "width"), [(37, 50), (41, 33), (64, 16), (29, 5), (100, 7)])
def test_a_norm_s_backward_pass_reads_its_rows_once(n, width):
    kernel = nl.compile(_norm(n, width), config=SMALL_GPU, validate="full")
    assert kernel.spec.text.count("@triton.jit") == 2
    assert kernel.spec.text.count("tl.load(d_out_ptr") + kernel.spec.text.count("tl.load(d_out_base") == 1
    assert kernel.relative_error() < 1e-6


def test_a_program_with_one_row_at_a_time_reads_it_once():
    """The sum of the shift's gradient is one load, between whose statement and the others' the rows are stored."""
    config = nl.SplitKConfig(block_q=1, splits=4)
    text = nl.compile(_from_torch(_layer_norm, 64, 32), config=config, validate="none").spec.text
    assert text.count("tl.load(d_out_base") == 1


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def _gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return _rms_norm(x, weight) * torch.nn.functional.silu(gate)


def _from_torch(function, *shape: int) -> Operator:
    width = shape[-1:]
    given = [shape, width, width][: 3 if function is _layer_norm else 2]
    given = [shape, shape, width] if function is _gated else given
    return backward(nl.from_torch(function, *(torch.randn(s) for s in given)))


# Dimensions in every order of their extents, extents of 1, and tiles that do not divide; and whether partial sums are
# added up one index after another.
ROWS = [
    (_rms_norm, (4, 128, 32), False),
    (_layer_norm, (40, 2, 33), True),
    (_gated, (3, 5, 37, 9), False),
    (_rms_norm, (2, 1, 64, 8), False),
    (_rms_norm, (2, 3, 2, 41, 7), True),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("function", "shape", "in_order"), ROWS)
def test_rows_of_several_dimensions_are_read_once(function, shape, in_order, monkeypatch: pytest.MonkeyPatch):
    if in_order:
        monkeypatch.setattr(row_groups_module, "HELD", 64)
    kernel = nl.compile(_from_torch(function, *shape), config=SMALL_GPU)
    assert kernel.spec.text.count("@triton.jit") == 2
    assert kernel.spec.text.count("tl.load(d_out_ptr") + kernel.spec.text.count("tl.load(d_out_base") == 1
    assert kernel.relative_error() < 1e-6


@pytest.mark.nightly
def test_each_index_of_the_other_dimensions_has_groups():
    groups = row_groups_of(_from_torch(_layer_norm, 3, 40, 5, 8).program)
    assert groups is not None
    assert (groups.rows, groups.outside, [extent for _, extent in groups.outer]) == (40, 15, [3, 5])
    kernel = nl.compile(_from_torch(_rms_norm, 3, 40, 8), config=nl.SplitKConfig(block_q=2, splits=5))
    assert any("15 programs have 4 tiles of 2 rows each" in remark for remark in kernel.remarks)


@pytest.mark.nightly
def test_short_rows_of_several_dimensions_stay_apart():
    kernel = nl.compile(_from_torch(_layer_norm, 2, 3, 2, 8), config=SMALL_GPU)
    # One for the rows, and one for both sums over them.
    made = [set(one.arguments) & {"d_x", "d_weight", "d_bias"} for one in kernel.triton.kernels]
    assert made == [{"d_x"}, {"d_weight", "d_bias"}]
    assert kernel.relative_error() < 1e-6


def test_the_blocks_of_a_definition():
    groups = row_groups_of(_sums("plain", _shifted).program)
    assert groups is not None
    assert (groups.rows, groups.columns, groups.along, groups.sums, groups.after) == (24, 6, ("s", "y"), ("w",), ())


def test_sizes_can_be_chosen():
    kernel = nl.compile(_norm(40, 8), config=nl.SplitKConfig(block_q=2, splits=5))
    assert any("5 programs have 4 tiles of 2 rows each" in remark for remark in kernel.remarks)


def test_sums_of_columns_that_rows_read_are_refused():
    def row(x, y, w):
        return te.compute(x.shape, lambda a, b: y[a, b] / w[b], name="z")

    op = _sums("read", _shifted, row)
    assert row_groups_of(op.program) is None
    assert nl.compile(op).relative_error() < 1e-5


@pytest.mark.parametrize(
    "op",
    [attention.causal(1, 1, 8, 4), rows.softmax(4, 8), backward(attention.causal(1, 1, 8, 4))],
    ids=lambda op: op.name,
)
def test_other_definitions_are_refused(op):
    with pytest.raises(ScheduleError, match="more than statistics of rows"):
        row_groups(nl.Schedule(op), nl.SplitKConfig())


def _long(function, dtype: torch.dtype, n: int = 13, width: int = 9000) -> Operator:
    given = [(n, width), (n, width)] if function is _gated else [(n, width)]
    given += [(width,)] * (2 if function is _layer_norm else 1)
    return backward(nl.from_torch(function, *(torch.randn(s, dtype=dtype) for s in given)))


@pytest.mark.nightly
def test_longer_rows_with_one_sum_are_read_once():
    kernel = nl.compile(_long(_rms_norm, torch.float16), config=nl.TileConfig(multiprocessors=3))
    assert [k.num_warps for k in kernel.triton.kernels] == [16, None]
    assert kernel.relative_error() < 1e-3


@pytest.mark.nightly
def test_longer_rows_with_one_sum_have_one_pass():
    kernel = nl.compile(_long(_rms_norm, torch.float16), config=nl.TileConfig(multiprocessors=3), validate="none")
    assert any("programs have 5 tiles of 1 row each" in remark for remark in kernel.remarks), kernel.remarks


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "dtype", "width"),
    [
        (_rms_norm, torch.float32, 9000),
        (_layer_norm, torch.float16, 9000),
        (_gated, torch.float16, 9000),
        (_rms_norm, torch.float16, 9001),
    ],
    ids=["wide elements", "two sums", "three rows", "rows beside multiples of 16 bytes"],
)
def test_longer_rows_that_spill_registers_are_refused(function, dtype: torch.dtype, width: int):
    with pytest.raises(
        ScheduleError, match=f"rows of {width} elements do not fit a tile, whose rows have at most 8192"
    ):
        row_groups(nl.Schedule(_long(function, dtype, width=width)), nl.SplitKConfig(multiprocessors=3))


def test_few_rows_and_long_rows_are_refused():
    with pytest.raises(ScheduleError, match="20 rows are too few for 132 groups"):
        row_groups(nl.Schedule(_norm(20, 8)), nl.SplitKConfig())
    with pytest.raises(ScheduleError, match="rows of 10000 elements do not fit"):
        row_groups(nl.Schedule(_norm(600, 10000)), nl.SplitKConfig())


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("n", "width", "programs"),
    [
        (8200, 704, "1025 programs have 4 tiles of 2 rows each"),  # 3 of 4 parts of 256 elements hold the row: one warp
        (600, 704, "150 programs have 4 tiles of 1 row each"),  # few rows stay with more warps
        (8200, 1000, "513 programs have 8 tiles of 2 rows each"),
        (8200, 1024, "513 programs have 8 tiles of 2 rows each"),
        (8200, 705, "1025 programs have 4 tiles of 2 rows each"),  # elements one by one, two warps
    ],
)
def test_warps_follow_the_lanes_that_a_row_leaves_empty(n: int, width: int, programs: str):
    made = row_groups(nl.Schedule(_long(_layer_norm, torch.bfloat16, n, width)), nl.SplitKConfig())
    said = [str(step.arguments) for step in made.steps if step.primitive == "remark"]
    assert any(programs in text for text in said), said


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("width", "stages"), [(1408, 3), (1405, None)], ids=["16 bytes at once", "one element at once"]
)
def test_tiles_of_whole_vectors_are_loaded_while_others_are_computed(width: int, stages: int | None):
    kernel = nl.compile(_long(_layer_norm, torch.bfloat16, 4100, width), validate="none")
    assert [k.num_stages for k in kernel.triton.kernels] == [stages, None]
    assert kernel.source.count("num_stages=3") == (3 if stages else 0)


@pytest.mark.nightly
def test_partial_sums_are_added_up_by_programs_for_most_multiprocessors():
    kernel = nl.compile(_norm(600, 40), config=nl.SplitKConfig(splits=100, multiprocessors=3), validate="none")
    assert [k.grid for k in kernel.triton.kernels] == [(75,), (3,)]
    assert kernel.relative_error() < 1e-6
