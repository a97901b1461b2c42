"""A user-supplied repair function h: parsed, then proved and checked numerically like a derived one.

h is text over `t`, the value folded so far, and two names per producer r: `r_before`, the value with which t was
computed, and `r_now`, the value to which t is repaired.  A wrong h is refused with a counterexample, or accepted and
marked as unproved.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sympy import Expr, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.check import Model, check
from neptune_lab.repair.column import Column, largest, maximum, total
from neptune_lab.repair.derive import Derivation, as_derivation
from neptune_lab.repair.expression_text import functions, names_in, parse
from neptune_lab.repair.limit import limited
from neptune_lab.repair.numeric import close, compute
from neptune_lab.repair.points import Generator
from neptune_lab.repair.read import RepairProblem, read
from neptune_lab.repair.render import text
from neptune_lab.repair.solve import SeparatedProblem, answer, prove, separate, solve
from neptune_lab.repair.term import RepairTerm, Unproved

# Values that are easy to compute with; those that a symbol's assumptions exclude are left out.
_SIMPLE = (1.0, 2.0, 0.0, 0.5, 3.0, -1.0, -2.0, -0.5)
_POINTS = 512
# Relative difference that is visible in four digits.
_VISIBLE = 0.05
_UNUSUAL = 10.0


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A point at which h fails: t was folded from terms computed with `previous`, and is repaired to `current`.

    Attributes:
        reducer: f.
        inputs: (name, value) pairs of each term; empty if t is the identity of f.
        previous, current: (producer, value) before and now.
        t: the reduction of the terms before.
        found: h(t, before, now).
        expected: the reduction of the terms now.
    """

    reducer: str
    inputs: tuple[tuple[tuple[str, float], ...], ...]
    previous: tuple[tuple[str, float], ...]
    current: tuple[tuple[str, float], ...]
    t: float
    found: float
    expected: float

    @property
    def text(self) -> str:
        """The counterexample as a sentence."""
        at = [f"{name}_before = {value:g}" for name, value in self.previous]
        at += [f"{name}_now = {value:g}" for name, value in self.current]
        terms = " and ".join(", ".join(f"{name} = {value:g}" for name, value in term) for term in self.inputs)
        made = f"the {self.reducer} of the terms at {terms}" if len(self.inputs) > 1 else f"the term at {terms}"
        made = made if self.inputs else f"what {self.reducer} starts from"
        where = f"{', '.join(at)} and t = {self.t:.6g} ({made})"
        return f"at {where}, h gives {self.found:.6g}, but should give {self.expected:.6g}"


class WrongRepair(RepairError):
    """A user-supplied h that is wrong or not proved; `counterexample` is None if no wrong number was found."""

    def __init__(
        self, message: str, *, step: str, expression: str, help: str | None, counterexample: Counterexample | None
    ) -> None:
        super().__init__(message, step=step, expression=expression, help=help)
        self.counterexample = counterexample


def prove_supplied(
    reducer: str,
    g: Expr | str,
    producers: Iterable[str | Symbol] | str | Symbol,
    h: str,
    *,
    assumptions: Mapping[Any, Any] | None = None,
    shown: Mapping[str, str] | None = None,
    falling: Iterable[str] = (),
    unproved: bool = False,
) -> RepairTerm:
    """Proves a user-supplied h like a derived one.

    Args:
        reducer, g, producers, assumptions: as in `solve`; there are no constants.
        h: text over t, and `<name>_before` and `<name>_now` of each producer.
        shown: producer -> its name in h, if it differs.
        falling: producers that decrease as a loop runs (minima); a counterexample decreases them and increases others.
        unproved: accept an h that is not proved; its `unproved` says why.

    Returns:
        The repair term.

    Raises:
        RepairError: h cannot be read (step "read"), or g has no form in which an h can be proved.
        WrongRepair: h is not proved.

    >>> text(prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_before)/exp(r_now)").h)
    "t*exp(r - r')"
    >>> prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_now - r_before)")
    Traceback (most recent call last):
    ...
    neptune_lab.repair.supplied.WrongRepair: h = t*exp(r_now - r_before) is wrong: at r_before = 0, r_now = 0.5 and ...
      help: before and now are exchanged; ...
    """
    falls = set(falling)
    return limited(
        lambda: _solved(read(reducer, g, producers, assumptions, ()), h, shown or {}, falls, unproved=unproved), g
    )


def _solved(
    question: RepairProblem, h: str, shown: Mapping[str, str], falling: set[str], *, unproved: bool
) -> RepairTerm:
    """A user's h as a repair term.

    Args:
        falling: producers whose values only fall.
        unproved: whether to accept it without a proof.

    Raises:
        WrongRepair: it is not proved, with a counterexample if there is one.
    """
    names = _names(question, shown)
    expr = read_h(h, names)
    problem = separate(question)
    derivation = _as_derivation(expr, names, problem)
    try:
        narrow, proofs = prove(problem, [derivation])
        return answer(problem, narrow, proofs, check(problem.model(narrow)))
    except RepairError as error:
        failed = error
    falls = [producer.name in falling for producer in question.producers]
    example = counterexample(problem.model(derivation), names, falls)
    step = _failed_step(failed, example)
    if unproved:
        reason = failed.reason if example is None else example.text
        return answer(problem, derivation, (), (), unproved=Unproved(step, reason, example is not None))
    verdict = f"is wrong: {example.text}" if example else f"is not proved: {failed.reason}"
    raise WrongRepair(
        f"h = {h.strip()} {verdict}",
        step=step,
        expression=h.strip(),
        help="; ".join([*_suspicions(expr, names, question), _derived(question, names)]),
        counterexample=example,
    ) from failed


def _failed_step(failed: RepairError, example: Counterexample | None) -> str:
    """The equation that fails: Eq. 4 is proved first, but an h that repairs a single term wrongly fails Eq. 3."""
    return "prove Eq. 3" if example is not None and len(example.inputs) == 1 else failed.step


@dataclass(frozen=True, slots=True)
class SuppliedNames:
    """The symbols of h: t, and (before, now) of each producer, in order; `of` are the producers' names."""

    t: Symbol
    pairs: tuple[tuple[Symbol, Symbol], ...]
    of: tuple[str, ...]

    @property
    def known(self) -> tuple[str, ...]:
        return (self.t.name, *(symbol.name for pair in self.pairs for symbol in pair))

    @property
    def exchanged(self) -> dict[Symbol, Symbol]:
        return {a: b for before, now in self.pairs for a, b in ((before, now), (now, before))}


def _names(question: RepairProblem, shown: Mapping[str, str]) -> SuppliedNames:
    of = tuple(re.sub(r"\W", "_", shown.get(p.name, p.name)) for p in question.producers)
    return SuppliedNames(Symbol("t"), tuple((Symbol(f"{n}_before"), Symbol(f"{n}_now")) for n in of), of)


def read_h(source: str, names: SuppliedNames) -> Expr:
    """h as an expression over the symbols of `names`; RepairError, step "read", if it has other names."""
    advice = f"h is written with {', '.join(names.known[:-1])} and {names.known[-1]}, as in Python"
    try:
        expr = parse(source, "h")
        free = {symbol.name for symbol in cast("set[Symbol]", expr.free_symbols)}
        unknown = sorted((names_in(source) - set(functions()) | free) - set(names.known))
    except RepairError as error:
        help = f"{error.help}; {advice}" if error.help and error.help.startswith("known") else advice
        raise RepairError(error.reason, step="read", expression=source, help=help) from error
    if unknown:
        several = f"{', '.join(map(repr, unknown))}, which {'is' if len(unknown) == 1 else 'are'} none of its names"
        raise RepairError(f"h = {source.strip()} has {several}", step="read", expression=source, help=advice)
    return expr


def _as_derivation(expr: Expr, names: SuppliedNames, problem: SeparatedProblem) -> Derivation:
    """h over the symbols of the proof."""
    moves = problem.domain.moves
    symbols = {names.t: problem.t}
    for (before, now), (r, r_now) in zip(names.pairs, moves.items(), strict=True):
        symbols |= {before: r, now: r_now}
    try:
        return as_derivation(cast(Expr, expr.xreplace(symbols)), problem.t, moves)
    except (ValueError, TypeError) as error:  # max and min refuse to compare what is not real
        raise RepairError(
            f"h = {text(expr)} is not real: {error}",
            step="read",
            expression=text(expr),
            help="write max and min over real values only",
        ) from error


def _holds(expr: Expr, names: SuppliedNames, question: RepairProblem) -> bool:
    try:
        problem = separate(question)
        prove(problem, [_as_derivation(expr, names, problem)])
    except RepairError:
        return False
    return True


def _suspicions(expr: Expr, names: SuppliedNames, question: RepairProblem) -> list[str]:
    """A likely mistake: a change to h that makes it provably right, in words."""
    if expr == names.t:
        return ["h = t changes nothing, which is naive fusion"]
    meant = (
        (cast(Expr, expr.xreplace(names.exchanged)), "before and now are exchanged"),
        (cast(Expr, expr * names.t), "h is the factor alone, t is missing"),
        (cast(Expr, expr.xreplace(names.exchanged) * names.t), "t is missing, and before and now are exchanged"),
    )
    return next(([words] for other, words in meant if _holds(other, names, question)), [])


def in_names(term: RepairTerm, names: Iterable[str]) -> str:
    """The h of a repair term, in the names that a caller gives it in.

    Args:
        term: the repair term.
        names: a name for each producer, in order.

    Returns:
        Text over t, and `<name>_before` and `<name>_now` of each producer.
    """
    symbols = {term.t: Symbol("t")}
    for name, producer in zip(names, term.producers, strict=True):
        symbols |= {term.previous[producer]: Symbol(f"{name}_before"), term.current[producer]: Symbol(f"{name}_now")}
    return text(term.h.xreplace(symbols))


def _derived(question: RepairProblem, names: SuppliedNames) -> str:
    try:
        term = solve(
            question.reducer,
            question.g,
            question.producers,
            assumptions={symbol: dict(words) for symbol, words in question.assumptions},
            constants=(),
        )
    except RepairError as error:
        return f"none is derived either: step {error.step!r} fails, {error.reason}"
    return f"the derived h is {in_names(term, names.of)}"


def counterexample(model: Model, names: SuppliedNames, falls: Sequence[bool]) -> Counterexample | None:
    """A point at which h is wrong: for one term (Eq. 3), two (Eq. 4), or none; None if no point was found.

    Formal statement, over the tried points: h(f of g(r, c_k), r, r') = f of g(r', c_k).

    Args:
        model: with h, f and g.
        names: of the producers in the result.
        falls: for each producer, whether it decreases as a loop runs.
    """
    draw = Generator()

    def drawn(symbol: Symbol) -> Column:
        allowed = [x for x in _SIMPLE if _allows(symbol, x)] or [1.0]
        return Column([allowed[number] for number in draw.wholes(len(allowed), _POINTS)])

    before = {symbol: drawn(symbol) for symbol in model.previous}
    now = {symbol: drawn(symbol) for symbol in model.previous}
    terms = [{symbol: drawn(symbol) for symbol in model.inputs} for _ in range(2)]
    # Most producers increase as a loop runs, a minimum decreases: other steps are unusual.
    moved = [
        (before[s] - now[s]) if down else (now[s] - before[s]) for s, down in zip(model.previous, falls, strict=True)
    ]
    unusual = total([Column(float(step <= 0) for step in steps) for steps in moved])
    for count in (1, 2, 0):
        used = terms[:count]

        def reduced(r: Mapping[Symbol, Column], used: list[dict[Symbol, Column]] = used) -> Column:
            values = Column.full(_POINTS, float(model.reducer.identity))
            for term in used:
                values = model.reducer.folded(values, compute(model.g, {**r, **term}))
            return values

        t, expected = reduced(before), reduced(now)
        found = model.repair(t, before, now, {})
        at = _clearest(t, found, expected, unusual, exact=not used)
        if at is not None:
            return Counterexample(
                model.reducer.name,
                tuple(tuple((symbol.name, x[at]) for symbol, x in term.items()) for term in used),
                tuple((name, before[symbol][at]) for name, symbol in zip(names.of, model.previous, strict=True)),
                tuple((name, now[symbol][at]) for name, symbol in zip(names.of, model.previous, strict=True)),
                t[at],
                found[at],
                expected[at],
            )
    return None


def _clearest(t: Column, found: Column, expected: Column, unusual: Column, *, exact: bool) -> int | None:
    """The point with the simplest numbers at which two values differ visibly, else at all; None if none differ."""
    size = largest([abs(t), abs(expected), abs(found), Column.full(len(t), 1.0)])
    if exact:  # t is the identity, which may be infinite and must be kept exactly
        differ = [point for point in range(len(t)) if found[point] != expected[point]]
    else:
        agree = close(found, expected, maximum(abs(t), Column.full(len(t), 1.0)))
        differ = [
            point
            for point, inside in enumerate(map(operator.and_, expected.finite, t.finite))
            if inside and not (agree[point] and math.isfinite(found[point]))
        ]
    visible = [point for point in differ if abs(found[point] - expected[point]) > _VISIBLE * size[point]]

    def effort(point: int) -> float:
        return sum(map(_effort, (t[point], found[point], expected[point]))) + _UNUSUAL * unusual[point]

    return min(visible or differ, key=effort, default=None)


def _effort(x: float) -> float:
    """How hard a number is to follow; those near 1 are the easiest."""
    return abs(math.log(min(max(abs(x), 1e-3), 1e6))) if x == x else abs(math.log(1e-3))


def _allows(symbol: Symbol, value: float) -> bool:
    ruled_out = (
        (symbol.is_nonnegative and value < 0)
        or (symbol.is_nonpositive and value > 0)
        or (symbol.is_nonzero and value == 0)
        or (symbol.is_integer and value != round(value))
    )
    return not ruled_out
