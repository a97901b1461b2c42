"""Estimates the time of a candidate by MCFuser's analytical model (its section IV-A, Eqs. 2 to 5).

    t = (t_mem + t_comp) * alpha                                   (2)
    t_mem  = sum over loads and stores of tile bytes * trips / W   (3)
    t_comp = sum over products of tile operations * trips / P      (4)
    alpha  = (N_block + N_SM) / N_block                            (5)

with W the memory bandwidth and P the matrix units' peak, both of the device, and trips over all thread blocks.  The
model ranks candidates: every tile that is read again counts as read from memory, and nothing else (exponentials,
latencies, the second-level cache) counts.  It is applied in two places:

- `predict_nests`, from the operator's nests and a candidate's tiles alone, in about half a millisecond; a search
  ranks by it.  A masked loop counts as a whole.
- `predict_program`, from an HTile program, which has the skipped tiles, second passes over a row, and the
  combining kernel of a split; about a tenth of a second per candidate, since it has to be compiled that far.

Our addition to the equations: the times of several kernels are summed, each with its own alpha and a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import TYPE_CHECKING

from neptune_lab.autotune.dag import executions, place, trip_counts
from neptune_lab.autotune.expressions import Tiling
from neptune_lab.autotune.nests import NestChain, Nests, splits_of
from neptune_lab.choice import Choice
from neptune_lab.htile.nodes import Dot, For, Kernel, Program, Stmt, Store
from neptune_lab.htile.shapes import shape_of, shape_of_access
from neptune_lab.htile.walk import evaluate, names_of_index, reads, subexpressions
from neptune_lab.runtime import Ceiling
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import DEFAULT, Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

# Launch overhead of a kernel after another, in a CUDA graph on an H200.
LAUNCH_SECONDS = 1.0e-6
# Waves of programs of a split if the template chooses (loop_schedule.templates).
WAVES = 4
# A split's partial results are float32.
PARTIAL_BYTES = 4
# Loop bounds are averaged over at most about this many thread blocks.
SAMPLED_BLOCKS = 2048


@dataclass(frozen=True, slots=True)
class Prediction:
    """An estimate and its parts.

    Args:
        memory, compute: seconds, Eqs. 3 and 4, summed over kernels.
        seconds: Eq. 2, summed over kernels, with their launches.
        moved: bytes loaded and stored.
        flops: operations of products.
        blocks: thread blocks of the largest kernel.
    """

    memory: float
    compute: float
    seconds: float
    moved: float
    flops: float
    blocks: int

    def __add__(self, other: Prediction) -> Prediction:
        """The two in sequence."""
        return Prediction(
            self.memory + other.memory,
            self.compute + other.compute,
            self.seconds + other.seconds,
            self.moved + other.moved,
            self.flops + other.flops,
            max(self.blocks, other.blocks),
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """The figures of a device in Eqs. 2 to 5: bytes and operations per second, and multiprocessors."""

    bandwidth: float
    peak: float
    multiprocessors: int

    @classmethod
    def of(cls, target: Target, measured: Ceiling | None = None) -> Machine:
        """The GPU's figures: measured ones, else its data sheet's, else an H200's (ranking needs only ratios).

        Args:
            target: the GPU.
            measured: from `runtime.ceilings.measure_ceilings`.
        """
        rates = measured or target.ceiling or DEFAULT.ceiling
        assert rates is not None
        return cls(rates.gbps * 1e9, rates.tflops * 1e12, target.sm_count)

    def predict(self, moved: float, flops: float, blocks: int, *, specialised: bool = False) -> Prediction:
        """Eqs. 2 to 5 for one kernel.

        A program of a warp-specialised kernel loads tiles while it multiplies others, so the longer of the two counts.
        It has a multiprocessor to itself, so 100 programs on 100 multiprocessors take one turn, and 101 take two.

        >>> machine = Machine(1e12, 1e14, 100)
        >>> round(machine.predict(moved=1e6, flops=1e8, blocks=100).seconds * 1e6, 3)
        5.0
        >>> round(machine.predict(moved=1e6, flops=1e8, blocks=100, specialised=True).seconds * 1e6, 3)
        2.0
        """
        memory, compute = moved / self.bandwidth, flops / self.peak
        if specialised:
            turns = -(-blocks // self.multiprocessors)
            seconds = max(memory, compute) * turns * self.multiprocessors / blocks
        else:
            seconds = (memory + compute) * (blocks + self.multiprocessors) / blocks
        return Prediction(memory, compute, seconds + LAUNCH_SECONDS, moved, flops, blocks)


# -- from tiling expressions ----------------------------------------------------------------------------------


def predict_nest(
    nest: NestChain,
    tiling: Tiling,
    tiles: Mapping[str, int],
    machine: Machine,
    splits: int | None = 1,
    *,
    specialised: bool = False,
) -> Prediction:
    """The estimate of one nest.

    Args:
        nest: the chain, and which of its loops are on the grid.
        tiling: the expression, grid first.
        tiles: the tile of each loop.
        machine: the device.
        splits: parts that the column is cut into, one per block; None: as many as fill the device.
        specialised: warps load, and others compute.
    """
    chain = nest.chain
    trips = trip_counts(chain, tiles)
    grid = [loop for loop in tiling.nested[: tiling.nested.index(nest.column)] if trips[loop] > 1]
    blocks = prod(trips[loop] for loop in grid)
    parts = min(trips[nest.column], splits or -(-WAVES * machine.multiprocessors // blocks))
    moved = flops = stored = partial = again = 0.0
    for stmt in place(chain, tiling, trips, grid):
        times = executions(stmt, trips)
        if stmt.kind == "C":
            computation = chain.computations[stmt.computation]
            if nest.multiplies(computation):
                flops += 2.0 * prod(tiles[loop] for loop in computation.loops) * times
            continue
        elements = prod(tiles[loop] for loop in stmt.tensor.loops) * times
        if stmt.computation >= len(chain.computations) - nest.again:
            again += elements * stmt.tensor.itemsize
        elif nest.column in stmt.scope:
            moved += elements * stmt.tensor.itemsize
        elif stmt.kind == "S":
            stored += elements * stmt.tensor.itemsize
            partial += elements * parts * PARTIAL_BYTES
        else:
            moved += elements * stmt.tensor.itemsize * parts
    if parts == 1:
        return machine.predict(moved + again + stored, flops, blocks, specialised=specialised)
    # The combining kernel has its own tiles, small enough to fill the device.
    combining = machine.predict(partial + again + stored, 0.0, max(blocks, machine.multiprocessors))
    return machine.predict(moved + partial, flops, blocks * parts) + combining


def predict_nests(nests: Iterable[NestChain], candidate: Choice, machine: Machine) -> Prediction:
    """The estimate of a candidate from its options alone: its nests, in sequence."""
    config, specialised = candidate.sizes, candidate.code.code == "gluon"
    total = Prediction(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    for n, nest in enumerate(nests):
        tiling, tiles, splits = nest.tiling(config, n), nest.tiles(config, n), splits_of(candidate, n)
        total = total + predict_nest(nest, tiling, tiles, machine, splits, specialised=specialised)
    return total


class CostModel:
    """Ranks candidates in a search: called with one, it returns the estimate of `predict_nests` in seconds."""

    def __init__(self, operator: Operator, target: Target, measured: Ceiling | None = None) -> None:
        """For an operator on a GPU, with that GPU's measured ceilings if there are any."""
        self.nests = Nests.found_in(operator)
        self.machine = Machine.of(target, measured)

    def predict(self, candidate: Choice) -> Prediction:
        """The estimate and its parts."""
        return predict_nests(self.nests.of(candidate), candidate, self.machine)

    def __call__(self, candidate: Choice) -> float:
        """Estimated seconds."""
        return self.predict(candidate).seconds


# -- from HTile -----------------------------------------------------------------------------------------------


def predict_program(program: Program, machine: Machine) -> Prediction:
    """The estimate of an HTile program, kernel by kernel.

    Loads and stores count whole tiles (an element past the end counts, as the tile does in Eq. 3).  If the bounds of
    a loop depend on the thread block (a causal mask), its trips are averaged over the blocks.
    """
    total = Prediction(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    for kernel in program.kernels:
        total = total + predict_kernel(program, kernel, machine)
    return total


def predict_kernel(program: Program, kernel: Kernel, machine: Machine) -> Prediction:
    """The estimate of one kernel of an HTile program."""
    blocks = prod(axis.extent for axis in kernel.grid)
    sampled = list(_sampled_blocks(kernel))
    moved = flops = 0.0
    for env in sampled:
        bytes_here, flops_here = _body(program, kernel.body, env)
        moved, flops = moved + bytes_here, flops + flops_here
    share = blocks / len(sampled)
    return machine.predict(moved * share, flops * share, blocks)


def _sampled_blocks(kernel: Kernel) -> Iterable[dict[str, int]]:
    """Values of the grid variables that loop bounds depend on, evenly spread if there are many; others are 0."""
    used = _names_in_bounds(kernel.body)
    depends = [axis for axis in kernel.grid if axis.var in used]
    most = max(1, int(SAMPLED_BLOCKS ** (1 / max(1, len(depends)))))
    values = [_spread(axis.extent, most) for axis in depends]
    fixed = {axis.var: 0 for axis in kernel.grid}
    for chosen in combinations(*values):
        yield {**fixed, **{axis.var: value for axis, value in zip(depends, chosen, strict=True)}}


def _spread(extent: int, most: int) -> list[int]:
    """At most `most` values of range(extent), symmetric about its middle, so that a linear function keeps its mean."""
    if extent <= most:
        return list(range(extent))
    return [(2 * n + 1) * extent // (2 * most) for n in range(most)]


def _names_in_bounds(body: tuple[Stmt, ...]) -> frozenset[str]:
    names: frozenset[str] = frozenset()
    for stmt in body:
        if isinstance(stmt, For):
            names |= names_of_index(stmt.start) | names_of_index(stmt.stop) | _names_in_bounds(stmt.body)
    return names


def _body(program: Program, body: tuple[Stmt, ...], env: Mapping[str, int]) -> tuple[float, float]:
    """(bytes moved, operations of products) of one thread block; a tile that several stores of a body read is loaded
    for the first of them."""
    moved = flops = 0.0
    straight = [stmt for stmt in body if isinstance(stmt, Store)]
    read = dict.fromkeys(access for store in straight for access in reads(store))
    for access in (*read, *(store.target for store in straight)):
        tensor = program.tensor(access.tensor)
        if tensor.space != "chip":
            moved += prod(shape_of_access(access)) * itemsize(tensor.dtype)
    for store in straight:
        for expr in subexpressions(store.value):
            if isinstance(expr, Dot):
                flops += 2.0 * prod(shape_of(expr.a, program)) * shape_of(expr.b, program)[-1]
    for stmt in body:
        if isinstance(stmt, For):
            bytes_here, flops_here = _loop(program, stmt, env)
            moved, flops = moved + bytes_here, flops + flops_here
    return moved, flops


def _loop(program: Program, loop: For, env: Mapping[str, int]) -> tuple[float, float]:
    start, stop = evaluate(loop.start, env), evaluate(loop.stop, env)
    if loop.var not in _names_in_bounds(loop.body):
        moved, flops = _body(program, loop.body, {**env, loop.var: start})
        return moved * max(0, stop - start), flops * max(0, stop - start)
    parts = [_body(program, loop.body, {**env, loop.var: value}) for value in range(start, stop)]
    return sum(moved for moved, _ in parts), sum(flops for _, flops in parts)
