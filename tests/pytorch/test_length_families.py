"""Which calls share a kernel for all lengths: mask tensors, and queries beside a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.pytorch import flex_attention, lengths, masks
from neptune_lab.pytorch.arguments import problem_of
from neptune_lab.pytorch.extras import Extras
from neptune_lab.pytorch.length_plans import Plan
from neptune_lab.pytorch.mods import read

pytestmark = pytest.mark.usefixtures("nothing_seen")


def drawn(q_len: int, kv_len: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(q_len * 1000 + kv_len)
    return [torch.randn(1, heads, n, 32, generator=generator) for heads, n in ((4, q_len), (2, kv_len), (2, kv_len))]


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def planned(mod: Any, *every: tuple[int, int], of: Any = masks.element) -> list[list[Plan]]:
    """For each call of these lengths the plans of kernels for all lengths; none: it has a kernel of its own."""
    found = []
    for q_len, kv_len in every:
        own = mod or of(torch.ones(1, 1, q_len, kv_len, dtype=torch.bool))
        q, k, v = drawn(q_len, kv_len)
        given: tuple[Any, ...] = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, True, None, Extras()
        elements = masks.reads_elements(own)
        plans = lengths.plans_of(problem_of(*given, None), read(None, own), elements=elements)
        found.append([plan for _, _, plan in plans])
    return found


def test_a_mask_tensor_has_one_plan_whether_both_lengths_are_one_or_not():
    alone, *others = planned(None, (11, 11), (12, 12), (2, 7), (11, 30), (12, 11))
    assert not alone
    assert others == [[Plan("m", "n", ((0, ((2, "m"), (3, "n"))),), False)]] * 4
    assert planned(causal, (11, 11), (12, 12))[1] == [Plan("n", "n", (), False)]


def test_a_mask_tensor_that_is_the_same_for_all_queries():
    found = planned(None, (11, 11), (12, 12), (5, 11), of=lambda mask: masks.element(mask[:, :, :1]))
    assert found == [[], *[[Plan("m", "n", ((0, ((3, "n"),)),), False)]] * 2]


def test_a_mask_tensor_of_another_number_of_samples_has_no_such_plan():
    wider = lambda mask: masks.element(mask.expand(mask.shape[2] - 10, -1, -1, -1))  # noqa: E731
    assert planned(None, (11, 11), (12, 12), (13, 13), of=wider)[1:] == [[], []]


def test_queries_beside_a_cache_have_the_kernel_for_all_lengths_once_lengths_vary():
    """As in assisted generation; where no length has varied, other keys are those of another input."""
    planned(None, (40, 40))
    assert planned(causal, (100, 850)) == [[]]
    lengths.forget()
    planned(causal, (11, 11), (12, 12))
    assert planned(None, (2, 12), (30, 30)) == [[Plan("m", "n", ((0, ((2, "m"), (3, "n"))),), False)]] * 2


@pytest.mark.nightly
def test_one_kernel_serves_a_mask_tensor_at_all_lengths():
    for place, (m, n) in enumerate([(40, 40), (41, 41), (2, 33), (64, 130), (300, 5)]):
        q, k, v = drawn(m, n)
        mask = torch.rand(m, n, generator=torch.Generator().manual_seed(place)) < 0.6
        mask[:, 0] = True
        out = nl.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        wide = (t.double() for t in (q, k, v))
        want = F.scaled_dot_product_attention(*wide, attn_mask=mask, enable_gqa=True)
        assert (out - want).abs().max() < 1e-5, (m, n)
    entries = [entry for family in lengths._families.values() for entry in family.entries.values()]
    assert len({id(known.kernel) for known in flex_attention._kernels.values()}) == 2
    assert len(entries) == 1
