"""The tag table of a recorded run, as in the paper's Figure 1 (d) to (f): elements down, iterations across.

A cell holds the value of an element after one iteration of the rolling loop, the tags of the values that it was
computed from, and, if there is a reference, the value of the unscheduled program for the same part of the data.
`materialized_example` makes the table of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, Literal, TypeAlias

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.tag_events import Number, State, Tag
from neptune_lab.loop_ir.tree import nearest

Sign: TypeAlias = Literal["", "right", "early", "repaired", "wrong"]

SIGNS: dict[Sign, str] = {"": "", "right": "✓", "early": "!", "repaired": "↻", "wrong": "✗"}
LEGEND: dict[Sign, str] = {
    "wrong": "not what it should hold at this iteration, by a repair that is not proved",
    "early": "read too early: the value it depends on changes later",
    "repaired": "read before it was complete, and corrected by a repair",
    "right": "as in the unscheduled program after the same part of the data",
}


@dataclass(frozen=True, slots=True)
class SeenRead:
    """A read that a cell was computed from: `text` such as "xmax⟨0⟩", and its state."""

    text: str
    state: State


@dataclass(frozen=True, slots=True)
class Cell:
    """An element after one iteration.

    Args:
        value: its value.
        tag: the values of the loops at the last write.
        sign: "wrong" if an unproved repair gave another value than expected; else "early" if any read was early; else
            "repaired" if any was repaired; else "right" if the value is as expected; else "".
        reads: of other stages' results, each once.
        should_be: the unscheduled program's value (for an unproved repair, of the iterations so far alone); None if
            there is nothing to compare with.
        right: whether the value equals `should_be` to rounding.
    """

    value: Number
    tag: Tag
    sign: Sign
    reads: tuple[SeenRead, ...]
    should_be: Number | None = None
    right: bool = False

    @property
    def signs(self) -> str:
        """The sign of the reads, and ✓ if the value is right."""
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
        """The first column in which an unproved repair gave a wrong value; None if there is none."""
        return next((n for n, cell in enumerate(self.cells) if cell is not None and cell.sign == "wrong"), None)


@dataclass(frozen=True, slots=True)
class FirstWrong:
    """The first wrong value of an element; `column` is the name of the column, such as "j = 2"."""

    label: str
    column: str
    value: Number
    should_be: Number

    def __str__(self) -> str:
        digits = digits_apart(self.value, self.should_be)
        held = f"{_number(self.value, digits)}, should be {_number(self.should_be, digits)}"
        return f"{self.label}: first wrong at {self.column}: {held}"


@dataclass(frozen=True, slots=True)
class TagTable:
    """Values of elements at every iteration.

    Args:
        title: of the table.
        rolling: variable of the loop whose iterations are the columns.
        columns: their names.
        rows: the rows shown.
        hidden: how many rows were left out because there are too many.
        first_wrong: the elements, of all rows, for which an unproved repair gave a wrong value.
    """

    title: str
    rolling: str
    columns: tuple[str, ...]
    rows: tuple[TagRow, ...]
    hidden: int = 0
    first_wrong: tuple[FirstWrong, ...] = ()

    def row(self, label: str, kind: Literal["value", "repair"] = "value") -> TagRow:
        """The row with a label.

        Raises:
            ScheduleError: there is none; `help` has the nearest labels.
        """
        for row in self.rows:
            if (row.label, row.kind) == (label, kind):
                return row
        labels = [r.label for r in self.rows if r.kind == kind]
        raise ScheduleError(f"the tag table has no row {label!r}", help=nearest(label, labels, "rows"))

    def wrong_notes(self) -> tuple[str, ...]:
        """A sentence for each of the first few elements of `first_wrong`."""
        notes = [f"{SIGNS['wrong']} {element}" for element in self.first_wrong[:_MOST_NOTES]]
        more = len(self.first_wrong) - _MOST_NOTES
        if more > 0:
            notes.append(f"{SIGNS['wrong']} {more} more {'element is' if more == 1 else 'elements are'} wrong")
        return tuple(notes)

    def to_text(self) -> str:
        """The table as plain text, two lines per row: values and signs, then reads and expected values."""
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
        """The plain-text form in notebooks, and the form that IPython shows in a terminal."""
        printer.text(self.to_text())

    def __str__(self) -> str:
        return self.to_text()

    def _notes(self) -> list[str]:
        """The legend of the signs that occur, and how many rows were left out."""
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


_MOST_NOTES = 6


def _name(row: TagRow) -> str:
    return f"repair of {row.label}" if row.kind == "repair" else row.label


def digits_apart(value: Number, other: Number | None, least: int = 4) -> int:
    """The significant digits that show two different numbers as different texts: `least`, or more.

    >>> digits_apart(3.368, 1.553), digits_apart(0.33341, 0.33338), digits_apart(1.0, None)
    (4, 5, 4)
    """
    if other is None:
        return least
    return next((n for n in range(least, 17) if f"{value:.{n}g}" != f"{other:.{n}g}"), 17)


def _number(value: Number, digits: int = 4) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def number_texts(cell: Cell) -> tuple[str, str | None]:
    """A cell's value, and what it should be if it is not right; if both are floats, their texts differ."""
    should_be = None if cell.right else cell.should_be
    digits = digits_apart(cell.value, should_be)
    return _number(cell.value, digits), None if should_be is None else _number(should_be, digits)


def _value_text(cell: Cell | None) -> str:
    return "" if cell is None else f"{number_texts(cell)[0]} {cell.signs}".rstrip()


def _read_text(read: SeenRead) -> str:
    sign = {"early": " !", "repaired": " ↻"}.get(read.state, "")
    return f"← {read.text}{sign}"


def _below(cell: Cell | None) -> list[str]:
    """The lines under a value: what was read, and the expected value if it differs."""
    if cell is None:
        return []
    should_be = number_texts(cell)[1]
    return [_read_text(read) for read in cell.reads] + ([] if should_be is None else [f"≠ {should_be}"])


def _cell_html(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    value, should_be = number_texts(cell)
    lines = [f"<b>{escape(value)}</b> <span>{escape(cell.signs)}</span>"]
    lines += [f'<small class="{read.state}">{escape(_read_text(read))}</small>' for read in cell.reads]
    if should_be is not None:
        lines.append(f"<small>≠ {escape(should_be)}</small>")
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
