"""Verifies HTile programs; runs between stages.  Every error names the node, what was found and what is expected.

Checks of a single store (its shapes and dtypes, its indices under the variables around it) are cached by store, so a
pass pays only for the stores that it changed; checks of the order of stores run each time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias, assert_never

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env, Interval, grid_env, interval, loop_interval
from neptune_lab.htile.printer import flat_access
from neptune_lab.htile.shapes import broadcast, dtype_of, find_tensor, shape_of
from neptune_lab.htile.walk import (
    expressions,
    loop_bounds,
    names_of_access,
    read_tensors,
    reads,
    roots,
    same_region,
    stores,
    subexpressions,
    written_tensors,
)
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.tensor_spec import overlaps

MAX_GRID_AXES = 3


def verify(program: ir.Program) -> None:
    """Checks that `program` is valid HTile IR; nodes.py has the meaning of each rule.

    Raises:
        TileError: it is not.
    """
    _verified(program)


@lru_cache(maxsize=256)
def _verified(program: ir.Program) -> None:
    _check_tensors(program)
    _check_ids(program)
    _check_chip_tiles_stay_in_their_kernel(program)
    available = set(program.inputs)
    for kernel in program.kernels:
        _Kernel(program, kernel, available).check()
        available |= written_tensors(kernel)
    for found in dict.fromkeys(kernel.finds for kernel in program.kernels):
        if found is not None:
            _check_found(program, found)
    for name in program.outputs:
        if name not in available:
            raise TileError(f"output {name} is never stored; expected a store in some kernel")


def _check_tensors(program: ir.Program) -> None:
    seen: set[str] = set()
    for tensor in program.tensors:
        if tensor.name in seen:
            raise TileError(f"tensor {tensor.name} is declared twice; expected unique names")
        seen.add(tensor.name)
        if not tensor.name.isidentifier():
            raise TileError(f"tensor name {tensor.name!r} is not a Python identifier")
        if tensor.dtype not in DTYPES:
            raise TileError(f"tensor {tensor.name} has dtype {tensor.dtype!r}; known are {', '.join(sorted(DTYPES))}")
        if tensor.space not in ir.SPACES:
            raise TileError(f"tensor {tensor.name} has space {tensor.space!r}; expected one of {', '.join(ir.SPACES)}")
        if any(extent < 1 for extent in tensor.shape):
            raise TileError(f"tensor {tensor.name} has shape {tensor.shape}; expected extents of 1 or more")
        if tensor.strides is not None:
            _check_strides(tensor, tensor.strides)
    for role, names, space in (("input", program.inputs, "input"), ("output", program.outputs, "output")):
        declared = tuple(tensor.name for tensor in program.tensors if tensor.space == space)
        if sorted(names) != sorted(declared):
            raise TileError(f"program lists the {role}s {names}; its tensors of space {space!r} are {declared}")


def _check_strides(tensor: ir.Tensor, strides: tuple[int, ...]) -> None:
    """Formal statement: a tensor in global memory may have strides, one per dimension and none negative; those of a
    tensor that a kernel stores give each element memory of its own."""
    if tensor.space == "chip":
        raise TileError(f"on-chip tile {tensor.name} has strides {strides}; expected none")
    if len(strides) != len(tensor.shape) or any(stride < 0 for stride in strides):
        raise TileError(
            f"tensor {tensor.name} has strides {strides}; expected {len(tensor.shape)} numbers of 0 or more, one for "
            "each dimension"
        )
    if tensor.space != "input" and overlaps(tensor.shape, strides):
        raise TileError(
            f"{tensor.space} {tensor.name} of shape {tensor.shape} has strides {strides}, with which two elements "
            "share memory; expected strides of a tensor that can be stored to"
        )


def _check_found(program: ir.Program, found: ir.FoundTiles) -> None:
    """Formal statement: kernels find tiles of two inputs of one dimension, store the first and the last one of each,
    and store nothing else that another kernel reads."""
    own = [kernel for kernel in program.kernels if kernel.finds == found]
    others = [kernel for kernel in program.kernels if kernel.finds != found]
    numbers, stored = {found.first, found.last}, frozenset[str]().union(*map(written_tensors, own))
    read = {name for kernel in others for store in stores(kernel.body) for name in read_tensors(store)}
    read |= {bound.tensor for kernel in others for bound in loop_bounds(kernel.body)} | {*program.outputs}
    vectors = {tensor.name for tensor in program.tensors if tensor.space == "input" and len(tensor.shape) == 1}
    extents = found.row_extent, found.column_extent
    if not {found.rows, found.columns} <= vectors or min(extents) < 1 or not stored & read <= numbers <= stored:
        raise TileError(
            f"kernel {own[-1].name} says that it finds {found.first} and {found.last} from {found.rows} and "
            f"{found.columns}; expected two inputs of one dimension, and that others read nothing else that it stores",
            node=own[-1].node_id,
            help="leave finds(...) out",
        )


def _check_ids(program: ir.Program) -> None:
    seen: set[str] = set()

    def visit(node_id: str) -> None:
        if node_id in seen or not node_id:
            raise TileError(f"node id {node_id!r} is used twice or empty; expected a unique id", node=node_id)
        seen.add(node_id)

    def visit_body(body: tuple[ir.Stmt, ...]) -> None:
        for stmt in body:
            visit(stmt.node_id)
            if isinstance(stmt, ir.For):
                visit_body(stmt.body)

    names: set[str] = set()
    for kernel in program.kernels:
        if kernel.name in names:
            raise TileError(f"two kernels are called {kernel.name}; expected unique names", node=kernel.node_id)
        names.add(kernel.name)
        visit(kernel.node_id)
        visit_body(kernel.body)


def _check_chip_tiles_stay_in_their_kernel(program: ir.Program) -> None:
    chip = {tensor.name for tensor in program.tensors if tensor.space == "chip"}
    home: dict[str, str] = {}
    for kernel in program.kernels:
        for store in stores(kernel.body):
            for access in (store.target, *reads(store)):
                if access.tensor not in chip:
                    continue
                if home.setdefault(access.tensor, kernel.name) != kernel.name:
                    raise TileError(
                        f"on-chip tile {access.tensor} is used in kernel {kernel.name} and in {home[access.tensor]}; "
                        "expected one kernel, since registers do not outlive it",
                        node=store.node_id,
                        help="make its space 'global'",
                    )


EnvItems: TypeAlias = tuple[tuple[str, Interval], ...]


@lru_cache(maxsize=4096)
def _tensors_of(store: ir.Store) -> tuple[str, ...]:
    """Names of the tensors that `store` accesses."""
    nodes = (n for n in expressions(store) if isinstance(n, ir.Access | ir.Gather))
    return tuple({store.target.tensor: None} | {n.tensor: None for n in nodes})


@lru_cache(maxsize=4096)
def _checked_reads(store: ir.Store, tensors: tuple[ir.Tensor, ...]) -> tuple[ir.Access | ir.Gather, ...]:
    """The reads of `store`, in order, after a check of its shapes and dtypes."""
    program = ir.Program("", tensors, (), (), ())
    in_order: list[ir.Access | ir.Gather] = []
    for root in roots(store):
        shape_of(root, program)
        dtype_of(root, program)
        in_order += [expr for expr in subexpressions(root) if isinstance(expr, ir.Access | ir.Gather)]
    target = store.target
    tensor = find_tensor(program, target.tensor)
    if any(isinstance(index, ir.NewAxis) for index in target.index):
        raise TileError(f"{flat_access(target)} is stored to with NewAxis; expected indices and slices only")
    if tensor.space == "input":
        raise TileError(f"input {tensor.name} is stored to; expected an output, a global or an on-chip tensor")
    _check_fits("value", store.value, target, tensor.dtype, program)
    if store.mask is not None:
        _check_fits("mask", store.mask, target, "bool", program)
    return tuple(in_order)


def _check_fits(what: str, expr: ir.TileExpr, target: ir.Access, dtype: str, program: ir.Program) -> None:
    shape, own_shape = shape_of(target, program), shape_of(expr, program)
    try:
        fits = broadcast(shape, own_shape) == shape
    except TileError:
        fits = False
    if not fits:
        raise TileError(f"{what} of shape {own_shape} stored to {flat_access(target)}; expected shape {shape}")
    if dtype_of(expr, program) != dtype:
        raise TileError(
            f"{what} of dtype {dtype_of(expr, program)} stored to {flat_access(target)}; expected {dtype}",
            help="make the conversion a Cast",
        )


@lru_cache(maxsize=4096)
def _check_indices(store: ir.Store, env: EnvItems) -> None:
    """Every index of a store is bounded under the variables around it."""
    around: Env = dict(env)
    for expr in expressions(store):
        match expr:
            case ir.Access(index=index) | ir.Iota(index=index):
                _check_index(index, around)
            case ir.Scalar(value=value):
                interval(value, around)
            case _:
                pass
    _check_index(store.target.index, around)


def _check_index(indices: tuple[ir.Index, ...], env: Env) -> None:
    for index in indices:
        match index:
            case ir.NewAxis():
                pass
            case ir.Slice(start=start):
                interval(start, env)
            case _:
                interval(index, env)


class _Kernel:
    """Visits one kernel in execution order; `tiles` holds, for each on-chip tensor, its current region.

    Args:
        available: the tensors that hold values when the kernel starts.
    """

    def __init__(self, program: ir.Program, kernel: ir.Kernel, available: set[str]) -> None:
        self.program = program
        self.kernel = kernel
        self.stored = written_tensors(kernel)
        self.available = available | self.stored
        self.tiles: dict[str, ir.Access] = {}
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.reads: dict[int, tuple[ir.Access | ir.Gather, ...]] = {}  # of each store that was checked, by its id

    def check(self) -> None:
        axes = self.kernel.grid
        if len(axes) > MAX_GRID_AXES:
            raise TileError(
                f"kernel {self.kernel.name} has {len(axes)} grid axes; expected at most {MAX_GRID_AXES}",
                node=self.kernel.node_id,
                help="fuse grid loops",
            )
        if len({axis.var for axis in axes}) != len(axes):
            raise TileError(f"kernel {self.kernel.name} names two grid axes alike", node=self.kernel.node_id)
        for axis in axes:
            if axis.extent < 1:
                raise TileError(
                    f"grid axis {axis.var} has extent {axis.extent}; expected 1 or more", node=self.kernel.node_id
                )
        self._body(self.kernel.body, tuple(grid_env(self.kernel).items()))

    def _body(self, body: tuple[ir.Stmt, ...], env: EnvItems) -> None:
        for stmt in body:
            try:
                match stmt:
                    case ir.Store():
                        self._store(stmt, env)
                    case ir.For():
                        self._loop(stmt, env)
                    case _:
                        assert_never(stmt)
            except TileError as error:
                if error.node is not None:
                    raise
                where = f"store to {stmt.target.tensor}" if isinstance(stmt, ir.Store) else f"loop {stmt.var}"
                raise TileError(f"{where}: {error.reason}", node=stmt.node_id, help=error.help) from error

    def _loop(self, loop: ir.For, env: EnvItems) -> None:
        around = dict(env)
        if loop.var in around:
            raise TileError(f"loop variable {loop.var} is bound already; expected a new name")
        for bound in (*(loop.within or ()), *(loop.without or ())):
            self._bound(bound, around)
        if loop.without is not None and loop.within is None:
            raise TileError(f"loop {loop.var} leaves iterations out of no bounds; expected `within` before `without`")
        if loop.listed is not None:
            self._list(loop, loop.listed, around)
        inner = (*env, (loop.var, loop_interval(loop, around)))
        before = dict(self.tiles)
        # Twice: the second time, each tile holds what the previous iteration left.
        for _ in range(2):
            self._body(loop.body, inner)
            # A region that depends on the loop variable is stale outside its iteration.
            self.tiles = {name: at for name, at in self.tiles.items() if loop.var not in names_of_access(at)}
        # The loop may not run: a tile with one region before it and another after it has no known region.
        self.tiles = {name: at for name, at in self.tiles.items() if same_region(before.get(name, at), at)}

    def _bound(self, bound: ir.Access, env: dict[str, Interval]) -> None:
        """Raises TileError unless a loop's bound is an int32 of rank 0, on chip or stored by another kernel."""
        tensor = find_tensor(self.program, bound.tensor)
        if tensor.dtype != "int32" or shape_of(bound, self.program):
            found = f"{tensor.dtype} of shape {shape_of(bound, self.program)}"
            raise TileError(f"the loop's bound {flat_access(bound)} is {found}; expected one int32")
        if tensor.space == "chip":
            self._read(bound)
        elif tensor.space != "global" or tensor.name not in self.available - self.stored:
            raise TileError(f"the loop's bound {flat_access(bound)} is not stored by an earlier kernel")
        _check_index(bound.index, env)

    def _list(self, loop: ir.For, listed: tuple[ir.Access, ir.Access], around: dict[str, Interval]) -> None:
        """Formal statement: the variable takes values of its range, each at most once: another kernel stores the list
        and the number of its entries, which has room for as many as the loop has iterations."""
        entry, count = listed
        place = ir.place_in_list(loop.var)
        if loop.within is not None:
            raise TileError(f"loop {loop.var} has bounds and a list; expected one of them")
        if entry.index[-1:] != (ir.Name(place),) or place in around:
            raise TileError(f"the list {flat_access(entry)} of loop {loop.var} is not read at {place}")
        span = loop_interval(loop, around)
        self._bound(entry, {**around, place: Interval(0, span.hi - span.lo)})
        self._bound(count, around)
        room = find_tensor(self.program, entry.tensor).shape[-1]
        if room < span.hi - span.lo + 1:
            raise TileError(
                f"the list {entry.tensor} has room for {room} values; loop {loop.var} has {span.hi - span.lo + 1}"
            )

    def _store(self, store: ir.Store, env: EnvItems) -> None:
        reads = self.reads.get(id(store))
        if reads is None:
            reads = self.reads[id(store)] = self._checked(store, env)
        for read in reads:
            if isinstance(read, ir.Gather):
                self._gather(read)
            else:
                self._read(read)
        if find_tensor(self.program, store.target.tensor).space == "chip":
            self.tiles[store.target.tensor] = store.target

    def _checked(self, store: ir.Store, env: EnvItems) -> tuple[ir.Access | ir.Gather, ...]:
        """The reads of `store`, after the checks of the store itself."""
        # By the store's own tensors: most passes add or drop others.
        names = _tensors_of(store)
        missing = any(name not in self.tensors for name in names)
        declared = self.program.tensors if missing else tuple([self.tensors[name] for name in names])
        reads = _checked_reads(store, declared)
        _check_indices(store, env)
        return reads

    def _gather(self, gather: ir.Gather) -> None:
        tensor = find_tensor(self.program, gather.tensor)
        if tensor.space == "chip" or tensor.name in self.stored:
            raise TileError(
                f"{tensor.name} is gathered element by element in the kernel that computes it; threads of a kernel do "
                "not see each other's elements",
                help="compute the reader in a kernel of its own",
            )
        if tensor.name not in self.available:
            raise TileError(f"{tensor.space} {tensor.name} is gathered before any kernel stores to it")

    def _read(self, access: ir.Access) -> None:
        tensor = find_tensor(self.program, access.tensor)
        if tensor.space == "chip":
            at = self.tiles.get(tensor.name)
            if at is None:
                raise TileError(
                    f"on-chip tile {flat_access(access)} is read before any store to it that still holds",
                    help="store its initial value first, in this kernel and outside of the loop that carries it",
                )
            if not same_region(at, access):
                raise TileError(
                    f"on-chip tile is read as {flat_access(access)} but holds {flat_access(at)}; "
                    "expected the same slices",
                    help=f"compute both with the same tiles, or keep {tensor.name} in global memory with set_scope",
                )
        elif tensor.name not in self.available:
            raise TileError(f"{tensor.space} {tensor.name} is read before any kernel stores to it")
