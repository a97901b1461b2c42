"""Splits: privatisation, FlashDecoding, and the facts that the prose states."""

from __future__ import annotations

import json
import re

import pytest
from neptune_widgets.course import split_k
from notebook_checks import NOTEBOOKS, EveryNotebook


def table(shown: str) -> list[list[str]]:
    """The cells of a Markdown table, without its head."""
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


@pytest.mark.nightly
class TestSplitK(EveryNotebook):
    name = "03_split_k"

    def test_both_ways_of_fusing_have_the_same_repair_term(self):
        lines = self.shown_by("for sch in (rolled, split):").splitlines()
        terms = [re.sub("_local", "", line.partition("= ")[2]) for line in lines if "h(t, " in line]
        assert len(terms) == 2
        assert len(set(terms)) == 1

    def test_the_repair_changes_two_lines(self):
        shown = self.shown_by("course.show_changes")
        changed = re.findall(r"^[-+] +(\w+)", shown, re.MULTILINE)
        assert changed == ["xexp", "xexp", "xsum", "xsum"]
        assert "guard(xmax_local[i, j0], -inf, 0)" in shown
        assert "0.3679" in shown

    def test_naive_fusion_is_wrong(self):
        shown = self.shown_by('phase="naive"')
        assert "2.271" in shown
        assert "1.553" in shown

    def test_only_the_split_loop_runs_in_parallel(self):
        shown = self.shown_by("rolled.bind")
        assert "cannot run in parallel" in shown
        assert "equals the definition" in shown

    def test_the_order_of_the_parts_does_not_matter(self):
        assert "24 orders, largest difference below one part in a million: True" in self.shown_by("permutations(")

    def test_flash_decoding_is_two_kernels_and_four_equal_repairs(self):
        steps = table(self.shown_by("updates ="))
        assert [step[0].partition("(")[0] for step in steps] == ["`split_k_update"] * 3 + ["`rolling_update"] * 3
        assert len({step[1] for step in steps if step[1]}) == 1
        assert sum(bool(step[1]) for step in steps) == 4
        outline = self.shown_by("print(kernel.outline)")
        assert outline.count("\nkernel ") == 2
        assert "error below one in a thousand: True" in outline

    def test_what_lies_between_the_kernels(self):
        rows = table(self.shown_by("def stored_between"))
        assert sum(int(row[2]) for row in rows) == 1088

    def test_any_number_of_splits_is_right_and_none_is_empty(self):
        rows = table(self.shown_by("splits asked for"))
        assert [row[-1] for row in rows] == ["✓"] * 7
        assert [(int(row[0]), int(row[1])) for row in rows][4] == (5, 4)
        assert all((int(made) - 1) * int(tiles) < 7 for _, made, tiles, *_ in rows)

    def test_guards_stand_where_a_tile_may_be_empty(self):
        assert "guard(s_max_local_1[0, bh, i, js], -inf, 0)" in self.shown_by("three =")

    def test_splits_add_little_traffic_with_one_query(self):
        rows = table(self.shown_by("decoding ="))
        assert [int(row[0]) for row in rows] == list(split_k.SPLITS)
        assert float(rows[-1][-1].rstrip("%")) < 2
        assert (int(rows[0][1]), int(rows[-1][1])) == (32, 2048)

    def test_the_tuner_fills_the_multiprocessors_once(self):
        rows = table(self.shown_by("tuned_decode()"))
        assert {row[2] for row in rows if row[0] in ("causal_dc", "alibi_dc")} == {"4"}
        splits = {row[1]: row[2] for row in rows if row[0] == "gqa_dc"}
        assert splits == {"512": "8", "2048": "16", "8192": "16", "32768": "16"}
        assert sorted(row[2] for row in rows if row[0] == "softcap_dc") == ["16", "8", "8", "8"]
        long = [row[5:] for row in rows if row[0] in ("causal_dc", "alibi_dc") and row[1] == "8192"]
        assert long == [["128", "padded"]] * 2
        shares = {(row[0], row[1]): float(row[4]) for row in rows}
        assert shares["causal_dc", "32768"] == 1.01
        assert max(share for (_, keys), share in shares.items() if keys == "512") == 0.22

    def test_the_extra_traffic_settles_and_the_model_crosses_over_late(self):
        rows = table(self.shown_by("extra traffic (model)"))
        shares = {int(row[0]): float(row[3].rstrip("%")) for row in rows}
        settled = {shares[n] for n in (64, 128, 256, 512, 1024)}
        assert len(settled) == 1
        assert 15 < settled.pop() < 15.5  # 15%, as the notebook says
        assert 29 < shares[4096] < 32
        times = {
            n: split_k.estimate(n, 8192, "split_k_update", splits=8).total_us
            / split_k.estimate(n, 8192, "rolling_update").total_us
            for n in (1024, 4096)
        }
        assert times[1024] < 1 < times[4096]

    def test_the_clock_agrees_with_the_rule_and_not_with_the_model_beyond_16_splits(self):
        run = json.loads((NOTEBOOKS / "recorded" / "split_k.json").read_text(encoding="utf-8"))["data"]
        for keys in (8192, 32768):
            us = {row["splits"]: row["us"] for row in run["decode"] if row["kv_len"] == keys}
            assert us[1] > us[2] > us[4] > us[8] > us[16]
            assert us[32] > us[16]
            assert 0.9 < us[64] / us[16] < 1.1
            model = {n: split_k.estimate(1, keys, "split_k_update", splits=n).total_us for n in (1, 4)}
            assert 2.5 < us[1] / model[1] < 3.5
            assert us[4] / model[4] > 2
            if keys == 8192:
                tuned = {(row[0], row[1]): row[3] for row in split_k.tuned_decode()[1]}
                assert 0.2 < tuned["causal_dc", keys] / us[4] < 0.3, "about a quarter, with as many splits"
        ratio = {}
        for row in run["templates"]:
            ratio.setdefault(row["q_len"], {})[row["template"]] = row["us"]
        faster = {n: us["split_k_update"] < us["rolling_update"] for n, us in ratio.items()}
        assert {n for n, split in faster.items() if split} == {n for n in faster if n < 256}
        rule = [split_k.chosen(n, 32, 8192, 128)[0] for n in (192, 193)]
        assert rule == ["split_k_update", "rolling_update"]
