"""The producer: one warp that issues the copies of all tiles, ahead of the consumers as far as ring slots are free."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune_lab.htile.nodes import Access
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.rows import CONSUMER, part_of_access
from neptune_lab.htile_to_gluon.shared_memory import Halves, ResidentTile, RingBuffer, SharedMemory, by_ring
from neptune_lab.htile_to_gluon.structure import LoopPart, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import (
    bind_program,
    for_each_tile,
    tiles_text,
    turn_text,
)
from neptune_lab.htile_to_triton.descriptors import host_descriptor
from neptune_lab.htile_to_triton.scope import Draft, Scope
from neptune_lab.wrapping import call, seq


def emit_producer(ctx: GluonContext, shared: SharedMemory) -> None:
    """Emits the body of the producer's function.

    Tiles of trailing products are copied one iteration after those of leading products, since consumers run the
    leading products of a tile together with the trailing products of the previous one.

    Raises:
        UnsupportedKernel: the copy engine cannot load a tile.
    """
    ctx.root.binds = frozenset()
    for ring in shared.rings:
        ctx.line(f"{ring.slot} = 0")
        ctx.line(f"{ring.phase} = 0")
    for_tiles_of_program(ctx, lambda: _walk(ctx, shared))


def for_tiles_of_program(
    ctx: GluonContext, walk: Callable[[], None], prefetch: Callable[[], None] | None = None
) -> None:
    """Emits the work on the one tile of a program, or a loop over its tiles if programs are persistent.

    Args:
        walk: emits the work on one tile.
        prefetch: emits the first products of a program's first tile, before the loop over tiles; `walk` then emits them
            for each next tile, after it calls `next_tile`.
    """
    if not ctx.gluon.persistent:
        bind_program(ctx, "gl.program_id(0)")
        walk()
        return
    ctx.line("done = 0")
    ctx.line(f"turn, tile = {turn_text(ctx, '0')}")
    if prefetch is not None:
        prefetch()
    scope = Scope(ctx.scope, frozenset())
    scope.header = Draft([f"while tile < {tiles_text(ctx)}:"], ctx.kernel.name)
    scope.header.used_by(ctx.kernel.node_id)
    with ctx.inside(scope):
        bind_program(ctx, "tile")
        walk()
        if prefetch is None:
            next_tile(ctx)


def next_tile(ctx: GluonContext) -> None:
    """Emits the step to the next tile of a persistent program."""
    ctx.line("done += 1")
    ctx.line(f"turn, tile = {turn_text(ctx, 'turn + 1')}")


def _walk(ctx: GluonContext, shared: SharedMemory) -> None:
    structure = ctx.structure
    rings = dict.fromkeys(shared.trailing)
    tiles = [one for ring in rings for one in (ring, ring.halves) if one is not None]
    at = {one: _Saved(ctx.names.fresh(f"{one.tensor}_at")) for one in tiles}
    first = structure.first
    _load_leading(ctx, shared, first)
    _save_positions(ctx, shared, first, at)
    _load_resident_tiles(ctx, shared)
    for n, part in enumerate(structure.parts):

        def one(_left: object, part: LoopPart = part) -> None:
            _load_leading(ctx, shared, part)
            _load_trailing(ctx, shared, at)
            _save_positions(ctx, shared, part, at)

        for_each_tile(ctx, part, opened=n == 0, body=one)
    _load_trailing(ctx, shared, at)


@dataclass(slots=True)
class _Saved:
    """Where in its tensor a tile of a trailing product is: the variable of its row, or of its column if the product
    takes it transposed; and what is the same in all iterations, () before the first one: its matrix, if there are
    several, and the other of the two."""

    moving: str
    others: tuple[str, ...] = ()
    by_columns: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        """The position."""
        if self.by_columns:
            return (*self.others, self.moving)
        return (*self.others[:-1], self.moving, self.others[-1])


def _load_leading(ctx: GluonContext, shared: SharedMemory, part: LoopPart) -> None:
    for ring, product in by_ring(shared.leading, part.leading).items():
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        name, where = _place(ctx, product.b, in_halves=ring.in_halves)
        _fill(ctx, ring, name, where)


_Positions = dict[RingBuffer | Halves, _Saved]


def _save_positions(ctx: GluonContext, shared: SharedMemory, part: LoopPart, at: _Positions) -> None:
    for ring, product in by_ring(shared.trailing, part.trailing).items():
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        _save_position(ctx, part, product.b, at[ring], by_columns=product.transposed)
        if ring.halves is not None and product.halves is not None:
            _save_position(ctx, part, product.halves, at[ring.halves], by_columns=False, in_halves=True)


def _save_position(
    ctx: GluonContext, part: LoopPart, tile: Access, saved: _Saved, *, by_columns: bool, in_halves: bool = False
) -> None:
    *matrix, row, column = _place(ctx, tile, in_halves=in_halves)[1]
    moving, fixed = (column, row) if by_columns else (row, column)
    others = (*matrix, fixed)
    in_loop = set() if part.loop is None else {ctx.variables[part.loop.var][0]}
    if saved.others not in ((), others) or in_loop & set(re.findall(r"\w+", " ".join(others))):
        what = "row" if by_columns else "column"
        raise UnsupportedKernel(f"tiles of {tile.tensor} do not all start at one {what}")
    saved.others, saved.by_columns = others, by_columns
    ctx.line(f"{saved.moving} = {moving}")


def _load_trailing(ctx: GluonContext, shared: SharedMemory, at: _Positions) -> None:
    for ring, product in by_ring(shared.trailing, ctx.structure.parts[0].trailing).items():
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        if ring.halves is None or product.halves is None:
            _fill(ctx, ring, _described(ctx, product.b), at[ring].place)
            continue
        rows, halves = (_described(ctx, tile) for tile in (product.b, product.halves))
        barriers = (ring.full, ring.empty, ring.slot, ring.phase)
        places = (*at[ring].place, at[ring.halves].place[0], str(ctx.gluon.ring_stages))
        copied = call(ctx.helper("_fill_both"), rows, halves, ring.slots, ring.halves.slots, *barriers, *places)
        ctx.line(seq(f"{ring.slot}, {ring.phase} = ", copied))


def _fill(ctx: GluonContext, ring: RingBuffer, rows: str, at: tuple[str, ...]) -> None:
    helper = ctx.helper("_fill_halves" if ring.in_halves else "_fill" if len(at) == 2 else "_fill_of")
    copied = call(
        helper, rows, ring.slots, ring.full, ring.empty, ring.slot, ring.phase, *at, str(ctx.gluon.ring_stages)
    )
    ctx.line(seq(f"{ring.slot}, {ring.phase} = ", copied))


def _load_resident_tiles(ctx: GluonContext, shared: SharedMemory) -> None:
    scope = Scope(ctx.scope, frozenset({CONSUMER}))
    name = ctx.variables[CONSUMER][0]
    scope.header = Draft([f"for {name} in gl.static_range({ctx.structure.consumers}):"], ctx.kernel.name)
    scope.header.used_by(ctx.kernel.node_id)
    with ctx.inside(scope):
        ctx.variables[CONSUMER] = (name, scope.header)
        for resident in shared.resident:
            _load_resident_tile(ctx, shared, resident, name)


def _load_resident_tile(ctx: GluonContext, shared: SharedMemory, resident: ResidentTile, consumer: str) -> None:
    together = ctx.structure.rows
    rows, at = _place(ctx, part_of_access(resident.access, together, ctx.structure.each), together=together)
    slot = shared.resident_slot(consumer)
    if shared.persistent:
        ctx.line(f"mbarrier.wait({resident.spent}.index({slot}), ({shared.resident_parity}) ^ 1)")
    ctx.line(f"mbarrier.expect({resident.ready}.index({slot}), {rows}.block_type.nbytes)")
    place = f"[{', '.join(at)}]"
    buffers = (f"{resident.ready}.index({slot})", f"{resident.buffer}.index({slot})")
    ctx.line(call(ctx.helper("_copy_in"), rows, place, *buffers))


def _place(
    ctx: GluonContext, access: Access, *, in_halves: bool = False, together: int | None = None
) -> tuple[str, tuple[str, ...]]:
    """A tile's descriptor, and its row and column there, after the matrix if there are several; `together` as in
    `host_descriptor`."""
    found = host_descriptor(ctx, access, together)
    if found is None:
        raise UnsupportedKernel(
            f"the copy engine cannot load tiles of {access.tensor}: it loads tiles of contiguous rows that stay inside "
            "their tensor"
        )
    made, place = found
    if in_halves and not made.in_halves:
        assert made.matrices is None
        ctx.host_descriptors[(made.tensor, made.block)] = replace(made, in_halves=True)
    return made.parameter, place


def _described(ctx: GluonContext, access: Access) -> str:
    """The descriptor of a tile for which `_place` has made one."""
    block = ctx.shape(access)
    return next(d.parameter for d in ctx.host_descriptors.values() if d.tensor == access.tensor and d.block == block)
