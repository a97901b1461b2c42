"""Broken files of records: said with what mends them, and no reason to do without a kernel."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from devices import H200
from typer.testing import CliRunner
from waiting import LONG

import neptune_lab as nl
from neptune_lab import records
from neptune_lab.cli import app
from neptune_lab.errors import MeasureError
from neptune_lab.operators import softmax
from neptune_lab.pytorch import flex_attention
from neptune_lab.records import Record, RecordsWarning, Store, best, workload_key
from neptune_lab.runtime import device_facts

COLUMNS = "workload, device, capability, torch, triton, source, cold, us, record"


@pytest.fixture(scope="module")
def op():
    return softmax.figure1(rows=4, cols=8)


@pytest.fixture
def record(op):
    return Record(
        workload=workload_key(op), operator=op.name, params=op.params, device=H200.name, capability="9.0",
        torch="2.11.0", triton="3.6.0", source="aaaa", candidate={"template": None, "options": {}}, cold=False,
        us=12.5,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The user's own."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    return Store(patience=0.05)


def change(store: Store, query: str, *values: object) -> None:
    with sqlite3.connect(store.path) as db:
        db.execute(query, values)
    db.close()


def insert(store: Store, record: Record, text: object, **columns: object) -> None:
    row = {**{n: getattr(record, n) for n in COLUMNS.split(", ")[:-1]}, "record": text, **columns}
    change(store, f"insert into records_1 ({COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)", *row.values())


def test_reading_makes_neither_a_file_nor_a_table(store):
    assert store.find() == ()
    assert not store.path.exists()
    store.path.write_bytes(b"")
    assert store.find() == ()
    assert store.path.stat().st_size == 0
    sqlite3.connect(store.path).execute("create table another (x)")
    before = store.path.read_bytes()
    assert store.find() == ()
    assert store.path.read_bytes() == before
    assert os.listdir(store.path.parent) == ["records.sqlite"]


BAD = {
    "not JSON": "{",
    "no object": "7",
    "a number": 7,
    "nothing to read": b"\xff\xfe",
    "no field": '{"workload": "x"}',
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_one_bad_row_does_not_hide_the_others(store, record, op, text):
    store.put(record, replace(record, source="cccc", us=20.0))
    insert(store, record, text, source="bbbb")
    with pytest.warns(RecordsWarning, match=r"1 of the records in .*records\.sqlite cannot be read, the other 2") as w:
        assert [r.source for r in store.find()] == ["aaaa", "cccc"]
    assert "neptune-lab records --mend" in str(w[0].message)
    with pytest.warns(RecordsWarning):
        assert best(op, H200, store=store) == record
    assert store.mend()[0] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [r.source for r in store.find()] == ["aaaa", "cccc"]


def test_a_row_that_says_another_thing_than_its_record_is_a_bad_row(store, record):
    store.put(record)
    insert(store, record, json.dumps(replace(record, workload="another").to_json()), source="bbbb")
    with pytest.warns(RecordsWarning, match="its workload is not the row's"):
        assert store.find() == (record,)


def junk(store: Store) -> None:
    store.path.write_bytes(b"this is no database" * 1000)


def cut(store: Store) -> None:
    """Half of a file: its second table is beyond the end."""
    change(store, "create table more (x)")
    for _ in range(20):
        change(store, "insert into more values (zeroblob(4000))")
    store.path.write_bytes(store.path.read_bytes()[:4096])


def folder(store: Store) -> None:
    store.path.unlink()
    store.path.mkdir()
    (store.path / "file").touch()


BROKEN = {"junk": junk, "cut off": cut, "a folder": folder}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_disables_nothing(name, store, record, op):
    store.put(replace(record, device=device_facts().name))
    BROKEN[name](store)
    with pytest.raises(MeasureError, match=r"the records in .*records\.sqlite cannot be used") as error:
        store.find()
    assert error.value.help
    with pytest.raises(MeasureError, match="cannot be used"):
        store.check()
    with pytest.warns(RecordsWarning, match=r"going on without your records: .*records\.sqlite"):
        assert best(op, H200, store=store) is None
    with pytest.warns(RecordsWarning, match="going on without"):
        kernel = nl.compile(op, tuned=True)
    x = torch.randn(4, 8)
    assert torch.allclose(kernel(x), torch.exp(x - x.amax(1, keepdim=True)).sum(1), rtol=1e-3)
    flex_attention.forget()  # other tests may have called attention of this shape
    q = torch.randn(1, 1, 16 * (1 + list(BROKEN).index(name)), 16)
    with pytest.warns(RecordsWarning, match="going on without"):
        out = nl.attention(q, q, q)
    assert torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, q, q), atol=1e-2)


def test_the_shipped_records_are_there_without_the_user_s(store, record, op, tmp_path, monkeypatch):
    Store(tmp_path / "x").export(tmp_path / "h200.json", [record])
    monkeypatch.setattr(records, "SHIPPED", tmp_path)
    junk(store)
    records.shipped.cache_clear()
    try:
        with pytest.warns(RecordsWarning):
            assert best(op, H200, store=store) == record
    finally:
        records.shipped.cache_clear()


def test_mending_moves_the_damaged_file_aside(store, record):
    junk(store)
    done = CliRunner().invoke(app, ["records", "--mend", "--records", str(store.path)])
    assert done.exit_code == 0
    assert "kept 0 records" in done.stderr
    (aside,) = store.path.parent.glob("records.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"this is no database")
    store.put(record)
    assert store.find() == (record,)


def test_mending_follows_a_link(store, record):
    store.put(record)
    link = store.path.parent / "link.sqlite"
    link.symlink_to(store.path)
    kept, aside = Store(link).mend()
    assert (kept, aside.parent, link.is_symlink()) == (1, store.path.resolve().parent, True)
    assert store.find() == Store(link).find() == (record,)


def test_a_folder_is_not_mended(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(MeasureError, match="is a folder"):
        Store(folder).mend()
    assert folder.is_dir()


def test_there_is_nothing_to_mend(store):
    with pytest.raises(MeasureError, match="there are no records"):
        store.mend()


class Locked:
    """Another process that writes, as far as SQLite can tell."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("pragma locking_mode = exclusive")
        self.db.execute("begin exclusive")
        self.db.execute("create table taken (x)")

    def __enter__(self) -> Locked:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.execute("rollback")
        self.db.close()


def test_a_locked_file_is_waited_for_and_then_said(store, record, op):
    store.put(record)
    with Locked(store.path):
        for use in (lambda: store.put(record), store.check, store.find, store.mend):
            with pytest.raises(MeasureError, match="locked") as error:
                use()
            assert "another process" in (error.value.help or "")
        with pytest.warns(RecordsWarning, match="locked"):
            assert best(op, H200, store=store) is None
    assert store.find() == (record,)
    assert list(store.path.parent.glob("*.damaged-*")) == []


def test_a_lock_that_goes_away_in_time_is_no_error(store, record):
    store.put(record)
    with Locked(store.path):
        thread = threading.Thread(target=lambda: Store(store.path).put(replace(record, us=1.0)))
        thread.start()
    thread.join(LONG)
    assert [r.us for r in store.find()] == [1.0]


FULL = """
import resource, signal, sys
from neptune_lab.errors import MeasureError
from neptune_lab.records import Store, read
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
(record,) = read(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    Store(sys.argv[1]).{call}
except MeasureError as error:
    print(error)
"""


@pytest.mark.one_in(12)
@pytest.mark.parametrize("call", ["put(record)", "check()"])
@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 20_000])
def test_files_that_cannot_grow(store, record, tmp_path, call, size):
    """A limit on the size of files is what a full disk is to SQLite."""
    old = replace(record, source="old")
    store.put(old)
    store.export(tmp_path / "one.json", [record])
    script = FULL.format(call=call)
    arguments = [str(store.path), str(tmp_path / "one.json"), str(size)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    if call == "check()" or size < 8192:
        assert f"the records in {store.path} cannot be used" in done.stdout
        assert "help" in done.stdout
        assert store.find() == (old,)
    else:
        found = {r.source for r in store.find()}
        assert found == ({"old"} if "cannot be used" in done.stdout else {"old", "aaaa"})


READ_ONLY = """
import sys, warnings
warnings.simplefilter("error")
from neptune_lab.errors import MeasureError
from neptune_lab.records import Store
store = Store(sys.argv[1], patience=0.1)
print([r.source for r in store.find()])
for use in (lambda: store.put(*store.find()), store.check, store.mend):
    try:
        use()
    except MeasureError as error:
        print(error.reason, "|", error.help)
"""


def test_a_read_only_mount_is_read(store, record):
    mounted = ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"']
    base = str(store.path.parent)
    try:
        ready = subprocess.run([*mounted, base, "true"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        ready = False
    if not ready:
        pytest.skip("a read-only mount needs unshare")
    store.put(record)
    done = subprocess.run(
        [*mounted, base, sys.executable, "-c", READ_ONLY, str(store.path)],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    first, *refused = done.stdout.splitlines()
    assert first == "['aaaa']"
    assert len(refused) == 3
    assert all("cannot be used" in line and "|" in line for line in refused)
    assert store.find() == (record,)


KILLED = """
import sys
from dataclasses import replace
from neptune_lab.records import Store, read
(record,) = read(sys.argv[2])
store = Store(sys.argv[1])
for n in range(1000):
    store.put(replace(record, source=str(n)))
    print(n, flush=True)
"""


def test_what_put_returned_from_survives_kill_9(store, record, tmp_path):
    store.export(tmp_path / "one.json", [record])
    arguments = [str(store.path), str(tmp_path / "one.json")]
    with subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "20\n":
                process.kill()
                break
        told = 20 + sum(1 for _ in process.stdout)
    found = {r.source for r in store.find()}
    assert {str(n) for n in range(told)} <= found
    store.check()


def killed_at_each_write(store: Store, record: Record) -> list[tuple[str, bytes, bytes, bool]]:
    """What is on the disk if a process is killed at a write of `put(record)`: a name, the file, its log, and whether
    the log was whole, so that the record must be there.

    SQLite writes the log frame by frame, each a header of 24 bytes and a page, and copies its pages into the file once
    the log is on the disk.
    """
    log = store.path.with_name(store.path.name + "-wal")
    reader = sqlite3.connect(store.path)
    reader.execute("select count(*) from sqlite_master").fetchone()  # keeps the log from being copied at once
    store.put(record)
    before, written = store.path.read_bytes(), log.read_bytes()
    reader.close()
    after = store.path.read_bytes()
    page = int.from_bytes(written[8:12], "big")
    frames = range(32, len(written), 24 + page)
    ends = [0, 16, 32, *(at + size for at in frames for size in (0, 10, 24, 24 + page // 2))]
    found = [(f"log {end}", before, written[:end], False) for end in dict.fromkeys(ends)]
    for done in range(0, len(after) + 1, page):
        found.append((f"copy {done}", after[:done] + before[done:], written, True))
    return found


@pytest.mark.nightly
def test_a_kill_at_each_write_loses_nothing(store, record, tmp_path):
    old = replace(record, source="old")
    store.put(old)
    states = killed_at_each_write(store, record)
    assert sum(whole for *_, whole in states) > 2
    assert len(states) > 12
    for name, file, log, whole in states:
        again = Store(tmp_path / name.replace(" ", "-") / "records.sqlite")
        again.path.parent.mkdir()
        again.path.write_bytes(file)
        again.path.with_name("records.sqlite-wal").write_bytes(log)
        found = {r.source for r in again.find()}
        assert found == ({"old", "aaaa"} if whole else {"old"}), name
        again.check()
        again.put(replace(record, source="next"))
        assert {r.source for r in again.find()} == found | {"next"}, name
