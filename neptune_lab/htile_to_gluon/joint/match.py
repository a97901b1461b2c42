"""Matches two nests of a backward pass that compute the same tiles, one of them transposed.

    nest over keys                              nest over queries
        for j: s[i, j] = …                          for i: s[j, i] = …
               x[i, j] = f(s[i, j], …)                     x[j, i] = f(s[j, i], …)
               y[i] = y[i] + x[i, j] @ k[j]                z[j] = z[j] + x[j, i] @ q[i], …
        out[i] = g(y[i])                            …
    =>
        for i: s[j, i], x[j, i], z[j] as in the nest over queries
               total[i] += transpose(x[j, i]) @ k[j]       in the order in which programs come to it
        out[i] = g(total[i])                        in a kernel of its own

Legality.  Formal statement: let V and W be the pairs (i, j) of elements that the two nests visit.  The kernel of both
stores the same out as the first nest, up to the order of a sum, if (1) both nests compute x by the same terms from the
same elements of global memory, (2) the mask hides each pair of V that is not in W, and (3) where W visits a pair that V
does not, x is 0 there, or not a number in both.  (1) is an equality of terms, and (2) is tried for all programs
(masks.py).  (3) holds since both nests are of one sum over all pairs, from which the compiler leaves out only tiles
that add 0.  What the nest over keys stores for each pair is summed along diagonals besides, if that is all that is read
of it (diagonals.py), and the nest over queries visits each pair once but those that the mask hides; or it is stored by
the kernel of both (pairs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import evaluate, expressions, same_index, stores, subexpressions
from neptune_lab.htile_to_gluon.joint.diagonals import Diagonals, diagonals_of, without
from neptune_lab.htile_to_gluon.joint.form import KEYS, check_form
from neptune_lab.htile_to_gluon.joint.masks import Definition, definition, hides, zero_unless
from neptune_lab.htile_to_gluon.joint.pairs import (
    Pairs,
    after_pairs,
    before_rounding,
    check_pairs,
    pairs_of,
    unrounded,
    without_stores,
)
from neptune_lab.htile_to_gluon.joint.squares import Exchanged, exchanged
from neptune_lab.htile_to_gluon.joint.terms import SQUARE, Terms
from neptune_lab.htile_to_gluon.match import match_structure
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure, UnsupportedKernel
from neptune_lab.htile_to_triton.context import sizes_of


@dataclass(frozen=True, slots=True)
class Joint:
    """Two nests that are one kernel.

    Args:
        kernel: the nest whose programs stay, and its structure.
        around: the loop around its loops, over the heads of a group, if there is one.
        heads: the indices of a query's other dimensions, in `kernel`.
        other: the nest whose sum is added by the programs of `kernel`.
        value: the tile of `kernel` that, transposed, is the left operand of that sum.
        held: the leading product of `kernel` whose left operand is the sum's right one.
        total: the tile of `other` that accumulates.
        output: the store of it.
        row: the axis of the grid of `kernel` that counts its row blocks.
        queries, keys: the lengths, of which tiles need not be a divisor.
        in_turn: whether each tile of the sum is visited by consecutive row blocks, once by each.
        from_first: whether the first row block is always among them.
        diagonals: of the pairs that are summed along diagonals, the tile of `kernel` that has them; None: there are
            none.
        pairs: the tensor in which `other` stores `value`, transposed; None: it stores none.
        exchanged: the tensors of `structure` that exist with their dimensions exchanged.
    """

    kernel: ir.Kernel
    structure: Structure
    around: ir.For | None
    heads: tuple[ir.IndexExpr, ...]
    other: ir.Kernel
    value: str
    held: Product
    total: str
    output: ir.Store
    row: str
    queries: ir.IndexExpr
    keys: ir.IndexExpr
    in_turn: bool
    from_first: bool
    diagonals: Diagonals | None = None
    pairs: Pairs | None = None
    exchanged: Exchanged = field(default_factory=Exchanged)


def joint_of(program: ir.Program) -> Joint:
    """The two nests of a program.

    Raises:
        UnsupportedKernel: there are no two of this form; the message says in what they differ.
    """
    reason = UnsupportedKernel("it has no two nests over the same pairs")
    for without_pairs, diagonals, pairs in _without_pairs(program):
        for kernel, other in permutations(without_pairs.kernels, 2):
            try:
                return _joint(without_pairs, kernel, other, diagonals, pairs)
            except UnsupportedKernel as found:
                if _products(kernel) == 4 and _products(other) == 3:
                    reason = found
    raise reason


def _without_pairs(program: ir.Program) -> Iterator[tuple[ir.Program, Diagonals | None, Pairs | None]]:
    """The program without what it stores for each pair, if sums along diagonals are all that is read of that, and
    without the statements that store it; as it is if it stores none."""
    diagonals, pairs = diagonals_of(program), pairs_of(program)
    if diagonals is not None:
        yield without(program, diagonals), diagonals, None
    if pairs is not None:
        yield without_stores(program, pairs), None, pairs
    if diagonals is None and pairs is None:
        yield program, None, None


def joint_with(program: ir.Program, found: Joint) -> Joint:
    """The same two nests of a program with sizes, of which `found` is of a sample."""
    named = {kernel.name: kernel for kernel in program.kernels}
    kernel, other = named[found.kernel.name], named[found.other.name]
    flat, around = _without_loop_around(kernel)
    mine, theirs = match_structure(program, flat), match_structure(program, other)
    (output,) = theirs.after
    held = next(p for p in mine.parts[0].leading if p.target == found.held.target)
    queries, keys = _lengths(program, output, theirs.parts[0].trailing[0])
    made = replace(found, kernel=kernel, structure=mine, around=around, heads=_outer(mine.first.leading[0].b))
    return replace(made, other=other, held=held, output=output, queries=queries, keys=keys)


def _products(kernel: ir.Kernel) -> int:
    loops = [stmt for stmt in kernel.body if isinstance(stmt, ir.For)]
    return sum(isinstance(s, ir.Store) and isinstance(s.value, ir.Dot) for s in loops[0].body) if loops else 0


@dataclass(frozen=True, slots=True)
class _Nests:
    """Both nests, and the terms in which their tiles are compared.

    Args:
        kernel, other: the nest over keys, and the one over queries.
        mine, theirs: their structures.
        keys, queries: the terms of each part of them.
        lengths: of the queries and of the keys.
    """

    program: ir.Program
    kernel: ir.Kernel
    other: ir.Kernel
    mine: Structure
    theirs: Structure
    keys: list[Terms]
    queries: list[Terms]
    lengths: tuple[int, int]

    @property
    def output(self) -> ir.Store:
        """The store of the sum of the nest over queries."""
        (output,) = self.theirs.after
        return output

    @property
    def different(self) -> bool:
        """Whether heads differ in what they visit."""
        return any(terms.differ for terms in (*self.keys, *self.queries))

    @property
    def heads_apart(self) -> range:
        """The heads whose visits are looked at: all if they differ, else one."""
        return range(len(self.keys[0].heads) if self.different else 1)

    def left_out(self, head: int) -> list[tuple[int, int]]:
        """The squares of pairs that the nest over queries visits for a head, and the nest over keys does not."""
        rows, columns = self.lengths
        mine = {(q, k) for terms in self.keys for k, q in terms.visited(head)}
        theirs = {pair for terms in self.queries for pair in terms.visited(head)}
        return sorted((q, k) for q, k in theirs - mine if q * SQUARE < rows and k * SQUARE < columns)


def _joint(
    program: ir.Program, kernel: ir.Kernel, other: ir.Kernel, diagonals: Diagonals | None, pairs: Pairs | None
) -> Joint:
    """The two nests as one kernel.

    Args:
        kernel: the nest over queries, which sums up gradients of keys and values.
        other: the nest over keys, whose sum is the gradient of the queries.
        diagonals, pairs: the further sum that the kernel stores, if there is one.

    Raises:
        UnsupportedKernel: they have another form, or compute different tiles.
    """
    flat, around = _without_loop_around(kernel)
    program, flat, of_mine = exchanged(program, flat)
    program, nest, of_theirs = exchanged(program, other)
    mine, theirs = match_structure(program, flat), match_structure(program, nest)
    check_form(program, kernel, mine, theirs)
    (output,) = theirs.after
    heads, outer = _outer(mine.first.leading[0].b), _outer(output.target)
    if len({program.tensor(n).shape[:-2] for n in (output.target.tensor, mine.first.leading[0].b.tensor)}) != 1:
        raise UnsupportedKernel(f"{output.target.tensor} has other heads than the queries")
    of_keys = theirs.first.trailing[0].b.tensor
    lengths = program.tensor(output.target.tensor).shape[-2], program.tensor(of_keys).shape[-2]
    keys = [
        Terms(program, flat, part, mine.resident, heads, of_mine.names, lengths, transposed=True) for part in mine.parts
    ]
    queries = [
        Terms(program, nest, part, theirs.resident, outer, of_theirs.names, lengths, transposed=False)
        for part in theirs.parts
    ]
    if keys[0].heads != queries[0].heads:
        raise UnsupportedKernel(f"{kernel.name} and {other.name} do not visit the same heads once each")
    nests = _Nests(program, kernel, other, mine, theirs, keys, queries, lengths)
    value, held = _shared_tiles(nests)
    sum_ = theirs.parts[0].trailing[0]
    for expr in subexpressions(output.value):
        if not isinstance(expr, ir.Elementwise | ir.Cast | ir.Literal | ir.Access) or (
            isinstance(expr, ir.Access) and expr.tensor != sum_.target
        ):
            raise UnsupportedKernel(f"{output.target.tensor} is more than a multiple of a sum")
    visitors = [found for head in nests.heads_apart for found in _visitors(keys, head)]
    in_turn = all(found == [*range(found[0], found[0] + len(found))] for found in visitors)
    from_first = all(found[0] == 0 for found in visitors)
    rest = (sum_.target, output, keys[0].axis, *_lengths(program, output, sum_), in_turn, from_first)
    if diagonals is not None:
        diagonals = _diagonals_there(nests, diagonals)
    if pairs is not None:
        pairs = _pairs_there(nests, pairs, value)
    return Joint(kernel, mine, around, heads, other, value, held, *rest, diagonals, pairs, of_mine)


def _shared_tiles(nests: _Nests) -> tuple[str, Product]:
    """What the nest over keys has of the sum of the other: the tensor of the left operand, and the product of which the
    right one is an operand.

    Formal statement: in every part of the nest over keys, the tile of one trailing product is, by its definition, the
    one that the other nest multiplies; and every pair that the nest over keys leaves out is hidden there.

    Raises:
        UnsupportedKernel: it does not compute the same tiles, or does not visit all pairs.
    """
    program, mine, theirs, keys, queries = nests.program, nests.mine, nests.theirs, nests.keys, nests.queries
    sums = [part.trailing[0] for part in theirs.parts]
    wanted = definition(_terms_of_sum(nests))
    rights = {terms.of(p.b) for terms, p in zip(queries, sums, strict=True)}
    values: list[str] = []
    for n, one in enumerate(mine.first.trailing):
        every = [_unguarded(program, part.trailing[n]) for part in mine.parts]
        found = [terms.of(a) for terms, a in zip(keys, every, strict=True)]
        value = _unguarded(program, one)
        if isinstance(value, ir.Access) and wanted is not None and definition(found) == wanted:
            values.append(value.tensor)
    held = [p for p in mine.parts[0].leading if {terms.of(p.a) for terms in keys} == rights]
    if not values or not held or sums[0].transposed:
        raise UnsupportedKernel(f"{nests.kernel.name} and {nests.other.name} do not compute the same tiles")
    if min(nests.lengths) < KEYS:
        raise UnsupportedKernel(f"there are fewer than {KEYS} queries or keys")
    if not all(hides(wanted, nests.left_out(head), SQUARE) for head in nests.heads_apart):
        raise UnsupportedKernel(f"{nests.kernel.name} does not visit all pairs that {nests.other.name} visits")
    return values[0], held[0]


def _diagonals_there(nests: _Nests, diagonals: Diagonals) -> Diagonals:
    """The sums along diagonals with the tile that the nest over keys has of the pairs, and what its bounds say."""
    if diagonals.maker != nests.other.name or _outer(diagonals.stored.target) != _outer(nests.output.target):
        raise UnsupportedKernel(f"{diagonals.pairs} has other pairs than the sum of {nests.other.name}")
    tile = _same_tile(nests.program, nests.mine, nests.keys, nests.queries, diagonals.stored)
    first = nests.mine.parts[0]
    if nests.different or not _are_between_bounds(first, nests.keys[0], nests.lengths):
        raise UnsupportedKernel(f"{nests.kernel.name} visits other tiles of {diagonals.pairs} than its bounds say")
    visited = (ir.Int(0), ir.Int(1)) if first.loop is None else (first.loop.start, first.loop.stop)
    return replace(diagonals, tile=tile, row=nests.keys[0].axis, visited=visited)


def _pairs_there(nests: _Nests, pairs: Pairs, value: str) -> Pairs:
    """The tensor of pairs, of which the nest over keys has what is stored, and with what hides the pairs that it does
    not visit (`pairs.only_shown`).

    Args:
        value: the tile of the nest over queries that is the left operand of the sum.
    """
    if pairs.maker != nests.other.name:
        raise UnsupportedKernel(f"{pairs.tensor} is stored by a nest without a sum over keys")
    program, target = nests.program, nests.output.target
    shape = (*program.tensor(target.tensor).shape[:-2], *nests.lengths)
    operands = [_unguarded(program, part.trailing[0]) for part in nests.theirs.parts]
    check_pairs(program, pairs, [*zip(nests.theirs.parts, nests.queries, operands, strict=True)], _outer(target), shape)
    if program.tensor(pairs.tensor).dtype == "float32":
        pairs = replace(pairs, unrounded=unrounded(program, nests.mine.parts, value))
    left_out = [nests.left_out(head) for head in nests.heads_apart]
    if not any(left_out):
        return pairs
    shown = zero_unless(_terms_of_sum(nests))
    hidden = all(hides(Definition(frozenset(shown), None, None), squares, SQUARE) for squares in left_out)
    read_otherwise = any(
        isinstance(expr, ir.Gather) and expr.tensor == pairs.tensor
        for kernel in after_pairs(program, pairs)
        for stmt in stores(kernel.body)
        for expr in expressions(stmt)
    )
    if not hidden or read_otherwise:
        raise UnsupportedKernel(f"{nests.kernel.name} does not visit all pairs of {pairs.tensor}")
    return replace(pairs, shown=shown)


def _terms_of_sum(nests: _Nests) -> list[Any]:
    """What each part of the nest with one sum multiplies for it."""
    sums = [part.trailing[0] for part in nests.theirs.parts]
    return [terms.of(_unguarded(nests.program, p)) for terms, p in zip(nests.queries, sums, strict=True)]


def _are_between_bounds(part: LoopPart, keys: Terms, lengths: tuple[int, int]) -> bool:
    """Whether row blocks visit whole tiles, each once: those whose numbers are between the bounds of the loop, which
    depend on the row block only."""
    if keys.columns.extent != SQUARE or any(length % SQUARE for length in lengths):
        return False
    wanted: list[tuple[int, int]] = []
    for number in range(keys.programs):
        env = {keys.axis: number}
        bounds = (0, 1) if part.loop is None else tuple(evaluate(n, env) for n in (part.loop.start, part.loop.stop))
        blocks = range(number * KEYS // SQUARE, (number + 1) * KEYS // SQUARE)
        wanted += [(q, k) for k in blocks for q in range(*bounds)]
    visited = sorted((q, k) for k, q in keys.visited(0))
    return visited == sorted(wanted) and all(q < lengths[0] // SQUARE and k < lengths[1] // SQUARE for q, k in visited)


def _same_tile(program: ir.Program, mine: Structure, keys: list[Terms], queries: list[Terms], stored: ir.Store) -> str:
    """The tile of the nest over queries that has the values of a statement of the nest over keys."""
    (*_, rows, columns) = stored.target.index
    own = (queries[0].rows, queries[0].columns)
    placed = all(isinstance(i, ir.Slice) and same_index(i, o) for i, o in zip((rows, columns), own, strict=True))
    if not placed or len(keys) != 1 or len(queries) != 1:
        raise UnsupportedKernel(f"{stored.target.tensor} is stored in parts")
    wanted = queries[0].of(stored.value)
    for stmt in mine.parts[0].middle:
        if keys[0].of(stmt.target) == wanted:
            return before_rounding(program, stmt)
    raise UnsupportedKernel(f"no tile of the nest over queries has the values of {stored.target.tensor}")


def _lengths(program: ir.Program, output: ir.Store, sum_: Product) -> tuple[ir.IndexExpr, ir.IndexExpr]:
    """The numbers of queries and of keys."""
    queries, keys = (sizes_of(program.tensor(name))[-2] for name in (output.target.tensor, sum_.b.tensor))
    return queries, keys


def _without_loop_around(kernel: ir.Kernel) -> tuple[ir.Kernel, ir.For | None]:
    """The kernel with a loop around its other loops as an axis of its grid, and that loop; None if there is none."""
    loops = [stmt for stmt in kernel.body if isinstance(stmt, ir.For)]
    match loops:
        case [ir.For(start=ir.Int(0), stop=ir.Int(extent), within=None, listed=None) as around] if any(
            isinstance(stmt, ir.For) for stmt in around.body
        ):
            at = kernel.body.index(around)
            body = (*kernel.body[:at], *around.body, *kernel.body[at + 1 :])
            return replace(kernel, grid=(*kernel.grid, ir.GridAxis(around.var, extent)), body=body), around
        case _:
            return kernel, None


def _outer(access: ir.Access) -> tuple[ir.IndexExpr, ...]:
    """The indices of an access without those of its rows and columns."""
    return tuple(index for index in access.index if not isinstance(index, ir.Slice | ir.NewAxis))


def _visitors(keys: list[Terms], head: int) -> list[list[int]]:
    """For each tile of columns of a head, the row blocks that visit it, sorted.

    Formal statement: programs add to a tile in the order of their row blocks if these are r, r + 1, ..., each of them
    once, and each waits for the one before it, unless that one does not visit the tile.
    """
    visitors: dict[int, list[int]] = {}
    for number in range(keys[0].programs):
        for terms in keys:
            for column in terms.columns_of(number, head):
                visitors.setdefault(column, []).append(number)
    return [*visitors.values()]


def _unguarded(program: ir.Program, product: Product) -> ir.TileExpr:
    """The left operand of a sum, without the condition that a column is not past the end.

    Formal statement: the right operand has as many rows as the condition lets through.  So where it is false there is
    no element, and a kernel may leave it out if it reads the rows past the end as 0, and no value there is infinite.
    """
    match product.a:
        case ir.Elementwise(
            "where", (ir.Elementwise("lt", (ir.Iota(), ir.Literal(value=end))), a, ir.Literal(value=0))
        ):
            return a if end == program.tensor(product.b.tensor).shape[-2] else product.a
        case _:
            return product.a


__all__ = ["Joint", "joint_of", "joint_with"]
