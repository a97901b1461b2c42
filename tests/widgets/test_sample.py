"""Tables of large shapes are made of a sample, and say so."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from neptune_widgets import payload, tags
from neptune_widgets.sample import sample
from neptune_widgets.session import Session

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.operators import Operator


@pytest.mark.one_in(3)
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


@pytest.mark.nightly
def test_the_page_gets_a_sample_that_says_so():
    explorer = nl.explore(nl.compile(nl.operators.attention.causal(heads=4, seq=256, head_dim=64)))
    shown = json.loads(explorer.payload)
    assert shown["tags"]["inputs"][0]["shape"] == [1, 1, 4, 2]
    assert shown["tags_note"].startswith("A sample: the same steps at heads=1, q_len=4, kv_len=8, head_dim=2.")
    schedule, note = tags.shown(explorer.schedule)
    step = next(n for n, s in enumerate(schedule.steps, 1) if str(s).startswith("rolling_update('s_sum'"))
    table = tags.table(schedule, step, "naive", None, tags.default_inputs(schedule.operator), note)
    assert table["note"].startswith("A sample")
    assert any(cell and cell["sign"] == "!" for row in table["rows"] for cell in row["cells"])


def test_small_programs_are_shown_themselves():
    schedule = nl.Schedule(nl.operators.softmax.figure1())
    assert tags.shown(schedule) == (schedule, "")


@pytest.mark.nightly
def test_a_page_alone_has_tables_of_a_sample_rather_than_none(monkeypatch: pytest.MonkeyPatch):
    schedule = nl.Schedule(nl.operators.softmax.figure1(rows=16, cols=64))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    assert tags.shown(schedule)[0] is schedule, "each table alone is small enough to be asked for"
    monkeypatch.setattr(tags, "LARGEST", 600)  # of all phases: 6000, which five phases of 2,000 stores exceed
    monkeypatch.setattr(tags, "too_large", lambda schedule: "")
    kept = json.loads(payload.static(Session(schedule)).text)
    assert set(kept["tags"]["tables"]) >= {"0.definition", "1.naive", "1.repaired"}
    note = kept["tags"]["tables"]["1.naive"]["note"]
    assert note.endswith(f"The program itself makes {tags.size(schedule):,} stores.")


def test_an_operator_that_cannot_be_made_smaller_says_how_large_it_is():
    def near(b, h, q, kv):
        return q - kv <= 8

    large = nl.operators.attention.general(1, 8, 512, 512, 64, mask_mod=near)
    with pytest.raises(ScheduleError, match=r"a run makes .* stores"):
        tags.shown(nl.Schedule(large))


def scaled_sum(rows: int, cols: int) -> Operator:
    """An operator of one's own: the sum of a row's values over the largest."""
    from tvm import te

    x = te.placeholder((rows, cols), "float32", name="x")
    j, k = te.reduce_axis((0, cols), name="j"), te.reduce_axis((0, cols), name="k")
    big = te.compute((rows,), lambda i: te.max(te.abs(x[i, j]), axis=j), name="big")
    scaled = te.compute((rows,), lambda i: te.sum(te.abs(x[i, k]) / big[i], axis=k), name="scaled")
    return nl.operators.custom("scaled_sum", [x], [scaled])


def test_a_large_operator_of_ones_own_says_how_to_get_a_sample():
    payload = json.loads(nl.explore(nl.compile(scaled_sum(2048, 65536))).payload)
    assert payload["tags"] is None
    assert "nl.explore(op, sample=small_op)" in payload["tags_note"]


@pytest.mark.nightly
def test_a_large_traced_function_is_traced_anew_on_small_tensors():
    class Scored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Parameter(torch.ones(16, 64))

        def forward(self, x, shift):
            return torch.softmax(x @ self.gate.T + shift, -1)

    op = nl.from_torch(Scored().eval(), torch.randn(4096, 64), 3)
    schedule, note = tags.shown(nl.compile(op, validate="none").schedule)
    # 64 is the width of what the module holds, too.
    assert note.startswith("A sample: the same steps at x of 8 × 64, gate of 16 × 64.")
    assert schedule.check()


def test_a_traced_function_that_takes_no_smaller_tensors_says_how_to_get_a_sample():
    op = nl.from_torch(lambda x: torch.softmax(x.view(64, 1024), -1), torch.randn(64 * 1024))
    with pytest.raises(ScheduleError, match=r"nl.explore\(op, sample=nl.from_torch\(f, \*small_tensors\)\)"):
        tags.shown(nl.Schedule(op))


@pytest.mark.parametrize("how", [{"dynamic_shapes": ({1: nl.dim("n")},)}, {"dynamic": True}], ids=["named", "dynamic"])
def test_a_function_traced_for_all_sizes_is_traced_anew_on_small_tensors(how: dict):
    op = nl.from_torch(lambda x: torch.softmax(x, -1), torch.randn(3, 64), **how)
    small, sizes = sample(nl.Schedule(op.at()))
    assert op.family is not None
    assert sizes in ("x of 3 × 8", "x of 4 × 8")
    assert small.blocks == nl.Schedule(op.at()).blocks


def test_a_function_that_makes_the_operator_makes_the_sample():
    explorer = nl.explore(scaled_sum, rows=2048, cols=65536)
    assert json.loads(explorer.payload)["tags_note"].startswith("A sample: the same steps at x of 4 × 8.")
    assert "the same steps at x of 4 × 8, since " in explorer.check()


def test_a_large_operator_of_ones_own_has_tags_and_a_check_by_its_sample():
    explorer = nl.explore(nl.compile(scaled_sum(2048, 65536)), sample=scaled_sum(2, 8))
    payload = json.loads(explorer.payload)
    assert payload["tags"]["inputs"][0]["shape"] == [2, 8]
    assert payload["tags_note"].startswith("A sample: the same steps at x of 2 × 8.")
    assert payload["tags"]["tables"] or payload["tags"]["rolling"]
    said = explorer.check()
    assert said.startswith("equals the definition")
    assert "the same steps at x of 2 × 8" in said


def test_a_sample_must_be_the_same_operator():
    schedule = nl.Schedule(nl.operators.softmax.figure1(2, 4))
    with pytest.raises(ScheduleError, match="a record is shown as it was saved"):
        nl.explore(nl.explore(schedule).trace, sample=schedule.operator)
    with pytest.raises(ScheduleError, match=r"sample is not scaled_sum at other sizes: its inputs are inp"):
        nl.explore(nl.Schedule(scaled_sum(64, 64)), sample=nl.operators.softmax.figure1(2, 4))


def test_a_sample_that_is_too_large_says_so():
    payload = json.loads(nl.explore(nl.compile(scaled_sum(2048, 65536)), sample=scaled_sum(512, 512)).payload)
    assert "the sample makes" in payload["tags_note"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["attention.gqa", "norms.rms_norm_max"])
def test_a_backward_pass_is_derived_anew_of_its_operator_at_small_sizes(name: str):
    sizes = {"rows": 512, "cols": 1000}
    if name == "attention.gqa":
        sizes = {"batch": 1, "heads": 8, "seq": 1024, "head_dim": 64, "kv_heads": 2}
    kernel = nl.compile(nl.operators.training(nl.operators.OPERATORS[name](**sizes)).backward, validate="none")
    made, said = sample(kernel.schedule)
    assert made.blocks == kernel.schedule.blocks
    assert ("heads=2" if "heads" in sizes else "rows=2") in said


def test_a_sample_applies_each_step_once(monkeypatch: pytest.MonkeyPatch):
    """The schedule itself is not applied again: of hundreds of steps, that took ten times as long."""
    schedule = nl.templates.rolling_update(nl.Schedule(nl.operators.attention.causal(heads=2, seq=64, head_dim=48)))
    applied = []
    apply = nl.Schedule.apply

    def counted(self: nl.Schedule, *step: Any, **arguments: Any) -> Any:
        applied.append(step)
        return apply(self, *step, **arguments)

    monkeypatch.setattr(nl.Schedule, "apply", counted)
    assert sample(schedule) is not None
    assert len(applied) == len(schedule.steps)
