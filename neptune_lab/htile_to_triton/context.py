"""The state of one kernel's emission, which the parts of the emitter share: scopes, names, bounds, the current node."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from neptune_lab.htile.bounds import Interval, interval
from neptune_lab.htile.nodes import Arith, For, IndexExpr, Int, Kernel, Name, Program, Store, Tensor, TileExpr
from neptune_lab.htile.reach import highest
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.sizes import grid_envs
from neptune_lab.htile.walk import (
    loop_bounds,
    names_of_index,
    read_tensors,
    simplify,
    stores,
    written_tensors,
)
from neptune_lab.htile_to_triton.eviction import policies
from neptune_lab.htile_to_triton.in_lanes import writes_rows_in_lanes
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.padding import Padding
from neptune_lab.htile_to_triton.scope import Draft, Scope, UniqueNames
from neptune_lab.htile_to_triton.shared_loads import read_in_both_orders
from neptune_lab.scalar_ops import ScalarOp
from neptune_lab.target import STAGES_OF_ONCE
from neptune_lab.wrapping import Doc, flat, lines

WIDTH = 116

# Precedence of Python's operators, loosest first; an atom needs no brackets anywhere.
COMPARE, OR, XOR, AND, SHIFT, ADD, MUL, NEGATE, ATOM = 4, 5, 6, 7, 8, 9, 10, 11, 13
_WORD = re.compile(r"\w+")
LEVELS = {
    "+": ADD,
    "-": ADD,
    "*": MUL,
    "/": MUL,
    "//": MUL,
    "%": MUL,
    "<<": SHIFT,
    ">>": SHIFT,
    "&": AND,
    "^": XOR,
    "|": OR,
}


# A number, or an index expression of sizes that are known at the launch.
Extent: TypeAlias = "int | IndexExpr"


@dataclass(frozen=True, slots=True)
class HostDescriptor:
    """A tensor descriptor that the launcher makes.

    Args:
        parameter: the kernel's parameter.
        tensor: the tensor, seen as a matrix, or as several.
        shape: rows and columns of a matrix.
        stride: elements from one row of a matrix to the next.
        block: rows and columns of a tile.
        matrices: how many matrices, and the elements from one to the next; rows of a tile past the end of its matrix
            are 0. None: one.  These numbers, and the rows, may depend on sizes that are known at the launch.
        in_halves: a tile is loaded in two halves: the rows 0 and 1 of every four, and the rows 2 and 3.
        is_vector: the tensor is seen as one row, and the descriptor has one dimension.
    """

    parameter: str
    tensor: str
    shape: tuple[Extent, int]
    stride: int
    block: tuple[int, int]
    matrices: tuple[Extent, Extent] | None = None
    in_halves: bool = False
    is_vector: bool = False


class Context:
    """The state of one kernel's emission."""

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        helpers: dict[str, dict[str, None]],
        names: UniqueNames,
        options: EmitOptions,
    ) -> None:
        self.program = program
        self.kernel = kernel
        self.options = options
        self.uses_descriptors = False
        self.host_descriptors: dict[Hashable, HostDescriptor] = {}
        self.padding = Padding(program, kernel)
        self.names = names
        # The bounds of all variables: one set, or one for each corner of the sizes that are known at the launch.
        self.envs: list[dict[str, Interval]] = grid_envs(program, kernel)
        self.loops: tuple[For, ...] = ()  # around this place
        names_of_sizes = (size.name for size in program.sizes)
        self.root = Scope(None, frozenset((*(axis.var for axis in kernel.grid), *names_of_sizes)))
        self.scope = self.root
        self.node = kernel.node_id
        self.origin = kernel.name
        self.helpers = helpers
        self.tiles: dict[str, str] = {}  # chip tensor -> variable
        self.defined: dict[str, tuple[int, ...]] = {}  # chip tensors that have a value here, with its padded shape
        self.pointers: dict[str, str] = {}  # tensor in global memory -> parameter
        self.sizes: dict[str, str] = {}  # size that is known at the launch -> parameter
        self.counters = ""  # the parameter of the counters of programs that arrive; "": there are none
        self.passed: dict[str, str] = {}  # tensor that programs of a row pass on -> where its words begin
        self.asked: dict[str, str] = {}  # such a tensor -> the variable of what is in its words so far
        self.mark = ""  # the variable of the mark of these words
        self.evicted: dict[str, str] = {}  # tensor that several kernels of a launch read -> its eviction policy
        self.again: Mapping[tuple[str, str], str] = {}  # (origin, row that each pass loads) -> its eviction policy
        self.caching: Mapping[str, str] = {}  # tensor -> the argument of its loads of tiles (`held_rows`)
        self.beside: frozenset[str] = frozenset()  # vectors that are loaded as the rows beside them (`beside_rows`)
        self.late: Mapping[str, Store] = {}  # tile that is loaded in each loop that reads it -> what loads it
        self.once = False  # whether the body is a loop that runs once
        self.variables: dict[str, tuple[str, Draft]] = {}  # grid or loop variable -> (name, the line that binds it)
        self.written = written_tensors(kernel)
        self.policies = policies(kernel)
        self.in_lanes = writes_rows_in_lanes(program, kernel)
        self.in_both_orders = read_in_both_orders(kernel)
        self._handed: dict[Hashable, list[tuple[str, Scope]]] = {}

    def name_pointers(self) -> frozenset[str]:
        """Names the parameters of the tensors in global memory; the result is the names of all tensors in use."""
        every = list(stores(self.kernel.body))
        used = {name for s in every for name in (s.target.tensor, *read_tensors(s))}
        used |= {bound.tensor for bound in loop_bounds(self.kernel.body)}
        for tensor in self.program.tensors:
            if tensor.name in used and tensor.space != "chip":
                self.pointers[tensor.name] = self.names.fresh(f"{tensor.name}_ptr")
        return frozenset(used)

    def pointers_in(self, texts: Iterable[str]) -> dict[str, str]:
        """The pointers in the kernel's text, by tensor; a tensor that only descriptors access needs no parameter."""
        words = {word for text in texts for word in _WORD.findall(text)}
        return {tensor: name for tensor, name in self.pointers.items() if name in words}

    def sizes_in(self, texts: Iterable[str]) -> dict[str, str]:
        """The parameters of sizes in the kernel's text, by size."""
        words = {word for text in texts for word in _WORD.findall(text)}
        return {size: name for size, name in self.sizes.items() if name in words}

    # -- facts ----------------------------------------------------------------------------------------------

    def shape(self, expr: TileExpr) -> tuple[int, ...]:
        """Unpadded shape of `expr`."""
        return shape_of(expr, self.program)

    def dtype(self, expr: TileExpr) -> str:
        """Dtype of `expr`."""
        return dtype_of(expr, self.program)

    @property
    def num_stages(self) -> int | None:
        """The launch option: iterations of a product's loop, of which one is computed and the others are loaded."""
        return STAGES_OF_ONCE if self.once else self.kernel.num_stages

    @property
    def env(self) -> dict[str, Interval]:
        """The bounds of all variables, of a program without sizes that are known at the launch."""
        return self.envs[0]

    def interval(self, expr: IndexExpr) -> Interval:
        """Bounds of an index expression here, at all sizes."""
        found = [interval(expr, env) for env in self.envs]
        return Interval(min(bounds.lo for bounds in found), max(bounds.hi for bounds in found))

    def passes(self, start: IndexExpr, extent: int, size: IndexExpr) -> bool:
        """Whether `extent` elements from `start` on may reach past `size` elements."""
        return any(highest(start, env, self.loops) + extent > interval(size, env).lo for env in self.envs)

    def covers(self, start: IndexExpr, extent: int, size: IndexExpr) -> bool:
        """Whether `extent` elements from `start` on always reach the end of `size` elements."""
        return all(interval(start, env).lo + extent >= interval(size, env).hi for env in self.envs)

    def most(self, exprs: Sequence[IndexExpr]) -> int:
        """The largest product of index expressions, over all sizes."""
        return max(math.prod(interval(expr, env).hi for expr in exprs) for env in self.envs)

    def function(self, row: ScalarOp) -> str:
        """The name or symbol of an operation in the emitted module; "" if it has none."""
        return row.triton

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        """Appends `scope` to the current scope and makes it the current one; bindings made in it end with it."""
        outer = self.scope, self.envs, self.loops, dict(self.variables), dict(self.defined)
        self.envs = [dict(env) for env in self.envs]
        self.scope.body.append(scope)
        self.scope = scope
        yield
        self.scope, self.envs, self.loops, self.variables, self.defined = outer

    # -- lines ----------------------------------------------------------------------------------------------

    def line(self, doc: Doc, *, comment: bool = False) -> Draft:
        """Append a statement to the current scope."""
        draft = Draft(lines(doc, WIDTH - 4 * len(list(self.scope.chain()))), self.origin, is_comment=comment)
        draft.used_by(self.node)
        self.scope.body.append(draft)
        return draft

    def helper(self, name: str) -> str:
        """The name of a module-level helper function, which becomes part of the module; the current node uses it."""
        self.helpers.setdefault(name, {})[self.node] = None
        return name

    def define(self, key: Hashable, wanted: str, names: frozenset[str], doc: Doc, needs: tuple[Draft, ...] = ()) -> str:
        """A name for `doc`, defined once at the widest scope where `names` are bound, linked to the current node."""
        scope = self.scope.widest(names)
        definition = scope.lookup(key)
        if definition is None:
            name = self.name_for((key[0] if isinstance(key, tuple) else key, wanted), wanted, scope)
            draft = Draft(lines(f"{name} = {flat(doc)}", WIDTH), self.origin)
            draft.needs = (*needs, *(self.variables[v][1] for v in sorted(names)))
            scope.prelude.append(draft)
            definition = scope.known[key] = (name, draft)
        definition[1].used_by(self.node)
        return definition[0]

    def name_for(self, request: Hashable, wanted: str, scope: Scope) -> str:
        """A free name; scopes of which neither contains the other get the same name for equal requests."""
        handed = self._handed.setdefault(request, [])
        for name in dict.fromkeys(name for name, _ in handed):
            if not any(scope.is_related(other) for used, other in handed if used == name):
                handed.append((name, scope))
                return name
        name = self.names.fresh(wanted)
        handed.append((name, scope))
        return name

    # -- index expressions ----------------------------------------------------------------------------------

    def index(self, expr: IndexExpr, level: int = 0) -> str:
        """An index expression in Triton, bracketed for use under an operator of precedence `level`."""
        for name in names_of_index(expr):
            self.variables[name][1].used_by(self.node)
        text, own = self._index(simplify(expr))
        return text if own >= level else f"({text})"

    def _index(self, expr: IndexExpr) -> tuple[str, int]:
        match expr:
            case Int(value=value):
                return str(value), ATOM if value >= 0 else NEGATE
            case Name(name=name):
                return self.variables[name][0], ATOM
            case Arith(op="min", a=a, b=b):
                return f"tl.minimum({self._index(a)[0]}, {self._index(b)[0]})", ATOM
            case Arith(op="max", a=a, b=b):
                return f"tl.maximum({self._index(a)[0]}, {self._index(b)[0]})", ATOM
            case Arith(op="//" | "%" as op, a=a, b=b) if self.interval(a).lo < 0:
                return self._floored(op, a, b)
            case Arith(op="+", a=a, b=Int(value=value)) if value < 0:
                return f"{self._operand(a, ADD)} - {-value}", ADD
            case Arith(op=op, a=a, b=b):
                level = LEVELS[op]
                return f"{self._operand(a, level)} {op} {self._operand(b, level + 1)}", level
            case _:
                assert_never(expr)

    def _operand(self, expr: IndexExpr, level: int) -> str:
        text, own = self._index(expr)
        return text if own >= level else f"({text})"

    def _floored(self, op: str, a: IndexExpr, b: IndexExpr) -> tuple[str, int]:
        # Triton truncates, HTile floors: add a multiple of the divisor that makes the dividend nonnegative.
        shift = -(self.interval(a).lo // self.interval(b).lo)
        divisor = self._operand(b, MUL + 1)
        moved = f"({self._operand(a, ADD)} + {shift} * {divisor}) {op} {divisor}"
        return (moved, MUL) if op == "%" else (f"{moved} - {shift}", ADD)


def sizes_of(tensor: Tensor) -> tuple[IndexExpr, ...]:
    """The shape of a tensor as index expressions."""
    return tensor.sizes or tuple(map(Int, tensor.shape))
