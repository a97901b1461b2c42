"""What the parts of the emitter share while one kernel is written: scopes, names, bounds, the current node."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import assert_never

from neptune_lab.htile.bounds import Interval, grid_env, interval
from neptune_lab.htile.nodes import Arith, IndexExpr, Int, Kernel, Name, Program, TileExpr
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import names_of_index, simplify, written_tensors
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.padding import Padding
from neptune_lab.htile_to_triton.scope import Draft, Scope, UniqueNames
from neptune_lab.scalar_ops import ScalarOp
from neptune_lab.wrapping import Doc, flat, lines

WIDTH = 116

# Precedence of Python's operators, loosest first; an atom needs no brackets anywhere.
COMPARE, OR, AND, ADD, MUL, NEGATE, ATOM = 4, 5, 6, 8, 9, 10, 12
LEVELS = {"+": ADD, "-": ADD, "*": MUL, "/": MUL, "//": MUL, "%": MUL, "&": AND, "|": OR}


@dataclass(frozen=True, slots=True)
class HostDescriptor:
    """A tensor descriptor that the launcher makes: the kernel's parameter, and the rows it describes."""

    parameter: str
    tensor: str
    shape: tuple[int, int]
    block: tuple[int, int]


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
        self.env: dict[str, Interval] = grid_env(kernel)
        self.root = Scope(None, frozenset(axis.var for axis in kernel.grid))
        self.scope = self.root
        self.node = kernel.node_id
        self.origin = kernel.name
        self.helpers = helpers
        self.tiles: dict[str, str] = {}  # chip tensor -> variable
        self.defined: dict[str, tuple[int, ...]] = {}  # chip tensors that have a value here, with its padded shape
        self.pointers: dict[str, str] = {}  # argument tensor -> parameter
        self.variables: dict[str, tuple[str, Draft]] = {}  # grid or loop variable -> (name, the line that binds it)
        self.written = written_tensors(kernel)
        self._handed: dict[Hashable, list[tuple[str, Scope]]] = {}

    # -- facts ----------------------------------------------------------------------------------------------

    def shape(self, expr: TileExpr) -> tuple[int, ...]:
        """Unpadded shape of `expr`."""
        return shape_of(expr, self.program)

    def dtype(self, expr: TileExpr) -> str:
        """Dtype of `expr`."""
        return dtype_of(expr, self.program)

    def interval(self, expr: IndexExpr) -> Interval:
        """Bounds of an index expression here."""
        return interval(expr, self.env)

    def function(self, row: ScalarOp) -> str:
        """What the emitted module calls an operation; "": it has no name for it."""
        return row.triton

    # -- lines ----------------------------------------------------------------------------------------------

    def line(self, doc: Doc, *, comment: bool = False) -> Draft:
        """Append a statement to the current scope."""
        draft = Draft(lines(doc, WIDTH - 4 * len(list(self.scope.chain()))), self.origin, is_comment=comment)
        draft.used_by(self.node)
        self.scope.body.append(draft)
        return draft

    def helper(self, name: str) -> str:
        """Ask for a module-level helper function; the current node uses it."""
        self.helpers.setdefault(name, {})[self.node] = None
        return name

    def define(self, key: Hashable, wanted: str, names: frozenset[str], doc: Doc, needs: tuple[Draft, ...] = ()) -> str:
        """A name for `doc`, defined once at the widest scope where `names` are bound, linked to the current node."""
        scope = self.scope.widest(names)
        found = scope.lookup(key)
        if found is None:
            name = self.name_for((key[0] if isinstance(key, tuple) else key, wanted), wanted, scope)
            draft = Draft(lines(f"{name} = {flat(doc)}", WIDTH), self.origin)
            draft.needs = (*needs, *(self.variables[v][1] for v in sorted(names)))
            scope.prelude.append(draft)
            found = scope.known[key] = (name, draft)
        found[1].used_by(self.node)
        return found[0]

    def name_for(self, request: Hashable, wanted: str, scope: Scope) -> str:
        """A free name; loops side by side that ask for the same thing get the same one."""
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
            case Arith(op=op, a=a, b=b):
                level = LEVELS[op]
                return f"{self._operand(a, level)} {op} {self._operand(b, level + 1)}", level
            case _:
                assert_never(expr)

    def _operand(self, expr: IndexExpr, level: int) -> str:
        text, own = self._index(expr)
        return text if own >= level else f"({text})"

    def _floored(self, op: str, a: IndexExpr, b: IndexExpr) -> tuple[str, int]:
        # Triton divides towards zero, HTile floors: move a negative dividend up by a multiple of the divisor.
        shift = -(self.interval(a).lo // self.interval(b).lo)
        divisor = self._operand(b, MUL + 1)
        moved = f"({self._operand(a, ADD)} + {shift} * {divisor}) {op} {divisor}"
        return (moved, MUL) if op == "%" else (f"{moved} - {shift}", ADD)
