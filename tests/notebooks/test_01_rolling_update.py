"""Rolling update: the numbers that the prose names are those that the compiler's record shows."""

from __future__ import annotations

import re

import pytest
from notebook_checks import NOTEBOOKS, PLOTLY, SVG, EveryNotebook, read, reading_minutes, tagged


@pytest.mark.nightly
class TestRollingUpdate(EveryNotebook):
    name = "01_rolling_update"

    def test_the_table_by_hand_is_the_compilers(self):
        (table,) = [cell.source for cell in self.run.cells if "| largest so far | factor |" in cell.source]
        rows = [line.split("|") for line in table.splitlines() if re.match(r"\| \d \|", line)]
        by_hand = [(row[4].split("=")[-1].strip(), row[5].split("=")[-1].strip()) for row in rows]
        shown = self.shown_by('sch.tag_table("j", inputs=inputs)')
        repaired = shown[shown.index("↻") :]
        for factor, total in by_hand:
            assert f"{float(factor):.4g} ↻" in repaired
            assert f"{float(total):.4g} ↻" in repaired
        assert len(by_hand) == 4

    def test_the_path_takes_45_minutes(self):
        """The tour, the sections marked ▶, and the exercises marked ▶ with the minutes that they name."""
        tour, cells = read(NOTEBOOKS / "00_tour.ipynb").cells, read(self.path).cells
        (end,) = [n for n, cell in enumerate(tour) if "The tour ends here" in cell.source]
        path, marked, writing = tour[: end + 1], True, 0
        for cell in cells:
            if found := re.match(r"## \d+\.( ▶)?", cell.source):
                marked = bool(found[1])
            exercise = re.match(r"\*\*▶ Exercise \d\*\* \(about (\d+) minutes\)", cell.source)
            writing += int(exercise[1]) if exercise else 0
            if (marked or exercise) and not tagged(cell, "exercise"):
                path.append(cell)
        assert 15 < writing < 25
        assert reading_minutes(path) + writing <= 45

    def test_one_loop_moves_a_quarter_of_the_bytes(self):
        shown = self.shown_by("memory.traffic(large.program)")
        assert "three loops move 4 times the bytes of one" in shown
        assert re.search(r"s_max_start, s_max, s_sum.*\| inp \| xsum \|", shown)

    def test_what_students_write_is_what_the_compiler_runs(self):
        solved = [cell.source for cell in self.run.cells if "solution" in cell.metadata]
        for name in ("writing.online(", "writing.join(", "writing.flash(", "writing.flash_schedule("):
            assert sum(name in source for source in solved) == 1
        assert "writing.flash_schedule(" in solved[-1]

    def test_ordinary_fusion_is_refused(self):
        assert "which 's_max' still folds along" in " ".join(self.shown_by('reverse_compute_at("s_exp"').split())

    def test_four_phases(self):
        shown = self.shown_by("recorded = {")
        titles = re.findall(r"^(\w[\w ]+): ", shown, re.MULTILINE)
        assert titles == ["dataflow reorganisation", "naive fusion", "repair function", "repaired program"]

    def test_naive_fusion_is_drawn_and_wrong(self):
        assert "s_max → s_exp: xmax (read too early) !" in self.shown_by("def listing(phase)")
        shown = self.shown_by('sch.tag_table("j", phase="naive"')
        assert "3.368" in shown
        assert "≠ 1.553" in shown

    def test_three_lines_change(self):
        shown = self.shown_by("course.show_changes(")
        added = [line for line in shown.splitlines() if line.startswith("+")]
        assert len(added) == 6  # the last of the three statements takes four lines
        assert [line.split("=")[0].strip("+ ") for line in added[:3]] == ["xmax⟨j⟩[i]", "xexp[i, j]", "xsum[i]"]
        assert "exp(xmax⟨j-1⟩[i] - guard(xmax⟨j⟩[i], -inf, where(j == 3, -inf, 0)))" in added[3]
        assert "* xsum[i]" in added[4]
        assert "xmax (repaired) ↻" in shown

    def test_the_chart_shows_what_is_said_of_it(self):
        (data,) = [
            out.data for cell in self.run.cells for out in cell.get("outputs", ()) if PLOTLY in out.get("data", {})
        ]
        assert "naive sum 33.67, repaired sum 9.08, right 9.08" in data["text/plain"]
        xmax, naive, repaired = ([float(y) for y in trace["y"]] for trace in data[PLOTLY]["data"])
        assert len(xmax) == 48
        assert naive == sorted(naive)
        falls = [j for j in range(1, 48) if repaired[j] < repaired[j - 1]]
        assert falls
        assert all(xmax[j] > xmax[j - 1] for j in falls)

    def test_every_check_says_equal(self):
        checks = [cell for cell in self.run.cells if cell.cell_type == "code" and ".check())" in cell.source]
        assert len(checks) == 3
        for cell in checks:
            assert "equals the definition" in self.shown_by(cell.source)

    def test_tiles(self):
        shown = self.shown_by('tiles.tag_table("j0"')
        assert "1.553 ↻" in shown
        assert "0.3679 ↻" in shown
        assert "1.646 ↻ ✓" in shown

    def test_three_rolling_updates_of_attention(self):
        assert self.shown_by("repairs = [phase.derivation").strip().splitlines() == [
            "s_max: nothing to repair",
            "s_sum: h(t, s_max, s_max') = t*exp(s_max - s_max')",
            "acc: h(t, s_max, s_max') = t*exp(s_max - s_max')",
        ]
        assert "naive fusion: 52.18, right: 33.43" in self.shown_by("naive_out = ")
        table = self.shown_by('tiny.tag_table("j", inputs=tiny_inputs)')
        for value in ("10 ↻", "21.35 ↻", "51.92 ↻ ✓", "33.43 ✓"):
            assert value in table
        assert self.shown_by("flash.to_python()").count("sch.rolling_update(") == 3

    def test_figures_are_drawn(self):
        drawn = [cell for cell in self.run.cells if any(SVG in out.get("data", {}) for out in cell.get("outputs", ()))]
        assert len(drawn) >= 3
