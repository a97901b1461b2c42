"""Makes the tag table of a recorded run: the paper's materialized example (Figure 1 (d) to (f)).

A repaired value is what the unscheduled program computes from the iterations so far alone, with its producers at their
current values (the paper's invariant, Definition 4.2).  A proved repair keeps this.  If a repair is not proved, the
unscheduled program is run on the iterations so far, every cell is compared with it, and the first wrong one is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isclose, isfinite, isnan

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Loop
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.tag_events import Index, Number, Read, Write, origin
from neptune_lab.loop_ir.tag_table import Cell, FirstWrong, SeenRead, Sign, TagRow, TagTable
from neptune_lab.loop_ir.tags import TagTrace, values_of_part
from neptune_lab.loop_ir.tree import blocks, nearest, statements
from neptune_lab.loop_ir.walks import substitute
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import is_integer

# Rounding errors of a short chain of stages in the dtype, relative to the values.
_TOLERANCES = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}


def _close(a: Number, b: Number, tolerance: float, scale: float) -> bool:
    """Whether two values are equal to rounding, relative to the element's values; two NaNs are equal."""
    return (isnan(a) and isnan(b)) or isclose(a, b, rel_tol=tolerance, abs_tol=tolerance * scale)


def materialized_example(
    trace: TagTrace,
    reference: TagTrace | None = None,
    *,
    rolling: str,
    where: dict[str, int] | None = None,
    buffers: tuple[str, ...] | None = None,
    max_rows: int = 60,
) -> TagTable:
    """Makes the tag table of a run.

    Args:
        trace: the run.
        reference: a run of the unscheduled program on the same inputs, for the expected values; None: no comparison.
        rolling: variable of the loop whose iterations are the columns.
        where: values of iteration variables, such as {"i": 0}; other elements are left out.
        buffers: the tensors to show; None: all computed ones.
        max_rows: further rows are counted, but not shown.

    Raises:
        ScheduleError: the program has no such loop, or `where` is not a dictionary of iteration variables with a value
            that each takes.
    """
    extents = _extents(trace, rolling)
    if where is not None:
        _check_where(trace, where)
    rows = _Rows(trace, reference, rolling, extents, where or {})
    for write in trace.events:
        if not write.init and (buffers is None or write.buffer in buffers):
            rows.add(write)
    return rows.finish(max_rows)


def _check_where(trace: TagTrace, where: Mapping[str, int]) -> None:
    """ScheduleError if `where` leaves every element out, or none although it names one."""
    example = "such as where={'i': 0}"
    if not (isinstance(where, dict) and all(is_integer(n) for n in where.values())):
        raise ScheduleError(f"where={shown(where)}: expected an integer per variable", help=example)
    extents: dict[str, int] = {}
    for it in (it for b in blocks(trace.program) for it in b.iters if it.kind == "spatial"):
        extents[it.name] = max(it.extent, extents.get(it.name, 0))
    for name, value in where.items():
        if name not in extents:
            raise ScheduleError(
                f"where={shown(where)}: no element has an index {shown(name)}",
                help=nearest(name, list(extents), "indices of elements"),
            )
        if not 0 <= value < extents[name]:
            raise ScheduleError(
                f"where={shown(where)}: {name} is from 0 to {extents[name] - 1}, not {value}", help=example
            )


@dataclass(frozen=True, slots=True)
class Judged:
    """A write with its place in the tag table: `label` of its row, `column` by name, and the cell, which the last write
    of a row and column has."""

    write: Write
    label: str
    column: str
    cell: Cell | None


def judged_writes(trace: TagTrace, reference: TagTrace | None = None, *, rolling: str) -> tuple[Judged, ...]:
    """All writes of a run but for start values, in order, each with its place in the tag table.

    Args:
        trace, reference, rolling: as of `materialized_example`.

    Raises:
        ScheduleError: the program has no such loop.
    """
    rows = _Rows(trace, reference, rolling, _extents(trace, rolling), {})
    for write in trace.events:
        if not write.init:
            rows.add(write)
    found = []
    for (_, label), row in rows.writes.items():
        for column, writes in row.items():
            name, cell = rows.column_name(column), rows.cell(column, writes)
            found += [Judged(w, label, name, cell if w is writes[-1] else None) for w in writes]
    return tuple(sorted(found, key=lambda j: j.write.step))


def _extents(trace: TagTrace, rolling: str) -> dict[str, int]:
    """The extents of all loops; ScheduleError if `rolling` is none of them."""
    extents = {s.var: s.extent for _, s, _ in statements(trace.program) if isinstance(s, Loop)}
    if not isinstance(rolling, str) or rolling not in extents:
        raise ScheduleError(
            f"{trace.program.name} has no loop {shown(rolling)}", help=nearest(rolling, list(extents), "loops")
        )
    return extents


class _Rows:
    """The rows under construction: `writes` has the writes of each row, by column."""

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
        self.writes: dict[tuple[str, str], dict[int | str, list[Write]]] = {}
        self.expected = _expected(reference)
        self.reference = reference
        self.partial = {b.writes for b in self.blocks.values() if b.role in PARTIAL}
        self.parts: dict[int, dict[str, np.ndarray]] = {}
        self.iterations = extents[rolling]
        self.first = min((w.step for w in trace.events if rolling in dict(w.loops)), default=0)
        self.tolerance = max(_TOLERANCES.get(b.dtype, 0.0) for b in trace.program.buffers)
        self.columns_of: dict[tuple[str, Index], set[int]] = {}
        # Elements whose columns are not in the order of time: a loop around the rolling one comes back to them.
        self.again: set[tuple[str, Index]] = set()
        newest: dict[tuple[str, Index], int] = {}
        for write in trace.events:
            if not write.init and rolling in dict(write.loops):
                element, at = self.element(write), dict(write.loops)[rolling]
                self.columns_of.setdefault(element, set()).add(at)
                if at < newest.get(element, at):
                    self.again.add(element)
                newest[element] = at

    def element(self, write: Write) -> tuple[str, Index]:
        """The element that a write belongs to, without its tag."""
        return write.buffer, write.index[1:] if write.buffer in self.tagged else write.index

    def add(self, write: Write) -> None:
        block, loops = self.blocks[write.block], dict(write.loops)
        point = {it.name: substitute(it.binding, {v: Const(n) for v, n in loops.items()}) for it in block.iters}
        for name, wanted in self.where.items():
            if name in point and _is_spatial(block, name) and simplify(point[name], {}) != Const(wanted):
                return
        row = self.writes.setdefault((write.buffer, self.label(block, loops)), {})
        column: int | str = "after"
        if self.rolling in loops:
            column = loops[self.rolling]
        elif write.step < self.first or block.role is Role.INITIAL:
            column = "before"
        row.setdefault(column, []).append(write)

    def label(self, block: Block, loops: dict[str, int]) -> str:
        """The element's name; indices along the rolling loop stay symbolic."""
        bindings = {it.name: it.binding for it in block.iters}
        fixed: dict[str, Expr] = {v: Const(n) for v, n in loops.items() if v != self.rolling}
        indices = block.body.indices[1:] if block.writes in self.tagged else block.body.indices
        texts = [
            expression(simplify(substitute(substitute(index, bindings), fixed), self.extents)) for index in indices
        ]
        return f"{block.writes}[{', '.join(texts)}]" if texts else block.writes

    def finish(self, max_rows: int) -> TagTable:
        before, after = ([c] if any(c in row for row in self.writes.values()) else [] for c in ("before", "after"))
        columns: list[int | str] = [*before, *range(self.iterations), *after]
        rows: list[TagRow] = []
        for (buffer, label), row in sorted(self.writes.items(), key=lambda item: _first(item[1])):
            last = max((writes[-1] for writes in row.values()), key=lambda w: w.step)
            repairs = [_last_repair(row.get(c, [])) for c in columns]
            if any(w is not None for w in repairs):
                cells = tuple(None if w is None else self.repair_cell(w) for w in repairs)
                rows.append(TagRow(label, buffer, last.block, "repair", cells))
            cells = tuple(self.cell(c, row[c]) if c in row else None for c in columns)
            rows.append(TagRow(label, buffer, last.block, "value", cells))
        names = tuple(self.column_name(c) for c in columns)
        title = f"{self.trace.program.name}: values at every iteration of {self.rolling}"
        wrong = tuple(first for row in rows if (first := _first_wrong(row, names)) is not None)
        return TagTable(title, self.rolling, names, _shortened(rows, max_rows), max(0, len(rows) - max_rows), wrong)

    def column_name(self, column: int | str) -> str:
        return f"{self.rolling} = {column}" if isinstance(column, int) else f"{column} {self.rolling}"

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
        seen: dict[SeenRead, None] = {}
        for read in reads:
            if read.state == "carried":
                continue
            tag: int | str | None = "start"
            if read.written_at is not None and not self.starts(write := self.trace.events[read.written_at]):
                tag = dict(write.loops).get(self.rolling)
            seen[SeenRead(read.buffer if tag is None else f"{read.buffer}⟨{tag}⟩", read.state)] = None
        return tuple(seen)

    def starts(self, write: Write) -> bool:
        """Whether a write gives a reduction its start value."""
        return write.init or self.blocks[write.block].role is Role.INITIAL

    def should_be(self, block: Block, column: int | str, write: Write) -> tuple[Number | None, float]:
        """The unscheduled program's value of the element after the same share of its reduction, and the largest of
        these values in magnitude."""
        _, index = element = self.element(write)
        prefix = self.expected.get((origin(block), index))
        # The unscheduled program does not have the sums that a vector repair adds.
        if block.companion_of or block.role in (*PARTIAL, Role.INITIAL) or not prefix:
            return None, 0.0
        scale = max((abs(v) for v in prefix if isfinite(v)), default=0.0)
        if isinstance(column, int) and element in self.again:
            # What a column shows is of the last round; only the last of all has the same part of the data.
            return (prefix[-1] if column == self.iterations - 1 else None), scale
        if block.unproved is not None and isinstance(column, int) and self.moves(write):
            return self.so_far(block, column, index), scale
        if isinstance(column, str) or len(self.columns_of.get(element, ())) < 2:
            return prefix[-1], scale
        share = self.terms_each.get(origin(block), -(-len(prefix) // self.iterations))
        return prefix[min((column + 1) * share, len(prefix)) - 1], scale

    def moves(self, write: Write) -> bool:
        """Whether a producer that a write depends on, directly or through other stages, changes in a later iteration.

        Local parts do not count: they change in every iteration.
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
        """The unscheduled program's value for the iterations up to a column alone; None if it is not finite."""
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
        """For each stage inside the rolling loop, how many terms one iteration folds into an element."""
        folded: dict[str, Counter[tuple[str, Index]]] = {}
        rolls: set[str] = set()
        for write in self.trace.events:
            at = dict(write.loops).get(self.rolling)
            if at is None or write.init:
                continue
            name = origin(self.blocks[write.block])
            if at == 0:  # of a stage's blocks, the one that folds the terms writes most often
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
    """The first rows; rows of wrong elements and of their repairs take precedence."""
    wrong = {row.label for row in rows if row.first_wrong is not None}
    late = [n for n, row in enumerate(rows) if n >= most and row.label in wrong][:most]
    return tuple(rows[n] for n in (*range(min(most, len(rows)) - len(late)), *late))


def _is_spatial(block: Block, name: str) -> bool:
    """Whether the block's iteration variable `name` picks an element."""
    return block.iter(name).kind == "spatial"


def _expected(reference: TagTrace | None) -> dict[tuple[str, Index], list[Number]]:
    """For each stage and element of the unscheduled program, its values in order."""
    values: dict[tuple[str, Index], list[Number]] = {}
    if reference is not None:
        origins = {b.name: origin(b) for b in blocks(reference.program)}
        for write in reference.events:
            if not write.init:
                values.setdefault((origins[write.block], write.index), []).append(write.value)
    return values


def _last_repair(writes: list[Write]) -> Write | None:
    return next((w for w in reversed(writes) if w.repair is not None), None)


def _first(row: dict[int | str, list[Write]]) -> int:
    """Step of a row's first write in the rolling loop; if there is none, of its first write."""
    inside = [writes[0].step for column, writes in row.items() if isinstance(column, int)]
    return min(inside or [writes[0].step for writes in row.values()])
