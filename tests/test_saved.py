"""Records that were saved by earlier versions open in this one; newer ones are refused with help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from neptune_widgets import static_view
from saved_records import path, saved, text

from neptune_lab import trace
from neptune_lab.errors import TraceError
from neptune_lab.trace import SCHEMA, json_form, schema


@pytest.mark.parametrize("number", range(schema.OLDEST, SCHEMA + 1))
def test_a_record_of_every_schema_opens(number: int, tmp_path: Path):
    assert path(number).is_file(), "python tests/saved_records.py writes the record of the current schema"
    (tmp_path / "record.json").write_text(text(number), encoding="utf-8")
    record = trace.load_trace(tmp_path / "record.json")
    assert record.schema == SCHEMA
    assert record.operator.name == "attention_causal"
    assert [t.shape for t in record.operator.inputs] == [(1, 1, 8, 4)] * 3
    assert [s.primitive for s in record.steps][:3] == ["definition", "remark", "tile"]
    rolled = [s for s in record.steps if s.primitive == "rolling_update"]
    assert [[p.key for p in s.phases] for s in rolled] == [
        ["dataflow", "naive", "repaired"],
        ["dataflow", "naive", "repair", "repaired"],
        ["dataflow", "naive", "repair", "repaired"],
    ]
    repairs = [p.derivation for s in rolled for p in s.phases if p.derivation is not None]
    assert [d.summary for d in repairs] == ["h(t, r, r') = t*exp(s_max - s_max')"] * 2
    assert all(d.accepted and len(d.steps) >= 4 for d in repairs)
    assert [p.wrong for p in rolled[-1].phases] == [False, True, True, False]
    assert any("exp" in line.text for line in record.program)
    assert record.kernel is not None
    assert "partition_masked_loops" in [p.name for p in record.kernel.passes]
    assert "tl.dot(" in record.kernel.source
    assert trace.links(record) == ()
    assert "Causal attention" in static_view.html(record)


def test_a_record_says_which_template_applied_its_steps():
    by_hand = ("definition", "remark")
    assert all(s.template == ("" if s.primitive in by_hand else "rolling_update") for s in saved(SCHEMA).steps)
    assert {s.template for s in saved(2).steps} == {""}
    data = json.loads(text(2))
    data["steps"] = [None, *data["steps"]]
    with pytest.raises(TraceError, match=r"trace\.steps\[0\] is NoneType"):
        trace.from_json(json.dumps(data))


def test_the_current_schema_is_written_as_it_was_saved():
    assert trace.to_json(saved(SCHEMA)) == text(SCHEMA)


def test_a_later_version_upgrades_what_this_one_saved(monkeypatch: pytest.MonkeyPatch):
    """As if the schema before had called an operator's title its heading."""
    data = json.loads(text(SCHEMA))
    data["operator"]["heading"] = data["operator"].pop("title")
    data["schema"] = SCHEMA - 1

    def rename(older: dict) -> None:
        older["operator"]["title"] = older["operator"].pop("heading")

    monkeypatch.setattr(schema, "OLDEST", SCHEMA - 1)
    monkeypatch.setattr(schema, "UPGRADES", {**schema.UPGRADES, SCHEMA - 1: rename})
    assert json_form.from_json(json.dumps(data)) == saved(SCHEMA)


def test_every_schema_but_the_last_has_an_upgrade():
    assert set(schema.UPGRADES) == set(range(schema.OLDEST, SCHEMA))


def test_a_newer_record_is_refused_with_the_version_that_wrote_it():
    data = json.loads(text(SCHEMA)) | {"schema": SCHEMA + 1}
    data["versions"]["neptune-lab"] = "7.5"
    with pytest.raises(
        TraceError, match=rf"has schema {SCHEMA + 1}, this version reads schemas {schema.OLDEST} to {SCHEMA}"
    ) as caught:
        trace.from_json(json.dumps(data))
    assert caught.value.help == (
        "neptune-lab '7.5' wrote it: read it with that version or a later one (pip install --upgrade neptune-lab)"
    )
    data["versions"] = ["7.5"]
    with pytest.raises(TraceError) as caught:
        trace.from_json(json.dumps(data))
    assert str(caught.value.help).startswith("a newer neptune-lab wrote it: ")


@pytest.mark.parametrize("number", [0, 1, -3, None, "2", 2.0, True])
def test_a_record_of_no_known_schema_is_refused_with_help(number: object):
    data = json.loads(text(SCHEMA)) | {"schema": number}
    with pytest.raises(TraceError, match=f"this version reads schemas {schema.OLDEST} to {SCHEMA}") as caught:
        trace.from_json(json.dumps(data))
    assert caught.value.help == "compile the operator again with this version, and save its record"
