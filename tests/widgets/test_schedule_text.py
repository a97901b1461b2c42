"""Schedules as text: read with Python's parser, never run."""

from __future__ import annotations

import keyword

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neptune_widgets.schedule_text import ScheduleTextError, parse, to_text

import neptune_lab as nl
from neptune_lab.loop_schedule import PRIMITIVES, Step
from neptune_lab.operators import softmax

NAMES = st.text("abij_01", min_size=1, max_size=5).filter(lambda n: n.isidentifier() and not keyword.iskeyword(n))
LOOPS = st.builds("{}.{}".format, NAMES, NAMES)
SIZES = st.integers(1, 4096)
VALUES = {
    "block": NAMES,
    "loop": LOOPS,
    "loops": st.lists(NAMES, min_size=1, max_size=4),
    "buffer": NAMES,
    "factors": st.lists(st.none() | SIZES, min_size=2, max_size=3),
    "tiles": st.dictionaries(NAMES | st.sampled_from(["is", "block", "tiles"]), SIZES, min_size=1, max_size=4),
    "names": st.lists(NAMES, min_size=2, max_size=3),
    "value": SIZES | st.text(max_size=5),
}


@st.composite
def steps(draw):
    primitive = draw(st.sampled_from(sorted(PRIMITIVES)))
    arguments = {}
    for p in PRIMITIVES[primitive].parameters:
        if p.required or draw(st.booleans()):
            arguments[p.name] = draw(VALUES.get(p.name, st.text(max_size=8)))
    return Step.of(primitive, **arguments)


@pytest.mark.nightly
@settings(max_examples=12)
@given(st.lists(steps(), max_size=5))
def test_steps_come_back_from_their_text(made):
    assert [p.step for p in parse(to_text(made))] == made


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ('sch.split("s_max.j", (None, 2))', Step.of("split", loop="s_max.j", factors=[None, 2])),
        ('sch.tile("qk", i=128, j=64)', Step.of("tile", block="qk", tiles={"i": 128, "j": 64})),
        ("sch.tile(block='qk', tiles={'i': 8})", Step.of("tile", block="qk", tiles={"i": 8})),
        ('sch.reorder("qk", "i0", "j0")', Step.of("reorder", block="qk", loops=["i0", "j0"])),
        ("sch.reorder(block='qk', loops=['i0', 'j0'])", Step.of("reorder", block="qk", loops=["i0", "j0"])),
        ('sch.fuse("qk", "b", "h", name="bh")', Step.of("fuse", block="qk", loops=["b", "h"], name="bh")),
        ("sch.rolling_update(loop='s_max.j', block='s_sum')", Step.of("rolling_update", block="s_sum", loop="s_max.j")),
        ('# first\n\nsch.inline("p")  # and last', Step.of("inline", block="p")),
    ],
)
def test_forms_that_people_write(text, step):
    (found,) = parse(text)
    assert found.step == step


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("import os", 1, 1, "only schedule calls"),
        ('sch.inline("p")\nx = 1', 2, 1, "only schedule calls"),
        ("__import__('os').system('ls')", 1, 1, "not a schedule call"),
        ('sch.tile("qk", i=__import__("os").getpid())', 1, 18, "not a plain value"),
        ('sch.inline("p" + "q")', 1, 12, "not a plain value"),
        ("sch.inline(*['p'])", 1, 12, "without \\*"),
        ("sch.inline(**{'block': 'p'})", 1, 14, "without \\*\\*"),
        ('sch.inlin("p")', 1, 1, "did you mean inline"),
        ('sch.bind("qk.i", tread="x")', 1, 18, "did you mean thread"),
        ('sch.bind("qk.i")', 1, 1, "needs the argument 'thread'"),
        ('sch.bind("qk.i", "blockIdx.x", "y")', 1, 1, "2 arguments by position"),
        ('sch.bind("qk.i", "blockIdx.x", loop="qk.j")', 1, 1, "twice"),
        ("sch.inline(b'p')", 1, 1, "bytes"),
        ('sch.inline("p"', 1, 11, "not Python"),
        ("nl.templates.roling_update(sch)", 1, 1, "did you mean rolling_update"),
        ("nl.templates.rolling_update(sch)", 1, 1, "cannot be used here"),
        ("\0", 1, 1, "not Python|cannot be read"),
        ("(" * 5000, 1, None, "not Python|cannot be read"),
        ("x" * 200_000, 1, 1, "too long"),
    ],
)
def test_refusals_name_the_place(text, line, column, message):
    with pytest.raises(ScheduleTextError, match=message) as refused:
        parse(text)
    assert refused.value.line == line
    assert column is None or refused.value.column == column


def test_a_remark_is_a_call_like_the_others_and_a_comment_is_dropped():
    steps = [Step.of("remark", text='rolling_update: "j" has 1 tile\nof 64.'), Step.of("inline", block="p")]
    text = to_text(steps)
    assert [p.step for p in parse(f"# by hand\n{text}")] == steps
    assert text.startswith("sch.remark(")


def test_templates_stand_for_their_steps():
    operator = softmax.figure1(4, 8)
    whole = nl.compile(operator, "rolling_update", block_q=2, block_kv=4).schedule.steps

    def expand(before, name, options):
        return nl.templates.TEMPLATES[name](nl.Schedule(operator), **options).steps

    found = parse("\nnl.templates.rolling_update(sch, block_q=2, block_kv=4)", expand)
    assert tuple(p.step for p in found) == whole
    assert {p.line for p in found} == {2}
    with pytest.raises(ScheduleTextError, match="has no argument 'blocks'"):
        parse("templates.rolling_update(sch, blocks=2)", expand)
    split = parse("nl.templates.split_k_update(sch, block_kv=2, config=nl.SplitKConfig(splits=2))", expand)
    assert any(p.step.primitive == "split_k_update" for p in split)
    with pytest.raises(ScheduleTextError, match="TileConfig has no field 'splits'"):
        parse("nl.templates.split_k_update(sch, config=nl.TileConfig(splits=2))", expand)
    with pytest.raises(ScheduleTextError, match="config is none of TileConfig, SplitKConfig"):
        parse("nl.templates.rolling_update(sch, config={'block_q': 2})", expand)
    with pytest.raises(ScheduleTextError, match="takes sch first"):
        parse("nl.templates.rolling_update(block_q=2)", expand)
