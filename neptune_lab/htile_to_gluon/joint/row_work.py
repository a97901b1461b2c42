"""The order of the row work of a kernel of two nests, and whether registers suffice for what it reads."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import reads
from neptune_lab.htile_to_gluon.joint.match import Joint
from neptune_lab.htile_to_gluon.joint.regroup import regrouped
from neptune_lab.htile_to_gluon.joint.vectors import late_tiles
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure, UnsupportedKernel
from neptune_lab.htile_to_triton.scope import UniqueNames

# Tiles of float32 of the size of a score that late row work may read, beside the product that it waits for.
MOST_READ = 1


def ordered(structure: Structure) -> Structure:
    """The structure with the product first of which a sum in registers depends alone."""

    def swapped(this: LoopPart) -> LoopPart:
        late = late_tiles(this)
        if any(not late & {a.tensor for a in reads(p.store)} for p in this.trailing):
            return this
        other = replace(this, leading=this.leading[::-1])
        late = late_tiles(other)
        if any(not late & {a.tensor for a in reads(p.store)} for p in this.trailing):
            return other
        raise UnsupportedKernel("both sums in registers depend on both products of scores")

    return replace(structure, parts=tuple(map(swapped, structure.parts)), first=swapped(structure.first))


def with_factors_apart(program: ir.Program, structure: Structure, joint: Joint) -> tuple[ir.Program, Structure]:
    """The structure with the late factors of its row work regrouped."""
    names = UniqueNames([t.name for t in program.tensors])
    parts: list[LoopPart] = []
    for this in structure.parts:
        name = names.fresh(f"{joint.value}_factor")
        part, made = regrouped(program, this, late_tiles(this), name)
        parts.append(part)
        program = replace(program, tensors=(*program.tensors, *made))
    return program, replace(structure, parts=tuple(parts), first=parts[0])


def check_row_work(program: ir.Program, this: LoopPart) -> None:
    """Checks that row work reads no more tiles than there are registers for."""
    late = late_tiles(this)
    kept: set[str] = set()
    for stmt in this.middle:
        for access in reads(stmt):
            tensor = program.tensor(access.tensor)
            shape = shape_of(access, program)
            if tensor.space != "chip" and len(shape) == 2 and shape[1] > 1:
                raise UnsupportedKernel(f"{stmt.target.tensor} reads {access.tensor} from global memory in each step")
            if stmt.target.tensor in late and access.tensor not in late and len(shape) == 2 and shape[0] > 1:
                kept.add(access.tensor)
    if len(kept) > MOST_READ:
        raise UnsupportedKernel(f"{', '.join(sorted(kept))} would be in registers at the same time")


__all__ = ["check_row_work", "ordered", "with_factors_apart"]
