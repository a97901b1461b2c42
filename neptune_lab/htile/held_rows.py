"""Which rows a program holds in registers as they were loaded: `again` marks each copy of a piece."""

from __future__ import annotations

from math import prod

from neptune_lab.htile.nodes import Access, Elementwise, Kernel, Program, Store
from neptune_lab.htile.shapes import shape_of_access

# Lanes of a warp.
LANES = 32
# The fewest elements of such a row that a lane holds, and the most by the warps of a program: fewer fit in registers as
# float32 too, and programs of other sizes took as long so, or longer.
FEWEST, MOST = 32, {8: 96, 16: 64}
# The same of rows of several tensors together, such as x and the cotangent in the gradient of a norm: in 16 warps, they
# and a vector leave room for one program on a multiprocessor, so or in float32.
MOST_OF_SEVERAL = {8: 96}


def held_row(program: Program, kernel: Kernel) -> tuple[str, int] | None:
    """The tensor whose rows the programs of a kernel hold as they were loaded, and the elements of a lane; None if they
    hold none, or those of several."""
    if kernel.num_warps not in MOST:
        return None
    elements: dict[str, int] = {}
    for stmt in kernel.body:
        value = stmt.value if isinstance(stmt, Store) else None
        if isinstance(value, Elementwise) and value.op == "again" and isinstance(value.args[0], Access):
            source = value.args[0]
            if program.tensor(source.tensor).space != "chip":
                elements[source.tensor] = elements.get(source.tensor, 0) + prod(shape_of_access(source))
    if len(elements) != 1:
        return None
    ((name, extent),) = elements.items()
    of_lane = extent // (LANES * kernel.num_warps)
    return (name, of_lane) if of_lane <= MOST[kernel.num_warps] else None


__all__ = ["FEWEST", "LANES", "MOST", "MOST_OF_SEVERAL", "held_row"]
