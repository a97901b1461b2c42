"""Cuts the width of keys and values that is no power of two into two that are, in products of few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import children, reads, rewrite, stores, subexpressions, tile_dims, with_body
from neptune_lab.htile_passes.rewrite import fresh_name, map_kernels, tile_pass
from neptune_lab.power_of_two import power_of_two

# Products of at most so many rows wait for what they load.
FEW_ROWS = 16
# The least columns of a part.  With parts of 16 or 32, the chosen kernels of ten problems of widths 80 and 96 took 0.99
# to 1.35 of the time on an H200.
LEAST = 64


@tile_pass(after="read_vectors_first")
def cut_padded_widths(program: ir.Program) -> ir.Program:
    """Before => after, for a width of 192:

        x[...] = dot(q_tile[0:16, 0:192], permute(k[j0*64:j0*64+64, 0:192], (1, 0)))
        y[..., 0:192] = dot(w[...], v[j0*64:j0*64+64, 0:192], acc=r[...] * y[..., 0:192])
        =>
        x[...] = dot(
            q_tile_1[0:16, 0:64],
            permute(k[j0*64:j0*64+64, 128:192], (1, 0)),
            acc=dot(q_tile_0[0:16, 0:128], permute(k[j0*64:j0*64+64, 0:128], (1, 0))),
        )
        y_0[..., 0:128] = dot(w[...], v[j0*64:j0*64+64, 0:128], acc=r[...] * y_0[..., 0:128])
        y_1[..., 0:64] = dot(w[...], v[j0*64:j0*64+64, 128:192], acc=r[...] * y_1[..., 0:64])

    A tile has a power of two of columns, so 192 of them take the registers and the shared memory of 256.

    Formal statement: the width is a dimension of each tile that has it, over which nothing is reduced but by products
    of two tiles that both have it there; so every element is computed from elements at its own place in the width, and
    such a product is the sum of those of the parts.

    Only of products of few rows, as in decoding, whose tiles in shared memory are what they wait for.  On an H200, 36
    kernels of twelve problems with keys of 192 columns took 0.75 to 1.09 of the time, 0.92 by geometric mean.
    """
    cutter = _Cutter(program)
    cut = map_kernels(program, cutter.kernel)
    if cut is program:
        return program
    kept = tuple(tensor for tensor in program.tensors if tensor.name not in cutter.replaced)
    return replace(cut, tensors=(*kept, *cutter.tensors))


def parts_of(width: int) -> tuple[int, int] | None:
    """The two powers of two that a width is the sum of; None if there are none, or they are not worth it.

    >>> parts_of(192), parts_of(576), parts_of(64), parts_of(80), parts_of(448)
    ((128, 64), (512, 64), None, None, None)
    """
    first = power_of_two(width) // 2
    rest = width - first
    fits = width != 2 * first and rest >= LEAST and rest == power_of_two(rest)
    return (first, rest) if fits else None


class _Stays(Exception):
    """The kernel has another form."""


@dataclass(slots=True)
class _Cutter:
    program: ir.Program
    replaced: set[str] = field(default_factory=set)
    tensors: list[ir.Tensor] = field(default_factory=list)

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        """The kernel with its width in parts, if it has one that is padded."""
        own = tuple(stores(kernel.body))
        dots = [e for s in own for e in subexpressions(s.value) if isinstance(e, ir.Dot)]
        if self.program.sizes or not dots or any(shape_of(e.a, self.program)[-2] > FEW_ROWS for e in dots):
            return kernel
        for width in sorted({shape_of(e.b, self.program)[axis] for e in dots for axis in (-1, -2)}, reverse=True):
            parts = parts_of(width)
            if parts is None:
                continue
            taken = {tensor.name for tensor in (*self.program.tensors, *self.tensors)}
            whole = _Width(self.program, width, parts, taken)
            try:
                cut = whole.kernel(kernel)
            except _Stays:
                continue
            self.replaced |= set(whole.held)
            self.tensors += whole.tensors
            return cut
        return kernel


@dataclass(slots=True)
class _Width:
    """A width of a kernel, and its parts.

    Args:
        held: by the name of a tile on chip, those of its parts.
        tensors: these.
    """

    program: ir.Program
    width: int
    parts: tuple[int, int]
    taken: set[str]
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tensors: list[ir.Tensor] = field(default_factory=list)

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        every = tuple(stores(kernel.body))
        for store in every:
            self.check(store)
        for store in every:
            at = self.place(store.target)
            if at is not None and self.program.tensor(store.target.tensor).space == "chip":
                self.hold(store.target)
        for store in every:
            for access in (store.target, *reads(store)):
                if access.tensor in self.held and self.place(access) is None:
                    raise _Stays
        return with_body(kernel, tuple(self.body(kernel.body)))

    def body(self, body: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
        for stmt in body:
            if isinstance(stmt, ir.For):
                yield with_body(stmt, tuple(self.body(stmt.body)))
            elif self.place(stmt.target) is None:
                yield replace(stmt, value=self.summed(stmt.value))
            else:
                for n in range(len(self.parts)):
                    target = self.part(stmt.target, n)
                    assert isinstance(target, ir.Access)
                    mask = None if stmt.mask is None else self.part(stmt.mask, n)
                    value = self.part(stmt.value, n)
                    yield replace(stmt, node_id=f"{stmt.node_id}/{n}", target=target, value=value, mask=mask)

    def is_width(self, index: ir.Index) -> bool:
        return isinstance(index, ir.Slice) and index.extent == self.width

    def place(self, of: ir.Access | ir.Iota) -> int | None:
        """Which dimension of a tile is the width; None: no one is.

        Raises:
            _Stays: several are, or it does not begin at 0.
        """
        dims = tile_dims(of.index)
        found = [n for n, index in enumerate(dims) if self.is_width(index)]
        if len(found) > 1 or any(isinstance(dims[n], ir.Slice) and dims[n].start != ir.Int(0) for n in found):  # type: ignore[union-attr]
            raise _Stays
        return found[0] - len(dims) if found else None

    def check(self, store: ir.Store) -> None:
        """Raises `_Stays` unless every element of a statement is computed from elements at its own place in the width,
        but for products over it."""
        target = self.place(store.target)
        has = {target} | ({self.width_of(store.mask)} if store.mask is not None else set())
        if self.width_of(store.value) not in (target, None) or has - {target, None}:
            raise _Stays
        if target is None and store.mask is not None and self.has_width(store.mask):
            raise _Stays

    def has_width(self, expr: ir.TileExpr) -> bool:
        return any(isinstance(e, ir.Access | ir.Iota) and self.place(e) is not None for e in subexpressions(expr))

    def width_of(self, expr: ir.TileExpr) -> int | None:
        """Which dimension of an expression is the width, from its last one: -1, -2 and so on; None: no one is."""
        match expr:
            case ir.Access() | ir.Iota():
                return self.place(expr)
            case ir.Elementwise(args=args):
                found = {self.width_of(arg) for arg in args} - {None}
                if len(found) > 1:
                    raise _Stays
                at = found.pop() if found else None
                for arg in args:
                    shape = shape_of(arg, self.program)
                    if at is not None and self.width_of(arg) is None and len(shape) >= -at and shape[at] != 1:
                        raise _Stays
                return at
            case ir.Cast(arg=arg):
                return self.width_of(arg)
            case ir.Permute(arg=arg, order=order):
                at = self.width_of(arg)
                return None if at is None else order.index(at + len(order)) - len(order)
            case ir.Reduce(arg=arg, dim=dim):
                at = self.width_of(arg)
                if at is None:
                    return None
                rank = len(shape_of(arg, self.program))
                if at + rank == dim:
                    raise _Stays
                return at if at + rank > dim else at + 1
            case ir.Dot(a=a, b=b, acc=acc):
                left, right, added = self.width_of(a), self.width_of(b), acc and self.width_of(acc)
                if (left, right) == (-1, -2) and added is None:
                    return None
                if left is not None or right == -2 or (added is not None and added != right):
                    raise _Stays
                if right is not None and acc is not None and added is None and shape_of(acc, self.program)[-1:] != (1,):
                    raise _Stays
                return right
            case _:
                if any(self.has_width(child) for child in children(expr)):
                    raise _Stays
                return None

    def hold(self, target: ir.Access) -> None:
        """Tiles on chip for the parts of one."""
        if target.tensor in self.held:
            return
        tensor = self.program.tensor(target.tensor)
        names = []
        for n, part in enumerate(self.parts):
            shape = tuple(
                part if self.is_width(index) else extent
                for index, extent in zip(
                    (i for i in target.index if not isinstance(i, ir.NewAxis)), tensor.shape, strict=True
                )
            )
            names.append(fresh_name(f"{tensor.name}_{n}", self.taken, "_"))
            self.taken.add(names[-1])
            self.tensors.append(replace(tensor, name=names[-1], shape=shape))
        self.held[tensor.name] = tuple(names)

    def part(self, expr: _Expr, n: int) -> _Expr:
        """The part `n` of an expression that has the width."""
        start = sum(self.parts[:n])

        def visit(e: ir.TileExpr) -> ir.TileExpr:
            if not isinstance(e, ir.Access | ir.Iota) or self.place(e) is None:
                return e
            held = isinstance(e, ir.Access) and e.tensor in self.held
            at = ir.Int(0 if held else start)
            index = tuple(
                replace(i, start=at, extent=self.parts[n]) if isinstance(i, ir.Slice) and self.is_width(i) else i
                for i in e.index
            )
            if isinstance(e, ir.Access):
                return ir.Access(self.held[e.tensor][n] if held else e.tensor, index)
            return replace(e, index=index)  # type: ignore[arg-type]

        return rewrite(expr, visit)  # type: ignore[return-value]

    def summed(self, expr: ir.TileExpr) -> ir.TileExpr:
        """An expression without the width, whose products over it are sums of the parts' products."""

        def visit(e: ir.TileExpr) -> ir.TileExpr:
            if not isinstance(e, ir.Dot) or self.width_of(e.a) != -1:
                return e
            total = e.acc
            for n in range(len(self.parts)):
                total = ir.Dot(self.part(e.a, n), self.part(e.b, n), total)
            assert total is not None
            return total

        return rewrite(expr, visit)


_Expr = TypeVar("_Expr", bound=ir.TileExpr)

__all__ = ["cut_padded_widths", "parts_of"]
