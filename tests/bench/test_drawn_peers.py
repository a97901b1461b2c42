"""Optional peers of the drawn benchmark, on fakes of their packages; tuned problems; the summary's further rows."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn import functional

from neptune_lab.bench.clock import Samples
from neptune_lab.bench.drawn import attention, measure, optional, rows, summary, tuning
from neptune_lab.bench.drawn import run as runs
from neptune_lab.bench.drawn.measure import Task
from neptune_lab.bench.drawn.optional import common, cudnn_attention, flex_flash, helion_attention
from neptune_lab.bench.drawn.problems import Problem, draw
from neptune_lab.bench.drawn.results import DrawnResult, DrawnRun, TunedResult, read, to_text
from neptune_lab.bench.drawn.run import DrawnPlan, run
from neptune_lab.bench.measured import OURS, ContestantResult

FLAT = Problem(0, "rows", "softmax", "float16", {"rows": 3, "cols": 40})
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 20, "kv_len": 24, "head_dim": 16, "v_head_dim": 16,
         "window": 7, "documents": 1}  # fmt: skip
CHUNK = Problem(3, "chunk", "attention", "float16", SIZES, "causal")


def _install(monkeypatch: pytest.MonkeyPatch, name: str, **contents):
    """A module of this name, and packages around it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        outer = ".".join(parts[:end])
        module = sys.modules.get(outer) or ModuleType(outer)
        module.__dict__.setdefault("__path__", [])
        monkeypatch.setitem(sys.modules, outer, module)
    for key, value in contents.items():
        setattr(sys.modules[name], key, value)


def _answer(adapter, problem: Problem, given):
    return adapter(problem, given).call()


# -- which are run ------------------------------------------------------------------------------------------------


def test_what_is_not_installed_is_named_and_the_others_are_contestants():
    there = {"cudnn", "liger_kernel"}
    assert set(optional.absent(there.__contains__)) == {
        "quack-kernels", "helion", "tilelang", "FlexAttention FLASH"
    }  # fmt: skip
    names = [c.name for c in optional.contestants(CHUNK, None, there.__contains__)]
    assert names == ["nvidia-cudnn-frontend"]
    names = [c.name for c in optional.contestants(FLAT, None, there.__contains__)]
    assert names == ["liger-kernel"]
    assert not optional.installed("no_such_package.inside")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"mask": "full"}, ""),
        ({"mask": "window"}, "cudnn"),
        ({"mod": "softcap"}, "both"),
        ({"mask": "document"}, "both"),
        ({"sizes": {**SIZES, "head_dim": 80}}, "plain"),
        ({"sizes": {**SIZES, "q_len": 1}}, "plain"),
        ({"sizes": {**SIZES, "v_head_dim": 512}}, "cudnn's width"),
    ],
)
def test_what_adapters_refuse(changed, why: str):
    problem = replace(CHUNK, **changed)
    assert bool(cudnn_attention.refuses(problem)) == (why in ("both", "cudnn's width"))
    assert bool(common.plain_refusal(problem)) == (why in ("both", "plain", "cudnn"))
    assert not flex_flash.refuses(problem)
    assert bool(helion_attention.refuses(problem)) == bool(common.plain_refusal(problem))


def test_helion_is_not_asked_for_the_width_that_it_gets_wrong():
    narrow = replace(CHUNK, sizes={**SIZES, "head_dim": 64, "v_head_dim": 64})
    assert "64" in helion_attention.refuses(narrow)
    assert not common.plain_refusal(narrow)


# -- attention ----------------------------------------------------------------------------------------------------


class _Tensor:
    """A tensor of cuDNN's graph."""

    def __init__(self, like=None):
        self.like, self.told = like, {}

    def __getattr__(self, name: str):
        def tell(value):
            self.told[name] = value
            return self

        return tell


class _Graph:
    """Computes what cuDNN's graph would, from what it was told."""

    def __init__(self, **options):
        assert options["io_data_type"] == "HALF"
        self.built = False

    def tensor_like(self, tensor):
        return _Tensor(tensor)

    def sdpa(self, *, name, q, k, v, attn_scale, generate_stats, **band):
        assert not generate_stats
        self.given, self.scale, self.band = (q, k, v), attn_scale, band
        self.out = _Tensor()
        return self.out, None

    def build(self, modes):
        assert self.out.told["set_output"] is True
        self.built = True

    def get_workspace_size(self):
        return 0

    def execute(self, tensors, workspace, handle):
        assert self.built
        assert workspace.dtype is torch.uint8
        q, k, v = (tensors[t].double() for t in self.given)
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        scores = q @ k.mT * self.scale
        apart = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
        if "diagonal_band_right_bound" in self.band:
            assert self.band["diagonal_alignment"] == "BOTTOM_RIGHT"
            scores = scores.masked_fill(apart < 0, -math.inf)
        if "diagonal_band_left_bound" in self.band:
            scores = scores.masked_fill(apart >= self.band["diagonal_band_left_bound"], -math.inf)
        tensors[self.out].copy_(torch.softmax(scores, -1) @ v)


@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("view", [False, True])
def test_cudnns_graph_is_told_the_problem(monkeypatch: pytest.MonkeyPatch, mask: str, view: bool):
    _install(
        monkeypatch, "cudnn", pygraph=_Graph, create_handle=lambda: 7, set_stream=lambda **_: None,
        data_type=SimpleNamespace(HALF="HALF", BFLOAT16="BFLOAT16", FLOAT="FLOAT"),
        diagonal_alignment=SimpleNamespace(BOTTOM_RIGHT="BOTTOM_RIGHT"), heur_mode=SimpleNamespace(A="A"),
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    problem = replace(CHUNK, mask=mask, view=view)
    given = attention.inputs(problem)
    answer = _answer(cudnn_attention.prepared, problem, given)
    assert attention.reference(given, 0).error(answer) < 1e-3


def _plain(q, k, v, causal: bool) -> torch.Tensor:
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    if causal:
        apart = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
        scores = scores.masked_fill(apart < 0, -math.inf)
    return (torch.softmax(scores, -1) @ v.double()).to(q.dtype)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_helions_kernel_gets_flat_heads(monkeypatch: pytest.MonkeyPatch, mask: str):
    _install(monkeypatch, "neptune_lab.bench.drawn.optional.helion_kernel", attention=_plain)
    problem = replace(CHUNK, mask=mask, view=True)
    given = attention.inputs(problem)
    (peer,) = (c for c in optional.contestants(problem, given, "helion".__eq__))
    answer = peer.make(problem, (), lambda call: 0.0).call()  # type: ignore[arg-type]
    assert answer.shape == given.q.shape
    assert attention.reference(given, 0).error(answer) < 1e-3


def test_tilelangs_program_is_compiled_for_flat_heads(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def described(*sizes):
        asked.append(sizes)
        return sizes

    def compiled(function, out_idx):
        assert out_idx == [3]
        return lambda q, k, v: _plain(q, k, v, causal=function[-1])

    monkeypatch.setattr(optional.tilelang_attention, "attention", described)
    _install(monkeypatch, "tilelang", compile=compiled)
    given = attention.inputs(CHUNK)
    answer = _answer(optional.tilelang_attention.prepared, CHUNK, given)
    assert attention.reference(given, 0).error(answer) < 1e-3
    assert asked == [(8, 20, 16, 24, 16, "float16", True)]


# -- rows ---------------------------------------------------------------------------------------------------------


class _Function:
    def __init__(self, apply):
        self.apply = apply


@pytest.mark.parametrize("package", ["quack-kernels", "liger-kernel"])
@pytest.mark.parametrize("operator", ["softmax", "layer_norm", "cross_entropy"])
def test_rows_of_the_packages_are_called_as_they_are_defined(monkeypatch: pytest.MonkeyPatch, package, operator):
    def norm(x, weight, bias, eps):
        return functional.layer_norm(x.float(), x.shape[1:], weight.float(), bias.float(), eps).to(x.dtype)

    def loss(x, labels, weight=None, ignored=-100, square=0.0, smoothing=0.0, reduction="none"):
        assert labels.dtype is torch.int64
        return functional.cross_entropy(x.float(), labels, weight, ignore_index=ignored, reduction=reduction)

    def float32_norm(x, weight, bias, eps):
        assert weight.dtype is bias.dtype is torch.float32
        return norm(x, weight, bias, eps)

    _install(monkeypatch, "quack.softmax", softmax_fwd=lambda x: torch.softmax(x, 1))
    _install(monkeypatch, "quack.rmsnorm", layernorm_fwd=float32_norm)
    _install(monkeypatch, "quack.cross_entropy", cross_entropy_fwd=loss)
    _install(monkeypatch, "liger_kernel.ops.softmax", LigerSoftmaxFunction=_Function(lambda x: torch.softmax(x, 1)))
    _install(monkeypatch, "liger_kernel.ops.layer_norm", LigerLayerNormFunction=_Function(norm))
    losses = _Function(lambda *given: (loss(*given), None, None, None))
    _install(monkeypatch, "liger_kernel.ops.cross_entropy", LigerCrossEntropyFunction=losses)
    problem = replace(FLAT, operator=operator)
    tensors = rows.inputs(problem)
    module = optional.PEERS[package].module
    (peer,) = optional.contestants(problem, tensors, module.__eq__)
    assert not peer.refuses(problem, 0)  # type: ignore[arg-type]
    answer = peer.make(problem, tensors, lambda call: 0.0).call()  # type: ignore[arg-type]
    assert rows.reference(problem, tensors).error(answer) < 2e-3
    (other,) = optional.contestants(replace(problem, operator="l2_norm"), tensors, module.__eq__)
    assert "no l2_norm" in other.refuses(problem, 0)  # type: ignore[arg-type]


def test_a_loss_in_sixteen_bits_is_judged_by_them(monkeypatch: pytest.MonkeyPatch):
    """liger's losses have the dtype of the logits; ours is float32, and is judged as such."""
    losses = _Function(lambda x, labels, *_: (functional.cross_entropy(x, labels, reduction="none"), None, None, None))
    _install(monkeypatch, "liger_kernel.ops.cross_entropy", LigerCrossEntropyFunction=losses)
    monkeypatch.setattr(optional.contestants, "__defaults__", ("liger_kernel".__eq__,))
    problem = replace(FLAT, operator="cross_entropy", sizes={"rows": 40, "cols": 400})
    found = {e.name: e for e in measure.measure(problem, timer=_Clock()).entries}
    peer = found["liger-kernel"]
    assert peer.status == "ok"
    assert measure.BOUNDS["float32"] < (peer.error or 0) < measure.BOUNDS["float16"]
    assert (found[OURS].error or 0) < measure.BOUNDS["float32"]


class _Clock:
    """Times that say nothing."""

    def quick(self, call):
        return 1.0

    def times(self, calls, cold):
        return {name: Samples((1.0, 1.0), "") for name in calls}


@pytest.mark.nightly
def test_a_peer_that_fails_is_told_and_costs_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(optional, "installed", lambda module: module == "quack")
    monkeypatch.setattr(optional.contestants, "__defaults__", (optional.installed,))
    monkeypatch.setattr(optional.absent, "__defaults__", (optional.installed,))

    found = measure.measure(FLAT, timer=_Clock())
    peer = next(e for e in found.entries if e.name == "quack-kernels")
    assert peer.status == "failed"
    assert "quack" in peer.note
    assert found.ours.status == "ok"
    assert "quack-kernels" not in found.absent
    assert all(e.name != "quack-kernels" for e in measure.measure(FLAT, peers=measure.USUAL, timer=_Clock()).entries)


# -- tuned problems and the summary -------------------------------------------------------------------------------


def test_problems_with_captured_tensors_are_not_tuned():
    drawn = draw(4, 60)
    chosen = tuning.tunable(drawn)
    assert {p.kind for p in chosen} == {"prefill", "chunk", "decode", "rows"}
    for problem in chosen[:6]:
        op = tuning.operator(problem)
        expected = (problem.sizes["rows"],) if problem.kind == "rows" else (problem.sizes["batch"],)
        assert op.inputs[0].shape[:1] == expected
        assert op.inputs[0].dtype == problem.dtype
    assert not any(p.mask in ("document", "prefix") or p.mod != "plain" for p in chosen if p.kind != "rows")


def test_tuned_problems_are_kept_and_not_tuned_again(tmp_path, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def apart(function, tasks, **options):
        assert function is runs.tune_task
        for task in tasks:
            asked.append(task.problem.index)
            yield task, TunedResult(task.problem.index, 12.0, 10.0, task.seconds, "a choice")

    monkeypatch.setattr(runs, "run_apart", apart)

    def runner(tasks):
        for task in tasks:
            yield task, DrawnResult(task.problem, (ContestantResult(OURS, "ours", "ok", 5.0),))

    plan = DrawnPlan(6, 1, tmp_path / "d.jsonl", tiny=True, tuned=2, seconds=3.0)
    found = run(plan, runner=runner)
    assert [one.index for one in found.tuned] == asked
    assert len(asked) == 2
    assert read(plan.out).tuned == found.tuned
    assert run(replace(plan, tuned=2), runner=runner).tuned == found.tuned
    assert len(asked) == 2
    assert Task(FLAT).peers == measure.ALL


def _row(us: float, peer: float, rows: int = 8192) -> DrawnResult:
    entries = (ContestantResult(OURS, "ours", "ok", us), ContestantResult("quack-kernels", "library", "ok", peer))
    return DrawnResult(replace(FLAT, sizes={"rows": rows, "cols": 8192}), entries)


def test_the_summary_has_the_copy_rate_the_packages_and_what_tuning_gained(tmp_path):
    problem = _row(1, 1).problem
    assert problem.moved == 2 * 2 * 8192 * 8192
    assert replace(problem, operator="l2_norm").moved == 2 * 8192 * 8192 + 4 * 8192
    us = problem.moved / 4e6  # at 4 TB/s
    results = (_row(us, 1.1 * us), _row(2 * us, 4.4 * us), replace(_row(us, us, rows=64)))
    results = tuple(replace(r, problem=replace(r.problem, index=n)) for n, r in enumerate(results))
    tuned = (TunedResult(0, 12.0, 10.0, 30.0, "a choice"), TunedResult(1, None, None, 0.0, "no time"))
    made = DrawnRun(0, False, "made-up GPU", True, {}, results, 4000.0, tuned)
    (tmp_path / "d.jsonl").write_text(to_text(made))
    kept = read(tmp_path / "d.jsonl")
    assert kept == made
    rates = summary.copy_rates(kept, kept.results)
    assert [round(rate, 3) for rate, _ in rates] == [1.0, 0.5], "the small one is left out"
    text = summary.to_markdown(kept)
    assert "| rows past 64 MiB, mean, of the copy rate | 0.85 | 0.71 | missed |" in text
    assert text.index("8192x8192 float16: 0.50") < text.index("8192x8192 float16: 1.00"), "the worst first"
    assert "| rows, mean, quack and liger | 1 | 1.34 | reached |" in text
    assert "| tuned against untuned, mean of 1 | at most 1.08 | 1.20 | missed: 1 of ours failed or were wrong |" in text
    assert "- quack-kernels: 1.34 over 3 problems, the worst 1.00" in text
    assert "12.0 us untuned, 10.0 us after 30 s" in text
    assert "- #1 softmax 8192x8192 float16: no time" in text
