"""Parses the text of a loop program, as `printer.to_text` prints it or as a person writes it.

Statements are indented as in Python, names may be in backquotes, and comments are allowed anywhere.  The program is not
checked; `verify` does that.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from neptune_lab.loop_ir.block_notes import with_notes
from neptune_lab.loop_ir.constant_dtypes import INDEX, filled
from neptune_lab.loop_ir.nodes import SCOPES, Block, Buffer, Expr, Iter, Load, Loop, Op, Program, Stmt, Store, Var
from neptune_lab.loop_ir.parse_expression import ExpressionReader
from neptune_lab.loop_ir.printer import usual_extent
from neptune_lab.loop_ir.roles import Role
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.syntax import Item, Number, Reader
from neptune_lab.strict.tokens import Nested, Token, label_parts, nested, refusal, statements

# Nested loops.
MOST_LOOPS = 64

# A note at the end of a line: key, value, place.
Notes: TypeAlias = tuple[tuple[str, str | int, Token], ...]


def from_text(text: str) -> Program:
    """The program that a text describes; `from_text(to_text(program)) == program` for a verified program.

    Raises:
        TextError: the text is no program, with the line, the column, what was found and what is expected.
    """
    rows = nested(statements(text), MOST_LOOPS + 4)
    if not rows:
        raise refusal(Token("end", "", 1, 1), "program NAME(INPUT, ...) -> OUTPUT, ...")
    first, *others = rows
    name, inputs, outputs = Reader(first.statement).program()
    declarations = [*first.body]
    while others and not Reader(others[0].statement).at("for", "block"):
        declarations.append(others.pop(0))
    buffers, masked = [], []
    for row in declarations:
        reader = Reader(_leaf(row))
        at = reader.token
        buffer, part, mask = _buffer(reader)
        if {"input": buffer.name in inputs, "output": buffer.name in outputs}.get(
            part, buffer.name not in (*inputs, *outputs)
        ):
            buffers.append(buffer)
        else:
            where = "input" if buffer.name in inputs else "output" if buffer.name in outputs else "no input or output"
            raise refusal(at, f"{where}, as the first line declares {buffer.name}")
        if mask:
            masked.append(buffer.name)
    body = _Body({b.name: b.dtype for b in buffers})
    stmts = tuple(body.statement(row, {}) for row in others)
    return Program(name, (*inputs, *outputs), outputs, tuple(buffers), stmts, tuple(masked))


def _leaf(row: Nested):
    """A statement that has no body."""
    if row.body:
        raise refusal(row.body[0].statement.tokens[0], "a statement that is not indented further")
    return row.statement


def _buffer(reader: Reader) -> tuple[Buffer, str, bool]:
    """A declaration: the buffer, whether it is an "input" or "output" or neither (""), and whether it is masked."""
    part = reader.take().text if reader.at("input", "output") else ""
    if not part and not reader.at(*SCOPES):
        raise refusal(reader.token, f"for, block, or a buffer: input, output, {', '.join(SCOPES)}")
    scope = reader.take().text if reader.at(*SCOPES) else "global"
    name = reader.name("a buffer")
    if not reader.at(*DTYPES):
        raise refusal(reader.token, f"a dtype: {', '.join(sorted(DTYPES))}")
    dtype = reader.take().text
    reader.expect("[")
    shape: list[int] = []
    while not reader.at("]"):
        shape.append(reader.integer("an extent"))
        if not reader.accept(","):
            break
    reader.expect("]")
    tagged = reader.accept("tagged")
    masked = reader.accept("masked")
    reader.end()
    return Buffer(name, tuple(shape), dtype, scope, tagged), part, masked


class _Body:
    """Parses statements over buffers of these dtypes."""

    def __init__(self, dtypes: dict[str, str]) -> None:
        self._dtypes = dtypes
        self._expressions = ExpressionReader(dtypes)

    def statement(self, row: Nested, extents: dict[str, int]) -> Stmt:
        """A loop or block inside loops of these extents."""
        reader = Reader(row.statement)
        if reader.at("for"):
            return self._loop(reader, row, extents)
        if reader.at("block"):
            return self._block(reader, row, extents)
        raise refusal(reader.token, "for, or block with the store in its body")

    def _loop(self, reader: Reader, row: Nested, extents: dict[str, int]) -> Loop:
        """A loop, or several that one line writes as a grid."""
        reader.expect("for")
        names = reader.names("a loop variable")
        reader.expect("in")
        at = reader.token
        if not reader.at("range", "grid"):
            raise refusal(at, "range(EXTENT), or grid(EXTENT, EXTENT) for two loops")
        reader.take()
        reader.expect("(")
        sizes = [reader.integer("an extent")]
        while reader.accept(","):
            sizes.append(reader.integer("an extent"))
        reader.expect(")")
        reader.expect(":")
        if len(sizes) != len(names) or (at.text == "range" and len(sizes) > 1):
            raise refusal(at, f"an extent for each of {', '.join(names)}: grid(EXTENT, ...)", "change the extents")
        kind, notes = _notes(reader)
        if not row.body:
            raise refusal(reader.token, "a body of the loop in the lines below", "indent the statements of the body")
        inner = {**extents, **dict(zip(names, sizes, strict=True))}
        body = tuple(self.statement(r, inner) for r in row.body)
        *outer, last = zip(names, sizes, strict=True)
        if outer and (kind or notes):
            raise refusal(at, "notes on one loop", "write a line for each loop")
        loop = Loop(*last, body, kind or "serial", tuple((key, value) for key, value, _ in notes))
        for name, size in reversed(outer):
            loop = Loop(name, size, (loop,))
        return loop

    def _block(self, reader: Reader, row: Nested, extents: dict[str, int]) -> Block:
        first = reader.expect("block")
        name = reader.name("the block")
        reader.expect("(")
        iters = []
        while not reader.at(")"):
            iters.append(self._iteration(reader, extents))
            if not reader.accept(","):
                break
        reader.expect(")")
        role = _role(reader) if reader.accept("as") else Role.DEFINED
        predicates: list[Expr] = []
        if reader.accept("if"):
            predicates.append(self._in_loops(reader, "bool"))
            while reader.accept(","):
                predicates.append(self._in_loops(reader, "bool"))
        reader.expect(":")
        origin, notes = _notes(reader)
        init, body = self._stores(first, row)
        origin = name if origin is None else origin
        return with_notes(Block(name, tuple(iters), body, init, tuple(predicates), origin, role), notes)

    def _iteration(self, reader: Reader, extents: dict[str, int]) -> Iter:
        kind: Literal["spatial", "reduce"] = "reduce" if reader.accept("reduce") else "spatial"
        at = reader.token
        name = reader.name("an iteration variable")
        extent = reader.integer("an extent") if reader.accept(":") else None
        binding = self._in_loops(reader, INDEX) if reader.accept("=") else Var(name)
        if extent is None:
            extent = usual_extent(binding, extents)
        if extent is None:
            raise refusal(at, f"its extent, such as {name}: 4, since that does not follow from the loops around")
        return Iter(name, extent, kind, binding)

    def _in_loops(self, reader: Reader, wanted: str) -> Expr:
        """An expression over the loops."""
        return filled(self._expressions.scalar(reader.expression()), wanted, self._dtypes)

    def _stores(self, block: Token, row: Nested) -> tuple[Store | None, Store]:
        rows = [Reader(_leaf(r)) for r in row.body]
        starts = [r for r in rows if r.accept("init")]
        if len(rows) - len(starts) != 1 or len(starts) > 1 or (starts and starts[0] is not rows[0]):
            raise refusal(block, "one store in its body, and before it at most one init", "make a block of each store")
        stores = [self._store(reader) for reader in rows]
        return (stores[0] if starts else None), stores[-1]

    def _store(self, reader: Reader) -> Store:
        target = reader.expression()
        if not isinstance(target, Item):
            raise refusal(target.at, "an element to store to, such as x[i] = ...")
        access = self._access(target)
        add = reader.accept("+=")
        if not add:
            reader.expect("=")
        value = self._expressions.scalar(reader.expression())
        reader.end()
        value = filled(value, self._dtypes.get(access.buffer, ""), self._dtypes)
        return Store(access.buffer, access.indices, Op("add", (access, value)) if add else value)

    def _access(self, item: Item) -> Load:
        access = filled(self._expressions.access(item), "", self._dtypes)
        assert isinstance(access, Load)
        return access


def _role(reader: Reader) -> Role:
    roles = [role.value for role in Role if role is not Role.DEFINED]
    if not reader.at(*roles):
        raise refusal(reader.token, f"a role: {', '.join(roles)}")
    return Role(reader.take().text)


def _notes(reader: Reader) -> tuple[str | None, Notes]:
    """The notes at the end of a line: a label `@kind` or `@origin`, if there is one, and annotations, `@key=text` or
    `key=1`."""
    said: str | None = None
    notes: list[tuple[str, str | int, Token]] = []
    while reader.token.kind in ("label", "word", "quoted"):
        at = reader.token
        if (label := reader.label()) is not None:
            first, text = label_parts(label)
            if text is None and (said is not None or notes):
                raise refusal(at, "one label without a value, before the annotations")
            if text is None:
                said = first
            else:
                notes.append((first, text, at))
            continue
        key = reader.name("an annotation")
        reader.expect("=")
        value = reader.expression()
        if not isinstance(value, Number) or not isinstance(value.value, int):
            raise refusal(value.at, f"an integer for {key}", 'write a text as a label, such as @note="a text"')
        notes.append((key, value.value, at))
    reader.end()
    return said, tuple(notes)
