"""Bundles: written here, run without the compiler, and brought back as records."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import fake_runner
import numpy as np
import pytest
import typer
from by_name import choice
from devices import H200
from typer.testing import CliRunner
from waiting import LONG

from neptune_lab.errors import DefinitionError, MeasureError, TuneError
from neptune_lab.operators import attention, find
from neptune_lab.pipeline import Choice
from neptune_lab.records import Store, best, workload_key
from neptune_lab.runtime import bundle as running
from neptune_lab.runtime.bundle import read_entry, read_manifest, read_results
from neptune_lab.tuning import bundle
from neptune_lab.tuning.bundle import chosen, collect, write_bundle
from neptune_lab.tuning.command import bundle_command, operator_of, records_command, report_command, tune_command
from neptune_lab.tuning.report import fastest, table

BIAS = np.linspace(-1, 1, 32).astype(np.float32)
WITHOUT = ("tvm", "sympy", "networkx", "ml_dtypes", "neptune_lab.operators", "neptune_lab.loop_ir", "typer", "dask")


@pytest.fixture(scope="module")
def biased():
    """An operator with a captured tensor, which travels as a file."""
    return attention.general(1, 2, 32, 32, 16, score_mod=lambda score, b, h, q, kv: score + BIAS[kv])


@pytest.fixture
def written(tmp_path, small, biased, with_warps):
    warps = (fake_runner.FAST, fake_runner.WRONG, fake_runner.SLOW)
    return write_bundle({small: [with_warps(n) for n in warps], biased: [Choice()]}, tmp_path / "bundle")


def hears_ctrl_c() -> None:
    """A shell starts background jobs with SIGINT ignored, and their processes inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`python run.py`, far from the compiler: modules that a GPU machine lacks cannot be imported."""
    hidden = folder.parent / "hidden"
    for name in WITHOUT:
        if "." not in name:
            hidden.joinpath(name).mkdir(parents=True, exist_ok=True)
            hidden.joinpath(name, "__init__.py").write_text(f"raise ImportError('{name} was imported')")
    tests = folder.parent / "fakes"
    tests.mkdir(exist_ok=True)
    shutil.copy(fake_runner.__file__, tests)
    env = {**os.environ, "PYTHONPATH": f"{hidden}{os.pathsep}{tests}", "FAKE_RUNNER_LOG": str(folder.parent / "log")}
    return subprocess.Popen(
        [sys.executable, "-u", str(folder / "run.py"), "--runner", "fake_runner", "--jobs", "1", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder.parent,
        preexec_fn=hears_ctrl_c,
    )  # fmt: skip


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`start`, and wait for it."""
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=LONG)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.nightly
def test_a_bundle_there_and_back(written, small, biased, tmp_path):
    done = run(written)
    assert done.returncode == 0, done.stderr
    assert "10.00 us" in done.stdout
    assert "wrong: relative error" in done.stdout
    assert "4 kernels, 1 without a time" in done.stdout
    store = Store(tmp_path / "records.sqlite")
    records = collect(written, store)
    assert [(r.operator, r.us) for r in records] == [
        ("attention_causal", 9.0),  # the second measurement of the best
        ("attention_causal", None),
        ("attention_causal", 19.0),
        ("attention_general", 20.0),
    ]
    assert {r.workload for r in records} == {workload_key(small), workload_key(biased)}
    device = records[0].device
    assert best(small, device, store=store).options["num_warps"] == fake_runner.FAST
    assert (best(biased, device, store=store).template, best(biased, device, store=store).options) == (None, {})
    said = table(records).splitlines()
    assert len(said) == 3
    assert "9.00" in said[1]
    assert said[1].endswith("rolling_update block_kv=16 block_q=16 num_warps=32  (1 of 3 failed)")
    assert said[2].endswith("(default)")
    assert [r.us for r in fastest(records)] == [9.0, 20.0]
    # Started again it measures what has no result, and nothing else.
    log = tmp_path / "log"
    log.unlink()
    results = json.loads((written / "results.json").read_text())
    del results["results"]["kernels/00_attention_causal_002.py"]
    (written / "results.json").write_text(json.dumps(results))
    assert run(written).returncode == 0
    assert log.read_text().split() == [str(fake_runner.SLOW)]


@pytest.mark.nightly
def test_ctrl_c_keeps_what_was_measured(tmp_path, small, with_warps):
    folder = write_bundle({small: [with_warps(fake_runner.FAST), with_warps(fake_runner.HANGS)]}, tmp_path / "bundle")
    process = start(folder)
    assert process.stdout is not None
    assert "10.00 us" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 130
    assert "interrupted; what was measured is in" in said
    _, found = read_results(folder / "results.json")
    assert [m.us for m in found.values()] == [10.0]


@pytest.mark.nightly
def test_what_is_in_it(written, small, biased):
    assert sorted(p.name for p in written.iterdir()) == ["kernels", "lib", "manifest.json", "run.py", "values"]
    first, second = (read_entry(written, data) for data in read_manifest(written))
    assert first.task.key == workload_key(small)
    assert list(first.kernels) == [f"kernels/00_attention_causal_00{n}.py" for n in range(3)]
    np.testing.assert_array_equal(next(iter(second.task.values.values())), BIAS)
    for kernel in (*first.kernels.values(), *second.kernels.values()):
        assert "neptune_lab" not in kernel.text.split('"""', 2)[2]


def test_its_copy_of_the_runtime_imports_nothing_that_it_lacks(tmp_path):
    bundle._copy_runtime(tmp_path / "lib")
    code = "import neptune_lab.runtime.bundle as b; print(b.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": "lib"}
    )
    assert done.stdout.strip().endswith(str(Path("lib", "neptune_lab", "runtime", "bundle.py"))), done.stderr


def test_bfloat16_values_survive_the_file(tmp_path):
    from tvm import te

    from neptune_lab.operators import custom
    from neptune_lab.tuning.measuring import task_of

    x = te.placeholder((4, 8), "bfloat16", name="x")
    j = te.reduce_axis((0, 8), name="j")
    y = te.compute((4,), lambda i: te.max(x[i, j], axis=j), name="y")
    op = custom("row_max", [x], [y], draw=lambda rng: [rng.uniform(1, 2, (4, 8))])
    (data,) = read_manifest(write_bundle({op: [Choice()]}, tmp_path / "bundle"))
    (ours,) = task_of(op).make_inputs("cpu")
    (theirs,) = read_entry(tmp_path / "bundle", data).task.make_inputs("cpu")
    assert str(theirs.dtype) == "torch.bfloat16"
    assert ours.equal(theirs)


def test_equal_sources_are_measured_once(tmp_path, small, with_warps):
    folder = write_bundle({small: [with_warps(4), with_warps(4), with_warps(8)]}, tmp_path / "bundle")
    assert len(list((folder / "kernels").iterdir())) == 2


def test_refused_candidates_are_left_out(tmp_path, small, with_warps):
    bad = choice("rolling_update", block_q=(16, 16))
    folder = write_bundle({small: [bad, with_warps(4)]}, tmp_path / "bundle")
    assert len(list((folder / "kernels").iterdir())) == 1
    with pytest.raises(MeasureError, match=r"no candidate of attention_causal compiles: .*block_q=\(16, 16\)"):
        write_bundle({small: [bad]}, tmp_path / "other")


def test_files_are_not_written_over(tmp_path, small):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(MeasureError, match="is not empty"):
        write_bundle({small: [Choice()]}, tmp_path)


def test_results_of_another_device_are_not_mixed(written, monkeypatch, capsys):
    class Worker:
        """Answers what device it has, without a process."""

        def __init__(self, *_):
            self.facts, self.close = lambda: H200, lambda: None

    monkeypatch.setattr(running, "GpuWorker", Worker)
    device = asdict(replace(H200, triton="3.6"))
    (written / "results.json").write_text(json.dumps({"schema": 1, "device": device, "results": {}}))
    assert running.main(written, ["--runner", "fake_runner"]) == 2
    assert "results.json is of NVIDIA H200 with Triton 3.6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [(None, "No such file"), ("{", "not JSON"), ("[]", "expected an object"), ("{}", "schema None")]
)
def test_other_files_are_no_results(tmp_path, text, said):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(MeasureError, match=said):
        read_results(path)


def test_choices(small, monkeypatch):
    assert chosen(small, None, False, "NVIDIA H200") == [Choice()]
    several = chosen(small, 5, False, "NVIDIA H200")
    assert several[0] == choice("rolling_update")
    assert len(set(several)) == 5
    for count in (5, None):
        with pytest.raises(MeasureError, match=r"'GeForce 256': not a GPU whose figures (.|\n)*a100, h100, h200"):
            chosen(small, count, False, "GeForce 256")
    monkeypatch.setattr(bundle, "best", lambda op, device: None)
    with pytest.raises(MeasureError, match=r"no record of attention_causal .* on NVIDIA H200"):
        chosen(small, None, True, "NVIDIA H200")


def test_operators_from_the_command_line():
    assert operator_of("causal_pf:seq=64").params["q_len"] == 64
    op = operator_of("attention.softcap:seq=8,heads=2,head_dim=4,cap=2.5,causal=false,dtype=bfloat16")
    assert (op.params["cap"], op.params["causal"], op.inputs[0].dtype) == (2.5, False, "bfloat16")
    for text, said in (
        ("gemm_chain:q=3", "'q=3' is not an option"),
        ("gemm_chain:m", "'m' is not an option"),
        ("nothing", "no operator"),
    ):
        with pytest.raises(DefinitionError, match=said):
            operator_of(text)
    with pytest.raises(DefinitionError, match="needs"):
        operator_of("attention.general:batch=1")


@pytest.fixture
def cli():
    app = typer.Typer()
    app.command("bundle")(bundle_command)
    app.command("report")(report_command)
    app.command("records")(records_command)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.nightly
def test_the_commands_and_a_workload_that_cannot_be_prepared_at_first(cli, tmp_path, monkeypatch):
    folder = tmp_path / "bundle"
    done = cli(
        "bundle", "norms.rms_norm_max:rows=4,cols=64", "attention.causal:seq=32,heads=1,head_dim=16", "-o", folder
    )
    assert done.exit_code == 0, done.exception
    assert "2 operators" in done.output
    monkeypatch.setenv("FAKE_NO_MEMORY", "y_max")
    ran = run(folder)
    assert ran.returncode == 1
    assert "given up: MemoryError: CUDA out of memory" in ran.stdout
    assert [m.us for m in read_results(folder / "results.json")[1].values()] == [20.0]
    monkeypatch.delenv("FAKE_NO_MEMORY")
    assert run(folder).returncode == 0  # the next run measures what is left
    records, exported = tmp_path / "r.sqlite", tmp_path / "best.json"
    done = cli("records", "--records", records)
    assert f"no records in {records} yet; --shipped" in done.output
    done = cli("records", "--records", records, "--shipped")
    assert len(done.output.splitlines()) > 30
    assert "NVIDIA H200" in done.output
    done = cli("report", folder, "--records", records, "--export", exported)
    assert done.exit_code == 0, done.exception
    assert [line.split()[0] for line in done.output.splitlines()] == ["operator", "rms_norm_max", "attention_causal"]
    done = cli(
        "records", "--records", tmp_path / "other.sqlite", "--load", exported, "--export", tmp_path / "again.json"
    )
    assert done.exit_code == 0, done.exception
    assert len(done.output.splitlines()) == 3
    assert (tmp_path / "again.json").read_text() == exported.read_text()
    assert (
        best(find("norms.rms_norm_max")(rows=4, cols=64), Store(records).find()[0].device, store=Store(records)).us
        == 20.0
    )


def test_the_tune_command(small, monkeypatch, tmp_path):
    """It hangs on `with_operator`, as `compile` and `run` do, and gives its options to `tune`."""
    from neptune_lab.cli import Request, with_operator

    class Found:
        unsaved = ()

        def __str__(self):
            return "the result"

    asked = {}
    monkeypatch.setattr("neptune_lab.tuning.tune.tune", lambda op, **more: asked.update(op=op, **more) or Found())
    app = typer.Typer()
    app.command("tune")(with_operator(tune_command))
    sizes = ["attention.causal", "--heads", "2", "--kv-heads", "1", "--seq", "32", "--head-dim", "16"]
    options = ["--seconds", "9", "--gpus", "0,2", "--records", str(tmp_path / "r"), "--again", "--quiet"]
    done = CliRunner().invoke(app, [*sizes, *options])
    assert (done.exit_code, done.output) == (0, "the result\n")
    assert workload_key(asked["op"]) == workload_key(small)
    assert (asked["seconds"], asked["gpus"], asked["fresh"], asked["progress"]) == (9.0, [0, 2], True, False)
    assert asked["store"].path == tmp_path / "r"
    with pytest.raises(TuneError, match="tune chooses template, tiles and options itself"):
        tune_command(Request(small, None, {"block_q": 16}))
    done = CliRunner().invoke(app, [*sizes, "--gpus", "first"])
    assert "expected numbers" in str(done.exception)


def test_options_that_exclude_each_other(cli, tmp_path):
    done = cli("bundle", "rows.softmax", "-o", tmp_path / "b", "--tuned", "--candidates", 3)
    assert isinstance(done.exception, TuneError)
