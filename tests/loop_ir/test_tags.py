"""Tags: the paper's Figure 1 (d) to (f), what is read too early, and values that equal the native run's."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
from loop_ir.figure_1 import (
    FIGURE_1A,
    FIGURE_1B,
    INP,
    LOWEST,
    S_EXP,
    S_MAX,
    S_SUM,
    ZERO,
    at,
    figure_1c,
    figure_1c_tagged,
    nest,
    op,
    program,
    stage,
)
from neptune_widgets import tags
from neptune_widgets.panes import play

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.materialized_example import materialized_example
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Program,
    Store,
    Var,
)
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.tag_table import Cell, FirstWrong, number_texts
from neptune_lab.loop_ir.tags import TagTrace, record
from neptune_lab.operators import attention, softmax


def values(trace: TagTrace, buffer: str, index: tuple[int, ...]) -> list[float]:
    return [w.value for w in trace.writes(buffer, index) if not w.init]


def row(trace: TagTrace, label: str, kind: str = "value") -> list[tuple[float, str]]:
    """(value, signs) of each cell that is there."""
    found = materialized_example(trace, record(FIGURE_1A, {"inp": INP}), rolling="j").row(label, kind)  # type: ignore[arg-type]
    return [(cell.value, cell.signs) for cell in found.cells if cell is not None]


def exps(*differences: float) -> list[float]:
    return [float(np.exp(np.float32(d))) for d in differences]


def test_figure_1d_the_original_reads_complete_values() -> None:
    trace = record(FIGURE_1A, {"inp": INP})
    assert values(trace, "xmax", (0,)) == [1, 3, 3, 5]
    np.testing.assert_allclose(values(trace, "xsum", (0,)), np.cumsum(np.exp(INP[0] - 5)), rtol=1e-6)
    assert trace.early() == ()
    (read,) = [r for w in trace.writes("xexp", (0, 1)) for r in w.reads]
    assert (read.state, trace.tag(read), read.value) == ("final", (("i", 0), ("j", 3)), 5.0)
    assert {r.state for w in trace.writes("xsum") for r in w.reads if r.buffer == "xsum"} == {"carried"}
    assert all(sign == "✓" for _, sign in row(trace, "xsum[0]"))


def test_figure_1e_naive_fusion_reads_xmax_too_early() -> None:
    trace = record(FIGURE_1B, {"inp": INP})
    early = [(w.block, w.loops, r.buffer, trace.tag(r)) for w, r in trace.early() if w.index[0] == 0]
    tags = [(("i", 0), ("j", j)) for j in range(3)]
    assert early == [("s_exp", tag, "xmax", tag) for tag in tags]
    assert [sign for _, sign in row(trace, "xmax[0]")] == ["✓"] * 4
    assert [sign for _, sign in row(trace, "xexp[0, j]")] == ["!", "!", "!", "✓"]
    found = row(trace, "xsum[0]")
    np.testing.assert_allclose([v for v, _ in found], np.cumsum(exps(0, 0, -1, 0)), rtol=1e-6)
    assert [sign for _, sign in found] == [""] * 4
    # Where the first element is the largest, what comes too early is right all the same.
    assert [sign for _, sign in row(trace, "xexp[1, j]")] == ["! ✓", "! ✓", "! ✓", "✓"]


@pytest.mark.parametrize("make", [figure_1c, figure_1c_tagged])
def test_figure_1f_the_repaired_program(make) -> None:
    trace = record(make(), {"inp": INP})
    assert trace.early() == ()
    repair = row(trace, "xsum[0]", "repair")
    np.testing.assert_allclose([v for v, _ in repair], [0, *exps(-2, 0, -2)], rtol=1e-6)
    assert {sign for _, sign in repair} == {"↻"}
    found = row(trace, "xsum[0]")
    running = [1 + 0.0, np.exp(-2) + 1, np.exp(-2) + 1 + np.exp(-1), np.exp(INP[0] - 5).sum()]
    np.testing.assert_allclose([v for v, _ in found], running, rtol=1e-6)
    assert [sign for _, sign in found] == ["↻", "↻", "↻", "↻ ✓"]


def test_a_map_that_only_repaired_blocks_use_is_repaired_with_them() -> None:
    fused = figure_1c_tagged()
    assert [s for _, s in row(record(fused, {"inp": INP}), "xexp[0, j]")] == ["↻", "↻", "↻", "✓"]
    # Another consumer without a repair reads what will be wrong: the reads that feed it are early.
    total = stage(
        "s_other", at("other", "i"), op("add", at("other", "i"), at("xexp", "i", "j")), reduce=True, init=ZERO
    )
    more = Program(
        fused.name,
        (*fused.params, "other"),
        ("xsum", "other"),
        (*fused.buffers, Buffer("other", (2,), "float32")),
        (*fused.body, nest(total)),
    )
    trace = record(more, {"inp": INP})
    assert {(w.block, r.buffer) for w, r in trace.early()} == {("s_exp", "xmax")}


def test_the_table_says_which_tag_was_seen_and_what_should_be() -> None:
    naive = materialized_example(
        record(FIGURE_1B, {"inp": INP}), record(FIGURE_1A, {"inp": INP}), rolling="j", where={"i": 0}
    )
    assert naive.columns == ("j = 0", "j = 1", "j = 2", "j = 3")
    assert [r.label for r in naive.rows] == ["xmax[0]", "xexp[0, j]", "xsum[0]"]
    cell = naive.row("xexp[0, j]").cells[1]
    assert cell is not None
    assert [(r.text, r.state) for r in cell.reads] == [("xmax⟨1⟩", "early")]
    assert (cell.tag, cell.sign, cell.should_be) == ((("i", 0), ("j", 1)), "early", pytest.approx(np.exp(3 - 5)))
    assert naive.to_text() == NAIVE_TEXT
    repaired = materialized_example(record(figure_1c(), {"inp": INP}), rolling="j", where={"i": 0})
    assert repaired.columns[0] == "before j"
    assert [(r.label, r.kind) for r in repaired.rows] == [
        ("xmax_1[0]", "value"),
        ("xsum[0]", "repair"),
        ("xsum[0]", "value"),
        ("xmax_0[0]", "value"),
    ]
    assert [r.text for r in repaired.row("xsum[0]", "repair").cells[1].reads] == ["xmax_0⟨start⟩", "xmax_1⟨0⟩"]  # type: ignore[union-attr]


NAIVE_TEXT = """\
figure1: values at every iteration of j
            j = 0        j = 1        j = 2        j = 3
xmax[0]     1 ✓          3 ✓          3 ✓          5 ✓
xexp[0, j]  1 !          1 !          0.3679 !     1 ✓
            ← xmax⟨0⟩ !  ← xmax⟨1⟩ !  ← xmax⟨2⟩ !  ← xmax⟨3⟩
            ≠ 0.01832    ≠ 0.1353     ≠ 0.04979
xsum[0]     1            2            2.368        3.368
            ← xexp⟨0⟩    ← xexp⟨1⟩    ← xexp⟨2⟩    ← xexp⟨3⟩
            ≠ 0.01832    ≠ 0.1537     ≠ 0.2034     ≠ 1.203
! read too early: the value it depends on changes later
✓ as in the unscheduled program after the same part of the data
≠ what the unscheduled program has there
"""


def test_a_wrong_value_never_looks_like_the_one_it_should_be() -> None:
    wrong = Cell(0.33341, (("j", 0),), "early", (), 0.33338, False)
    assert number_texts(wrong) == ("0.33341", "0.33338")
    assert str(FirstWrong("s[0]", "j = 0", 1.0000004, 1.0)).endswith("1.0000004, should be 1")
    assert number_texts(Cell(1.23456, (), "right", (), 1.23457, True)) == ("1.235", None)
    # and in the explorer's tables and runs
    assert (told := tags._cell(wrong, True))["value"] != told["should_be"]
    assert play._apart(1.0000004, 1.0) == (1.0000004, 1.0)
    assert play._apart(0.123456789, float("inf")) == (0.123457, "inf")


def test_html_has_signs_beside_colours_and_stands_alone() -> None:
    class Tags(HTMLParser):
        open: tuple[str, ...] = ()
        text = ""

        def handle_starttag(self, tag, attrs):
            if tag != "br":
                self.open += (tag,)

        def handle_endtag(self, tag):
            assert self.open[-1] == tag
            self.open = self.open[:-1]

        def handle_data(self, data):
            self.text += data

    naive = materialized_example(record(FIGURE_1B, {"inp": INP}), record(FIGURE_1A, {"inp": INP}), rolling="j")
    html = naive._repr_html_()
    parser = Tags()
    parser.feed(html)
    assert parser.open == ()
    for text in ("xmax⟨0⟩ !", "≠ 0.01832", "✓", "xexp[1, j]", "read too early"):
        assert text in parser.text
    assert 'class="early"' in html
    assert "currentColor" in html
    assert not any(word in html for word in ("http", "src=", "<script", "url("))
    hostile = Program("a<b>&", *(getattr(FIGURE_1A, n) for n in ("params", "outputs", "buffers", "body")))
    assert "a&lt;b&gt;&amp;" in materialized_example(record(hostile, {"inp": INP}), rolling="j").to_html()


def test_long_tables_say_what_they_hide() -> None:
    short = materialized_example(record(FIGURE_1A, {"inp": INP}), rolling="j", max_rows=2)
    assert (len(short.rows), short.hidden) == (2, 4)
    assert "4 more rows are not shown" in short.to_text()
    only = materialized_example(record(FIGURE_1A, {"inp": INP}), rolling="j", buffers=("xsum",))
    assert [r.label for r in only.rows] == ["xsum[0]", "xsum[1]"]


# -- the recorder ----------------------------------------------------------------------------------


def test_events_carry_their_tag() -> None:
    trace = record(FIGURE_1A, {"inp": INP})
    start, first = trace.events[:2]
    assert (start.init, start.value, start.block) == (True, float("-inf"), "s_max")
    assert (first.init, first.loops, first.reduces) == (False, (("i", 0), ("j", 0)), (("j", 0),))
    assert [w.step for w in trace.events] == list(range(len(trace.events)))


def test_a_recomputed_value_is_complete_each_time() -> None:
    """The whole reduction runs again for each j: what is written later is another life of the element."""
    inner = Block(
        "s_max",
        (Iter("i", 2, "spatial", Var("i")), Iter("k", 4, "reduce", Var("k"))),
        Store("xmax", (Var("i"),), op("max", at("xmax", "i"), at("inp", "i", "k"))),
        Store("xmax", (Var("i"),), LOWEST),
        origin="s_max",
    )
    again = program(nest(Loop("k", 4, (inner,)), S_EXP, S_SUM))
    trace = record(again, {"inp": INP})
    assert trace.early() == ()
    np.testing.assert_allclose(trace.values["xsum"], np.exp(INP - INP.max(1, keepdims=True)).sum(1), rtol=1e-6)


def test_reading_before_anything_was_written_is_early() -> None:
    trace = record(program(nest(S_EXP, S_MAX, S_SUM)), {"inp": INP})
    first = trace.writes("xexp", (0, 0))[0]
    assert (first.reads[0].written_at, first.reads[0].state) == (None, "early")
    assert np.isnan(first.value)


def test_predicates_select_and_every_operator() -> None:
    i, x = Var("i"), Load("x", (Var("i"),))
    functions = ["exp", "exp2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "erf", "floor", "ceil", "abs"]
    value: Expr = op(
        "add", op("log", op("add", op("abs", x), Const(1.0, "float32"))), op("log2", Const(8.0, "float32"))
    )
    for name in functions:
        value = op("add", value, op(name, op("abs", x)))
    value = op(
        "max", op("min", value, op("pow", x, Const(2.0, "float32"))), op("neg", op("div", x, Const(3.0, "float32")))
    )
    even = op("eq", op("floormod", i, Const(2)), Const(0))
    condition = op("and", op("or", even, op("ge", i, Const(4))), op("not", op("ne", i, i)))
    value = op("select", condition, value, Cast("float32", Cast("float16", op("mul", x, Cast("float32", i)))))
    value = op("guard", value, Const(0.0, "float32"), Const(9.0, "float32"))
    # A select's other branch may lie outside the buffer.
    value = op("add", value, op("select", op("gt", i, Const(0)), Load("x", (op("sub", i, Const(1)),)), ZERO))
    block = Block(
        "y",
        (Iter("i", 8, "spatial", op("add", op("mul", Var("o"), Const(3)), Var("t"))),),
        Store("y", (i,), value),
        predicates=(op("lt", op("add", op("mul", Var("o"), Const(3)), Var("t")), Const(8)),),
        origin="y",
    )
    small = Program(
        "ops", ("x", "y"), ("y",), (Buffer("x", (8,), "float32"), Buffer("y", (8,), "float32")),
        (Loop("o", 3, (Loop("t", 3, (block,)),)),),
    )  # fmt: skip
    x_values = {"x": np.array([0.5, -1.5, 2.25, -3, 0, 1, 7, -0.1], dtype="float32")}
    trace = record(small, x_values)
    assert len(trace.events) == 8
    np.testing.assert_allclose(trace.values["y"], run(small, x_values)["y"], rtol=3e-6)


@pytest.mark.parametrize(
    "made",
    [softmax.figure1(3, 5), attention.causal(batch=1, heads=2, q_len=3, kv_len=4, head_dim=2)],
    ids=lambda made: made.name,
)
def test_the_definition_computes_what_it_does_natively(made) -> None:
    inputs = made.random_inputs(1)
    trace, native = record(made.program, inputs), run(made.program, inputs)
    assert trace.values.keys() == native.keys()
    for name, array in native.items():
        assert trace.values[name].dtype == array.dtype
        np.testing.assert_allclose(trace.values[name], array, rtol=2e-3 if array.dtype == "float16" else 2e-6)
    assert trace.early() == ()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_scheduled_attention_reads_nothing_too_early(template: str) -> None:
    made = attention.causal(heads=1, q_len=4, kv_len=8, head_dim=2)
    schedule = nl.Schedule(made)
    getattr(nl.templates, template)(schedule, block_q=2, block_kv=3)
    inputs = made.random_inputs(0)
    trace, reference = record(schedule.program, inputs), record(made.program, inputs)
    assert trace.early() == ()
    assert {"repaired", "final", "carried"} == {r.state for w in trace.events for r in w.reads}
    np.testing.assert_allclose(trace.values["out"], reference.values["out"], rtol=4e-3, atol=1e-3)
    shown = materialized_example(trace, reference, rolling="j0", where={"i": 3, "d": 1})
    out = shown.row("out[0, 0, 3, 1]").cells[-1]
    assert out is not None
    assert (out.sign, out.right) == ("right", True)
    assert shown.row("s_sum[0, 0, 3]", "repair")


def test_too_large_a_program_is_refused_with_its_size() -> None:
    big = attention.causal(heads=8, seq=256, head_dim=64).program
    with pytest.raises(ScheduleError, match=r"attention_causal runs [\d,]{10,} stores, the tag recorder takes at most"):
        record(big, {})
    with pytest.raises(ScheduleError, match="runs 24 stores, the tag recorder takes at most 23"):
        record(FIGURE_1A, {"inp": INP}, limit=23)


def test_wrong_inputs_and_names_are_refused() -> None:
    with pytest.raises(ScheduleError, match="no array was given for input 'inp'"):
        record(FIGURE_1A, {})
    with pytest.raises(ScheduleError, match=r"input 'inp' has shape \(4,\), expected \(2, 4\)"):
        record(FIGURE_1A, {"inp": np.zeros(4)})
    outside = program(nest(stage("s_max", at("xmax", "j"), at("inp", "i", "j"))))
    with pytest.raises(ScheduleError, match=r"xmax\[2\] is outside xmax, whose shape is \[2\]"):
        record(outside, {"inp": INP})
    trace = record(FIGURE_1A, {"inp": INP})
    with pytest.raises(ScheduleError, match=r"figure1 has no loop 'j0'(.|\n)*loops: i, j"):
        materialized_example(trace, rolling="j0")
    with pytest.raises(ScheduleError, match=r"no row 'xsum\[2\]'(.|\n)*did you mean 'xsum\[1\]'"):
        materialized_example(trace, rolling="j").row("xsum[2]")


def test_an_iteration_that_a_loop_around_comes_back_to_is_compared_only_at_the_end():
    schedule = nl.Schedule(softmax.figure1(rows=1, cols=4))
    schedule.split("s_max.j", (2, 2))
    inputs = {"inp": np.array([[1, 3, 2, 5]], dtype="float32")}
    inner, outer = (schedule.tag_table(loop, inputs=inputs).row("xmax[0]").cells for loop in ("j1", "j0"))
    values = lambda cells: [(c.value, c.should_be, c.right) for c in cells if c is not None]  # noqa: E731
    assert values(outer) == [(3, 3, True), (5, 5, True)]
    # At j1 = 0 the last round has seen three elements; the definition has no such value at "half of the data".
    assert values(inner) == [(3, None, False), (5, 5, True)]
