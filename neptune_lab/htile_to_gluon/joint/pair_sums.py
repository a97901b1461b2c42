"""The sum over samples of pairs, which the kernel of two nests adds up in place of a kernel after it.

    nest over keys:  t[b, h, i, j] = x[i, j]    => for the kernel of both nests
    kernel:  d[h, i, j] = sum over b of t              once b programs have added: d[h, i, j] = d[h, i, j] + x[j, i]

A bias that samples share is `bias[h, i, j]`.  Its pairs are stored once for each sample otherwise, and read again.

Legality.  Formal statement: t and d are of float32, nothing else reads t, and each element of d is the sum of those of
t at the same indices, for all samples.  Every pair of t is stored (no mask hides one), so each program of the kernel of
both nests adds to what the programs of the samples before it have added to at the same pairs; that of the first sample
stores.  So d is the sum, in the order of the samples.  A program waits only for one of a smaller number, which has
started: among the programs of a row block and head, the number of the sample follows the number of the program.
"""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import read_tensors, same_index, stores, written_tensors
from neptune_lab.htile_to_gluon.joint.match import Joint
from neptune_lab.htile_to_gluon.joint.pairs import Pairs
from neptune_lab.htile_to_gluon.joint.vectors import columns_of

# Samples that wait for each other at a tile.
MOST_SAMPLES = 16
# Columns of heads with which shared memory has room for pairs, from where the copy engine adds them.
WIDEST = 64
# Of the rows of a tile, those whose counters are taken: of sums of the other nest, and of programs that have started.
TAKEN = 2


def with_sum(program: ir.Program, joint: Joint) -> tuple[Joint, ir.Kernel] | None:
    """The kernel of two nests that adds up its pairs, and the kernel that it replaces; None if there is none."""
    pairs = joint.pairs
    if pairs is None or not pairs.unrounded or pairs.shown or joint.around is not None:
        return None
    if program.tensor(joint.output.target.tensor).shape[-1] > WIDEST:
        return None
    found = _sum_of(program, pairs)
    if found is None:
        return None
    kernel, output, dimension = found
    extent = {axis.var: axis.extent for axis in joint.kernel.grid}
    sample = joint.heads[dimension]
    shape = program.tensor(pairs.tensor).shape
    samples, queries = shape[dimension], shape[-2]
    if not isinstance(sample, ir.Name) or extent.get(sample.name) != samples or samples > MOST_SAMPLES:
        return None
    # (each row block has a counter in a row of its own, in each tile, also in a last one that is cut off)
    tiles = {columns_of(part).extent for part in joint.structure.parts}
    if any(extent[joint.row] > (queries % tile or tile) - TAKEN for tile in tiles):
        return None
    return replace(joint, pairs=replace(pairs, output=output, summed=dimension)), kernel


def _sum_of(program: ir.Program, pairs: Pairs) -> tuple[ir.Kernel, str, int] | None:
    """The kernel that only sums up the pairs along a dimension, the tensor that it stores, and that dimension."""
    tensor = program.tensor(pairs.tensor)
    readers = [k for k in program.kernels if any(pairs.tensor in read_tensors(s) for s in stores(k.body))]
    if tensor.space != "global" or tensor.dtype != "float32" or len(readers) != 1:
        return None
    (kernel,) = readers
    match kernel.body:
        case (
            ir.Store(target=tile, mask=None, value=ir.Reduce(op="sum", arg=ir.Access(index=index) as read, dim=dim)),
            ir.Store(target=target, mask=None, value=ir.Access() as value),
        ) if read.tensor == pairs.tensor and value == tile and program.tensor(tile.tensor).space == "chip":
            pass
        case _:
            return None
    slices = [n for n, at in enumerate(index) if isinstance(at, ir.Slice)]
    if len(index) != len(tensor.shape) or dim >= len(slices):
        return None
    dimension = slices[dim]
    whole, output = index[dimension], program.tensor(target.tensor)
    assert isinstance(whole, ir.Slice)
    if whole.start != ir.Int(0) or whole.extent != tensor.shape[dimension] or dimension >= len(index) - 2:
        return None
    kept = [at for n, at in enumerate(index) if n != dimension]
    shape = tuple(extent for n, extent in enumerate(tensor.shape) if n != dimension)
    alike = (output.shape, output.dtype, output.strides, output.sizes, output.steps) == (shape, "float32", *[None] * 3)
    places = len(kept) == len(target.index) and all(
        not isinstance(a, ir.NewAxis) and not isinstance(b, ir.NewAxis) and same_index(a, b)
        for a, b in zip(kept, target.index, strict=True)
    )
    elsewhere = [k for k in program.kernels if k is not kernel and output.name in written_tensors(k)]
    return (kernel, output.name, dimension) if alike and places and not elsewhere else None


__all__ = ["MOST_SAMPLES", "TAKEN", "with_sum"]
