"""Prints loop programs as text without loss; `parser.from_text` reads it back.

    program softmax(x) -> y
      input   x  float32[2, 4]
      global  m  float32[2]
      output  y  float32[2, 4]

    for i, j in grid(2, 4):
        block m(i, reduce j):
            init m[i] = -inf
            m[i] = max(m[i], x[i, j])
    for i, j in grid(2, 4):
        block y(i, j):
            y[i, j] = exp(x[i, j] - m[i])

A block is printed in its iteration variables: `block m(i, reduce j: 5 = j0 * 2 + j1) as tile if j0 * 2 + j1 < 5:  @n`
has j in range(5), bound to the loops around it, the role "tile", and came from the stage n.  Facts that can be inferred
are not printed: a binding to the loop of the same name, an extent that follows from the binding, the dtypes that
`constant_dtypes` infers.  `render` prints a shorter form in the style of the paper's figures, with fewer facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neptune_lab.loop_ir.block_notes import notes_of
from neptune_lab.loop_ir.constant_dtypes import INDEX, elided
from neptune_lab.loop_ir.nodes import (
    SCOPES,
    Block,
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
)
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.tree import grouped
from neptune_lab.scalar_ops import ATOM, NEGATE
from neptune_lab.strict.tokens import label_text
from neptune_lab.wrapping import Doc, Loose, call, flat, lines, number_text, operation, seq

WIDTH = 110
INDENT = "    "
# Keywords; a name like one of these is printed in backquotes.
RESERVED = frozenset({*SCOPES, "inf", "nan", "True", "False", "and", "or", "not", "init", "reduce"})


def to_text(program: Program) -> str:
    """The program as text: `parser.from_text(to_text(program)) == program` for a verified program."""
    text = _Text({b.name: b.dtype for b in program.buffers})
    body = [line for stmt in program.body for line in text.statement(stmt, "", ())]
    return "\n".join([*_declarations(program), "", *body, ""])


def _declarations(program: Program) -> list[str]:
    rows = []
    for b in program.buffers:
        part = "output" if b.name in program.outputs else "input" if b.name in program.params else ""
        where = part if part and b.scope == "global" else f"{part} {b.scope}".strip()
        notes = ("  tagged" if b.tagged else "") + ("  masked" if b.name in program.masked else "")
        rows.append((where, _name(b.name), f"{b.dtype}[{', '.join(map(str, b.shape))}]{notes}"))
    widths = [max((len(row[n]) for row in rows), default=0) for n in (0, 1)]
    inputs, outputs = (", ".join(map(_name, names)) for names in (program.inputs, program.outputs))
    return [
        f"program {_name(program.name)}({inputs}) -> {outputs}",
        *(f"  {where:<{widths[0]}}  {name:<{widths[1]}}  {rest}" for where, name, rest in rows),
    ]


@dataclass(frozen=True, slots=True)
class _Text:
    """Prints statements; `dtypes` are those of the buffers."""

    dtypes: Mapping[str, str]

    def statement(self, stmt: Stmt, indent: str, around: tuple[Loop, ...]) -> list[str]:
        """The lines of a statement inside the loops `around`."""
        if isinstance(stmt, Block):
            return self.block(stmt, indent, {loop.var: loop.extent for loop in around})
        group = grouped(stmt)
        names, extents = ", ".join(_name(g.var) for g in group), ", ".join(str(g.extent) for g in group)
        kind = f"  {label_text(stmt.kind)}" if stmt.kind != "serial" else ""
        span = f"range({extents})" if len(group) == 1 else f"grid({extents})"
        out = [f"{indent}for {names} in {span}:{kind}{_notes(stmt.annotations)}"]
        for inner in group[-1].body:
            out += self.statement(inner, indent + INDENT, (*around, *group))
        return out

    def block(self, block: Block, indent: str, extents: Mapping[str, int]) -> list[str]:
        """The lines of a block inside loops of these extents."""
        role = f" as {block.role}" if block.role is not Role.DEFINED else ""
        bounds_text = ", ".join(flat(self.expression(p, "bool")) for p in block.predicates)
        condition = f" if {bounds_text}" if block.predicates else ""
        iters = (self.iteration(it, extents) for it in block.iters)
        out = lines(seq(call(f"block {_name(block.name)}", *iters), f"{role}{condition}:"), WIDTH, indent)
        out[-1] += f"  {label_text(block.origin)}" if block.origin != block.name else ""
        out[-1] += _notes(notes_of(block))
        stores = [self.store(block.body)]
        if block.init is not None:
            stores.insert(0, seq("init ", self.store(block.init)))
        return out + [line for store in stores for line in lines(store, WIDTH, indent + INDENT)]

    def iteration(self, it: Iter, extents: Mapping[str, int]) -> str:
        """An iteration variable, without what can be inferred from the loops around it."""
        kind = "reduce " if it.kind == "reduce" else ""
        extent = "" if usual_extent(it.binding, extents) == it.extent else f": {it.extent}"
        own = it.binding == Var(it.name) and it.name in extents
        return f"{kind}{_name(it.name)}{extent}{'' if own else f' = {flat(self.expression(it.binding, INDEX))}'}"

    def store(self, store: Store) -> Doc:
        """An assignment; `x[i] += e` is `x[i] = x[i] + e`."""
        target = Load(store.buffer, store.indices)
        sign, value = "=", store.value
        match value:
            case Op("add", (left, term)) if left == target:
                sign, value = "+=", term
        return seq(
            self.expression(target, ""), f" {sign} ", Loose(self.expression(value, self.dtypes.get(store.buffer, "")))
        )

    def expression(self, expr: Expr, wanted: str) -> Doc:
        """An expression at a place that takes the dtype `wanted`."""
        return _expr(elided(expr, wanted, self.dtypes))[0]


def usual_extent(binding: Expr, extents: Mapping[str, int]) -> int | None:
    """The inferred extent of an iteration variable: the greatest value of its binding plus 1; None if that is
    unknown."""
    limits = bounds(binding, extents)
    return None if limits is None else limits[1] + 1


def _name(name: str) -> str:
    return f"`{name}`" if name in RESERVED else name


def _notes(notes: Iterable[tuple[str, str | int]]) -> str:
    """Notes at the end of a line: numbers as `key=1`, texts as labels."""
    texts = (label_text(k, v) if isinstance(v, str) else f"{_name(k)}={v}" for k, v in notes)
    return "".join(f"  {text}" for text in texts)


def _expr(expr: Expr) -> tuple[Doc, int]:
    """The text and its precedence; the dtype of a constant is printed unless it is ""."""
    match expr:
        case Const(value, ""):
            return number_text(value), ATOM if isinstance(value, bool) or not _negative(value) else NEGATE
        case Const(value, dtype):
            return f"literal({number_text(value)}, {dtype})", ATOM
        case Var(name):
            return _name(name), ATOM
        case Load(buffer, indices):
            return f"{_name(buffer)}[{', '.join(flat(_expr(index)[0]) for index in indices)}]", ATOM
        case Previous(buffer, indices, initial):
            return call("previous", _expr(Load(buffer, indices))[0], _expr(initial)[0]), ATOM
        case Cast(dtype, arg):
            return call(dtype, _expr(arg)[0]), ATOM
        case Op("select", args):
            return call("where", *(_expr(arg)[0] for arg in args)), ATOM
        case Op(name, args):
            return _operation(name, args)


def _operation(name: str, args: tuple[Expr, ...]) -> tuple[Doc, int]:
    operands = [_expr(arg) for arg in args]
    return operation(name, operands, name == "neg" and isinstance(args[0], Const) and operands[0][1] == ATOM)


def _negative(value: float | int) -> bool:
    return str(value).startswith("-")
