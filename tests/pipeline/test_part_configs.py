"""Sizes per nest for operators in parts, and passes that are left out of kernels for all sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.operators import attention, backward, rows
from neptune_lab.pipeline.part_configs import configs_of_parts


def in_parts() -> Any:
    return backward(attention.causal(1, 2, 64, 16, dtype="float32"))


@pytest.mark.nightly
def test_each_part_gets_the_sizes_of_its_nests():
    kernel = nl.compile(in_parts(), block_q=(16, 32, None), block_kv=(None, 16, 32), validate="none")
    grids = {k.name.removeprefix("attention_causal_backward_"): k.grid[0].extent for k in kernel.htile.kernels}
    assert grids == {"d_lse": 4, "qk": 2, "qk_2": 2}
    assert kernel.relative_error() < 1e-5


def test_a_number_is_for_all_parts():
    kernel = nl.compile(in_parts(), config=nl.TileConfig(block_q=16), validate="none")
    assert [k.grid[0].extent for k in kernel.htile.kernels] == [4, 4, 4]


@pytest.mark.parametrize("field", ["block_q", "block_kv", "num_warps"])
def test_another_number_of_entries_is_refused(field: str):
    """Before, each stage became a kernel of its own, without a word."""
    with pytest.raises(ScheduleError, match=rf"{field}=\(16, 16\) has 2 entries for 3 nests in 3 parts") as refused:
        nl.compile(in_parts(), config=replace(nl.TileConfig(), **{field: (16, 16)}), validate="none")
    assert "the nests start at the blocks d_lse, qk, qk_2" in str(refused.value)


def test_a_part_without_nests_is_refused():
    def no_template(part: Any, config: Any) -> Any:
        raise ScheduleError("it has no reduction")

    with pytest.raises(ScheduleError, match=r"no template takes the part that computes out: it has no reduction"):
        configs_of_parts([attention.causal(1, 1, 16, 16)], nl.TileConfig(block_q=(16,)), no_template)


@pytest.mark.nightly
@pytest.mark.parametrize("left_out", [(), ("fold_constant_factors",)])
def test_passes_are_left_out_of_kernels_for_all_sizes(left_out: tuple[str, ...]):
    op = rows.softmax(nl.dim("m", 512), 64)
    by_name = nl.compile(op, disable_passes=left_out)
    in_code = nl.compile(op, code=nl.CodeOptions(disable_passes=left_out))
    assert [p.name for p in by_name.passes] == [p.name for p in in_code.passes]
    assert ("fold_constant_factors" in [p.name for p in by_name.passes]) == (not left_out)
