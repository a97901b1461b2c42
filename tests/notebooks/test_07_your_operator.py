"""Your own operator: variants, definitions, exports and wrong repairs are what the prose says of them."""

from __future__ import annotations

import re

import pytest
from notebook_checks import EveryNotebook, unfolded


@pytest.mark.nightly
class TestYourOperator(EveryNotebook):
    name = "07_your_operator"

    def test_the_variant_is_right_and_has_the_repairs_of_plain_attention(self):
        assert "strength: float32[4]" in self.shown_by("op = attention.general")
        assert "log(1 + float32(i - j))" in self.shown_by("op = attention.general"), "the absolute value is left out"
        shown = self.shown_by('print(f"relative error against float64')
        assert re.findall(r"repair of (\w+): h\(t, s_max, s_max'\) = (.*)", shown) == [
            ("s_sum", "t*exp(s_max - s_max')"),
            ("acc", "t*exp(s_max - s_max')"),
        ]
        assert self.errors(shown) < 1e-3
        assert self.errors(self.shown_by("ours = nl.attention(")) < 1e-3

    def shown_by(self, source: str) -> str:
        return unfolded(super().shown_by(source))

    def errors(self, shown: str) -> float:
        """The largest of the relative errors that are shown."""
        found = [float(x) for x in re.findall(r"\d\.\de-\d\d", shown)]
        assert found
        return max(found)

    def test_how_a_mask_is_written_decides_on_its_tiles(self):
        notes = self.shown_by("def partition_notes")
        assert "becomes left edge max(0, i0-2)" in notes
        assert (notes.count("true on whole tiles"), notes.count("% 4 == 0: unknown, it is not affine")) == (2, 1)
        other = self.shown_by("def dilated_squared")
        assert "becomes interior 0 .. i0; right edge" in other
        assert ") < 4096: unknown, it is not affine" in other
        assert re.findall(r"64 tiles per head, (\d+) visited", other) == ["36", "21"]

    @pytest.mark.parametrize("source", ["run_exported(kernel, ", "run_exported(by_hand"])
    def test_exported_kernels_run_where_the_compiler_is_not_loaded(self, source: str):
        shown = self.shown_by(source)
        assert "neptune_lab imported: False" in shown
        assert self.errors(shown) < 1e-3

    def test_the_textbook_takes_two_loops_and_says_why(self):
        shown = self.shown_by("two_loops = nl.compile")
        assert shown.count("\nkernel ") == 2
        remark = self.shown_by('step.primitive == "remark"')
        assert "spread starts a loop of its own" in remark
        assert "step 'separate' failed: g = (64*j0 + j1 - moment/total)**2*exp(x - top)" in remark
        assert "depends on 3 producers, top, moment, total: a vector repair moves one" in remark
        assert "kernels: 1\n" in self.shown_by("whole_row = nl.compile")

    def test_the_rewritten_form_takes_one_and_costs_digits(self):
        shown = self.shown_by("one_loop = nl.compile")
        assert "between kernels, in global memory: nothing" in shown
        assert (shown.count("kernel peak "), shown.count("for j0 in")) == (1, 1)
        code = self.shown_by("source = one_loop.source")
        assert "loads of x in the code: two loops 2 - one loop 1" in code
        assert [code.count(f"{name} = repair * {name}") for name in ("first", "total", "second")] == [1, 1, 1]
        rows = re.findall(r"^ +(\d+) +(\S+e-\d+) +(\S+e-\d+)$", self.shown_by("for width in (30"), re.MULTILINE)
        assert [int(width) for width, *_ in rows] == [30, 10, 3, 1]
        lost = [float(one) for *_, one in rows]
        assert lost == sorted(lost)
        assert 2e-3 < lost[-1] < 5e-2, "two good digits"
        assert max(float(two) for _, two, _ in rows) < 1e-6, "nearly seven digits"

    def test_the_hand_made_schedule_is_the_template_s(self):
        shown = self.shown_by("by_hand = nl.compile(sch)")
        assert "the schedule equals the definition" in shown
        assert self.errors(shown.partition("kernels: 1\n")[2]) < 1e-5

    def test_a_wrong_repair_is_refused_with_numbers_that_hold(self):
        shown = self.shown_by("refused = error")
        assert "step 'prove Eq. 3' failed" in shown
        assert "before and now are exchanged" in shown
        for stated, computed in re.findall(r"= (\d\.\d+) \(.*?(\d\.\d+)\)", self.shown_by("case = refused.counter")):
            assert stated == computed

    def test_it_is_marked_where_it_is_let_in(self):
        shown = self.shown_by("repair=mine, proved=False)\nfor phase")
        assert re.findall(r"^(.*): (! wrong|ok)$", shown, re.MULTILINE) == [
            ("dataflow reorganisation", "ok"),
            ("naive fusion", "! wrong"),
            ("repair function, not proved", "! wrong"),
            ("repaired program, not proved", "! wrong"),
        ]
        assert "check(): does NOT equal the definition" in shown
        assert "which is not proved: no kernel is made of it" in shown

    def test_the_table_shows_the_first_wrong_iteration_and_the_two_tags_its_cause(self):
        shown = self.shown_by("for found in table.first_wrong")
        assert shown.strip() == "xsum[0]: first wrong at j = 2: 4.086, should be 1.418"
        cause = self.shown_by("needed = (found.should_be")
        for expected in ("xmax⟨1⟩ = 3, xmax⟨2⟩ = 4", "2.7183 = exp(1)", "0.3679 = exp(-1)"):
            assert expected in cause
        assert "the same program as with a derived repair: True" in self.shown_by("derived = figure1()")

    def test_a_forgotten_repair_shows_when_the_maximum_first_moves(self):
        shown = self.shown_by('sch.rolling_update("acc", "qk.j", repair="t", proved=False)')
        assert "acc[0, 0, 0, 0]: first wrong at j = 1: 30, should be 21.35" in shown
        (values,) = re.findall(r"^acc\[0, 0, 0, 0\] +(.*)$", shown, re.MULTILINE)
        assert re.split(r"  +", values.strip()) == ["10 ✓", "30 ✗", "41.04 ✗", "81.04 ✗"]
        for expected in ("≠ 21.35", "≠ 32.39", "52.18", "≠ 33.43", "1.553 ↻ ✓"):
            assert expected in shown
        assert pytest.approx(41.04 - 32.39, abs=0.01) == 30 - 21.35, (
            "the error is carried along while the maximum stays"
        )
        assert "it is t*exp(s_max_before - s_max_now)" in self.shown_by("exp(s_max_before) / exp(s_max_now)")

    def test_the_other_candidates_fail_as_told(self):
        shown = self.shown_by("candidates = (")
        assert re.findall(r" (✗ prove Eq\. \d|✗ read|✓ proved)", shown) == [
            *["✗ prove Eq. 3"] * 4, "✗ read", "✓ proved"
        ]  # fmt: skip
        assert "step 'prove Eq. 4' failed" in self.shown_by("len(terms)")
        assert "terms in the counterexample: 2" in self.shown_by("len(terms)")
        assert "gap[0]: first wrong at j = 2: 2, should be 3" in self.shown_by("rising = np.array")
        mended = self.shown_by('rolling_update("gap", "top.j")\n')
        assert "gap_step[i] * float32(j)" in mended
        assert "check(): equals the definition" in mended
