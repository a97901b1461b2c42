"""Sums the squares of a norm without its scale first, and with it only if they leave the range of float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, identity_literal, shape_of
from neptune_lab.htile.walk import expressions, loops_in, rewrite, stores, subexpressions, with_body
from neptune_lab.htile_passes.constants import float32, number
from neptune_lab.htile_passes.degrees import ZERO, degree_of, scales_of
from neptune_lab.htile_passes.rewrite import fresh_name, map_kernels_with_tiles, tile_pass

# Times the number of squares: the least sum of which too small squares are less than 2 ** -24, also on a GPU that takes
# numbers below 2 ** -126 as 0.
LEAST = 2.0**-102
# Elements of a tile of what is computed again.
TILE = 1024
_COMBINES = {"sum": "add", "max": "max"}


@tile_pass(before="align_row_loops")
def squares_without_scale(program: ir.Program) -> ir.Program:
    """Before => after, for a row of 9 elements:

        m[i] = reduce(max, abs(x[i, 0:9]), dim=0)
        s[i] = reduce(sum, x[i, 0:9] / m[i] * (x[i, 0:9] / m[i]), dim=0)
        y[i] = where(m[i] == 0.0, 0.0, m[i] * sqrt(s[i]))
        =>
        s_plain[i] = reduce(sum, x[i, 0:9] * x[i, 0:9], dim=0)
        kept[] = sqrt(s_plain[i])
        fits[] = int32((s_plain[i] >= 9 * LEAST) and (s_plain[i] < inf))
        once[] = 1
        for again in range(1) within fits[], once[]:
            m[i] = reduce(max, abs(x[i, 0:9]), dim=0)
            s[i] = reduce(sum, x[i, 0:9] / m[i] * (x[i, 0:9] / m[i]), dim=0)
            kept[] = where(m[i] == 0.0, 0.0, m[i] * sqrt(s[i]))
        y[i] = kept[]

    The scale costs a maximum, a wait for it, and two products per element.  Rows of zeros, and those with NaN or an
    infinity, are computed with it as before.  For programs of one row that store one number.
    """
    return program if program.sizes else map_kernels_with_tiles(program, _kernel)


def _kernel(kernel: ir.Kernel, program: ir.Program, names: set[str], added: list[ir.Tensor]) -> ir.Kernel:
    plain = _unscaled_statements(kernel, program)
    return kernel if plain is None else _guarded(kernel, plain, program, names, added)


@dataclass(frozen=True, slots=True)
class _Plain:
    """A kernel's statements with 1 as the scale, without the last one.

    Args:
        body: the statements, whose tensors have their old names.
        total: the sum of squares.
        squares: how many there are, at most.
    """

    body: tuple[ir.Stmt, ...]
    total: ir.Access
    squares: int


def _unscaled_statements(kernel: ir.Kernel, program: ir.Program) -> _Plain | None:
    """The statements without a scale; None if they might give another number, or the kernel is another one.

    Formal statement.  The kernel stores one number, y, last.  Its *scales* are tiles that are maxima of magnitudes.
    Every value is a product of powers of the numbers that scales hold and of a number without them (`degrees`), and of
    y all powers are 0.  So over the reals, y is the same for all positive scales, such as 1.  With 1 for all of them it
    is the root of a sum of n squares.  In float32 no square and no sum before the last is larger than that sum, so if
    it is finite they all are; and a square below 2**-126 is off by at most that, so all of them together by less than
    2**-24 of a sum of at least n * 2**-102.  For another sum the kernel computes y as before.
    """
    every = tuple(stores(kernel.body))
    chip = {tensor.name for tensor in program.tensors if tensor.space == "chip"}
    last = kernel.body[-1] if kernel.body else None
    if (
        not isinstance(last, ir.Store)
        or last.mask is not None
        or [s for s in every if s.target.tensor not in chip] != [last]
    ):
        return None
    if shape_of(last.target, program) or program.tensor(last.target.tensor).dtype != "float32":
        return None
    if any(store.mask is not None for store in every) or any(_is_other(e) for s in every for e in expressions(s)):
        return None
    if any(loop.within or loop.listed for loop in loops_in(kernel.body)):
        return None
    scales = scales_of(every, chip)
    if not scales or degree_of(kernel.body[:-1], last.value, scales) != ZERO:
        return None
    folded = _with_one(kernel.body, scales)
    match folded[-1]:
        case ir.Store(value=ir.Elementwise(op="sqrt", args=(ir.Access() as total,), dtype="float32")):
            pass
        case _:
            return None
    sums = _Sums(tuple(stores(folded)))
    if total.tensor not in chip or shape_of(total, program) or not sums.has_squares(total):
        return None
    return _Plain(folded[:-1], total, sum(_squares(folded[:-1], program)))


def _is_other(expr: ir.TileExpr) -> bool:
    return isinstance(expr, ir.Dot | ir.Gather | ir.Permute)


def _with_one(body: tuple[ir.Stmt, ...], scales: frozenset[str]) -> tuple[ir.Stmt, ...]:
    """Statements with 1 in place of the scales, and of tiles that are 1 then."""
    ones = set(scales)
    while True:
        made = _folded(body, ones)
        values: dict[str, list[ir.TileExpr]] = {}
        for store in stores(made):
            values.setdefault(store.target.tensor, []).append(store.value)
        more = {name for name, given in values.items() if all(number(value) == 1.0 for value in given)}
        if not more:
            return made
        ones |= more


def _folded(body: tuple[ir.Stmt, ...], ones: set[str]) -> tuple[ir.Stmt, ...]:
    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.For):
            inner = _folded(stmt.body, ones)
            out += [replace(stmt, body=inner)] if inner else []
        elif stmt.target.tensor not in ones:
            out.append(replace(stmt, value=rewrite(stmt.value, lambda expr: _fold(expr, ones))))
    return tuple(out)


def _fold(expr: ir.TileExpr, ones: set[str]) -> ir.TileExpr:
    match expr:
        case ir.Access(tensor=name) if name in ones:
            return float32(1.0)
        case ir.Elementwise(
            op="where", args=(ir.Elementwise(op="eq", args=(one, ir.Literal(value=value))), _, other)
        ) if number(one) == 1.0 and (value == 0 or math.isinf(value)):
            return other
        case ir.Elementwise(op="div" | "div_rn", args=(a, b)) if number(b) == 1.0:
            return a
        case ir.Elementwise(op="mul", args=(a, b)) if number(a) == 1.0 or number(b) == 1.0:
            return b if number(a) == 1.0 else a
        case _:
            return expr


@dataclass(frozen=True, slots=True)
class _Sums:
    """Which values are sums of squares in float32."""

    every: tuple[ir.Store, ...]

    def has_squares(self, expr: ir.TileExpr, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value is 0, a square, or a sum of such values."""
        match expr:
            case ir.Literal(value=value, dtype="float32"):
                return value == 0.0
            case ir.Elementwise(op="mul", args=(a, b), dtype="float32"):
                return a == b
            case ir.Elementwise(op="add", args=(a, b), dtype="float32"):
                return self.has_squares(a, seen) and self.has_squares(b, seen)
            case ir.Elementwise(op="where", args=(_, a, b), dtype="float32"):
                return self.has_squares(a, seen) and self.has_squares(b, seen)
            case ir.Reduce(op="sum", arg=arg):
                return self.has_squares(arg, seen)
            case ir.Access(tensor=name):
                given = [store.value for store in self.every if store.target.tensor == name]
                inner = seen | {name}
                return bool(given) and (name in seen or all(self.has_squares(value, inner) for value in given))
            case _:
                return False


def _squares(body: tuple[ir.Stmt, ...], program: ir.Program) -> Iterator[int]:
    """The numbers of squares that statements compute, at most."""
    for stmt in body:
        if isinstance(stmt, ir.For):
            trips = _most_trips(stmt)
            yield from (trips * count for count in _squares(stmt.body, program))
        else:
            for expr in subexpressions(stmt.value):
                if isinstance(expr, ir.Elementwise) and expr.op == "mul" and expr.args[0] == expr.args[1]:
                    yield prod(shape_of(expr, program))


def _most_trips(loop: ir.For) -> int:
    return loop.stop.value if isinstance(loop.stop, ir.Int) else 1 << 31


def _guarded(
    kernel: ir.Kernel, plain: _Plain, program: ir.Program, names: set[str], added: list[ir.Tensor]
) -> ir.Kernel:
    """The kernel that computes without a scale, and again with it if the sum is too small or too large."""

    def fresh(wanted: str, shape: tuple[int, ...], dtype: str) -> str:
        name = fresh_name(wanted, names, "_")
        names.add(name)
        added.append(ir.Tensor(name, shape, dtype, "chip"))
        return name

    own = dict.fromkeys(store.target.tensor for store in stores(plain.body))
    new = {name: fresh(f"{name}_plain", (t := program.tensor(name)).shape, t.dtype) for name in own}
    total = replace(plain.total, tensor=new[plain.total.tensor])
    last = kernel.body[-1]
    assert isinstance(last, ir.Store)
    kept, fits, once = (
        ir.Access(fresh(name, (), dtype), ())
        for name, dtype in (("kept", "float32"), ("fits", "int32"), ("once", "int32"))
    )
    enough = ir.Elementwise("ge", (total, float32(plain.squares * LEAST)), "bool")
    finite = ir.Elementwise("lt", (total, float32(math.inf)), "bool")
    both = ir.Cast(ir.Elementwise("and", (enough, finite), "bool"), "int32")
    root = ir.Elementwise("sqrt", (total,), "float32")
    named = {loop.var for loop in loops_in(kernel.body)} | {axis.var for axis in kernel.grid}
    again = ir.For(
        f"{last.node_id}/again",
        fresh_name("again", named, "_"),
        ir.Int(0),
        ir.Int(1),
        (*_in_tiles(kernel.body[:-1], program, named), replace(last, target=kept)),
        next((stmt.origin for stmt in kernel.body if isinstance(stmt, ir.For)), last.origin),
        within=(fits, once),
    )
    return with_body(
        kernel,
        (
            *_renamed(plain.body, new),
            replace(last, node_id=f"{last.node_id}/plain", target=kept, value=root),
            ir.Store(f"{last.node_id}/fits", fits, both, last.origin),
            ir.Store(f"{last.node_id}/once", once, ir.Literal(1, "int32"), last.origin),
            again,
            replace(last, node_id=f"{last.node_id}/kept", value=kept),
        ),
    )


def _in_tiles(body: tuple[ir.Stmt, ...], program: ir.Program, named: set[str]) -> tuple[ir.Stmt, ...]:
    """Statements whose reductions of whole rows are loops over tiles: what is seldom computed is to take few registers.

    Formal statement.  A reduction of a row is the reduction of those of its tiles, if each element that is reduced is
    computed from elements at its own position: all indices along the row are the whole row.
    """
    out: list[ir.Stmt] = []
    var = fresh_name("part", named, "_")
    for stmt in body:
        found = isinstance(stmt, ir.Store) and _reduced_row(stmt, program)
        if not found:
            out.append(stmt)
            continue
        assert isinstance(stmt, ir.Store)
        assert isinstance(stmt.value, ir.Reduce)
        row, value = found, stmt.value
        lanes = replace(row, start=ir.Arith("*", ir.Name(var), ir.Int(TILE)), extent=TILE)

        def visit(expr: ir.TileExpr, row: ir.Slice = row, lanes: ir.Slice = lanes) -> ir.TileExpr:
            if isinstance(expr, ir.Access | ir.Iota) and row in expr.index:
                return replace(expr, index=tuple(lanes if index == row else index for index in expr.index))
            return expr

        dtype = dtype_of(value.arg, program)
        exists = ir.Elementwise("lt", (ir.Iota((lanes,)), ir.Scalar(ir.Int(row.extent))), "bool")
        identity = identity_literal(value.op, dtype)
        part = replace(value, arg=ir.Elementwise("where", (exists, rewrite(value.arg, visit), identity), dtype))
        both = ir.Elementwise(_COMBINES[value.op], (stmt.target, part), dtype)
        out.append(replace(stmt, node_id=f"{stmt.node_id}/none", value=identity))
        loop = (replace(stmt, value=both),)
        out.append(ir.For(f"{stmt.node_id}/parts", var, ir.Int(0), ir.Int(-(-row.extent // TILE)), loop, stmt.origin))
    return tuple(out)


def _reduced_row(store: ir.Store, program: ir.Program) -> ir.Slice | None:
    """The row that a statement reduces to one number, if it is longer than a tile."""
    value = store.value
    if not isinstance(value, ir.Reduce) or value.op not in _COMBINES or shape_of(store.target, program):
        return None
    indices = [e.index for e in subexpressions(value.arg) if isinstance(e, ir.Access | ir.Iota)]
    slices = {index for index_ in indices for index in index_ if isinstance(index, ir.Slice)}
    if len(slices) != 1 or any(isinstance(e, ir.Reduce) for e in subexpressions(value.arg)):
        return None
    (row,) = slices
    on_chip = any(
        isinstance(e, ir.Access) and row in e.index and program.tensor(e.tensor).space == "chip"
        for e in subexpressions(value.arg)
    )
    once = all(index_.count(row) <= 1 for index_ in indices)
    whole = row.start == ir.Int(0) and row.extent > TILE and shape_of(value.arg, program) == (row.extent,)
    return row if whole and once and not on_chip else None


def _renamed(body: tuple[ir.Stmt, ...], new: dict[str, str]) -> tuple[ir.Stmt, ...]:
    """Statements of other names, on other tensors."""

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if isinstance(expr, ir.Access) and expr.tensor in new:
            return replace(expr, tensor=new[expr.tensor])
        return expr

    def store(stmt: ir.Store) -> ir.Store:
        target = replace(stmt.target, tensor=new[stmt.target.tensor])
        return replace(stmt, node_id=f"{stmt.node_id}/plain", target=target, value=rewrite(stmt.value, visit))

    return tuple(
        replace(stmt, node_id=f"{stmt.node_id}/plain", body=_renamed(stmt.body, new))
        if isinstance(stmt, ir.For)
        else store(stmt)
        for stmt in body
    )


__all__ = ["LEAST", "squares_without_scale"]
