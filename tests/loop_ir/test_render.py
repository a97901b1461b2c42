"""Programs as text: node ids, and expressions whose text means what the tree means."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache

import pytest
import small_operators as small  # pyright: ignore[reportMissingImports]
from hypothesis import given
from hypothesis import strategies as st

from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Previous, Program, Var
from neptune_lab.loop_ir.render import WIDTH, as_figure, definition, expression, render
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, softmax


@cache
def programs() -> list[Program]:
    found = []
    for op in (softmax.figure1(), attention.causal(1, 1, q_len=4, kv_len=5, head_dim=2)):
        for template in TEMPLATES.values():
            sch = template(Schedule(op), block_q=2, block_kv=2)
            found += [op.program, *(p.program for a in sch.history for p in a.outcome.phases)]
    return found


def test_a_node_id_is_one_node_and_every_block_has_a_store():
    """Lines of one id are consecutive (one wrapped store), and ids are unique otherwise."""
    for program in programs():
        lines = render(program)
        places = defaultdict(list)
        for n, line in enumerate(lines):
            places[line.node].append(n)
        for node, at in places.items():
            assert at == list(range(at[0], at[0] + len(at))), node
            assert len(at) == 1 or node.startswith("store:"), node
        assert {line.node for line in lines if line.kind == "store"} == {f"store:{b.name}" for b in blocks(program)}
        assert all(line.origin for line in lines if line.kind == "store")


def test_node_ids_do_not_depend_on_the_run():
    op = softmax.figure1()
    first = TEMPLATES["rolling_update"](Schedule(op)).program
    second = TEMPLATES["rolling_update"](Schedule(softmax.figure1())).program
    assert [x.node for x in render(first)] == [x.node for x in render(second)]


def test_node_ids_of_figure_1():
    assert [(x.node, x.kind) for x in render(softmax.figure1().program)] == [
        ("loop:i.j@s_max", "loop"),
        ("name:s_max", "comment"),
        ("store:s_max", "store"),
        ("loop:i.j@s_exp", "loop"),
        ("name:s_exp", "comment"),
        ("store:s_exp", "store"),
        ("loop:i.j@s_sum", "loop"),
        ("name:s_sum", "comment"),
        ("store:s_sum", "store"),
    ]


def test_a_guard_has_a_line_of_its_own():
    sch = Schedule(softmax.figure1(2, 5))
    sch.split("s_max.j", (None, 2))
    guards = [line for line in render(sch.program) if line.kind == "guard"]
    assert [(g.node, g.text.strip()) for g in guards] == [("guard:s_max", "if j0 * 2 + j1 < 5:")]


def test_long_stores_are_wrapped_between_operands():
    for program in programs():
        for line in render(program):
            assert len(line.text) <= WIDTH + 32, line.text  # deep nests shift whole operands to the right


def test_definition_is_a_line_a_stage(golden: Callable[[str, str], None]):
    lines = definition(attention.causal(1, 1, q_len=4, kv_len=4, head_dim=2).program)
    golden("attention_definition.txt", "".join(f"{x.text}\n" for x in lines))
    assert [x.node for x in lines] == [f"def:{x.origin}" for x in lines]


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Op("sub", (Var("a"), Op("sub", (Var("b"), Var("c"))))), "a - (b - c)"),
        (Op("sub", (Op("sub", (Var("a"), Var("b"))), Var("c"))), "a - b - c"),
        (Op("sub", (Var("a"), Op("add", (Var("b"), Var("c"))))), "a - (b + c)"),
        (Op("add", (Var("a"), Op("add", (Var("b"), Var("c"))))), "a + b + c"),
        (Op("mul", (Op("add", (Var("a"), Var("b"))), Var("c"))), "(a + b) * c"),
        (Op("div", (Var("a"), Op("mul", (Var("b"), Var("c"))))), "a / (b * c)"),
        (Op("neg", (Op("add", (Var("a"), Var("b"))),)), "-(a + b)"),
        (Op("neg", (Op("mul", (Var("a"), Var("b"))),)), "-(a * b)"),
        (Op("select", (Op("lt", (Var("a"), Var("b"))), Var("a"), Const(0.5, "float32"))), "where(a < b, a, 0.5)"),
        (Op("not", (Op("and", (Var("a"), Var("b"))),)), "not (a and b)"),
        (Op("max", (Var("a"), Const(-math.inf, "float32"))), "max(a, -inf)"),
        (Load("x", (Var("i"), Const(0))), "x[i, 0]"),
        (Previous("x", (Var("t"), Var("i")), Const(0.0, "float32")), "x⟨t-1⟩[i]"),
    ],
)
def test_expressions(expr: Expr, text: str):
    assert expression(expr) == text


def test_scan_buffers_show_their_tag():
    assert expression(Load("x", (Var("t"), Var("i"))), frozenset({"x"})) == "x⟨t⟩[i]"


def _binary(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    two = st.builds(
        lambda name, a, b: Op(name, (a, b)),
        st.sampled_from(["add", "sub", "mul", "floordiv", "floormod", "max", "min"]),
        children,
        children,
    )
    return two | st.builds(lambda a: Op("neg", (a,)), children)


LEAVES = st.sampled_from([Var("a"), Var("b"), Var("c"), Const(2), Const(3), Const(-1)])
PYTHON = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "max": max,
    "min": min,
    "neg": lambda a: -a,
}


def evaluate(expr: Expr, env: dict[str, int]) -> int:
    match expr:
        case Const(value):
            return int(value)
        case Var(name):
            return env[name]
        case Op(name, args):
            return PYTHON[name](*(evaluate(a, env) for a in args))
    raise AssertionError(expr)


@given(st.recursive(LEAVES, _binary, max_leaves=8))
def test_the_text_evaluates_to_what_the_tree_does(expr: Expr):
    """Parentheses are enough: Python reads the text back to the same value."""
    env = {"a": 7, "b": -3, "c": 5}
    try:
        expected = evaluate(expr, env)
    except ZeroDivisionError:
        return
    assert eval(expression(expr), {"max": max, "min": min, **env}) == expected


def test_the_whole_program_as_text_is_the_lines_joined():
    program = small.operator(small.weighted()).program
    assert as_figure(program) == "".join(f"{line.text}\n" for line in render(program))
