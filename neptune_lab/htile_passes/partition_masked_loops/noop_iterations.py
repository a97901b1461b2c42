"""Proves that an iteration whose masks are false on the whole tile changes nothing that is read afterwards.

The body is executed symbolically: `m[i]` is the value of tile m at the start of the iteration.  With each false `where`
replaced by its other branch and the reducers' identities applied, every tile that is read after the iteration must
end as its own symbol.  By induction over the iterations, skipping such an iteration then changes no later value.

A running maximum needs two cases.  If it is finite, exp(m - m) is 1.  If it is -inf, exp(-inf - 0) is 0, and the sums
that are rescaled with it keep their values because they are 0.  That is an invariant: they start at 0 when the maximum
starts at -inf, and while the maximum is -inf, all elements so far were -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.printer import expr_doc
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import read_tensors, reads, rewrite, same_region, stores, subexpressions, tile_dims
from neptune_lab.htile_passes.partition_masked_loops.simplify import (
    INF,
    NEITHER,
    Infinities,
    Simplifier,
    infinities_of_tensors,
)
from neptune_lab.wrapping import flat

MAX_INLINED = 40  # nodes; a larger value is a symbol of its own


@dataclass(frozen=True, slots=True)
class NoOpProof:
    """A proof, or the reason why there is none.

    Args:
        proven: whether an iteration with these masks false is proven to change nothing that is read afterwards.
        lines: the values that the tiles get, or why there is no proof.
        assumptions: assumptions of the proof that do not follow from the program, as text.
    """

    proven: bool
    lines: tuple[str, ...]
    assumptions: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """The lines, then the assumptions, indented for the notes of a pass below what they prove."""
        yield from (f"  {line}" for line in self.lines)
        yield from (f"  assumed: {line}" for line in self.assumptions)


class NoOpProver:
    """Proves iterations of one kernel's loops to be no-ops; facts about the kernel are computed once."""

    def __init__(self, program: ir.Program, kernel: ir.Kernel) -> None:
        self.program = program
        self.stores = tuple(stores(kernel.body))
        self._infinities: dict[str, Infinities] | None = None

    def __call__(self, loop: ir.For, is_false: Callable[[ir.TileExpr], bool]) -> NoOpProof:
        """Tries to prove that an iteration of `loop` is a no-op.

        Args:
            is_false: whether a condition of the loop's body is false on the whole tile in that iteration.
        """
        body = tuple(stores(loop.body))
        for store in body:
            if self.program.tensor(store.target.tensor).space != "chip":
                return NoOpProof(False, (f"an iteration stores to {store.target.tensor}, which outlives the kernel",))
        if self._infinities is None:
            self._infinities = infinities_of_tensors(self.program)
            for name in _started_with_inputs(self.stores):  # a sink of -inf is an input that masks, like a bias of -inf
                self._infinities[name] |= {-INF}
        dtypes = {tensor.name: tensor.dtype for tensor in self.program.tensors}

        def execution(case: Case, masks: Callable[[ir.TileExpr], bool] = is_false) -> _Execution:
            assert self._infinities is not None
            infinities = {**self._infinities, **dict.fromkeys(case.finite, NEITHER)}
            return _Execution(body, self._outside(body), infinities, dtypes, masks, case)

        plain = execution(Case())
        proof = plain.run()
        if proof.proven:
            return proof
        for name in sorted(plain.outlives):
            if -INF in self._infinities[name]:
                by_cases = self._by_cases(loop, body, name, plain.changed, execution)
                if by_cases is not None:
                    return by_cases
        return proof

    def constants(self, is_false: Callable[[ir.TileExpr], bool]) -> tuple[dict[str, ir.Literal], NoOpProof] | None:
        """The constant that a kernel without loops stores to each tensor, if these masks are false on the whole tile.

        Returns:
            None unless all that it stores outside of the chip are constants, each stored once and not read; else these
            by tensor, and the proof.
        """
        chips = {tensor.name for tensor in self.program.tensors if tensor.space == "chip"}
        stored = [store.target.tensor for store in self.stores if store.target.tensor not in chips]
        if len(set(stored)) < len(stored) or any(store.mask is not None for store in self.stores):
            return None
        if any(name in stored for store in self.stores for name in read_tensors(store)):
            return None  # (`keep_stored_tiles` was left out)
        dtypes = {tensor.name: tensor.dtype for tensor in self.program.tensors}
        run = _Execution(self.stores, frozenset(), infinities_of_tensors(self.program), dtypes, is_false, Case())
        proof = run.run()
        values = {name: value for name in stored if isinstance(value := run.values[name], ir.Literal)}
        return (values, proof) if len(values) == len(stored) else None

    def _by_cases(
        self,
        loop: ir.For,
        body: tuple[ir.Store, ...],
        maximum: str,
        changed: tuple[str, ...],
        execution: Callable[..., _Execution],
    ) -> NoOpProof | None:
        """The proof by two cases, a finite and an infinite running maximum; None if it fails.

        Args:
            maximum: the tile that may be a running maximum.
            changed: the tiles that change in the proof without cases.
        """
        folded = _folded_by(body, maximum)
        start = {name: self._start(loop, name) for name in (maximum, *changed)}
        if start[maximum] is None and maximum in _started_with_inputs(self.stores):
            # It is at least its start, so that it is -inf only if that is.
            start[maximum] = ir.Literal(-INF, self.program.tensor(maximum).dtype)
        if folded is None or maximum in changed or any(value is None for value in start.values()):
            return None
        if start[maximum] != ir.Literal(-INF, start[maximum].dtype):  # type: ignore[union-attr]
            return None
        finite = execution(Case(finite=(maximum,)))
        finite_proof = finite.run()
        # The invariant: as long as the maximum keeps its initial -inf, the other tiles keep their initial values.
        values = {name: value for name, value in start.items() if value is not None}
        unmasked = execution(Case(values=values, minus_infinity=folded), lambda _: False)
        masked = execution(Case(values=values))
        if not finite_proof.proven or not unmasked.keeps(values) or not masked.keeps(values):
            return None
        kept = ", ".join(f"{name} = {text(value)}" for name, value in values.items())
        lines = (
            f"where {maximum} is finite:",
            *(f"  {line}" for line in finite_proof.lines),
            f"where {maximum} is -inf, all elements so far were -inf: {kept}, and the iteration keeps these values",
        )
        assumed = (*finite_proof.assumptions, *masked.simplify.assumptions, *unmasked.simplify.assumptions)
        return NoOpProof(True, lines, tuple(dict.fromkeys(assumed)))

    def _start(self, loop: ir.For, name: str) -> ir.Literal | None:
        """The constant that a tile holds before the loop; None if it is not a constant."""
        inside = {store.node_id for store in stores(loop.body)}
        before: list[ir.Store] = []
        for store in self.stores:
            if store.node_id in inside:
                break
            if store.target.tensor == name:
                before.append(store)
        return before[-1].value if before and isinstance(before[-1].value, ir.Literal) else None

    def _outside(self, body: tuple[ir.Store, ...]) -> frozenset[str]:
        inside = {id(store) for store in body}
        return frozenset(a.tensor for store in self.stores if id(store) not in inside for a in reads(store))


@dataclass(frozen=True, slots=True)
class Case:
    """Assumptions at the start of an iteration.

    Args:
        finite: tiles without an infinity.
        values: constants that tiles hold.
        minus_infinity: an expression of the body that is -inf in every element.
    """

    finite: tuple[str, ...] = ()
    values: Mapping[str, ir.Literal] = field(default_factory=dict)
    minus_infinity: ir.TileExpr | None = None


def _folded_by(body: tuple[ir.Store, ...], maximum: str) -> ir.TileExpr | None:
    """The expression that an iteration folds into a running maximum; None if `maximum` is not one.

    For `m = max(m, t)` with `t = max over a dimension of e`, perhaps through other tiles, it is e.
    """
    value_of = {store.target.tensor: store.value for store in body}

    def through(expr: ir.TileExpr) -> ir.TileExpr:
        while isinstance(expr, ir.Access) and expr.tensor in value_of and expr.tensor != maximum:
            if isinstance(value_of[expr.tensor], ir.Reduce | ir.Access) or _is_max(value_of[expr.tensor]):
                expr = value_of[expr.tensor]
            else:
                break
        return expr

    value = through(value_of[maximum]) if maximum in value_of else None
    if not isinstance(value, ir.Elementwise) or not _is_max(value):
        return None
    parts = [through(arg) for arg in value.args]
    rest = [p for p in parts if not (isinstance(p, ir.Access) and p.tensor == maximum)]
    if len(rest) != 1 or not isinstance(rest[0], ir.Reduce) or rest[0].op != "max":
        return None
    folded: ir.TileExpr = rest[0]
    while isinstance(folded, ir.Reduce):
        folded = folded.arg
    match folded:
        case ir.Elementwise(op="where", args=(_, kept, ir.Literal(value=value))) if value == -INF:
            return kept
    return folded


def _started_with_inputs(every: Iterable[ir.Store]) -> frozenset[str]:
    """The tiles that start as the maximum of -inf and something else (`start_with_constants`)."""
    return frozenset(
        store.target.tensor
        for store in every
        if isinstance(store.value, ir.Elementwise)
        and _is_max(store.value)
        and any(isinstance(arg, ir.Literal) and arg.value == -INF for arg in _operands(store.value))
    )


def _operands(expr: ir.TileExpr) -> Iterator[ir.TileExpr]:
    match expr:
        case ir.Elementwise(op="max", args=args):
            for arg in args:
                yield from _operands(arg)
        case _:
            yield expr


def _is_max(expr: ir.TileExpr) -> bool:
    return isinstance(expr, ir.Elementwise) and expr.op == "max"


class _Execution:
    """The symbolic execution of one iteration."""

    def __init__(
        self,
        body: tuple[ir.Store, ...],
        read_outside: frozenset[str],
        infinities: Mapping[str, Infinities],
        dtypes: Mapping[str, str],
        is_false: Callable[[ir.TileExpr], bool],
        case: Case,
    ) -> None:
        self.body = body
        self.case = case
        self.changed: tuple[str, ...] = ()
        self.stored = frozenset(store.target.tensor for store in body)
        self.outlives = set(self.stored & read_outside)
        self.infinities = dict(infinities)
        self.dtypes = dtypes
        self.simplify = Simplifier(self.infinities)
        self.is_false = is_false
        self.values: dict[str, ir.TileExpr] = {}
        self.definitions: dict[str, str] = {}  # of the symbols of this iteration

    def keeps(self, values: Mapping[str, ir.Literal]) -> bool:
        """Whether tiles that start with these constants end with them."""
        self.run()
        return all(self.values.get(name) == value for name, value in values.items())

    def run(self) -> NoOpProof:
        lines = []
        for store in self.body:
            name = store.target.tensor
            value = self.resolved(store.value)
            if store.mask is not None:
                old = self.resolved(store.target)
                if not self.is_false(store.mask):
                    mask = self.resolved(store.mask)
                    old = self.simplify(ir.Elementwise("where", (mask, value, old), self.dtypes[name]))
                value = old
            self.values[name] = self.symbol(store, value)
            if self.values[name] is value:
                lines.append(f"{name} = {text(value)}")
        targets = {store.target.tensor: store.target for store in self.body}
        self.changed = tuple(
            name
            for name, target in targets.items()
            if name in self.outlives and not _is_itself(self.values[name], target)
        )
        if self.changed:
            became = {name: text(self.values[name]) for name in self.changed}
            shown = (f"{n} would become {self.definitions.get(b, b)} and not stay {n}" for n, b in became.items())
            return NoOpProof(False, tuple(shown))
        return NoOpProof(True, tuple(dict.fromkeys(lines)), tuple(self.simplify.assumptions))

    def resolved(self, expr: ir.TileExpr) -> ir.TileExpr:
        """`expr` in terms of the values at the iteration's start, simplified."""
        return self.simplify(rewrite(self.masked(expr), self.read))

    def masked(self, expr: ir.TileExpr) -> ir.TileExpr:
        """`expr` with the other branch of each `where` whose condition is false; its condition is not executed."""

        def visit(e: ir.TileExpr) -> ir.TileExpr:
            match e:
                case _ if self.case.minus_infinity is not None and e == self.case.minus_infinity:
                    return ir.Literal(-INF, "float32")
                case ir.Elementwise(op="where", args=(condition, _, other)) if self.is_false(condition):
                    return other
                case _:
                    return e

        return rewrite(expr, visit)

    def read(self, expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Access) or expr.tensor not in self.stored:
            return expr
        if expr.tensor not in self.values:
            self.outlives.add(expr.tensor)  # read before it is stored: its value is the previous iteration's
            return self.case.values.get(expr.tensor, expr)
        pattern = tuple(isinstance(dim, ir.Slice) for dim in tile_dims(expr.index))
        return unsqueezed(self.values[expr.tensor], pattern)

    def symbol(self, store: ir.Store, value: ir.TileExpr) -> ir.TileExpr:
        """`value` itself if it is small and elementwise, otherwise a new symbol for it."""
        nodes = list(subexpressions(value))
        if len(nodes) <= MAX_INLINED and not any(isinstance(e, ir.Dot | ir.Reduce | ir.Permute) for e in nodes):
            return value
        name = f"{store.target.tensor}'"
        while name in self.infinities:
            name += "'"
        self.definitions[name] = text(value)
        self.infinities[name] = self.infinities[store.target.tensor]
        return replace(store.target, tensor=name)


def unsqueezed(expr: ir.TileExpr, pattern: tuple[bool, ...]) -> ir.TileExpr:
    """An elementwise `expr` with new dimensions of extent 1 where `pattern` is false."""

    def visit(e: ir.TileExpr) -> ir.TileExpr:
        match e:
            case ir.Access(index=index) if shape_of_access(e):
                return replace(e, index=_with_new_axes(index, pattern))
            case ir.Iota(index=index):
                return replace(e, index=_with_new_axes(index, pattern))
            case _:
                return e

    return expr if all(pattern) else rewrite(expr, visit)


def _with_new_axes(index, pattern: tuple[bool, ...]):
    dims = [n for n, i in enumerate(index) if isinstance(i, ir.Slice | ir.NewAxis)]
    out, left = list(index), iter(dims)
    inserted = 0
    at = 0
    for own in pattern:
        if own:
            at = next(left) + inserted + 1
        else:
            out.insert(at, ir.NewAxis())
            inserted, at = inserted + 1, at + 1
    return tuple(out)


def _is_itself(value: ir.TileExpr, target: ir.Access) -> bool:
    return isinstance(value, ir.Access) and value.tensor == target.tensor and same_region(value, target)


def text(expr: ir.TileExpr) -> str:
    """An expression in a proof: tiles by name only, since an iteration uses one region of each."""

    def visit(e: ir.TileExpr) -> ir.TileExpr:
        return ir.Scalar(ir.Name(e.tensor)) if isinstance(e, ir.Access) else e

    return flat(expr_doc(rewrite(expr, visit)))
