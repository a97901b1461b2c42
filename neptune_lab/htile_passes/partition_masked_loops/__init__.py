"""Partitions loops by their masks: skips tiles that a mask hides, and removes the mask where it is true everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from neptune_lab.htile.bounds import Env, Interval, grid_env, loop_interval
from neptune_lab.htile.labels import SUFFIX
from neptune_lab.htile.loop_runs import always_runs
from neptune_lab.htile.nodes import (
    Access,
    Dot,
    Elementwise,
    For,
    Gather,
    Kernel,
    Part,
    Program,
    Stmt,
    Store,
    TileExpr,
)
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.sizes import grid_envs
from neptune_lab.htile.walk import (
    conjuncts,
    is_bounded_by_data,
    map_stores,
    names_of_tile,
    rewrite,
    stores,
    subexpressions,
    unchanged,
    with_body,
)
from neptune_lab.htile_passes.input_comparisons import conditions
from neptune_lab.htile_passes.partition_masked_loops.masks import Masks, find_masks, is_mask
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, NoOpProver
from neptune_lab.htile_passes.partition_masked_loops.notes import ProofAttempt, explain
from neptune_lab.htile_passes.partition_masked_loops.ranges import IterationRange, Span, has_quotient
from neptune_lab.htile_passes.rewrite import Rewrite, map_kernels, tile_pass
from neptune_lab.htile_passes.unroll_single_iterations import trip_count
from neptune_lab.tensor_spec import LARGEST


@tile_pass(after="drop_dead_tiles")  # it copies bodies: the ones before find things in one
def partition_masked_loops(program: Program) -> Rewrite:
    """Before => after, for causal attention with tiles of 64 rows and 64 columns:

        for j0 in range(4):
            score[...] = where(iota[j0*64:j0*64+64] <= iota[i0*64:i0*64+64], qk[...] * 0.125, -inf)
            m[...] = max(m[...], reduce(max, score[...]))
        =>
        for j0 in range(i0):  # interior
            score[...] = qk[...] * 0.125
            m[...] = max(m[...], reduce(max, score[...]))
        for j0 in range(i0, i0+1):  # right edge
            score[...] = where(iota[j0*64:j0*64+64] <= iota[i0*64:i0*64+64], qk[...] * 0.125, -inf)
            m[...] = max(m[...], reduce(max, score[...]))

    The pass bounds each condition's affine form over the lanes of a tile, and sorts the iterations:

    - Those in which a mask is false on the whole tile are skipped, if it is proven that such an iteration changes
      nothing that is read afterwards (noop_iterations.py; this assumes finite inputs, so that 0 * v is 0).
    - Those in which a condition is true on the whole tile, and no load reaches past the end of its tensor, become the
      interior, without the condition.
    - The others, before and after the interior, are the edges.  An edge keeps the conditions that are not true on all
      of it.

    A loop with three products or more and an accumulator of more than 64 columns (the backward pass of attention) stays
    one loop, of which hidden tiles are skipped.  Its registers are full, and two loops start and drain the pipeline of
    loads twice: on an H100 the nests of causal attention's backward pass at head_dim 128 take 12 to 34% less time so.
    So does a loop of few queries, which waits for memory: on an H200, nine problems of decoding take 0.81 to 1.00 of
    the time so, and compile in a third to two thirds.

    Bounds are expressions in the variables of the grid and of outer loops.  For all values of these, the parts cover
    each iteration that is not skipped exactly once, in the same order.  Only innermost loops are partitioned.

    This pass runs late, because other passes would have to handle three copies of a body.  It returns its proof as
    notes.

    Measured on an H200 at 8192 positions: without it causal attention takes 2.3 times as long, and 3.2 times
    with a window of 4096.
    """
    return _partitioned(program)


@tile_pass(on_request=True)
def partition_long_loops(program: Program) -> Rewrite:
    """As `partition_masked_loops`, but a short loop of large tiles stays one, of which hidden tiles are skipped, and so
    does one of still larger tiles that data bound: Triton compiles the body once in place of two or three times, and
    the pipeline of loads starts once.  It is marked, for the small form of the program (`partition_no_loops`)."""
    return _partitioned(program, whole=lambda loop, program: is_short(loop, program) or is_wide(loop, program))


@tile_pass(on_request=True)
def partition_no_loops(program: Program) -> Rewrite:
    """As `partition_masked_loops`, but every loop stays one, of which hidden tiles are skipped: the small form of a
    program that `partition_long_loops` left whole, whose tiles are large no more."""
    return _partitioned(program, whole=lambda loop, program: True)


@tile_pass(on_request=True)
def partition_loops_with_certain_ends(program: Program) -> Rewrite:
    """As `partition_masked_loops`, but a loop stays one, of which hidden tiles are skipped, if neither its first part
    nor its last has a tile in every program: kernels in Gluon begin with a tile before their loops.

    Documents of one length (`q // 200 == kv // 200`) are such a mask: a tile of 128 rows within a document sees whole
    tiles alone, or has edges on both sides, or on one.
    """
    return _partitioned(program, certain=True)


@tile_pass(on_request=True)
def partition_loops_of_any_size(program: Program) -> Rewrite:
    """As `partition_masked_loops`, but a loop stays one, of which hidden tiles are skipped, if a condition is on
    quotients of its positions (`q // 12 == kv // 12`), and its bounds are proven for any number of programs: where a
    document ends in the last tile differs with the size."""
    return _partitioned(program, any_size=True)


def _partitioned(
    program: Program,
    *,
    certain: bool = False,
    any_size: bool = False,
    whole: Callable[[For, Program], bool] = lambda loop, program: False,
) -> Rewrite:
    partitioner = _Partitioner(program, certain, any_size, whole)
    return Rewrite(map_kernels(program, partitioner.kernel), tuple(partitioner.notes))


@dataclass(frozen=True, slots=True)
class _Segment:
    part: Part
    at: IterationRange


class _Partitioner:
    def __init__(self, program: Program, certain: bool, any_size: bool, whole: Callable[[For, Program], bool]) -> None:
        self.program, self.certain, self.any_size, self.whole = program, certain, any_size, whole
        self.notes: list[str] = []

    def kernel(self, kernel: Kernel) -> Kernel:
        prover = NoOpProver(self.program, kernel)
        body = self.body(kernel.body, grid_env(kernel), kernel, prover)
        return with_body(kernel, body)

    def body(self, body: tuple[Stmt, ...], env: Env, kernel: Kernel, prover: NoOpProver) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Store):
                out.append(stmt)
            elif any(isinstance(inner, For) for inner in stmt.body):
                inner = self.body(stmt.body, {**env, stmt.var: loop_interval(stmt, env)}, kernel, prover)
                out.append(with_body(stmt, inner))
            else:
                out += self.loop(stmt, env, kernel, prover)
        return body if unchanged(out, body) else tuple(out)

    def loop(self, loop: For, env: Env, kernel: Kernel, prover: NoOpProver) -> tuple[For, ...]:
        if loop.part or loop.listed is not None:  # (a list has no tile that positions hide, and no order of parts)
            return (loop,)
        span = Span.of(loop, env)
        masks = find_masks(loop, span, self.program)
        if not masks.masks and not masks.conjuncts:
            return (loop,)
        part: Part = "whole" if self.whole(loop, self.program) else "visited"
        whole = part == "whole" or is_crowded(loop, self.program) or is_few_rows(loop, env, kernel, self.program)
        if self.any_size and any(has_quotient(c.formula, loop.var) for c in masks.conjuncts):
            whole, span = True, Span.of(loop, {name: Interval(at.lo, LARGEST) for name, at in env.items()})
            masks = find_masks(loop, span, self.program)
        visited, attempts = _visited(loop, masks, span, prover)
        one = (_Segment(part, visited),)
        segments = one if whole else _segments(visited, masks, span)
        if self.certain and not any(self.always_has_a_tile(loop, s, kernel) for s in (segments[-1], segments[0])):
            segments = one
        loops = tuple(self.segment(loop, s, masks, span, len(segments) > 1) for s in segments)
        if len(loops) != 1 or loops[0] is not loop:
            self.notes += explain(kernel, loop, loops, masks, span, attempts)
        return loops

    def always_has_a_tile(self, loop: For, segment: _Segment, kernel: Kernel) -> bool:
        """Whether a part of `loop` has a tile in every program."""
        part = replace(loop, start=segment.at.lo, stop=segment.at.hi)
        return all(always_runs(part, env) for env in grid_envs(self.program, kernel))

    def segment(self, loop: For, segment: _Segment, masks: Masks, span: Span, is_one_of_many: bool) -> For:
        """One part of `loop`, without the conditions that are true on all of it."""
        true = masks.true_on(segment.at, span)

        def visit(expr: TileExpr) -> TileExpr:
            match expr:
                case Elementwise(op="where", args=(condition, kept, other)):
                    left = without(condition, true)
                    if left is condition:
                        return expr
                    shorter = kept if left is None else replace(expr, args=(left, kept, other))
                    # Without the condition, the tile may lose extents.
                    same = shape_of(shorter, self.program) == shape_of(expr, self.program)
                    return shorter if same else expr
                case _:
                    return expr

        def shorten(store: Store) -> Store:
            value = rewrite(store.value, visit)
            mask = None if store.mask is None else without(store.mask, true)
            same = value is store.value and mask is store.mask
            return store if same else replace(store, value=value, mask=mask)

        def rename(store: Store) -> Store:
            return replace(store, node_id=store.node_id + SUFFIX[segment.part])

        body = map_stores(loop.body, shorten)
        if not is_one_of_many and segment.part != "whole" and span.covers(segment.at, span.all):
            return with_body(loop, body)
        out = replace(loop, start=segment.at.lo, stop=segment.at.hi, body=body, part=segment.part)
        if loop.without is not None and not any(self.is_limit(part) for c in conditions(out) for part in conjuncts(c)):
            out = replace(out, within=None, without=None)  # (what limits the loop holds in all of the part)
        if is_one_of_many:
            out = replace(out, node_id=loop.node_id + SUFFIX[segment.part], body=map_stores(body, rename))
        return out

    def is_limit(self, condition: TileExpr) -> bool:
        """Whether a conjunct of a mask may be what limits a loop (`skip_tiles_by_positions`)."""
        reads = any(isinstance(e, Access | Gather) for e in subexpressions(condition))
        joins = isinstance(condition, Elementwise) and condition.op == "or"
        return is_mask(condition, self.program) and (reads or joins)


# Products from which on a loop with an accumulator of more than so many columns is not divided.
CROWDED_PRODUCTS, CROWDED_COLUMNS = 3, 64


def is_crowded(loop: For, program: Program) -> bool:
    """Whether the registers of a loop are full: it has three products or more, one of which accumulates many columns.

    Args:
        loop: of a kernel.
        program: the kernel's.
    """
    products = products_of(loop)
    widest = max((shape_of(e, program)[-1] for e in products if e.acc is not None), default=0)
    return len(products) >= CROWDED_PRODUCTS and widest > CROWDED_COLUMNS


# Products of at most so many rows wait for what they load, whatever their masks take.
FEW_ROWS = 16


def is_few_rows(loop: For, env: Env, kernel: Kernel, program: Program) -> bool:
    """Whether a loop waits for memory, as that of one query does in decoding: its products have few rows, and no two
    programs multiply the same columns.

    Args:
        loop: of `kernel`.
        env: the values of the variables around it.
        program: the kernel's.
    """
    products = products_of(loop)
    if not products or any(shape_of(e.a, program)[-2] > FEW_ROWS for e in products):
        return False
    stored = {store.target.tensor: store.value for store in stores(loop.body)}
    several = {axis.var for axis in kernel.grid if env[axis.var].lo != env[axis.var].hi}
    # (beside the columns, an operand may read what all heads share, such as lengths, or a table of pages)
    return all(any(several <= names_of_tile(read) for read in _loaded(e.b, stored, program)) for e in products)


# Loops of at most so many tiles are not divided where code is long: two products with more elements together.
SHORT_LOOP, LARGE_TILES = 16, 2 * 64 * 64


def is_short(loop: For, program: Program) -> bool:
    """Whether a loop's copies would take longer to compile than their fewer masks are worth: it has few tiles, and two
    products with so many elements that their code is long.

    On an H200, eight problems of 159 to 900 keys took 0.91 to 1.04 of the time as one loop, 0.97 by geometric mean, and
    Triton 0.66 of the time to compile them; three of 24 to 32 tiles 1.02 to 1.10.  With longer loops that data bound,
    first calls took 0.65 of the time, but 19 such kernels took 0.90 to 1.26 of the time as one loop, 1.05 by geometric
    mean: the longer the documents, the more tiles have no mask.  Of these only the widest stay one (`is_wide`).

    Args:
        loop: of a kernel.
        program: the kernel's.
    """
    tiles = trip_count(loop)
    return tiles is not None and tiles <= SHORT_LOOP and _elements_of_two(loop, program) > LARGE_TILES


# Loops that data bound are not divided if two products have more elements together than those of this many columns.
WIDE_TILES = 2 * 64 * 128


def is_wide(loop: For, program: Program) -> bool:
    """Whether a loop that data bound has tiles so large that its copies compile for longer than FlexAttention takes to
    compile both of its own: heads of 256 columns.  A loop that computes more than exponentials is divided: its masks
    take registers that it lacks (with a soft cap 1.25 of the time; divided, its first call takes at most
    1.3 of FlexAttention's).

    On an H200, five kernels took 0.99 to 1.29 of the time as one loop, and 0.5 to 0.7 of the time to
    compile: 0.99 and 1.01 where tiles divide the positions, and more where each load asks which rows are there.

    Args:
        loop: of a kernel.
        program: the kernel's.
    """
    every = (e for store in stores(loop.body) for e in subexpressions(store.value) if isinstance(e, Elementwise))
    heavy = any(e.op in ("tanh", "erf", "sin", "cos", "log", "pow") for e in every)
    return is_bounded_by_data(loop, program) and not heavy and _elements_of_two(loop, program) > WIDE_TILES


def _elements_of_two(loop: For, program: Program) -> int:
    """The elements of a loop's two products together; 0 if it has fewer products, or more."""
    products = products_of(loop)
    return sum(prod(shape_of(e, program)[-2:]) for e in products) if len(products) == 2 else 0


def _loaded(expr: TileExpr, stored: Mapping[str, TileExpr], program: Program) -> list[Access | Gather]:
    """What an expression reads of global memory, also in the tiles that a loop stores on chip for it."""
    found: list[Access | Gather] = []
    for part in subexpressions(expr):
        if isinstance(part, Gather) or (isinstance(part, Access) and program.tensor(part.tensor).space != "chip"):
            found.append(part)
        elif isinstance(part, Access) and part.tensor in stored:
            found += _loaded(stored[part.tensor], {}, program)
    return found


def products_of(loop: For) -> list[Dot]:
    """The products in a loop's body."""
    return [e for store in stores(loop.body) for e in subexpressions(store.value) if isinstance(e, Dot)]


def without(condition: TileExpr, true: frozenset[TileExpr]) -> TileExpr | None:
    """`condition` without those operands of `and` that are in `true`; None if none is left."""
    parts = conjuncts(condition)
    left = [part for part in parts if part not in true]
    if len(left) == len(parts):
        return condition
    out: TileExpr | None = None
    for part in left:
        out = part if out is None else Elementwise("and", (out, part), "bool")
    return out


def _visited(
    loop: For, masks: Masks, span: Span, prover: NoOpProver
) -> tuple[IterationRange, tuple[ProofAttempt, ...]]:
    """The iterations that are not proven to be no-ops, and the attempted proofs."""
    visited = span.all
    attempts: list[ProofAttempt] = []
    for candidate in dict.fromkeys(mask.visited for mask in masks.masks):
        if span.covers(candidate, span.all):
            continue
        false = masks.false_outside(candidate, span)
        proof: NoOpProof = prover(loop, lambda condition, false=false: condition in false)
        attempts.append(ProofAttempt(tuple(m for m in masks.masks if m.visited == candidate), candidate, proof))
        if proof.proven:
            visited = span.meet(visited, candidate)
    return visited, tuple(attempts)


def _segments(visited: IterationRange, masks: Masks, span: Span) -> tuple[_Segment, ...]:
    """`visited` in up to three parts, in order; in the middle one, as many conditions as possible are true."""
    inside: IterationRange | None = None
    for conjunct in masks.conjuncts:
        if conjunct.moves and not span.covers(conjunct.true_on, visited):
            narrower = span.meet(visited if inside is None else inside, conjunct.true_on)
            inside = inside if span.is_empty(narrower) else narrower
    if inside is None:
        return (_Segment("visited", visited),)
    # Formal statement: with lo <= hi, A = inside.lo >= lo and B = inside.hi <= hi, the ranges [lo, min(A, hi)),
    # [A, B) and [max(B, min(A, hi)), hi) cover [lo, hi) once: if A < B both extrema are A and B; otherwise the
    # second is empty and the third starts where the first stops.  With hi < lo all three are empty.
    first = span.meet(visited, IterationRange(visited.lo, inside.lo)).hi
    last = span.meet(IterationRange(inside.hi, visited.hi), IterationRange(first, visited.hi)).lo
    parts = (
        _Segment("left edge", IterationRange(visited.lo, first)),
        _Segment("interior", inside),
        _Segment("right edge", IterationRange(last, visited.hi)),
    )
    return tuple(part for part in parts if not span.is_empty(part.at)) or (_Segment("visited", span.none),)
