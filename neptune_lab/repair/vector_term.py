"""A vector repair with its derivation: the family of sums, and the matrix that repairs them; frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sympy import Add, Dummy, Expr, Function, ImmutableMatrix, Symbol, log, re, simplify

from neptune_lab.repair.guard import Guard, reachable
from neptune_lab.repair.numeric import as_array, as_columns, over_arrays
from neptune_lab.repair.prove import Proof
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import Derived, Line, Step, equation, latex, text
from neptune_lab.repair.term import range_steps
from neptune_lab.repair.vector_check import applied, matrix_at

if TYPE_CHECKING:
    from neptune_lab.repair.numeric import Array


@dataclass(frozen=True, slots=True, repr=False)
class VectorRepair(Derived):
    """A(r, r') for a sum of g(r, c) and the sums that are carried with it, with its derivation.

    All expressions are over internal symbols that are unique objects; `symbols` maps the caller's symbols to them.

    Attributes:
        components: g_0 = g to g_n, over r (`r`) and the inputs.
        matrix: A, over r (`r`) and r' (`r_now`), and `constants`.
        by_step: A over `step`, the symbol of u(r') - u(r).
        generator: M of dG/du = M G, over constants alone.
        reference: u(r), over r.
        over_u: the components over `u` in place of r.
        t: the symbols of the carried sums, in the order of the components.
        proofs, checks, guards: as in `RepairTerm`.
        pairs: (caller's symbol, internal symbol).
        starts: for each reducer of the producer, what `initial_value` returns.
        ranges: as in `RepairTerm`.
    """

    components: tuple[Expr, ...]
    matrix: ImmutableMatrix
    by_step: ImmutableMatrix
    step: Symbol
    generator: ImmutableMatrix
    reference: Expr
    u: Symbol
    over_u: tuple[Expr, ...]
    r: Symbol
    r_now: Symbol
    t: tuple[Symbol, ...]
    inputs: tuple[str, ...]
    constant_symbols: tuple[Symbol, ...]
    proofs: tuple[Proof, ...]
    guards: tuple[Guard, ...]
    checks: tuple[str, ...]
    pairs: tuple[tuple[Symbol, Symbol], ...]
    assumptions: tuple[tuple[str, tuple[str, ...]], ...]
    starts: tuple[tuple[str, Expr | None], ...]
    ranges: tuple[str, ...] = ()

    reducer = "sum"

    def __repr__(self) -> str:
        return f"<VectorRepair of the {self.reducer} of {text(self.g)}: {text(self.signature)} = {text(self.h)}>"

    @property
    def g(self) -> Expr:
        """The caller's term."""
        return self.components[0]

    @property
    def growth(self) -> tuple[Expr, ...]:
        """The rates at which the parts of the family grow with u: the distinct real parts of the generator's
        eigenvalues.

        With more than one (exp(c - r) + 1: -1 and 0), the sum of g is carried as one number although its parts move at
        different rates; where one part shrinks a lot, the digits of the other are lost.
        """
        rates = (re(rate) for rate in self.generator.eigenvals())
        return tuple(dict.fromkeys(cast(Expr, simplify(rate)) for rate in rates))

    @property
    def size(self) -> int:
        """How many sums are carried."""
        return len(self.components)

    @property
    def rows(self) -> tuple[Expr, ...]:
        """h_k(t_0, ..., t_n, r, r') for each component: the rows of A times the carried sums."""
        return tuple(cast(Expr, Add(*(a * t for a, t in zip(row, self.t, strict=True)))) for row in self._table)

    @property
    def h(self) -> Expr:
        """The repair of the term's own sum, h_0."""
        return self.rows[0]

    @property
    def _table(self) -> list[list[Expr]]:
        return cast("list[list[Expr]]", self.matrix.tolist())

    @property
    def by_difference(self) -> bool:
        """Whether A is computed from u(r') - u(r) (`entries`), for accuracy; a power of r'/r is computed directly."""
        return not isinstance(self.reference, log)

    def entries(self, row: int) -> tuple[Expr, ...]:
        """A row of A in the form that is computed: over `step` if `by_difference`, else over r and r'."""
        table = self.by_step if self.by_difference else self.matrix
        return tuple(cast("list[Expr]", table.row(row).flat()))

    def companion(self, k: int) -> Expr:
        """g_k in the form that is computed: over `u` if `by_difference`, else over r."""
        return self.over_u[k] if self.by_difference else self.components[k]

    def reference_at(self, symbol: Symbol) -> Expr:
        """u at `symbol`, which is `r` or `r_now`."""
        return cast(Expr, self.reference.xreplace({self.r: symbol}))

    @property
    def reads_first(self) -> bool:
        """Whether the repair of another sum reads the term's own sum."""
        return any(row[0] != 0 for row in self._table[1:])

    @property
    def triangular(self) -> bool:
        """Whether the repair of each sum reads only that sum and those after it."""
        return bool(self.matrix.is_upper)

    @property
    def producers(self) -> tuple[str, ...]:
        """The producer's name, in a tuple as in `RepairTerm`."""
        return (self.r.name,)

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the symbols other than r that A reads; each must have one value for the whole reduction."""
        return tuple(symbol.name for symbol in self.constant_symbols)

    @property
    def previous(self) -> dict[str, Symbol]:
        """Producer's name -> r in `matrix`."""
        return {self.r.name: self.r}

    @property
    def current(self) -> dict[str, Symbol]:
        """Producer's name -> r' in `matrix`."""
        return {self.r.name: self.r_now}

    @property
    def symbols(self) -> dict[Symbol, Symbol]:
        """The caller's symbol -> the internal one."""
        return dict(self.pairs)

    def initial_value(self, producer: str | Symbol, producer_reducer: str) -> Expr | None:
        """The value of the previous r before the first tag; None if the identity of its own reducer can be used.

        >>> from neptune_lab.repair import solve_vector
        >>> repair = solve_vector("sum", "(c - r)*exp(c - r)", "r")
        >>> repair.initial_value("r", "max"), repair.initial_value("r", "sum") is None
        (0, True)
        """
        self._check_producer(producer, producer_reducer)
        return dict(self.starts)[producer_reducer]

    def reachable_guards(self, producer: str | Symbol, producer_reducer: str) -> tuple[Guard, ...]:
        """Guards at points that the producer reaches with finite inputs (or inputs masked by its identity)."""
        self._check_producer(producer, producer_reducer)
        return reachable(self.guards, producer_reducer)

    def _check_producer(self, producer: str | Symbol, producer_reducer: str) -> None:
        name = self.symbols[producer].name if isinstance(producer, Symbol) else producer
        if name != self.r.name or producer_reducer not in REDUCERS:
            raise ValueError(
                f"no producer {name!r} with reducer {producer_reducer!r}; the producer is {self.r.name} and reducers "
                f"are {', '.join(REDUCERS)}"
            )

    def transport(self, previous: Any, current: Any, constants: Mapping[str, Any] | None = None) -> Array:
        """A(r, r') in float64: an array (size, size, ...) over the shape of the arguments.

        >>> from neptune_lab.repair import solve_vector
        >>> solve_vector("sum", "c - r", "r").transport(1.0, 3.0).tolist()
        [[1.0, -2.0], [0.0, 1.0]]
        """
        import numpy as np

        entries = over_arrays(self.matrix.flat(), self._places(previous, current, constants))
        return np.stack(entries).reshape(self.size, self.size, *entries[0].shape)

    def _places(self, previous: Any, current: Any, constants: Mapping[str, Any] | None) -> dict[Symbol, Any]:
        """The value of each symbol of the matrix."""
        values, known = constants or {}, {symbol.name: symbol for symbol in self.constant_symbols}
        if set(values) != set(known):
            raise ValueError(f"constants has values for {sorted(values)}, expected {sorted(known)}")
        return {self.r: previous, self.r_now: current, **{known[name]: value for name, value in values.items()}}

    def evaluate(self, t: Any, previous: Any, current: Any, constants: Mapping[str, Any] | None = None) -> Array:
        """The carried sums (size, ...) moved from r to r', in float64; guards are not applied.

        Args:
            t: the sums, in the order of `components` along the first axis.
            previous: r, of the shape of one sum, or one that broadcasts with it.
            current: r' likewise.
            constants: the value of each constant that the matrix reads, by name.

        >>> from neptune_lab.repair import solve_vector
        >>> solve_vector("sum", "(c - r)**2", "r").evaluate([2.0, 0.0, 2.0], 1.0, 2.0).tolist()
        [4.0, -2.0, 2.0]
        """
        import numpy as np

        vector = np.asarray(t, dtype=np.float64)
        if vector.shape[:1] != (self.size,):
            raise ValueError(f"t has shape {vector.shape}, expected {self.size} values along its first axis")
        places = self._places(previous, current, constants)
        columns, shape = as_columns([*places.values(), *vector])
        at, sums = dict(zip(places, columns, strict=False)), columns[len(places) :]
        return np.stack([as_array(row, shape) for row in applied(matrix_at(self.matrix, at), sums)])

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the derivation, ready to show."""
        g, r = Function("g"), self.r
        names = [Dummy(f"g_{k}") for k in range(self.size)]
        members = [Line("", equation(name, member)) for name, member in zip(names, self.components, strict=True)]
        slopes = [
            Line("", equation(Function("d")(name), slope))
            for name, slope in zip(names, self._slopes(names), strict=True)
        ]
        own = self.reference == r
        about = (
            ()
            if own
            else (Line(f"as a function of u, where {r.name} enters as", equation(Dummy("u"), self.reference)),)
        )
        calls = [Line("", equation(Function(f"h_{k}")(*self.t, r, self.r_now), row)) for k, row in enumerate(self.rows)]
        shape = "each sum reads itself and those after it" if self.triangular else "every sum reads all the others"
        guards = [
            Line(f"where {x.producer} = {text(x.point)}, use {text(x.replacement)}: {x.reason}") for x in self.guards
        ]
        known = [Line(f"{name} is {', '.join(words)}") for name, words in self.assumptions]
        return (
            Step("Read: reducer and term", (Line("f(x, y) = x + y"), Line("", equation(g(r), self.g)), *known)),
            Step(
                f"Close: g and its derivatives span a finite family (d is the derivative in {r.name if own else 'u'})",
                (*about, *members, *slopes),
            ),
            Step("Move: T' = A(r, r') T, with T the sums of the family", (*calls, Line(shape))),
            *(Step(proof.title, proof.lines) for proof in self.proofs),
            Step("Check by numbers", tuple(Line(check) for check in self.checks)),
            Step("Guard: where the producer is singular", tuple(guards or [Line("none: A is regular everywhere")])),
            *range_steps(self.ranges),
        )

    def _slopes(self, names: list[Dummy]) -> Iterator[Expr]:
        """M times the components, over the components' names."""
        for row in self.generator.tolist():
            yield cast(Expr, Add(*(entry * name for entry, name in zip(row, names, strict=True))))

    @property
    def signature(self) -> Expr:
        """h_0(t_0, ..., r, r') as a SymPy call, for headings."""
        return cast(Expr, Function("h_0")(*self.t, self.r, self.r_now))

    def as_record(self) -> dict[str, Any]:
        """The repair as plain strings, lists and booleans, for JSON."""
        return {
            "reducer": self.reducer,
            "g": text(self.g),
            "producers": list(self.producers),
            "inputs": list(self.inputs),
            "constants": list(self.constants),
            "assumptions": {name: list(words) for name, words in self.assumptions},
            "reference": text(self.reference),
            "components": [text(component) for component in self.components],
            "generator": [[text(entry) for entry in row] for row in self.generator.tolist()],
            "matrix": [[text(entry) for entry in row] for row in self._table],
            "rows": [text(row) for row in self.rows],
            "triangular": self.triangular,
            "h": text(self.h),
            "h_call": text(self.signature),
            "h_latex": latex(self.h),
            "proofs": [proof.as_record() for proof in self.proofs],
            "checks": list(self.checks),
            "guards": [guard.as_record() for guard in self.guards],
            "steps": [step.as_record() for step in self.steps],
        }
