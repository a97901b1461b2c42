"""Programs as text in the style of the paper's Figure 1: loops and stores, with a stable node id per line.

Iteration variables are replaced by their bindings; tags are printed as `xmax⟨j⟩[i]`, reductions as `xsum[i] += …`.
`printer` prints all facts of a program, `tvm_compat.tvmscript` the program as TVMScript.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import (
    Block,
    Cast,
    Const,
    Expr,
    Load,
    Loop,
    Op,
    Previous,
    Program,
    Stmt,
    Store,
    Var,
    children,
    rebuild,
)
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.tree import blocks, blocks_under, grouped
from neptune_lab.loop_ir.walks import loads, substitute
from neptune_lab.scalar_ops import ATOM, symbol

WIDTH = 92


@dataclass(frozen=True, slots=True)
class RenderedLine:
    """One line: `node` is a stable id, `origin` the stage of the definition that it came from."""

    node: str
    text: str
    origin: str
    kind: str


def _number(value: float | int | bool) -> str:
    if isinstance(value, bool | int):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _indices(indices: tuple[Expr, ...]) -> str:
    return ", ".join(expression(i) for i in indices)


def _access(buffer: str, indices: tuple[Expr, ...], tagged: frozenset[str], previous: bool = False) -> str:
    if buffer not in tagged:
        return f"{buffer}[{_indices(indices)}]"
    tag = expression(indices[0]) + ("-1" if previous else "")
    return f"{buffer}⟨{tag}⟩[{_indices(indices[1:])}]"


def _parts(expr: Expr, tagged: frozenset[str]) -> tuple[int, str]:
    """Binding strength and text."""
    match expr:
        case Const(value):
            return ATOM, _number(value)
        case Var(name):
            return ATOM, name
        case Load(buffer, indices):
            return ATOM, _access(buffer, indices, tagged)
        case Previous(buffer, indices):
            return ATOM, _access(buffer, indices, tagged | {buffer}, previous=True)
        case Cast(dtype, arg):
            return ATOM, f"{dtype}({expression(arg, tagged)})"
        case Op("select", (c, a, b)):
            return ATOM, f"where({', '.join(expression(x, tagged) for x in (c, a, b))})"
        case Op(name, args) if symbol(name)[0]:
            sign, level = symbol(name)
            (la, ta), *others = (_parts(a, tagged) for a in args)
            if not others:
                return level, sign + (ta if la > level or (la == level and name == "not") else f"({ta})")
            left = ta if la >= level else f"({ta})"
            (lb, tb) = others[0]
            right = tb if lb > level or (lb == level and name in ("add", "and", "or")) else f"({tb})"
            return level, f"{left} {sign} {right}"
        case Op(name, args):
            return ATOM, f"{name}({', '.join(expression(a, tagged) for a in args)})"
    raise AssertionError(expr)


def expression(expr: Expr, tagged: frozenset[str] = frozenset()) -> str:
    """An expression as text; `tagged` names the scan buffers."""
    return _parts(expr, tagged)[1]


def _short(expr: Expr, extents: dict[str, int]) -> Expr:
    """The expression with all of its indices simplified."""
    match expr:
        case Load(buffer, indices):
            return Load(buffer, tuple(simplify(i, extents) for i in indices))
        case Previous(buffer, indices, initial):
            return Previous(buffer, tuple(simplify(i, extents) for i in indices), initial)
    return rebuild(expr, tuple(_short(c, extents) for c in children(expr)))


def _wrapped(expr: Expr, pad: str, tagged: frozenset[str], *, split: bool = True) -> list[str]:
    """An arithmetic expression over several lines: one operand per line; the left one is split again if it is too
    long."""
    level, text = _parts(expr, tagged)
    match expr:
        case Op("add" | "sub" | "mul" | "div" as name, (a, b)) if split or len(pad + text) > WIDTH:
            lb, tb = _parts(b, tagged)
            right = tb if lb > level or (lb == level and name == "add") else f"({tb})"
            la, ta = _parts(a, tagged)
            left = _wrapped(a, pad, tagged, split=False) if la >= level else [f"{pad}({ta})"]
            return [*left, f"{pad}{symbol(name)[0]} {right}"]
    return [f"{pad}{text}"]


@lru_cache(maxsize=8192)
def _store_text(block: Block, loops: tuple[tuple[str, int], ...], tagged: frozenset[str], pad: str) -> tuple[str, ...]:
    """The lines of a block's store. Most steps leave most blocks as they are, and a record has all steps."""
    env = {it.name: it.binding for it in block.iters}
    return tuple(_store_lines(block.body, env, dict(loops), tagged, pad))


def _store_lines(
    store: Store, env: dict[str, Expr], extents: dict[str, int], tagged: frozenset[str], pad: str
) -> list[str]:
    """The lines of a store: one, or several if it is too long."""
    indices = tuple(simplify(substitute(i, env), extents) for i in store.indices)
    value = _short(substitute(store.value, env), extents)
    target = _access(store.buffer, indices, tagged)
    sign = "="
    match value:
        case Op("add", (Load(buffer, index), term)) if buffer == store.buffer and index == indices:
            sign, value = "+=", term
    text = f"{pad}{target} {sign} {expression(value, tagged)}"
    if len(text) <= WIDTH:
        return [text]
    match value:
        case Op("add" | "sub" | "mul" | "div", _):
            first, *rest = _wrapped(value, f"{pad}    ", tagged)
            return [f"{pad}{target} {sign} (", first, *rest[:-1], f"{rest[-1]})"]
        case Op("select", args):
            lines = [f"{pad}{target} {sign} where("]
            lines += [f"{pad}    {expression(x, tagged)}{',' if n < 2 else ')'}" for n, x in enumerate(args)]
            return lines
        case Op(name, args):
            inner = ", ".join(expression(x, tagged) for x in args)
            return [f"{pad}{target} {sign} {name}(", f"{pad}    {inner})"]
    return [text]


def loop_id(loops: tuple[Loop, ...]) -> str:
    """Stable id of the innermost of `loops`: its path of variables, and the first block in it."""
    path = ".".join(loop.var for loop in loops)
    first = blocks_under(loops[-1])
    return f"loop:{path}@{first[0].name}" if first else f"loop:{path}"


def render(program: Program) -> tuple[RenderedLine, ...]:
    """The program as lines of text."""
    tagged = frozenset(b.name for b in program.buffers if b.tagged)
    return tuple([line for stmt in program.body for line in nest_lines(stmt, tagged & touched(stmt))])


@lru_cache(maxsize=4096)
def touched(stmt: Stmt) -> frozenset[str]:
    """The buffers that a statement reads or writes."""
    found = set()
    for block in blocks_under(stmt):
        found.add(block.writes)
        found.update(read.buffer for read in loads(block.body.value))
    return frozenset(found)


@lru_cache(maxsize=4096)
def nest_lines(stmt: Stmt, tagged: frozenset[str]) -> tuple[RenderedLine, ...]:
    """The lines of one statement of a program's body: most steps leave most of them as they are.

    Args:
        stmt: the statement.
        tagged: which of the buffers that it touches are scan buffers.
    """
    lines: list[RenderedLine] = []

    def visit(stmt: Stmt, depth: int, loops: tuple[Loop, ...]) -> None:
        pad = "    " * depth
        if isinstance(stmt, Block):
            block_lines(stmt, depth, loops)
            return
        group = grouped(stmt)
        around = (*loops, *group)
        under = blocks_under(stmt)
        origin = under[0].origin if len(under) == 1 else ""
        note = "".join(f"  # {name} = {value}" for name, value in stmt.annotations)
        if stmt.kind != "serial":
            note += f"  # {stmt.kind}"
        if len(group) == 1:
            text = f"{pad}for {stmt.var} in range({stmt.extent}):{note}"
        else:
            names, extents = ", ".join(g.var for g in group), ", ".join(str(g.extent) for g in group)
            text = f"{pad}for {names} in grid({extents}):{note}"
        lines.append(RenderedLine(loop_id(around), text, origin, "loop"))
        for inner_stmt in group[-1].body:
            visit(inner_stmt, depth + 1, around)

    def block_lines(block: Block, depth: int, loops: tuple[Loop, ...]) -> None:
        pad = "    " * depth
        doubt = "" if block.unproved is None else ": its repair is not proved"
        lines.append(RenderedLine(f"name:{block.name}", f"{pad}# {block.name}{doubt}", block.origin, "comment"))
        if block.predicates:
            condition = " and ".join(expression(p) for p in block.predicates)
            lines.append(RenderedLine(f"guard:{block.name}", f"{pad}if {condition}:", block.origin, "guard"))
            pad += "    "
        for text in _store_text(block, tuple((x.var, x.extent) for x in loops), tagged, pad):
            lines.append(RenderedLine(f"store:{block.name}", text, block.origin, "store"))

    visit(stmt, 0, ())
    return tuple(lines)


def as_figure(program: Program) -> str:
    """The program as one text in the style of the paper's figures; `printer.to_text` prints all facts."""
    return "\n".join(line.text for line in render(program)) + "\n"


def definition(program: Program) -> tuple[RenderedLine, ...]:
    """A definition, one line per stage: `xmax[i] = max(inp[i, j] for j in range(4))`."""
    result = []
    for block in blocks(program):
        target = f"{block.writes}[{_indices(block.body.indices)}]"
        try:
            reduction = match_reduction(block)
            over = " ".join(f"for {it.name} in range({it.extent})" for it in block.iters if it.kind == "reduce")
            text = f"{target} = {reduction.reducer}({expression(reduction.term)} {over})"
        except ScheduleError:
            text = f"{target} = {expression(block.body.value)}"
        result.append(RenderedLine(f"def:{block.name}", text, block.origin, "definition"))
    return tuple(result)
