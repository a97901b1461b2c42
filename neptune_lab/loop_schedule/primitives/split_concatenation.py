"""split_concatenation: reductions over a row and one more element fold the row, and then take the element."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Buffer, Const, Expr, Iter, Load, Op, Program, Store, Var, add
from neptune_lab.loop_ir.reduction import OPERATORS, match_reduction, reducer_of
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import loads, substitute, transform
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.definition.stages import elementwise, nest, new_name, renamed, stage, without_dead
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, Phase


@primitive(ours=True, makes="one", made="The stage that has the row without the element.", normalises=True)
def split_concatenation(program: Program, *, block: BlockName) -> Outcome:
    """Takes one more element at the end, or at the start, of a row out of what is computed along the row.

    before ⇒ after:
        for i, j: c[i, j] = where(j < 64, x[i, j], s[i])     for i, j: c_row[i, j] = x[i, j]
        for i, j: m[i] max= c[i, j]                       ⇒  for i, j: m_row[i] max= c_row[i, j]
                                                             for i: m[i] = max(m_row[i], s[i])

    A stage along the row becomes one without the element, which is computed where it is read.  A reduction along the
    row folds the row without the element, and a stage of the reduction's name adds it.

    Args:
        block: the stage that concatenates.

    Raises:
        ScheduleError: the stage is no concatenation of a row and one element, or a result has the row with the element.
    """
    split = _Split(program, _cut(stage(program, block)))
    result = split.done()
    cut = split.cut
    note = (
        f"{expression(cut.element)} is element {cut.position} of each row of {block}: "
        f"{', '.join(split.folds) or 'no reduction'} takes it after the row."
    )
    return Outcome(
        result, (Phase("split_concatenation", "row and element", note, result),), (split.made[block],), split.sources
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a row is cut.

    Args:
        block: the stage that concatenates.
        axis: the iteration along the row.
        length: of the row with the element.
        position: of the element: 0 or length - 1.
        row, element: the values of both, over the stage's iterations.
    """

    block: Block
    axis: str
    length: int
    position: int
    row: Expr
    element: Expr

    @property
    def first(self) -> int:
        """Where the row begins."""
        return 0 if self.position else 1


def _cut(block: Block) -> _Cut:
    match block.body.value:
        case Op("select", (Op("lt", (Var(axis), Const(int(end)))), before, after)) if Var(axis) in block.body.indices:
            length = block.iter(axis).extent
            if end == length - 1:
                return _Cut(block, axis, length, length - 1, before, substitute(after, {axis: Const(length - 1)}))
            if end == 1:
                return _Cut(block, axis, length, 0, after, substitute(before, {axis: Const(0)}))
    raise ScheduleError(
        f"stage {block.name!r} is no row with one more element at its end or start",
        node=block.name,
        help="name a stage such as where(j < 64, x[i, j], s[i]) for j below 65",
    )


@dataclass(slots=True)
class _Split:
    """The stages along the row, and what they compute for the element.

    Args:
        program: the program so far.
        cut: where the row is cut.
        made: the stage without the element, by the name of the stage that had it.
        folds: the reductions along the row.
        sources: as in `Outcome`.
    """

    program: Program
    cut: _Cut
    made: dict[str, str] = field(default_factory=dict)
    folds: list[str] = field(default_factory=list)
    sources: tuple[tuple[str, str], ...] = ()
    # For each buffer along the row: which of its dimensions is the row, and the value for the element over the others.
    _axes: dict[str, int] = field(default_factory=dict)
    _elements: dict[str, tuple[tuple[Expr, ...], Expr]] = field(default_factory=dict)

    def done(self) -> Program:
        """The program after the rewrite."""
        cut = self.cut
        self._split_map(cut.block, cut.axis, cut.row, cut.element)
        for old in tree.blocks(self.program):
            if any(read.buffer in self._axes for read in loads(old.body.value)) and old.name not in self.made.values():
                self._split(tree.find_block(self.program, old.name)[1])
        return without_dead(self.program)

    def _split(self, block: Block) -> None:
        """Rewrites a reader of a stage along the row."""
        along = {
            index.name
            for read in loads(block.body.value)
            if read.buffer in self._axes
            and isinstance(index := read.indices[self._axes[read.buffer]], Var)
            and block.iter(index.name).extent == self.cut.length
        }
        if len(along) > 1:
            raise ScheduleError(
                f"stage {block.name!r} combines every element of the row with every other",
                node=block.name,
                help="keep the concatenation as it is",
            )
        if not along:
            value = self._part(block, block.body.value, None, at_element=False)
            self._replace(block, [replace(block, body=replace(block.body, value=value))], [])
            return
        (axis,) = along
        if block.iter(axis).kind == "reduce":
            self._split_fold(block, axis)
        else:
            row = self._part(block, block.body.value, axis, at_element=False)
            if block.is_reduction:
                raise ScheduleError(
                    f"stage {block.name!r} reduces along another dimension for every element of the row",
                    node=block.name,
                    help="keep the concatenation as it is",
                )
            self._split_map(block, axis, row, self._part(block, block.body.value, axis, at_element=True))

    def _split_map(self, block: Block, axis: str, row: Expr, element: Expr) -> None:
        if block.writes in self.program.outputs:
            raise ScheduleError(
                f"the output {block.writes!r} has the row with the element", node=block.name, help="leave it as it is"
            )
        name = new_name(self.program, f"{block.name}_row")
        buffer = self.program.buffer(block.writes)
        place = block.body.indices.index(Var(axis))
        shape = (*buffer.shape[:place], self.cut.length - 1, *buffer.shape[place + 1 :])
        value = substitute(row, {axis: add(Var(axis), Const(self.cut.first))}) if block is self.cut.block else row
        iters = tuple(replace(it, extent=it.extent - 1) if it.name == axis else it for it in block.iters)
        new = Block(name, iters, Store(name, block.body.indices, self._simple(value, iters)), origin=name)
        self._axes[block.writes] = place
        self._elements[block.writes] = (block.body.indices, element)
        self.made[block.name] = name
        self.sources += ((name, block.name),)
        # The old stage stays until nothing reads it.
        self._replace(block, [block, new], [Buffer(name, shape, buffer.dtype)])

    def _split_fold(self, block: Block, axis: str) -> None:
        reduction = match_reduction(block)
        name = new_name(self.program, f"{block.name}_row")
        row = self._part(block, reduction.term, axis, at_element=False)
        element = self._part(block, reduction.term, axis, at_element=True)
        op = OPERATORS[str(reducer_of(block))]
        folded = renamed(block, name)
        iters = tuple(replace(it, extent=it.extent - 1) if it.name == axis else it for it in block.iters)
        own = Load(name, block.body.indices)
        spatial: list[Iter] = [it for it in block.iters if it.kind == "spatial"]
        if len(block.iters) - len(spatial) > 1:
            raise ScheduleError(
                f"stage {block.name!r} folds the row together with another dimension",
                node=block.name,
                help="keep the concatenation as it is",
            )
        body = Store(name, block.body.indices, Op(op, (own, self._simple(row, iters))))
        last = elementwise(block.name, spatial, Op(op, (own, element)))
        last = replace(last, body=Store(block.writes, block.body.indices, last.body.value))
        self.folds.append(block.name)
        self.sources += ((name, block.name),)
        buffer = replace(self.program.buffer(block.writes), name=name, scope="global")
        self._replace(block, [replace(folded, iters=iters, body=body), last], [buffer])

    def _part(self, block: Block, value: Expr, axis: str | None, *, at_element: bool) -> Expr:
        """A value that reads stages along the row, for the row or for the element.

        Formal statement: with j the iteration `axis` along the row, the row's part at j is `value` at j + first, and
        the element's is `value` at its position.  Every other read of such a stage is inside one of the two.
        """
        extents = {it.name: it.extent for it in block.iters}
        place: dict[str, Expr] = {}
        if axis is not None:
            place[axis] = Const(self.cut.position) if at_element else add(Var(axis), Const(self.cut.first))
            extents[axis] = self.cut.length - 1

        def rule(e: Expr) -> Expr:
            if not isinstance(e, Load) or e.buffer not in self._axes:
                return e
            n = self._axes[e.buffer]
            index = simplify(e.indices[n], extents)
            reach = bounds(index, extents)
            first, last = self.cut.first, self.cut.first + self.cut.length - 2
            if reach == (self.cut.position, self.cut.position):
                own, element = self._elements[e.buffer]
                others = zip(own[:n] + own[n + 1 :], e.indices[:n] + e.indices[n + 1 :], strict=True)
                return substitute(element, {o.name: i for o, i in others if isinstance(o, Var)})
            if reach is None or reach[0] < first or reach[1] > last:
                raise ScheduleError(
                    f"stage {block.name!r} reads {expression(e)}, of the row and the element",
                    node=block.name,
                    help="keep the concatenation as it is",
                )
            moved = _minus(index, first)
            return Load(self.made[self._stage_of(e.buffer)], (*e.indices[:n], moved, *e.indices[n + 1 :]))

        return transform(substitute(value, place), rule)

    def _stage_of(self, buffer: str) -> str:
        return next(b.name for b in tree.blocks(self.program) if b.writes == buffer)

    def _simple(self, value: Expr, iters: tuple[Iter, ...]) -> Expr:
        extents = {it.name: it.extent for it in iters}

        def rule(e: Expr) -> Expr:
            if not isinstance(e, Load):
                return e
            return Load(e.buffer, tuple(_one_constant(simplify(i, extents)) for i in e.indices))

        return transform(value, rule)

    def _replace(self, block: Block, blocks: list[Block], buffers: list[Buffer]) -> None:
        path, _, _ = tree.find_block(self.program, block.name)
        body = (*self.program.body[: path[0]], *map(nest, blocks), *self.program.body[path[0] + 1 :])
        self.program = replace(self.program, buffers=(*self.program.buffers, *buffers), body=body)


def _one_constant(index: Expr) -> Expr:
    match index:
        case Op("add" | "sub" as op, (Op("add", (rest, Const(int(a)))), Const(int(b)))):
            return add(rest, Const(a + b if op == "add" else a - b))
    return index


def _minus(index: Expr, first: int) -> Expr:
    match index:
        case Op("add", (rest, Const(value))) if value == first:
            return rest
    return add(index, Const(-first)) if first else index
