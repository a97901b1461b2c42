"""A value of the row inside the term: h reads it, if it is the same at every element of the reduction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neptune_lab as nl
from neptune_lab.loop_ir.run import compare
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.repairing import RepairRefused

ROWS, COLS = 4, 12


def temperature(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return ((x - x.amax(-1, keepdim=True)) / t[:, None]).exp().sum(-1)


def scaled(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (t[:, None] * (x - x.amax(-1, keepdim=True))).exp().sum(-1)


def of_columns(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return ((x - x.amax(-1, keepdim=True)) / t).exp().sum(-1)


def of_elements(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return ((x - x.amax(-1, keepdim=True)) / t).exp().sum(-1)


def of_the_row_itself(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return ((x - x.amax(-1, keepdim=True)) / (x * t[:, None]).square().sum(-1, keepdim=True)).exp().sum(-1)


def scheduled(function: Callable[..., torch.Tensor], *shape: int) -> Schedule:
    sch = Schedule(nl.from_torch(function, torch.ones(ROWS, COLS), torch.ones(*shape)))
    sch.split("amax.j", (None, 4))
    return sch


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("function", [temperature, scaled])
def test_h_reads_what_is_constant_in_a_row(function: Callable[..., torch.Tensor], template: str):
    sch = scheduled(function, ROWS)
    getattr(sch, template)("sum", "amax.j0")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLS, generator=generator)
    x[1, :5] = -torch.inf
    x[2] = -torch.inf
    x[3] *= 1e4
    t = torch.tensor([0.7, 2.0, 1.5, -0.25])
    inputs = {"x": x.numpy(), "t": t.numpy()}
    assert compare(sch.program, sch.definition, inputs=inputs).equal


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "shape", "step"),
    [
        (of_columns, (COLS,), "separate"),
        (of_elements, (ROWS, COLS), "separate"),
        (of_the_row_itself, (ROWS,), "prove Eq. 4"),
    ],
)
def test_h_reads_nothing_that_differs_or_is_incomplete(
    function: Callable[..., torch.Tensor], shape: tuple[int, ...], step: str
):
    sch = scheduled(function, *shape)
    if sch.has_block("sum_2"):
        sch.rolling_update("sum", "amax.j0")
    last = "sum_2" if sch.has_block("sum_2") else "sum"
    with pytest.raises(RepairRefused) as caught:
        sch.rolling_update(last, "amax.j0")
    assert caught.value.failed_step == step
