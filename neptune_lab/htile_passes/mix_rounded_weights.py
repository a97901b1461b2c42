"""Multiplies every other softmax weight of a product in float16, and the rest in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import Affine, affine, expression
from neptune_lab.htile.rounded_weights import (
    DTYPE,
    HALF,
    exact_keys,
    first_in_halves,
    first_keys,
    is_of_weights,
    others_rounded,
)
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import map_stores, rewrite_store, with_body
from neptune_lab.htile_passes.rewrite import Rewrite, fresh_name, map_kernels, tile_pass
from neptune_lab.htile_passes.split_rounded_weights import exponentials

# Axes of a grid; one of them counts the tiles that a copy is made of.
MOST_AXES = 3


@tile_pass(on_request=True)
def mix_rounded_weights(program: ir.Program) -> Rewrite:
    """Before => after, for exponentials p, a tile of 256 keys, and v[d, key] of 8 bits:

        z = dot(e4m3(p * 256), permute(v[0:128, j0*256:j0*256+256], (1, 0)))
        =>
        kernel v_halves  grid (t)
            v_halves[t*128:t*128+128, 0:128] = float16(permute(v[0:128, t*256:t*256+128], (1, 0)))
        z = dot(
            e4m3(where(key < 128, 0, p * 256)),
            permute(v[0:128, j0*256:j0*256+256], (1, 0)),
            acc=dot(
                float16(where(key < 128, p * 256, 0)),
                where(key < 128, v_halves[j0*128:j0*128+256, 0:128], 0),
            ),
        )

    Rounding to e4m3 has a typical relative error of 2.65e-2, independent from key to key; to float16, one of less than
    2^-11.  If half of the keys have weights of float16, the error of a product with independent values is
    2.65e-2 / sqrt(2) = 1.9e-2, whatever the weights are.  The products of these keys take twice the time of the others.

    Formal statement: every float of e4m3 is one of float16, so the copy is exact.  Each key has its weight in one of
    the two products and 0 in the other.  A 0 meets the key's own value there, in the product of 8 bits; in that of
    float16 it meets 0.  So a value that is NaN makes NaN in the same elements as before.

    Only for tiles whose every value is an exponential (`split_rounded_weights`), of an input whose keys tiles divide,
    so that each tile starts at a multiple of its keys and the copy has as many keys of each.
    """
    mixer = _Mixer(program, {t.name for t in program.tensors} | {k.name for k in program.kernels})
    mixed = map_kernels(program, mixer.kernel)
    if mixed is program:
        return Rewrite(program)
    tensors = (*program.tensors, *(copy.tensor for copy in mixer.copies.values()))
    kernels = (*(copy.kernel for copy in mixer.copies.values()), *mixed.kernels)
    notes = tuple(copy.note for copy in mixer.copies.values())
    return Rewrite(replace(mixed, tensors=tensors, kernels=kernels), notes)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of the values of the first keys of each tile in float16, and the kernel that makes it."""

    tensor: ir.Tensor
    kernel: ir.Kernel
    note: str


@dataclass(slots=True)
class _Mixer:
    program: ir.Program
    taken: set[str]
    copies: dict[tuple[str, int], _Copy] = field(default_factory=dict)

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        """The kernel, whose products of weights are of both kinds where that is possible."""
        weights = exponentials(kernel)

        def of(store: ir.Store) -> ir.Store:
            def visit(expr: ir.TileExpr) -> ir.TileExpr:
                if not isinstance(expr, ir.Dot) or expr.acc is not None or is_of_weights(expr.a) not in weights:
                    return expr
                values = self.values(expr, store.origin)
                if values is None:
                    return expr
                halves = ir.Dot(first_in_halves(expr.a, self.program), values)
                return ir.Dot(others_rounded(expr.a, self.program), expr.b, acc=halves)

            return rewrite_store(store, visit)

        return with_body(kernel, map_stores(kernel.body, of))

    def values(self, dot: ir.Dot, origin: str) -> ir.TileExpr | None:
        """The values of the first keys in float16, and 0 for the others; None if there can be no copy of them."""
        exact, keys = exact_keys(dot.a, self.program), shape_of(dot.a, self.program)[-1]
        found = _tile_of_keys(self.program, dot.b, keys)
        if exact == 0 or found is None:
            return None
        access, number = found
        *leading, width, along = access.index
        assert isinstance(width, ir.Slice)
        assert isinstance(along, ir.Slice)
        name = self.copy(access, width, along, exact, origin).tensor.name
        start = expression(number * exact)
        # (Rows from `exact` on are those of the next tile, or past the end.)
        rows = ir.Access(name, (*leading, ir.Slice(start, keys, along.axis), width))
        return ir.Elementwise("where", (first_keys(dot.a, self.program, 0), rows, ir.Literal(0.0, HALF)), HALF)

    def copy(self, access: ir.Access, width: ir.Slice, along: ir.Slice, exact: int, origin: str) -> _Copy:
        """The copy of a tensor, of `exact` keys of each tile."""
        name, keys = access.tensor, along.extent
        if (name, keys) in self.copies:
            return self.copies[name, keys]
        *leading, columns, every = self.program.tensor(name).shape
        made = fresh_name(f"{name}_halves", self.taken, "_")
        self.taken.add(made)
        tile = ir.Name("t")
        own = tuple(ir.GridAxis(f"n{n}", extent) for n, extent in enumerate(leading))
        at = tuple(ir.Name(axis.var) for axis in own)
        first = ir.Slice(ir.Arith("*", tile, ir.Int(keys)), exact, along.axis)
        read = ir.Access(name, (*at, width, first))
        value = ir.Cast(ir.Permute(read, (1, 0)), HALF)
        target = ir.Access(made, (*at, ir.Slice(ir.Arith("*", tile, ir.Int(exact)), exact, along.axis), width))
        self.copies[name, keys] = _Copy(
            ir.Tensor(made, (*leading, every // keys * exact, columns), HALF, "global"),
            ir.Kernel(
                f"kernel:{made}",
                made,
                (ir.GridAxis("t", every // keys), *reversed(own)),
                (ir.Store(f"tile:{made}", target, value, origin),),
            ),
            f"{made} holds, in float16, the values of {name} of the first {exact} keys of each {keys}",
        )
        return self.copies[name, keys]


def _tile_of_keys(program: ir.Program, b: ir.TileExpr, keys: int) -> tuple[ir.Access, Affine] | None:
    """The tile of an input, of all columns and `keys` keys, that a product reads, and the tile's number."""
    if not isinstance(b, ir.Permute) or b.order != (1, 0) or not isinstance(b.arg, ir.Access):
        return None
    tensor = program.tensor(b.arg.tensor)
    *leading, width, along = b.arg.index
    if tensor.dtype != DTYPE or tensor.space != "input" or tensor.sizes is not None or len(leading) >= MOST_AXES:
        return None
    if not isinstance(width, ir.Slice) or not isinstance(along, ir.Slice) or tensor.shape[-1] % keys:
        return None
    if any(isinstance(index, ir.Slice | ir.NewAxis) for index in leading):
        return None
    if (width.start, width.extent) != (ir.Int(0), tensor.shape[-2]):  # (one copy serves every product that reads it)
        return None
    form = affine(along.start)
    if form.constant % keys or any(factor % keys for _, factor in form.terms):
        return None
    number = Affine(tuple((atom, factor // keys) for atom, factor in form.terms), form.constant // keys)
    return b.arg, number


__all__ = ["mix_rounded_weights"]
