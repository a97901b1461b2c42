"""Records: what a workload is known by, how they are kept, and which one is the best."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from devices import A100, H200

from neptune_lab import records
from neptune_lab.errors import MeasureError
from neptune_lab.operators import OPERATORS, attention, find, gemm_chain
from neptune_lab.records import Record, Store, best, definition_of, workload_key
from neptune_lab.runtime.timing import Resources


@pytest.fixture(scope="module")
def op():
    return attention.causal(heads=2, seq=32, head_dim=16)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "new folder" / "records.sqlite")


@pytest.fixture
def record(op):
    return Record(
        workload=workload_key(op),
        operator=op.name,
        params=op.params,
        device=H200.name,
        capability="9.0",
        torch="2.11.0",
        triton="3.6.0",
        source="aaaa",
        candidate={"template": "rolling_update", "options": {"block_q": 64, "block_kv": [64, None]}},
        cold=False,
        us=12.5,
        low=12.0,
        high=13.0,
        error=2e-4,
        resources=(Resources("k", 168, 0, 1024, 4),),
        when="2026-01-01T00:00:00+00:00",
        command="nl.tune",
    )


def test_a_workload_is_its_definition_and_not_its_name(op):
    assert workload_key(op) == workload_key(attention.causal(heads=2, seq=32, head_dim=16))
    assert workload_key(op) == workload_key(attention.gqa(heads=2, seq=32, head_dim=16, kv_heads=2))
    strided = op.with_strides(q=(1024, 16, 32, 1))
    assert strided.program is op.program
    assert workload_key(strided) != workload_key(op) == workload_key(op.with_strides(q=None))
    others = [
        attention.causal(heads=2, seq=64, head_dim=16),
        attention.causal(heads=2, seq=32, head_dim=16, dtype="bfloat16"),
        attention.causal(heads=2, kv_heads=1, seq=32, head_dim=16),
        attention.window(heads=2, seq=32, head_dim=16, window=8),
        attention.window(heads=2, seq=32, head_dim=16, window=9),
    ]
    assert len({workload_key(o) for o in [op, *others]}) == 6


def test_the_key_stays_what_it_is():
    """A key that changes loses every record; where a definition is meant to change, write the new one here."""
    assert workload_key(gemm_chain.gemm_chain(m=32, n=16, k=16, h=16)) == "be7e09608fe8848ddd5dd0fe"


def test_definition_as_json(golden, op):
    definition = definition_of(op.program)
    lines = [json.dumps({k: v for k, v in definition.items() if k != "stages"}), *map(json.dumps, definition["stages"])]
    golden("attention_causal.definition.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", [n for n in OPERATORS if n.startswith(("norms", "rows", "softmax", "gemm"))])
def test_every_definition_is_plain_json(name):
    json.dumps(definition_of(find(name)().program), allow_nan=False)


def test_a_scheduled_program_is_no_definition(op):
    import neptune_lab as nl

    with pytest.raises(MeasureError, match=r"qk|score|s_max"):
        definition_of(nl.templates.rolling_update(nl.Schedule(op), block_q=16, block_kv=16).program)


def test_records_come_back_as_they_were(store, record):
    assert store.find() == ()
    store.put(record)
    assert store.find() == (record,)
    assert store.find(workload=record.workload, device=H200.name, source="aaaa", cold=False) == (record,)
    assert store.find(workload="another") == store.find(cold=True) == ()
    assert record.template == "rolling_update"
    assert record.options == {"block_q": 64, "block_kv": (64, None)}


def test_a_newer_measurement_replaces_the_older(store, record):
    store.put(record)
    store.put(replace(record, us=11.0))
    store.put(replace(record, triton="3.7.0", us=14.0), replace(record, source="bbbb", us=None, failure="wrong"))
    assert [(r.triton, r.us) for r in store.find()] == [("3.6.0", 11.0), ("3.7.0", 14.0), ("3.6.0", None)]


def test_export_and_import(store, record, tmp_path):
    store.put(record, replace(record, source="bbbb", us=None, low=None, high=None, failure="spills 80"))
    path = store.export(tmp_path / "records.json")
    other = Store(tmp_path / "other.sqlite")
    assert other.load(path) == 2
    assert other.find() == store.find()


def test_best_prefers_these_versions_then_the_fastest(store, record, op, monkeypatch):
    here = replace(H200, torch="2.11.0", triton="3.6.0")
    assert best(op, here, store=store) is None
    store.put(
        replace(record, source="failed", us=None, failure="wrong"),
        replace(record, source="slow", us=20.0),
        replace(record, source="fast", us=10.0),
        replace(record, source="elsewhere", us=1.0, triton="3.9.0"),
        replace(record, source="other GPU", us=1.0, device=A100.name),
    )
    assert best(op, here, store=store).source == "fast"
    assert best(op, replace(here, triton="4.0"), store=store).source == "elsewhere"
    assert best(op, H200.name, store=store).source == "elsewhere"
    assert best(attention.causal(heads=1, seq=32, head_dim=16), here, store=store) is None


def test_shipped_records_come_after_the_user_s(store, record, op, tmp_path, monkeypatch):
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    Store(tmp_path / "x").export(shipped / "h200.json", [replace(record, source="shipped", us=1.0)])
    monkeypatch.setattr(records, "SHIPPED", shipped)
    records.shipped.cache_clear()
    try:
        assert best(op, H200, store=store).source == "shipped"
        store.put(record)
        assert best(op, H200, store=store).source == "aaaa"
    finally:
        records.shipped.cache_clear()


def test_the_store_is_in_the_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    assert Store().path == tmp_path / "records.sqlite"


@pytest.mark.nightly
def test_several_processes_write_at_once(store, record, tmp_path):
    script = """
import json, sys
from neptune_lab.records import Record, Store
data = json.loads(sys.argv[2])
for n in range(20):
    Store(sys.argv[1]).put(Record.from_json({**data, "source": f"{sys.argv[3]}-{n}"}))
"""
    arguments = [str(store.path), json.dumps(record.to_json())]
    writers = [subprocess.Popen([sys.executable, "-c", script, *arguments, str(n)]) for n in range(3)]
    assert [w.wait() for w in writers] == [0, 0, 0]
    assert len(store.find()) == 60


def test_a_damaged_file_is_named(tmp_path, record):
    path = tmp_path / "records.sqlite"
    path.write_text("this is no database" * 100, encoding="utf-8")
    with pytest.raises(MeasureError, match=r"records\.sqlite.*not a database"):
        Store(path).find()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "no tuning records: expected an object with a field 'schema'"),
        ('{"schema": 0, "records": []}', "tuning records of schema 0, this version reads schema 1"),
        ('{"schema": true, "records": []}', "schema True"),
        ('{"schema": 1}', "the file has no field 'records'"),
        ('{"schema": 1, "records": [{"workload": "x"}]}', "lacks.*fields"),
        ('{"schema": 1, "records": [7]}', "a record is int"),
    ],
)
def test_other_files_are_refused(tmp_path, store, text, said):
    path = tmp_path / "records.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MeasureError, match=said) as refused:
        store.load(path)
    assert refused.value.help
