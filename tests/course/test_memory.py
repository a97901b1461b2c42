"""Traffic and memories as the course shows them: counted from programs and from targets."""

from __future__ import annotations

import pytest
from neptune_widgets.course.memory import length_table, memory_figure, memory_table, total, traffic

import neptune_lab as nl
from neptune_lab.operators import attention, softmax
from neptune_lab.target import GPUS


def test_a_nest_reads_and_writes_each_tensor_once():
    sch = nl.Schedule(softmax.figure1(rows=2, cols=8))
    row, sums = 2 * 8 * 4, 2 * 4
    before = traffic(sch.program)
    assert [nest.row[:3] for nest in before] == [
        ("s_max", "inp", "xmax"),
        ("s_exp", "inp, xmax", "xexp"),
        ("s_sum", "xexp", "xsum"),
    ]
    assert [nest.bytes for nest in before] == [row + sums, row + sums + row, row + sums]
    sch.rolling_update("s_sum", "s_max.j")
    sch.retire_tags("s_max")
    (after,) = traffic(sch.program)
    assert (after.reads, after.writes, after.bytes) == (("inp",), ("xsum",), row + sums)


def test_lengths_grow_by_the_square_and_by_the_length():
    n, d, heads = 32, 8, 2
    ((positions, pairs, numbers, apart, fused, ratio),) = length_table(
        [attention.full(1, heads, q_len=n, kv_len=n, head_dim=d)]
    )
    assert (positions, pairs, numbers) == ("32", f"{heads * n * n:,}", f"{heads * n * d:,}")
    program = nl.Schedule(attention.full(1, heads, q_len=n, kv_len=n, head_dim=d)).definition
    assert float(apart) == pytest.approx(total(traffic(program)) / 1e6, abs=0.06)
    assert float(fused) == pytest.approx(4 * heads * n * d * 2 / 1e6, abs=0.06)
    assert int(ratio) == round(total(traffic(program)) / (4 * heads * n * d * 2))


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_a_picture(name: str):
    target = nl.Target(name)
    figure, words = memory_figure(target)
    assert len(figure.layout.shapes) == len(memory_table(target)) == 4
    assert f"{target.gbps / 1e3:.1f} TB/s" in words
    assert f"{target.shared_memory // 1024} KiB per multiprocessor" in words
