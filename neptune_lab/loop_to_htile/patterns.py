"""Matches a tile store to the operations of HTile: elementwise, reduce, dot (paper, Algorithm 3, line 8)."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import (
    DOT_DTYPES,
    Access,
    Dot,
    Elementwise,
    Gather,
    Literal,
    Permute,
    Reduce,
    Scalar,
    TileExpr,
)
from neptune_lab.htile.nodes import Cast as TileCast
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.dtypes import as_multiplied, dtype_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Previous, Program, Var
from neptune_lab.loop_ir.reduction import REDUCERS, identity
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import substitute, transform, variables, walk
from neptune_lab.loop_to_htile.access_regions import (
    TileableNest,
    access_region,
    index_expr,
    is_index_operation,
    split_inner,
)
from neptune_lab.loop_to_htile.dimension_order import positions, reconcile_dimension_order
from neptune_lab.scalar_ops import OPERATIONS


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts scalar expressions over loops to tile expressions over `nest`."""

    program: Program
    nest: TileableNest

    def _writer(self, buffer: str) -> str:
        """The name of the block that stores to a buffer."""
        block = writer_of(self.program, buffer)
        return buffer if block is None else block.name

    def tile(self, expr: Expr, axes: tuple[str, ...]) -> TileExpr:
        """`expr` as a tile whose dimensions are `axes`."""
        match expr:
            case Const(value, dtype):
                return Literal(value, dtype)
            case Load(buffer, indices):
                if self.program.buffer(buffer).tagged:
                    raise TileError(
                        f"block {self.nest.block!r} reads the scan buffer {buffer!r}, one value per tag",
                        node=self.nest.block,
                        help=f"apply retire_tags({self._writer(buffer)!r}) to the schedule first",
                    )
                try:
                    return reconcile_dimension_order(buffer, access_region(indices, expression(expr), self.nest), axes)
                except TileError:
                    if self.program.buffer(buffer).scope != "global":
                        raise
                return Gather(buffer, tuple(self.place(i, axes) for i in indices))
            case Previous(buffer):
                raise TileError(
                    f"block {self.nest.block!r} reads a previous tag of {buffer!r}",
                    node=self.nest.block,
                    help=f"apply retire_tags({self._writer(buffer)!r}) to the schedule first",
                )
            case Cast(dtype, arg):
                return TileCast(self.tile(arg, axes), dtype)
            case Op("guard", (value, point, replacement)):
                x, dtype = self.tile(value, axes), dtype_of(value, self.program)
                if not dtype.startswith(("float", "bfloat")):
                    raise TileError(
                        f"block {self.nest.block!r} guards a value of dtype {dtype} at {expression(point)}, which no "
                        "whole number is",
                        node=self.nest.block,
                        help="leave the stages apart: whole numbers are repaired over the reals only",
                    )
                hit = Elementwise("eq", (x, self.tile(point, axes)), "bool")
                return Elementwise("where", (hit, self.tile(replacement, axes), x), dtype)
        if self._is_index(expr):
            return self._index(expr, axes)
        assert isinstance(expr, Op), expr
        name = OPERATIONS[expr.name].htile or expr.name
        return Elementwise(name, tuple(self.tile(a, axes) for a in expr.args), dtype_of(expr, self.program))

    def place(self, index: Expr, axes: tuple[str, ...]) -> TileExpr:
        """An index of an access that is no tile, as positions."""
        tile = self.tile(simplify(index, self.nest.extents), axes)
        return tile if dtype_of(index, self.program) == "int32" else TileCast(tile, "int32")

    def _is_index(self, expr: Expr) -> bool:
        return all(
            isinstance(e, Var)
            or (isinstance(e, Const) and e.dtype.startswith("int"))
            or (isinstance(e, Op) and is_index_operation(e.name))
            for e in walk(expr)
        )

    def _index(self, expr: Expr, axes: tuple[str, ...]) -> TileExpr:
        """An index used as a value (in a mask): positions along an axis, or a scalar."""
        expr = simplify(expr, self.nest.extents)
        parts = split_inner(expr, self.nest)
        if parts is not None and not parts[1]:
            return Scalar(index_expr(expr))
        if parts is not None and len(parts[1]) == 1 and parts[1][0] in axes:
            start = simplify(parts[0], self.nest.extents)
            return positions(index_expr(start), self.nest.inner[parts[1][0]], parts[1][0], axes)
        assert isinstance(expr, Op), expr
        return Elementwise(expr.name, tuple(self.tile(a, axes) for a in expr.args), "int32")


def match_compute_pattern(
    program: Program,
    block: Block,
    nest: TileableNest,
    spatial: tuple[str, ...],
    reduced: tuple[str, ...],
    outer_fold: bool,
) -> TileExpr:
    """The value of the tile store of `block`.

    Args:
        program: with the dtypes of the tensors.
        block: one block of the program.
        nest: its tileable nest.
        spatial: inner loops in the order of the target's dimensions.
        reduced: inner loops that the block folds over.
        outer_fold: the block also folds over loops outside the tile, so it carries a value.

    Raises:
        TileError: the block has no such form.
    """
    convert = Converter(program, nest)
    env = {it.name: it.binding for it in block.iters}
    value = substitute(block.body.value, env)
    if not block.is_reduction or not isinstance(value, Op) or value.name not in REDUCERS:
        if reduced:
            raise TileError(
                f"block {block.name!r} folds over {', '.join(reduced)} in an unknown way",
                node=block.name,
                help="write the stage with te.sum, te.max, te.min or a te.comm_reducer (product, or, and)",
            )
        return convert.tile(value, spatial)
    reducer = REDUCERS[value.name]
    carried, term = value.args
    folded = fold(convert, reducer, term, _masks(block, nest, reduced), spatial, reduced, dtype_of(value, program))
    if block.init is not None:
        if outer_fold:
            raise TileError(
                f"block {block.name!r} carries a value over loops outside its tile and has its start value inside",
                node=block.name,
                help=f"decompose_reduction({block.name!r}, loop) writes the start value before the loop",
            )
        if carried != Load(block.writes, tuple(substitute(i, env) for i in block.body.indices)):
            raise TileError(
                f"block {block.name!r} repairs a value that it starts itself",
                node=block.name,
                help=f"decompose_reduction({block.name!r}, loop) writes the start value before the rolling loop",
            )
        return folded
    left = convert.tile(carried, spatial)
    return Elementwise(value.name, (left, folded), dtype_of(value, program))


def _masks(block: Block, nest: TileableNest, reduced: tuple[str, ...]) -> tuple[Expr, ...]:
    """Bounds on folded loops or whole tiles that do not always hold: elements past them must not be folded."""
    return tuple(
        p
        for p in block.predicates
        if (variables(p) & set(reduced) or not variables(p) & set(nest.inner)) and not always(p, nest)
    )


def always(predicate: Expr, nest: TileableNest) -> bool:
    """Whether a bound holds for all values of the loops."""
    match predicate:
        case Op("lt", (a, Const(limit))):
            values = bounds(a, nest.extents)
            return values is not None and values[1] < limit
    return False


def fold(
    convert: Converter,
    reducer: str,
    term: Expr,
    masks: tuple[Expr, ...],
    spatial: tuple[str, ...],
    reduced: tuple[str, ...],
    dtype: str,
) -> TileExpr:
    """`term` folded over `reduced`: a dot if it matches, else a reduce; the term itself if nothing is folded.

    A tile of one element is masked too: past the end it is the identity, even if no loop folds along it.
    """
    dot = match_dot(convert, term, masks, spatial, reduced) if reducer == "sum" else None
    if dot is not None:
        return dot if dtype == "float32" else TileCast(dot, dtype)
    reduced = _folded(convert, reducer, (term, *masks), reduced)
    axes = _order_of_reads(term, spatial, reduced) if reduced else spatial
    tile = convert.tile(term, axes)
    start = identity(reducer, dtype)
    for mask in (*masks, *_repetitions(convert, reducer, (term, *masks), reduced)):
        tile = Elementwise("where", (convert.tile(mask, axes), tile, Literal(start.value, dtype)), dtype)
    # On truth values, max is `or` and min is `and`, so HTile needs no reducers for these.
    reducer = {"any": "max", "all": "min"}.get(reducer, reducer)
    for dim in range(len(axes) - 1, -1, -1):
        if axes[dim] in reduced:
            tile = Reduce(reducer, tile, dim)  # type: ignore[arg-type]
    return tile


def _folded(convert: Converter, reducer: str, parts: tuple[Expr, ...], reduced: tuple[str, ...]) -> tuple[str, ...]:
    """The loops along which a fold has more than one term: x max x is x, and so are min, any and all of equal terms."""
    used = set().union(*(_variables(part, convert.nest) for part in parts))
    return reduced if reducer in ("sum", "prod") else tuple(v for v in reduced if v in used)


def _repetitions(convert: Converter, reducer: str, parts: tuple[Expr, ...], reduced: tuple[str, ...]) -> list[Expr]:
    """Conditions that always hold, one per folded loop that nothing depends on: they give the tile that loop's extent.

    Without them, the tile has one element along the loop, and a sum of n equal terms would be one term.
    """
    if reducer not in ("sum", "prod"):
        return []
    used = set().union(*(_variables(part, convert.nest) for part in parts))
    return [Op("lt", (Var(v), Const(convert.nest.inner[v], "int32"))) for v in reduced if v not in used]


def _order_of_reads(term: Expr, spatial: tuple[str, ...], reduced: tuple[str, ...]) -> tuple[str, ...]:
    """The axes over which a folded term is computed: in the order of its largest read, so that this tile is loaded in
    the order of memory; dimensions that are not folded keep the order of the target."""
    axes = (*spatial, *reduced)
    orders = [
        tuple(dict.fromkeys(v for index in read.indices for v in axes if v in variables(index)))
        for read in walk(term)
        if isinstance(read, Load)
    ]
    largest = max(orders, key=len, default=())
    order = (*largest, *(v for v in axes if v not in largest))
    kept = tuple(v for v in order if v in spatial)
    return order if kept == spatial and len(set(order)) == len(axes) else axes


def match_dot(
    convert: Converter, term: Expr, masks: tuple[Expr, ...], spatial: tuple[str, ...], reduced: tuple[str, ...]
) -> TileExpr | None:
    """A sum over k of a product of one factor over (m, k) and one over (k, n), as a dot; None if it has another
    form."""
    if len(spatial) != 2 or len(reduced) != 1:
        return None
    match term:
        case Op("mul", (a, b)):
            pass
        case _:
            return None
    m, n = spatial
    k = reduced[0]
    inner = set(convert.nest.inner)
    uses = [_variables(x, convert.nest) & inner for x in (a, b)]
    if uses == [{n, k}, {m, k}]:
        a, b = b, a
    elif uses != [{m, k}, {n, k}]:
        return None
    a, b = as_multiplied(a, b, convert.program)
    dtypes = {dtype_of(x, convert.program) for x in (a, b)}
    if len(dtypes) > 1 or not dtypes <= set(DOT_DTYPES):
        return None
    return Dot(_operand(convert, a, (m, k), masks), _operand(convert, b, (k, n), masks))


def _operand(convert: Converter, expr: Expr, axes: tuple[str, str], masks: tuple[Expr, ...]) -> TileExpr:
    """A dot's operand, masked with 0 past the end of the fold, unless it is a global read that is 0 there anyway."""
    tile = convert.tile(expr, axes)
    dtype = dtype_of(expr, convert.program)
    read = expr.arg if isinstance(expr, Cast) else expr
    for mask in masks:
        if not (_is_read(tile) and isinstance(read, Load) and _ends_with(convert, read, mask)):
            tile = Elementwise("where", (convert.tile(mask, axes), tile, Literal(0.0, dtype)), dtype)
    return tile


def _is_read(tile: TileExpr) -> bool:
    """Whether a tile is an access, perhaps permuted and converted."""
    while isinstance(tile, Permute | TileCast):
        tile = tile.arg
    return isinstance(tile, Access)


def _ends_with(convert: Converter, read: Load, mask: Expr) -> bool:
    """Whether, at every position that `mask` excludes, `read` is past the end of a global tensor, where it is 0.

    Formal statement: the mask is i < n, an axis of the tensor is read at i, and has at most n elements; or the mask is
    t < n for tiles t of c elements, the axis is read at c * t + (0 .. c - 1), and has at most c * n elements.  If a
    fold covers only a prefix of a longer tensor, the elements after the prefix may be NaN, and 0 * NaN is NaN.
    """
    buffer, nest = convert.program.buffer(read.buffer), convert.nest
    match mask:
        case Op("lt", (place, Const(limit))) if buffer.scope == "global":
            place = simplify(place, nest.extents)
        case _:
            return False
    for index, size in zip(read.indices, buffer.shape, strict=True):
        index = simplify(index, nest.extents)
        if index == place and size <= limit:
            return True
        parts = split_inner(index, nest)
        if parts is not None and len(parts[1]) == 1:
            step = nest.inner[parts[1][0]]
            start = simplify(parts[0], nest.extents)
            if start == simplify(Op("mul", (place, Const(step))), nest.extents) and size <= limit * step:
                return True
    return False


def _variables(expr: Expr, nest: TileableNest) -> set[str]:
    """Loops that the value depends on after simplification: `(h0 * 8 + h1) // 8` depends on h0 only."""
    return variables(transform(expr, lambda e: simplify(e, nest.extents)))
