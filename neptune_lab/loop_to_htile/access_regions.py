"""Access regions: a scalar access under inner loops becomes a tile access (paper, section 5, Algorithm 3, line 4).

An index is affine in the loops; the part over inner loops must be one loop with coefficient 1 (the access function is
1-sparse, first version of the paper, appendix E), so that the region is a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Arith, IndexExpr, Int, Name, Slice
from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var, add
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.walks import variables
from neptune_lab.scalar_ops import OPERATIONS


def is_index_operation(name: str) -> bool:
    """Whether `Arith` has the operation: two integer operands and an integer result."""
    row = OPERATIONS[name]
    return row.arity == 2 and row.kind in ("number", "integer")


@dataclass(frozen=True, slots=True)
class TileableNest:
    """A tileable nest: the inner loops of one store, and the extents of all loops around it (inner ones too).

    Args:
        block: name of the block, for errors.
        inner: extents of the loops inside the tile, by name.
        extents: extents of all loops around the store, by name.
    """

    block: str
    inner: Mapping[str, int]
    extents: Mapping[str, int]


def index_expr(expr: Expr) -> IndexExpr:
    """A loop-IR index without inner loops as an HTile index expression.

    Raises:
        TileError: the index is not integer arithmetic of loops.
    """
    match expr:
        case Const(value):
            return Int(int(value))
        case Var(name):
            return Name(name)
        case Op(name, (a, b)) if is_index_operation(name):
            return Arith(OPERATIONS[name].symbol or name, index_expr(a), index_expr(b))  # type: ignore[arg-type]
    raise TileError(
        f"the index {expression(expr)} is not integer arithmetic",
        help="write indices with +, -, *, // and %, or read the tensor in a stage that no other is fused with",
    )


def split_inner(expr: Expr, nest: TileableNest) -> tuple[Expr, tuple[str, ...]] | None:
    """(rest over outer loops, inner loops with coefficient 1); None if an inner loop occurs in another form."""
    match expr:
        case Var(name) if name in nest.inner:
            return Const(0), (name,)
        case Op("add", (a, b)):
            left, right = split_inner(a, nest), split_inner(b, nest)
            if left is None or right is None:
                return None
            return add(left[0], right[0]), left[1] + right[1]
        case Op("sub", (a, b)) if not variables(b) & set(nest.inner):
            left = split_inner(a, nest)
            return None if left is None else (Op("sub", (left[0], b)), left[1])
    return None if variables(expr) & set(nest.inner) else (expr, ())


def access_region(indices: tuple[Expr, ...], text: str, nest: TileableNest) -> tuple[IndexExpr | Slice, ...]:
    """Converts each index to a slice over its inner loop, or to a scalar.

    Args:
        indices: of the access, over loops.
        text: the access as text, for errors.
        nest: the tileable nest around it.

    Raises:
        TileError: an inner loop is in two indices, an index has two of them, or one does not have step 1.
    """
    result: list[IndexExpr | Slice] = []
    seen: set[str] = set()
    for index in indices:
        index = simplify(index, nest.extents)
        parts = split_inner(index, nest)
        if parts is None or len(parts[1]) > 1:
            inner = sorted(variables(index) & set(nest.inner))
            several = len(inner) > 1
            loops = f"inner loop{'s' if several else ''} {', '.join(inner)}"
            raise TileError(
                f"block {nest.block!r}: the access {text} uses {loops} in {expression(index)}, which is not "
                "one loop with step 1",
                node=nest.block,
                help="split or fuse the loops so that each index runs along one inner loop, or keep the others outside "
                "the tile"
                + (": bind those that run in parallel to the grid, the outermost loops first" if several else ""),
            )
        start, used = parts
        if not used:
            result.append(index_expr(start))
            continue
        if used[0] in seen:
            raise TileError(
                f"block {nest.block!r}: the access {text} uses inner loop {used[0]!r} twice",
                node=nest.block,
                help="a diagonal is not a tile; copy it with a stage of its own that runs outside the tile",
            )
        seen.add(used[0])
        result.append(Slice(index_expr(simplify(start, nest.extents)), nest.inner[used[0]], used[0]))
    return tuple(result)
