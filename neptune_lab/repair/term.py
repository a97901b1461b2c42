"""A repair term with its derivation: frozen, printable and computable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from sympy import Expr, Function, Symbol

from neptune_lab.repair.change_of_variables import Separation
from neptune_lab.repair.derive import Derivation
from neptune_lab.repair.guard import Guard, reachable
from neptune_lab.repair.invert import Inverse
from neptune_lab.repair.numeric import compute, over_arrays
from neptune_lab.repair.prove import Proof
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import Derived, Line, Step, latex, text

_REDUCER_TEXT = {
    "sum": "x + y",
    "prod": "x*y",
    "max": "max(x, y)",
    "min": "min(x, y)",
    "any": "x or y",
    "all": "x and y",
}


def read_step(
    reducer: str,
    g: Expr,
    producers: Iterable[Symbol],
    assumptions: tuple[tuple[str, tuple[str, ...]], ...],
) -> Step:
    """The first step of every derivation: the reducer, producers that have no effect, and the assumptions."""
    unread = (Line(f"g does not depend on {r.name}") for r in producers if r not in g.free_symbols)
    assumed = (Line(f"{name} is {', '.join(words)}") for name, words in assumptions)
    return Step("Read: reducer and term", (Line(f"f(x, y) = {_REDUCER_TEXT[reducer]}"), *unread, *assumed))


def range_steps(reasons: tuple[str, ...]) -> tuple[Step, ...]:
    """The last step, if there are reasons why a repair is right in floats."""
    return (Step("Range: in float32", tuple(Line(reason) for reason in reasons)),) if reasons else ()


@dataclass(frozen=True, slots=True)
class Unproved:
    """Why a user-supplied h is not proved.

    Attributes:
        step: of the derivation that failed.
        reason: why, in words.
        wrong: a counterexample was found; else there is only no proof.
    """

    step: str
    reason: str
    wrong: bool


@dataclass(frozen=True, slots=True, repr=False)
class RepairTerm(Derived):
    """h(t, r, r') for a reducer f and a term g, with its derivation.

    All expressions are over internal symbols that are unique objects; `symbols` maps the caller's symbols to them, and
    `previous` and `current` give r and r' by the producer's name.

    Attributes:
        reducer: name of f.
        assumptions: what was assumed, by name.
        separation, inverse, derivation, proofs: the record of each step.
        guards: singular points of the producers, with replacements (see `guard.py`).
        checks: what was compared numerically.
        inverse: None for a user-supplied h.
        unproved: why a user-supplied h is not proved; None if it is.
        ranges: why the repair is right in float32 too; sentences added after the derivation, from the program's ranges.
        pairs: (caller's symbol, internal symbol).
        regular: a regular value of each producer.
        starts: (producer, its reducer, what `initial_value` returns).
    """

    reducer: str
    t: Symbol
    separation: Separation
    inverse: Inverse | None
    derivation: Derivation
    proofs: tuple[Proof, ...]
    guards: tuple[Guard, ...]
    checks: tuple[str, ...]
    pairs: tuple[tuple[Symbol, Symbol], ...]
    assumptions: tuple[tuple[str, tuple[str, ...]], ...]
    regular: tuple[Expr, ...]
    starts: tuple[tuple[str, str, Expr | None], ...]
    unproved: Unproved | None = None
    ranges: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RepairTerm of the {self.reducer} of {text(self.g)}: {text(self.signature)} = {text(self.h)}>"

    @property
    def g(self) -> Expr:
        """The caller's term."""
        return self.separation.g

    @property
    def g0(self) -> Expr:
        """The term over r and C."""
        return self.separation.g0

    @property
    def change_of_variables(self) -> tuple[Symbol, Expr]:
        """(C, g_c(c))."""
        return self.separation.variable, self.separation.g_c

    @property
    def h(self) -> Expr:
        """The repair term, over `t`, `previous` and `current` (and `constants`)."""
        return self.derivation.h

    @property
    def factor(self) -> Expr | None:
        """a(r, r') where h = a*t, else None."""
        return self.derivation.factor

    @property
    def producers(self) -> tuple[str, ...]:
        """Names of the producers, in the order given."""
        return tuple(symbol.name for symbol in self.separation.producers)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, which are in C."""
        return tuple(symbol.name for symbol in self.separation.inputs)

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the symbols other than r that g0 and h read; each must have one value for the whole reduction."""
        return tuple(symbol.name for symbol in self.separation.constants)

    @property
    def previous(self) -> dict[str, Symbol]:
        """Producer's name -> r in `h`."""
        return dict(zip(self.producers, self.derivation.previous, strict=True))

    @property
    def current(self) -> dict[str, Symbol]:
        """Producer's name -> r' in `h`."""
        return dict(zip(self.producers, self.derivation.current, strict=True))

    @property
    def symbols(self) -> dict[Symbol, Symbol]:
        """The caller's symbol -> the internal one (for a producer: its previous value r, which is also g's)."""
        return dict(self.pairs)

    def evaluate(
        self,
        t: Any,
        previous: Mapping[str, Any],
        current: Mapping[str, Any],
        constants: Mapping[str, Any] | None = None,
    ) -> Any:
        """h in float64, elementwise, with IEEE infinities and NaNs; guards are not applied.

        Args:
            t: the value folded so far: a number, or an array of any shape.
            previous: r by the producer's name, of t's shape or one that broadcasts with it.
            current: r' likewise.
            constants: the value of each constant that h reads, by name.

        Returns:
            h(t, r, r'), in the broadcast shape of the arguments.

        Raises:
            ValueError: names of `previous`, `current` or `constants` are missing or unknown.

        >>> from neptune_lab.repair import solve
        >>> solve("sum", "exp(c - r)", ["r"]).evaluate(2.0, {"r": float("-inf")}, {"r": 1.0})
        0.0
        """
        at: dict[Symbol, Any] = {self.t: t}
        for role, symbols, values in (
            ("previous", self.previous, previous),
            ("current", self.current, current),
            ("constants", {symbol.name: symbol for symbol in self.separation.constants}, constants or {}),
        ):
            if set(values) != set(symbols):
                raise ValueError(f"{role} has values for {sorted(values)}, expected {sorted(symbols)}")
            at |= {symbols[name]: value for name, value in values.items()}
        if all(isinstance(value, int | float) for value in at.values()):
            return compute(self.h, at)[0]
        (out,) = over_arrays([self.h], at)
        return out if out.ndim else float(out)

    def initial_value(self, producer: str | Symbol, producer_reducer: str) -> Expr | None:
        """The value of the previous r before the first tag.

        Args:
            producer: its name, or the caller's symbol.
            producer_reducer: the reducer of the producer itself, such as "max".

        Returns:
            None if the identity of the producer's own reducer can be used, since h(identity of f, that, r') is regular.
            Otherwise a regular value; any one is right, since t is f's identity then.

        Raises:
            ValueError: there is no such producer or reducer.

        >>> from neptune_lab.repair import solve
        >>> solve("sum", "exp(c - r)", ["r"]).initial_value("r", "max") is None
        True
        >>> solve("sum", "(c/r)**2", ["r"], assumptions={"r": "nonnegative"}).initial_value("r", "max")
        1
        """
        name = self.symbols[producer].name if isinstance(producer, Symbol) else producer
        for known, reducer, replacement in self.starts:
            if known == name and reducer == producer_reducer:
                return replacement
        raise ValueError(
            f"no producer {name!r} with reducer {producer_reducer!r}; producers are {', '.join(self.producers)} "
            f"and reducers {', '.join(REDUCERS)}"
        )

    def reachable_guards(self, producer: str | Symbol, producer_reducer: str) -> tuple[Guard, ...]:
        """Guards of a producer at points that it reaches with finite inputs, or with inputs masked by its identity.

        These are the finite points and its reducer's identity.

        >>> from neptune_lab.repair import solve
        >>> [g.point for g in solve("sum", "exp(c - r)", ["r"]).reachable_guards("r", "max")]
        [-oo]

        Args:
            producer: its name, or the caller's symbol.
            producer_reducer: the reducer of the producer itself, such as "max".

        Returns:
            The guards at those points.
        """
        name = self.symbols[producer].name if isinstance(producer, Symbol) else producer
        return reachable((guard for guard in self.guards if guard.producer == name), producer_reducer)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the derivation, ready to show."""
        records = (self.separation, *(() if self.inverse is None else (self.inverse,)), self.derivation)
        proofs = [proof.shown for proof in self.proofs]
        if self.unproved is not None:
            title = f"{self.unproved.step[:1].upper()}{self.unproved.step[1:]}: not proved"
            proofs.append(Step(title, (Line(self.unproved.reason),), ok=False))
        checks = (Step("Check by numbers", tuple(Line(check) for check in self.checks)),) if self.checks else ()
        guards = [Line(_guard_text(guard)) for guard in self.guards] or [Line("none: h is regular everywhere")]
        return (
            read_step(self.reducer, self.g, self.separation.producers, self.assumptions),
            *(Step(record.title, record.lines) for record in records),
            *proofs,
            *checks,
            Step("Guard: where a producer is singular", tuple(guards)),
            *range_steps(self.ranges),
        )

    @property
    def signature(self) -> Expr:
        """h(t, r, r') as a SymPy call, for headings."""
        return cast(Expr, Function("h")(self.t, *self.derivation.previous, *self.derivation.current))

    def as_record(self) -> dict[str, Any]:
        """The repair term as plain strings, lists and booleans, for JSON.

        Returns:
            Keys such as "h", "g0", "change_of_variables", "inverse" and "assumptions".
        """
        variable, g_c = self.change_of_variables
        return {
            "reducer": self.reducer,
            "g": text(self.g),
            "producers": list(self.producers),
            "inputs": list(self.inputs),
            "constants": list(self.constants),
            "assumptions": {name: list(words) for name, words in self.assumptions},
            "change_of_variables": {"variable": text(variable), "value": text(g_c)},
            "g0": text(self.g0),
            "inverse": None if self.derivation.inverse is None else text(self.derivation.inverse),
            "h": text(self.h),
            "h_call": text(self.signature),
            "h_latex": latex(self.h),
            "factor": None if self.factor is None else text(self.factor),
            "proofs": [proof.as_record() for proof in self.proofs],
            "checks": list(self.checks),
            "guards": [guard.as_record() for guard in self.guards],
            "steps": [step.as_record() for step in self.steps],
        }


def _guard_text(guard: Guard) -> str:
    return f"where {guard.producer} = {text(guard.point)}, use {text(guard.replacement)} instead: {guard.reason}"
