"""The tour: what its prose claims is what its cells show."""

from __future__ import annotations

import re

from notebook_checks import SVG, EveryNotebook, read


class TestTour(EveryNotebook):
    name = "00_tour"

    def test_is_short(self):
        assert sum(cell.cell_type == "code" for cell in read(self.path).cells) <= 16

    def test_the_definition_stores_four_matrices_and_the_kernel_none(self):
        shown = self.shown_by("print(nl.Schedule(op))")
        stored = re.findall(r"^    (\w+)\[b, h, i, j\] \+?=", shown, re.MULTILINE)
        assert stored == ["qk", "score", "s_exp", "p"]
        assert "between kernels, in global memory: nothing" in self.shown_by("kernel = nl.compile(op)")
        source = self.shown_by("course.show_code(kernel.source")
        assert source.count("tl.store") == 1

    def test_the_kernel_carries_what_the_prose_says(self):
        source = self.shown_by("course.show_code(kernel.source")
        assert "s_sum = repair * s_sum + s_sum_tile" in source
        assert "acc=repair[:, None] * acc" in source
        assert "j0 * 64 + tl.arange(0, 64)" in source

    def test_errors_are_those_of_sixteen_bits(self):
        for source, count in (("theirs = ", 3), ("decode = ", 1), ("capped = ", 1)):
            errors = [float(x) for x in re.findall(r"\d\.\de-\d+", self.shown_by(source))]
            assert len(errors) == count
            assert all(0 < error < 1e-3 for error in errors)

    def test_the_dependency_is_drawn(self):
        (out,) = [
            out
            for cell in self.run.cells
            if "course.show_graph" in cell.source
            for out in cell.outputs
            if SVG in out.get("data", {})
        ]
        for edge in ("s_max → s_exp", "s_exp → s_sum", "s_exp → p", "p → acc"):
            assert edge in out.data["text/plain"]

    def test_naive_is_wrong_and_repaired_is_right(self):
        naive = self.shown_by('phase="naive"')
        assert "← xmax⟨1⟩ !" in naive
        assert "3.368" in naive
        assert "≠ 1.553" in naive
        repaired = self.shown_by("repair = next(")
        assert "t*exp(xmax - xmax')" in repaired
        assert "0.1353 ↻" in repaired
        assert "1.553 ↻ ✓" in repaired

    def test_one_query_gets_two_kernels(self):
        shown = self.shown_by("decode = ")
        assert "attention_causal_local" in shown
        assert "attention_causal_combine" in shown
        assert "why: split_k_update: 4 programs" in shown

    def test_a_variance_is_refused(self):
        assert "refused at step: prove Eq. 4" in self.shown_by("RepairError")

    def test_the_record_opens_without_the_compiler(self):
        shown = self.shown_by("subprocess.run")
        assert "loaded of tvm, sympy, triton, torch: []" in shown
        assert "<- def:s_sum" in shown

    def test_the_whole_course_is_listed(self):
        text = "\n".join(cell.source for cell in read(self.path).cells)
        for number in range(1, 9):
            assert re.search(rf"^\| \[0{number} .*\]\(0{number}_\w+\.ipynb\) \|", text, re.MULTILINE)
