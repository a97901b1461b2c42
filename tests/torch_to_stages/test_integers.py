"""Integers of traced functions wrap around as PyTorch's do, and 64 bits are computed in 64 where 32 are too few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.loop_ir.int32_range import exceeds_int32
from neptune_lab.loop_ir.nodes import Buffer

WHOLE = torch.arange(-8, 7).view(3, 5)
LARGE = WHOLE + 2**40
FLOATS = WHOLE.float() + 0.5

BYTES = torch.arange(0, 255, 17).view(3, 5)  # as numbers of int8, some are below 0
NARROW = (torch.int8, torch.uint8, torch.int16)

FUNCTIONS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "a constant beyond int32": (lambda x: ((x.int() + 2**31) % 1000, x.int() * 65536 * 65536, x.int() < 2**40), WHOLE),
    "a sum of positions and int32": (lambda x: (x.int() + 2**31 - 9) + torch.arange(5), WHOLE),
    "a product of positions": (lambda x: x * torch.arange(1, 20).prod(), WHOLE),
    "positions that start late": (lambda x: torch.arange(2**40, 2**40 + 5) - x, WHOLE),
    "positions of int32": (
        lambda x: x + torch.arange(3, dtype=torch.int32)[:, None] * (2**31 - 1) + torch.arange(5),
        WHOLE,
    ),
    "int64 to int32": (lambda x: (x.int() + 1).sum(-1), LARGE),
    "positions": (lambda x: (torch.arange(5) * 2**30 * x).amax(-1), WHOLE),
    "the place of a maximum": (lambda x: x.argmax(-1) * 2**30 * 8, FLOATS),
    "a count": (lambda x: (x > 0).sum(-1) * 10**10, FLOATS),
    "a sum of positions": (lambda x: (torch.arange(5) * 2**29).sum() + x.sum(-1), WHOLE),
    "quotients of large numbers": (
        lambda x: ((x * 2**27).int() % (2**31 - 1), (x * 2**27).int() // (2**31 - 1)),
        WHOLE,
    ),
    "the lowest bits": (lambda x: tuple(x.to(t) & torch.iinfo(t).max for t in (torch.int8, torch.int32)), WHOLE),
    "a maximum of large numbers": (lambda x: ((x > 0) * 2**30).amax(-1) * 4, FLOATS),
    "quotients of constants": (
        lambda x: tuple(
            torch.full_like(x.to(t), 7) // -2 + torch.div(torch.full_like(x, -7), -2, rounding_mode="trunc") + x % -3
            for t in (torch.int64, torch.int32, torch.int8)
        ),
        WHOLE,
    ),
    "bits of a shifted constant": (lambda x: (torch.full_like(x, 7) >> 1) | x, WHOLE),
    "the sign of a condition": (lambda x: (x > 0).sign(), FLOATS),
    "constants alone": (lambda x: (torch.full((5,), 2**30) * 4 + x).amax(-1), WHOLE),
    "powers of numbers": (lambda x: (2 ** (x * 9), (-6) ** x.int(), 10 ** (x + 17), 0**x), WHOLE),
    "shifts by a tensor": (
        lambda x: ((x << x.abs() * 9), x * 2**60 >> (x * 5), x.int() * 2**28 >> torch.arange(5), 1 << x.int()),
        WHOLE,
    ),
    "arithmetic of 8 and 16 bits": (
        lambda x: tuple(
            f(x.to(t) * 91)
            for t in NARROW
            for f in (lambda y: (y + 100).float(), lambda y: -y // 3, lambda y: y**3 - y.abs(), lambda y: y << (y & 7))
        ),
        BYTES,
    ),
    "divisors that 8 or 16 bits do not hold": (
        lambda x: tuple(
            f(x.to(t))
            for t in NARROW
            for f in (lambda y: y >> 7, lambda y: y >> 15, lambda y: torch.fmod(y, 200), lambda y: y % 200)
        ),
        BYTES,
    ),
    "sums and products of 8 and 16 bits": (
        lambda x: tuple(
            f(x.to(t)).float()
            for t in NARROW
            for f in (
                lambda y: y.sum(-1, dtype=y.dtype),
                lambda y: y.cumprod(-1, dtype=y.dtype),
                lambda y: (y @ y.T).amax(-1),
                lambda y: y.any(-1) + 255,
            )
        ),
        BYTES,
    ),
    "conversions to 8 and 16 bits": (
        lambda x: (x.to(torch.uint8).float() * 0.5, (x * 300).short() // 7, x.byte(), (x.char() * 0.01).softmax(-1)),
        BYTES - 100.0,
    ),
    "sums that are put into narrow elements": (
        lambda x: (
            torch.select_scatter(x.char(), x.sum(-1), 1, 0).float(),
            torch.slice_scatter(x.byte(), x[:, :2] * -2.5, 1, 1, 3).float(),
            x * torch.arange(253, 258, dtype=torch.uint8),
        ),
        BYTES,
    ),
    "positions of 8 bits": (
        lambda x: x.repeat(1, 60).masked_fill(torch.arange(300).to(torch.uint8) > 100, -torch.inf).softmax(-1),
        FLOATS,
    ),
    "folds at positions, of 8 and 16 bits": (
        lambda x: (
            *(x.to(t).index_add(0, torch.tensor([0, 2, 0]), x.to(t), alpha=3) for t in NARROW),
            *(x.to(t).scatter_reduce(1, x % 5, x.to(t), how) for t in NARROW for how in ("sum", "prod", "amax")),
            x.char().index_put((torch.tensor([1, 1, 0]),), x.char(), accumulate=True),
        ),
        BYTES,
    ),
    "folds and running extrema of conditions": (
        lambda x: (
            (x > 60).scatter_add(1, x % 5, x > 200),
            (x > 60).scatter_reduce(1, x % 5, x > 30, "prod", include_self=False),
            *(x % 34 == 0).cummax(1),
            *(x > 60).cummin(0),
        ),
        BYTES,
    ),
    "shifts that leave no bit or more than 32": (
        lambda x: tuple(
            f(y, n)
            for y in (x, x.int(), x.char(), x.byte())
            for f in (torch.bitwise_left_shift, torch.bitwise_right_shift)
            for n in (-1, -40, 31, 40, 63, 64)
        ),
        WHOLE * 2**24 + 5,
    ),
    "floats that are infinite": (lambda x: ((x * 1e39).amax(-1), x.clamp(-1e39, 1e300).sum(-1)), FLOATS),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_inputs_of_8_and_16_bits(dtype: torch.dtype):
    x = (BYTES * 91).to(dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.float() / 255
        return (y - y.mean(-1, keepdim=True)).softmax(-1), x.amax(-1) - x.amin(-1), ~x, x.sum(-1), x.argmax(-1), x.all()

    for ours, theirs in zip(nl.compile(nl.from_torch(function, x))(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
def test_sums_of_integers_of_8_bits():
    x, y = BYTES.char(), (BYTES * 3).char()

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        thousand = torch.full((3,), 1000.0).to(torch.int8) * x.sum(-1).float()
        return (x @ y.T).float(), x.sum(-1, dtype=torch.int8) * 0.5, thousand

    for ours, theirs in zip(nl.compile(nl.from_torch(function, x, y))(x, y), function(x, y), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.one_in(27)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_pytorch(name: str):
    function, x = FUNCTIONS[name]
    found = nl.compile(nl.from_torch(function, x))(x)
    if name == "floats that are infinite":  # (`clamp` itself refuses such a number in eager PyTorch)
        expected = torch.tensor([-torch.inf, torch.inf, torch.inf]), x.sum(-1)
    else:
        expected = function(x)
    for ours, theirs in zip(_tuple(found), _tuple(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def _tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_elements_of_32_bits_meet_positions_in_64():
    function = lambda x: x * (torch.arange(5) + 2**15) + torch.arange(3)[:, None]  # noqa: E731
    x = (WHOLE * 2**20).int()
    torch.testing.assert_close(nl.compile(nl.from_torch(function, x))(x), function(x), rtol=0, atol=0)


def test_lengths_of_32_bits_are_compared_in_them():
    def padded(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.arange(5) >= lengths[:, None], -1.0).sum(-1)

    assert "int64" not in repr(nl.from_torch(padded, FLOATS, torch.tensor([1, 5, 2], dtype=torch.int32)).program.body)


def test_positions_of_masks_keep_32_bits():
    def masked(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.arange(5) > torch.arange(3)[:, None], -1.0).sum(-1)

    assert "int64" not in repr(nl.from_torch(masked, FLOATS).program.body)


@pytest.mark.parametrize("factor", [2**20, 2**29])
def test_limits_of_stages_are_known_in_later_ones(factor: int):
    program = nl.from_torch(lambda x: ((x > 0) * factor).amax(-1) * 4, FLOATS).program
    kept: list[Buffer] = [b for b in program.buffers if b.dtype == "int64"]
    assert (len(kept) > 1) == (factor == 2**29)
    assert not exceeds_int32(program)


def test_numbers_out_of_range_are_no_mistake_of_the_compiler():
    function = lambda x: x.int().float().sum(-1)  # noqa: E731
    kernel = nl.compile(nl.from_torch(function, FLOATS * 3))
    torch.testing.assert_close(kernel(FLOATS * 3), function(FLOATS * 3))


def test_indices_beyond_32_bits_read_no_element():
    x, beyond = torch.arange(1.0, 6.0), torch.tensor([2, 2**32 + 1, -(2**32) + 1, 2**31])
    for function in (lambda x, i: x[i + 0], lambda x, i: x.index_select(0, i + 0)):  # (what is computed is not checked)
        assert nl.compile(nl.from_torch(function, x, beyond))(x, beyond).tolist() == [3.0, 0.0, 0.0, 0.0]


def test_an_index_that_is_clamped_from_zero_is_written_once():
    x, wide = torch.arange(1.0, 6.0), torch.tensor([-3, 4, 0, 2**32 + 1])
    op = nl.from_torch(lambda x, i: x[i.clamp(min=0, max=2**40)], x, wide)
    assert str(op.program).count("i[") == 1
    assert nl.compile(op)(x, wide).tolist() == [1.0, 5.0, 1.0, 0.0]


def test_tables_read_through_themselves_have_short_programs():
    """An index that may be negative is written three times: after five steps, 3^5 times, unless it has a stage."""
    parent = torch.tensor([3, -2, 1, 5, 0, 7, 2, 4])

    def ancestor(x: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            node = parent[node]
        return x + node

    x, node = torch.zeros(8), torch.tensor([7, -1, 5, 0, 6, 1, -2, 4])
    op = nl.from_torch(ancestor, x, node)
    assert str(op.program).count("lifted_tensor_0[") < 20
    assert torch.equal(nl.compile(op)(x, node), ancestor(x, node))
