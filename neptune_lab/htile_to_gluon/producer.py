"""The producer: one warp that issues the copies of every tile, as far ahead as the rings have free slots."""

from __future__ import annotations

from collections.abc import Callable

from neptune_lab.htile.nodes import Access
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.rows import CONSUMER, part_of_access
from neptune_lab.htile_to_gluon.shared import Held, Ring, Shared
from neptune_lab.htile_to_gluon.structure import Part, Unfit
from neptune_lab.htile_to_gluon.visits import bind_program, each_tile, section_of_tiles, tiles
from neptune_lab.htile_to_triton.descriptors import descriptor
from neptune_lab.htile_to_triton.scope import Draft, Scope
from neptune_lab.wrapping import call, seq


def emit_producer(ctx: GluonContext, shared: Shared) -> None:
    """The body of the producer's function.

    Tiles of trailing products come one tile after those of leading products, as the consumers ask for them: the first
    product of a tile runs beside the second of the tile before.
    """
    ctx.root.binds = frozenset()
    for ring in shared.rings:
        ctx.line(f"{ring.slot} = 0")
        ctx.line(f"{ring.phase} = 0")
    with_tiles(ctx, lambda: _walk(ctx, shared))


def with_tiles(ctx: GluonContext, walk: Callable[[], None], ahead: Callable[[], None] | None = None) -> None:
    """`walk` for the one tile of a program, or for each of its tiles where programs are persistent.

    Args:
        ahead: what is done for the first tile before the loop over tiles; `walk` does it for each next tile then, after
            it has turned to that tile by `next_tile`.
    """
    if not ctx.gluon.persistent:
        bind_program(ctx, "gl.program_id(0)")
        walk()
        return
    ctx.line("done = 0")
    ctx.line(f"turn, tile = {ctx.helper('_turn')}(0, {section_of_tiles(ctx)})")
    if ahead is not None:
        ahead()
    scope = Scope(ctx.scope, frozenset())
    scope.header = Draft([f"while tile < {tiles(ctx.kernel)}:"], ctx.kernel.name)
    scope.header.used_by(ctx.kernel.node_id)
    ctx.scope.body.append(scope)
    outer, ctx.scope = ctx.scope, scope
    bind_program(ctx, "tile")
    walk()
    if ahead is None:
        next_tile(ctx)
    ctx.scope = outer


def next_tile(ctx: GluonContext) -> None:
    """Turns to the next tile of a persistent program."""
    ctx.line("done += 1")
    ctx.line(f"turn, tile = {ctx.helper('_turn')}(turn + 1, {section_of_tiles(ctx)})")


def _walk(ctx: GluonContext, shared: Shared) -> None:
    structure = ctx.structure
    at = [ctx.names.fresh(f"{ring.tensor}_at") for ring in shared.trailing]
    first = structure.first
    _lead(ctx, shared, first)
    _remember(ctx, shared, first, at)
    _hold(ctx, shared)
    for n, part in enumerate(structure.parts):

        def one(_left: object, part: Part = part) -> None:
            _lead(ctx, shared, part)
            _trail(ctx, shared, at)
            _remember(ctx, shared, part, at)

        each_tile(ctx, part, opened=n == 0, body=one)
    _trail(ctx, shared, at)


def _lead(ctx: GluonContext, shared: Shared, part: Part) -> None:
    for ring, product in zip(shared.leading, part.leading, strict=True):
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        name, where = _place(ctx, product.b)
        _fill(ctx, ring, name, where)


def _remember(ctx: GluonContext, shared: Shared, part: Part, at: list[str]) -> None:
    for name, product in zip(at, part.trailing, strict=True):
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        row, column = _place(ctx, product.b)[1]
        if column != "0":
            raise Unfit(f"tiles of {product.b.tensor} do not start at column 0")
        ctx.line(f"{name} = {row}")


def _trail(ctx: GluonContext, shared: Shared, at: list[str]) -> None:
    for ring, name, product in zip(shared.trailing, at, ctx.structure.parts[0].trailing, strict=True):
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        _fill(ctx, ring, _described(ctx, product.b), (name, "0"))


def _fill(ctx: GluonContext, ring: Ring, rows: str, at: tuple[str, str]) -> None:
    copied = call(
        ctx.helper("_fill"), rows, ring.slots, ring.full, ring.empty, ring.slot, ring.phase, *at, str(ctx.gluon.stages)
    )
    ctx.line(seq(f"{ring.slot}, {ring.phase} = ", copied))


def _hold(ctx: GluonContext, shared: Shared) -> None:
    scope = Scope(ctx.scope, frozenset({CONSUMER}))
    name = ctx.variables[CONSUMER][0]
    scope.header = Draft([f"for {name} in gl.static_range({ctx.structure.consumers}):"], ctx.kernel.name)
    scope.header.used_by(ctx.kernel.node_id)
    ctx.variables[CONSUMER] = (name, scope.header)
    ctx.scope.body.append(scope)
    outer, ctx.scope = ctx.scope, scope
    for held in shared.held:
        _hold_one(ctx, shared, held, name)
    ctx.scope = outer


def _hold_one(ctx: GluonContext, shared: Shared, held: Held, consumer: str) -> None:
    rows, at = _place(ctx, part_of_access(held.access, ctx.structure.rows))
    slot = shared.held_place(consumer)
    if shared.persistent:
        ctx.line(f"mbarrier.wait({held.spent}.index({slot}), ({shared.held_parity}) ^ 1)")
    ctx.line(f"mbarrier.expect({held.ready}.index({slot}), {rows}.block_type.nbytes)")
    place = f"[{at[0]}, {at[1]}]"
    buffers = (f"{held.ready}.index({slot})", f"{held.buffer}.index({slot})")
    ctx.line(call(ctx.helper("_copy_in"), rows, place, *buffers))


def _place(ctx: GluonContext, access: Access) -> tuple[str, tuple[str, str]]:
    """A tile's descriptor, and its row and column there."""
    found = descriptor(ctx, access)
    if found is None:
        raise Unfit(
            f"the copy engine cannot bring tiles of {access.tensor}: it takes whole tiles of contiguous rows, which do "
            "not leave their tensor"
        )
    row, _, column = found[1].removeprefix("[").removesuffix("]").rpartition(", ")
    return found[0], (row, column)


def _described(ctx: GluonContext, access: Access) -> str:
    """The descriptor of a tile that has been placed before."""
    block = ctx.shape(access)
    return next(d.parameter for d in ctx.host_descriptors.values() if d.tensor == access.tensor and d.block == block)
