"""Which kernels can be one launch whose programs wait for each other: those that share rows (`share_rows`).

    kernel y_s  grid (p: 3, i: 8)           kernel y, p of 3 programs, for i in every row of their group:
        s_part[i, p] = ...                      give s_part[i, p]
    kernel y  grid (p: 3, i: 8)        ⇒        for i, the row of the group before this one:
        s[i] = reduce(max, s_part[i, 0:3])          take s_part[i, 0:3], when all three have given theirs
        y[i, ...] = x[i, ...] - s[i]                s[i] = reduce(max, s_part[i, 0:3])
                                                    y[i, ...] = x[i, ...] - s[i]

The programs of a *group* share a row, and then the next one of the group.  Each kernel is `DELAY` rows of the group
behind the one before it, so that what it waits for was given long ago, and the second-level cache still has what both
load.

What programs pass on are numbers of 32 bits, each in one word with a mark that says of which row and launch it is; so
no counter is needed, nor a barrier.  A word is used again for the row that is `depth` rows of the group behind.  With n
kernels and a delay of d, a program that gives a number for turn t has taken all numbers of turn t - 1 - d, so that
every other program has finished its turn t - 2 - d, and with it row t - 2 - d - (n - 1) d, and so row t - depth.

Programs that wait need all others of their group to run: what they wait for is given in an earlier turn, or earlier in
the same one.  So the launch is cooperative: the GPU starts all programs at
the same time, or the driver refuses it; and groups are as many as the GPU has room for.

Formal statement.  Kernels are joined only if (1) they have one grid, of parts and rows, and no loops; (2) a tensor that
one stores and another reads has one number for each part of each row, which is stored by the program of that part and
row, and read by programs of that row, in later kernels only; and (3) no kernel elsewhere reads it.  A kernel between
them runs before them if it neither reads nor stores what they store, nor stores what those before it read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from neptune_lab.htile.bounds import Env, Interval
from neptune_lab.htile.nodes import (
    Access,
    Elementwise,
    For,
    GridAxis,
    Int,
    Kernel,
    Literal,
    Name,
    Program,
    Reduce,
    Reducer,
    Slice,
    Store,
    TileExpr,
)
from neptune_lab.htile.shapes import identity_of
from neptune_lab.htile.tile_bounds import tile_interval
from neptune_lab.htile.walk import gathered_tensors, loop_bounds, read_tensors, reads, rewrite, stores, written_tensors
from neptune_lab.target import registers_of_thread

# The warps that a multiprocessor runs at the same time, of programs of at most two and of more. On
# an H200 layer_norm of 2509 x 118068 in programs of two warps takes 405 us with 28 and 419 with 32, softmax of 1000 x
# 100000 in programs of four 130 us with 24 and 123 with 32.
OF_SMALL, OF_LARGE = 28, 32
# Rows of a group between a kernel and the next one.
DELAY = 1
# What can be given with a mark in one word.
_DTYPES = ("float32",)
# The reducer of each operation on two operands.
_REDUCERS: dict[str, Reducer] = {"add": "sum", "max": "max", "min": "min", "mul": "prod"}


def resident(warps: int) -> int:
    """Programs of so many warps that a multiprocessor runs at the same time.

    >>> resident(2), resident(4), resident(8)
    (14, 8, 4)
    """
    return max(1, (OF_SMALL if warps <= 2 else OF_LARGE) // warps)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Kernels of one launch whose programs wait for each other.

    Args:
        kernels: the kernels, in order.
        before: kernels that stand between them, and run before them.
        whole: all of them as one kernel, as far as its tensors and tiles go.
        passed: the tensors that programs pass on.
    """

    kernels: tuple[Kernel, ...]
    before: tuple[Kernel, ...]
    whole: Kernel
    passed: tuple[str, ...]

    @property
    def part(self) -> GridAxis:
        """The axis of the parts of a row."""
        return self.whole.grid[0]

    @property
    def row(self) -> GridAxis:
        """The axis of rows."""
        return self.whole.grid[1]

    def groups_on(self, multiprocessors: int) -> int:
        """The groups of programs that a GPU runs at the same time."""
        return max(1, min(self.row.extent, self.resident * multiprocessors // self.part.extent))

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor runs at the same time."""
        return resident(self.whole.num_warps or 4)

    @property
    def registers(self) -> int:
        """Registers of a thread, of which a multiprocessor then has enough."""
        return registers_of_thread(self.whole.num_warps or 4, self.resident)

    @property
    def depth(self) -> int:
        """Rows of a group after which the words of a row are used again."""
        return 2 + DELAY * len(self.kernels)

    @property
    def words(self) -> int:
        """The numbers that the programs of a group pass on for a row."""
        return self.part.extent * len(self.passed)


class _Apart(Exception):
    """Why kernels cannot be joined."""


def waiting(program: Program, kernels: Sequence[Kernel]) -> Waiting | str:
    """The first of `kernels`, and those after it that share its rows, as one launch.

    Args:
        program: the program that has them.
        kernels: its kernels from one on.

    Returns:
        How they are joined; or why they cannot be, as the end of a sentence about the first.
    """
    try:
        return _waiting(program, kernels)
    except _Apart as reason:
        return str(reason)


def _waiting(program: Program, kernels: Sequence[Kernel]) -> Waiting:
    first = kernels[0]
    if program.sizes or len(first.grid) != 2 or any(isinstance(stmt, For) for stmt in first.body):
        raise _Apart("has other statements than parts of rows do, or another grid")
    members, between, before = [first], list[Kernel](), list[Kernel]()
    for kernel in kernels[1:]:
        if _is_alike(first, kernel):
            members.append(kernel)
            before += between
            between = []
        elif _may_run_before(kernel, members):
            between.append(kernel)
        else:
            break
    if len(members) == 1:
        raise _Apart("is followed by no kernel with the same grid")
    part, row = first.grid
    passed = _passed(program, members, part, row)
    whole = replace(members[-1], body=tuple(store for kernel in members for store in kernel.body))
    return Waiting(tuple(members), tuple(before), whole, passed)


def _is_alike(first: Kernel, kernel: Kernel) -> bool:
    same = (kernel.grid, kernel.num_warps) == (first.grid, first.num_warps)
    return same and not any(isinstance(stmt, For) for stmt in kernel.body)


def _used(kernels: Sequence[Kernel]) -> set[str]:
    """The tensors that kernels read."""
    used = {name for kernel in kernels for store in stores(kernel.body) for name in read_tensors(store)}
    return used | {bound.tensor for kernel in kernels for bound in loop_bounds(kernel.body)}


def _stored(kernels: Sequence[Kernel]) -> set[str]:
    return set().union(*map(written_tensors, kernels))


def _may_run_before(kernel: Kernel, members: Sequence[Kernel]) -> bool:
    own, stored = written_tensors(kernel), _stored(members)
    return not _used([kernel]) & stored and not own & (_used(members) | stored)


def _passed(program: Program, members: Sequence[Kernel], part: GridAxis, row: GridAxis) -> tuple[str, ...]:
    """Tests (2) and (3) of the formal statement."""
    chip = {tensor.name for tensor in program.tensors if tensor.space == "chip"}
    stored = _stored(members) - chip
    passed = tuple(tensor.name for tensor in program.tensors if tensor.name in stored & _used(members))
    outside = _used([kernel for kernel in program.kernels if kernel not in members]) | set(program.outputs)
    if not passed:
        raise _Apart("passes nothing on")
    own = (Name(row.var), Name(part.var))
    for name in passed:
        tensor = program.tensor(name)
        if name in outside or tensor.dtype not in _DTYPES or tensor.shape != (row.extent, part.extent):
            raise _Apart(f"passes {name} on, which is more than one number of 32 bits for each part, or read elsewhere")
        given = [(n, s) for n, k in enumerate(members) for s in stores(k.body) if s.target.tensor == name]
        if len(given) != 1 or given[0][1].target.index != own or given[0][1].mask is not None:
            raise _Apart(f"passes {name} on, which not only the program of a part stores")
        for n, kernel in enumerate(members):
            for store in stores(kernel.body):
                if name in gathered_tensors(store):
                    raise _Apart(f"passes {name} on, which is read element by element")
                for access in reads(store):
                    if access.tensor == name and not (n > given[0][0] and _is_row(access, part, row)):
                        raise _Apart(f"passes {name} on, which other programs than those of its row read")
    return passed


def _is_row(access: Access, part: GridAxis, row: GridAxis) -> bool:
    """Whether an access reads the numbers of all parts of the program's row."""
    match access.index:
        case (Name(name=name), Slice(start=Int(value=0), extent=extent)):
            return (name, extent) == (row.var, part.extent)
    return False


def bodies(joined: Waiting, kernel: Kernel) -> Iterator[tuple[Interval, tuple[Store, ...]]]:
    """The statements of one of the kernels for the parts before the last, and for the last one: a range of parts, and
    the statements without conditions that are decided there."""
    last = joined.part.extent - 1
    for parts in (Interval(0, last - 1), Interval(last, last)):
        env = {joined.row.var: Interval(0, joined.row.extent - 1), joined.part.var: parts}
        found = (_decided(store, env) for store in stores(kernel.body))
        yield parts, tuple(store for store in found if store is not None)


def _decided(store: Store, env: Env) -> Store | None:
    """A statement without the comparisons of positions that are decided; None if it stores nothing."""

    def visit(expr: TileExpr) -> TileExpr:
        match expr:
            case Elementwise(op="lt", args=(one, other)):
                a, b = tile_interval(one, env), tile_interval(other, env)
                if a is not None and b is not None and (a.hi < b.lo or a.lo >= b.hi):
                    return Literal(a.hi < b.lo, "bool")
            case Elementwise(op="where", args=(Literal(value=value), one, other)):
                return one if value else other
            case Reduce(op=op, arg=Literal(value=value, dtype=dtype) as of_all) if value == identity_of(op, dtype):
                return of_all
            case Elementwise(op=op, args=(one, Literal(value=value, dtype=dtype))) if op in _REDUCERS and (
                value == identity_of(_REDUCERS[op], dtype)
            ):
                return one
        return expr

    mask = None if store.mask is None else rewrite(store.mask, visit)
    if isinstance(mask, Literal):
        if not mask.value:
            return None
        mask = None
    return replace(store, value=rewrite(store.value, visit), mask=mask)


__all__ = ["DELAY", "Waiting", "bodies", "resident", "waiting"]
