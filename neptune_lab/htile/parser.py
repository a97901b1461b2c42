"""Parses HTile programs: what `printer.to_text` prints, or a text in the same form.

    program double(x) -> y
      input   x  float32[10, i: 64]
      output  y  float32[10, i: 64]

    kernel double  grid (r: 10)  num_warps=4
        y[r, 0:64] = x[r, 0:64] * 2.0

Statements are indented as in Python, names may be in backquotes, comments are ignored.  Except: a comment after a loop
with the name of a part (`# interior`) makes the loop that part.  `printer`, `unstated` and `labels` define what a text
may leave out.  The program is not verified: call `verify`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from neptune_lab.htile.labels import Labels, origin_of, usual_origin
from neptune_lab.htile.nodes import (
    SPACES,
    Access,
    For,
    FoundTiles,
    GridAxis,
    Int,
    Kernel,
    Part,
    Program,
    Space,
    Stmt,
    Store,
    Tensor,
)
from neptune_lab.htile.parse_expression import ExpressionReader
from neptune_lab.htile.unstated import Declared, infer_unstated
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.syntax import Item, Reader
from neptune_lab.strict.tokens import Statement, Token, refusal, statements

_PARTS: dict[str, Part] = {part: part for part in get_args(Part)}
# Nesting depth of loops.
MOST_LOOPS = 32


def from_text(text: str) -> Program:
    """The program of a text; `from_text(to_text(program)) == program` for a verified program.

    Raises:
        TextError: the text is not a program; it has the line, the column, what was found and what is expected.
    """
    return _Program(statements(text)).read()


def lines_of_nodes(text: str) -> dict[str, int]:
    """The line on which each kernel, loop and store of the text begins, by node id.

    Raises:
        TextError: as `from_text`.
    """
    program = _Program(statements(text))
    program.read()
    return program.lines


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A statement whose node id and origin are not known yet, and its label."""

    stmt: Stmt
    label: Token | None
    line: int
    body: tuple[_Parsed, ...] = ()


class _Program:
    """Reads a program from its first statement to its last."""

    def __init__(self, in_text: tuple[Statement, ...]) -> None:
        self._statements = in_text
        self._next = 0
        self._known = Declared((), ())
        self._expressions = ExpressionReader(())
        self.lines: dict[str, int] = {}

    def read(self) -> Program:
        name, inputs, outputs = self._header()
        tensors, axes = [], []
        while (reader := self._reader()) is not None and not reader.at("kernel"):
            tensor, axes_of_tensor = _tensor(reader)
            tensors.append(tensor)
            axes.append(axes_of_tensor)
            self._next += 1
        self._known = Declared(tuple(tensors), tuple(axes))
        self._expressions = ExpressionReader([t.name for t in tensors])
        kernels = []
        labels = Labels()
        while (reader := self._reader()) is not None:
            kernels.append(self._kernel(reader, labels))
        return Program(name, tuple(tensors), inputs, outputs, tuple(kernels))

    def _reader(self) -> Reader | None:
        """The next statement; None after the last."""
        return Reader(self._statements[self._next]) if self._next < len(self._statements) else None

    def _header(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        reader = self._reader()
        if reader is None:
            raise refusal(Token("end", "", 1, 1), "program NAME(INPUT, ...) -> OUTPUT, ...")
        self._next += 1
        return reader.program()

    def _kernel(self, reader: Reader, labels: Labels) -> Kernel:
        """A kernel: its grid, its launch hints, what it finds, its label, and the statements in the lines below."""
        first = reader.expect("kernel")
        name = reader.name("the kernel")
        reader.expect("grid")
        reader.expect("(")
        grid = []
        while not reader.at(")"):
            var = reader.name("a grid axis")
            reader.expect(":")
            grid.append(GridAxis(var, reader.integer("an extent")))
            if not reader.accept(","):
                break
        reader.expect(")")
        hints: dict[str, int] = {}
        while reader.at("num_warps", "num_stages"):
            hint = reader.take()
            if hint.text in hints:
                raise refusal(hint, "each hint once")
            reader.expect("=")
            hints[hint.text] = reader.integer(hint.text)
        finds = _finds(reader) if reader.accept("finds") else None
        label = reader.label()
        reader.end()
        indent = self._statements[self._next].indent
        self._next += 1
        body = self._body(indent, 0)
        kernel = Kernel("", name, tuple(grid), (), hints.get("num_warps"), hints.get("num_stages"), finds)
        kernel = labels.kernel(kernel, label)
        self.lines[kernel.node_id] = first.line
        return replace(kernel, body=tuple(self._named(parsed, labels, ()) for parsed in body))

    def _body(self, around: int, loops: int) -> tuple[_Parsed, ...]:
        """The statements that are indented by more than `around`."""
        body: list[_Parsed] = []
        first = self._indent()
        while (indent := self._indent()) > around:
            reader = self._reader()
            assert reader is not None
            if indent != first:
                raise refusal(reader.token, f"it indented by {first} blanks, not {indent}", "align a body")
            self._next += 1
            body.append(self._loop(reader, indent, loops) if reader.at("for") else self._store(reader))
        return tuple(body)

    def _indent(self) -> int:
        """The indentation of the next statement; -1 after the last, and for a kernel's header."""
        reader = self._reader()
        return -1 if reader is None or reader.at("kernel") else self._statements[self._next].indent

    def _loop(self, reader: Reader, indent: int, loops: int) -> _Parsed:
        if loops == MOST_LOOPS:
            raise refusal(reader.token, f"at most {MOST_LOOPS} loops nested in each other", "unroll the inner ones")
        first = reader.expect("for")
        var = reader.name("a loop variable")
        reader.expect("in")
        reader.expect("range")
        reader.expect("(")
        bounds = [self._expressions.scalar(reader.expression())]
        if reader.accept(","):
            bounds.append(self._expressions.scalar(reader.expression()))
        reader.expect(")")
        within = self._elements(reader) if reader.accept("within") else None
        without = self._elements(reader) if reader.accept("without") else None
        listed = self._elements(reader) if reader.accept("listed") else None
        reader.expect(":")
        label = reader.label()
        part = _PARTS.get(reader.comment(), "")
        reader.end()
        start, stop = (Int(0), *bounds) if len(bounds) == 1 else bounds
        loop = For("", var, start, stop, (), "", part, within, without, listed)
        return _Parsed(loop, label, first.line, self._body(indent, loops + 1))

    def _elements(self, reader: Reader) -> tuple[Access, Access]:
        """The two elements that bound a loop, or list the values of its variable."""
        first = self._access(reader)
        reader.expect(",")
        return first, self._access(reader)

    def _access(self, reader: Reader) -> Access:
        item = reader.expression()
        if not isinstance(item, Item):
            raise refusal(item.at, "an element of a tensor, such as x_first[i0]")
        return self._expressions.access(item)

    def _store(self, reader: Reader) -> _Parsed:
        target = reader.expression()
        if not isinstance(target, Item) or (target.name.name == "iota" and not target.name.quoted):
            raise refusal(target.at, "for, kernel, or a tile to store to, such as x[0:4] = ...")
        access = self._expressions.access(target)
        reader.expect("=")
        value = self._expressions.tile(reader.expression())
        mask = self._expressions.tile(reader.expression()) if reader.accept("where") else None
        label = reader.label()
        reader.end()
        return _Parsed(infer_unstated(Store("", access, value, "", mask), self._known), label, target.at.line)

    def _named(self, parsed: _Parsed, labels: Labels, around: tuple[For, ...]) -> Stmt:
        """The statement with its node id and origin; a loop gets its id before its body does."""
        stmt = labels.named(parsed.stmt, parsed.label, _usual_origin(parsed), around)
        self.lines[stmt.node_id] = parsed.line
        if isinstance(stmt, For):
            inner = (*around, stmt)
            return replace(stmt, body=tuple(self._named(p, labels, inner) for p in parsed.body))
        return stmt


def _finds(reader: Reader) -> FoundTiles:
    """`(FIRST, LAST, ROWS: EXTENT, COLUMNS: EXTENT)`."""
    reader.expect("(")
    first = reader.name("a tensor")
    reader.expect(",")
    last = reader.name("a tensor")
    vectors: list[tuple[str, int]] = []
    for _ in range(2):
        reader.expect(",")
        vector = reader.name("an input")
        reader.expect(":")
        vectors.append((vector, reader.integer("the elements of a tile")))
    reader.expect(")")
    (rows, row_extent), (columns, column_extent) = vectors
    return FoundTiles(first, last, rows, columns, row_extent, column_extent)


def _tensor(reader: Reader) -> tuple[Tensor, tuple[str, ...]]:
    """A declaration, and the axis of each dimension, "" for none."""
    if not reader.at(*SPACES):
        raise refusal(reader.token, f"kernel, or a tensor's space: {', '.join(SPACES)}")
    word = reader.take().text
    space: Space = next(s for s in SPACES if s == word)
    name = reader.name("a tensor")
    if not reader.at(*DTYPES):
        raise refusal(reader.token, f"a dtype: {', '.join(sorted(DTYPES))}")
    dtype = reader.take().text
    reader.expect("[")
    shape: list[int] = []
    axes: list[str] = []
    while not reader.at("]"):
        named = reader.token.kind in ("word", "quoted")
        axes.append(reader.name("an axis") if named else "")
        if named:
            reader.expect(":")
        shape.append(reader.integer("an extent"))
        if not reader.accept(","):
            break
    reader.expect("]")
    strides = _strides(reader) if reader.accept("strides") else None
    reader.end()
    return Tensor(name, tuple(shape), dtype, space, strides), tuple(axes)


def _strides(reader: Reader) -> tuple[int, ...]:
    """The numbers in brackets after `strides`."""
    reader.expect("(")
    found = [reader.integer("a stride")]
    while reader.accept(","):
        found.append(reader.integer("a stride"))
    reader.expect(")")
    return tuple(found)


def _usual_origin(parsed: _Parsed) -> str:
    """The origin of a statement without a label; that of a loop is its first statement's."""
    if isinstance(parsed.stmt, Store):
        return usual_origin(parsed.stmt)
    origins = (_usual_origin(inner) if inner.label is None else origin_of(inner.label) for inner in parsed.body)
    return next((origin for origin in origins if origin), "")
