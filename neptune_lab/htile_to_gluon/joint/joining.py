"""Two nests of a program as one kernel: the program around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite, same_index
from neptune_lab.htile_to_gluon.joint.by_sizes import joint_by_sizes
from neptune_lab.htile_to_gluon.joint.diagonals import Diagonals, without
from neptune_lab.htile_to_gluon.joint.finish import Finish, finish_of, head_of
from neptune_lab.htile_to_gluon.joint.form import CONSUMERS
from neptune_lab.htile_to_gluon.joint.match import Joint
from neptune_lab.htile_to_gluon.joint.pair_sums import with_sum
from neptune_lab.htile_to_gluon.joint.pairs import after_pairs, copied, only_shown
from neptune_lab.htile_to_gluon.joint.parts import parts_shape, sum_of_parts
from neptune_lab.htile_to_gluon.joint.squares import shared_first
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.htile_to_triton.scope import UniqueNames


@dataclass(frozen=True, slots=True)
class Joined:
    """A program with the kernel of two nests in place of these.

    Args:
        program: the sum of one nest is a tensor in global memory, which begins at 0 and which a kernel reads at the
            end. `kernel`, of the other nest, also adds to it, which its statements do not say.
        joint: the nests; `total`: the tensor.
        order: a tensor of whole numbers, one for each row of the total and consumer, which begin at 0: at the first row
            of a tile, the number after the row block whose consumer added to it last; at the second of all rows, how
            many programs have started.  None: programs add in any order.
        parts: the tensor of sums along diagonals that `kernel` stores besides; None: there are none.
        finish: how `kernel` stores the output of the other nest too; None: a kernel of its own does, of the total.
    """

    program: ir.Program
    joint: Joint
    total: str
    order: str | None
    parts: str | None = None
    finish: Finish | None = None

    @property
    def kernel(self) -> ir.Kernel:
        """The kernel that is to be emitted by `emit_joint`."""
        return self.joint.kernel


def joined(program: ir.Program, *, in_order: bool = False, together: int | None = None) -> Joined:
    """Joins two nests of a program.

    Before => after:

        for j: y[i] = y[i] + x[i, j] @ k[j]          total[i] = 0, in an earlier kernel or in one of its own
        out[i] = g(y[i])                             the other nest, which adds to total[i]
                                                     out[i] = g(total[i])

    Args:
        in_order: programs add to a tile of the total in the order of their row blocks.
        together: the number of heads that run at the same time; None: it is not given.

    Raises:
        UnsupportedKernel: it has no two nests that can be joined, or the row blocks that add to a tile are not
            consecutive, once each.
    """
    joint = joint_by_sizes(program)
    if in_order and not joint.in_turn:
        raise UnsupportedKernel(f"a tile of {joint.total} is visited by row blocks that are not consecutive")
    seen = replace(program, tensors=(*program.tensors, *joint.exchanged.tensors))
    joint = replace(joint, kernel=shared_first(seen, joint.structure, joint.kernel, joint.row))
    stored = program.tensor(joint.output.target.tensor)
    if stored.strides is not None or stored.steps is not None:
        raise UnsupportedKernel(f"{joint.output.target.tensor} is not contiguous")
    names = UniqueNames([t.name for t in program.tensors])
    total = names.fresh(joint.total.removesuffix("_sum") + "_total")
    order = names.fresh("order") if in_order else None
    finish = finish_of(program, joint, together) if in_order else None
    added = _total_and_order(stored, total, order, finish)
    after = [_finish(joint, total)] if finish is None else []
    parts = None
    if joint.diagonals is not None:
        parts = names.fresh(f"{joint.diagonals.pairs}_parts")
        program, summed, tensors = _with_parts(program, joint.diagonals, parts)
        added = [*tensors, *added]
        after.append(summed)
    joint, late, left_out = _pairs_before_readers(program, joint, summing=in_order and finish is None)
    kernels = _in_new_order(
        program, joint, _Zeros(joint, total, order, finish, stored.shape[:-2]), [*after, *late], left_out
    )
    program = replace(program, tensors=(*program.tensors, *added), kernels=tuple(kernels))
    return Joined(program, joint, total, order, parts, finish)


def _total_and_order(stored: ir.Tensor, total: str, order: str | None, finish: Finish | None) -> list[ir.Tensor]:
    """The tensor of the total, of the shape that the sum is stored in, or of fewer heads, and that of the order."""
    if finish is not None:
        stored = replace(stored, shape=(finish.slots, *stored.shape[-2:]))
    made = [ir.Tensor(total, stored.shape, "float32", "global", sizes=stored.sizes)]
    if order is not None:
        rows = None if stored.sizes is None else (*stored.sizes[:-1], ir.Int(CONSUMERS))
        made.append(ir.Tensor(order, (*stored.shape[:-1], CONSUMERS), "int32", "global", sizes=rows))
    return made


def _finish(joint: Joint, total: str) -> ir.Kernel:
    """The kernel that stores what the nest of the sum stored, of the total."""

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, tensor=total) if isinstance(expr, ir.Access) and expr.tensor == joint.total else expr

    return replace(
        joint.other, body=(replace(joint.output, value=rewrite(joint.output.value, visit)),), num_stages=None
    )


def _with_parts(
    program: ir.Program, diagonals: Diagonals, parts: str
) -> tuple[ir.Program, ir.Kernel, tuple[ir.Tensor, ir.Tensor]]:
    """The program without its sum along diagonals, the kernel that adds up `parts` in its place, and the tensor of the
    parts and the tile of that kernel."""
    pairs = program.tensor(diagonals.pairs)
    made = ir.Tensor(parts, parts_shape(pairs.shape), "float32", "global")
    summed, tile = sum_of_parts(program, diagonals, pairs, parts)
    return without(program, diagonals), summed, (made, tile)


def _pairs_before_readers(
    program: ir.Program, joint: Joint, *, summing: bool
) -> tuple[Joint, tuple[ir.Kernel, ...], set[str]]:
    """The joint kernel, the kernels that read what it stores for each pair, and the names of those and of a kernel that
    only copies that, or only sums it over samples if `summing`, whose result the joint kernel then stores itself."""
    if joint.pairs is None:
        return joint, (), set()
    late = tuple(only_shown(program, kernel, joint.pairs) for kernel in _after_pairs(program, joint))
    left_out = {kernel.name for kernel in late}
    added, copy = with_sum(program, joint) if summing else None, copied(program, joint.pairs)
    if added is not None:
        joint, kernel = added
        late = tuple(one for one in late if one.name != kernel.name)
        left_out.add(kernel.name)
    elif copy is not None:
        kernel, output = copy
        late = tuple(one for one in late if one.name != kernel.name)
        joint = replace(joint, pairs=replace(joint.pairs, output=output))
        left_out.add(kernel.name)
    return joint, late, left_out


def _in_new_order(
    program: ir.Program, joint: Joint, zeros: _Zeros, after: list[ir.Kernel], left_out: set[str]
) -> Iterator[ir.Kernel]:
    """The kernels of the program, those in `after` behind the joint one; a kernel before it writes zeros to the total
    beside its own output, else one of its own does."""
    zeroed = False
    for kernel in program.kernels:
        if kernel.name in left_out or kernel.name == joint.other.name:
            continue
        if kernel.name == joint.kernel.name:
            if not zeroed:
                yield zeros.kernel()
            yield joint.kernel
            yield from after
            continue
        index = None if zeroed else _rows_beside(program, kernel, joint.output)
        zeroed = zeroed or index is not None
        yield replace(kernel, body=(*kernel.body, *(() if index is None else zeros.stores(index))))


def _after_pairs(program: ir.Program, joint: Joint) -> tuple[ir.Kernel, ...]:
    """The kernels that read what the joint kernel stores for each pair, which come after it."""
    assert joint.pairs is not None
    late = after_pairs(program, joint.pairs)
    if joint.kernel.name in {kernel.name for kernel in late}:
        raise UnsupportedKernel(f"{joint.kernel.name} reads what is computed from {joint.pairs.tensor}")
    return late


@dataclass(frozen=True, slots=True)
class _Zeros:
    """What the total and its counters begin with."""

    joint: Joint
    total: str
    order: str | None
    finish: Finish | None
    shape: tuple[int, ...]

    def stores(self, index: tuple[ir.Index, ...]) -> tuple[ir.Store, ...]:
        """Stores of 0 to rows of the total, and to their counters; to these alone if the first row block stores."""
        output, zero = self.joint.output, ir.Literal(0.0, "float32")
        stores: list[ir.Store] = []
        if self.finish is None:
            stores.append(ir.Store(f"{output.node_id}.zero", ir.Access(self.total, index), zero, output.origin))
        if self.order is not None:
            (*outer, rows, _) = index
            if self.finish is not None:
                heads = tuple(at for at in outer if not isinstance(at, ir.Slice | ir.NewAxis))
                outer = [self.finish.slot(head_of(self.shape, heads))]
            counters = ir.Access(self.order, (*outer, rows, ir.Slice(ir.Int(0), CONSUMERS, "consumer")))
            stores.append(ir.Store(f"{output.node_id}.counters", counters, ir.Literal(0, "int32"), output.origin))
        return tuple(stores)

    def kernel(self) -> ir.Kernel:
        """A kernel that stores nothing else."""
        other, body = self.joint.other, self.stores(self.joint.output.target.index)
        return replace(other, node_id=f"{other.node_id}.zero", name=f"{self.total}_zero", body=body)


def _rows_beside(program: ir.Program, kernel: ir.Kernel, output: ir.Store) -> tuple[ir.Index, ...] | None:
    """The index of the rows of the total that a kernel stores one value of; None if it stores no such values."""
    whole = program.tensor(output.target.tensor)
    shape = whole.shape
    for stmt in kernel.body:
        if not isinstance(stmt, ir.Store) or stmt.mask is not None:
            continue
        target = program.tensor(stmt.target.tensor)
        rows = program.tensor(output.target.tensor).sizes
        alike_sizes = target.sizes == (None if rows is None else rows[:-1])
        if (
            target.space == "chip"
            or target.shape != shape[:-1]
            or not alike_sizes
            or len(stmt.target.index) != len(target.shape)
        ):
            continue
        *outer, rows = stmt.target.index
        (*others, _, columns) = output.target.index
        alike = len(outer) == len(others) and all(map(_same_index, outer, others)) and isinstance(columns, ir.Slice)
        if alike and isinstance(rows, ir.Slice):
            return (*outer, rows, columns)
    return None


def _same_index(a: ir.Index, b: ir.Index) -> bool:
    return not isinstance(a, ir.NewAxis) and not isinstance(b, ir.NewAxis) and same_index(a, b)


__all__ = ["Joined", "joined"]
