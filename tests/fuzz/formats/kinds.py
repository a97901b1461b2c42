"""Each format: a valid sample, how it is changed, and everything that opening one leads to."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np
import torch
from neptune_widgets import parts, payload, schedule_text, static_view, views
from neptune_widgets.course.measured import _read as read_run

import neptune_lab as nl
from fuzz.formats import mutate, tuning
from fuzz.formats.tuning import OP, kernel
from neptune_lab.errors import NeptuneError
from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile_passes import ALL_PASSES, apply
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import softmax
from neptune_lab.pipeline.realistic_inputs import recorded_inputs
from neptune_lab.pytorch import stored
from neptune_lab.runtime import KernelSpec
from neptune_lab.runtime.accuracy import read_tensors
from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.trace import links, load_trace, save

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


def _make_trace(folder: Path) -> None:
    save(nl.compile(softmax.figure1(4, 8), block_q=4, block_kv=4).trace, folder / "trace.json")


def _use_trace(folder: Path) -> None:
    trace = load_trace(folder / "trace.json")
    links(trace)
    static_view.html(trace).encode()
    static_view.text(trace)
    payload.saved(trace).text.encode()
    parts.sent(trace, many=0)


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


def _rows(data: bytes, rng: Random, canary: Path) -> bytes:
    return mutate.change_rows(data, rng, canary, canary.parent)


def _make_steps(folder: Path) -> None:
    _write(folder / "steps.json", _schedule().to_json())


def _make_text(folder: Path) -> None:
    _write(folder / "steps.txt", _schedule().to_python())


_use_records_command = _command_line("records", "--records", "FOLDER/c.sqlite", "--load", "FOLDER/records.json")
_use_report_command = _command_line("report", "FOLDER/bundle", "--records", "FOLDER/c.sqlite")
_VALUES = "bundle/values/00_attention_general.npz"
_JSON, _ZIP = mutate.change_json, mutate.change_archive

KINDS: dict[str, Kind] = {
    "trace": Kind(_make_trace, "trace.json", _JSON, _use_trace),
    "view": Kind(_make_view, "view.json", _JSON, _use_view),
    "steps": Kind(_make_steps, "steps.json", _JSON, _use_steps),
    "schedule text": Kind(_make_text, "steps.txt", None, _use_text),
    "records": Kind(tuning.make_records, "records.json", _JSON, tuning.use_records),
    "records, by the command": Kind(tuning.make_records, "records.json", _JSON, _use_records_command),
    "database": Kind(tuning.make_store, "records.sqlite", _rows, tuning.use_database),
    "bundle manifest": Kind(tuning.make_bundle, "bundle/manifest.json", _JSON, tuning.use_bundle),
    "bundle results": Kind(tuning.make_bundle, "bundle/results.json", _JSON, tuning.use_bundle),
    "bundle values": Kind(tuning.make_bundle, _VALUES, _ZIP, tuning.use_bundle),
    "bundle, by the command": Kind(tuning.make_bundle, "bundle/results.json", _JSON, _use_report_command),
    "benchmark": Kind(tuning.make_bench, "bench.json", _JSON, tuning.use_bench),
    "exported kernels": Kind(tuning.make_exported, "kernels/manifest.json", _JSON, tuning.use_exported),
    "accuracy npz": Kind(_make_npz, "a.npz", _ZIP, _use_tensors("a.npz")),
    "accuracy pt": Kind(_make_pt, "a.pt", _ZIP, _use_tensors("a.pt")),
    "cache entry": Kind(_make_entry, "entry.json", _JSON, _use_entry, exact=True),
    "tile program": Kind(_make_tiles, "f.htile", mutate.change_words, _use_tiles),
    "tile program, by the command": Kind(_make_tiles, "f.htile", mutate.change_words, _use_opt_command),
    "loop program": Kind(_make_loops, "f.loops", mutate.change_words, _use_loops),
    "recorded run": Kind(_make_run, "run.json", _JSON, _use_run),
}
