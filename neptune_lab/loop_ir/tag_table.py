"""A recorded run as a table, in the manner of the paper's Figure 1 (d) to (f): elements down, iterations across.

A cell holds the value that an element has after one iteration of the rolling loop, which tags the values were seen
at that went into it, and, beside a run of the unscheduled program, what that has for the same part of the data.

A repaired value stands relative to its producers as they are *now*: after k iterations it is what the unscheduled
program makes of the first k alone (the paper's invariant, Def. 4.2). A proved repair keeps this. Of one that is not
proved every cell is held against it: the program is run on the first k, and the first cell that departs is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import isclose, isfinite, isnan
from typing import Any, Literal, TypeAlias

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Loop, substitute
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.tag_events import Index, Number, Read, State, Tag, Write, origin
from neptune_lab.loop_ir.tags import TagTrace, values_of_part
from neptune_lab.loop_ir.tree import blocks, nearest, statements
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import is_integer

Sign: TypeAlias = Literal["", "right", "early", "repaired", "wrong"]

SIGNS: dict[Sign, str] = {"": "", "right": "✓", "early": "!", "repaired": "↻", "wrong": "✗"}
LEGEND: dict[Sign, str] = {
    "wrong": "not what it should hold at this iteration, by a repair that is not proved",
    "early": "read too early: the value it depends on changes later",
    "repaired": "read before it was complete, and made good by a repair",
    "right": "as in the unscheduled program after the same part of the data",
}


@dataclass(frozen=True, slots=True)
class SeenRead:
    """A read that went into a cell: `text` such as "xmax⟨0⟩", and its state."""

    text: str
    state: State


@dataclass(frozen=True, slots=True)
class Cell:
    """An element after one iteration.

    Args:
        value: what it holds.
        tag: where the loops stood at the last write.
        sign: "wrong" where a repair that is not proved did not carry it; else "early" where any read came too early,
            else "repaired" where any was repaired, else "right" where the value is the unscheduled program's.
        reads: of other stages' results, each once.
        should_be: what the unscheduled program has, of a repair that is not proved for the iterations so far alone;
            None where there is nothing to compare with.
        right: whether the value is that, to rounding.
    """

    value: Number
    tag: Tag
    sign: Sign
    reads: tuple[SeenRead, ...]
    should_be: Number | None = None
    right: bool = False

    @property
    def signs(self) -> str:
        """The sign of the reads, and ✓ where the value is right."""
        return " ".join(dict.fromkeys([SIGNS[self.sign], SIGNS["right"] if self.right else ""])).strip()


@dataclass(frozen=True, slots=True)
class TagRow:
    """An element of a tensor, `label` as "xmax[0]" or "xexp[0, j]", or the repair term of one ("repair")."""

    label: str
    buffer: str
    block: str
    kind: Literal["value", "repair"]
    cells: tuple[Cell | None, ...]

    @property
    def first_wrong(self) -> int | None:
        """The first column in which a repair that is not proved did not carry the value; None where it always did."""
        return next((n for n, cell in enumerate(self.cells) if cell is not None and cell.sign == "wrong"), None)


@dataclass(frozen=True, slots=True)
class FirstWrong:
    """Where an element first holds something else than it should, in a column called `column`, such as "j = 2"."""

    label: str
    column: str
    value: Number
    should_be: Number

    def __str__(self) -> str:
        held = f"{_number(self.value)}, should be {_number(self.should_be)}"
        return f"{self.label}: first wrong at {self.column}: {held}"


@dataclass(frozen=True, slots=True)
class TagTable:
    """The table.

    Args:
        hidden: how many rows were left out for length.
        first_wrong: the elements, of all rows, that a repair which is not proved does not carry.
    """

    title: str
    rolling: str
    columns: tuple[str, ...]
    rows: tuple[TagRow, ...]
    hidden: int = 0
    first_wrong: tuple[FirstWrong, ...] = ()

    def row(self, label: str, kind: Literal["value", "repair"] = "value") -> TagRow:
        """The row with a label; ScheduleError with the nearest labels otherwise."""
        for row in self.rows:
            if (row.label, row.kind) == (label, kind):
                return row
        labels = [r.label for r in self.rows if r.kind == kind]
        raise ScheduleError(f"the tag table has no row {label!r}", help=nearest(label, labels, "rows"))

    def wrong_notes(self) -> tuple[str, ...]:
        """A sentence for each of the first few elements of `first_wrong`."""
        notes = [f"{SIGNS['wrong']} {found}" for found in self.first_wrong[:_MOST_NOTES]]
        more = len(self.first_wrong) - _MOST_NOTES
        if more > 0:
            notes.append(f"{SIGNS['wrong']} {more} more {'element is' if more == 1 else 'elements are'} wrong")
        return tuple(notes)

    def to_text(self) -> str:
        """The table as plain text, two lines a row: values and signs, then reads and expected values."""
        grid = [["", *self.columns]]
        for row in self.rows:
            grid.append([_name(row), *(_value_text(cell) for cell in row.cells)])
            below = [_below(cell) for cell in row.cells]
            for n in range(max(len(lines) for lines in below)):
                grid.append(["", *(lines[n] if n < len(lines) else "" for lines in below)])
        widths = [max(len(line[n]) for line in grid) for n in range(len(grid[0]))]
        lines = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in grid]
        return "\n".join([self.title, *lines, *self._notes()]) + "\n"

    def to_html(self) -> str:
        """The table as a fragment of HTML, style included; colours go with signs and follow light and dark themes."""
        head = "".join(f'<th scope="col">{escape(c)}</th>' for c in self.columns)
        body = []
        for row in self.rows:
            cells = "".join(_cell_html(cell) for cell in row.cells)
            body.append(f'<tr class="{row.kind}"><th scope="row">{escape(_name(row))}</th>{cells}</tr>')
        notes = "<br>".join(escape(note) for note in self._notes())
        style = _STYLE + (_WRONG_STYLE if self.first_wrong else "")
        return (
            f'<div class="nl-tags"><style>{style}</style><table><caption>{escape(self.title)}</caption>'
            f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table><p>{notes}</p></div>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The text beside the HTML, in a notebook, and what IPython shows in a terminal."""
        printer.text(self.to_text())

    def __str__(self) -> str:
        return self.to_text()

    def _notes(self) -> list[str]:
        """The legend of the signs that occur, and what was left out."""
        cells = [cell for row in self.rows for cell in row.cells if cell is not None]
        used = {cell.sign for cell in cells} | ({"right"} if any(cell.right for cell in cells) else set())
        notes = [*self.wrong_notes(), *(f"{SIGNS[sign]} {text}" for sign, text in LEGEND.items() if sign in used)]
        differ = {cell.sign == "wrong" for cell in cells if cell.should_be is not None and not cell.right}
        if False in differ:
            notes.append("≠ what the unscheduled program has there")
        if True in differ:
            notes.append(
                f"≠ beside {SIGNS['wrong']}: the reduction of the iterations so far, its producers as they are now"
            )
        return notes + ([f"{self.hidden} more rows are not shown"] if self.hidden else [])


def materialized_example(
    trace: TagTrace,
    reference: TagTrace | None = None,
    *,
    rolling: str,
    where: dict[str, int] | None = None,
    buffers: tuple[str, ...] | None = None,
    max_rows: int = 60,
) -> TagTable:
    """The tag table of a run.

    Args:
        trace: the run.
        reference: a run of the unscheduled program on the same inputs, for the values that should be.
        rolling: variable of the loop whose iterations are the columns.
        where: values of iteration variables, such as {"i": 0}: other elements are left out.
        buffers: the tensors to show; all computed ones where None.
        max_rows: rows beyond are counted, and not shown.
    """
    extents = {s.var: s.extent for _, s, _ in statements(trace.program) if isinstance(s, Loop)}
    if not isinstance(rolling, str) or rolling not in extents:
        raise ScheduleError(
            f"{trace.program.name} has no loop {shown(rolling)}", help=nearest(rolling, list(extents), "loops")
        )
    if where is not None and not (isinstance(where, dict) and all(is_integer(n) for n in where.values())):
        raise ScheduleError(f"where={shown(where)}: expected an integer per variable", help="such as where={'i': 0}")
    rows = _Rows(trace, reference, rolling, extents, where or {})
    for write in trace.events:
        if not write.init and (buffers is None or write.buffer in buffers):
            rows.add(write)
    return rows.finish(max_rows)


class _Rows:
    """The rows under construction: for each, the writes of each column."""

    def __init__(
        self,
        trace: TagTrace,
        reference: TagTrace | None,
        rolling: str,
        extents: dict[str, int],
        where: dict[str, int],
    ) -> None:
        self.trace, self.rolling, self.extents, self.where = trace, rolling, extents, where
        self.blocks = {b.name: b for b in blocks(trace.program)}
        self.tagged = {b.name for b in trace.program.buffers if b.tagged}
        self.found: dict[tuple[str, str], dict[int | str, list[Write]]] = {}
        self.expected = _expected(reference)
        self.reference = reference
        self.partial = {b.writes for b in self.blocks.values() if b.role in PARTIAL}
        self.parts: dict[int, dict[str, np.ndarray]] = {}
        self.iterations = extents[rolling]
        self.first = min((w.step for w in trace.events if rolling in dict(w.loops)), default=0)
        self.tolerance = max(_TOLERANCES.get(b.dtype, 0.0) for b in trace.program.buffers)
        self.columns_of: dict[tuple[str, Index], set[int]] = {}
        for write in trace.events:
            if not write.init and rolling in dict(write.loops):
                self.columns_of.setdefault(self.element(write), set()).add(dict(write.loops)[rolling])

    def element(self, write: Write) -> tuple[str, Index]:
        """The element that a write belongs to, its tag aside."""
        return write.buffer, write.index[1:] if write.buffer in self.tagged else write.index

    def add(self, write: Write) -> None:
        block, loops = self.blocks[write.block], dict(write.loops)
        point = {it.name: substitute(it.binding, {v: Const(n) for v, n in loops.items()}) for it in block.iters}
        for name, wanted in self.where.items():
            if name in point and _is_spatial(block, name) and simplify(point[name], {}) != Const(wanted):
                return
        row = self.found.setdefault((write.buffer, self.label(block, loops)), {})
        column: int | str = "after"
        if self.rolling in loops:
            column = loops[self.rolling]
        elif write.step < self.first or block.role is Role.INITIAL:
            column = "before"
        row.setdefault(column, []).append(write)

    def label(self, block: Block, loops: dict[str, int]) -> str:
        """The element's name, with what runs along the rolling loop left symbolic."""
        bindings = {it.name: it.binding for it in block.iters}
        fixed: dict[str, Expr] = {v: Const(n) for v, n in loops.items() if v != self.rolling}
        indices = block.body.indices[1:] if block.writes in self.tagged else block.body.indices
        shown = []
        for index in indices:
            shown.append(expression(simplify(substitute(substitute(index, bindings), fixed), self.extents)))
        return f"{block.writes}[{', '.join(shown)}]" if shown else block.writes

    def finish(self, max_rows: int) -> TagTable:
        inside = [*range(self.iterations)]
        outside = [c for c in ("before", "after") if any(c in row for row in self.found.values())]
        columns: list[int | str] = [*(c for c in outside if c == "before"), *inside]
        columns += [c for c in outside if c == "after"]
        rows: list[TagRow] = []
        for (buffer, label), row in sorted(self.found.items(), key=lambda found: _first(found[1])):
            last = max((writes[-1] for writes in row.values()), key=lambda w: w.step)
            repairs = [_last_repair(row.get(c, [])) for c in columns]
            if any(w is not None for w in repairs):
                cells = tuple(None if w is None else self.repair_cell(w) for w in repairs)
                rows.append(TagRow(label, buffer, last.block, "repair", cells))
            cells = tuple(self.cell(c, row[c]) if c in row else None for c in columns)
            rows.append(TagRow(label, buffer, last.block, "value", cells))
        names = tuple(f"{self.rolling} = {c}" if isinstance(c, int) else f"{c} {self.rolling}" for c in columns)
        title = f"{self.trace.program.name}: values at every iteration of {self.rolling}"
        wrong = tuple(found for row in rows if (found := _first_wrong(row, names)) is not None)
        return TagTable(title, self.rolling, names, _shortened(rows, max_rows), max(0, len(rows) - max_rows), wrong)

    def cell(self, column: int | str, writes: list[Write]) -> Cell:
        last = writes[-1]
        block = self.blocks[last.block]
        reads = [r for w in writes for r in w.reads]
        should_be, scale = self.should_be(block, column, last)
        right = should_be is not None and _close(last.value, should_be, self.tolerance, scale)
        states = {read.state for read in reads}
        if should_be is not None and not right and block.unproved is not None:
            return Cell(last.value, last.loops, "wrong", self.seen(reads), should_be, False)
        sign: Sign = "early" if "early" in states else "repaired" if "repaired" in states else "right" if right else ""
        return Cell(last.value, last.loops, sign, self.seen(reads), should_be, right)

    def repair_cell(self, write: Write) -> Cell:
        assert write.repair is not None
        reads = list(write.repair.reads)
        sign: Sign = "early" if "early" in {read.state for read in reads} else "repaired"
        return Cell(write.repair.value, write.loops, sign, self.seen(reads))

    def seen(self, reads: list[Read]) -> tuple[SeenRead, ...]:
        """The reads of other stages, each once, by tensor and tag."""
        found: dict[SeenRead, None] = {}
        for read in reads:
            if read.state == "carried":
                continue
            tag: int | str | None = "start"
            if read.written_at is not None and not self.starts(write := self.trace.events[read.written_at]):
                tag = dict(write.loops).get(self.rolling)
            found[SeenRead(read.buffer if tag is None else f"{read.buffer}⟨{tag}⟩", read.state)] = None
        return tuple(found)

    def starts(self, write: Write) -> bool:
        """Whether a write gives a reduction its start value."""
        return write.init or self.blocks[write.block].role is Role.INITIAL

    def should_be(self, block: Block, column: int | str, write: Write) -> tuple[Number | None, float]:
        """The unscheduled program's value of the element after the same share of its reduction, and its largest."""
        _, index = element = self.element(write)
        prefix = self.expected.get((origin(block), index))
        # Sums that a vector repair adds, and how far their reference moves, are nowhere in the unscheduled program.
        if block.companion_of or block.role in (*PARTIAL, Role.INITIAL) or not prefix:
            return None, 0.0
        scale = max((abs(v) for v in prefix if isfinite(v)), default=0.0)
        if block.unproved is not None and isinstance(column, int) and self.moves(write):
            return self.so_far(block, column, index), scale
        if isinstance(column, str) or len(self.columns_of.get(element, ())) < 2:
            return prefix[-1], scale
        share = self.terms_each.get(origin(block), -(-len(prefix) // self.iterations))
        return prefix[min((column + 1) * share, len(prefix)) - 1], scale

    def moves(self, write: Write) -> bool:
        """Whether a producer that went into a write, by itself or by a stage between, changes in a later iteration.

        Local parts are stages between: they change with every iteration, and that says nothing.
        """
        for read in write.reads:
            if read.buffer == write.buffer:
                continue
            if read.state in ("early", "repaired") and read.buffer not in self.partial:
                return True
            if read.written_at is not None and self.moves(self.trace.events[read.written_at]):
                return True
        return False

    def so_far(self, block: Block, column: int, index: Index) -> Number | None:
        """What the unscheduled program has for the iterations up to a column alone; None where that is not a number."""
        assert self.reference is not None
        if column not in self.parts:
            inputs = {name: self.reference.values[name] for name in self.reference.program.inputs}
            terms = {
                b.name: (column + 1) * self.terms_each[origin(b)]
                for b in blocks(self.reference.program)
                if b.is_reduction and origin(b) in self.terms_each
            }
            self.parts[column] = values_of_part(self.reference.program, inputs, terms)
        stage = next(b for b in blocks(self.reference.program) if origin(b) == origin(block))
        value = self.parts[column][stage.writes][index].item()
        return value if isfinite(value) else None

    @cached_property
    def terms_each(self) -> dict[str, int]:
        """For each stage that rolls here, how many terms one iteration brings an element."""
        folded: dict[str, Counter[tuple[str, Index]]] = {}
        rolls: set[str] = set()
        for write in self.trace.events:
            at = dict(write.loops).get(self.rolling)
            if at is None or write.init:
                continue
            name = origin(self.blocks[write.block])
            if at == 0:  # of a stage's own block and its local ones, the one that takes the terms writes most often
                folded.setdefault(name, Counter())[self.element(write)] += 1
            if len(self.columns_of[self.element(write)]) > 1:
                rolls.add(name)
        return {name: max(counts.values()) for name, counts in folded.items() if name in rolls}


def _first_wrong(row: TagRow, columns: tuple[str, ...]) -> FirstWrong | None:
    n = row.first_wrong
    cell = None if n is None else row.cells[n]
    if n is None or cell is None or cell.should_be is None:
        return None
    return FirstWrong(row.label, columns[n], cell.value, cell.should_be)


def _shortened(rows: list[TagRow], most: int) -> tuple[TagRow, ...]:
    """The first rows; those of elements that are wrong, and of their repairs, go before others."""
    wrong = {row.label for row in rows if row.first_wrong is not None}
    late = [n for n, row in enumerate(rows) if n >= most and row.label in wrong][:most]
    return tuple(rows[n] for n in (*range(min(most, len(rows)) - len(late)), *late))


def _is_spatial(block: Block, name: str) -> bool:
    """Whether the block's iteration variable `name` picks an element."""
    return block.iter(name).kind == "spatial"


def _expected(reference: TagTrace | None) -> dict[tuple[str, Index], list[Number]]:
    """For each stage and element of the unscheduled program, its values in order."""
    found: dict[tuple[str, Index], list[Number]] = {}
    if reference is not None:
        origins = {b.name: origin(b) for b in blocks(reference.program)}
        for write in reference.events:
            if not write.init:
                found.setdefault((origins[write.block], write.index), []).append(write.value)
    return found


def _last_repair(writes: list[Write]) -> Write | None:
    return next((w for w in reversed(writes) if w.repair is not None), None)


def _first(row: dict[int | str, list[Write]]) -> int:
    """Step of a row's first write in the rolling loop, or of its first one where there is none."""
    inside = [writes[0].step for column, writes in row.items() if isinstance(column, int)]
    return min(inside or [writes[0].step for writes in row.values()])


_MOST_NOTES = 6

# Rounding that a short chain of stages in the dtype may leave, relative to the values.
_TOLERANCES = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}


def _close(a: Number, b: Number, tolerance: float, scale: float) -> bool:
    """Equal to rounding, on the scale of the element's values; NaN is NaN."""
    return (isnan(a) and isnan(b)) or isclose(a, b, rel_tol=tolerance, abs_tol=tolerance * scale)


# -- texts -------------------------------------------------------------------------------------------------


def _name(row: TagRow) -> str:
    return f"repair of {row.label}" if row.kind == "repair" else row.label


def _number(value: Number) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _value_text(cell: Cell | None) -> str:
    return "" if cell is None else f"{_number(cell.value)} {cell.signs}".rstrip()


def _read_text(read: SeenRead) -> str:
    sign = {"early": " !", "repaired": " ↻"}.get(read.state, "")
    return f"← {read.text}{sign}"


def _below(cell: Cell | None) -> list[str]:
    """The lines under a value: what it saw, and what it should be where it is not."""
    if cell is None:
        return []
    wrong = [] if cell.should_be is None or cell.right else [f"≠ {_number(cell.should_be)}"]
    return [_read_text(read) for read in cell.reads] + wrong


def _cell_html(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    lines = [f"<b>{escape(_number(cell.value))}</b> <span>{escape(cell.signs)}</span>"]
    lines += [f'<small class="{read.state}">{escape(_read_text(read))}</small>' for read in cell.reads]
    if cell.should_be is not None and not cell.right:
        lines.append(f"<small>≠ {escape(_number(cell.should_be))}</small>")
    spoken = LEGEND.get(cell.sign, "")
    at = ", ".join(f"{var} = {value}" for var, value in cell.tag)
    title = escape(f"{at}: {spoken}" if spoken else at, quote=True)
    return f'<td class="{cell.sign}" title="{title}">{"<br>".join(lines)}</td>'


_WRONG_STYLE = (
    ".nl-tags table tr td.wrong{background-color:rgba(210,30,30,.22);outline:2px solid rgba(210,30,30,.7);"
    "outline-offset:-2px}"
)
_STYLE = (
    ".nl-tags{overflow-x:auto;font-size:13px}"
    ".nl-tags table{border-collapse:collapse;color:inherit;font-family:ui-monospace,monospace}"
    ".nl-tags caption{text-align:left;padding:4px 0;font-family:sans-serif}"
    ".nl-tags table tr th,.nl-tags table tr td{border:1px solid rgba(128,128,128,.4);padding:3px 8px;"
    "text-align:left;vertical-align:top;color:currentColor;background:none}"
    ".nl-tags tr.repair th{font-style:italic}"
    ".nl-tags table tr td.early{background-color:rgba(230,110,0,.22)}"
    ".nl-tags table tr td.repaired{background-color:rgba(0,150,90,.18)}"
    ".nl-tags table tr td.right{background-color:rgba(50,120,230,.14)}"
    ".nl-tags small{opacity:.85;white-space:nowrap}"
    ".nl-tags small.early{border-bottom:1px solid rgba(230,110,0,.9)}"
    ".nl-tags small.repaired{border-bottom:1px solid rgba(0,150,90,.9)}"
    ".nl-tags p{margin:4px 0;font-family:sans-serif}"
)
