"""Rows that a program loads once for each pass over them, because registers would hold all of them between two.

    x = load(x_row); …; x_7 = load(…)          x = load(x_row, "evict_last"); …; x_7 = load(…, "evict_last")
    s = sum(f(x) + … + f(x_7))             =>  s = sum(f(x) + … + f(x_7))
    out[…] = g(x, s); …                        x_8 = load(x_row, "evict_first"); out[…] = g(x_8, s); …

The first-level cache has what the pass before has loaded, and registers hold what the program works on.  So two
programs share a multiprocessor, and one loads its row while the other one stores; or one has twice as many warps.
Vectors along the row are loaded past that cache.

A kernel that only reduces its rows holds them: on an H200, the parts of l2_norm of 32 x 131072 in 4 splits, which 16
warps read, take 4.3 us so and 5.3 with two loads, those of rms_norm_max 4.2 and 5.4.

Formal statement: the kernel is one sequence of statements, and none stores to the tensor, so each load gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from neptune_lab.htile.nodes import Dot, Kernel, Program, Slice, Store
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import gathered_tensors, reads, subexpressions, written_tensors
from neptune_lab.htile_to_triton.shared_loads import Tile, tile_of
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import Target

# The registers of a thread of such a program, and by its warps, the programs that a multiprocessor then runs at a time.
REGISTERS, PROGRAMS = 64, {16: 2, 32: 1}
# The most elements of a row that a thread holds, and of the tiles that it works on beside it.
MOST_HELD, MOST_BESIDE = 40, 32
# Bytes of the first-level cache for rows, without vectors along them, such as the scale of a norm, and with them.  On
# an H100 softmax of 2500 x 44001 takes 152 us from registers and 164 so, layer_norm of 13642 x 42737 885 and 863.
CACHE, CACHE_BESIDE_VECTORS = 161 << 10, 184 << 10
# Bytes of an element of the rows that were measured.
MEASURED = 2
# What tells the loads of each pass from those of the others, by the number of passes: Triton joins loads that are
# alike.
_POLICIES = {2: ("evict_last", "evict_first"), 3: ("evict_last", "", "evict_first")}


def loaded_again(program: Program, kernel: Kernel, target: Target) -> Mapping[tuple[str, str], str]:
    """The row that each pass over it loads: the eviction policy of these loads, by the origin of the statements of a
    pass, and the tensor; none if registers hold it, the kernel only reduces it, or the cache does not hold those of all
    programs.

    Args:
        program: the program of the kernel.
        kernel: any kernel.
        target: the GPU. The caches of Hopper GPUs hold the rows of two programs, those of all CUDA GPUs one row.
    """
    own = [stmt for stmt in kernel.body if isinstance(stmt, Store)]
    programs = PROGRAMS.get(kernel.num_warps or 0)
    if programs is None or target.kind != "cuda" or (programs > 1 and not target.warpgroup_products):
        return {}
    if program.sizes or len(own) < len(kernel.body):
        return {}
    if any(isinstance(e, Dot) for s in own for e in subexpressions(s.value)):
        return {}
    if not any(program.tensor(s.target.tensor).space != "chip" and shape_of_access(s.target) for s in own):
        return {}
    lanes = 32 * (kernel.num_warps or 0)
    targets = [store.target for store in own if program.tensor(store.target.tensor).space == "chip"]
    if sum({target.tensor: prod(shape_of_access(target)) for target in targets}.values()) > MOST_BESIDE * lanes:
        return {}
    apart = written_tensors(kernel).union(*map(gathered_tensors, own))
    passes: dict[str, dict[str, None]] = {}
    tiles: dict[str, set[Tile]] = {}
    for store in own:
        for access in reads(store):
            if access.tensor not in apart and len(shape_of_access(access)) == 1:
                passes.setdefault(access.tensor, {})[store.origin] = None
                tiles.setdefault(access.tensor, set()).add(tile_of(access))
    several = [name for name, origins in passes.items() if len(origins) > 1]
    if len(several) != 1 or len(passes[several[0]]) not in _POLICIES:
        return {}
    (name,) = several
    elements = sum(i.extent for _, index in tiles[name] for i in index if isinstance(i, Slice))
    row = elements * itemsize(program.tensor(name).dtype)
    cache = CACHE if len(passes) == 1 else CACHE_BESIDE_VECTORS
    if row != MEASURED * elements or elements <= MOST_HELD * lanes or programs * row > cache:
        return {}
    policies = _POLICIES[len(passes[name])]
    return {(origin, name): policy for origin, policy in zip(passes[name], policies, strict=True)}


__all__ = ["REGISTERS", "loaded_again"]
