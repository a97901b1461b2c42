"""The report: targets, tables and figures from made-up results, the page, the README, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
import typer
from typer.testing import CliRunner

from neptune_lab.bench import command, figures, report, tables
from neptune_lab.bench.measured import NO_RECORD, OURS, BenchmarkResults, from_json, read, to_json, write
from neptune_lab.bench.targets import targets
from neptune_lab.errors import MeasureError
from neptune_lab.figure_colours import DRAWN, FAINT, GROUNDS, NO_GROUND, STRONG, contrast

EVERY_TARGET = 14


def changed(results: BenchmarkResults, name: str, contestant: str, **fields) -> BenchmarkResults:
    """The results with one entry changed."""
    setup = next(s for s in results.setups if s.name == name)
    entries = tuple(replace(e, **fields) if e.name == contestant else e for e in setup.entries)
    return results.with_setup(replace(setup, entries=entries), results.seconds)


# -- results --------------------------------------------------------------------------------------------------------


def test_results_come_back_from_json(made_up, tmp_path):
    assert from_json(to_json(made_up)) == made_up
    write(tmp_path / "deep" / "r.json", made_up)
    assert read(tmp_path / "deep" / "r.json") == made_up
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[]", "no benchmark results"), ('{"schema": 0}', "of schema 0.*reads schema 1")],
)
def test_other_files_are_refused(text, message, tmp_path):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(MeasureError, match=message):
        read(tmp_path / "r.json")


def test_the_best_is_the_fastest_right_answer(made_up):
    faster = changed(made_up, "causal_pf-512", "FlexAttention", us=25.0)
    setup = next(s for s in faster.setups if s.name == "causal_pf-512")
    best = setup.best("compiler")
    assert best is not None
    assert best.name == "FlexAttention"
    assert setup.speedup("compiler") == 0.5
    wrong = changed(faster, "causal_pf-512", "FlexAttention", status="wrong")
    setup = next(s for s in wrong.setups if s.name == "causal_pf-512")
    assert setup.speedup("compiler") == 2.0


# -- targets --------------------------------------------------------------------------------------------------------


def test_targets_of_the_made_up_run(made_up):
    """Everything is twice as fast as its peers, so that every target of 2 and less is reached."""
    found = targets(made_up)
    assert len(found) == EVERY_TARGET
    by_name = {t.operators: t for t in found}
    assert by_name["six prefill operators"].found == pytest.approx(2.0)
    assert by_name["six prefill operators"].reached is True
    assert by_name["four decode operators"].reached is True
    assert by_name["decode, every length"].counted == 16
    assert by_name["every attention setup"].counted == 40
    assert by_name["L2 norm, RMSNorm with row max or quantisation"].counted == 18
    assert by_name["GEMM chains and attention modules"].counted == 21
    assert by_name["tuning one setup from nothing"].found == pytest.approx(60 / 40)
    reading = by_name["decode at 32768"]
    assert reading.worst == ("gqa_dc-32768", pytest.approx(2 * 8 * 32768 * 128 * 2 / 4e12 / 50e-6))


def test_a_wrong_answer_of_ours_misses_the_target(made_up):
    found = targets(changed(made_up, "alibi_pf-2048", OURS, status="wrong", us=None))
    alibi = next(t for t in found if t.operators == "ALiBi prefill")
    assert alibi.failed == ("alibi_pf-2048",)
    assert alibi.reached is False


def test_what_was_not_measured_leaves_the_target_open(made_up):
    part = replace(made_up, setups=tuple(s for s in made_up.setups if s.name != "performer-512"))
    performer = next(t for t in targets(part) if t.operators == "performer, every length")
    assert (performer.reached, performer.missing) == (None, ("performer-512",))
    rows = {row[0]: row[4] for row in tables.target_rows(part)}
    assert rows["performer, every length"] == "open: no figure of performer-512"
    assert {row[4] for row in tables.target_rows(replace(made_up, device={"name": "CPU"}))} == {"open: no GPU"}


def test_one_slow_setup_decides_where_each_counts(made_up):
    slow = changed(made_up, "window_pf-512", OURS, us=200.0)
    every = next(t for t in targets(slow) if t.operators == "every attention setup")
    assert every.worst == ("window_pf-512", 0.5)
    assert every.reached is False


# -- tables ---------------------------------------------------------------------------------------------------------


def test_tables_read_well(made_up, golden):
    rows = ("causal_pf", "gqa_dc", "g12", "performer")
    few = tuple(s for s in made_up.setups if s.row in rows and s.group != "batch")
    lost = changed(replace(made_up, setups=few), "gqa_dc-512", OURS, status="wrong", us=None, note="wrong: a | b")
    golden("bench_tables.md", tables.to_markdown(lost))


def test_what_records_give_is_told_by_operator(made_up):
    few = tuple(s for s in made_up.setups if s.row == "causal_pf" and s.group == "attention")
    wrong = changed(replace(made_up, setups=few), "causal_pf-2048", NO_RECORD, status="wrong", us=None)
    mean = (0.8 * 1.2 * 1.2) ** (1 / 3)
    own = ["3", f"{mean:.2f}", "0.80 causal_pf-512", "1.20 causal_pf-8192"]
    assert tables.untuned_rows(wrong) == [["causal_pf", *own], ["**all**", *own]]


def test_what_limits_a_setup(made_up):
    by_name = {s.name: s for s in made_up.setups}
    decode, prefill = by_name["causal_dc-32768"], by_name["global_pf-8192"]
    assert tables.limit(decode, changed_time(made_up)) == tables.limit(decode, made_up)
    slow = replace(decode, entries=tuple(replace(e, us=150.0) if e.name == OURS else e for e in decode.entries))
    assert tables.limit(slow, made_up) == "memory, 89%"
    slow = replace(prefill, entries=tuple(replace(e, us=4000.0) if e.name == OURS else e for e in prefill.entries))
    assert tables.limit(slow, made_up) == "products, 46%"
    assert tables.limit(by_name["causal_dc-512"], made_up).startswith("neither: latency")


def changed_time(results: BenchmarkResults) -> BenchmarkResults:
    """The same run, another day."""
    return replace(results, started="2001-01-01T00:00:00+00:00")


# -- figures and the page -------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_every_figure_is_drawn(made_up):
    drawn = figures.figures(made_up)
    titles = " ".join(one.title for one in drawn)
    for figure in ("Figures 8 and 16", "Figure 17", "Figures 9 and 18", "Figure 10", "Figure 11"):
        assert f"Neptune, {figure}" in titles
    for figure in ("Figure 8", "Figure 10", "Figure 11"):
        assert f"MCFuser, {figure}" in titles
    model = drawn[-1]
    assert model.text == "One point per candidate. Correlation: g1 1.00."


def test_figure_8_shows_our_time_over_theirs(made_up):
    drawn = figures.relative(made_up, "compiler")
    assert drawn is not None
    lines = drawn.figure.to_dict()["data"]
    (flex,) = {tuple(line["y"]) for line in lines if line["name"] == "FlexAttention"}
    assert flex == (0.5, 0.5, 0.5, 0.5)
    assert tuple(lines[0]["x"]) == (512, 2048, 8192, 32768)


def test_figures_without_data_are_left_out(made_up):
    assert figures.figures(replace(made_up, setups=(), tuning=())) == ()
    only = figures.figures(replace(made_up, setups=made_up.group("chains"), tuning=()))
    assert [one.title.split(" (")[1] for one in only] == ["Neptune, Figure 10)", "MCFuser, Figure 8)"]


class Reader(HTMLParser):
    """Counts elements, and keeps what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.fetched: list[str | None] = []

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.fetched += [value for name, value in attrs if name == "src" or (tag == "link" and name == "href")]


@pytest.mark.nightly
def test_the_page_needs_no_network_and_holds_plotly_once(made_up):
    page = report.to_html(changed(made_up, "g1", "torch.compile", status="failed", us=None, note="<script>"))
    assert page.count("plotly.js v") == 1
    assert "&lt;script&gt;" in page
    reader = Reader()
    reader.feed(page)
    assert reader.fetched == []
    assert reader.found.count("h2") == len(tables.SECTIONS) + len(figures.figures(made_up)) + 1


@pytest.mark.nightly
def test_every_colour_of_a_figure_is_read_on_both_themes(made_up):
    found = set()

    def visit(part, name=""):
        if isinstance(part, dict):
            for key, value in part.items():
                visit(value, key)
        elif isinstance(part, list | tuple):
            for value in part:
                visit(value, name)
        elif "color" in name and isinstance(part, str):
            found.add(part)

    for one in figures.figures(made_up):
        visit(json.loads(one.figure.to_json()))
    tones = {tone for tone in found if tone.startswith("#")} - {STRONG}  # on the page, black is its ink
    assert found - tones <= {STRONG, NO_GROUND, FAINT}
    assert STRONG in found
    assert tones
    assert {tone for tone in tones for ground in GROUNDS if contrast(tone, ground) < DRAWN} == set()
    page = report.to_html(made_up)
    assert "color-scheme: light dark" in page
    assert 'fill: rgb(0, 0, 0)"] { fill: var(--ink)' in page


def test_the_readme_is_renewed_between_its_markers(made_up, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_readme(readme, made_up)
    once = readme.read_text()
    assert once.startswith(f"before\n{report.BEGIN}\nmade-up GPU")
    assert once.endswith(f"{report.END}\nafter\n")
    assert "| causal_pf | 50 (2.00, 2.00) |" in once
    assert "old" not in once
    report.write_readme(readme, made_up)
    assert readme.read_text() == once
    readme.write_text("no markers")
    with pytest.raises(MeasureError, match=r"no place for the table\n.*benchmark: begin"):
        report.write_readme(readme, made_up)


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def call():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.bench)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.nightly
def test_a_report_is_drawn_without_measuring(call, made_up, tmp_path):
    write(tmp_path / "r.json", made_up)
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    done = call("--report", "--results", tmp_path / "r.json", "--html", page, "--markdown", text)
    assert done.exit_code == 0, done.output
    assert "six prefill operators" in done.output
    assert "2.00 (geometric mean of 24)" in done.output
    assert page.read_text().startswith("<!doctype html>")
    assert text.read_text() == tables.to_markdown(made_up)


def test_without_a_gpu_only_toy_sizes_run(call, tmp_path, monkeypatch):
    monkeypatch.setattr("neptune_lab.bench.tensors.device_name", lambda: "cpu")
    done = call("-o", tmp_path / "b.json")
    assert isinstance(done.exception, MeasureError)
    assert "--tiny" in str(done.exception)
    monkeypatch.setattr("neptune_lab.bench.contestants.peers", lambda *given: ())  # which take seconds to compile
    done = call("--tiny", "--only", "l2_norm-4x64", "-o", tmp_path / "b.json", "--autotuned", "none")
    assert done.exit_code == 0, done.output
    assert [s["name"] for s in json.loads((tmp_path / "b.json").read_text())["setups"]] == ["l2_norm-4x64"]


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs no interpreter")
def test_the_interpreter_is_asked_for_in_time(tmp_path):
    """In a process of its own, as a user starts it: these tests ask for the interpreter before anything else."""
    start = "import sys; from neptune_lab.cli import main; sys.exit(main())"
    asked = ["bench", "--tiny", "--only", "l2_norm-4x64", "--autotuned", "none", "-o", str(tmp_path / "b.json")]
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", start, *asked], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "open: no GPU" in done.stdout
    assert "geometric mean" not in done.stdout, "times of an interpreter"


def test_kernels_are_exported_and_used(call, tmp_path, monkeypatch):
    monkeypatch.setattr("neptune_lab.bench.contestants.peers", lambda *given: ())
    done = call("--tiny", "--only", "g1", "--export-kernels", tmp_path / "k")
    assert done.exit_code == 0, done.output
    done = call("--tiny", "--only", "g1", "--kernels", tmp_path / "k", "-o", tmp_path / "b.json")
    assert done.exit_code == 0, done.output
    (setup,) = read(tmp_path / "b.json").setups
    assert setup.ours is not None
