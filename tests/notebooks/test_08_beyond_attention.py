"""What lies beyond attention: every operator's h, loops and bytes are what the prose says of them."""

from __future__ import annotations

import re

import pytest
from notebook_checks import EveryNotebook


@pytest.mark.nightly
class TestBeyondAttention(EveryNotebook):
    name = "08_beyond_attention"

    def test_a_short_row_is_held_and_a_long_one_rolls(self):
        shown = self.shown_by("for cols in (4096")
        assert re.findall(r"loops: (\d), repairs: (\d)", shown) == [("0", "0"), ("1", "1")]

    def test_only_the_scaled_norm_is_finite(self):
        rows = [line.split() for line in self.shown_by("naive_norm(dtype)").splitlines() if "e+" in line]
        assert [row[1] for row in rows].count("inf") == 4
        for _, naive, scaled, right in rows:
            assert abs(float(scaled) / float(right) - 1) < 1e-3
            assert naive == "inf" or abs(float(naive) / float(right) - 1) < 1e-2

    def test_h_of_each_operator(self):
        for source, h in {
            "norms.l2_norm(64": "h = t*x_max**2/x_max'**2",
            "fuse(norms.rms_norm_max": "h = t*sqrt(x2_sum/256 + 1/1000000)/sqrt(x2_sum'/256 + 1/1000000)",
            "fuse(norms.layer_norm": "h = t_0 + t_1*(x_sum/128 - x_sum'/128) + t_2*",
            "fuse(rows.softmax": "h = t*exp(s_max - s_max')",
            "fuse(entropy": "h = t_0*exp(top - top') + t_1*(top - top')*exp(top - top')",
            "fuse(op, block_q=64, block_kv=(64, 64))": "h = t*exp(k_max - k_max')",
        }.items():
            assert h in self.shown_by(source)
            assert "all agree with float64: True" in self.shown_by(source)

    def test_a_maximum_asks_for_a_factor_that_is_not_negative(self):
        refused, found = self.shown_by('"nonnegative"').split("{'r'", 1)
        assert "refused" in refused
        assert "h = t*r/r'" in found

    def test_outputs_as_long_as_the_row_take_a_second_loop_in_the_same_kernel(self):
        shown = self.shown_by("show_after(kernel)\nprint(kernel.outline)")
        assert shown.count("  for j0 in range(4):") == 2
        assert shown.count("kernel rms_norm_quantize") == 1
        assert "largest distance, in steps: 0.50; largest |q|: 127" in self.shown_by("steps.max()")

    def test_the_label_s_logit_needs_no_repair(self):
        assert "target → dataflow, naive, repaired" in self.shown_by("phase.key for phase in step.phases")

    def test_performer_is_two_kernels_and_four_repairs_where_features_roll(self):
        narrow = self.shown_by("for features_at_once").splitlines()[1]
        assert narrow.endswith("loops (1, 1), repaired: k_exp_sum, kv_exp, den_exp, num_exp")
        assert "between kernels, in global memory: kv float16[1, 2, 64, 32], k_sum" in "\n".join(
            self.shown_by("print(kernel.outline)").splitlines()
        )

    def test_the_product_between_is_not_stored_and_parts_of_the_output_cost_traffic(self):
        assert "between kernels, in global memory: nothing" in self.shown_by("print(flat.outline)")
        moved = [int(n) for n in re.findall(r"(\d+) bytes", self.shown_by("block_out=columns"))]
        assert moved == sorted(moved)
        assert len(set(moved)) == 3

    def test_refusals_say_why(self):
        assert "kink" in self.shown_by("fuse(mean_absolute_deviation())")
        assert "away starts a loop of its own" in self.shown_by("fuse(mean_absolute_deviation())")
        assert "step 'guard' failed" in " ".join(self.shown_by("fuse(sum_of_scaled())").split())
        assert "loops: (1, 1) before, (1,) rewritten\nsame numbers: True" in self.shown_by("sum_of_scaled_rewritten()")

    def test_bytes_are_as_the_prose_says(self):
        over = {
            name: list(map(float, numbers))
            for name, *numbers in re.findall(
                r"^(\w+): fused ([\d.]+), maps written into their readers ([\d.]+), one kernel per stage ([\d.]+)$",
                self.shown_by("bytes_figure"),
                re.MULTILINE,
            )
        }
        assert len(over) == 13
        one_a_row = {"l2_norm", "rms_norm_max", "log_sum_exp", "cross_entropy", "entropy", "sum_of_scaled_rewritten"}
        for name, (fused, inlined, apart) in over.items():
            assert fused <= inlined <= apart
            assert (fused == 1) == (name in one_a_row)
        assert max(over, key=lambda name: over[name][2] / over[name][0]) == "performer"
        three = {"entropy", "sum_of_scaled", "sum_of_scaled_rewritten"}
        assert {name for name, ways in over.items() if 3 <= ways[1] < 4} == three
        assert 2 <= over["sum_of_scaled"][0] < 2.1, "the minimum and the maximum share a loop"
        assert over["deviation"][2] < 1.01 * over["deviation"][0]

    def test_recorded_ratios_are_marked_and_bear_the_prose_out(self):
        assert self.shown_by("exercises.recorded(").startswith("Recorded run, not measured here: NVIDIA H200, 20")
        assert " 9 of the norms: holds the whole row" in self.shown_by("recorded_ways")
        assert "['g4', 'g5', 'g6', 'g10']" in self.shown_by("recorded_ways")
