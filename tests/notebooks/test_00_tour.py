"""The tour: what its prose claims is what its cells show, and it is as short as it says."""

from __future__ import annotations

import re

from notebook_checks import PLOTLY, SVG, EveryNotebook, read, reading_minutes


class TestTour(EveryNotebook):
    name = "00_tour"

    def test_takes_five_minutes(self):
        cells = read(self.path).cells
        (end,) = [n for n, cell in enumerate(cells) if "The tour ends here" in cell.source]
        assert reading_minutes(cells[: end + 1]) <= 5

    def test_the_definition_stores_four_matrices_and_the_kernel_none(self):
        shown = self.shown_by("print(nl.Schedule(op))")
        stored = re.findall(r"^    (\w+)\[b, h, i, j\] \+?=", shown, re.MULTILINE)
        assert stored == ["qk", "score", "s_exp", "p"]
        outline = self.shown_by("kernel = nl.compile(op)")
        assert "between kernels, in global memory: nothing" in outline
        assert "64:" in outline

    def test_moving_the_matrices_takes_much_longer_than_computing(self):
        shown = self.shown_by("memory.balance(")
        apart, fused, operations = (float(x) for x in re.findall(r"([\d.]+) ms", shown))
        assert apart > 10 * operations > 10 * fused

    def test_the_memories_are_drawn(self):
        (data,) = [
            out.data for cell in self.run.cells for out in cell.get("outputs", ()) if PLOTLY in out.get("data", {})
        ]
        for words in ("registers", "shared memory: 227 KiB per multiprocessor", "L2 cache: 60 MiB", "4.8 TB/s"):
            assert words in data["text/plain"]
        assert SVG in read(self.path).cells[4].outputs[0].data

    def test_the_error_is_that_of_sixteen_bits(self):
        (error,) = [float(x) for x in re.findall(r"\d\.\de-\d+", self.shown_by("scaled_dot_product_attention"))]
        assert 1e-4 < error < 1e-3

    def test_naive_is_wrong_and_repaired_is_right(self):
        naive = self.shown_by('phase="naive"')
        assert "← xmax⟨1⟩ !" in naive
        assert "3.368" in naive
        assert "≠ 1.553" in naive
        repaired = self.shown_by('sch.tag_table("j", inputs={"inp": row})')
        assert "0.1353 ↻" in repaired
        assert "1.553 ↻ ✓" in repaired

    def test_the_whole_course_is_listed(self):
        text = "\n".join(cell.source for cell in read(self.path).cells)
        for number in range(1, 10):
            assert re.search(rf"^\| \[0{number} .*\]\(0{number}_\w+\.ipynb\) \|", text, re.MULTILINE)
