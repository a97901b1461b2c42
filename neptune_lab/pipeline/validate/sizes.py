"""Small sizes for an operator and its schedule, with the same whole tiles, remainders and ends of masks.

Two iterations have one size if a tensor connects them.  Each size is replaced by a few tiles of a few elements, with a
remainder if there was one; the constants of masks follow.  The result is a definition like any other, and the
steps of the schedule, their factors changed likewise, are applied to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from networkx.utils import UnionFind

from neptune_lab.errors import ScheduleError
from neptune_lab.hashed import full_text
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Op, Program, Var  # fmt: skip
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_schedule import PRIMITIVES
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.schedule import Schedule, Step
from neptune_lab.pipeline.validate.small_program import Sizes, at_small_sizes

# Small sizes: elements of the smallest tile, tiles along a dimension, the size of a dimension that is not tiled, and of
# one on the grid if rows of another dimension are tiled.
_TILE, _TILES, _WHOLE, _REPEATED = 4, 3, 4, 2


@dataclass(frozen=True)
class Plan:
    """The small form of a schedule; `key` is equal for two schedules with the same small form.

    Args:
        definition: at small sizes.
        base: the definition after the normalisations (`Schedule.base`), at small sizes.
        sizes: the old and the new sizes.
    """

    definition: Program
    base: Program
    sizes: Sizes
    key: str


def plan(scheduled: Schedule) -> Plan:
    """The small sizes of a schedule, before any step is applied to them.

    Raises:
        ScheduleError: nothing can be made smaller.
    """
    definition = scheduled.definition
    sizes = _connected(definition, scheduled.base)
    _choose(sizes, scheduled)
    small = at_small_sizes(definition, sizes)
    if small == definition:
        raise ScheduleError(f"no size of {definition.name} can be made smaller", help="validate a smaller operator")
    key = "\n".join([full_text(small), *_shapes_of_steps(scheduled, sizes)])
    return Plan(small, at_small_sizes(scheduled.base, sizes), sizes, key)


def is_silent(step: Step) -> bool:
    """Whether a step changes no number: a remark, or a hint for the launch."""
    return PRIMITIVES[step.primitive].is_silent(dict(step.arguments))


def _shapes_of_steps(scheduled: Schedule, sizes: Sizes) -> Iterator[str]:
    """Each step with its new factors."""
    for applied in scheduled.history:
        step = applied.step
        if is_silent(step):
            continue
        cuts = []
        primitive = PRIMITIVES[step.primitive]
        for cut in primitive.cut_loops(step.plain_arguments()):
            (block, var), factor = loop_ref(cut.loop), cut.size
            extent = tree.find_loop(applied.before, block, var)[1].extent
            whole = factor >= extent
            tile = sizes.tiles.get(factor)
            parts = 0 if whole or tile or not factor else min(3, -(-extent // factor))
            cuts.append((var, whole, tile, parts, bool(factor) and extent % factor == 0, factor == extent))
        others = primitive.without_sizes(dict(step.arguments))
        yield f"{step.primitive} {sorted(others.items(), key=str)} {cuts}"


# -- which sizes are one ------------------------------------------------------------------------------------------


def _connected(*programs: Program) -> Sizes:
    """The dimensions of all programs: axes and iterations of one dimension are in one class, found through reads and
    writes at plain variables.  A class is fixed if an index computes with it, or its axes have different extents; not
    if the index has its digits, or moves it to the end of an axis."""
    classes, extents = UnionFind(), {}
    fixed: set[Any] = set()
    divided: list[tuple[Any, Any, int]] = []
    remainders: list[tuple[Any, Any, int]] = []
    moved: list[tuple[Any, Any, int]] = []
    for buffer in (b for program in programs for b in program.buffers):
        for axis, size in enumerate(buffer.shape):
            extents[("axis", buffer.name, axis)] = size
    for block in (b for program in programs for b in tree.blocks(program)):
        for it in block.iters:
            extents[("iter", block.name, it.name)] = it.extent
            if it.binding != Var(it.name) and not isinstance(it.binding, Var):
                fixed.add(("iter", block.name, it.name))
        for buffer, indices in [(block.body.buffer, block.body.indices), *_reads(block.body.value)]:
            for axis, index in enumerate(indices):
                here = ("axis", buffer, axis)
                match index:
                    case Var(name):
                        classes.union(here, ("iter", block.name, name))
                    case Op("floordiv", (Var(name), Const(int(by)))):
                        divided.append((here, ("iter", block.name, name), by))
                    case Op("floormod", (Var(name), Const(int(by)))):
                        remainders.append((here, ("iter", block.name, name), by))
                    case Op("add", (Op("mul", (Var(high), Const(int(by)))), Var(low))) if block.iter(low).extent == by:
                        divided.append((("iter", block.name, high), here, by))
                        remainders.append((("iter", block.name, low), here, by))
                    case Op("add", (Var(name), Const(int(by)))) if by == extents[here] - block.iter(name).extent:
                        moved.append((here, ("iter", block.name, name), by))
                    case _:
                        fixed.add(here)
                        fixed |= {("iter", block.name, name) for name in variables(index)}
    # Iterations of one extent of which an axis is the same digit are one dimension.
    same: dict[Any, Any] = {}
    for axis, it, by in (*divided, *remainders):
        classes.union(it, same.setdefault((classes[axis], by, extents[it]), it))
    by_class: dict[Any, set[int]] = {}
    for key, size in extents.items():
        by_class.setdefault(classes[key], set()).add(size)
    fixed_classes = {classes[key] for key in fixed} | {c for c, members in by_class.items() if len(members) > 1}

    def by_axis(reads: Iterable[tuple[Any, Any, int]]) -> dict[Any, tuple[Any, int]]:
        found: dict[Any, tuple[Any, int]] = {}
        for axis, it, by in reads:
            first = found.setdefault(classes[axis], (classes[it], by))
            if first != (classes[it], by):
                fixed_classes.update({classes[axis], classes[it], first[0]})
        return found

    high, low = by_axis(divided), by_axis(remainders)
    ends = _ends(
        [(classes[it], by, classes[axis]) for axis, it, by in moved], {*high.items(), *low.items()}, fixed_classes
    )
    extents = {c: max(members) for c, members in by_class.items()}
    return Sizes(classes, extents, fixed_classes, high, low, ends)


def _ends(
    moved: list[tuple[Any, int, Any]], digits: Collection[tuple[Any, tuple[Any, int]]], fixed: set[Any]
) -> dict[tuple[Any, int], Any]:
    """`Sizes.moved`, of reads by their iteration, number and axis; what cannot be resized together is added to
    `fixed`."""
    divided = {c for axis, (it, _) in digits for c in (axis, it)}
    ends: dict[tuple[Any, int], Any] = {}
    for it, by, axis in moved:
        if it == axis or {it, axis} & divided or ends.setdefault((it, by), axis) != axis:
            fixed |= {it, axis}
    while any((it in fixed) != (axis in fixed) for it, _, axis in moved):
        fixed |= {c for it, _, axis in moved if {it, axis} & fixed for c in (it, axis)}
    return {(it, by): axis for (it, by), axis in ends.items() if axis not in fixed}


def _reads(value: Expr) -> list[tuple[str, tuple[Expr, ...]]]:
    return [(read.buffer, read.indices) for read in loads(value)]


# -- the new sizes ------------------------------------------------------------------------------------------------


def _choose(sizes: Sizes, scheduled: Schedule) -> None:
    """New extents of all classes, and of tiles by their old size."""
    cuts = list(_cuts(scheduled, sizes))
    tiled: dict[Any, set[int]] = {}
    parts: dict[Any, int] = {}
    for c, extent, factor, level in cuts:
        if level == 1 and factor < extent:
            tiled.setdefault(c, set()).add(factor)
        elif level > 1 and factor < extent:
            parts[c] = factor
    smallest = min((t for c, tile_sizes in tiled.items() if c not in sizes.fixed for t in tile_sizes), default=1)
    scale = max(1, smallest // _TILE)
    sizes.tiles = {t: max(1, t // scale) for tile_sizes in tiled.values() for t in tile_sizes}
    by_extent: dict[int, int] = {}
    for c, tile_sizes in sorted(tiled.items(), key=lambda item: -max(item[1])):
        extent, largest = sizes.extents[c], max(tile_sizes)
        if c not in sizes.fixed and (extent not in by_extent or c in parts):
            by_extent[extent] = _tiled_size(extent, largest, min(tile_sizes), sizes.tiles, parts.get(c))
    repeated = _repeated(scheduled, sizes, set(tiled))
    for c, extent in sizes.extents.items():
        whole = _REPEATED if c in repeated else _WHOLE
        if c in sizes.fixed:
            sizes.new[c] = extent
        elif extent in by_extent:
            sizes.new[c] = min(extent, by_extent[extent])
        elif extent <= whole:
            sizes.new[c] = extent
        else:
            sizes.new[c] = whole if extent & (extent - 1) == 0 else whole + 1
    while short := [(it, axis) for (it, _), axis in sizes.moved.items() if sizes.new[axis] <= sizes.new[it]]:
        sizes.new |= {c: sizes.extents[c] for both in short for c in both}
    for it in dict.fromkeys(it for it, _ in (*sizes.divided.values(), *sizes.remainders.values())):
        _choose_digits(sizes, it, tiled)


def _choose_digits(sizes: Sizes, it: Any, tiled: Mapping[Any, set[int]]) -> None:
    """New extents of a class and of those that are its digits (`divided`, `remainders`)."""
    high = {axis: by for axis, (of, by) in sizes.divided.items() if of == it}
    low = {axis: by for axis, (of, by) in sizes.remainders.items() if of == it}
    own = {it, *high, *low}
    divisors = {*high.values(), *low.values()}
    by = min(divisors)
    # Formal statement: the axes are the two digits of the iteration, which takes each pair of digits once.
    digits = all(sizes.extents[axis] * by == sizes.extents[it] for axis in high)
    digits = digits and all(sizes.extents[axis] == by for axis in low)
    above = min((2, *(sizes.extents[axis] for axis in high)))
    below = min((sizes.new[axis] for axis in low), default=min(2, by))
    grouped = not low and tiled.get(it) == {by}  # each of its tiles is a group
    if grouped:
        below = sizes.groups[it] = sizes.tiles[by]
    elif low and it in tiled:  # its tiles say how many elements it has
        below, rest = divmod(sizes.new[it], above)
        digits = digits and not rest
    apart = set(tiled) & {*low, *(() if low or grouped else (it,))}
    if len(divisors) > 1 or not (high and digits) or own & sizes.fixed or apart:
        sizes.groups.pop(it, None)
        for c in own:
            sizes.new[c] = sizes.extents[c]
        return
    for c in own:
        sizes.new[c] = above * below if c == it else above if c in high else below


def _repeated(scheduled: Schedule, sizes: Sizes, tiled: set[Any]) -> set[Any]:
    """The dimensions whose loops run on the grid as they are, if rows of another dimension are tiled."""
    spatial = {
        sizes.of(("iter", block.name, it.name))
        for block in tree.blocks(scheduled.base)
        if block.is_reduction
        for it in block.iters
        if it.kind == "spatial"
    }
    if not tiled & spatial:
        return set()
    repeated = set()
    for _, stmt, loops in tree.statements(scheduled.program):
        if isinstance(stmt, Block):
            grid = {Var(loop.var) for loop in loops if loop.kind.startswith("blockIdx")}
            keys = (("iter", stmt.origin or stmt.name, it.name) for it in stmt.iters if it.binding in grid)
            repeated |= {sizes.of(key) for key in keys if key in sizes.classes.parents}
    return repeated - tiled


def _tiled_size(extent: int, largest: int, smallest: int, tiles: dict[int, int], part: int | None) -> int:
    """A few whole tiles, and a remainder if there was one."""
    whole, rest = divmod(extent, largest)
    count = min(whole, _TILES)
    if part is not None:  # the tiles are cut into parts again, of two tiles each if they had several
        total = -(-extent // largest)
        each, groups = min(part, 2), min(-(-total // part), 2)
        count = each * groups - (1 if total % part else 0) - (1 if rest else 0)
        count = max(1, count)
    t = tiles[largest]
    left = 0
    if rest:
        left = max(1, min(t - 1, rest * t // largest)) if t > 1 else 0
        if rest % smallest and left % tiles[smallest] == 0 and tiles[smallest] > 1:
            left = left - 1 if left > 1 else left + 1
    return count * t + left


def _cuts(scheduled: Schedule, sizes: Sizes) -> Iterator[tuple[Any, int, int, int]]:
    """(class, extent, factor, level) of every loop that a step cuts: level 1 is a whole dimension."""
    for applied in scheduled.history:
        primitive = PRIMITIVES[applied.step.primitive]
        for cut in primitive.cut_loops(applied.step.plain_arguments()):
            (block, var), factor = loop_ref(cut.loop), cut.size
            try:
                _, loop, _ = tree.find_loop(applied.before, block, var)
            except ScheduleError:
                continue
            target = tree.find_block(applied.before, block)[1]
            for it in target.iters:
                if var in variables(it.binding):
                    key = ("iter", target.origin or target.name, it.name)
                    if key in sizes.classes.parents and factor:
                        yield sizes.of(key), loop.extent, factor, 1 if it.binding == Var(var) else 2
                        if cut.parts:
                            yield sizes.of(key), -(-loop.extent // factor), cut.parts, 2
