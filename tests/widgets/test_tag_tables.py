"""Tag tables of a page: on given numbers, and sampled where a program is large."""

from __future__ import annotations

import pytest
from neptune_widgets import tags

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.operators import attention, rows, softmax


def test_tag_tables_on_the_persons_own_numbers(softmax_page):
    page = softmax_page
    values = [[float(8 * i + j) for j in range(8)] for i in range(4)]
    naive = next(
        f"{n}.{p['key']}"
        for n, s in enumerate(page.payload["trace"]["steps"])
        for p in s["phases"]
        if p["key"] == "naive"
    )
    step, phase = naive.split(".")
    answer = page.ask("tags", step=int(step), phase=phase, rolling="j0", inputs={"inp": values})
    assert (answer["kind"], answer["key"]) == ("tags", naive)
    table = answer["table"]
    assert table["rolling"] == "j0"
    signs = {c["sign"] for r in table["rows"] for c in r["cells"] if c}
    assert "!" in signs
    assert any(r["state"] == "early" for row in table["rows"] for c in row["cells"] if c for r in c["reads"])
    assert any(c["right"] is False for row in table["rows"] for c in row["cells"] if c)
    cell = next(c for row in table["rows"] if row["buffer"] == "xmax" for c in row["cells"] if c)
    assert cell["value"] in {"3", "7"}
    # the repaired program is right in its last column
    last = page.ask("tags", step=9, phase="set_scope", rolling="no_such_loop", inputs={"inp": values})["table"]
    assert last["rolling"] == "j0"
    assert any(r["kind"] == "repair" for r in last["rows"])
    assert all(c["right"] is not False for r in last["rows"] for c in r["cells"] if c)


def test_inputs_may_be_infinite_and_nan_where_their_dtype_has_such(softmax_page):
    values = [["-inf", "inf", "nan", *5 * [0.5]], *3 * [8 * [0.25]]]
    table = softmax_page.ask("tags", step=1, phase="tile", rolling="j0", inputs={"inp": values})["table"]
    assert {"nan"} <= {c["value"] for row in table["rows"] for c in row["cells"] if c}
    labels = rows.cross_entropy(2, 4)
    whole = {name: array.tolist() for name, array in tags.default_inputs(labels).items()}
    name = next(spec.name for spec in labels.inputs if spec.dtype == "int32")
    with pytest.raises(ScheduleError, match=f"input '{name}' of int32 has no infinities"):
        tags.read_inputs(labels, {**whole, name: ["inf", 0]})


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"inp": [[1.0]]}, "shape"),
        ({}, "no values for input 'inp'"),
        ({"inp": "__import__('os')"}, "not an array of numbers"),
        ([1], "by name"),
    ],
)
def test_bad_inputs_are_refused(softmax_page, inputs, message):
    answer = softmax_page.ask("tags", step=1, phase="tile", rolling="j0", inputs=inputs)
    assert answer["kind"] == "tags_error"
    assert message in answer["message"]


@pytest.mark.nightly
def test_tables_of_small_programs_come_with_the_payload_and_large_ones_are_sampled(page_of):
    small = page_of(nl.compile(softmax.figure1(), block_q=1, block_kv=2)).payload
    assert set(small["tags"]["tables"]) == {
        f"{s['index']}.{p['key']}" for s in small["trace"]["steps"] for p in s["phases"]
    }
    assert small["tags_note"] == ""
    large = page_of(nl.compile(attention.causal(batch=1, heads=4, seq=1024, head_dim=64), "rolling_update"))
    assert large.payload["tags"]["tables"] == {}
    assert "kv_len=8" in large.payload["tags_note"]
    answer = large.ask("tags", step=1, phase="tile", rolling="j0")
    assert answer["table"]["note"].startswith("A sample: the same steps at")

    def near(b, h, q, kv):
        return q - kv <= 8

    unknown = page_of(attention.general(1, 8, 512, 512, 64, mask_mod=near))
    assert unknown.payload["tags"] is None
    assert "a run makes" in unknown.payload["tags_note"]
    assert unknown.ask("tags", step=0, phase="definition", rolling="j")["kind"] == "tags_error"
