"""Schedules: the moves, what each mistake says, and the claims that the prose makes about both."""

from __future__ import annotations

import re

import pytest
from notebook_checks import EveryNotebook, read, shown_by, tagged

# A cell's beginning, and what the mistake in it says: message and help.
MISTAKES = {
    's.tile("qk", i=64, k=64)': ("has no loop 'k'", "the loops around qk: b, h, i, j, d"),
    's.bind("qk.d"': ("cannot run in parallel", "split_k_update"),
    'wrong.bind("qk.j0"': ("'qk.j0' is bound to blockIdx.x", "roll over a loop that is not bound"),
    's.reverse_compute_at("score", "qk.d")': ("'qk' still folds", "such as 'qk.j1'"),
    's.rolling_update("s_exp"': ("is not a reduction", "a sum or a max"),
    's.fuse_under("s_sum"': ("which leaves it incomplete", "which repair such reads"),
    'wrong.retire_tags("s_max")': ("whose tags are retired", "after the last rolling_update"),
    'wrong.rolling_update("acc", "qk.j0")': ("encloses block 's_max' already", "leave this step out"),
    's.reverse_compute_at("out", "qk.j0")': ("'acc' still folds", "such as 'acc.i0'"),
    's.retire_tags("s_sum")': ("no tags to retire", "a block gets tags when"),
    's.reverse_compute_at("out", "qk.i0"))': ("write the same buffer: s_max_0", "before retire_tags"),
    's.decompose_reduction("acc", "acc.d")': ("folds along 'j0'", "decompose_reduction('acc', 'acc.j0')"),
    's.set_scope("out", "local")': ("an output", "cache_write"),
    'wrong.set_scope("acc", "local")': ("blocks 'acc_start' and 'out' of different kernels", "into one nest"),
    "Schedule(softmax.figure1())": ("no block 'qk'", "s_max, s_exp, s_sum"),
    "block_q=512": ("232448 bytes of shared memory", "choose smaller tiles"),
}

# After each move: nests, passes over the keys, KiB between nests, KiB held by a program.
MOVES = {
    "definition": (8, 7, "1,924", "0"),
    "tile": (8, 7, "1,924", "0"),
    "bind": (8, 7, "1,924", "0"),
    "score": (7, 6, "1,412", "16"),
    "s_max": (6, 5, "1,412", "16.2"),
    "s_sum": (5, 4, "1,418", "32.5"),
    "acc": (2, 1, "130", "65.5"),
    "out": (1, 1, "0", "81.8"),
    "retire tags": (1, 1, "0", "81.2"),
    "start values": (1, 1, "0", "81.2"),
    "on chip": (1, 1, "0", "81.2"),
}


@pytest.mark.nightly
class TestSchedules(EveryNotebook):
    name = "05_schedules"

    @pytest.mark.parametrize("source", MISTAKES)
    def test_what_a_mistake_says(self, source: str):
        # Lines of the message are folded where they are long.
        shown = re.sub(r"\s+", " ", self.shown_by(source))
        message, help = MISTAKES[source]
        before, _, after = shown.partition("help:")
        assert message in before
        assert help in after

    def test_every_refusal_leaves_the_schedule_as_it_was(self):
        cells = [
            c for c in self.run.cells if c.cell_type == "code" and re.search(r"^refused\(", c.source, re.MULTILINE)
        ]
        assert len(cells) >= len(MISTAKES)
        for cell in cells:
            assert "(the schedule is as it was:" in shown_by(self.run, cell.source)

    @pytest.mark.parametrize("move", MOVES)
    def test_costs_after_a_move(self, move: str):
        nests, passes, between, held = MOVES[move]
        shown = re.sub(r"\s+", " ", self.shown_by(f'done("{move}")'))  # long lines are folded
        nests_, passes_ = f"{nests} loop nest{'s' * (nests > 1)}", f"{passes} pass{'es' * (passes > 1)}"
        line = f"{move}: {nests_}, {passes_} over the keys, {between} KiB between nests, {held} KiB held by a program"
        assert line in shown
        assert "equals the definition" in shown

    def test_the_sum_gives_the_maximum_tags_and_computes_the_exponential_twice(self):
        shown = self.shown_by('context=1)\ndone("s_sum")')
        assert "+                    s_max⟨j0⟩" in shown
        assert "s_exp_rolled[" in shown
        assert "+    s_exp[b, h, i, j] = exp(score[b, h, i, j] - s_max⟨3⟩[b, h, i])" in shown

    def test_on_chip_values_let_the_product_be_added_up_in_the_matrix_unit(self):
        shown = self.shown_by("show_changes(lines(stored)")
        assert "-acc = repair[:, None] * acc + acc_tile" in shown
        assert "+acc = tl.dot(s_exp.to(tl.float16), v, acc=repair[:, None] * acc)" in shown

    def test_it_is_flash_attention(self):
        assert "in global memory: nothing" in self.shown_by("kernel.outline")
        assert "largest error below 0.002: True" in self.shown_by("scaled_dot_product_attention")
        assert "the template's steps are ours: True" in self.shown_by("the template's steps")
        assert "in another order: True" in self.shown_by("exchanged.check()")

    def test_who_refuses_without_a_move(self):
        rows = dict(re.findall(r"\| \d+ ([\w ]+) \| `?([^`|]+?)`? \| [^\n]*", self.shown_by("def without(move)")))
        assert rows == {
            "tile": "bind('qk.i0', thread='blockIdx.x')",
            "bind": "nobody",
            "score": "rolling_update('s_max', 'qk.j0')",
            "s_max": "nobody",
            "s_sum": "reverse_compute_at('out', 'qk.i0')",
            "acc": "reverse_compute_at('out', 'qk.i0')",
            "out": "nl.compile",
            "retire tags": "set_scope('s_max_start', scope='local')",
            "start values": "set_scope('s_sum_start', scope='local')",
            "on chip": "nobody",
        }
        assert "| 2 bind | nobody | kernel attention_causal  grid ()" in self.shown_by("def without(move)")
        assert "| 4 s_max | nobody | the same kernel |" in self.shown_by("def without(move)")

    def test_other_operators_and_other_schedules(self):
        assert self.shown_by("attention.alibi(").count("equals the definition") == 3
        table = self.shown_by("variants = {")
        assert table.count("| True |") == 5
        assert "| split in 2 | 2 | (js: 2, i0: 4, bh: 2) |" in table

    def test_the_ten_moves_have_headings(self):
        text = "\n".join(cell.source for cell in read(self.path).cells if cell.cell_type == "markdown")
        assert [int(n) for n in re.findall(r"^### Move (\d+)", text, re.MULTILINE)] == list(range(1, 11))
        assert sum(tagged(cell, "exercise") for cell in read(self.path).cells) == 4
