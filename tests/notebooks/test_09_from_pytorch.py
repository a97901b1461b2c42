"""From PyTorch: what the prose says of lines, refusals, kernels and numbers is what the cells show."""

from __future__ import annotations

import re

import pytest
from notebook_checks import EveryNotebook, unfolded


@pytest.mark.nightly
class TestFromPyTorch(EveryNotebook):
    name = "09_from_pytorch"

    def test_the_pasted_function_is_one_kernel_and_shown_with_its_lines(self):
        shown = self.shown_by("%%explore")
        assert "<summary>attention in a notebook cell</summary>" in shown
        assert "   2  def attention(q, k, v):" in shown, "counted in the cell, after the magic's line"
        outline = self.shown_by("kernel = view.kernel")
        assert "between kernels, in global memory: nothing" in outline
        assert (outline.count("\nkernel "), outline.count("for j0 in")) == (1, 1)

    def test_each_line_has_its_stages(self):
        shown = self.shown_by("print(exercises.lines(op))")
        assert re.findall(r"^ +(\d) ", shown, re.MULTILINE) == ["2", "3", "4", "5"]
        assert "2  def attention(q, k, v):\n  3 " in shown
        for line, stages in (
            ("scores = q @ k.mT / math.sqrt(q.shape[-1])", "matmul, scores"),
            ("p = torch.softmax(scores, dim=-1)", "p_max, p_exp, p_sum, p"),
            ("return p @ v", "matmul_2, out"),
        ):
            assert f"{line}\n         → {stages}\n" in f"{shown.rstrip()}\n"

    def test_the_numbers_are_right(self):
        shown = self.shown_by("right = attention(")
        assert "ours below 1e-3: True" in shown
        assert "as good as eager: True" in shown

    def test_refusals_name_the_reader_s_line_and_a_fix(self):
        shown = unfolded(self.shown_by("def refused(function"))
        for name, line in {
            "limited": "if scores.abs().max() > 30:",
            "best_keys": "least = scores.sort(dim=-1, descending=True).values[..., 7:8]",
            "in_place": "q /= math.sqrt(q.shape[-1])",
        }.items():
            (said,) = re.findall(rf"^{name}: (.*\n  help: .*)$", shown, re.MULTILINE)
            assert re.search(rf"in cell In\[\d+\], line \d+: `{re.escape(line)}`\n", said), said

    def test_what_is_mended_is_one_kernel(self):
        shown = self.shown_by("def limited_mended")
        assert re.findall(r"(\w+): kernels: (\d), right: (\w+)", shown) == [
            ("limited_mended", "1", "True"),
            ("best_keys_mended", "1", "True"),
            ("in_place_mended", "1", "True"),
        ]

    def test_rounding_takes_two_kernels_and_says_why(self):
        shown = self.shown_by("two = nl.compile")
        assert shown.count("\nkernel ") == 2
        assert "matmul starts a loop of its own" in shown
        assert "op round(" in shown
        mended = self.shown_by("def scaled_product")
        assert re.findall(r"kernels: (\d), right: (\w+)", mended) == [("1", "True"), ("1", "True")]

    def test_a_module_shows_its_forward(self):
        shown = self.shown_by("class Router")
        assert "def forward(self, x):" in shown
        assert "gate: float32[16, 64]" in shown
        assert "right: True" in shown

    def test_a_model_has_two_regions_and_says_what_is_apart(self):
        shown = self.shown_by("explanation = nl.explain(")
        assert re.findall(r"^ +(\d) +fused +(\w+):", shown, re.MULTILINE) == [("1", "norm"), ("2", "attention")]
        assert "a product whose result is needed whole" in shown
        assert "sort is not supported: take the part that sorts out" in shown
        assert "y = torch.softmax(scores, dim=-1) @ v" in shown
        assert 'class="part fused"' in shown

    def test_the_candidates_are_printed_as_plain_functions(self):
        shown = self.shown_by("print(exercises.candidates())")
        assert re.findall(r"^def (\w+)\(x, w\):$", shown, re.MULTILINE) == [
            "norm_and_product", "rounded_product", "softmax_product", "ranked_product"
        ]  # fmt: skip
        assert "import" not in shown
