"""A candidate is a value: hashable, the same whatever the order of its options, and JSON there and back."""

from __future__ import annotations

import json

import pytest

from neptune_lab.autotune.candidate import Candidate
from neptune_lab.errors import TuneError
from neptune_lab.operators import attention


def test_the_order_of_the_options_does_not_matter():
    one = Candidate.of("rolling_update", block_q=128, block_kv=64)
    other = Candidate.of("rolling_update", block_kv=64, block_q=128)
    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == "rolling_update block_kv=64 block_q=128"


def test_json_keeps_tuples_and_none():
    made = Candidate.of(
        "split_k_update", splits=(8, None), loads="descriptors", warp_specialize=False, loop_stages=None
    )
    back = Candidate.from_json(json.loads(json.dumps(made.to_json())))
    assert back == made
    assert back.kwargs["splits"] == (8, None)


def test_a_change_is_a_new_candidate_and_no_change_the_same_object():
    made = Candidate.of("rolling_update", block_q=64)
    assert made.but(block_q=64) is made
    assert made.but(num_warps=8) == Candidate.of("rolling_update", block_q=64, num_warps=8)


def test_it_compiles_with_its_options():
    operator = attention.causal(batch=1, heads=1, seq=64, head_dim=16)
    kernel = Candidate.of("rolling_update", block_q=32, block_kv=16, num_warps=2).compile(operator)
    assert kernel.triton.kernels[0].grid == (2, 1, 1)
    assert kernel.htile.kernels[0].num_warps == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Candidate("rolling_update", (("b", 1), ("a", 2))), "alphabetical order"),
        (lambda: Candidate.of("rolling_update", block_q=1.5), r"block_q=1.5: expected an int"),
        (lambda: Candidate.of("rolling_update", block_q=((1,),)), r"block_q=\(\(1,\),\): expected an int"),
        (lambda: Candidate.from_json({"template": "rolling_update"}), "is not a candidate"),
    ],
)
def test_what_is_no_candidate_is_refused(make, message):
    with pytest.raises(TuneError, match=message):
        make()
