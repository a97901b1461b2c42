"""Skips tiles of columns past limits that inputs set to positions, such as lengths, or a window at an offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.bounds import Env, grid_env, loop_interval
from neptune_lab.htile.walk import accesses, conjuncts, stores, subexpressions, written_tensors
from neptune_lab.htile_passes.hoist_invariant_loads import hoisted
from neptune_lab.htile_passes.input_comparisons import WORDS, conditions, trips
from neptune_lab.htile_passes.partition_masked_loops import is_few_rows
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, NoOpProver, text
from neptune_lab.htile_passes.position_flags import is_few_flags
from neptune_lab.htile_passes.position_limits import Around, Ends, Limit, Tiles, ends_of, limit_of, tiles_of
from neptune_lab.htile_passes.rewrite import Rewrite, fresh_name, tile_pass
from neptune_lab.target import STAGES_OF_ONCE


@tile_pass(before="skip_tiles_by_flags")
def skip_tiles_by_positions(program: ir.Program) -> Rewrite:
    """Before => after, for a window that an offset moves:

        for j0 in range(4):
            score[...] = where(iota[NewAxis, js*256+j0*64:js*256+j0*64+64] <= off[b] and …, qk[...], -inf)
        =>
        j0_last[] = (clamp(off[b], js*256-1, js*256+255) - (js*256-64)) // 64
        for j0 in range(4) within j0_first[], j0_last[]:
            score[...] = where(iota[NewAxis, js*256+j0*64:js*256+j0*64+64] <= off[b] and …, qk[...], -inf)

    Each program computes the first and the last tile itself: a launch before it, as for the values of columns
    (`skip_tiles_by_data`), would take as long as a short kernel of decoding.

    A program of one tile, without a loop, gets one that runs once or not; what it stores if it does not run are the
    constants that it is proven to store.

    Formal statement: see `position_limits.ends_of`.  An iteration outside is proven to change nothing that is read
    afterwards, as for tiles that positions hide (`partition_masked_loops`).  It may be that no tile is visited: a split
    then stores the identity of its reductions.
    """
    return Skipper(program).rewrite()


@dataclass(frozen=True, slots=True)
class Hiding:
    """Tiles that a condition hides, and the proof that these may be left out.

    Args:
        ends: of the tiles that are left.
        words: what limits them.
        proof: that nothing changes without the others.
        before: the statements that store what `ends` reads.
    """

    ends: tuple[Ends, ...]
    words: str
    proof: NoOpProof
    before: tuple[ir.Store, ...] = ()


def are_limits_of_few_rows(
    program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env, condition: ir.TileExpr
) -> bool:
    """Whether a loop waits for memory, as in decoding, and all that a mask of it reads of inputs are limits, or flags
    (`skip_tiles_by_flags`)."""
    if not is_few_rows(loop, env, kernel, program):
        return False
    around = around_of(program, kernel, loop, env)
    return all(
        limit_of(part, around) is not None or is_few_flags(part, around, trips(loop, env))
        for part in conjuncts(condition)
        if any(isinstance(e, ir.Access | ir.Gather) for e in subexpressions(part))
    )


class Skipper:
    """Bounds the loops of a program by limits that its masks have; `limit_of` finds them."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.taken = {t.name for t in program.tensors}
        self.added: list[ir.Tensor] = []
        self.notes: list[str] = []
        self.moving: dict[str, frozenset[str]] = {}

    def rewrite(self) -> Rewrite:
        """The program whose loops have bounds, and why."""
        kernels = tuple(map(self.kernel, self.program.kernels))
        if not self.notes:
            return Rewrite(self.program)
        after = replace(self.program, tensors=(*self.program.tensors, *self.added), kernels=kernels)
        return Rewrite(hoisted(after, self.moving) if self.moving else after, tuple(self.notes))

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        """The kernel whose loops have bounds."""
        env, prover = grid_env(kernel), NoOpProver(self.program, kernel)
        if all(isinstance(stmt, ir.Store) for stmt in kernel.body):
            return self.one_tile(kernel, env, prover)
        body: list[ir.Stmt] = []
        for stmt in kernel.body:
            body += [stmt] if isinstance(stmt, ir.Store) else self.loop(kernel, stmt, env, prover)
        return kernel if len(body) == len(kernel.body) else replace(kernel, body=tuple(body))

    def loop(self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver) -> Iterator[ir.Stmt]:
        """The loop, after what it is bounded by."""
        found = list(self.hiding(kernel, loop, env, prover))
        if found:
            made, within = self.bounds(loop, [ends for one in found for ends in one.ends], trips(loop, env))
            yield from (store for one in found for store in one.before)
            yield from made
            loop = replace(loop, within=within)
            self.notes += _explained(kernel.name, f"{loop.var} visits only the tiles", found)
        yield loop

    def hiding(self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver) -> Iterator[Hiding]:
        """The conditions of a loop that hide tiles."""
        if is_bounded(loop):
            return
        around, count = around_of(self.program, kernel, loop, env), trips(loop, env)
        for condition in dict.fromkeys(conditions(loop)):
            if found := tuple(self.ends(condition, around, count)):
                proof = prover(loop, lambda mask, false=condition: mask == false)
                if proof.proven:
                    yield Hiding(tuple(ends for ends, _ in found), " and ".join(words for _, words in found), proof)

    def ends(self, condition: ir.TileExpr, around: Around, count: int) -> Iterator[tuple[Ends, str]]:
        """The ends of the tiles in which a condition may hold, of `count`, each with what limits them."""
        for limit in _limits(condition, around):
            if (tiles := tiles_of(limit.columns, around.var, count)) is not None:
                yield ends_of(limit, tiles, self.program), _words(limit)

    def one_tile(self, kernel: ir.Kernel, env: Env, prover: NoOpProver) -> ir.Kernel:
        """A kernel without loops, in which each program has one of several tiles of columns."""
        plain = ir.For(f"{kernel.node_id}/tile", "", ir.Int(0), ir.Int(1), kernel.body, kernel.body[-1].origin)
        for axis in kernel.grid:
            steps = _steps_of_products(kernel, axis.var)
            around = Around(self.program, env, axis.var, _inputs(self.program, kernel))
            for condition in dict.fromkeys(conditions(plain)):
                limits = tuple(x for x in _limits(condition, around) if _step(x.columns, axis.var) in steps)
                found = prover.constants(lambda mask, false=condition: mask == false) if limits else None
                if found is not None and axis.extent > 1:
                    why = Hiding((), " and ".join(map(_words, limits)), found[1])
                    self.notes += _explained(kernel.name, "a program reads its tile only if it is one of those", [why])
                    self.moving[kernel.name] = frozenset((axis.var,))
                    return self.once(kernel, plain, limits, found[0])
        return kernel

    def once(
        self, kernel: ir.Kernel, plain: ir.For, limits: tuple[Limit, ...], constants: Mapping[str, ir.Literal]
    ) -> ir.Kernel:
        """The kernel with a loop that runs once or not."""
        body: list[ir.Stmt] = []
        before: list[ir.Stmt] = []
        after: list[ir.Stmt] = []
        for store in stores(kernel.body):
            name = store.target.tensor
            if name not in constants:
                body.append(store)
                continue
            kept = self.tile(f"{name}_kept", replace(self.program.tensor(name), space="chip"))
            target = replace(store.target, tensor=kept)
            body.append(replace(store, target=target))
            before.append(replace(store, node_id=f"{store.node_id}/start", target=target, value=constants[name]))
            after.append(replace(store, node_id=f"{store.node_id}/kept", value=target))
        taken = {axis.var for axis in kernel.grid}
        loop = replace(plain, var=fresh_name("tile", taken, "_"), body=tuple(body), part="visited")
        own = (Tiles(limit.columns.start, limit.columns.extent, 1) for limit in limits)
        ends = [ends_of(limit, tiles, self.program) for limit, tiles in zip(limits, own, strict=True)]
        made, within = self.bounds(loop, ends, 1)
        stages = STAGES_OF_ONCE if kernel.num_stages is None else kernel.num_stages
        whole = (*before, *made, replace(loop, within=within), *after)
        return replace(kernel, body=whole, num_stages=stages)

    def bounds(
        self, loop: ir.For, ends: Iterable[Ends], count: int
    ) -> tuple[list[ir.Store], tuple[ir.Access, ir.Access]]:
        """The statements that find the first and the last tile, and what they are stored to."""
        own = tuple(dict.fromkeys(ends))
        firsts = [one.first for one in own if one.first is not None]
        lasts = [one.last for one in own if one.last is not None]
        made: list[ir.Store] = []
        for name, op, values, otherwise in (("first", "max", firsts, 0), ("last", "min", lasts, count)):
            value: ir.TileExpr = values[0] if values else ir.Literal(otherwise, "int32")
            for other in values[1:]:
                value = ir.Elementwise(op, (value, other), "int32")
            tile = self.tile(f"{loop.var}_{name}", ir.Tensor("", (), "int32", "chip"))
            made.append(ir.Store(f"{loop.node_id}/{name}", ir.Access(tile, ()), value, loop.origin))
        return made, (made[0].target, made[1].target)

    def tile(self, wanted: str, like: ir.Tensor) -> str:
        name = fresh_name(wanted, self.taken)
        self.taken.add(name)
        self.added.append(replace(like, name=name))
        return name


def _limits(condition: ir.TileExpr, around: Around) -> tuple[Limit, ...]:
    return tuple(limit for part in conjuncts(condition) if (limit := limit_of(part, around)) is not None)


def is_bounded(loop: ir.For) -> bool:
    """Whether a loop has bounds already, or cannot have any: it is a part of one, or has loops inside."""
    return bool(loop.within or loop.listed or loop.part) or any(isinstance(stmt, ir.For) for stmt in loop.body)


def around_of(program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env) -> Around:
    inside = {**env, loop.var: loop_interval(loop, env)}
    every = [store.target.tensor for store in stores(kernel.body)]
    chips = {
        stmt.target.tensor
        for stmt in kernel.body[: kernel.body.index(loop)]
        if isinstance(stmt, ir.Store) and stmt.mask is None and every.count(stmt.target.tensor) == 1
    }
    return Around(program, inside, loop.var, _inputs(program, kernel) | chips)


def _inputs(program: ir.Program, kernel: ir.Kernel) -> frozenset[str]:
    """The tensors outside of the chip that a kernel does not store to."""
    return frozenset(t.name for t in program.tensors if t.space != "chip") - written_tensors(kernel)


def _steps_of_products(kernel: ir.Kernel, var: str) -> frozenset[int]:
    """By how many columns the right operands of products move with a variable."""
    dots = (e for store in stores(kernel.body) for e in subexpressions(store.value) if isinstance(e, ir.Dot))
    columns = (i for dot in dots for a in accesses(dot.b) for i in a.index if isinstance(i, ir.Slice))
    return frozenset(_step(i, var) for i in columns) - {0}


def _step(columns: ir.Slice, var: str) -> int:
    return affine(columns.start).coefficient(ir.Name(var))


def _words(limit: Limit) -> str:
    return f"a position may be {WORDS[limit.op]} {text(limit.value)} of a row"


def _explained(kernel: str, what: str, found: Iterable[Hiding]) -> Iterator[str]:
    for one in found:
        yield f"{kernel}: {what} in which {one.words}; each program finds them from the values"
        yield f"{kernel}: a tile outside changes nothing that is read afterwards:"
        yield from (f"  {line}" for line in one.proof.lines)
        yield from (f"  assumed: {line}" for line in one.proof.assumptions)


__all__ = ["Hiding", "Skipper", "are_limits_of_few_rows", "around_of", "is_bounded", "skip_tiles_by_positions"]
