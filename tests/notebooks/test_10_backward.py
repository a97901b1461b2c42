"""Backward: what the prose says of derivations, kept values, kernels and gradients is what the cells show."""

from __future__ import annotations

import re

import pytest
from notebook_checks import EveryNotebook


@pytest.mark.nightly
class TestBackward(EveryNotebook):
    name = "10_backward"

    def test_the_log_sum_exp_gives_the_same_weights(self):
        shown = self.shown_by("total = np.exp(s - m).sum()")
        first, second = re.findall(r": +(\[.*\])$", shown, re.MULTILINE)
        assert first == second

    def test_the_backward_pass_by_hand_agrees_with_autograd(self):
        shown = self.shown_by("def backward(")
        assert re.findall(r"(\w+) agrees with autograd: (\w+)", shown) == [
            ("d_q", "True"),
            ("d_k", "True"),
            ("d_v", "True"),
        ]

    def test_delta_is_an_exchange_of_sums(self):
        shown = self.shown_by("over_keys = ")
        assert "difference: 0" in shown
        keys, columns = (
            re.findall(rf"over {n} {of}: +(\[.*\])$", shown, re.M) for n, of in ((8, "keys"), (4, "columns"))
        )
        assert keys == columns
        assert len(keys) == 1

    def test_reads_are_transposed(self):
        shown = self.shown_by("found = transposed(")
        assert "h = head * 4 + h_part" in shown
        assert "h_part in range(4)" in shown
        assert "j = i + n - 63" in shown

    def test_the_derived_pass_is_the_one_by_hand(self):
        shown = " ".join(self.shown_by("course.show_code(passes.backward.source)").split())  # long lines are folded
        assert (
            "d_lse[b, h, i] = sum(-(float32(d_out[b, h, i, d]) * float32(out[b, h, i, d])) for d in range(16))" in shown
        )
        assert shown.count("exp2(where(j <= i,") == 2
        both = self.shown_by("both = nl.explore(passes)")
        assert "Kept: lse2" in both
        assert "With w = exp(x - lse)" in both

    def test_what_is_kept_costs_little(self):
        shown = self.shown_by("large = training(")
        assert re.search(r"`weights` \| 8192\.0 \| \d+ \| +\|", shown)
        assert re.search(r"`lse2` \| 1\.0 \| \d+ \| ✓ \|", shown)
        chosen = self.shown_by("for keep in (None")
        assert "kept ('lse2', 'out'), computed again: scores and weights only" in chosen
        assert re.search(r"kept \('s_max', 's_sum', 'out'\), computed again: lse$", chosen, re.M)
        assert re.search(r"kept \(\), computed again: s_sum, lse, out", chosen)

    def test_the_kernels_have_seven_products_and_one_value_between_them(self):
        shown = self.shown_by("print(kernel.outline)")
        assert "between kernels, in global memory: d_lse float32[1, 2, 64]\n" in shown
        keys, queries = shown.split("\nkernel ")[2:]
        assert len(set(re.findall(r"dots +(\w+)", keys))) == 3
        assert len(set(re.findall(r"dots +(\w+)", queries))) == 4
        assert "for j0 in" in keys
        assert "for i0 in" in queries

    def test_gradients_are_right(self):
        assert self.shown_by("def gradients(").count("relative error below 1e-3: True") == 3
        assert "d_bias: relative error below 1e-3: True" in self.shown_by("def with_bias(")
