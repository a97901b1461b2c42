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
from neptune_lab.htile_passes.position_limits import Around, Limit, ends_of, limit_of, step_of
from neptune_lab.htile_passes.rewrite import Rewrite, fresh_name, tile_pass
from neptune_lab.target import STAGES_OF_ONCE


@tile_pass(before="partition_masked_loops")
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
    skipper = _Skipper(program)
    kernels = tuple(map(skipper.kernel, program.kernels))
    if not skipper.notes:
        return Rewrite(program)
    after = replace(program, tensors=(*program.tensors, *skipper.added), kernels=kernels)
    return Rewrite(hoisted(after, skipper.moving) if skipper.moving else after, tuple(skipper.notes))


@dataclass(frozen=True, slots=True)
class _Hiding:
    """A condition that limits hide tiles by, and the proof that these may be left out."""

    limits: tuple[Limit, ...]
    proof: NoOpProof


def are_limits_of_few_rows(
    program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env, condition: ir.TileExpr
) -> bool:
    """Whether a loop waits for memory, as in decoding, and all that a mask of it reads of inputs are limits."""
    if not is_few_rows(loop, env, kernel, program):
        return False
    around = _around(program, kernel, loop, env)
    return all(
        limit_of(part, around) is not None
        for part in conjuncts(condition)
        if any(isinstance(e, ir.Access | ir.Gather) for e in subexpressions(part))
    )


class _Skipper:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.taken = {t.name for t in program.tensors}
        self.added: list[ir.Tensor] = []
        self.notes: list[str] = []
        self.moving: dict[str, frozenset[str]] = {}

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
            limits = [limit for one in found for limit in one.limits]
            made, within = self.bounds(loop, limits, trips(loop, env))
            yield from made
            loop = replace(loop, within=within)
            self.notes += _explained(kernel.name, f"{loop.var} visits only the tiles", found)
        yield loop

    def hiding(self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver) -> Iterator[_Hiding]:
        """The conditions of a loop that hide tiles."""
        if loop.within or loop.listed or loop.part or any(isinstance(stmt, ir.For) for stmt in loop.body):
            return
        around = _around(self.program, kernel, loop, env)
        for condition in dict.fromkeys(conditions(loop)):
            limits = _limits(condition, around)
            limits = tuple(limit for limit in limits if step_of(limit.columns, loop.var) is not None)
            if limits:
                proof = prover(loop, lambda mask, false=condition: mask == false)
                if proof.proven:
                    yield _Hiding(limits, proof)

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
                    self.notes += _explained(
                        kernel.name, "a program reads its tile only if it is one of those", [_Hiding(limits, found[1])]
                    )
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
        made, within = self.bounds(loop, limits, 1)
        stages = STAGES_OF_ONCE if kernel.num_stages is None else kernel.num_stages
        whole = (*before, *made, replace(loop, within=within), *after)
        return replace(kernel, body=whole, num_stages=stages)

    def bounds(
        self, loop: ir.For, limits: Iterable[Limit], count: int
    ) -> tuple[list[ir.Store], tuple[ir.Access, ir.Access]]:
        """The statements that find the first and the last tile, and what they are stored to."""
        firsts: list[ir.TileExpr] = []
        lasts: list[ir.TileExpr] = []
        for limit in dict.fromkeys(limits):
            start = step_of(limit.columns, loop.var) if loop.part == "" else limit.columns.start
            assert start is not None
            ends = ends_of(limit, start, count, self.program)
            firsts += [] if ends.first is None else [ends.first]
            lasts += [] if ends.last is None else [ends.last]
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


def _around(program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env) -> Around:
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


def _explained(kernel: str, what: str, found: Iterable[_Hiding]) -> Iterator[str]:
    for one in found:
        limits = " and ".join(
            f"a position may be {WORDS[limit.op]} {text(limit.value)} of a row" for limit in one.limits
        )
        yield f"{kernel}: {what} in which {limits}; each program finds them from the values"
        yield f"{kernel}: a tile outside changes nothing that is read afterwards:"
        yield from (f"  {line}" for line in one.proof.lines)
        yield from (f"  assumed: {line}" for line in one.proof.assumptions)


__all__ = ["are_limits_of_few_rows", "skip_tiles_by_positions"]
