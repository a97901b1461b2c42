"""Files of tuning and of benchmarks: records, their database, bundles, measured tables and exported kernels."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import by_name
import numpy as np
import torch
from devices import H200

import neptune_lab as nl
from neptune_lab.bench import measured
from neptune_lab.bench.ablation import variants
from neptune_lab.bench.kernels import Directory
from neptune_lab.bench.setups import tiny_setups
from neptune_lab.bench.tables import target_rows, to_markdown
from neptune_lab.operators import attention
from neptune_lab.pipeline import Choice
from neptune_lab.records import Record, Store, best, nearest, read, workload_key
from neptune_lab.runtime.bundle import read_entry, read_manifest
from neptune_lab.runtime.timing import Resources
from neptune_lab.strict.typed import pack
from neptune_lab.tuning.bundle import collect, write_bundle
from neptune_lab.tuning.report import fastest, table

OP = attention.causal(heads=2, seq=32, head_dim=16)
TILES: dict[str, Any] = {"block_q": 16, "block_kv": 16}
US = 12.5


@cache
def kernel() -> nl.Kernel:
    """A kernel of all stages."""
    return by_name.compile(OP, "rolling_update", **TILES)


def _record(**changes: Any) -> Record:
    made = Record(
        workload=workload_key(OP), operator=OP.name, params=OP.params, device=H200.name, capability="9.0",
        torch="2.11.0", triton="3.6.0", source="aaaa",
        candidate={"template": "rolling_update", "options": {**TILES, "num_warps": [4], "tie": False}},
        cold=False, us=US, low=12.0, high=13.0, error=2e-4,
        resources=(Resources("k", 168, 0, 1024, 4),),
        when="2026-01-01T00:00:00+00:00", command="nl.tune",
    )  # fmt: skip
    return replace(made, **changes)


def records() -> tuple[Record, ...]:
    failed = {"us": None, "low": None, "high": None, "error": None, "failure": "spills"}
    return (_record(), _record(source="bbbb", us=20.0), _record(source="cccc", **failed))


def use_store(store: Store) -> None:
    """Whatever a store gives, it gives again: shown, exported, read back, chosen from."""
    found = store.find()
    assert table(found).isprintable() or "\x1b" not in table(found)
    store.export(store.path.with_suffix(".json"), fastest(found))
    assert len(read(store.path.with_suffix(".json"))) == len(fastest(found))
    for record in (best(OP, H200, store=store), nearest(OP, H200, store=store)):
        if record is not None:
            choice = Choice.of(record.template, record.options, "the record")
            assert Choice.from_json(choice.to_json()) == choice


def use_records(folder: Path) -> None:
    store = Store(folder / "loaded.sqlite")
    store.put(_record(source="dddd"))
    try:
        store.load(folder / "records.json")
    finally:
        use_store(store)


def make_bundle(folder: Path) -> None:
    bias = torch.arange(32, dtype=torch.float32)
    op = attention.general(1, 1, 32, 32, 16, lambda score, b, h, i, j: score + bias[j], None)
    write_bundle({op: [Choice()]}, folder / "bundle")
    (listed,) = read_manifest(folder / "bundle")[0].kernels
    measurement = {
        "us": US, "low": 12.0, "high": 13.0, "error": 1e-4,
        "resources": [{"kernel": "k", "registers": 168, "spills": 0, "shared": 1024, "warps": 4}], "failure": None,
    }  # fmt: skip
    results = {"schema": 1, "device": asdict(H200), "results": {listed.file: measurement}}
    (folder / "bundle" / "results.json").write_text(json.dumps(results))
    (folder / "bundle" / "kernel.py").write_bytes((folder / "bundle" / listed.file).read_bytes())


def use_bundle(folder: Path) -> None:
    store = Store(folder / "collected.sqlite")
    store.put(_record(source="dddd"))
    try:
        collect(folder / "bundle", store)
        for workload in read_manifest(folder / "bundle"):
            entry = read_entry(folder / "bundle", workload)
            assert entry.task.tolerance
            if sum(int(np.prod(t.shape)) for t in entry.task.inputs) < 1 << 20:
                entry.task.make_inputs("cpu")
    finally:
        use_store(store)


def make_bench(folder: Path) -> None:
    shipped = Path(measured.__file__).parent / "results" / "h200.json"
    found = measured.read(shipped)
    tuning = tuple({**t, "trials": t["trials"][:2]} for t in found.tuning[:1])
    groups = {s.group: s for s in found.setups}
    measured.write(folder / "bench.json", replace(found, setups=tuple(groups.values()), tuning=tuning))


def use_bench(folder: Path) -> None:
    found = measured.read(folder / "bench.json")
    target_rows(found)
    to_markdown(found)
    measured.to_json(found)
    if Random(len(to_markdown(found))).random() < 0.05:  # plotly takes a second
        from neptune_lab.bench.report import to_html

        to_html(found)


@cache
def _setup() -> Any:
    return tiny_setups()[0]


def make_exported(folder: Path) -> None:
    setup = _setup()
    variant = variants(setup)[0]
    spec = kernel().spec
    (folder / "kernels").mkdir()
    (folder / "kernels" / "k.py").write_text(spec.text)
    said = {key: value for key, value in pack(spec).items() if key != "text"}
    entry = {"options": {"block_q": 16}, "note": "tuned", "module": "k.py", "spec": said}
    refused = {"options": {}, "note": "a tile is too large"}
    manifest = {"schema": 1, "kernels": {setup.name: {variant.name: entry, "other": refused}}}
    (folder / "kernels" / "manifest.json").write_text(json.dumps(manifest))


def use_exported(folder: Path) -> None:
    found = Directory(folder / "kernels")
    for variant in variants(_setup()):
        found(_setup(), variant)


def make_store(folder: Path) -> None:
    Store(folder / "made.sqlite").put(*records())
    import sqlite3

    db = sqlite3.connect(folder / "made.sqlite")
    db.execute("pragma wal_checkpoint(truncate)")
    db.execute("pragma journal_mode = delete")
    db.close()
    shutil.copy(folder / "made.sqlite", folder / "records.sqlite")


def use_database(folder: Path) -> None:
    import warnings

    for beside in ("-wal", "-shm"):
        (folder / f"records.sqlite{beside}").unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that cannot be read are left out, with a warning
        use_store(Store(folder / "records.sqlite"))


def make_records(folder: Path) -> None:
    Store(folder / "made.sqlite").export(folder / "records.json", records())
