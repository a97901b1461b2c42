"""A whole run on the CPU: ours interpreted, peers eager, no claim about times."""

from __future__ import annotations

import importlib
import pickle
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_name import choice

from neptune_lab import records
from neptune_lab.bench import kernels, peers, tables
from neptune_lab.bench.ablation import DEFAULT, TUNED, UNTUNED, Variant
from neptune_lab.bench.contestants import Contestant, attempt, contestants, repeats
from neptune_lab.bench.measured import NO_RECORD, OURS, read, write
from neptune_lab.bench.peers import Ready
from neptune_lab.bench.reference import reference
from neptune_lab.bench.run import BenchmarkPlan, run
from neptune_lab.bench.setups import choose, tiny_setups
from neptune_lab.bench.tensors import make_tensors
from neptune_lab.bench.warm import Source, warm_all
from neptune_lab.bench.workers import Lost
from neptune_lab.errors import MeasureError
from neptune_lab.pipeline import compile, compile_choice

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

TINY = {s.name: s for s in tiny_setups()}


class CountingClock:
    """Every call takes as many microseconds as calls were named before it."""

    def quick(self, call):
        call()
        return 1.0

    def times(self, calls, cold):
        from neptune_lab.bench.clock import Samples

        return {name: Samples((n + 1.0, n + 2.0, n + 3.0)) for n, name in enumerate(calls)}


def plan(tmp_path, *names: str, **more) -> BenchmarkPlan:
    return BenchmarkPlan(tuple(TINY[n] for n in names), tmp_path / "bench.json", autotuned=(), **more)


@pytest.fixture
def eager_peers(monkeypatch):
    """No peer that compiles, which takes seconds, where a test is not about peers."""
    module = importlib.import_module("neptune_lab.bench.contestants")
    monkeypatch.setattr(module, "peers", lambda *given: tuple(p for p in peers.peers(*given) if p.kind == "library"))


def test_a_run_checks_and_times_everybody(tmp_path):
    found = run(plan(tmp_path, "causal_pf-64", "g1"), timer=CountingClock())
    attention, chain = found.setups
    entries = {e.name: e for e in attention.entries}
    assert {OURS, "FlexAttention", "torch.compile", "Triton by hand, pointers", "SDPA flash"} <= set(entries)
    right = [e for e in entries.values() if e.status == "ok"]
    assert all(e.error is not None and e.error < 2e-3 and e.us and e.runs == 3 for e in right)
    assert entries[OURS].us == 2.0
    assert entries[OURS].options["template"]
    # cuDNN is no backend of a CPU: said, not timed.
    assert entries["SDPA cuDNN"].status == "failed"
    assert "RuntimeError" in entries["SDPA cuDNN"].note
    assert {e.name for e in chain.entries} == {OURS, NO_RECORD, "torch.compile", "PyTorch eager"}
    assert not found.is_gpu
    assert read(tmp_path / "bench.json") == found


@pytest.mark.usefixtures("eager_peers")
def test_a_second_start_goes_on_where_the_first_was(tmp_path):
    asked: list[str] = []
    first = run(plan(tmp_path, "g1"), timer=CountingClock(), progress=asked.append)
    both = run(plan(tmp_path, "g1", "l2_norm-4x64"), timer=CountingClock(), progress=asked.append)
    assert [line.split(":")[0] for line in asked] == ["[1/1] g1", "[2/2] l2_norm-4x64"]
    assert both.setups[0] == first.setups[0]
    run(plan(tmp_path, "g1", again=frozenset({"g1"})), timer=CountingClock(), progress=asked.append)
    assert asked[-1].startswith("[1/1] g1:")
    assert [s.name for s in read(tmp_path / "bench.json").setups] == ["g1", "l2_norm-4x64"]


def test_nothing_is_begun_after_the_budget(tmp_path):
    said: list[str] = []
    found = run(plan(tmp_path, "g1", budget_s=-1.0), timer=CountingClock(), progress=said.append)
    assert found.setups == ()
    assert "1 setup is left" in said[-1]


@pytest.mark.usefixtures("eager_peers")
def test_results_of_another_device_are_not_mixed_in(tmp_path):
    out = tmp_path / "bench.json"
    found = run(plan(tmp_path, "g1"), timer=CountingClock())
    write(out, replace(found, device={**found.device, "name": "another"}))
    with pytest.raises(MeasureError, match=r"holds results of another; this is .*\n.*another file"):
        run(plan(tmp_path, "g1"), timer=CountingClock())


@pytest.mark.nightly
@pytest.mark.usefixtures("eager_peers")
def test_a_setup_that_fails_as_a_whole_is_told_and_the_run_goes_on(tmp_path, monkeypatch):
    from neptune_lab.bench import measuring as module

    def too_large(setup, *rest):
        if setup.name == "g1":
            raise RuntimeError("out of memory")
        return reference(setup, *rest)

    monkeypatch.setattr(module, "reference", too_large)
    lost, fine = run(plan(tmp_path, "g1", "l2_norm-4x64"), timer=CountingClock()).setups
    assert [(e.name, e.status, e.note) for e in lost.entries] == [(OURS, "failed", "RuntimeError: out of memory")]
    assert fine.ours
    monkeypatch.setattr(module, "LOST", "out of memory")
    with pytest.raises(MeasureError, match=r"lost to this process on g1\n.*start again"):
        run(plan(tmp_path, "g1", again=frozenset({"g1"})), timer=CountingClock())


# -- who does not count ---------------------------------------------------------------------------------------------


def tried(made):
    """The entry of a peer that `made` readies, on a causal setup."""
    setup = TINY["causal_pf-64"]
    tensors = make_tensors(setup.op)
    peer = Contestant("peer", "compiler", lambda setup, memory: "", made)
    return attempt(peer, setup, tensors, reference(setup, tensors), lambda call: 0.0, 1 << 30).entry


def test_a_wrong_answer_does_not_count():
    entry = tried(lambda setup, tensors, quick: Ready(lambda: tensors[0] * 0.5, "fast"))
    assert entry.status == "wrong"
    assert entry.us is None
    assert "at most 0.01 counts. fast" in entry.note


def test_nan_does_not_count():
    entry = tried(lambda setup, tensors, quick: Ready(lambda: tensors[0] * torch.nan))
    assert (entry.status, entry.error) == ("wrong", None)


def test_a_peer_that_fails_says_why():
    def refuses(setup, tensors, quick):
        raise NotImplementedError("no such shape\nand more")

    entry = tried(refuses)
    assert (entry.status, entry.note) == ("failed", "NotImplementedError: no such shape")


def test_scores_that_do_not_fit_are_not_tried():
    setup = TINY["causal_pf-64"]
    skipped = {p.name: p.refuses(setup, 1000) for p in peers.peers(setup)}
    assert skipped["torch.compile"] == "the score matrix needs about 0 GB"
    assert skipped["FlexAttention"] == ""


def test_who_takes_part():
    def names(name: str, *autotuned: str) -> set[str]:
        return {p.name for p in peers.peers(TINY[name], autotuned)}

    assert "FlexAttention, max-autotune" in names("causal_pf-64", "*_pf-64")
    assert "torch.compile, max-autotune" not in names("causal_pf-64", "*_pf-64")
    assert names("g1", "g*") == {"torch.compile", "torch.compile, max-autotune", "PyTorch eager"}
    assert names("performer-64") == {"torch.compile"}
    assert "torch.compile" not in names("gqa_pf-64-batch2")


# -- our kernels ----------------------------------------------------------------------------------------------------


def test_kernels_are_the_same_from_a_directory(tmp_path):
    setup = TINY["l2_norm-4x64"]
    kernels.export([(setup, TUNED)], tmp_path)
    kept, made = kernels.Directory(tmp_path)(setup, TUNED), kernels.compiled(setup, TUNED)
    assert kept == made
    assert kept.note == kernels.BY_SHAPE
    none = kernels.Directory(tmp_path)(TINY["g1"], TUNED)
    assert none.spec is None
    assert "have none for it" in none.note
    with pytest.raises(MeasureError, match=r"there is no .*manifest.json.*\n.*--export-kernels"):
        kernels.Directory(tmp_path / "elsewhere")


def test_a_refused_kernel_is_kept_with_its_reason(tmp_path):
    setup, odd = TINY["g1"], Variant("odd", options={"no_such_option": 1})
    kernels.export([(setup, odd)], tmp_path)
    assert "no_such_option" in kernels.Directory(tmp_path)(setup, odd).note


def test_a_tuned_kernel_is_taken_where_there_is_a_record(tmp_path, monkeypatch):
    """As `compile` takes it, on a machine without the GPU too, so that kernels can be exported for it."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    setup, device = TINY["g1"], "NVIDIA H200"
    untuned = kernels.compiled(setup, UNTUNED, device)
    candidate = choice("rolling_update", block_q=16, block_kv=32)
    key, chosen = records.workload_key(setup.op), candidate.to_json()
    record = records.Record(key, "gemm_chain", {}, device, "9.0", "0", "0", "s", chosen, cold=False, us=5.0)
    records.Store().put(record)
    tuned = kernels.compiled(setup, TUNED, device)
    assert tuned.note == f"the tuning record of these sizes on {device}"
    assert tuned.options == {"template": "rolling_update", "block_q": 16, "block_kv": 32}
    assert tuned.spec is not None
    assert tuned.spec.text == compile_choice(setup.op, candidate, target="h200").source
    assert tuned.spec.text == compile(setup.op, tuned=True, target="h200").source
    assert tuned.spec != untuned.spec
    assert kernels.compiled(setup, UNTUNED, device) == untuned
    stale = {"template": "rolling_update", "options": {"no_such_option": 1}}
    records.Store().put(replace(record, candidate=stale, source="t", us=4.0))
    with pytest.warns(records.RecordsWarning, match="its record is skipped"):
        assert kernels.compiled(setup, TUNED, device).spec == untuned.spec
    with pytest.raises(MeasureError, match=r"device 'made-up GPU' is no known GPU"):
        kernels.compiled(setup, TUNED, "made-up GPU")


def test_a_change_that_leaves_the_kernel_as_it_is_is_not_measured():
    setup = TINY["g1"]
    same = Variant("without longest_first", options={"disable_passes": ("longest_first",)})
    other = Variant("smaller", options={"block_q": 16})
    made = {v.name: kernels.compiled(setup, v) for v in (TUNED, Variant(DEFAULT), same, other)}
    assert repeats(made) == {same.name}


@pytest.mark.nightly
def test_every_variant_names_options_that_exist(monkeypatch):
    """A change may not apply to an operator; but it may not be one that `compile` has never heard of."""
    from neptune_lab.bench import ablation

    setup = TINY["causal_pf-64"]
    monkeypatch.setattr(ablation, "ABLATED", (setup.name,))
    notes = {v.name: kernels.compiled(setup, v).note for v in ablation.variants(setup)}
    assert not [name for name, note in notes.items() if "no option" in note or "no such pass" in note]


# -- compiling ahead ------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_contestants_are_compiled_in_other_processes(tmp_path):
    setup = TINY["l2_norm-4x64"]
    said: list[str] = []
    kernels.export([(setup, TUNED)], tmp_path)  # the process need not load TVM then
    found = warm_all([setup], Source(tmp_path), (), 1, {"TRITON_INTERPRET": "1"}, said.append)
    names = {c.name for c in contestants(setup, kernels.compiled)}
    assert set(found) == {(setup.name, name) for name in names}
    ours = found[setup.name, OURS]
    assert ours.refusal == ""
    assert ours.compiled == kernels.compiled(setup, TUNED)
    assert len(said) == len(names)


def test_a_contestant_that_failed_ahead_is_not_tried_again(tmp_path, monkeypatch):
    from neptune_lab.bench import run as module
    from neptune_lab.bench.warm import Warm

    failed = {("g1", "torch.compile"): Warm("no answer within 240 s")}
    monkeypatch.setattr(module, "warm_all", lambda *args: failed)
    found = run(plan(tmp_path, "g1", workers=1), timer=CountingClock())
    entry = next(e for e in found.setups[0].entries if e.name == "torch.compile")
    assert (entry.status, entry.note) == ("failed", "no answer within 240 s")
    assert choose(tuple(TINY.values()), ["g1"])[0].name == found.setups[0].name


@pytest.mark.usefixtures("eager_peers")
def test_what_was_lost_with_its_process_is_tried_again_by_a_resumed_run(tmp_path, monkeypatch):
    """Ahead, and with its whole setup; after the setups that were not measured yet."""
    from neptune_lab.bench import run as module
    from neptune_lab.bench.warm import Warm

    names = "l2_norm-4x64", "l2_norm-4x128", "rms_norm_max-4x64"
    ahead = {(names[0], OURS): Warm("the process ended with status 3", lost=True)}
    monkeypatch.setattr(module, "warm_all", lambda *args: ahead)
    first = run(plan(tmp_path, *names[:1], workers=1), timer=CountingClock())
    (entry,) = [e for e in first.setups[0].entries if e.status == "lost"]
    assert (entry.name, entry.note, first.setups[0].is_complete) == (OURS, "the process ended with status 3", False)
    assert "| lost | the process ended" in tables.to_markdown(first)
    write(tmp_path / "bench.json", first.with_setup(module.unmeasured(TINY[names[1]], "took longer", "lost"), 1.0))
    ahead.clear()
    said = list[str]()
    found = run(plan(tmp_path, *names, workers=1), timer=CountingClock(), progress=said.append)
    assert [line.split(":")[0] for line in said] == [f"[{n + 1}/3] {names[at]}" for n, at in enumerate((2, 0, 1))]
    assert all(s.ours and s.is_complete for s in found.setups)
    assert run(plan(tmp_path, *names), timer=CountingClock(), progress=said.append) == found


# -- several GPUs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch):
    """What would run in other processes runs here; the arguments of each call."""
    from neptune_lab.bench import run as module

    calls: list[dict[str, Any]] = []

    def run_here(function, tasks, *, until, **limits):
        calls.append({"names": [t.setup.name for t in tasks], **limits})
        for task in reversed(tasks):  # (the processes end in any order)
            if time.monotonic() <= until:
                yield task, Lost("took longer") if task.setup.name == "g1" else function(task, CountingClock())

    monkeypatch.setattr(module, "run_apart", run_here)
    return calls


@pytest.mark.usefixtures("eager_peers")
def test_setups_are_measured_on_several_gpus_at_once(tmp_path, here):
    names, said = ("g1", "l2_norm-4x64", "l2_norm-4x128"), list[str]()
    done = plan(tmp_path, names[2])
    run(done, timer=CountingClock())
    found = run(replace(done, setups=tuple(TINY[n] for n in names), gpus=("0", "1")), progress=said.append)
    assert [(c["names"], c["workers"], c["gpus"]) for c in here] == [([*names[:2]], 2, ("0", "1"))]
    assert [line.split(":")[0] for line in said] == ["[2/3] l2_norm-4x64", "[3/3] g1"]
    by_name = {s.name: s for s in found.setups}
    assert by_name["l2_norm-4x64"].ours == 2.0
    assert [(e.status, e.note) for e in by_name["g1"].entries] == [("lost", "took longer")]
    assert read(tmp_path / "bench.json") == found


def test_setups_that_are_compiled_completely_are_measured_first(tmp_path, here, monkeypatch):
    from neptune_lab.bench import run as module
    from neptune_lab.bench.warm import Warm

    def partly(setups, *given):
        assert given[-2] == ("0",)
        assert 0 < given[-1] - time.monotonic() <= 60
        assert len(setups) == 2
        return {(setups[1].name, c.name): Warm() for c in contestants(setups[1], kernels.compiled)}

    monkeypatch.setattr(module, "warm_all", partly)
    run(plan(tmp_path, "g1", "l2_norm-4x64", workers=4, gpus=("0",), budget_s=100.0))
    assert here[0]["names"] == ["l2_norm-4x64", "g1"]


@pytest.mark.nightly
def test_a_process_for_each_gpu_measures_setups(tmp_path):
    environment = {"TRITON_INTERPRET": "1"}
    found = run(plan(tmp_path, "l2_norm-4x64", "rms_norm_max-4x64", gpus=("0", "1"), environment=environment))
    assert {s.name for s in found.setups} == {"l2_norm-4x64", "rms_norm_max-4x64"}
    assert all(s.ours for s in found.setups)


@pytest.mark.parametrize(
    ("gpus", "match"),
    [("one", "expected numbers of this machine's"), ("0,0", "a GPU is named twice"), (",", "expected numbers")],
)
def test_gpus_are_numbers_that_the_machine_has(gpus, match):
    from neptune_lab.bench.command import _gpus

    with pytest.raises(MeasureError, match=match):
        _gpus(gpus, tiny=True)


def test_a_process_compiles_the_default_options_of_a_setup_once(monkeypatch):
    from neptune_lab.bench import warm as module

    setup, source, compiled = TINY["g1"], Source(), list[str]()

    def made(self):
        return lambda setup, variant: compiled.append(variant.name) or kernels.Compiled(None, {}, variant.name)

    monkeypatch.setattr(Source, "kernels", made)
    module._usual.cache_clear()
    notes = [module._usual(one, source).note for one in (setup, pickle.loads(pickle.dumps(setup)))]
    module._usual.cache_clear()
    assert (notes, compiled) == ([DEFAULT, DEFAULT], [DEFAULT])
