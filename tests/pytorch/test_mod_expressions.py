"""What mods compute with constants: elements from the end, first places of extrema, 64 bits, and how large they may be.

Several terms are added up in one mod, since each kernel takes its time.  All of them vary along the keys: softmax does
not see what is added to a whole row.
"""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import DEVICE, flex, tensors

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

N = 12
G = torch.Generator().manual_seed(3)
POOL = torch.randn(N, generator=G).to(DEVICE)
TABLE = POOL.view(3, 4)
PLACES = torch.randint(-30, 30, (N,), generator=G).to(DEVICE)
WHOLE = torch.randint(-5, 6, (N,), generator=G, dtype=torch.int32).to(DEVICE)
BOOLS = torch.arange(N, device=DEVICE) % 3 == 0
HOLES = torch.tensor([0.5, 2.0, 2.0, -1.0, math.nan, 3.0, math.nan, -1.0], device=DEVICE)
DOUBLE = torch.zeros(N, dtype=torch.float64, device=DEVICE)


def same(score_mod=None, mask_mod=None) -> None:
    """The call, with FlexAttention's result on the CPU asserted."""
    q, k, v = tensors((1, 2, N, 8))
    found, expected = nl.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod), flex(q, k, v, score_mod, mask_mod)
    assert (found - expected).abs().max() < 2e-5


@pytest.mark.nightly
@pytest.mark.parametrize("step", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_elements_from_the_end_of_what_a_mod_makes(step: int):
    made = [0.1 * n for n in range(step * N + 10)]

    def score_mod(s, b, h, q, kv):
        s = s + torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])[kv % 2 - 2, q % 3 - 1]
        s = s + torch.eye(4)[kv % 4 - 4, q % 4] + POOL.flip(0)[-1 - kv]
        return s + torch.stack([s, s * 2, POOL[kv]])[kv % 3 - 3] + torch.tensor(made)[kv * step]

    same(score_mod)


@pytest.mark.nightly
def test_the_first_place_of_an_extremum():
    def score_mod(s, b, h, q, kv):
        s = s + TABLE.argmin(1)[kv % 3] * 0.3 + TABLE.max(0).indices[kv % 4] + POOL.argmax() * kv * 0.1
        return s + HOLES.argmax() * kv * 0.01 + HOLES[:4].argmax() * kv + WHOLE.argmin() * kv * 0.1

    same(score_mod)


@pytest.mark.nightly
def test_indices_along_an_axis_count_modulo_its_extent():
    def score_mod(s, b, h, q, kv):
        s = s + torch.take_along_dim(POOL, (kv * 3).reshape(1), 0)[0]
        s = s + torch.take_along_dim(TABLE, (PLACES[kv] % N).reshape(1))[0]
        return s + torch.take_along_dim(TABLE, PLACES.view(3, 4)[:1], 1)[kv % 3, kv % 4]

    same(score_mod)


def test_shifts_past_32_bits():
    def score_mod(s, b, h, q, kv):
        s = s + ((WHOLE[kv] << 31) < 0) * 2.0 + (WHOLE[kv] << 33) * 1.0  # bits of a captured int32 are lost
        return s + ((kv + WHOLE[kv]) << 31) * 1e-10 + (kv << 40) * 1e-13  # positions have 64

    same(score_mod)


@pytest.mark.nightly
def test_whole_numbers_of_conditions_and_constants_have_64_bits():
    def score_mod(s, b, h, q, kv):
        of_64 = (BOOLS[kv] + 1).dtype, torch.where(kv > 3, 1, 2).dtype, POOL.argmax().dtype
        s = s + kv * sum(dtype == torch.int64 for dtype in of_64)
        s = s + ((BOOLS[kv] * 2**20) * 2**12 + (torch.where(kv > 3, 2**20, 0) * 2**12)) * 1e-9
        s = s + ((TABLE.argmax(1)[kv % 3] * 2**20) * 2**12 + (torch.sign(kv - 5) * 2**20) * 2**12) * 1e-9
        s = s + (((BOOLS[kv] + 0) << 31) + (BOOLS[kv] * 1 - 1) * 2**31) * 1e-9
        return s + (
            torch.tensor(100) + WHOLE[kv].to(torch.int8) * 10 + torch.tensor([100, 7], dtype=torch.int8)[kv % 2] * 2
        )

    same(score_mod)


@pytest.mark.nightly
def test_whole_numbers_of_conditions_have_the_bits_of_both_and_64_beside_positions():
    def score_mod(s, b, h, q, kv):
        s = s + ((BOOLS[kv] * 2**30 | (kv > 1) * (2**30 - 1)) + 1) * 1e-9
        s = s + ((BOOLS[kv] * 5 ^ (kv > 1) * 2) * (2**31 // 7 + 1)) * 1e-9
        return s + (BOOLS[kv] * 2**29 * q + (BOOLS[kv] * 2**20) * (q * 32) * (kv * 32)) * 1e-9

    same(score_mod)


def test_constants_beside_float64_are_not_rounded():
    same(mask_mod=lambda b, h, q, kv: (DOUBLE[q] + 0.1 == 0.1) & (DOUBLE[kv] + 0.3 <= 0.3) & (q >= kv))


def test_conditions_of_what_torch_makes():
    same(
        lambda s, b, h, q, kv: (
            torch.where(torch.tensor(3) == torch.tensor(4), 0.5, s + kv) + torch.clamp(s, max=torch.tensor(1.0))
        )
    )


@pytest.mark.nightly
def test_divisions_of_heads_and_positions_by_less_than_0():
    same(lambda s, b, h, q, kv: s * ((h + 1) // -3) + (h - 1) % -3 * kv * 0.1 + (kv - q) // -4 + (q - kv) % -5)


@pytest.mark.nightly
def test_powers_of_what_torch_makes():
    same(lambda s, b, h, q, kv: s + torch.tensor(2.0) ** kv * 1e-3 + (TABLE**2)[kv % 3, kv % 4] + kv ** torch.tensor(2))


@pytest.mark.nightly
def test_the_default_dtype_that_a_mod_reads_is_part_of_it():
    def score_mod(s, b, h, q, kv):
        return s + kv * (1 if torch.tensor(1.5).dtype == torch.float32 else 2)

    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            same(score_mod)
    finally:
        torch.set_default_dtype(torch.float32)


def doubled(s, b, h, q, kv):
    for _ in range(30):
        s = torch.where(s > 0, s * 0.9, s * 1.1)
    return s


def nested(s, b, h, q, kv):
    for _ in range(70):
        s = s * 1.01 + kv
    return s


@pytest.mark.parametrize(
    ("score_mod", "told"),
    [
        (doubled, "computes [0-9]+ operations for each score: at most 20000"),
        (nested, "nests more than 100 operations"),
    ],
)
def test_a_mod_that_no_compiler_would_finish_is_refused(score_mod, told):
    with pytest.raises(DefinitionError, match=told) as raised:
        nl.attention(*tensors((1, 2, N, 8)), score_mod=score_mod)
    assert raised.value.help


ABOVE = ((torch.arange(N, device=DEVICE) - 1) // 2).clamp(min=0)


def climbed(node, steps: int, step):
    for _ in range(steps):
        node = step(node)
    return node


def known(node):
    return torch.where(node > 0, ABOVE[node.clamp(min=0)], node)


def test_a_table_that_a_loop_reads_through_itself():
    same(mask_mod=lambda b, h, q, kv: climbed(q, 3, known) <= kv)
    same(lambda s, b, h, q, kv: s + climbed(kv, 8, lambda node: ABOVE[node.clamp(0, N - 1)] - 1) * 0.1)


@pytest.mark.parametrize(
    ("steps", "step"),
    [(6, known), (7, lambda node: ABOVE[node]), (5, lambda node: torch.where(node > 0, ABOVE.int()[node], node))],
)
def test_a_loop_that_reads_a_table_through_itself_too_often_is_refused(steps, step):
    with pytest.raises(DefinitionError, match="reads inside one another") as raised:
        nl.attention(*tensors((1, 2, N, 8)), mask_mod=lambda b, h, q, kv: climbed(q, steps, step) <= kv)
    assert "up2 = up[up]" in raised.value.help
