"""Skips tiles of columns past limits that inputs set to positions, such as lengths, or a window at an offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.bounds import Env, grid_env, loop_interval
from neptune_lab.htile.walk import accesses, conjuncts, stores, subexpressions, written_tensors
from neptune_lab.htile_passes.hoist_invariant_loads import hoisted
from neptune_lab.htile_passes.input_comparisons import WORDS, conditions, trips
from neptune_lab.htile_passes.joined_limits import (
    Alternatives,
    alternatives_of,
    disjuncts,
    ends_of_alternatives,
    has_gap,
)
from neptune_lab.htile_passes.only_row import only_row
from neptune_lab.htile_passes.partition_masked_loops import is_few_rows
from neptune_lab.htile_passes.partition_masked_loops.formula import formula_of
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, NoOpProver, text
from neptune_lab.htile_passes.partition_masked_loops.ranges import Span, somewhere
from neptune_lab.htile_passes.position_flags import is_few_flags
from neptune_lab.htile_passes.position_limits import (
    Around,
    Ends,
    Limit,
    Tiles,
    ends_of,
    limit_of,
    reads_inputs,
    tiles_of,
)
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

    Of limits that `or` joins, such as `kv > q + off[b] - 64 or kv < 4`, the tiles of each are left, and those between
    them are left out (`without`); in decoding also if all of them are numbers and positions, as the parts into which
    `partition_masked_loops` divides a loop are one part there.

    Formal statement: see `position_limits.ends_of` and `joined_limits.ends_of_alternatives`.  An iteration outside is
    proven to change nothing that is read afterwards, as for tiles that positions hide (`partition_masked_loops`).  It
    may be that no tile is visited: a split then stores the identity of its reductions.
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
        limit_of(part, around) is not None
        or alternatives_of(part, around, whole=True) is not None
        or is_few_flags(part, around, trips(loop, env))
        for part in conjuncts(condition)
        if reads_inputs(part)
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
            made, loop = self.bounded(loop, [ends for one in found for ends in one.ends], trips(loop, env))
            yield from (store for one in found for store in one.before)
            yield from made
            self.notes += _explained(kernel.name, f"{loop.var} visits only the tiles", found)
        yield loop

    def hiding(self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver) -> Iterator[Hiding]:
        """The conditions of a loop that hide tiles."""
        if is_bounded(loop):
            return
        around, count = around_of(self.program, kernel, loop, env), trips(loop, env)
        for condition in dict.fromkeys(conditions(loop)):
            limits = self.limits(condition, kernel, loop, around)
            if found := tuple(self.ends(limits, around, count)):
                proof = prover(loop, lambda mask, false=condition: mask == false)
                if proof.proven:
                    yield Hiding(tuple(ends for ends, _ in found), " and ".join(words for _, words in found), proof)

    def limits(self, condition: ir.TileExpr, kernel: ir.Kernel, loop: ir.For, around: Around) -> tuple[_Limiting, ...]:
        """What limits the columns for which a condition of a loop may hold."""
        found: list[_Limiting] = []
        for part in conjuncts(condition):
            if (limit := limit_of(part, around)) is not None:
                found.append(limit)
            elif (joined := alternatives_of(part, around)) is not None and (
                reads_inputs(part)
                or (is_few_rows(loop, around.env, kernel, self.program) and not _hides_nothing(part, loop, around.env))
                or _is_gap_of_positions(joined, part, loop, around)
            ):
                found.append(joined)
        return tuple(found)

    def ends(self, limits: tuple[_Limiting, ...], around: Around, count: int) -> Iterator[tuple[Ends, str]]:
        """The ends of the tiles that limits leave, of `count`, each with what limits them."""
        for limit in limits:
            ends = _ends_of(limit, lambda columns: tiles_of(columns, around.var, count), self.program)
            if ends is not None:
                yield ends, _words(limit)

    def one_tile(self, kernel: ir.Kernel, env: Env, prover: NoOpProver) -> ir.Kernel:
        """A kernel without loops, in which each program has one of several tiles of columns."""
        plain = ir.For(f"{kernel.node_id}/tile", "", ir.Int(0), ir.Int(1), kernel.body, kernel.body[-1].origin)
        for axis in kernel.grid:
            steps = _steps_of_products(kernel, axis.var)
            around = Around(self.program, env, axis.var, _inputs(self.program, kernel))
            for condition in dict.fromkeys(conditions(plain)):
                every = self.limits(condition, kernel, plain, around)
                limits = tuple(x for x in every if all(_step(c, axis.var) in steps for c in _columns(x)))
                found = prover.constants(lambda mask, false=condition: mask == false) if limits else None
                if found is not None and axis.extent > 1:
                    why = Hiding((), " and ".join(map(_words, limits)), found[1])
                    self.notes += _explained(kernel.name, "a program reads its tile only if it is one of those", [why])
                    self.moving[kernel.name] = frozenset((axis.var,))
                    return self.once(kernel, plain, limits, found[0])
        return kernel

    def once(
        self, kernel: ir.Kernel, plain: ir.For, limits: tuple[_Limiting, ...], constants: Mapping[str, ir.Literal]
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
        found = (_ends_of(limit, lambda own: Tiles(own.start, own.extent, 1), self.program) for limit in limits)
        made, loop = self.bounded(loop, [ends for ends in found if ends is not None], 1)
        stages = STAGES_OF_ONCE if kernel.num_stages is None else kernel.num_stages
        whole = (*before, *made, loop, *after)
        return replace(kernel, body=whole, num_stages=stages)

    def bounded(self, loop: ir.For, ends: Iterable[Ends], count: int) -> tuple[list[ir.Store], ir.For]:
        """The statements that find the first and the last tile, and the loop with these bounds."""
        own = tuple(dict.fromkeys(ends))
        firsts = [one.first for one in own if one.first is not None]
        lasts = [one.last for one in own if one.last is not None]
        made: list[ir.Store] = []

        def bound(name: str, value: ir.TileExpr) -> ir.Access:
            tile = self.tile(f"{loop.var}_{name}", ir.Tensor("", (), "int32", "chip"))
            made.append(ir.Store(f"{loop.node_id}/{name}", ir.Access(tile, ()), value, loop.origin))
            return made[-1].target

        two: list[ir.Access] = []
        for name, op, values, otherwise in (("first", "max", firsts, 0), ("last", "min", lasts, count)):
            value: ir.TileExpr = values[0] if values else ir.Literal(otherwise, "int32")
            for other in values[1:]:
                value = ir.Elementwise(op, (value, other), "int32")
            two.append(bound(name, value))
        loop = replace(loop, within=(two[0], two[1]))
        for one in own:
            if one.left_out is not None:  # (the tiles between the alternatives of another condition are visited)
                begin, end = one.left_out
                return made, replace(loop, without=(bound("gap_first", begin), bound("gap_last", end)))
        return made, loop

    def tile(self, wanted: str, like: ir.Tensor) -> str:
        name = fresh_name(wanted, self.taken)
        self.taken.add(name)
        self.added.append(replace(like, name=name))
        return name


# What limits the columns of a loop: one limit, or several that `or` joins.
_Limiting: TypeAlias = Limit | Alternatives


def _columns(limit: _Limiting) -> list[ir.Slice]:
    return [limit.columns] if isinstance(limit, Limit) else [one.columns for several in limit for one in several]


def _ends_of(limit: _Limiting, tiles: Callable[[ir.Slice], Tiles | None], program: ir.Program) -> Ends | None:
    if not isinstance(limit, Limit):
        return ends_of_alternatives(limit, tiles, program)
    own = tiles(limit.columns)
    return None if own is None else ends_of(limit, own, program)


def leaves_gap(program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env, condition: ir.TileExpr) -> bool:
    """Whether a loop will leave out a run of tiles inside of its range because of a mask of positions alone."""
    around = around_of(program, kernel, loop, env)
    every = ((part, alternatives_of(part, around)) for part in conjuncts(condition))
    return any(joined is not None and _is_gap_of_positions(joined, part, loop, around) for part, joined in every)


def _is_gap_of_positions(joined: Alternatives, condition: ir.TileExpr, loop: ir.For, around: Around) -> bool:
    return not reads_inputs(condition) and has_gap(joined) and not _hides_nothing(condition, loop, around.env)


def _hides_nothing(condition: ir.TileExpr, loop: ir.For, env: Env) -> bool:
    """Whether an alternative of a condition of positions is proven to reach into all iterations of a loop."""
    span = Span.of(loop, env)
    return any(span.covers(somewhere(formula_of(one), span), span.all) for one in disjuncts(condition))


def is_bounded(loop: ir.For) -> bool:
    """Whether a loop has bounds already, or cannot have any: it is a part of one, or has loops inside."""
    return bool(loop.within or loop.listed or loop.part) or any(isinstance(stmt, ir.For) for stmt in loop.body)


def around_of(program: ir.Program, kernel: ir.Kernel, loop: ir.For, env: Env) -> Around:
    inside = {**env, loop.var: loop_interval(loop, env)}
    every = [store.target.tensor for store in stores(kernel.body)]
    chips = {
        stmt.target.tensor: stmt.value
        for stmt in kernel.body[: kernel.body.index(loop)]
        if isinstance(stmt, ir.Store) and stmt.mask is None and every.count(stmt.target.tensor) == 1
    }
    inputs = _inputs(program, kernel)
    loaded = {name: value for name, value in chips.items() if isinstance(value, ir.Access) and value.tensor in inputs}
    return Around(program, inside, loop.var, inputs | set(chips), loaded, only_row(program, kernel))


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


def _words(limit: _Limiting) -> str:
    if isinstance(limit, Limit):
        return f"a position may be {WORDS[limit.op]} {text(limit.value)} of a row"
    return " or ".join(" and ".join(map(_words, one)) for one in limit)


def _explained(kernel: str, what: str, found: Iterable[Hiding]) -> Iterator[str]:
    for one in found:
        yield f"{kernel}: {what} in which {one.words}; each program finds them from the values"
        yield f"{kernel}: a tile outside changes nothing that is read afterwards:"
        yield from one.proof.notes()


__all__ = [
    "Hiding",
    "Skipper",
    "are_limits_of_few_rows",
    "around_of",
    "is_bounded",
    "leaves_gap",
    "skip_tiles_by_positions",
]
