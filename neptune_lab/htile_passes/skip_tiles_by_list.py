"""Skips tiles in which a mask over inputs hides every element, by a list of the others that is made on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env, grid_env
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import (
    names_of_access,
    names_of_tile,
    rewrite,
    simplify,
    stores,
    subexpressions,
    written_tensors,
)
from neptune_lab.htile_passes.input_comparisons import (
    FEWEST_TILES,
    BoundsKernel,
    both,
    compare,
    conditions,
    int_of,
    literal,
    trips,
)
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, NoOpProver
from neptune_lab.htile_passes.position_limits import reads_inputs
from neptune_lab.htile_passes.rewrite import Rewrite, fresh_name, tile_pass
from neptune_lab.htile_passes.shown_tiles import OF_TWENTY_BESIDE_GAP, shown_tiles
from neptune_lab.htile_passes.skip_tiles_by_data import hiding_comparison
from neptune_lab.htile_passes.skip_tiles_by_positions import are_limits_of_few_rows, leaves_gap
from neptune_lab.power_of_two import power_of_two
from neptune_lab.scalar_ops import rows
from neptune_lab.strict.dtypes import FLOATS

# With fewer tiles in a loop, the kernels that make the list take as long as what they save.
FEWEST_LISTED = 16
# A tile of the mask is evaluated once for the list.  With fewer programs that read its entry, such as heads that share
# the mask, that is no small part of the evaluations in the loop itself.
FEWEST_READERS = 8
# The most tiles of a loop: each program that orders them reads what was found for all.
MOST_LISTED = 1 << 10
# What gives the same result wherever it is computed.  Other operations on floats may be contracted in one kernel
# and not in another.
_EXACT = frozenset(
    {
        *("where", "neg", "abs", "and", "or", "not", "xor"),
        *(row.name for row in rows("htile") if row.kind == "comparison"),
    }
)


@tile_pass(before="skip_tiles_by_data")
def skip_tiles_by_list(program: ir.Program) -> Rewrite:
    """Before => after, for a mask that looks up whether a block of rows sees a block of columns:

        for j0 in range(64):
            score[...] = where(gather(table, ...), qk[...], -inf)
        =>
        kernel k_visible  grid (i0: 64, j0: 64)
            k_visible_some[i0, j0] = reduce(max, where(gather(table, ...), 1, 0))
        kernel k_ranks  grid (i0: 64, t: 64)
            k_ranks_rank[i0, t] = how many of the tiles 0 to t have a visible element; at least 1 for the last tile
        kernel k_list  grid (i0: 64, t: 64)
            k_list_entry[i0, t] = how many tiles have a rank of at most t: the number of the tile of rank t + 1
        kernel k
        for j0 in range(64) listed k_list_entry[i0, j0_place], k_ranks_rank[i0, 63]:
            score[...] = where(gather(table, ...), qk[...], -inf)

    Formal statement: the first kernel computes the mask's own condition on each tile.  It computes what the loop does:
    the same reads of inputs and positions, integer operations, and of floats only comparisons, so that no rounding can
    differ.  An iteration in which the condition is false everywhere is proven to change nothing that is read
    afterwards, as for tiles that positions hide (`partition_masked_loops`).  The others are visited in the same order.
    A loop visits at least one tile, its last.

    The pass changes a loop where that can pay: of `FEWEST_LISTED` tiles or more, if `FEWEST_READERS` programs or more
    share each row of the list, and no bounds of its tiles follow from comparisons (`skip_tiles_by_data`), or in
    decoding from limits of positions (`skip_tiles_by_positions`) or from flags (`skip_tiles_by_flags`).  A loop with
    a list is one loop: tiles in which the mask is true everywhere have it too.

    A mask of positions alone, such as `q // 64 % 4 == kv // 64 % 4`, has one list for all calls on a device, which the
    first makes.  It takes the place of bounds where these would leave about twice as many tiles (`shown_tiles`).
    """
    return _Lister(program, every=False, many=False).program_with_lists()


@tile_pass(on_request=True)
def skip_every_tile_by_list(program: ir.Program) -> Rewrite:
    """As `skip_tiles_by_list`, for each loop that can have a list: also those that bounds would serve, such as those of
    documents, whose numbers need not be sorted then."""
    return _Lister(program, every=True, many=False).program_with_lists()


@tile_pass(on_request=True)
def skip_any_tiles_by_list(program: ir.Program) -> Rewrite:
    """As `skip_every_tile_by_list`, in a form that is the same for every number of tiles up to `MOST_LISTED`."""
    return _Lister(program, every=True, many=True).program_with_lists()


def leaves_out_inside(program: ir.Program, *, cut: int = 1) -> bool:
    """Whether loops leave out many tiles between their bounds because of masks of positions alone: by a list of this
    pass, or as a run (`skip_tiles_by_positions`).

    Args:
        cut: how many tiles take the place of each, in another kernel; with more than one, whether that one's loops may.
    """
    for kernel in program.kernels:
        env = grid_env(kernel)
        for loop in (stmt for stmt in kernel.body if isinstance(stmt, ir.For)):
            for condition in dict.fromkeys(conditions(loop)):
                shown = shown_tiles(kernel, loop, env, condition)
                if shown is None:
                    continue
                by_list = shown.beats_bounds() if cut == 1 else shown.may_beat_bounds
                if by_list and cut * trips(loop, env) >= FEWEST_LISTED:
                    return True
                gap = shown.beats_bounds(OF_TWENTY_BESIDE_GAP)
                if gap and leaves_gap(program, kernel, loop, env, condition):
                    return True
    return False


@dataclass(frozen=True, slots=True)
class _Hiding:
    """A condition that hides tiles of a loop.

    Args:
        condition: of a `where` in the loop's body.
        before: the stores to tiles that it reads, in order.
        grid: the axes of the kernel's grid on which it depends.
        proof: that an iteration in which it is false everywhere may be left out.
    """

    condition: ir.TileExpr
    before: tuple[ir.Store, ...]
    grid: tuple[ir.GridAxis, ...]
    proof: NoOpProof


class _Lister:
    def __init__(self, program: ir.Program, *, every: bool, many: bool) -> None:
        self.program, self.every, self.many = program, every, many
        self.taken = {t.name for t in program.tensors} | {k.name for k in program.kernels}
        self.added: list[ir.Tensor] = []
        self.notes: list[str] = []

    def program_with_lists(self) -> Rewrite:
        kernels = tuple(k for kernel in self.program.kernels for k in self.kernel(kernel))
        if not self.notes:
            return Rewrite(self.program)
        tensors = (*self.program.tensors, *self.added)
        return Rewrite(replace(self.program, tensors=tensors, kernels=kernels), tuple(self.notes))

    def kernel(self, kernel: ir.Kernel) -> Iterator[ir.Kernel]:
        """The kernel, after those that make the lists of its loops."""
        env, prover = grid_env(kernel), NoOpProver(self.program, kernel)
        body: list[ir.Stmt] = []
        changed = False
        for stmt in kernel.body:
            found = self.hiding(kernel, stmt, env, prover) if isinstance(stmt, ir.For) else None
            if found is None or not isinstance(stmt, ir.For):
                body.append(stmt)
                continue
            made, listed = self.list_of(kernel, stmt, found)
            yield from made
            body.append(replace(stmt, listed=listed))
            changed = True
            self.notes += _explained(self.program, kernel, stmt, found, made)
        yield replace(kernel, body=tuple(body)) if changed else kernel

    def hiding(self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver) -> _Hiding | None:
        """A condition on inputs that hides tiles of the loop, if a list of the others may be made and can pay."""
        count = trips(loop, env)
        fewest = FEWEST_TILES if self.every else FEWEST_LISTED
        whole = loop.start == ir.Int(0) and simplify(loop.stop) == ir.Int(count)
        if loop.within or loop.listed or not whole or not fewest <= count <= MOST_LISTED:
            return None
        if any(isinstance(stmt, ir.For) for stmt in loop.body):
            return None
        for condition in dict.fromkeys(conditions(loop)):
            of_positions = not reads_inputs(condition)
            before = () if of_positions else self.needed(kernel, loop, condition)
            if before is None or not self.is_exact(condition, before):
                continue
            names = _names(condition, before)
            grid = tuple(axis for axis in kernel.grid if axis.var in names)
            if not names <= {loop.var, *(axis.var for axis in grid)}:
                continue
            if of_positions:
                pays = not self.many and self.leaves_out_more(kernel, loop, env, condition)
            else:
                pays = self.every or self.pays_at_each_call(kernel, loop, env, prover, condition, grid)
            if not pays:
                continue
            proof = prover(loop, lambda mask, false=condition: mask == false)
            if proof.proven:
                return _Hiding(condition, before, grid, proof)
        return None

    def pays_at_each_call(
        self,
        kernel: ir.Kernel,
        loop: ir.For,
        env: Env,
        prover: NoOpProver,
        condition: ir.TileExpr,
        grid: tuple[ir.GridAxis, ...],
    ) -> bool:
        """Whether a list that is made at each call can save time."""
        readers = math.prod(axis.extent for axis in kernel.grid if axis not in grid)
        return (
            readers >= FEWEST_READERS
            and hiding_comparison(self.program, kernel, loop, env, prover, many=self.many) is None
            and not are_limits_of_few_rows(self.program, kernel, loop, env, condition)
        )

    def leaves_out_more(self, kernel: ir.Kernel, loop: ir.For, env: Env, condition: ir.TileExpr) -> bool:
        """Whether a list of the tiles that a mask of positions shows leaves out more than bounds do."""
        shown = shown_tiles(kernel, loop, env, condition)
        if shown is None or not shown.beats_bounds():
            return False
        return shown.beats_gap or not leaves_gap(self.program, kernel, loop, env, condition)

    def needed(self, kernel: ir.Kernel, loop: ir.For, condition: ir.TileExpr) -> tuple[ir.Store, ...] | None:
        """The stores to on-chip tiles that a condition needs, in order; None if it reads no input, or a tile that
        more than one statement, a product or another loop makes."""
        at = next(n for n, stmt in enumerate(kernel.body) if stmt is loop)
        flow = [s for s in (*kernel.body[:at], *loop.body) if isinstance(s, ir.Store)]
        every = list(stores(kernel.body))
        chosen: list[ir.Store] = []
        wanted, reads_inputs = {condition}, False
        while wanted:
            expr = wanted.pop()
            for part in subexpressions(expr):
                if isinstance(part, ir.Dot):
                    return None
                if not isinstance(part, ir.Access | ir.Gather):
                    continue
                tensor = self.program.tensor(part.tensor)
                if tensor.space != "chip":
                    reads_inputs = True
                    if tensor.name in written_tensors(kernel):
                        return None
                    continue
                defined = [s for s in every if s.target.tensor == tensor.name]
                if len(defined) != 1 or defined[0].mask is not None or not any(s is defined[0] for s in flow):
                    return None
                if not any(s is defined[0] for s in chosen):
                    chosen.append(defined[0])
                    wanted.add(defined[0].value)
        return tuple(s for s in flow if any(s is c for c in chosen)) if reads_inputs else None

    def is_exact(self, condition: ir.TileExpr, before: tuple[ir.Store, ...]) -> bool:
        """Whether a kernel of its own gives the same condition, to the last bit."""
        for root in (condition, *(store.value for store in before)):
            for part in subexpressions(root):
                if isinstance(part, ir.Elementwise) and part.op not in _EXACT:
                    dtypes = {part.dtype, *(dtype_of(arg, self.program) for arg in part.args)}
                    if dtypes & FLOATS:
                        return False
                if isinstance(part, ir.Cast) and part.dtype in FLOATS:
                    return False
                if isinstance(part, ir.Reduce) and dtype_of(part.arg, self.program) in FLOATS:
                    return False
        return True

    def list_of(
        self, kernel: ir.Kernel, loop: ir.For, found: _Hiding
    ) -> tuple[list[ir.Kernel], tuple[ir.Access, ir.Access]]:
        """The kernels that make the list of a loop's tiles, and an entry of it and the number of entries."""
        count = trips(loop, grid_env(kernel))
        tiles = MOST_LISTED if self.many else power_of_two(count)
        own = tuple(ir.Name(axis.var) for axis in found.grid)
        scalars = tuple(ir.Scalar(name) for name in own)
        iota = ir.Iota((ir.Slice(ir.Int(0), tiles, "tiles"),))
        place = ir.GridAxis(self._fresh("t"), count)
        at: ir.TileExpr = ir.Scalar(ir.Name(place.var))
        inside = int_of("min", iota, literal(count - 1))

        def number_of(where: ir.TileExpr, value: ir.TileExpr) -> ir.TileExpr:
            return ir.Reduce("sum", ir.Elementwise("where", (where, value, literal(0)), "int32"), 0)

        first = self._kernel(f"{kernel.name}_visible", loop)
        condition = self._copied(first, found)
        some: ir.TileExpr = ir.Elementwise("where", (condition, literal(1), literal(0)), "int32")
        for _ in shape_of(some, self._with(first)):
            some = ir.Reduce("max", some, 0)
        visible = first.store("some", (*found.grid, ir.GridAxis(loop.var, count)), some)

        second = self._kernel(f"{kernel.name}_ranks", loop)
        upto = number_of(compare("le", iota, at), ir.Gather(visible.tensor, (*scalars, inside)))
        last = ir.Elementwise("where", (compare("eq", at, literal(count - 1)), literal(1), literal(0)), "int32")
        rank = second.store("rank", (*found.grid, place), int_of("max", upto, last))

        third = self._kernel(f"{kernel.name}_list", loop)
        ranks = third.chip("ranks", (tiles,), "int32", ir.Gather(rank.tensor, (*scalars, inside)))
        before = number_of(both(compare("le", ranks, at), compare("lt", iota, literal(count))), literal(1))
        entry = third.store("entry", (*found.grid, place), int_of("min", before, literal(count - 1)))

        made = [
            self._launched(first, found.grid, ir.GridAxis(loop.var, count), loop),
            self._launched(second, found.grid, place, loop),
            self._launched(third, found.grid, place, loop),
        ]
        entries = ir.Access(entry.tensor, (*own, ir.Name(ir.place_in_list(loop.var))))
        return made, (entries, ir.Access(rank.tensor, (*own, ir.Int(count - 1))))

    def _kernel(self, wanted: str, loop: ir.For) -> BoundsKernel:
        return BoundsKernel(self.program, self._fresh(wanted), loop.origin, self.taken)

    def _launched(
        self, made: BoundsKernel, grid: tuple[ir.GridAxis, ...], inner: ir.GridAxis, loop: ir.For
    ) -> ir.Kernel:
        """The kernel with an axis of its grid for each tile, or with a loop if its grid has three axes without it."""
        self.added += made.added
        body: tuple[ir.Stmt, ...] = tuple(made.body)
        if len(grid) == 3:
            body = (ir.For(f"for:{made.name}", inner.var, ir.Int(0), ir.Int(inner.extent), body, loop.origin),)
        else:
            grid = (*grid, inner)
        return ir.Kernel(f"kernel:{made.name}", made.name, grid, body)

    def _copied(self, made: BoundsKernel, found: _Hiding) -> ir.TileExpr:
        """The condition, with tiles of the kernel's own that hold what it reads."""
        names: dict[str, str] = {}

        def renamed(expr: ir.TileExpr) -> ir.TileExpr:
            if isinstance(expr, ir.Access) and expr.tensor in names:
                return replace(expr, tensor=names[expr.tensor])
            return expr

        for store in found.before:
            name = self._fresh(f"{made.name}_{store.target.tensor}")
            value = rewrite(store.value, renamed)
            names[store.target.tensor] = name
            made.added.append(replace(self.program.tensor(store.target.tensor), name=name))
            target = replace(store.target, tensor=name)
            made.body.append(ir.Store(f"tile:{name}", target, value, store.origin))
        return rewrite(found.condition, renamed)

    def _with(self, made: BoundsKernel) -> ir.Program:
        return replace(self.program, tensors=(*self.program.tensors, *made.added))

    def _fresh(self, wanted: str) -> str:
        name = fresh_name(wanted, self.taken)
        self.taken.add(name)
        return name


def _names(condition: ir.TileExpr, before: tuple[ir.Store, ...]) -> frozenset[str]:
    """The variables of the grid and of loops that a condition, and what it reads, depend on."""
    needed = (names_of_access(store.target) | names_of_tile(store.value) for store in before)
    return names_of_tile(condition).union(*needed)


def _explained(
    program: ir.Program, kernel: ir.Kernel, loop: ir.For, found: _Hiding, made: list[ir.Kernel]
) -> Iterator[str]:
    roots = (found.condition, *(store.value for store in found.before))
    every = (e for root in roots for e in subexpressions(root) if isinstance(e, ir.Access | ir.Gather))
    read = dict.fromkeys(e.tensor for e in every if program.tensor(e.tensor).space != "chip")
    over, when = (", ".join(read), "at each call") if read else ("positions", "once on each device")
    yield (
        f"{kernel.name}: {loop.var} visits only the tiles in which the mask over {over} shows an element; "
        f"{', '.join(k.name for k in made)} list them {when}"
    )
    yield f"{kernel.name}: a tile that is not listed changes nothing that is read afterwards:"
    yield from found.proof.notes()


__all__ = [
    "FEWEST_LISTED",
    "FEWEST_READERS",
    "MOST_LISTED",
    "leaves_out_inside",
    "skip_any_tiles_by_list",
    "skip_every_tile_by_list",
    "skip_tiles_by_list",
]
