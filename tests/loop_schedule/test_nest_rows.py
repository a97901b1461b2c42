"""What nests of rows, such as softmax and norms, are tiled by: held, in tiles, split, by length and number."""

from __future__ import annotations

import by_name
import pytest
import torch

import neptune_lab as nl
from neptune_lab.loop_schedule.templates import choose_template
from neptune_lab.loop_schedule.templates.long_rows import long_rows
from neptune_lab.operators import backward, norms, rows, training
from tests.loop_schedule.test_nest_config import launches

# -- what is chosen by shape -------------------------------------------------------------------------------


@pytest.mark.parametrize("cols", [1 << 14, 1 << 15])
def test_rows_that_fit_are_held(cols: int):
    op = norms.rms_norm_quantize(32, cols, dtype="float16")
    assert choose_template(op.program) == (
        "rolling_update",
        f"32 programs of one row hold all {cols} elements of j in one tile",
    )
    assert choose_template(norms.rms_norm_quantize(1, cols, dtype="float16").program)[1].startswith(
        "1 program of one row holds all"
    )
    kernel = nl.compile(op)
    assert launches(kernel) == [((32,), cols // 1024)]
    assert kernel.source.count("tl.load(") == 1, "the row is read once, for both reductions and the output"
    assert "for " not in kernel.source.partition("def rms_norm_quantize_kernel")[2].partition("\ndef ")[0]


def test_few_very_long_rows_are_split_once_over_the_gpu():
    """The output needs the whole row's scale: programs of 4096 columns combine the four splits again and store it."""
    op = norms.rms_norm_quantize(32, 1 << 17, dtype="float16")
    assert choose_template(op.program)[0] == "split_k_update"
    assert launches(nl.compile(op)) == [((4, 32), 32), ((32, 32), None)]


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "columns", "splits"), [(35, 119624, 15), (60, 200000, 7), (33, 40000, 5)])
def test_few_long_rows_of_a_softmax_are_split_among_several_programs_of_a_multiprocessor(count, columns, splits):
    kernel = nl.compile(rows.softmax(count, columns, dtype="float16"), target="h200", validate="none")
    assert launches(kernel)[0] == ((splits, count), 16)
    beside = nl.compile(norms.layer_norm(19, 150001, dtype="float16"), target="h200", validate="none")
    assert launches(beside) == [((19,), 32)], "a norm of a vector is not split"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("rows", "columns", "held"), [(2048, 32768, False), (2048, 20000, True), (100, 32768, True)])
def test_gradients_of_many_long_norms_are_not_held_in_one_tile(rows: int, columns: int, held: bool):
    """A program would hold a row of the input, one of the result's gradient, and the scale, and spill registers."""
    x, scale = torch.empty(rows, columns, dtype=torch.bfloat16), torch.empty(columns, dtype=torch.bfloat16)
    op = nl.from_torch(lambda x, scale: torch.nn.functional.rms_norm(x, (columns,), scale, 1e-6), x, scale)
    kernel = nl.compile(backward(op), target="h200", validate="none")
    along_rows = kernel.htile_text.partition("kernel ")[2].partition("kernel ")[0]
    assert ("for j0 in range(2)" in along_rows) != held


def test_many_very_long_rows_roll():
    op = norms.l2_norm(300, 1 << 17, dtype="float16")
    assert launches(nl.compile(op)) == [((300,), 4)]


@pytest.mark.parametrize("make", [norms.l2_norm, norms.rms_norm_max, norms.layer_norm, norms.layer_norm_statistics])
def test_a_held_row_is_right(make):
    kernel = nl.compile(make(3, 2000, dtype="float16"))
    assert "rolling_update" not in {s.primitive for s in kernel.schedule.steps}
    assert kernel.relative_error() < 1e-3
    assert kernel.schedule.check()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("make", "template", "options", "kernels"),
    [
        (norms.rms_norm_quantize, "rolling_update", {"block_kv": 1024}, 1),
        (norms.rms_norm_quantize, "split_k_update", {"splits": 3, "block_kv": 1024}, 1),
        (norms.l2_norm, "split_k_update", {"splits": 3, "block_kv": 1024}, 2),
    ],
    ids=["rolls", "rolls where it cannot be split", "is split"],
)
def test_a_row_in_tiles_is_right(make, template: str, options: dict, kernels: int):
    """An output of full width walks the row again: in order, or by programs that share it out. Quantisation has an edge
    where an element is the largest one, which a moved maximum need not equal, so it is not split."""
    kernel = by_name.compile(make(2, 5000, dtype="float16"), template, block_q=1, **options)
    assert len(kernel.triton.kernels) == kernels
    assert ("split_k_update" in {step.primitive for step in kernel.schedule.steps}) == (kernels == 2)
    assert kernel.relative_error() < 1e-2  # a step of the quantisation where a tie falls the other way


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("make", "rows", "cols", "dtype", "launch"),
    [
        (rows.softmax, 12000, 500, "float16", (3000, 1)),
        (rows.softmax, 12000, 1000, "float16", (6000, 1)),
        (rows.softmax, 100, 1000, "float16", (100, None)),
        (rows.softmax, 12000, 2047, "float16", (12000, 2)),
        (rows.softmax, 12000, 4096, "float16", (12000, 2)),
        (rows.softmax, 12000, 13001, "float16", (12000, 4)),
        (rows.softmax, 12000, 17208, "float16", (12000, 4)),
        (rows.softmax, 12000, 17208, "float32", (12000, 16)),
        (rows.softmax, 4000, 50257, "float16", (4000, 16)),
        (rows.softmax, 4000, 98304, "float16", (4000, 16)),
        (rows.softmax, 4000, 98305, "bfloat16", (4000, 32)),
        (rows.log_sum_exp, 4000, 50257, "float16", (4000, 4)),
    ],
)
def test_rows_of_all_lengths(make, rows: int, cols: int, dtype: str, launch: tuple[int, int | None]):
    kernel = nl.compile(make(rows=rows, cols=cols, dtype=dtype), validate="none")
    assert launches(kernel) == [((launch[0],), launch[1])]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("cols", "dtype", "launch"),
    [
        (500, "float16", (6000, 2)),
        (1000, "float16", (12000, 2)),
        (3001, "bfloat16", (12000, 4)),
        (4096, "float32", (12000, 4)),
        (8192, "bfloat16", (12000, 8)),
        (27504, "float16", (12000, 32)),
    ],
)
def test_gradients_of_rows_hold_one_of_each_input(cols: int, dtype: str, launch: tuple[int, int | None]):
    """Two inputs take twice the registers, also where the second one is read by a map of the sum (log-softmax)."""

    def log_softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, -1)

    x = torch.empty(12000, cols, dtype=getattr(torch, dtype), device="meta")
    made = [training(rows.softmax(12000, cols, dtype)), training(nl.from_torch(log_softmax, x))]
    for passes in made:
        assert launches(nl.compile(passes.backward, validate="none")) == [((launch[0],), launch[1])]


@pytest.mark.parametrize(("count", "width", "programs"), [(308, 1294, 81), (158, 3743, 234), (512, 16384, 256)])
def test_sums_of_few_columns_have_narrow_tiles(count: int, width: int, programs: int):
    norm = backward(norms.layer_norm(count, width), wrt=["gamma", "beta"])
    assert launches(nl.compile(norm, validate="none"))[-1][0] == (programs,)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [rows.softmax, rows.log_sum_exp])
def test_many_long_rows_are_right(make):
    """Eight rows are many for a GPU of two multiprocessors; a softmax holds its row, a sum loads its tiles ahead."""
    op = make(rows=8, cols=40000, dtype="float16")
    kernel = nl.compile(op, config=nl.TileConfig(multiprocessors=2))
    assert kernel.triton.kernels[0].num_warps == (16 if make is rows.softmax else 4)
    x = torch.randn(8, 40000).half()
    out = kernel(x).double()
    exact = x.double().softmax(-1) if make is rows.softmax else x.double().logsumexp(-1)
    assert ((out - exact).norm() / exact.norm()).item() < 1e-3


@pytest.mark.parametrize(
    ("count", "tile"),
    [(1056, 4096), (1100, 8192), (1762, 4096), (2500, 8192), (3246, 8192), (4096, 4096), (200, 8192)],
)
def test_tiles_of_rows_that_are_read_once_leave_few_programs_for_the_last_turn(count: int, tile: int):
    made = long_rows(40001, count, again=False, vectors=False, multiprocessors=132)
    assert made is not None
    assert (made.block_kv, made.num_warps) == (tile, 4)


@pytest.mark.parametrize(
    ("count", "width", "tile"),
    [(200, 100001, (16384, 8)), (264, 100001, (16384, 8)), (265, 100001, (8192, 4)), (200, 50001, (8192, 4))],
)
def test_two_long_rows_of_a_multiprocessor_are_read_in_larger_tiles(count: int, width: int, tile: tuple[int, int]):
    made = long_rows(width, count, again=False, vectors=False, multiprocessors=132)
    assert made is not None
    assert (made.block_kv, made.num_warps) == tile


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [rows.log_sum_exp, norms.l2_norm])
def test_two_long_rows_of_a_multiprocessor_are_right(make):
    kernel = nl.compile(make(2, 99001, dtype="float16"), config=nl.TileConfig(multiprocessors=1))
    assert kernel.triton.kernels[0].num_warps == 8
    x = torch.randn(2, 99001).half()
    exact = x.double().logsumexp(-1) if make is rows.log_sum_exp else x.double().norm(dim=1)
    assert ((kernel(x).double() - exact).norm() / exact.norm()).item() < 1e-5


@pytest.mark.nightly
def test_rows_past_those_of_16_warps_are_right():
    kernel = nl.compile(rows.softmax(rows=4, cols=99001, dtype="bfloat16"), config=nl.TileConfig(multiprocessors=1))
    assert kernel.triton.kernels[0].num_warps == 32
    x = (4 * torch.randn(4, 99001, generator=torch.Generator().manual_seed(0))).bfloat16()
    out, exact = kernel(x).double(), x.double().softmax(-1)
    assert ((out - exact).norm() / exact.norm()).item() < 4e-3


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("count", "width", "dtype", "warps"),
    [
        (600, 12001, "float16", 8),
        (3000, 12001, "float16", 16),
        (3000, 13330, "float16", 8),
        (3000, 13330, "float32", 16),
        (2000, 3792, "float16", 8),
        (2000, 3792, "float32", 4),
        (6000, 1344, "float16", 4),
        (6000, 1340, "float16", 2),
    ],
)
def test_rows_of_a_gradient_have_the_warps_of_which_most_programs_have_room(
    count: int, width: int, dtype: str, warps: int
):
    made = nl.compile(training(rows.softmax(count, width, dtype=dtype)).backward, validate="none")
    assert [k.num_warps for k in made.triton.kernels] == [warps]
