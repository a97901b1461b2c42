"""Does an iteration whose masks are false everywhere change anything that is read afterwards?

The body is executed on symbols: `m[i]` stands for what tile m holds when the iteration starts.  With each false mask
replaced by its other branch and the reducers' identities applied, every tile that outlives the iteration must come
back to its own symbol.  By induction over the iterations, also over the first ones, leaving such an iteration out
leaves every later value as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from neptune_lab.htile.layout import flat
from neptune_lab.htile.nodes import (
    Access,
    Dot,
    Elementwise,
    For,
    Iota,
    Kernel,
    Name,
    NewAxis,
    Permute,
    Program,
    Reduce,
    Scalar,
    Slice,
    Store,
    TileExpr,
)
from neptune_lab.htile.printer import expr_doc
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import reads, rewrite, same_region, stores, subexpressions
from neptune_lab.htile_passes.partition_masked_loops.simplify import Infinities, Simplifier, infinities_of_tensors

MAX_INLINED = 40  # nodes; a larger value is a symbol of its own


@dataclass(frozen=True, slots=True)
class Idle:
    """What became of the proof.

    Args:
        proven: an iteration with these masks false changes nothing that is read afterwards.
        lines: the values that the tiles take, or why there is no proof.
        assumptions: what the proof needs besides the program, in words.
    """

    proven: bool
    lines: tuple[str, ...]
    assumptions: tuple[str, ...] = ()


class IdleProver:
    """Asks the question for one kernel, whose facts it reads once."""

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.program = program
        self.stores = tuple(stores(kernel.body))
        self._infinities: dict[str, Infinities] | None = None

    def __call__(self, loop: For, is_false: Callable[[TileExpr], bool]) -> Idle:
        """Try to prove that an iteration of `loop` is idle where `is_false` says which conditions are false."""
        body = tuple(stores(loop.body))
        for store in body:
            if self.program.tensor(store.target.tensor).space != "chip":
                return Idle(False, (f"an iteration stores to {store.target.tensor}, which outlives the kernel",))
        if self._infinities is None:
            self._infinities = infinities_of_tensors(self.program, self.stores)
        dtypes = {tensor.name: tensor.dtype for tensor in self.program.tensors}
        return _Execution(body, self._outside(body), self._infinities, dtypes, is_false).run()

    def _outside(self, body: tuple[Store, ...]) -> frozenset[str]:
        inside = {id(store) for store in body}
        return frozenset(a.tensor for store in self.stores if id(store) not in inside for a in reads(store))


class _Execution:
    """One iteration, on symbols."""

    def __init__(
        self,
        body: tuple[Store, ...],
        read_outside: frozenset[str],
        infinities: Mapping[str, Infinities],
        dtypes: Mapping[str, str],
        is_false: Callable[[TileExpr], bool],
    ) -> None:
        self.body = body
        self.written = frozenset(store.target.tensor for store in body)
        self.outlives = set(self.written & read_outside)
        self.infinities = dict(infinities)
        self.dtypes = dtypes
        self.simplify = Simplifier(self.infinities)
        self.is_false = is_false
        self.values: dict[str, TileExpr] = {}
        self.definitions: dict[str, str] = {}  # of the symbols of this iteration

    def run(self) -> Idle:
        lines = []
        for store in self.body:
            name = store.target.tensor
            value = self.resolved(store.value)
            if store.mask is not None:
                old = self.resolved(store.target)
                if not self.is_false(store.mask):
                    mask = self.resolved(store.mask)
                    old = self.simplify(Elementwise("where", (mask, value, old), self.dtypes[name]))
                value = old
            self.values[name] = self.symbol(store, value)
            if self.values[name] is value:
                lines.append(f"{name} = {text(value)}")
        changed = [
            f"{name} would become {self.definitions.get(became, became)} and not stay {name}"
            for name, target in {store.target.tensor: store.target for store in self.body}.items()
            if name in self.outlives and not _is_itself(self.values[name], target)
            for became in (text(self.values[name]),)
        ]
        if changed:
            return Idle(False, tuple(changed))
        return Idle(True, tuple(dict.fromkeys(lines)), tuple(self.simplify.assumptions))

    def resolved(self, expr: TileExpr) -> TileExpr:
        """`expr` over the values at the iteration's start, simplified."""
        return self.simplify(rewrite(self.masked(expr), self.read))

    def masked(self, expr: TileExpr) -> TileExpr:
        """`expr` with the other branch of each `where` whose condition is false; its condition is not executed."""

        def visit(e: TileExpr) -> TileExpr:
            match e:
                case Elementwise(op="where", args=(condition, _, other)) if self.is_false(condition):
                    return other
                case _:
                    return e

        return rewrite(expr, visit)

    def read(self, expr: TileExpr) -> TileExpr:
        if not isinstance(expr, Access) or expr.tensor not in self.written:
            return expr
        if expr.tensor not in self.values:
            self.outlives.add(expr.tensor)  # read before it is written: the iteration before left it
            return expr
        pattern = tuple(isinstance(i, Slice) for i in expr.index if isinstance(i, Slice | NewAxis))
        return unsqueezed(self.values[expr.tensor], pattern)

    def symbol(self, store: Store, value: TileExpr) -> TileExpr:
        """`value` itself where it is small and elementwise, otherwise a new symbol for it."""
        nodes = list(subexpressions(value))
        if len(nodes) <= MAX_INLINED and not any(isinstance(e, Dot | Reduce | Permute) for e in nodes):
            return value
        name = f"{store.target.tensor}'"
        while name in self.infinities:
            name += "'"
        self.definitions[name] = text(value)
        self.infinities[name] = self.infinities[store.target.tensor]
        return replace(store.target, tensor=name)


def unsqueezed(expr: TileExpr, pattern: tuple[bool, ...]) -> TileExpr:
    """An elementwise `expr` with new dimensions of extent 1 where `pattern` is false."""

    def visit(e: TileExpr) -> TileExpr:
        match e:
            case Access(index=index) if shape_of_access(e):
                return replace(e, index=_with_new_axes(index, pattern))
            case Iota(index=index):
                return replace(e, index=_with_new_axes(index, pattern))
            case _:
                return e

    return expr if all(pattern) else rewrite(expr, visit)


def _with_new_axes(index, pattern: tuple[bool, ...]):
    dims = [n for n, i in enumerate(index) if isinstance(i, Slice | NewAxis)]
    out, left = list(index), iter(dims)
    inserted = 0
    at = 0
    for own in pattern:
        if own:
            at = next(left) + inserted + 1
        else:
            out.insert(at, NewAxis())
            inserted, at = inserted + 1, at + 1
    return tuple(out)


def _is_itself(value: TileExpr, target: Access) -> bool:
    return isinstance(value, Access) and value.tensor == target.tensor and same_region(value, target)


def text(expr: TileExpr) -> str:
    """An expression in a proof: tiles by name alone, since an iteration sees one region of each."""

    def visit(e: TileExpr) -> TileExpr:
        return Scalar(Name(e.tensor)) if isinstance(e, Access) else e

    return flat(expr_doc(rewrite(expr, visit)))
