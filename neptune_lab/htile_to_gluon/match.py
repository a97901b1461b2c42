"""Matches a kernel against the form that can be emitted in Gluon: finds its structure, or the reason why it has none.

The form: unnested loops over one tiled reduction (parts of a loop, and unrolled tiles), whose body is

    leading products    x = dot(loop-invariant tile, tile loaded by the loop)
    row work            pointwise operators, reductions of rows, small reads
    trailing products   y = dot(value of the loop, tile loaded by the loop, acc=f(y))

or trailing products z = dot(value of the loop, tile loaded by the loop), each with a promotion y = f(y, z): Hopper adds
products of floats of 8 bits with fewer digits than float32, so the sum of a tile is added to the others apart.  Such a
product may include what rounding to 8 bits leaves of its left operand, or multiply the first keys of a tile in float16
(htile/rounded_weights.py).  Else all products have factors of 16 bits, or all of 8; those of 8 are read along the
dimension that is summed, which is the last of both factors' tensors.

The first dimension of every tile is the rows, and no operation combines rows, so each consumer takes a share of them.

Tiles may be visited in any order.  In a rolling update, each state is the reduction over the tiles visited so far, and
its repair relates it to the previous state, whichever tile comes next (paper, section 4: the rule is proven for every
tag, not for one order of tags).  So if the last tile is certain to exist (it is often the only masked one), the loop
starts there and runs downward.  A body that reads the tile's number as a scalar keeps the written order: the guards of
a repair ask so whether the reduction is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, expression
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.loop_runs import always_runs
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.sizes import grid_envs
from neptune_lab.htile.substitute import substitute
from neptune_lab.htile.walk import accesses, names_of_access, names_of_index, reads, subexpressions
from neptune_lab.htile_to_gluon.data_bounds import DataBounds, bind
from neptune_lab.htile_to_gluon.more_digits import weights_of, with_more_digits
from neptune_lab.htile_to_gluon.row_checks import check_rows
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure, UnsupportedKernel
from neptune_lab.strict.dtypes import EIGHTS, HALVES

MOST_CONSUMERS = 3


def match_structure(program: ir.Program, kernel: ir.Kernel, bounds: DataBounds | None = None) -> Structure:
    """The structure of `kernel`.

    Args:
        bounds: variables of the bounds of its loops (data_bounds.py).

    Raises:
        UnsupportedKernel: it has not that form; the message says in what it differs.
    """
    before, parts, after = _parts(program, kernel, bounds or {})
    rows = shape_of(parts[0].leading[0].a, program)[0]
    if rows % ROWS or not 1 <= rows // ROWS <= MOST_CONSUMERS:
        raise UnsupportedKernel(f"it has {rows} rows per program; expected 64, 128 or 192", help="choose block_q=128")
    resident = {} if not before else _resident_tiles(program, kernel, before)
    for product in parts[0].leading:
        assert isinstance(product.a, ir.Access)
        if program.tensor(product.a.tensor).space == "chip" and product.a.tensor not in resident:
            raise UnsupportedKernel(
                f"the left operand {product.a.tensor} of {product.target} is not a tile that is loaded before the loop "
                "and read only by products"
            )
    before = tuple(s for s in before if s.target.tensor not in resident)
    in_order = any(_reads_number(part) for part in parts)
    downward = parts[-1].certain and not in_order
    if downward:
        parts = parts[::-1]
    elif not parts[0].certain:
        what = "neither the first nor the last tile of its loop is certain to exist"
        if in_order:
            what = "the first tile of its loop is not certain to exist, and a guard depends on the order of the tiles"
        raise UnsupportedKernel(what)
    first = _tile_of(program, parts[0], downward=downward)
    eights = _multiplies_eights(program, first)
    structure = Structure(rows, resident, before, first, parts, downward, after, eights)
    check_rows(program, structure)
    return structure


def _multiplies_eights(program: ir.Program, part: LoopPart) -> bool:
    """Whether the products multiply floats of 8 bits: all, or none."""
    widths = {dtype_of(product.b, program) in EIGHTS for product in (*part.leading, *part.trailing)}
    if len(widths) > 1:
        raise UnsupportedKernel("some of its products multiply floats of 8 bits, others of 16")
    if len({product.promotion is None for product in part.trailing}) > 1:
        raise UnsupportedKernel("some of its products are added by the matrix unit, others in float32")
    return widths.pop()


def _reads_number(part: LoopPart) -> bool:
    """Whether a part reads the number of its tile as a scalar, not to locate a tile or its elements."""
    return part.loop is not None and any(
        isinstance(expr, ir.Scalar) and part.loop.var in names_of_index(expr.value)
        for store in (
            *part.middle,
            *part.after,
            *(p.store for p in (*part.leading, *part.trailing)),
            *(p.promotion for p in part.trailing if p.promotion is not None),
        )
        for expr in subexpressions(store.value)
    )


def _tile_of(program: ir.Program, part: LoopPart, *, downward: bool) -> LoopPart:
    """The first tile of a part, or with `downward` the last, as a part without a loop."""
    if part.loop is None:
        return part
    at = ir.Arith("-", part.loop.stop, ir.Int(1)) if downward else part.loop.start
    body = substitute(part.loop.body, part.loop.var, expression(affine(at)))
    constant = {p.a.tensor for p in part.leading if isinstance(p.a, ir.Access)}
    return _part(program, None, tuple(s for s in body if isinstance(s, ir.Store)), constant, [{}])


def _parts(
    program: ir.Program, kernel: ir.Kernel, bounds: DataBounds
) -> tuple[tuple[ir.Store, ...], tuple[LoopPart, ...], tuple[ir.Store, ...]]:
    """The statements before the loops, the loops of a nest that masks cut into parts, and the statements after them.

    Raises:
        UnsupportedKernel: the kernel has another form.
    """
    loops = [stmt for stmt in kernel.body if isinstance(stmt, ir.For)]
    if not loops:
        raise UnsupportedKernel("it has no loop")
    for loop in loops:
        if any(isinstance(stmt, ir.For) for stmt in loop.body):
            raise UnsupportedKernel(f"its loop over {loop.var} contains a loop")
        if loop.within is not None or loop.listed is not None:
            raise UnsupportedKernel(f"the values of an input bound its loop over {loop.var}")
    signature = [s.target.tensor for s in loops[0].body if isinstance(s, ir.Store)]
    before: list[ir.Store] = []
    after: list[ir.Store] = []
    parts: list[LoopPart] = []
    constant: set[str] = set()
    rest = list(kernel.body)
    envs = grid_envs(program, kernel)
    bind(envs, bounds)
    while rest:
        tile = _tile(rest, signature)
        if tile is None:
            stmt = rest.pop(0)
            assert isinstance(stmt, ir.Store)
            (after if parts else before).append(stmt)
            continue
        if after:
            raise UnsupportedKernel(f"{after[0].target.tensor} is stored between two parts of its loop")
        loop, body = tile
        constant = constant or {s.target.tensor for s in before}
        parts.append(_part(program, loop, body, constant, envs))
        del rest[: 1 if loop is not None else len(body)]
    first = parts[0]
    for other in parts[1:]:
        if [_shape(program, p) for p in (*first.leading, *first.trailing)] != [
            _shape(program, p) for p in (*other.leading, *other.trailing)
        ]:
            raise UnsupportedKernel("the parts of its loop multiply different tiles")
    return tuple(before), tuple(parts), tuple(after)


def _shape(program: ir.Program, product: Product) -> tuple[object, ...]:
    return product.target, product.accumulator, product.b.tensor, shape_of(product.b, program), product.transposed


def _tile(rest: list[ir.Stmt], signature: list[str]) -> tuple[ir.For | None, tuple[ir.Store, ...]] | None:
    """The loop at the start of `rest`, or an unrolled tile of the loop (None and its body); None if there is neither.

    Args:
        signature: the tensors that the loop's body stores to, in order.
    """
    head = rest[0]
    if isinstance(head, ir.For):
        return head, tuple(s for s in head.body if isinstance(s, ir.Store))
    run: list[ir.Store] = []
    for stmt, target in zip(rest, signature, strict=False):
        if not isinstance(stmt, ir.Store) or stmt.target.tensor != target:
            return None
        run.append(stmt)
    return (None, tuple(run)) if len(run) == len(signature) else None


def _part(
    program: ir.Program, loop: ir.For | None, body: tuple[ir.Store, ...], constant: set[str], envs: Sequence[Env]
) -> LoopPart:
    """One part of the loop: products with a left operand that it does not change, values of them, products of these
    that accumulate, and what comes after.

    Args:
        loop: None: the body of a single iteration.
        constant: tensors that do not change in the loop.
        envs: ranges of the grid's variables.

    Raises:
        UnsupportedKernel: the body has another form.
    """
    leading: list[Product] = []
    trailing: list[Product] = []
    middle: list[ir.Store] = []
    after: list[ir.Store] = []
    promotions = _promotions(body)
    for store in body:
        if any(store is promotion for promotion in promotions.values()):
            continue
        if program.tensor(store.target.tensor).space != "chip":
            raise UnsupportedKernel(f"its loop stores to {store.target.tensor}")
        if not isinstance(store.value, ir.Dot):
            (after if trailing else middle).append(store)
            continue
        product = _product(program, store, store.value)
        if product.acc is None and _stays(program, product.a, constant, loop):
            leading.append(product)
        elif product.acc is not None and {a.tensor for a in accesses(product.acc)} >= {product.target}:
            if trailing:
                middle, after = middle + after, []
            trailing.append(product)
        elif product.target in promotions:
            if trailing:
                middle, after = middle + after, []
            trailing.append(replace(product, promotion=promotions[product.target]))
        else:
            raise UnsupportedKernel(
                f"the product {product.target} neither has a loop-invariant left operand nor accumulates over the loop"
            )
    if not leading or not trailing:
        what = "that accumulates over the loop" if leading else "with a loop-invariant left operand"
        raise UnsupportedKernel(f"its loop has no product {what}")
    targets = {name for p in trailing for name in (p.target, p.accumulator)}
    for store in (*middle, *after):
        if read := targets & {a.tensor for a in reads(store)}:
            raise UnsupportedKernel(f"{store.target.tensor} reads the accumulator {read.pop()} inside the loop")
    certain = loop is None or all(always_runs(loop, env) for env in envs)
    return LoopPart(loop, tuple(leading), tuple(middle), tuple(trailing), tuple(after), certain)


def _promotions(body: tuple[ir.Store, ...]) -> dict[str, ir.Store]:
    """By product, the only statement of `body` that reads it, `y = f(y, product)`, if the product is no sum itself."""
    found: dict[str, ir.Store] = {}
    for n, store in enumerate(body):
        if not isinstance(store.value, ir.Dot) or not isinstance(store.value.acc, ir.Dot | None):
            continue
        readers = [s for s in body if store.target.tensor in {a.tensor for a in reads(s)}]
        if len(readers) == 1 and any(s is readers[0] for s in body[n + 1 :]) and _accumulates(readers[0]):
            found[store.target.tensor] = readers[0]
    return found


def _accumulates(store: ir.Store) -> bool:
    products = any(isinstance(expr, ir.Dot) for expr in subexpressions(store.value))
    return not products and store.target.tensor in {access.tensor for access in reads(store)}


def _product(program: ir.Program, store: ir.Store, dot: ir.Dot) -> Product:
    if isinstance(dot.acc, ir.Dot):
        rounded = ir.Dot(weights_of(program, dot, dot.acc), dot.b)
        return with_more_digits(program, _product(program, store, rounded), dot, dot.acc)
    b, transposed = dot.b, False
    if isinstance(b, ir.Permute) and b.order == (1, 0):
        b, transposed = b.arg, True
    if not isinstance(b, ir.Access) or program.tensor(b.tensor).space == "chip":
        raise UnsupportedKernel(f"the right operand of {store.target.tensor} is not a tile in global memory")
    dtype = dtype_of(b, program)
    if dtype not in (*HALVES, *EIGHTS):
        raise UnsupportedKernel(
            f"{store.target.tensor} multiplies {dtype}; expected float16 or bfloat16, or floats of 8 bits"
        )
    if dtype in EIGHTS and not transposed:
        raise UnsupportedKernel(
            f"{store.target.tensor} multiplies {dtype}, of which {b.tensor} does not have the summed dimension last"
        )
    if any(isinstance(e, ir.Dot) for part in (dot.a, dot.acc) if part is not None for e in subexpressions(part)):
        raise UnsupportedKernel(f"an operand of the product {store.target.tensor} contains a product")
    return Product(store, dot.a, b, transposed, dot.acc)


def _stays(program: ir.Program, a: ir.TileExpr, constant: set[str], loop: ir.For | None) -> bool:
    if not isinstance(a, ir.Access):
        return False
    if program.tensor(a.tensor).space == "chip":
        return a.tensor in constant
    return a.tensor in constant or (loop is not None and loop.var not in names_of_access(a))


def _resident_tiles(program: ir.Program, kernel: ir.Kernel, before: tuple[ir.Store, ...]) -> dict[str, ir.Access]:
    """On-chip tiles that are loaded unchanged and read only as left operands of products."""
    others: set[str] = set()
    for stmt in kernel.body:
        for store in stmt.body if isinstance(stmt, ir.For) else (stmt,):
            assert isinstance(store, ir.Store)
            if isinstance(store.value, ir.Dot) and isinstance(store.value.a, ir.Access):
                rest = [store.value.b] + ([] if store.value.acc is None else [store.value.acc])
                others |= {a.tensor for expr in rest for a in accesses(expr)}
            else:
                others |= {a.tensor for a in reads(store)}
    return {
        s.target.tensor: s.value
        for s in before
        if isinstance(s.value, ir.Access)
        and program.tensor(s.value.tensor).space != "chip"
        and s.target.tensor not in others
        and len(shape_of(s.value, program)) == 2
    }
