"""HTile out of text: what is printed is read back whole, and what is no program is refused at its place."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from htile_programs import CASES
from saved_records import saved

from neptune_lab.errors import TextError
from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    Gather,
    GridAxis,
    IndexExpr,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    NewAxis,
    Permute,
    Program,
    Reduce,
    Scalar,
    Slice,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile.shapes import COMPARISONS, LOGICAL
from neptune_lab.htile_passes import PASSES, apply
from neptune_lab.scalar_ops import rows
from neptune_lab.strict.syntax import MOST_LEVELS
from neptune_lab.strict.tokens import MOST_CHARACTERS
from neptune_lab.trace import SCHEMA, schema

TESTS = Path(__file__).parents[1]
PRINTED = sorted(
    path.relative_to(TESTS / "golden").as_posix()
    for path in (TESTS / "golden").glob("*.txt")
    if "\nkernel " in (text := path.read_text()) and "\n  input " in text
)


def same(program: Program, text: str) -> None:
    read = from_text(text)
    assert read == program
    assert repr(read.kernels) == repr(program.kernels)  # 1 and 1.0 are equal


# -- there and back -------------------------------------------------------------------------------------------------


def test_there_are_printed_programs():
    assert {"attention_causal.htile.txt", "htile_attention.txt", "loop_to_htile_figure1.txt"} <= set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_golden_program_is_read_back(name: str):
    text = (TESTS / "golden" / name).read_text()
    text = text[text.index("program ") :]  # a pass's notes come before it
    program = from_text(text)
    verify(program)
    assert to_text(program) == text


def test_the_program_in_the_documentation_is_read_back():
    page = (TESTS.parent / "docs" / "concepts" / "tiles.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```text\n(program .*?)```", page, re.DOTALL)
    program = from_text(text)
    verify(program)
    assert to_text(program) == text


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", CASES)
def test_a_program_is_read_back_after_every_pass(name: str):
    program = CASES[name]().program
    same(program, to_text(program))
    for rewrite in PASSES.values():
        program = apply(rewrite, program).program
        same(program, to_text(program))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("number", range(schema.OLDEST, SCHEMA + 1))
def test_the_programs_of_a_saved_record_are_read(number: int):
    """A record's lines have no labels, and those of the first schemas no axes: the usual ones are put in."""
    kernel = saved(number).kernel
    assert kernel is not None
    for lines in (kernel.htile, *(done.lines for done in kernel.passes)):
        verify(from_text("".join(f"{line.text}\n" for line in lines)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, 300, 100))
def test_random_programs_are_read_back(first: int):
    for seed in range(first, first + 100):
        program = _Draw(random.Random(seed)).program()
        verify(program)
        same(program, to_text(program))


def test_a_program_without_labels_has_usual_ids():
    program = from_text("""
        program f(x) -> y
          input   x  float32[8]
          output  y  float32[8]
        kernel f  grid ()
            for i in range(2):  # interior
                y[i*4:i*4+4] = x[i*4:i*4+4]
                y[i*4:i*4+4] = -x[i*4:i*4+4]  @start
                y[i*4:i*4+4] = 1.0
                y[i*4:i*4+4] = 2.0  @y/chip
                y[i*4:i*4+4] = 3.0  @z=an-id
    """)
    (kernel,) = program.kernels
    (loop,) = kernel.body
    assert isinstance(loop, For)
    assert (kernel.node_id, loop.node_id, loop.origin, loop.part) == ("kernel:f", "for:i@y/interior", "y", "interior")
    assert [(s.node_id, s.origin) for s in loop.body] == [
        ("tile:y/interior", "y"),
        ("tile:start/interior", "start"),
        ("tile:y/interior#2", "y"),
        ("tile:y/chip/interior", "y"),
        ("an-id", "z"),
    ]
    same(program, to_text(program))


def test_ids_and_origins_of_any_text_are_read_back():
    program = from_text(SMALL)
    (kernel,) = program.kernels
    (store,) = kernel.body
    for node_id, origin in (("a b", ""), ("x=y", "for"), ('"', 'q"'), ("tile:", "y"), ("@", "a/b"), ("#", "é")):
        changed = replace(store, node_id=node_id, origin=origin)
        named = replace(program, kernels=(replace(kernel, node_id=node_id + "k", body=(changed,)),))
        same(named, to_text(named))


def test_what_follows_is_not_written():
    """A literal takes the other operands' dtype, or that of the tensor; a slice the axis of the declaration."""
    program = from_text(SMALL.replace("x[0:4] * 2.0", "where(x[0:4] < 0, literal(1, float32), 2.0) + float32(1.0)"))
    (store,) = program.kernels[0].body
    assert isinstance(store, Store)
    literals = [(e.value, e.dtype) for e in _all(store.value) if isinstance(e, Literal)]
    assert literals == [(0, "float32"), (1, "float32"), (2.0, "float32"), (1.0, "float32")]
    assert store.target == Access("y", (Slice(Int(0), 4, "i"),))
    assert "literal" not in to_text(program)
    assert "0:4:" not in to_text(program)


def _all(expr: TileExpr) -> list[TileExpr]:
    from neptune_lab.htile.walk import subexpressions

    return list(subexpressions(expr))


def test_comments_blanks_and_line_ends_are_free():
    text = SMALL.replace("    y[0:4] =", "    # a comment\n\n    y[ 0 : 4 ] =").replace("2.0", "(  # two\n  2.0\n )")
    assert from_text(text.replace("\n", "\r\n")) == from_text(SMALL)


# -- refused --------------------------------------------------------------------------------------------------------

SMALL = """\
program f(x) -> y
  input   x  float32[i: 4]
  output  y  float32[i: 4]

kernel f  grid ()
    y[0:4] = x[0:4] * 2.0
"""

WRONG = {
    "nothing": ("", "", 1, 1, "the end of the line"),
    "a tensor that is not declared": ("x[0:4]", "z[0:4]", 6, 14, "'z', expected a tensor of the program (x, y)"),
    "a tensor without an index": ("x[0:4]", "x", 6, 14, "'x', expected an index after the tensor"),
    "an operator that is none": ("x[0:4]", "expp(x[0:4])", 6, 14, "'expp', expected an operator or a dtype"),
    "too many operands": ("x[0:4]", "exp(x[0:4], 1)", 6, 14, "expected 1 operands of exp"),
    "a slice without a fixed extent": ("x[0:4]", "x[0:r]", 6, 16, "expected a slice that stops a fixed number"),
    "an index in floats": ("x[0:4]", "x[0.5]", 6, 16, "'0.5', expected integers and variables"),
    "a division in an index": ("x[0:4]", "x[4/2]", 6, 17, "'/', expected integers and variables"),
    "two comparisons in a row": ("x[0:4] * 2.0", "0 < 1 < 2", 6, 20, "expected no further comparison"),
    "a bracket that stays open": ("x[0:4] * 2.0", "exp(x[0:4]", 6, 17, "'(' is never closed"),
    "another bracket": ("x[0:4]", "x[0:4)", 6, 19, "')', expected ']'"),
    "a bracket too many": ("2.0", "2.0)", 6, 26, "')', expected '(' before it"),
    "something after the statement": ("2.0", "2.0 3", 6, 27, "'3', expected the end of the line"),
    "no expression": ("2.0", "", 6, 23, "the end of the line, expected an expression"),
    "a keyword for an operand": ("2.0", "or", 6, 23, "'or', expected an expression"),
    "a sign of no language": ("2.0", "$", 6, 23, "'$', expected a name, a number or a sign"),
    "a tab": ("    y", "\ty", 6, 1, r"'\t', expected a name"),
    "an escape": ("2.0", "\x1b[2J", 6, 23, r"'\x1b', expected a name"),
    "a name that begins with a digit": ("2.0", "2x", 6, 23, "'2x', expected a number or a name"),
    "a huge integer": ("2.0", "9" * 30, 6, 23, "expected an integer up to"),
    "a number of a megabyte": ("2.0", "9" * 500_000, 6, 23, "expected an integer up to"),
    "a float beyond float64": ("2.0", "1e999", 6, 23, "'1e999', expected an integer up to"),
    "quotes around nothing": ("x[0:4]", "``[0:4]", 6, 14, "in backquotes, expected a name"),
    "a reducer that is none": ("x[0:4] * 2.0", "reduce(mean, x[0:4], dim=0)", 6, 14, "expected reduce(reducer, tile"),
    "a dimension that is none": ("x[0:4] * 2.0", "permute(x[0:4], (0.5,))", 6, 31, "the number of a dimension"),
    "an argument twice": ("x[0:4] * 2.0", "reduce(sum, x[0:4], dim=0, dim=1)", 6, 41, "each argument once"),
    "a literal of a tile": ("2.0", "literal(x[0:4], float32)", 6, 23, "expected literal(value, dtype)"),
    "a store to nothing": ("y[0:4] =", "max(1, 2) =", 6, 5, "'max', expected for, kernel, or a tile to store to"),
    "a store to positions": ("y[0:4] =", "iota[0:4] =", 6, 5, "'iota', expected for, kernel, or a tile"),
    "a space that is none": ("input ", "inptu ", 2, 3, "'inptu', expected kernel, or a tensor's space: input"),
    "a dtype that is none": ("x  float32", "x  floaty", 2, 14, "'floaty', expected a dtype: bfloat16"),
    "an extent that is none": ("[i: 4]", "[i: x]", 2, 25, "'x', expected an extent, an integer"),
    "an indentation": ("    y[0:4]", "    y[0:4] = 0.0\n      y[0:4]", 7, 7, "expected it indented by 4 blanks"),
    "a statement outside of a kernel": ("    y[0:4]", "y[0:4]", 6, 1, "'y', expected 'kernel'"),
    "a hint twice": ("grid ()", "grid ()  num_warps=4  num_warps=8", 5, 33, "'num_warps', expected each hint once"),
    "a node id twice": ("2.0", "2.0  @a=i\n    y[0:4] = 0.0  @b=i", 7, 19, "a node id of its own, not 'i' again"),
    "an id that moves the cursor": ("2.0", '2.0  @"\\u001b[2J"', 6, 28, "expected printable characters"),
    "a label that is no JSON": ("2.0", '2.0  @"\\x"', 6, 28, "expected a JSON string"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_refused_at_its_place(name: str):
    old, new, line, column, expected = WRONG[name]
    assert old in SMALL
    with pytest.raises(TextError) as refused:
        from_text(SMALL.replace(old, new, 1) if old else new)
    assert expected in refused.value.reason
    assert (refused.value.line, refused.value.column) == (line, column)
    assert refused.value.reason.startswith(f"line {line}, column {column}: ")
    assert refused.value.help
    assert len(str(refused.value)) < 600


def test_a_text_of_any_depth_or_length_is_refused_or_read():
    def deep(levels: int, opening: str = "exp(", closing: str = ")") -> str:
        return SMALL.replace("x[0:4] * 2.0", opening * levels + "x[0:4]" + closing * levels)

    program = from_text(deep(MOST_LEVELS - 2))
    same(program, to_text(program))
    for opening, closing in (("exp(", ")"), ("(", ")"), ("-", ""), ("not ", ""), ("", " + x[0:4]"), ("0.0 - (", ")")):
        for levels in (MOST_LEVELS + 1, 2_000):
            with pytest.raises(TextError, match=f"more than {MOST_LEVELS} levels"):
                from_text(deep(levels, opening, closing))
    loops = "".join(f"{' ' * (4 + n)}for i{n} in range(1):\n" for n in range(40))
    with pytest.raises(TextError, match="at most 32 loops"):
        from_text(SMALL.partition("    y")[0] + loops)
    with pytest.raises(TextError, match="characters, expected at most"):
        from_text(SMALL + "#" * MOST_CHARACTERS)


# -- random programs ------------------------------------------------------------------------------------------------

DTYPES = ("float32", "float16", "int32", "int64", "bool")
# Words of the language and operators, as names.
NAMES = ("iota", "inf", "nan", "True", "NewAxis", "and", "not", "for", "kernel", "min", "where", "float32", "ı")
FLOATS = (0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), 1e-8, -1e30, 3, -3)
ROWS, COLUMNS = 4, 8


class _Draw:
    """A verified program with one store in one loop, its value a random expression of ROWS x COLUMNS."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        names = rng.sample(NAMES, len(NAMES))
        self.var, self.grid = names[0], names[1]
        self.tensor: dict[str, str] = dict(zip(DTYPES, names[2:7], strict=True))
        self.wide, self.out = names[7], names[8]
        self.rows, self.columns = self.slice(ROWS, "i"), self.slice(COLUMNS, "j")

    def program(self) -> Program:
        dtype = self.rng.choice(DTYPES)
        tensors = (
            *(Tensor(name, (64, 64), kind, "input") for kind, name in self.tensor.items()),
            Tensor(self.wide, (), "float32", "input"),
            Tensor(self.out, (64, 64), dtype, "output"),
        )
        mask = self.tile("bool", 3) if self.rng.random() < 0.5 else None
        store = Store("s", Access(self.out, (self.rows, self.columns)), self.tile(dtype, 4), "s", mask)
        bounds = self.index(1), self.index(1)
        loop = For("l", self.var, *bounds, (store,), "s", self.rng.choice(("", "interior", "visited")))
        # The bounds are over the grid's variable only.
        loop = replace(loop, start=_grid_only(loop.start, self.grid), stop=_grid_only(loop.stop, self.grid))
        hints = self.rng.choice(((None, None), (4, None), (None, 2)))
        kernel = Kernel("k", "f", (GridAxis(self.grid, 3),), (loop,), *hints)
        inputs = tuple(t.name for t in tensors if t.space == "input")
        return Program("f", tensors, inputs, (self.out,), (kernel,))

    def slice(self, extent: int, axis: str) -> Slice:
        axis = axis if self.rng.random() < 0.8 else self.rng.choice(NAMES)
        return Slice(self.index(2), extent, axis)

    def index(self, depth: int) -> IndexExpr:
        if depth == 0 or self.rng.random() < 0.3:
            return self.rng.choice((Int(0), Int(3), Int(-2), Name(self.var), Name(self.grid)))
        op = self.rng.choice(("+", "-", "*", "min", "max"))
        if self.rng.random() < 0.2:
            return Arith(self.rng.choice(("//", "%")), self.index(depth - 1), Int(3))
        return Arith(op, self.index(depth - 1), self.index(depth - 1))

    def literal(self, dtype: str) -> Literal:
        if dtype == "bool":
            return Literal(self.rng.random() < 0.5, dtype)
        return Literal(self.rng.choice(FLOATS if dtype.startswith("f") else (0, 1, -7, 3)), dtype)

    def tile(self, dtype: str, depth: int) -> TileExpr:
        if depth == 0:
            return self.literal(dtype) if self.rng.random() < 0.5 else self.leaf(dtype)
        choices = [self.leaf, self.elementwise, self.elementwise, self.elementwise, self.cast, self.reduce, self.turned]
        if dtype == "float32":
            choices.append(self.dot)
        chosen = self.rng.choice(choices)
        return chosen(dtype) if chosen == self.leaf else chosen(dtype, depth - 1)  # pyright: ignore[reportCallIssue]

    def leaf(self, dtype: str) -> TileExpr:
        whole = Access(self.tensor[dtype], (self.rows, self.columns))
        if dtype == "float32" and self.rng.random() < 0.2:
            return Access(self.wide, ())
        if dtype == "int32" and self.rng.random() < 0.6:
            iota = Iota((self.rows, NewAxis()) if self.rng.random() < 0.5 else (NewAxis(), self.slice(COLUMNS, "j")))
            return self.rng.choice((iota, Scalar(self.index(2)), Scalar(Name(self.var))))
        column = Access(self.tensor[dtype], (self.rows, NewAxis(), self.index(1)))
        gather = Gather(self.tensor[dtype], (Iota((self.rows, NewAxis())), self.literal("int32")))
        return self.rng.choice((whole, column, gather))

    def elementwise(self, dtype: str, depth: int) -> TileExpr:
        if dtype == "bool":
            op = self.rng.choice((*sorted(COMPARISONS), *sorted(LOGICAL), "not"))
            kind = self.rng.choice(DTYPES) if op in COMPARISONS else "bool"
            return Elementwise(op, tuple(self.tile(kind, depth) for _ in range(1 if op == "not" else 2)), "bool")
        if self.rng.random() < 0.2:
            args = (self.tile("bool", depth), self.tile(dtype, depth), self.tile(dtype, depth))
            return Elementwise("where", args, dtype)
        kinds = ("number", "float" if dtype.startswith("f") else "integer")
        arities = {row.name: row.arity for row in rows("htile") if row.kind in kinds}
        op = self.rng.choice((*sorted(arities), "neg", "sub", "add"))
        return Elementwise(op, tuple(self.tile(dtype, depth) for _ in range(arities[op])), dtype)

    def cast(self, dtype: str, depth: int) -> TileExpr:
        return Cast(self.tile(self.rng.choice(DTYPES), depth), dtype)

    def reduce(self, dtype: str, depth: int) -> TileExpr:
        index = (self.rows, self.columns, NewAxis())
        op = self.rng.choice(("max", "min") if dtype == "bool" else ("sum", "max", "min", "prod"))
        return Reduce(op, Access(self.tensor[dtype], index), 2)

    def turned(self, dtype: str, depth: int) -> TileExpr:
        return Permute(Access(self.tensor[dtype], (self.columns, self.rows)), (1, 0))

    def dot(self, dtype: str, depth: int) -> TileExpr:
        kind = self.rng.choice(("float16", "float32"))
        inner = self.slice(16, "k")
        a, b = Access(self.tensor[kind], (self.rows, inner)), Access(self.tensor[kind], (inner, self.columns))
        tile = Access(self.tensor["float32"], (self.rows, self.columns))
        return Dot(a, b, self.rng.choice((None, self.literal("float32"), tile)))


def _grid_only(index: IndexExpr, grid: str) -> IndexExpr:
    match index:
        case Name():
            return Name(grid)
        case Arith(op, a, b):
            return Arith(op, _grid_only(a, grid), _grid_only(b, grid))
        case _:
            return index
