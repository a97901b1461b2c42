"""The algebra: what its prose says of terms, refusals, guards and numbers is what its cells show."""

from __future__ import annotations

from itertools import pairwise

import pytest
from notebook_checks import PLOTLY, EveryNotebook


@pytest.mark.nightly
class TestAlgebra(EveryNotebook):
    name = "02_algebra"

    def test_a_sum_is_mended_without_its_terms(self):
        made, mended, anew = self.shown_by("t = np.exp(c - r).sum()").strip().splitlines()
        assert mended.split()[-1] == anew.split()[-1] != made.split()[-1]

    def test_each_equation_fails_alone(self):
        shown = self.shown_by("def sides(").strip().splitlines()
        signs = ["".join(line.split()[0] for line in shown[n + 1 : n + 4]) for n in (0, 4, 8)]
        assert signs == ["✓✗✗", "✗✓✗", "✓✓✓"]
        refused = self.shown_by('for reducer in ("sum", "max")')
        assert "sum: refused at the step 'prove Eq. 4'" in refused
        assert "max: h(t, r, r') = t + r - r'" in refused

    def test_one_variable_carries_all_inputs(self):
        table = self.shown_by("found.change_of_variables")
        assert r"$\max\left(0, c\right)^{2}$ | $e^{- C + r}$" in table
        assert "✗" not in table
        constant = self.shown_by('constants=["c2"]')
        assert "refused at the step 'separate'" in constant
        assert "with c2 constant: h(t, r, r') = c2 + (t - c2)*exp(r' - r)" in constant

    def test_assumptions_turn_refusals_into_repairs(self):
        lines = self.shown_by('for known in ({}, {"r": "nonnegative"})').strip().splitlines()
        assert ["refused" in line for line in lines] == [True, False, True, False]
        assert "{'x_max': ['nonnegative']}" in self.shown_by("derived.as_record")

    def test_the_table_of_reducers_is_as_the_prose_says(self):
        lines = self.shown_by("def cell(reducer, g)").strip().splitlines()
        rows = {cells[1].strip(" `"): cells[2:8] for line in lines if (cells := line.split("|"))[1:]}
        repaired = {
            g: [n for n, cell in enumerate(cells) if "✗" not in cell]
            for g, cells in rows.items()
            if "(" in g or g[0] == "c"
        }
        everything, order = [0, 1, 2, 3, 4, 5], [2, 3]
        assert repaired == {
            "exp(c - r)": [0, 2, 3],
            "c*r": [0, 2, 3],
            "c/r": [0, 2, 3],
            "c - r": order,
            "exp(c*r)": [1, 3],
            "(c - r)**2": [],
            "max(c, r)": [],
            "c": everything,
        }
        assert all("invert" in cell for cell in rows["max(c, r)"])

    def test_six_questions_fail_at_six_steps(self):
        shown = self.shown_by("for g, producers in questions")
        steps = [line.split("✗ ")[1] for line in shown.splitlines() if "✗" in line]
        assert steps == ["read", "separate", "invert", "prove Eq. 3", "prove Eq. 4", "guard"]
        assert shown.count("help: ") == 6
        assert "<unknown>" not in shown

    def test_any_stand_in_is_right_and_none_is_wrong(self):
        assert "h(0, -inf, -inf) = nan" in self.shown_by("inf = np.inf")
        first, *others = (line.split()[-1] for line in self.shown_by("def rolling_sum").strip().splitlines())
        assert first == "nan"
        assert len(others) == 4
        assert len(set(others)) == 1
        assert "reached by a maximum: ['-∞']" in self.shown_by("reachable_guards")
        window = self.shown_by("attention.window")
        assert "guard(s_max_1[b, h, i0 * 4 + i1], -inf, 0)" in window
        assert "guard(s_max_0" not in window
        assert "equals the definition" in window
        assert self.shown_by("[[0, 0, 3, 4]").strip() == "[5. 0.]"

    def test_the_family_and_its_matrix(self):
        assert "1 & 2 r - 2 r'" in self.shown_by("family.transport(2.0, 4.0))")
        table = self.shown_by('"(c - r)*exp(c - r)"')
        refused = [row.split("`")[1] for row in table.splitlines() if "✗ close" in row]
        assert refused == ["tanh(c - r)", "max(c, r)"]

    def test_one_pass_is_as_good_as_two(self):
        program = self.shown_by("one_pass.rolling_update")
        assert program.count("grid(4, 64)") == 1
        assert "x_sum⟨j⟩[i] * (64 / float32(j + 1))" in program
        assert "equals the definition" in program
        assert "a value that changes little" in self.shown_by("phases[-1].note")
        (figure,) = [
            out.data[PLOTLY]
            for cell in self.run.cells
            for out in cell.get("outputs", ())
            if PLOTLY in out.get("data", {})
        ]
        moments, welford, one, two = (trace["y"] for trace in figure["data"])
        assert moments[4] > 1, "no digit is left at a mean of 10,000"
        assert all(a > 20 * b for b, a in pairwise(moments[1:])), "about two digits a digit"
        assert all(a <= 3 * b + 1e-6 for a, b in zip(one, two, strict=True)), "beside the definition"
        assert all(a <= 2 * b + 1e-6 for a, b in zip(one, welford, strict=True)), "not above Welford's by much"
        assert min(welford[-1], one[-1], two[-1]) > 100 * two[0], "at the far right all get worse"

    def test_the_checks_are_told(self):
        note = " ".join(self.shown_by('phases["repair"].note').split())
        assert "As written, h satisfies Eq. 3, Eq. 4 and keeps the identity" in note
        assert "Eq. 3 and Eq. 4 hold at 64 random points" in self.shown_by("print(*term.checks")

    def test_the_panel_is_seen_without_a_kernel(self):
        shown = self.shown_by("panel = nl.solver")
        assert "run this cell to write your own term" in shown
        assert "h(t, r, s, r&#x27;, s&#x27;) = t*s*exp(r - r&#x27;)/s&#x27;" in shown
        assert "RepairTerm with h = t*s*exp(r - r')/s'" in self.shown_by("found = panel.term")
