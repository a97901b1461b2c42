"""Tables of large shapes are made of a sample, and say so."""

from __future__ import annotations

import json

import pytest
from neptune_widgets import tags
from neptune_widgets.sample import sample

import neptune_lab as nl
from neptune_lab.errors import ScheduleError


@pytest.mark.parametrize(
    ("q_len", "template"), [(2048, "rolling_update"), (1, "split_k_update"), (200, "split_k_update")]
)
def test_a_sample_goes_through_the_same_phases(q_len, template):
    kernel = nl.compile(nl.operators.attention.causal(heads=32, q_len=q_len, kv_len=2048, head_dim=128), template)
    small, sizes = sample(kernel.schedule)
    assert "kv_len=8" in sizes
    assert [a.step.primitive for a in small.history] == [a.step.primitive for a in kernel.schedule.history]
    for tiny, real in zip(small.history, kernel.schedule.history, strict=True):
        assert [p.key for p in tiny.outcome.phases] == [p.key for p in real.outcome.phases]
    assert small.check()


def test_the_page_gets_a_sample_that_says_so():
    explorer = nl.explore(nl.compile(nl.operators.attention.causal(heads=4, seq=256, head_dim=64)))
    payload = json.loads(explorer.payload)
    assert payload["tags"]["inputs"][0]["shape"] == [1, 1, 4, 2]
    assert payload["tags_note"].startswith("A sample: the same steps at heads=1, q_len=4, kv_len=8, head_dim=2.")
    schedule, note = tags.shown(explorer.schedule)
    step = next(n for n, s in enumerate(schedule.steps, 1) if str(s).startswith("rolling_update('s_sum'"))
    table = tags.table(schedule, step, "naive", None, tags.default_inputs(schedule.operator), note)
    assert table["note"].startswith("A sample")
    assert any(cell and cell["sign"] == "!" for row in table["rows"] for cell in row["cells"])


def test_small_programs_are_shown_themselves():
    schedule = nl.Schedule(nl.operators.softmax.figure1())
    assert tags.shown(schedule) == (schedule, "")


def test_an_operator_that_cannot_be_made_smaller_says_how_large_it_is():
    def near(b, h, q, kv):
        return q - kv <= 8

    large = nl.operators.attention.general(1, 8, 512, 512, 64, mask_mod=near)
    with pytest.raises(ScheduleError, match=r"a run makes .* stores"):
        tags.shown(nl.Schedule(large))
