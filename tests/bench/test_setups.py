"""The setups: which there are, what they cost, how they are chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from neptune_lab.bench.ablation import ABLATED, variants
from neptune_lab.bench.setups import all_setups, case_of, choose, seen_pairs, tiny_setups
from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention
from neptune_lab.pipeline import accuracy


def test_every_row_of_the_papers_tables_is_there():
    found = Counter(s.group for s in all_setups())
    assert found == {"attention": 40, "norms": 18, "performer": 4, "chains": 12, "modules": 9, "batch": 20}
    names = [s.name for s in all_setups()]
    assert len(names) == len(set(names))
    assert set(ABLATED) <= set(names)


def test_the_sizes_are_the_published_ones():
    gqa, decode = choose(all_setups(), ["gqa_pf-2048", "alibi_dc-32768"])
    assert [t.shape for t in gqa.op.inputs] == [(1, 64, 2048, 128), (1, 8, 2048, 128), (1, 8, 2048, 128)]
    assert [t.shape for t in decode.op.inputs[:2]] == [(1, 32, 1, 128), (1, 32, 32768, 128)]
    assert decode.cold
    assert not gqa.cold


@pytest.mark.parametrize(("window", "pairs"), [(None, 36), (3, 21), (8, 36)])
def test_masked_pairs_do_not_count(window, pairs):
    make = attention.causal if window is None else lambda *a, **k: attention.window(*a, window=window, **k)
    assert seen_pairs(case_of(make(seq=8))) == pairs


def test_work_of_a_setup():
    setup = next(s for s in tiny_setups() if s.name == "gqa_dc-64")
    # Two heads of one query each see 64 keys of width 16, twice: for the scores, and for the sum of values.
    assert setup.flops == 2 * 2 * 64 * (16 + 16)
    assert setup.kv_bytes == 2 * 64 * 16 * 2
    assert setup.bytes == setup.kv_bytes + 2 * 2 * 16 * 2


def test_attention_is_described_as_the_accuracy_report_does():
    for setup in (s for s in all_setups() if s.is_attention):
        assert setup.case == accuracy.case_of(setup.op)


def test_setups_are_chosen_by_name_row_or_group():
    assert {s.row for s in choose(all_setups(), ["*_dc-8192"])} == {"causal_dc", "gqa_dc", "alibi_dc", "softcap_dc"}
    assert len(choose(all_setups(), ["performer", "chains"])) == 16
    assert choose(all_setups(), []) == all_setups()
    with pytest.raises(MeasureError, match=r"no setup matches 'g13'.*\n.*rows are"):
        choose(all_setups(), ["g13"])


def test_only_some_setups_are_ablated():
    by_name = {s.name: s for s in all_setups()}
    assert [v.name for v in variants(by_name["causal_pf-2048"])] == ["neptune_lab", "neptune_lab, untuned"]
    names = [v.name for v in variants(by_name["softcap_pf-8192"])]
    assert {"default options", "without partition_masked_loops", "split_k_update", "tanh.approx"} <= set(names)
    assert len(names) == len(set(names))
