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
from neptune_lab.repair.read import RepairProblem, SymbolNames, assumed, declared_finite, name_symbols, read
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
            says which).  A program should state them, or pass ().  A name that g as text does not have is refused.

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
class SeparatedProblem:
    """A separated problem: its symbols, g0 over the `domain` so far, and t with the sign of a term."""

    question: RepairProblem
    names: SymbolNames
    domain: Domain
    separation: Separation
    t: Symbol

    @property
    def g0(self) -> Expr:
        return self.domain.narrow(self.separation.g0)

    @property
    def wide(self) -> dict[Symbol, Symbol]:
        """The symbols of the proofs -> those of the problem."""
        return self.domain.wide | {self.t: self.names.t}

    def model(self, derivation: Derivation, *, proved: bool = True) -> Model:
        """The functions to evaluate, over the problem's own symbols."""
        separation = self.separation.replace(self.wide)
        return Model(
            reducer=REDUCERS[self.question.reducer],
            g=self.names.g,
            g0=separation.g0,
            g_c=separation.g_c,
            variable=separation.variable,
            h=derivation.replace(self.wide).h,
            t=self.names.t,
            previous=self.names.producers,
            current=self.names.current,
            inputs=separation.inputs,
            constants=separation.constants,
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
    """The repair term; each step is appended to `done`, so that a refusal shows the steps before it."""
    names = name_symbols(question)
    done.append(read_step(question.reducer, names.g, names.producers, assumed(question, dict(names.pairs))))
    problem = separate(question)
    separation = _shown_separation(problem)
    done.append(Step(separation.title, separation.lines))
    # Invert, derive: one h for each real branch of the inverse.
    inverse = invert(problem.g0, problem.separation.variable, problem.t)
    done.append(Step(inverse.title, inverse.replace(problem.wide).lines))
    branches = [
        derive(problem.g0, problem.separation.variable, root, problem.t, problem.domain.moves)
        for root in inverse.branches
    ]
    for n, branch in enumerate(branches):
        title = branch.title.replace(":", " on the other branch:", 1) if n else branch.title
        done.append(Step(title, branch.replace(problem.wide).lines))
    # Prove both equations on the narrowed domain; the excluded points get guards.
    derivation, proofs = prove(problem, branches)
    done += [proof.replace(problem.wide).shown for proof in proofs]
    # Back to the problem's own symbols; the numerical checks and guards do not depend on the narrowing.
    return answer(problem, derivation, proofs, check(problem.model(derivation)), inverse=inverse)


def _shown_separation(problem: SeparatedProblem) -> Separation:
    """The separation over the problem's own symbols, with opaque calls put back."""
    return problem.separation.replace(problem.wide).with_calls(dict(problem.names.opaque), problem.names.inputs)


def separate(question: RepairProblem) -> SeparatedProblem:
    """Separates the term of a problem, over internal symbols.

    Raises:
        RepairError: step "read", "separate" or "prove Eq. 3".
    """
    names = name_symbols(question)
    internal = dict(names.pairs)
    constants = None if question.constants is None else [internal[s] for s in question.constants if s in internal]
    domain = Domain(names.producers, names.current)
    domain.exclude(zeros(names.g, names.producers, (*names.inputs, *(symbol for symbol, _ in names.opaque))))
    check_real(domain.narrow(names.g), domain.previous, (*names.inputs, *(symbol for symbol, _ in names.opaque)))
    separation = change_variables(
        domain.narrow(names.g), domain.previous, reducer=question.reducer, constants=constants, variable=names.C
    )
    domain.exclude(zeros(separation.g0, domain.previous, [separation.variable]))
    g0 = domain.narrow(separation.g0)
    check_real(g0, domain.previous, (separation.variable,))
    return SeparatedProblem(question, names, domain, separation, Dummy(names.t.name, real=True, **sign_words(g0)))


def answer(
    problem: SeparatedProblem,
    derivation: Derivation,
    proofs: tuple[Proof, ...],
    checks: tuple[str, ...],
    *,
    inverse: Inverse | None = None,
    unproved: Unproved | None = None,
) -> RepairTerm:
    """The repair term of an h, with its guards.

    Args:
        problem: separated.
        derivation: h, over the symbols of the proofs.
        proofs: of Eqs. 3 and 4.
        checks: what was compared numerically.
        inverse: from which h was derived; None for a user-supplied h.
        unproved: why a user-supplied h is not proved.
    """
    question, names, domain = problem.question, problem.names, problem.domain
    internal, model = dict(names.pairs), problem.model(derivation, proved=unproved is None)
    guards, regular = find_guards(model, domain.points, declared_finite(question, internal))
    return RepairTerm(
        reducer=question.reducer,
        t=names.t,
        separation=_shown_separation(problem),
        inverse=None if inverse is None else inverse.replace(problem.wide),
        derivation=derivation.replace(problem.wide),
        proofs=tuple(proof.replace(problem.wide) for proof in proofs),
        guards=guards,
        checks=checks,
        pairs=names.pairs,
        assumptions=assumed(question, internal),
        regular=regular,
        starts=initial_values(model, regular),
        unproved=unproved,
    )


def prove(problem: SeparatedProblem, branches: list[Derivation]) -> tuple[Derivation, tuple[Proof, ...]]:
    """Both proofs, for the first branch of the inverse for which they succeed.

    Eq. 4 is proved first: it fails quickly, and its error is more helpful than that of Eq. 3, which fails on every
    wrong branch of the inverse.

    Raises:
        RepairError: no branch is proved.
    """
    domain, separation = problem.domain, problem.separation
    failures: list[RepairError] = []
    for branch in branches:
        domain.exclude(zeros(branch.h, (*branch.previous, *branch.current), [branch.t]))
        narrow = branch.replace(domain.narrowing)
        g0 = problem.g0
        try:
            check_real(narrow.h, (*domain.previous, *domain.current), (separation.variable, narrow.t))
            fourth = prove_distributes(problem.question.reducer, narrow, sign_words(g0))
            third = prove_replaces(g0, separation.variable, narrow, domain.caveats)
        except RepairError as error:
            failures.append(error)
            continue
        return narrow, (third, fourth)
    raise _neither(separation, failures) if len(failures) > 1 else failures[0]


def _neither(separation: Separation, failures: list[RepairError]) -> RepairError:
    shown = next((error for error in failures if error.step == "prove Eq. 4"), failures[0])
    return RepairError(
        f"t = {text(separation.g0)} has two solutions for {text(separation.variable)}, and neither gives a repair "
        f"term; on one of them {shown.reason}",
        step=shown.step,
        expression=shown.expression,
        help=shown.help,
    )
