"""The tiles of definitions without reductions: along memory as it is read and as it is written."""

from __future__ import annotations

import pytest
import torch

import neptune_lab as nl
from neptune_lab.loop_ir import tree
from neptune_lab.loop_schedule.templates.elementwise import schedule_maps


def tile(function, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of the loops inside a program of the only kernel."""
    op = nl.from_torch(function, *map(torch.zeros, shapes), dynamic=False)
    (block,) = tree.blocks(schedule_maps(nl.Schedule(op)).program)
    loops = tree.find_block(schedule_maps(nl.Schedule(op)).program, block.name)[2]
    return tuple(loop.extent for loop in loops if not loop.kind.startswith("blockIdx"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda x: x.t() + 1, (200, 300), (64, 64)),
        (lambda x: x.t() + x, (200, 200), (64, 64)),
        (lambda x: x.permute(0, 2, 3, 1) + 1, (2, 96, 30, 70), (64, 64)),
        (lambda x: x.permute(0, 2, 3, 1) + 1, (2, 3, 300, 800), (3, 800)),
        (lambda x: x + 1, (30, 4000), (2048,)),
        (lambda x: x[:, :1] + x, (30, 4000), (2048,)),
        (lambda x: x.transpose(1, 2) + 1, (9, 200, 16), (200, 16)),
    ],
)
def test_tiles_go_along_what_is_read_and_what_is_written(function, shape, expected):
    assert tile(function, shape) == expected
