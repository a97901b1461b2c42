"""What no argument changes is computed ahead where kernels cannot compute it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, ScheduleError
from neptune_lab.loop_ir.positions import positions_below
from neptune_lab.pipeline import fallback


def buckets(distance: torch.Tensor, count: int = 8, most: int = 16) -> torch.Tensor:
    """T5's buckets of distances: exact ones near 0, logarithmic ones beyond."""
    half = count // 2
    side = (distance > 0).long() * half
    distance = distance.abs()
    exact = half // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(most / exact) * (half - exact)).long()
    return side + torch.where(distance < exact, distance, torch.clamp(far, max=half - 1))


def t5(q, k, v, table):
    at = torch.arange(q.shape[-2])
    bias = table[buckets(at[None, :] - at[:, None])].permute(2, 0, 1)
    return F.softmax(q @ k.mT + bias, dim=-1) @ v


@pytest.mark.nightly
def test_buckets_of_distances_are_a_tensor_that_one_kernel_reads():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 33, 16)
    table = torch.randn(8, 2)
    operator = nl.from_torch(t5, q, k, v, table)
    (name,) = operator.captured
    np.testing.assert_array_equal(
        operator.captured[name], buckets(torch.arange(33)[None, :] - torch.arange(33)[:, None]).numpy()
    )
    kernel = nl.compile(operator)
    assert len(kernel.htile.kernels) == 1
    torch.testing.assert_close(kernel(q, k, v, table), t5(q, k, v, table))


def test_what_is_needed_by_no_kernel_is_not_kept():
    x = torch.randn(3, 4)
    assert not nl.from_torch(lambda x: x * torch.arange(4).float().log1p(), x).captured
    assert not nl.from_torch(lambda x: (torch.arange(4).cumsum(0), x + 1)[1], x).captured


def test_random_numbers_are_not_computed_ahead():
    with pytest.raises(DefinitionError, match=r"rand.*test_known.py, line") as caught:
        nl.from_torch(lambda x: x + torch.rand(4), torch.randn(3, 4))
    assert "pass them as an input" in str(caught.value.help)


def test_a_tensor_too_large_to_keep_is_refused_at_its_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("neptune_lab.torch_to_stages.lower.MOST", 3)
    with pytest.raises(DefinitionError, match=r"cumsum is not supported of more than 3 numbers, in .*test_known.py"):
        nl.from_torch(lambda x: x + torch.ones(4).cumsum(0), torch.randn(3, 4))


class Rotary(torch.nn.Module):
    """The rotary embedding of Llama's first code, with its angles in a complex buffer."""

    angles: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        steps = torch.outer(torch.arange(16), 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("angles", torch.polar(torch.ones_like(steps), steps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.angles[: x.shape[-2]]).flatten(-2).type_as(x)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_complex_buffer_is_two_inputs(dtype: torch.dtype):
    module, x = Rotary(), torch.randn(2, 3, 9, 8, dtype=dtype)
    operator = nl.from_torch(module, x)
    assert sorted(a.dtype.name for a in operator.captured.values()) == ["float32", "float32"]
    torch.testing.assert_close(nl.compile(operator)(x), module(x))
    assert nl.compile(operator).relative_error() < 1e-3


def test_complex_arguments_and_results_are_refused_with_a_real_spelling():
    x = torch.randn(3, 4)
    with pytest.raises(DefinitionError, match="complex64") as caught:
        nl.from_torch(lambda z: z.real, torch.complex(x, x))
    assert "view_as_real" in str(caught.value.help)
    with pytest.raises(DefinitionError, match=r"result out is complex.*line \d+") as caught:
        nl.from_torch(lambda x: torch.complex(x, x), x)
    assert "view_as_real" in str(caught.value.help)


@pytest.mark.nightly
def test_labels_are_drawn_among_the_classes():
    def loss(x, target):
        classes = F.one_hot(target, 3).float()
        return F.cross_entropy(x, target) + (classes * x).sum(), x.gather(1, target[:, None] % 3)

    x, target = torch.randn(40, 3), torch.randint(0, 3, (40,))
    operator = nl.from_torch(loss, x, target)
    assert positions_below(operator.program, "target", 8) == 3
    assert positions_below(operator.program, "x", 8) == 8
    assert set(operator.random_inputs()["target"]) == {0, 1, 2}
    assert nl.compile(operator).relative_error() < 1e-5


def test_a_number_is_drawn_without_a_dimension():
    operator = nl.from_torch(lambda x, scale: x * scale, torch.randn(3, 4), torch.tensor(2.0))
    assert operator.random_inputs()["scale"].shape == ()
    assert nl.compile(operator).relative_error() < 1e-6


def test_what_cannot_be_a_kernel_names_the_users_line(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise ScheduleError("no tiles fit")

    operator = nl.from_torch(lambda x: x.softmax(-1) @ x, torch.randn(4, 4))
    monkeypatch.setattr(fallback, "schedule_stage", refuse)
    with pytest.raises(ScheduleError, match=r"(?s)even by itself: no tiles fit.*from .*test_known.py, line \d+: "):
        fallback.schedule_each_stage(operator, ScheduleError("not fused"), lambda _: None)


def test_elements_are_repeated_as_a_constant_tensor_says():
    counts, twice = torch.tensor([1, 0, 3]), torch.tensor([2])

    def repeated(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.repeat_interleave(counts, dim=0) * 2,
            torch.repeat_interleave(x, twice, 1) + 1,
            x.repeat_interleave(twice) + 1,
            x[torch.repeat_interleave(counts)] + 1,
        )

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    op = nl.from_torch(repeated, x)
    for ours, theirs in zip(op.compute(x.numpy(), *op.captured.values()), repeated(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours).float(), theirs)
