"""Drawn problems: the drawing, tiny runs on the CPU, resuming, and the summary of a made-up file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from neptune_lab.bench.drawn import attention, measure, optional, rows, summary
from neptune_lab.bench.drawn.measure import Task
from neptune_lab.bench.drawn.problems import DTYPES, MASKS, MODS, MOST_BYTES, ROWS, WIDTHS, Problem, draw
from neptune_lab.bench.drawn.results import DrawnResult, DrawnRun, read, to_text
from neptune_lab.bench.drawn.run import DrawnPlan, run
from neptune_lab.bench.measured import COMPILE, CUDNN, FLEX, OURS, ContestantResult
from neptune_lab.bench.peers import Ready
from neptune_lab.bench.workers import Lost
from neptune_lab.cli import app
from neptune_lab.errors import MeasureError

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

FLAT = Problem(0, "rows", "softmax", "float16", {"rows": 3, "cols": 40})


class Clock:
    """One microsecond per call."""

    def quick(self, call):
        call()
        return 1.0

    def times(self, calls, cold):
        from neptune_lab.bench.clock import Samples

        return {name: Samples((1.0, 1.0)) for name in calls}


# -- drawing --------------------------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_problems_and_a_longer_run_has_them_first():
    assert draw(1, 20) == draw(1, 30)[:20]
    assert draw(1, 20) != draw(2, 20)
    # The draw of another machine.
    assert draw(1, 3)[2].name == FIRST_ROWS


FIRST_ROWS = "#2 l2_norm 55x86300 bfloat16"


def test_drawing_covers_every_class():
    found = draw(0, 600)
    flash = [p for p in found if p.kind != "rows"]
    assert {p.kind for p in found} == {"prefill", "chunk", "decode", "rows"}
    assert {p.mask for p in flash} == set(MASKS)
    assert {p.mod for p in flash} == set(MODS)
    assert {p.dtype for p in found} == set(DTYPES)
    assert {p.operator for p in found} == {"attention", *ROWS}
    assert {(p.sizes["head_dim"], p.sizes["v_head_dim"]) for p in flash} == set(WIDTHS)
    assert {p.sizes["heads"] // p.sizes["kv_heads"] for p in flash} == {1, 4, 8}
    assert {p.view for p in flash} == {True, False}
    assert all(128 <= p.sizes["kv_len"] <= 32768 and 1 <= p.sizes["q_len"] <= p.sizes["kv_len"] for p in flash)
    assert all(p.bytes <= MOST_BYTES for p in found)
    assert sum(p.sizes["kv_len"] % 64 == 0 for p in flash) < len(flash) / 10


# -- measuring ------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(6)
@pytest.mark.parametrize("mask", MASKS)
def test_tiny_attention_is_right(mask):
    drawn = next(p for p in draw(3, 90, tiny=True) if p.mask == mask and p.kind != "rows")
    found = {e.name: e for e in measure.measure(drawn, timer=Clock()).entries}
    assert found[OURS].status == "ok", found[OURS].note
    assert found[FLEX].status == "ok", found[FLEX].note
    assert found[COMPILE].status == "ok", found[COMPILE].note


@pytest.mark.one_in(6)
@pytest.mark.parametrize("operator", ROWS)
def test_tiny_rows_are_right(operator):
    found = measure.measure(replace(FLAT, operator=operator), timer=Clock())
    assert [(e.status, e.note) for e in found.entries] == [("ok", "")] * 3
    assert found.ratio("compiler", "library") == 1.0
    assert set(found.absent) == set(optional.PEERS)


def test_a_wrong_answer_has_no_speed(monkeypatch):
    def wrong(problem, tensors):
        first, *others = rows_contestants(problem, tensors)
        return (replace(first, make=lambda *_: Ready(lambda: tensors[0] * 0.5)), *others)

    rows_contestants = rows.contestants
    monkeypatch.setattr(rows, "contestants", wrong)
    found = measure.measure(FLAT, timer=Clock())
    assert (found.ours.status, found.ours.us) == ("wrong", None)
    assert found.ratio("compiler", "library") is None
    text = summary.to_markdown(DrawnRun(0, False, "made-up GPU", True, {}, (found,)))
    assert "#0 softmax 3x40 float16: wrong: wrong: relative error" in text
    assert "missed: 1 of ours failed or were wrong" in text


def test_the_reference_sees_one_wrong_head():
    drawn = next(p for p in draw(3, 90, tiny=True) if p.kind == "prefill" and p.sizes["heads"] == 4)
    given = attention.inputs(drawn)
    right = attention.reference(given, 0)
    (_, *_, compiled) = attention.contestants(drawn, given)
    answer = compiled.make(drawn, (given.q,), lambda call: 0.0).call()  # type: ignore[arg-type]
    assert right.error(answer) < measure.BOUNDS[drawn.dtype]
    answer[0, 1] *= 1.1
    assert right.error(answer) > 0.05
    answer[0, 1] = torch.nan
    assert right.error(answer) == float("inf")


def test_slow_peers_are_not_timed_in_turns():
    class Uneven(Clock):
        def __init__(self):
            self.asked = iter((1.0, 500.0, 2.0))

        def quick(self, call):
            return next(self.asked)

    ours, compiled, eager = measure.measure(FLAT, timer=Uneven()).entries
    assert (ours.us, compiled.us, eager.us) == (1.0, 500.0, 1.0)
    assert (ours.runs, compiled.runs) == (2, 0)


# -- runs -----------------------------------------------------------------------------------------------------------


def answered(task: Task, us: float = 5.0) -> DrawnResult:
    entries = (ContestantResult(OURS, "ours", "ok", us), ContestantResult(COMPILE, "compiler", "ok", 10.0))
    return DrawnResult(task.problem, entries[:1] if task.peers == measure.ALONE else entries)


def test_a_run_goes_on_where_it_was(tmp_path):
    asked: list[int] = []

    def runner(tasks):
        for task in tasks:
            asked.append(task.problem.index)
            yield task, answered(task)

    out = tmp_path / "drawn.jsonl"
    first = run(DrawnPlan(2, 1, out, tiny=True), runner=runner)
    both = run(DrawnPlan(4, 1, out, tiny=True), runner=runner)
    assert asked == [0, 1, 2, 3]
    assert both.results[:2] == first.results
    assert read(out) == both
    assert len(out.read_text().splitlines()) == 5
    with pytest.raises(MeasureError, match=r"has seed 1; this run has 2\n.*another file"):
        run(DrawnPlan(4, 2, out, tiny=True), runner=runner)
    changed = replace(both.results[0], problem=replace(both.results[0].problem, mask="prefix", mod="relative"))
    out.write_text(to_text(replace(both, results=(changed,))))
    with pytest.raises(MeasureError, match="does not draw for its seed"):
        run(DrawnPlan(4, 1, out, tiny=True), runner=runner)


def test_times_of_the_interpreter_are_not_said(tmp_path):
    said: list[str] = []
    plan = DrawnPlan(1, 1, tmp_path / "d.jsonl", tiny=True)
    entry = ContestantResult(OURS, "ours", "ok", 5.0, error=2.5e-4)
    found = run(plan, runner=lambda tasks: ((t, DrawnResult(t.problem, (entry,))) for t in tasks), progress=said.append)
    assert not found.gpu
    assert said == [f"{found.results[0].problem.name}: right, with an error of 2.5e-04 against float64"]


def test_nothing_is_started_after_the_budget(tmp_path):
    said: list[str] = []
    found = run(
        DrawnPlan(2, 1, tmp_path / "d.jsonl", 0.0, tiny=True),
        runner=lambda tasks: pytest.fail("started"),
        progress=said.append,
    )
    assert found.results == ()
    assert said == ["2 problems are left: the budget of 0 s is spent; start again to go on"]


def test_what_is_lost_is_told_and_measured_again_without_peers(tmp_path):
    def runner(tasks):
        for task in tasks:
            asked.append((task.problem.index, task.peers))
            works = {0: (measure.ALONE,), 1: (), 2: (measure.USUAL, measure.ALONE)}[task.problem.index]
            yield task, answered(task) if task.peers in works else Lost("took longer\nthan 1 s")

    asked: list[tuple[int, str]] = []
    alone, lost, usual = run(DrawnPlan(3, 1, tmp_path / "d.jsonl", tiny=True), runner=runner).results
    assert (alone.ours.status, len(alone.entries)) == ("ok", 1)
    assert (usual.ours.status, len(usual.entries)) == ("ok", 2)
    assert asked[:6] == [(i, p) for p in (measure.ALL, measure.USUAL) for i in range(3)]
    assert asked[6:] == [(0, measure.ALONE), (1, measure.ALONE)]
    assert (lost.ours.status, lost.ours.note) == ("lost", "took longer than 1 s")
    del asked[:]
    again = run(DrawnPlan(3, 1, tmp_path / "d.jsonl", tiny=True), runner=runner)
    assert asked == [(1, measure.USUAL), (1, measure.ALONE)]
    assert [r.ours.status for r in again.results] == ["ok", "lost", "ok"]
    assert "Ours failed, was wrong or was lost" in summary.to_markdown(again)


def test_a_limit_for_peers_is_in_the_file_and_the_summary(tmp_path, monkeypatch):
    limits: list[float] = []

    def apart(function, tasks, *, timeout_s, **others):
        limits.append(timeout_s)
        return ((task, Lost("took longer")) for task in tasks)

    monkeypatch.setattr("neptune_lab.bench.drawn.run.run_apart", apart)
    plan = DrawnPlan(1, 1, tmp_path / "d.jsonl", tiny=True, peer_limit_s=30.0)
    run(plan)
    assert limits == [30.0, 30.0, 240.0]
    found = read(plan.out)
    assert found.peer_limit_s == 30.0
    assert "30 s per problem with its peers" in summary.to_markdown(found)
    with pytest.raises(MeasureError, match=r"has peer_limit_s 30.0; this run has 240.0"):
        run(replace(plan, peer_limit_s=240.0))


@pytest.mark.nightly
def test_a_whole_run_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    out = tmp_path / "d.jsonl"
    done = CliRunner().invoke(app, ["bench", "--drawn", "1", "--seed", "3", "--tiny", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "no target is judged" in done.stdout
    (found,) = read(out).results
    assert found.ours.status == "ok", found.ours.note
    assert set(found.first_call_s) == {OURS, FLEX}
    again = CliRunner().invoke(app, ["bench", "--drawn-report", str(out)])
    assert again.stdout == done.stdout


@pytest.mark.parametrize("options", [["--drawn", "0"], ["--drawn", "2", "--seed", "-1"], ["--drawn", "x"]])
def test_bad_numbers_are_refused(options):
    assert CliRunner().invoke(app, ["bench", *options]).exit_code == 2


def test_options_of_the_other_benchmark_are_refused():
    done = CliRunner().invoke(app, ["bench", "--drawn", "2", "--only", "g1", "--again"])
    assert isinstance(done.exception, MeasureError)
    assert "--drawn does not take --only, --again" in str(done.exception)


# -- the summary ----------------------------------------------------------------------------------------------------


def made_up(problem: Problem, us: float, compiler: float, library: float, first: float = 1.0) -> DrawnResult:
    entries = (
        ContestantResult(OURS, "ours", "ok", us),
        ContestantResult(FLEX, "compiler", "ok", compiler),
        ContestantResult(CUDNN, "library", "ok", library),
    )
    return DrawnResult(problem, entries, "all", {OURS: first, FLEX: 2.0})


def test_the_summarys_numbers(tmp_path):
    drawn = [p for p in draw(0, 9) if p.kind != "rows"]
    results = (
        made_up(drawn[0], 10.0, 80.0, 120.0),  # 8
        made_up(drawn[1], 10.0, 30.0, 5.0, first=4.0),  # 0.5, 3 of compilers
        made_up(drawn[2], 10.0, 20.0, 20.0),  # 2
    )
    (tmp_path / "d.jsonl").write_text(to_text(DrawnRun(0, False, "made-up GPU", True, {}, results)))
    kept = read(tmp_path / "d.jsonl")
    every = summary.figures(kept.results, "compiler", "library")
    assert every is not None
    assert (every.count, every.middle, every.worst, every.at) == (3, 2.0, 0.5, drawn[1].name)
    assert every.mean == pytest.approx(2.0)
    assert every.capped == pytest.approx(3.0 ** (1 / 3))
    compilers = summary.figures(kept.results, "compiler")
    assert compilers is not None
    assert compilers.capped == pytest.approx(18.0 ** (1 / 3))
    assert summary.first_calls(kept.results) == [0.5, 2.0, 0.5]
    text = summary.to_markdown(kept)
    assert "| attention, mean, best of everything | 1 | 1.44 | reached |" in text
    assert "| attention, worst, best of everything | 0.8 | 0.50 | missed |" in text
    assert "| first call over FlexAttention's, worst | at most 1.5 | 2.00 | missed |" in text
    assert "| rows, mean, best of eager and torch.compile | 1.2 | - | open: nothing was compared |" in text


def test_rows_are_compared_with_pytorch_and_with_packages_apart():
    row = next(p for p in draw(0, 60) if p.kind == "rows")
    entries = (
        ContestantResult(OURS, "ours", "ok", 10.0),
        ContestantResult("torch.compile", "compiler", "ok", 16.0),
        ContestantResult("PyTorch eager", "library", "ok", 17.0),
        ContestantResult("quack-kernels", "library", "ok", 8.0),
    )
    text = summary.to_markdown(DrawnRun(0, False, "made-up GPU", True, {}, (DrawnResult(row, entries, "all"),)))
    assert "| rows, worst, best of eager and torch.compile | 0.9 | 1.60 | reached |" in text
    assert "| rows, mean, quack and liger | 1 | 0.80 | missed |" in text


@pytest.mark.parametrize(("tiny", "gpu", "why"), [(True, True, "tiny sizes"), (False, False, "no GPU")])
def test_a_run_without_times_that_count_says_what_was_checked(tiny, gpu, why):
    right = ContestantResult(OURS, "ours", "ok", 1.0, error=2.5e-4)
    wrong = ContestantResult(OURS, "ours", "wrong", note="wrong: relative error 1.0")
    peer = ContestantResult(COMPILE, "compiler", "ok", 0.001)
    results = (DrawnResult(FLAT, (right, peer)), DrawnResult(replace(FLAT, index=1, operator="l2_norm"), (wrong, peer)))
    text = summary.to_markdown(DrawnRun(0, tiny, "made-up device", gpu, {}, results))
    assert f"2 problems of seed 0 on made-up device: {why}, so" in text
    assert "| rows | 2 | 1 | 2.5e-04 |" in text
    assert "| softmax | 1 | 1 | 2.5e-04 |" in text
    assert "| l2_norm | 1 | 0 | - |" in text
    assert "- #1 l2_norm 3x40 float16: wrong: wrong: relative error 1.0\n" in text
    assert "0.00" not in text
    assert "No peer answered" not in text


def test_exceptions_are_listed_by_name():
    wrong_peer = ContestantResult(FLEX, "compiler", "wrong", note="wrong: relative error 1.0")
    result = DrawnResult(
        FLAT, (ContestantResult(OURS, "ours", "ok", 1.0), wrong_peer), absent={"helion": "not installed"}
    )
    text = summary.to_markdown(DrawnRun(0, False, "made-up GPU", True, {}, (result,)))
    assert f"No peer answered:\n\n- {FLAT.name}\n" in text
    assert f"- {FLAT.name}: FlexAttention wrong: wrong: relative error 1.0\n" in text
    assert "- helion: not installed\n" in text


@pytest.mark.parametrize(
    ("text", "message"), [("", "is empty"), ("[]\n", "drawn problems"), ('{"schema": 1, "seed": 0}\n', "line 1")]
)
def test_other_files_are_refused(text, message, tmp_path):
    (tmp_path / "d.jsonl").write_text(text)
    with pytest.raises(MeasureError, match=message):
        read(tmp_path / "d.jsonl")
    with pytest.raises(MeasureError, match="there is no file"):
        read(tmp_path / "none.jsonl")
