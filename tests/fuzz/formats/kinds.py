"""Each format: a valid sample, how it is changed, and everything that opening one leads to."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import by_name
import numpy as np
import torch
from devices import H200
from neptune_widgets import payload, schedule_text, static_view, views
from neptune_widgets.course.measured import _read as read_run

import neptune_lab as nl
from fuzz.formats import mutate
from neptune_lab.autotune.bundle import collect, write_bundle
from neptune_lab.autotune.report import fastest, table
from neptune_lab.bench import measured
from neptune_lab.bench.ablation import variants
from neptune_lab.bench.kernels import Directory
from neptune_lab.bench.setups import tiny_setups
from neptune_lab.bench.tables import target_rows, to_markdown
from neptune_lab.errors import NeptuneError
from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile_passes import ALL_PASSES, apply
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import attention, softmax
from neptune_lab.pipeline import Choice
from neptune_lab.pipeline.realistic_inputs import recorded_inputs
from neptune_lab.pytorch import stored
from neptune_lab.records import Record, Store, best, nearest, read, workload_key
from neptune_lab.runtime import KernelSpec
from neptune_lab.runtime.accuracy import read_tensors
from neptune_lab.runtime.bundle import read_entry, read_manifest
from neptune_lab.runtime.timing import Resources
from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.trace import links, load_trace, save

OP = attention.causal(heads=2, seq=32, head_dim=16)
TILES: dict[str, Any] = {"block_q": 16, "block_kv": 16}
US = 12.5

Change: TypeAlias = Callable[[bytes, Random, Path], bytes]


@dataclass(frozen=True)
class Kind:
    """A format.

    Args:
        make: writes a valid sample into an empty folder.
        file: the file in it that is changed.
        structure: a change of its structure; None: bytes only.
        use: opens the folder's sample and does what users do with it: show, save, store, look up, compile.
        exact: the sample is either as it was or counts as absent, so nothing is refused.
    """

    make: Callable[[Path], None]
    file: str
    structure: Change | None
    use: Callable[[Path], object]
    exact: bool = False

    def change(self, data: bytes, rng: Random, canary: Path) -> bytes:
        """The file with a change of its bytes or of its structure."""
        if self.structure is None or rng.random() < 0.4:
            return mutate.change_bytes(data, rng)
        return self.structure(data, rng, canary)


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


def _records() -> tuple[Record, ...]:
    failed = {"us": None, "low": None, "high": None, "error": None, "failure": "spills"}
    return (_record(), _record(source="bbbb", us=20.0), _record(source="cccc", **failed))


def _use_store(store: Store) -> None:
    """Whatever a store gives, it gives again: shown, exported, read back, chosen from."""
    found = store.find()
    assert table(found).isprintable() or "\x1b" not in table(found)
    store.export(store.path.with_suffix(".json"), fastest(found))
    assert len(read(store.path.with_suffix(".json"))) == len(fastest(found))
    for record in (best(OP, H200, store=store), nearest(OP, H200, store=store)):
        if record is not None:
            choice = Choice.of(record.template, record.options, "the record")
            assert Choice.from_json(choice.to_json()) == choice


def _make_trace(folder: Path) -> None:
    save(nl.compile(softmax.figure1(4, 8), block_q=4, block_kv=4).trace, folder / "trace.json")


def _use_trace(folder: Path) -> None:
    trace = load_trace(folder / "trace.json")
    links(trace)
    static_view.html(trace).encode()
    static_view.text(trace)
    payload.saved(trace).encode()


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _make_view(folder: Path) -> None:
    view = {
        "step": 2, "phase": "naive", "panes": ["program", "graph"], "selection": {"pane": "program", "node": "s_max"},
        "compare": None, "search": "exp", "iteration": {"j0": 1}, "hidden": [], "sizes": {"program": 0.5},
    }  # fmt: skip
    views.save(view, folder / "view.json")


def _use_view(folder: Path) -> None:
    views.save(views.load(folder / "view.json"), folder / "again.json")


def _schedule() -> Schedule:
    sch = Schedule(softmax.figure1(4, 8))
    sch.split("s_max.j", (None, 4))
    sch.remark("tiles of four")
    sch.rolling_update("s_sum", "s_max.j0")
    sch.annotate("s_max.i", "num_warps", 4)
    return sch


def _use_steps(folder: Path) -> None:
    text = (folder / "steps.json").read_bytes().decode("utf-8", "surrogateescape")
    sch = Schedule.replay(softmax.figure1(4, 8), text)
    str(sch)
    Schedule.replay(softmax.figure1(4, 8), sch.to_json())


def _use_text(folder: Path) -> None:
    text = (folder / "steps.txt").read_bytes().decode("utf-8", "replace")
    parsed = schedule_text.parse(text)
    Schedule.replay(softmax.figure1(4, 8), [step.step for step in parsed])


def _use_records(folder: Path) -> None:
    store = Store(folder / "loaded.sqlite")
    store.put(_record(source="dddd"))
    try:
        store.load(folder / "records.json")
    finally:
        _use_store(store)


def _make_bundle(folder: Path) -> None:
    bias = torch.arange(32, dtype=torch.float32)
    op = attention.general(1, 1, 32, 32, 16, lambda score, b, h, i, j: score + bias[j], None)
    write_bundle({op: [None]}, folder / "bundle")
    (listed,) = read_manifest(folder / "bundle")[0].kernels
    measurement = {
        "us": US, "low": 12.0, "high": 13.0, "error": 1e-4,
        "resources": [{"kernel": "k", "registers": 168, "spills": 0, "shared": 1024, "warps": 4}], "failure": None,
    }  # fmt: skip
    results = {"schema": 1, "device": asdict(H200), "results": {listed.file: measurement}}
    (folder / "bundle" / "results.json").write_text(json.dumps(results))
    (folder / "bundle" / "kernel.py").write_bytes((folder / "bundle" / listed.file).read_bytes())


def _use_bundle(folder: Path) -> None:
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
        _use_store(store)


def _make_bench(folder: Path) -> None:
    shipped = Path(measured.__file__).parent / "results" / "h200.json"
    found = measured.read(shipped)
    tuning = tuple({**t, "trials": t["trials"][:2]} for t in found.tuning[:1])
    groups = {s.group: s for s in found.setups}
    measured.write(folder / "bench.json", replace(found, setups=tuple(groups.values()), tuning=tuning))


def _use_bench(folder: Path) -> None:
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


def _make_exported(folder: Path) -> None:
    setup = _setup()
    variant = variants(setup)[0]
    spec = kernel().spec
    (folder / "kernels").mkdir()
    (folder / "kernels" / "k.py").write_text(spec.text)
    said = {key: value for key, value in asdict(spec).items() if key != "text"}
    entry = {"options": {"block_q": 16}, "note": "tuned", "module": "k.py", "spec": said}
    refused = {"options": {}, "note": "a tile is too large"}
    manifest = {"schema": 1, "kernels": {setup.name: {variant.name: entry, "other": refused}}}
    (folder / "kernels" / "manifest.json").write_text(json.dumps(manifest))


def _use_exported(folder: Path) -> None:
    found = Directory(folder / "kernels")
    for variant in variants(_setup()):
        found(_setup(), variant)


SHAPE = (1, 2, 32, 16)


def _make_npz(folder: Path) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(SHAPE, np.float32) for _ in "qkv")
    np.savez(folder / "a.npz", q=q, k=k, v=v)


def _make_pt(folder: Path) -> None:
    torch.save({n: torch.randn(SHAPE, dtype=torch.bfloat16) for n in "qkv"}, folder / "a.pt")


def _use_tensors(name: str) -> Callable[[Path], None]:
    def use(folder: Path) -> None:
        found = read_tensors(folder / name)
        recorded_inputs(OP, found)

    return use


KEY = "0123456789abcdef"


@cache
def _entry() -> stored.StoredKernel:
    spec = kernel().spec
    live = TensorSpec("bias", (32,), "float32")
    return stored.StoredKernel(
        KernelSpec(spec.name, spec.entry, spec.text, (*spec.inputs, live), spec.outputs), (0,), ("a", "b"), "c"
    )


def _make_entry(folder: Path) -> None:
    stored.put(KEY, _entry())
    (folder / "entry.json").write_bytes(stored._path(KEY).read_bytes())


def _use_entry(folder: Path) -> None:
    """A changed entry is gone, and the next one is the right one."""
    stored._path(KEY).write_bytes((folder / "entry.json").read_bytes())
    found = stored.find(KEY)
    assert found in (None, _entry())
    if found is None:
        assert not stored._path(KEY).exists()
    stored.put(KEY, _entry())
    assert stored.find(KEY) == _entry()


def _make_run(folder: Path) -> None:
    run = {
        "name": "r", "data": {"us": [1.0, 2.0]}, "device": "NVIDIA H200", "date": "2026-01-01",
        "versions": {"torch": "2"}, "command": "python",
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))


def _use_run(folder: Path) -> None:
    run = read_run(folder / "run.json")
    run._repr_html_().encode()
    run.where.encode()


def _command_line(*arguments: str) -> Callable[[Path], None]:
    """A command, which says what is wrong in one line; its status is 0 or 2."""

    def use(folder: Path) -> None:
        from neptune_lab import cli

        before, sys.argv = sys.argv, ["neptune-lab", *(a.replace("FOLDER", str(folder)) for a in arguments)]
        said, wrong, status = io.StringIO(), io.StringIO(), None
        try:
            with redirect_stdout(said), redirect_stderr(wrong):
                cli.main()
        except SystemExit as stop:
            status = stop.code
        finally:
            sys.argv = before
        assert "\x1b" not in said.getvalue() + wrong.getvalue()
        assert status in (0, 2), wrong.getvalue()
        if status == 2:
            assert len(wrong.getvalue().splitlines()) == 1, wrong.getvalue()
            raise NeptuneError(wrong.getvalue())

    return use


def _make_tiles(folder: Path) -> None:
    kernel = nl.compile(softmax.figure1(6, 8), "rolling_update", block_q=4, block_kv=4)
    _write(folder / "f.htile", to_text(kernel.translated))


def _use_tiles(folder: Path) -> None:
    """A program is refused, or goes through every pass, and comes back from its text after each."""
    program = from_text((folder / "f.htile").read_text("utf-8", "surrogateescape"))
    verify(program)
    assert from_text(to_text(program)) == program
    for name, rewrite in ALL_PASSES.items():
        program = apply(rewrite, program).program
        try:
            verify(program)
        except NeptuneError as error:
            raise AssertionError(f"{name} made a program that is not valid") from error
        assert from_text(to_text(program)) == program


def _make_loops(folder: Path) -> None:
    from neptune_lab.loop_ir.printer import to_text

    steps = Schedule(softmax.figure1(6, 5))
    steps.split("s_max.j", (None, 2))
    steps.rolling_update("s_sum", loop="s_max.j0")
    _write(folder / "f.loops", to_text(steps.program))


def _use_loops(folder: Path) -> None:
    """A program is refused, or comes back from its text, and is drawn."""
    from neptune_lab.loop_ir.parser import from_text
    from neptune_lab.loop_ir.printer import to_text
    from neptune_lab.loop_ir.render import as_figure
    from neptune_lab.loop_ir.verify import verify

    program = from_text((folder / "f.loops").read_text("utf-8", "surrogateescape"))
    assert from_text(to_text(program)) == program
    as_figure(program)
    verify(program)


_ALL = [argument for name in ALL_PASSES for argument in ("--pass", name)]
_use_opt_command = _command_line("opt", "FOLDER/f.htile", *_ALL)


def _make_store(folder: Path) -> None:
    Store(folder / "made.sqlite").put(*_records())
    import sqlite3

    db = sqlite3.connect(folder / "made.sqlite")
    db.execute("pragma wal_checkpoint(truncate)")
    db.execute("pragma journal_mode = delete")
    db.close()
    shutil.copy(folder / "made.sqlite", folder / "records.sqlite")


def _use_database(folder: Path) -> None:
    import warnings

    for beside in ("-wal", "-shm"):
        (folder / f"records.sqlite{beside}").unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that cannot be read are left out, with a warning
        _use_store(Store(folder / "records.sqlite"))


def _rows(data: bytes, rng: Random, canary: Path) -> bytes:
    return mutate.change_rows(data, rng, canary, canary.parent)


def _make_steps(folder: Path) -> None:
    _write(folder / "steps.json", _schedule().to_json())


def _make_text(folder: Path) -> None:
    _write(folder / "steps.txt", _schedule().to_python())


def _make_records(folder: Path) -> None:
    Store(folder / "made.sqlite").export(folder / "records.json", _records())


_use_records_command = _command_line("records", "--records", "FOLDER/c.sqlite", "--load", "FOLDER/records.json")
_use_report_command = _command_line("report", "FOLDER/bundle", "--records", "FOLDER/c.sqlite")
_VALUES = "bundle/values/00_attention_general.npz"
_JSON, _ZIP = mutate.change_json, mutate.change_archive

KINDS: dict[str, Kind] = {
    "trace": Kind(_make_trace, "trace.json", _JSON, _use_trace),
    "view": Kind(_make_view, "view.json", _JSON, _use_view),
    "steps": Kind(_make_steps, "steps.json", _JSON, _use_steps),
    "schedule text": Kind(_make_text, "steps.txt", None, _use_text),
    "records": Kind(_make_records, "records.json", _JSON, _use_records),
    "records, by the command": Kind(_make_records, "records.json", _JSON, _use_records_command),
    "database": Kind(_make_store, "records.sqlite", _rows, _use_database),
    "bundle manifest": Kind(_make_bundle, "bundle/manifest.json", _JSON, _use_bundle),
    "bundle results": Kind(_make_bundle, "bundle/results.json", _JSON, _use_bundle),
    "bundle values": Kind(_make_bundle, _VALUES, _ZIP, _use_bundle),
    "bundle, by the command": Kind(_make_bundle, "bundle/results.json", _JSON, _use_report_command),
    "benchmark": Kind(_make_bench, "bench.json", _JSON, _use_bench),
    "exported kernels": Kind(_make_exported, "kernels/manifest.json", _JSON, _use_exported),
    "accuracy npz": Kind(_make_npz, "a.npz", _ZIP, _use_tensors("a.npz")),
    "accuracy pt": Kind(_make_pt, "a.pt", _ZIP, _use_tensors("a.pt")),
    "cache entry": Kind(_make_entry, "entry.json", _JSON, _use_entry, exact=True),
    "tile program": Kind(_make_tiles, "f.htile", mutate.change_words, _use_tiles),
    "tile program, by the command": Kind(_make_tiles, "f.htile", mutate.change_words, _use_opt_command),
    "loop program": Kind(_make_loops, "f.loops", mutate.change_words, _use_loops),
    "recorded run": Kind(_make_run, "run.json", _JSON, _use_run),
}
