"""The plain definitions, the float64 reference, and the hand-written kernel, against the operators' own reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neptune_lab.bench import hand_attention
from neptune_lab.bench.definitions import definition
from neptune_lab.bench.reference import Reference, reference
from neptune_lab.bench.setups import Setup, case_of, tiny_setups
from neptune_lab.bench.tensors import make_tensors
from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention, norms

ALIBI = Setup("alibi", "alibi", "attention", "attention.alibi", {"heads": 2, "q_len": 3, "kv_len": 8, "head_dim": 16})
WINDOW = Setup(
    "window", "window", "attention", "attention.window", {"heads": 2, "seq": 16, "head_dim": 16, "window": 5}
)
EVERY = (*tiny_setups(), ALIBI, WINDOW)


@pytest.mark.parametrize("setup", EVERY, ids=lambda s: s.name)
def test_the_reference_is_the_operators_own(setup):
    tensors = make_tensors(setup.op)
    want = setup.op.reference(*tensors)
    outputs = tuple(torch.from_numpy(w) for w in (want if isinstance(want, tuple) else (want,)))
    assert reference(setup, tensors).error(outputs) < 1e-9


@pytest.mark.parametrize("setup", EVERY, ids=lambda s: s.name)
def test_the_plain_definition_is_right(setup):
    tensors = make_tensors(setup.op)
    outputs = definition(setup)(*tensors)
    assert [str(o.dtype).removeprefix("torch.") for o in outputs] == [t.dtype for t in setup.op.outputs]
    assert reference(setup, tensors).error(outputs) < 2e-3


def test_one_wrong_row_of_one_head_is_seen():
    setup = next(s for s in EVERY if s.name == "causal_pf-128")
    tensors = make_tensors(setup.op)
    expected = reference(setup, tensors)
    (answer,) = definition(setup)(*tensors)
    answer[0, 1, 40] *= 2
    assert expected.error(answer) > 1e-2
    answer[0, 1, 40] = torch.nan
    assert expected.error(answer) == float("inf")


def test_many_scores_are_checked_on_a_sample(monkeypatch):
    monkeypatch.setattr("neptune_lab.bench.reference.SAMPLED", 3)
    setup = Setup("long", "long", "attention", "causal_pf", {"seq": 640, "heads": 2, "head_dim": 16})
    tensors = make_tensors(setup.op)
    sampled = reference(setup, tensors, scores=1000)
    assert sampled.checked == "3 of 10 blocks of 128 rows"
    (answer,) = definition(setup)(*tensors)
    assert sampled.error(answer) < 2e-3
    answer[0, 1, 639] += 1  # the last block is always among them
    assert sampled.error(answer) > 1e-2


def test_an_answer_near_the_least_number_of_its_dtype_is_as_right_as_that_allows():
    """A softmax of 200,000 columns has 4 to 7 bits in float16; a column that is left out is still seen."""
    right = torch.softmax(torch.randn(8, 200_000, dtype=torch.float64), dim=-1)
    blocks = Reference(((0, (slice(None),), right),), "every element")
    assert 2e-3 < blocks.rounding(torch.float16) < 5e-3
    assert blocks.error(right.to(torch.float16)) == blocks.rounding(torch.float16)
    assert blocks.rounding(torch.float32) < 1e-7
    answer = right.to(torch.float16)
    answer[3, 1000:1100] = 0
    assert blocks.error(answer) > 2 * blocks.rounding(torch.float16)


def test_inputs_that_are_not_floats_are_refused():
    from neptune_lab.operators import rows

    with pytest.raises(MeasureError, match="labels: int32"):
        make_tensors(rows.cross_entropy(2, 4))
    assert [t.dtype for t in make_tensors(norms.l2_norm(2, 4, dtype="float16"))] == [torch.float16]


CASES = {
    "causal": attention.causal(1, 2, 128, 16),
    "grouped": attention.gqa(2, 4, 128, 16, kv_heads=2),
    "two lengths": attention.full(1, 2, head_dim=16, q_len=64, kv_len=128),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("op", CASES.values(), ids=CASES)
@pytest.mark.parametrize("descriptors", [False, True], ids=["pointers", "descriptors"])
def test_the_hand_written_kernel_is_right_in_every_configuration(op, descriptors):
    case, tensors = case_of(op), make_tensors(op)
    want = op.reference(*tensors)
    assert hand_attention.configs(case)
    for config in hand_attention.configs(case):
        got = hand_attention.attention(case, *tensors, descriptors=descriptors, config=config).double().numpy()
        assert np.linalg.norm(got - want) < 1e-3 * np.linalg.norm(want), config


def test_the_hand_written_kernel_takes_the_fastest_configuration():
    op = CASES["causal"]
    wanted = hand_attention.Config(64, 32, 4, 4)
    order = iter(hand_attention.configs(case_of(op)))

    def quick(call) -> float:
        return 1.0 if next(order) == wanted else 2.0

    call, best = hand_attention.tuned(case_of(op), make_tensors(op), descriptors=False, quick=quick)
    assert best == wanted
    assert call().shape == op.outputs[0].shape


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (attention.alibi(seq=128), "global and causal"),
        (attention.full(q_len=1, kv_len=128), "prefill"),
        (attention.causal(seq=128, head_dim=80), "powers of two"),
        (attention.causal(q_len=64, kv_len=128), "as many queries as keys"),
        (attention.causal(seq=100), "no tile divides"),
    ],
)
def test_the_hand_written_kernel_says_what_it_does_not_take(op, why):
    assert why in hand_attention.refusal(case_of(op), op.inputs[0].shape[-1], op.inputs[2].shape[-1])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([3.0, 4.0, torch.nan, torch.inf], 0.0),
        ([3.0, 4.5, torch.nan, torch.inf], 0.1),
        ([3.0, torch.nan, torch.nan, torch.inf], torch.inf),
        ([3.0, 4.0, 0.0, torch.inf], torch.inf),
        ([3.0, 4.0, torch.nan, -torch.inf], torch.inf),
    ],
)
def test_nan_and_infinities_are_right_only_where_the_reference_has_them(answer, error):
    wanted = torch.tensor([[3.0, 4.0, torch.nan, torch.inf]], dtype=torch.float64)
    expected = Reference(((0, (slice(None),), wanted),), "every element")
    assert expected.error(torch.tensor([answer])) == pytest.approx(error)


def test_the_worst_block_counts():
    wanted = torch.ones(2, 256, 1, dtype=torch.float64)
    answer = wanted.clone()
    answer[1, 200] = 2.0  # one row of 128 in a block: 1 / sqrt(128)
    expected = Reference(((0, (slice(None),), wanted),), "every element")
    assert expected.error(answer) == pytest.approx(128**-0.5)
