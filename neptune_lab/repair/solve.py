"""The driver: (f, g) to h, step by step, as in Algorithm 1 (SolveRepairFunc and ValidateHCommutative)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sympy import Dummy, Expr, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.change_of_variables import Separation, change_variables
from neptune_lab.repair.check import Model, check
from neptune_lab.repair.derive import Derivation, derive
from neptune_lab.repair.domain import Domain
from neptune_lab.repair.guard import find_guards, initial_values, zeros
from neptune_lab.repair.invert import Inverse, invert
from neptune_lab.repair.limit import limited
from neptune_lab.repair.prove import Proof, check_real, prove_distributes, prove_replaces, sign_words
from neptune_lab.repair.read import RepairProblem, SymbolNames, name_symbols, read
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import Step, text
from neptune_lab.repair.term import RepairTerm, Unproved, read_step


def solve(
    reducer: str,
    g: Expr | str,
    producers: Iterable[str | Symbol] | str | Symbol,
    *,
    assumptions: Mapping[Any, Any] | None = None,
    constants: Iterable[str | Symbol] | str | Symbol | None = None,
) -> RepairTerm:
    """Derives and proves the repair term h of a reduction with reducer f and term g(r, c) (paper, 4.1 and 4.2).

    Args:
        reducer: f, one of "sum", "max", "min", "prod", "any", "all".
        g: the term, a SymPy expression or text such as "exp(c - r)".
        producers: the symbols that are results r of other reductions; every other symbol is an input c.
        assumptions: symbol -> words among positive, nonnegative, negative, nonpositive, nonzero, finite, integer
            (or a mapping of words to booleans).  All symbols are real.
        constants: symbols with one value for the whole reduction, such as eps; h may read them.  None: an input that
            cannot be separated from r is treated as one, if something is assumed about it (`RepairTerm.constants`
            says which).  A program should state them, or pass ().

    Returns:
        h with its derivation, proofs, checks and guards.

    Raises:
        RepairError: there is no h, or none was proved; `step` is the step that failed. "time": it took more than 10 s
            of processor time, or the limit of `repair.time_limit`.

    >>> print(text(solve("sum", "exp(c - r)", ["r"]).h))
    t*exp(r - r')
    >>> print(text(solve("sum", "exp(c1 - r1)/r2", ["r1", "r2"]).h))
    t*r2*exp(r1 - r1')/r2'
    >>> solve("sum", "c - r", ["r"])
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: h(t, r, r') = t + r - r' is not additive: ...
    """
    return limited(lambda: _solve(read(reducer, g, producers, assumptions, constants)), g)


@dataclass(frozen=True, slots=True)
class Posed:
    """A question on its way to an answer: its symbols, g0 over the `domain` so far, and t with the sign of a term."""

    question: RepairProblem
    names: SymbolNames
    domain: Domain
    parted: Separation
    t: Symbol

    @property
    def g0(self) -> Expr:
        return self.domain.narrow(self.parted.g0)

    @property
    def wide(self) -> dict[Symbol, Symbol]:
        """The symbols of the proofs -> those of the question."""
        return self.domain.wide | {self.t: self.names.t}

    def model(self, derivation: Derivation, *, proved: bool = True) -> Model:
        """What the numbers need, over the question's own symbols."""
        parted = self.parted.replace(self.wide)
        return Model(
            reducer=REDUCERS[self.question.reducer],
            g=self.names.g,
            g0=parted.g0,
            g_c=parted.g_c,
            variable=parted.variable,
            h=derivation.replace(self.wide).h,
            t=self.names.t,
            previous=self.names.producers,
            current=self.names.current,
            inputs=parted.inputs,
            constants=parted.constants,
            proved=proved,
        )


@lru_cache(maxsize=512)
def _solve(question: RepairProblem) -> RepairTerm:
    done: list[Step] = []
    try:
        return _solved(question, done)
    except RepairError as error:
        error.passed = tuple(done)
        raise


def _solved(question: RepairProblem, done: list[Step]) -> RepairTerm:
    """The answer; `done` takes each step over the question's own symbols, so that a refusal shows how far it came."""
    names = name_symbols(question)
    done.append(read_step(question.reducer, _assumed(question, dict(names.pairs))))
    posed = pose(question)
    separation = _shown_separation(posed)
    done.append(Step(separation.title, separation.lines))
    # Invert, derive: one h for each real branch of the inverse.
    inverse = invert(posed.g0, posed.parted.variable, posed.t)
    done.append(Step(inverse.title, inverse.replace(posed.wide).lines))
    branches = [derive(posed.g0, posed.parted.variable, root, posed.t, posed.domain.moves) for root in inverse.branches]
    for n, branch in enumerate(branches):
        title = branch.title.replace(":", " on the other branch:", 1) if n else branch.title
        done.append(Step(title, branch.replace(posed.wide).lines))
    # Prove both equations on the narrowed domain; the points left out get guards.
    derivation, proofs = prove(posed, branches)
    done += [proof.replace(posed.wide).shown for proof in proofs]
    # Back to the question's own symbols, then numbers and guards, which owe nothing to the narrowing.
    return answer(posed, derivation, proofs, check(posed.model(derivation)), inverse=inverse)


def _shown_separation(posed: Posed) -> Separation:
    """Over the question's own symbols, with the calls that were not looked into."""
    return posed.parted.replace(posed.wide).with_calls(dict(posed.names.opaque), posed.names.inputs)


def pose(question: RepairProblem) -> Posed:
    """The question in symbols of its own, and its term separated.

    Raises:
        RepairError: step "read", "separate" or "prove Eq. 3".
    """
    names = name_symbols(question)
    internal = dict(names.pairs)
    constants = None if question.constants is None else [internal[s] for s in question.constants if s in internal]
    domain = Domain(names.producers, names.current)
    domain.exclude(zeros(names.g, names.producers, (*names.inputs, *(symbol for symbol, _ in names.opaque))))
    check_real(domain.narrow(names.g), domain.previous, (*names.inputs, *(symbol for symbol, _ in names.opaque)))
    parted = change_variables(
        domain.narrow(names.g), domain.previous, reducer=question.reducer, constants=constants, variable=names.C
    )
    domain.exclude(zeros(parted.g0, domain.previous, [parted.variable]))
    g0 = domain.narrow(parted.g0)
    check_real(g0, domain.previous, (parted.variable,))
    return Posed(question, names, domain, parted, Dummy(names.t.name, real=True, **sign_words(g0)))


def answer(
    posed: Posed,
    derivation: Derivation,
    proofs: tuple[Proof, ...],
    checks: tuple[str, ...],
    *,
    inverse: Inverse | None = None,
    unproved: Unproved | None = None,
) -> RepairTerm:
    """The repair term of an h with its guards.

    Args:
        inverse: what h was derived from; None where it was given.
        unproved: why a given h is not proved.
    """
    question, names, domain = posed.question, posed.names, posed.domain
    internal, model = dict(names.pairs), posed.model(derivation, proved=unproved is None)
    guards, regular = find_guards(model, domain.points, _declared_finite(question, internal))
    return RepairTerm(
        reducer=question.reducer,
        t=names.t,
        separation=_shown_separation(posed),
        inverse=None if inverse is None else inverse.replace(posed.wide),
        derivation=derivation.replace(posed.wide),
        proofs=tuple(proof.replace(posed.wide) for proof in proofs),
        guards=guards,
        checks=checks,
        pairs=names.pairs,
        assumptions=_assumed(question, internal),
        regular=regular,
        starts=initial_values(model, regular),
        unproved=unproved,
    )


def prove(posed: Posed, branches: list[Derivation]) -> tuple[Derivation, tuple[Proof, ...]]:
    """Both proofs, for the first branch of the inverse that has them.

    Eq. 4 goes first: it is quick to fail, and where the inverse has a wrong branch, which fails Eq. 3 whatever h is,
    it says more.
    """
    domain, parted = posed.domain, posed.parted
    failures: list[RepairError] = []
    for branch in branches:
        domain.exclude(zeros(branch.h, (*branch.previous, *branch.current), [branch.t]))
        narrow = branch.replace(domain.narrowing)
        g0 = posed.g0
        try:
            check_real(narrow.h, (*domain.previous, *domain.current), (parted.variable, narrow.t))
            fourth = prove_distributes(posed.question.reducer, narrow, sign_words(g0))
            third = prove_replaces(g0, parted.variable, narrow, domain.caveats)
        except RepairError as error:
            failures.append(error)
            continue
        return narrow, (third, fourth)
    raise _neither(parted, failures) if len(failures) > 1 else failures[0]


def _neither(parted: Separation, failures: list[RepairError]) -> RepairError:
    told = next((error for error in failures if error.step == "prove Eq. 4"), failures[0])
    return RepairError(
        f"t = {text(parted.g0)} has two solutions for {text(parted.variable)}, and neither gives a repair term; "
        f"on one of them {told.reason}",
        step=told.step,
        expression=told.expression,
        help=told.help,
    )


def _declared_finite(question: RepairProblem, internal: Mapping[Symbol, Symbol]) -> list[Symbol]:
    return [
        internal[symbol] for symbol, words in question.assumptions if ("finite", True) in words and symbol in internal
    ]


def _assumed(question: RepairProblem, internal: Mapping[Symbol, Symbol]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        (internal[symbol].name, tuple(word if value else f"not {word}" for word, value in words))
        for symbol, words in question.assumptions
        if symbol in internal
    )
