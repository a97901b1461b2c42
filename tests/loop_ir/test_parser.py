"""Loop programs out of text: what is printed is read back whole, and what is no program is refused at its place."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from loop_texts import same  # pyright: ignore[reportMissingImports]

from neptune_lab.errors import ScheduleError, TextError
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Op,
    Previous,
    Program,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from neptune_lab.loop_ir.parser import MOST_LOOPS, from_text
from neptune_lab.loop_ir.printer import to_text
from neptune_lab.loop_ir.roles import RepairInfo, Role
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, rows, softmax
from neptune_lab.scalar_ops import rows as operations
from neptune_lab.strict.dtypes import DTYPES, INTEGERS
from neptune_lab.strict.syntax import MOST_LEVELS
from neptune_lab.strict.tokens import MOST_CHARACTERS

SMALL = """\
program f(x) -> y
  input   x  float32[4]
  output  y  float32[4]

for i in range(4):
    block y(i):
        y[i] = x[i] * 2.0
"""

# -- there and back -------------------------------------------------------------------------------------------------

OPERATORS = {
    "figure 1": lambda: softmax.figure1(2, 5),
    "attention": lambda: attention.causal(1, 1, q_len=4, kv_len=5, head_dim=2),
    "cross entropy": lambda: rows.cross_entropy(rows=3, cols=5),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_program_is_read_back_after_every_phase(name: str):
    for template in TEMPLATES.values():
        sch = Schedule(OPERATORS[name]())
        with suppress(ScheduleError):  # a template is not for every operator; its steps until then are
            template(sch, block_q=2, block_kv=2)
        phases = [phase.program for applied in sch.history for phase in applied.outcome.phases]
        for program in {id(program): program for program in phases}.values():
            same(program)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_the_text_of_attention(template: str, golden: Callable[[str, str], None]):
    sch = Schedule(attention.causal(1, 1, q_len=4, kv_len=5, head_dim=2))
    TEMPLATES[template](sch, block_q=2, block_kv=2)
    golden(f"attention_causal_{template}.loops.txt", same(sch.program))


def test_the_text_of_scan_buffers(golden: Callable[[str, str], None]):
    sch = Schedule(softmax.figure1(2, 5))
    sch.split("s_max.j", (None, 2))
    sch.rolling_update("s_sum", "s_max.j0")
    golden("figure_1_tags.loops.txt", same(sch.program))


def test_the_program_in_the_documentation_is_read_back():
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "phases.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```text\n(program .*?)```", page, re.DOTALL)
    program = from_text(text)
    verify(program)
    assert same(program) == text


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, 150, 50))
def test_random_programs_are_read_back(first: int):
    for seed in range(first, first + 50):
        same(_Draw(random.Random(seed)).program())


def test_what_a_block_leaves_out():
    """A binding to the loop of the same name, an extent that the binding has, its own name as its origin."""
    (block,) = blocks(from_text(SMALL))
    assert block == Block(
        "y",
        (Iter("i", 4, "spatial", Var("i")),),
        Store("y", (Var("i"),), Op("mul", (Load("x", (Var("i"),)), Const(2.0, "float32")))),
        origin="y",
    )
    text = SMALL.replace("i in range(4)", "i0, i1 in grid(2, 2)").replace("y(i)", "y(i = i0 * 2 + i1)")
    (block,) = blocks(from_text(text))
    assert block.iters[0].extent == 4


def test_names_that_are_words_of_the_text_are_in_backquotes():
    i = Var("inf")
    store = Store("init", (i,), Op("add", (Load("shared", (i,)), Var("reduce"))))
    iters = (Iter("inf", 2, "spatial", Var("inf")), Iter("reduce", 3, "reduce", Var("not")))
    block = Block("init", iters, store, store, origin="if")
    buffers = (Buffer("shared", (2,), "int32"), Buffer("init", (2,), "int32"))
    loops = Loop("inf", 2, (Loop("not", 3, (block,)),))
    text = same(Program("for", ("shared", "init"), ("init",), buffers, (loops,)))
    assert "block `init`(`inf`, reduce `reduce` = `not`):  @if" in text
    assert "init `init`[`inf`] = `shared`[`inf`] + `reduce`" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x[i] * 2.0", Op("mul", (Load("x", (Var("i"),)), Const(2.0, "float32")))),
        ("2.0", Const(2.0, "float16")),
        ("float16(2.0)", Cast("float16", Const(2.0, "float32"))),
        ("literal(2.0, float64)", Const(2.0, "float64")),
        ("-(2.0)", Op("neg", (Const(2.0, "float16"),))),
        ("-0.0", Const(-0.0, "float16")),
        ("where(i < 2, -inf, x[i])", Op("select", (
            Op("lt", (Var("i"), Const(2))), Const(float("-inf"), "float32"), Load("x", (Var("i"),))))),
        ("guard(x[i], -inf, 0.0)", Op("guard", (
            Load("x", (Var("i"),)), Const(float("-inf"), "float32"), Const(0.0, "float32")))),
        ("x[i + 1 - 1]", Load("x", (Op("sub", (Op("add", (Var("i"), Const(1))), Const(1))),))),
        ("x[i] - (x[i] - 1.0)", Op("sub", (Load("x", (Var("i"),)), Op("sub", (
            Load("x", (Var("i"),)), Const(1.0, "float32")))))),
    ],
)  # fmt: skip
def test_expressions(text: str, value: Expr):
    program = from_text(SMALL.replace("y  float32", "y  float16").replace("x[i] * 2.0", text))
    (block,) = blocks(program)
    assert repr(block.body.value) == repr(value)
    assert f"y[i] = {text}\n" in same(program)


def test_mixed_dtypes_are_all_stated():
    """What a stated constant says of the others would change them."""
    value = Op("add", (Const(1.0, "float16"), Const(1.0, "float32")))
    assert "literal(1.0, float16) + literal(1.0, float32)" in same(_with_value(value))


@pytest.mark.parametrize("dtype", sorted(INTEGERS))
def test_the_least_and_greatest_integers_are_read_back(dtype: str):
    bits = int(re.sub(r"\D", "", dtype))
    least, most = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    same(_with_value(Op("max", (Const(least, dtype), Const(most, dtype)))))


def _with_value(value: Expr) -> Program:
    program = from_text(SMALL)
    (block,) = blocks(program)
    return replace(program, body=(Loop("i", 4, (replace(block, body=replace(block.body, value=value)),)),))


# -- no program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("program", "prgram", (1, 1), "found 'prgram', expected 'program'"),
        ("float32[4]\n\n", "float99[4]\n\n", (3, 14), "found 'float99', expected a dtype: bfloat16"),
        ("  output  y", "  shared  y", (3, 3), "expected output, as the first line declares y"),
        ("  input   x", "  output  x", (2, 3), "expected input, as the first line declares x"),
        ("float32[4]\n\n", "float32[4]\n  output  z  float32[4]\n\n", (4, 3), "expected no input or output"),
        ("range(4)", "range(-4)", (5, 16), "found '-', expected an extent, an integer"),
        ("range(4)", "range(2, 2)", (5, 10), "an extent for each of i"),
        ("for i in", "for i, j in", (5, 13), "an extent for each of i, j"),
        ("range(4):", "range(4)", (5, 18), "found the end of the line, expected ':'"),
        ("x[i] * 2.0", "z[i] * 2.0", (7, 16), "found 'z', expected a buffer of the program (x, y)"),
        ("x[i] * 2.0", "x * 2.0", (7, 16), "an index after the buffer, such as x[i]"),
        ("x[i] * 2.0", "exq(x[i])", (7, 16), "did you mean exp?"),
        ("x[i] * 2.0", "exp(x[i], 1)", (7, 16), "expected 1 operands of exp"),
        ("x[i] * 2.0", "select(i < 2, 1, 2)", (7, 16), "expected an operation or a dtype"),
        ("x[i] * 2.0", "previous(x[i])", (7, 16), "previous(buffer[tag, index, ...], initial value)"),
        ("x[i] * 2.0", "x[0:2]", (7, 18), "expected one expression"),
        ("        y[i] = x[i] * 2.0\n", "", (6, 5), "one store in its body"),
        ("        y[i] =", "        y[i] = 1.0\n        y[i] =", (6, 5), "one store in its body"),
        ("        y[i] =", "        init y[i] = 1.0\n          y[i] =", (8, 11), "not indented further"),
        ("y[i] = x", "y = x", (7, 9), "an element to store to"),
        ("block y(i):", "block y(j = n):", (6, 13), "its extent, such as j: 4"),
        ("block y(i):", "block y(i)  @a  @b:", (6, 17), "expected ':'"),
        ("block y(i):", "block y(i):  @a  @b", (6, 22), "one label without a value"),
        ("block y(i):", "block y(i) as tiles:", (6, 19), "found 'tiles', expected a role: local, tile"),
        ("block y(i):", "block y(i):  note=1", (6, 18), "a note of a block: companion_of, repair, repair_by"),
        ("block y(i):", "block y(i):  repair=2", (6, 18), "one note repair, such as repair=1"),
        ("block y(i):", "block y(i):  @repair=yes", (6, 18), "one note repair, such as repair=1"),
        ("block y(i):", "block y(i):  repair=1  repair=1", (6, 28), "one note repair"),
        ("block y(i):", "block y(i):  @repair_by=a", (6, 18), "repair=1 with repair_by"),
        ("block y(i):", "block y(i):  repair=1  wrong_repair=1", (6, 28), "@unproved_repair="),
        ("block y(i):", "block y(i):  estimates=1", (6, 18), "such as @estimates=mean"),
        ("block y(i):", "block y(i):  note=1.5", (6, 23), 'write a text as a label, such as @note="a text"'),
        ("        y[i]", "        init y[i] = 1.0\n       y[i]", (8, 8), "align a body"),
        ("for", "y[0] = 1\nfor", (5, 1), "for, block, or a buffer"),
        (SMALL[SMALL.index("    block") :], "", (5, 19), "a body of the loop"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_program_is_refused_at_its_place(old: str, new: str, place: tuple[int, int], said: str):
    assert old in SMALL
    with pytest.raises(TextError) as refused:
        from_text(SMALL.replace(old, new, 1))
    assert said in str(refused.value)
    assert (refused.value.line, refused.value.column) == place
    assert refused.value.help


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#" * (MOST_CHARACTERS + 1),
        SMALL.replace("2.0", "(" * (MOST_LEVELS + 1) + "2.0" + ")" * (MOST_LEVELS + 1)),
        SMALL.replace("2.0", "9" * 5000),
        "program f() -> y\n" + "".join(f"{' ' * n}for i{n} in range(1):\n" for n in range(MOST_LOOPS + 9)),
    ],
    ids=["empty", "long", "deep", "number", "loops"],
)
def test_a_text_beyond_the_limits_is_refused(text: str):
    with pytest.raises(TextError):
        from_text(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("x[i]", "x[2.0]", "in which 2 is no integer"),
        ("x[i]", "x[inf * 2]", "in which inf is no integer"),
        ("x[i]", "x[i / 2]", "in which i / 2 is no integer"),
        ("x[i]", "x[x[i]]", "in which x[i] is no integer"),
        ("x[i]", "x[where(i < 2, i, True)]", "in which True is no integer"),
        ("y(i)", "y(i: 4 = 1.5)", "in which 1.5 is no integer"),
        ("y(i)", "y(i) if i", "runs if i, which is not a comparison"),
    ],
)
def test_an_index_that_is_no_integer_is_not_legal(old: str, new: str, said: str):
    program = from_text(SMALL.replace(old, new, 1))
    with pytest.raises(ScheduleError, match=re.escape(said)):
        verify(program)


# -- random programs, which need not be legal -------------------------------------------------------------------------


class _Draw:
    """Programs with all that the IR has."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dtypes = sorted(DTYPES)
        self.buffers = [
            Buffer(f"b{n}", tuple(rng.randrange(1, 9) for _ in range(rng.randrange(3))), rng.choice(self.dtypes),
                   "global" if n < 3 else rng.choice(("global", "shared", "local")), rng.random() < 0.2)
            for n in range(5)
        ]  # fmt: skip
        self.blocks = 0

    def program(self) -> Program:
        body = tuple(self.stmt(3, ()) for _ in range(self.rng.randrange(1, 4)))
        masked = tuple(name for name in ("b0", "b1") if self.rng.random() < 0.3)
        return Program("p", ("b0", "b1", "b2"), ("b2",), tuple(self.buffers), body, masked)

    def notes(self) -> tuple[tuple[str, str | int], ...]:
        notes = (("m", 1), ("note", 'x = "é" @ #'), ("n", -3), ("or", "a=b"), ("k", "7"))
        return tuple(note for note in notes if self.rng.random() < 0.2)

    def stmt(self, depth: int, loops: tuple[str, ...]) -> Stmt:
        if depth and self.rng.random() < 0.8:
            var = f"v{len(loops)}"
            body = tuple(self.stmt(depth - 1, (*loops, var)) for _ in range(self.rng.choice((1, 1, 2))))
            kind = self.rng.choice(("serial", "serial", "serial", "parallel", "blockIdx.x"))
            return Loop(var, self.rng.randrange(1, 9), body, kind, self.notes())
        iters = tuple(self.iteration(n, loops) for n in range(self.rng.randrange(3)))
        self.blocks += 1
        name = f"s{self.blocks}"
        inner = tuple(it.name for it in iters)
        body = self.store(inner)
        init = self.rng.choice((None, self.store(inner)))
        predicates = tuple(self.expr(2, loops) for _ in range(self.rng.choice((0, 0, 1, 2))))
        origin, role = self.rng.choice((name, name, "s", "", "a b")), self.rng.choice(list(Role))
        repair = self.rng.choice(
            (None, None, RepairInfo(), RepairInfo(("a", "b")), RepairInfo(("a",), 't * "é"'), RepairInfo((), "t", True))
        )
        companion, estimates = self.rng.choice(("", "", "s")), self.rng.choice(((), (), ("b0",), ("b0", "b1")))
        return Block(name, iters, body, init, predicates, origin, role, repair, companion, estimates)

    def iteration(self, n: int, loops: tuple[str, ...]) -> Iter:
        own = bool(loops) and self.rng.random() < 0.5
        name = self.rng.choice(loops) if own else f"i{n}"
        binding = Var(name) if own else self.expr(2, loops)
        return Iter(name, self.rng.randrange(1, 9), self.rng.choice(("spatial", "reduce")), binding)

    def store(self, names: tuple[str, ...]) -> Store:
        load = self.load(names, 1)
        value = self.expr(4, names)
        return Store(load.buffer, load.indices, self.rng.choice((value, Op("add", (load, value)))))

    def load(self, names: tuple[str, ...], depth: int) -> Load:
        buffer = self.rng.choice(self.buffers)
        return Load(buffer.name, tuple(self.expr(depth, names) for _ in buffer.shape))

    def const(self) -> Const:
        values = (0, 1, -1, 2**31, 0.5, -0.0, 1e-300, float("inf"), float("-inf"), True, False, 1 / 3)
        return Const(self.rng.choice(values), self.rng.choice((*self.dtypes, "int32", "float32", "bool")))

    def expr(self, depth: int, names: tuple[str, ...]) -> Expr:
        kind = self.rng.randrange(9) if depth else self.rng.randrange(2)
        if kind == 0:
            return self.const()
        if kind == 1:
            return Var(self.rng.choice(names)) if names else self.const()
        if kind == 2:
            return self.load(names, depth - 1)
        if kind == 3:
            load = self.load(names, depth - 1)
            return Previous(load.buffer, load.indices, self.const())
        if kind == 4:
            return Cast(self.rng.choice(self.dtypes), self.expr(depth - 1, names))
        row = self.rng.choice(list(operations("loop")))
        return Op(row.name, tuple(self.expr(depth - 1, names) for _ in range(row.arity)))


def test_random_programs_have_every_part():
    """The drawing above is of use only if it draws all."""
    texts = [to_text(_Draw(random.Random(seed)).program()) for seed in range(60)]
    for part in (
        "init ",
        "previous(",
        "literal(",
        " as ",
        " if ",
        "reduce ",
        "tagged",
        "masked",
        "@note=",
        "+=",
        "n=-3",
    ):
        assert any(part in text for text in texts), part
