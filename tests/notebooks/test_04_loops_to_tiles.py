"""Loops to tiles: Figure 5, the passes on attention, and the facts that the prose states."""

from __future__ import annotations

import re

import pytest
from notebook_checks import EveryNotebook


def table(shown: str) -> list[list[str]]:
    """The cells of a Markdown table, without its head."""
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


@pytest.mark.nightly
class TestLoopsToTiles(EveryNotebook):
    name = "04_loops_to_tiles"

    def test_figure_5_is_reconciled_as_in_the_paper(self):
        assert "('i1', 'j1')" in self.shown_by("inner_loops(sch.program")
        first, second = table(self.shown_by('"tile, squeezed"'))
        assert first[1:] == ["(None, i1)", "`x1d[i0, 0:16]`", "`x1d[i0, 0:16, NewAxis]`"]
        assert second[1] == "(j1, i1)"
        assert second[3].startswith("`permute(xtrans[")
        assert "right in float64: True" in self.shown_by("kernel5 = nl.compile")

    def test_the_permutation_is_index_arithmetic(self):
        shown = self.shown_by("computing =")
        assert "j[None, :] * 32 + i_2[:, None]" in shown
        assert "x1d[:, None]" in shown

    def test_what_breaks_a_rule_is_gathered(self):
        shown = self.shown_by('"every second"')
        assert "diagonal: gather(x, iota[i0*16:i0*16+16, NewAxis], iota[i0*16:i0*16+16, NewAxis]) + x[" in shown
        assert re.search(r"every second: gather\(x, iota\[.*\* 2\)", shown)
        assert shown.count("right in float64: True") == 2

    def test_ten_stores_in_the_loop_and_eleven_kinds_of_expression(self):
        program = self.shown_by("to_text(kernel.translated).partition")
        inside = re.findall(r"^ {8}\w+\[[^=]*\] = ", program, re.MULTILINE)
        assert len(inside) == 10
        assert len(table(self.shown_by("exercises.operations"))) == 11

    def test_what_has_a_value_a_row_gets_a_new_axis(self):
        rows = table(self.shown_by('stages = ("s_max_tile"'))
        assert all(row[4].endswith("NewAxis]`") for row in rows if row[3] == "(None, None, i1)")

    def test_ten_of_the_passes_change_something(self):
        shown = self.shown_by("idle =")
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")
        ][-2:]
        assert [row[0] for row in rows] == ["changed something", "had nothing to do"]
        assert rows[0][1] == "10"
        assert all(int(count) == len(names.split(", ")) for _, count, names in rows)

    def test_the_passes_do_what_is_said(self):
        shown = self.shown_by("show_pass")
        for text in ("acc=repair[0:32, NewAxis]", "q_tile[0:32, 0:32]", "# interior", "exp2(", "(1.0 / s_sum", "3-i0"):
            assert text in shown

    def test_the_mask_is_left_out_where_it_holds(self):
        shown = self.shown_by("visited_figure")
        assert "before: 16 tiles per head, 16 visited, 16 of them masked" in shown
        assert "after: 16 tiles per head, 10 visited, 4 of them masked" in shown

    def test_every_stage_computes_the_same(self):
        rows = table(self.shown_by('"error in float64"'))
        assert len(rows) == 11
        for row in rows:
            assert float(row[1]) < 1e-15
            assert 1e-4 < float(row[2]) < 3e-4
        assert "error below 1e-3: True" in self.shown_by('"error in float64"')

    def test_lines_are_linked_to_stages(self):
        shown = self.shown_by("links = list")
        assert "for j0 in range(3 - i0)" in shown
        (repair,) = [row for row in table(shown) if row[1].startswith("`repair =")]
        assert repair[3] == "`s_sum`"

    def test_the_estimate_of_shared_memory_is_exact_for_the_recorded_kernel(self):
        shown = self.shown_by("on_chip_recorded")
        (row,) = [row for row in table(shown) if row[:2] == ["128 × 64", "3"]]
        assert f"{row[3]} bytes of shared memory" in shown
        assert table(shown)[-1][-1] == "✗"

    def test_the_record_opens_without_the_compiler(self):
        shown = self.shown_by("subprocess.run")
        assert "loaded of tvm, sympy, triton, torch: []" in shown
        assert "<- def:s_sum" in shown
