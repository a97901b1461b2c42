"""Copies of a vector for each place where a row may begin, so that it is loaded 16 bytes at a time with every row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import Affine, affine, expression
from neptune_lab.htile.aligned import AT_ONCE, steps_of
from neptune_lab.htile.walk import map_stores, rewrite_store, simplify, stores, with_body
from neptune_lab.htile_passes.rewrite import fresh_name, tile_pass
from neptune_lab.strict.dtypes import itemsize

# Elements of a copy per program.
TILE = 1024


@tile_pass(after="load_row_tiles_ahead")
def shift_vectors(program: ir.Program) -> ir.Program:
    """Before => after, for a scale w of 9001 elements, in rows of which h = i*7 % 8 elements come before the first
    multiple of 16 bytes:

        y[i, h:h+2048] = x[i, h:h+2048] * w[h:h+2048]
        =>
        kernel: w_shifted[s, j0*1024:j0*1024+1024] = w[s+j0*1024:s+j0*1024+1024]                      for s = 0 to 7
        y[i, h:h+2048] = x[i, h:h+2048] * w_shifted[h, 0:2048]

    A row of the copies has a multiple of 16 bytes.  The kernel takes about 2 µs, and rows are many (`cut_long_rows`).
    """
    kernels: list[ir.Kernel] = []
    names = {tensor.name for tensor in program.tensors} | {kernel.name for kernel in program.kernels}
    added: list[ir.Tensor] = []
    for kernel in program.kernels:
        shifter = _Shifter(program, names)
        body = map_stores(kernel.body, lambda store, own=shifter: rewrite_store(store, own.visit))
        if shifter.made:
            kernels.append(shifter.kernel(kernel))
            added += shifter.made.values()
        kernels.append(with_body(kernel, body))
    if not added:
        return program
    return replace(program, kernels=tuple(kernels), tensors=(*program.tensors, *added))


@dataclass
class _Shifter:
    """The copies that one kernel reads, by the vector and the number of copies."""

    program: ir.Program
    names: set[str]
    made: dict[tuple[str, int], ir.Tensor] = field(default_factory=dict)

    def visit(self, expr: ir.TileExpr) -> ir.TileExpr:
        """`expr`, or if it is a tile of a vector behind a head, the same elements of the copy."""
        found = self.behind(expr)
        if found is None:
            return expr
        assert isinstance(expr, ir.Access)
        head, rest, block = found
        copy = self.made.get((expr.tensor, block)) or self.copy(self.program.tensor(expr.tensor), block)
        last = expr.index[-1]
        assert isinstance(last, ir.Slice)
        return ir.Access(copy.name, (head, replace(last, start=rest)))

    def behind(self, expr: ir.TileExpr) -> tuple[ir.IndexExpr, ir.IndexExpr, int] | None:
        """The head of the row, what the slice's start has beside it, and the elements of a block."""
        if not isinstance(expr, ir.Access) or len(expr.index) != 1 or not isinstance(expr.index[0], ir.Slice):
            return None
        tensor = self.program.tensor(expr.tensor)
        if tensor.space != "input" or tensor.sizes is not None or steps_of(tensor) != (1,):
            return None
        start = affine(simplify(expr.index[0].start))
        for head, factor in start.terms:
            match head:
                case ir.Arith(op="%", b=ir.Int(value=block)) if factor == 1:
                    return self.placed(head, start.without(head), block, tensor)
                case _:
                    continue
        return None

    def placed(
        self, head: ir.IndexExpr, rest: Affine, block: int, tensor: ir.Tensor
    ) -> tuple[ir.IndexExpr, ir.IndexExpr, int] | None:
        """`behind` of a start of `head` and `rest`.

        Formal statement: row `head` of the copy has the elements from the head on, so the rest is a place in it.  It is
        no less than 0, since no variable is, and a multiple of a block.
        """
        factors = [rest.constant, *(k for _, k in rest.terms)]
        if block * itemsize(tensor.dtype) < AT_ONCE or any(k < 0 or k % block for k in factors):
            return None
        return None if any(not isinstance(term, ir.Name) for term, _ in rest.terms) else (head, expression(rest), block)

    def copy(self, tensor: ir.Tensor, block: int) -> ir.Tensor:
        name = fresh_name(f"{tensor.name}_shifted", self.names, "_")
        self.names.add(name)
        made = ir.Tensor(name, (block, -(-tensor.shape[0] // block) * block), tensor.dtype, "global")
        self.made[(tensor.name, block)] = made
        return made

    def kernel(self, reader: ir.Kernel) -> ir.Kernel:
        """The kernel that makes the copies."""
        name = fresh_name(f"{reader.name}_shift", self.names, "_")
        self.names.add(name)
        block = max(block for _, block in self.made)
        longest = max(tensor.shape[1] for tensor in self.made.values())
        s, at = ir.Name("s"), ir.Arith("*", ir.Name("j0"), ir.Int(TILE))
        origin = next(stores(reader.body)).origin
        body = []
        for (vector, _), made in self.made.items():
            target = ir.Access(made.name, (s, ir.Slice(at, TILE, "j")))
            value = ir.Access(vector, (ir.Slice(simplify(ir.Arith("+", s, at)), TILE, "j"),))
            body.append(ir.Store(f"{reader.node_id}.{made.name}", target, value, origin))
        grid = (ir.GridAxis("j0", -(-longest // TILE)), ir.GridAxis("s", block))
        return ir.Kernel(f"{reader.node_id}.shift", name, grid, tuple(body))
