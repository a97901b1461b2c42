"""Translates scheduled loop programs to HTile (paper, Algorithm 3).

Each outermost nest of the program becomes a kernel: its loops that are bound to block indices are the grid, loops that
contain several blocks stay loops, and each block with the loops that contain only this block becomes one tile store.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Access, Dot, Elementwise, For, GridAxis, Int, Kernel, Slice, Store, Tensor, TileExpr
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.nodes import Stmt as TileStmt
from neptune_lab.loop_ir.annotations import GRID, HINTS, SEQUENTIAL
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Loop, Op, Program, Stmt
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.tree import blocks_under
from neptune_lab.loop_ir.verify import bounds_of_store, verify
from neptune_lab.loop_ir.walks import loads, substitute, variables
from neptune_lab.loop_to_htile.access_regions import TileableNest, access_region
from neptune_lab.loop_to_htile.capacity import check_fits
from neptune_lab.loop_to_htile.patterns import Converter, always, match_compute_pattern
from neptune_lab.loop_to_htile.skipped import unless_skipped, with_first_values

MAX_TILE = 1 << 20  # elements: Triton's own limit on one tensor


def translate(program: Program) -> TileProgram:
    """Translates a whole program.

    Args:
        program: scheduled, without tags.

    Raises:
        TileError: an access is no tile, tags were not retired, or a tile is too large.
        ScheduleError: the program is not legal (`loop_ir.verify`).
    """
    verify(program)
    _check_on_chip(program)
    names: list[str] = []
    kernels = []
    for n, nest in enumerate(program.body):
        kernels.append(_kernel(program, nest, _kernel_name(program, nest, n, names)))
    tensors = tuple(Tensor(b.name, b.shape, b.dtype, _space(program, b.name)) for b in program.buffers)
    return TileProgram(program.name, tensors, program.inputs, program.outputs, tuple(kernels))


def _space(program: Program, name: str):
    if name in program.outputs:
        return "output"
    if name in program.params:
        return "input"
    return "chip" if program.buffer(name).scope in ("shared", "local") else "global"


def _check_on_chip(program: Program) -> None:
    """Formal statement: a buffer on chip is accessed by one kernel, since its values are lost when the kernel ends."""
    touched: dict[str, str] = {}
    for nest in program.body:
        here: dict[str, str] = {}
        for block in blocks_under(nest):
            for name in dict.fromkeys((block.writes, *(r.buffer for r in loads(block.body.value)))):
                here.setdefault(name, block.name)
        for name, block in here.items():
            if name in touched and _space(program, name) == "chip":
                raise TileError(
                    f"buffer {name!r} is kept on chip ({program.buffer(name).scope}), but blocks {touched[name]!r} and "
                    f"{block!r} of different kernels touch it",
                    node=block,
                    help=f'set_scope({touched[name]!r}, "global"), or move both blocks into one nest',
                )
            touched.setdefault(name, block)


def _kernel_name(program: Program, nest: Stmt, n: int, taken: list[str]) -> str:
    blocks = blocks_under(nest)
    roles = {b.role for b in blocks}
    if len(program.body) == 1:
        name = program.name
    elif any(b.role is Role.LOCAL or b.name.endswith("_local") for b in blocks):
        name = f"{program.name}_local"
    elif Role.GLOBAL in roles and Role.TILE not in roles:
        name = f"{program.name}_combine"
    else:
        first = next((b for b in blocks if b.role is Role.DEFINED), blocks[0])
        name = f"{program.name}_{first.name}"
    if name in taken:
        name = f"{name}_{n}"
    taken.append(name)
    return name


def _kernel(program: Program, nest: Stmt, name: str) -> Kernel:
    """The kernel of a nest: its bound loops are the grid, the rest is the body.

    Raises:
        TileError: a grid axis below a used one is free, or a hint stands at a loop that is no launch.
    """
    grid: dict[str, tuple[str, int]] = {}
    notes: dict[str, str | int] = {}
    body: tuple[Stmt, ...] = (nest,)
    extents: dict[str, int] = {}
    if isinstance(nest, Loop):
        notes.update(nest.annotations)  # without a grid, the outermost loop has the launch options
    while len(body) == 1 and isinstance(loop := body[0], Loop) and loop.kind in GRID:
        grid[loop.kind] = (loop.var, loop.extent)
        extents[loop.var] = loop.extent
        notes.update(loop.annotations)
        body = loop.body
    _check_hints(body if grid or not isinstance(nest, Loop) else nest.body)
    axes = [grid.get(thread) for thread in GRID]
    while axes and axes[-1] is None:
        axes.pop()
    if None in axes:
        missing = GRID[axes.index(None)]
        raise TileError(f"kernel {name} leaves {missing} free below a used grid axis", help=f"bind a loop to {missing}")
    stmts = tuple(s for inner in body for s in _statement(program, inner, extents, ()))
    stmts = with_first_values(stmts, {b.name: b.dtype for b in program.buffers})
    return Kernel(
        f"kernel:{name}",
        name,
        tuple(GridAxis(*axis) for axis in axes if axis is not None),
        stmts,
        _hint(notes, "num_warps"),
        _hint(notes, "num_stages"),
    )


def _check_hints(body: tuple[Stmt, ...]) -> None:
    """Refuses a launch option inside a kernel, where it has no effect."""
    for stmt in body:
        if isinstance(stmt, Loop):
            hints = [key for key, _ in stmt.annotations if key in HINTS]
            if hints:
                first = blocks_under(stmt)[0].name
                raise TileError(
                    f"{' and '.join(hints)} on loop {stmt.var!r} would have no effect: it runs inside the kernel",
                    node=first,
                    help="annotate the outermost loop of the nest, or one that is bound to the grid",
                )
            _check_hints(stmt.body)


def _hint(notes: dict[str, str | int], key: str) -> int | None:
    value = notes.get(key)
    return int(value) if value is not None else None


def _statement(program: Program, stmt: Stmt, extents: dict[str, int], path: tuple[str, ...]) -> tuple[TileStmt, ...]:
    inner = tileable_nest(stmt)
    if inner is not None:
        block, loops = inner
        block = _without_unit_loops(block, loops)
        return (_store(program, block, {x.var: x.extent for x in loops if x.extent > 1}, extents),)
    assert isinstance(stmt, Loop)
    if stmt.kind in GRID:
        first = blocks_under(stmt)[0].name
        raise TileError(
            f"loop {stmt.var!r} is bound to {stmt.kind} inside other work of the kernel",
            node=first,
            help="bind the outermost loops of a nest only",
        )
    path = (*path, stmt.var)
    body = tuple(s for x in stmt.body for s in _statement(program, x, {**extents, stmt.var: stmt.extent}, path))
    first = blocks_under(stmt)[0]
    return (For(f"for:{'.'.join(path)}@{first.name}", stmt.var, Int(0), Int(stmt.extent), body, first.name),)


def _without_unit_loops(block: Block, loops: tuple[Loop, ...]) -> Block:
    """The block without loops of one iteration, which are not dimensions of a tile; TVM drops only some of them."""
    env = {x.var: Const(0) for x in loops if x.extent == 1}
    return replace(
        block,
        iters=tuple(replace(it, binding=substitute(it.binding, env)) for it in block.iters),
        predicates=tuple(substitute(p, env) for p in block.predicates),
    )


def tileable_nest(stmt: Stmt) -> tuple[Block, tuple[Loop, ...]] | None:
    """The only block of a perfect nest of serial loops, and these loops; None if the nest contains more, or if one of
    the loops is annotated as sequential."""
    loops: list[Loop] = []
    while isinstance(stmt, Loop):
        if len(stmt.body) != 1 or stmt.kind in GRID or (SEQUENTIAL, 1) in stmt.annotations:
            return None
        loops.append(stmt)
        stmt = stmt.body[0]
    return stmt, tuple(loops)


def _store(program: Program, block: Block, inner: dict[str, int], outer: dict[str, int]) -> Store:
    """The tile statement of a block: its iterations inside the program become dimensions of the tile or are folded.

    Args:
        inner: extents of the loops that become dimensions, by variable.
        outer: extents of the grid's axes and of loops that stay.

    Raises:
        TileError: the block folds along what it stores, runs along what it does not index, or its tile is too large.
    """
    nest = TileableNest(block.name, inner, {**outer, **inner})
    env = {it.name: it.binding for it in block.iters}
    folded, outer_fold = _folded(block, inner, outer)
    indices = tuple(simplify(substitute(i, env), nest.extents) for i in block.body.indices)
    target_region = access_region(indices, f"{block.writes}[{', '.join(expression(i) for i in indices)}]", nest)
    spatial = tuple(s.axis for s in target_region if isinstance(s, Slice))
    _check_roles(block, inner, spatial, folded)
    value = match_compute_pattern(program, block, nest, spatial, folded, outer_fold)
    size = prod(inner[v] for v in (*spatial, *folded))
    if size > MAX_TILE and not _is_dot(value):
        raise TileError(
            f"block {block.name!r} would compute a tile of {size} elements "
            f"({' × '.join(f'{v} {inner[v]}' for v in inner)}); at most {MAX_TILE} fit",
            node=block.name,
            help="split its loops and move the outer parts out, or bind them to the grid",
        )
    check_fits(program, block.name, value, inner)
    target = Access(block.writes, target_region)
    mask = _store_mask(program, block, nest, indices, spatial, folded)
    # A fold keeps its value if its terms are masked with the identity; with a repair it may not.
    if program.buffer(block.writes).scope != "global" and (not outer_fold or block.repair is not None):
        moved_by = {v for v in outer if not any(v in variables(i) for i in indices)}
        for predicate in _bounds(program, block, nest, indices, folded):
            if variables(predicate) & moved_by:  # whole iterations are skipped, and must not change the tile
                test = Converter(program, nest).tile(predicate, spatial)
                value = unless_skipped(target, value, test, program.buffer(block.writes).dtype)
    return Store(f"tile:{block.name}", target, value, block.name, mask)


def _folded(block: Block, inner: dict[str, int], outer: dict[str, int]) -> tuple[tuple[str, ...], bool]:
    """The loops that become dimensions and that the block folds, and whether it also folds along a loop that stays."""
    folded: list[str] = []
    outer_fold = False
    for it in block.iters:
        if it.kind == "reduce":
            used = variables(it.binding)
            folded += [v for v in inner if v in used and v not in folded]
            outer_fold |= any(outer.get(v, 1) >= 1 for v in used if v in outer)
    return tuple(folded), outer_fold


def _check_roles(block: Block, inner: dict[str, int], spatial: tuple[str, ...], folded: tuple[str, ...]) -> None:
    """Raises TileError unless each loop that becomes a dimension is either folded or one that the store indexes."""
    both = [v for v in spatial if v in folded]
    if both:
        raise TileError(
            f"block {block.name!r} folds along {', '.join(both)}, which is also a dimension of what it stores",
            node=block.name,
            help="undo the step that fused a loop of what is kept with one of what is folded",
        )
    repeating = [v for v in inner if v not in spatial and v not in folded]
    if any(inner[v] > 1 for v in repeating):
        raise TileError(
            f"block {block.name!r} runs along {', '.join(repeating)}, which its store does not index",
            node=block.name,
            help="move it out of that loop",
        )


def _is_dot(value: TileExpr) -> bool:
    return isinstance(value, Dot) or (isinstance(value, Elementwise) and any(_is_dot(a) for a in value.args))


def _store_mask(
    program: Program,
    block: Block,
    nest: TileableNest,
    indices: tuple[Expr, ...],
    spatial: tuple[str, ...],
    folded: tuple[str, ...],
) -> TileExpr | None:
    """The mask of a store to global memory; on chip, lanes past a bound are unspecified and need none."""
    mask: TileExpr | None = None
    if program.buffer(block.writes).scope == "global":
        for predicate in _bounds(program, block, nest, indices, folded):
            test = Converter(program, nest).tile(predicate, spatial)
            mask = test if mask is None else Elementwise("and", (mask, test), "bool")
    return mask


def _bounds(
    program: Program, block: Block, nest: TileableNest, indices: tuple[Expr, ...], folded: tuple[str, ...]
) -> list[Expr]:
    """The block's predicates that are neither implied by the target's shape nor masked in its fold."""
    shape = program.buffer(block.writes).shape
    implied = {(simplify(i, nest.extents), size) for i, size in zip(indices, shape, strict=True)}
    predicates = []
    for predicate in bounds_of_store(block, tuple(nest.extents.items())):
        if always(predicate, nest) or variables(predicate) & set(folded):
            continue
        match predicate:
            case Op("lt", (a, Const(limit))) if (simplify(a, nest.extents), limit) in implied:
                continue
        predicates.append(predicate)
    return predicates
