"""Vector repair: if g cannot be repaired alone, carry the finite family of sums that contains it.

The paper's repair (section 4.2, Eqs. 3 to 5) needs g to be invertible in c and h to be additive, so it refuses c - r
and (c - r)**2 under a sum, and with them a mean and a variance in one pass.  But the sum of c - r moves with r if the
number of terms is known, and the sum of (c - r)**2 moves with r if the sum of c - r and that number are.  Here the
repair term is a matrix:

    T = sum over c of G(r, c),    G = (g_0, ..., g_n),    g_0 = g,
    T' = A(r, r') T               since G(r', c) = A(r, r') G(r, c) for every c, and a sum is linear.

A(r, r') = exp((u(r') - u(r)) M), where dG/du = M G (`family.py`).  It depends on r and r' alone, A(r, r) = 1, and
A(r', r'') A(r, r') = A(r, r''): the sums may be taken about *any* sequence of reference values, as long as the last
one is the producer's final value.

The class that is covered: the reducer is sum, there is one producer, and g is an exponential polynomial in u(r) with
any real functions of c as coefficients.  u is r itself, or the only way in which g reads r (such as sqrt(r + eps)), or
log(r) for r >= 0, which takes in sums of powers of r (Euler's equations).  At most six sums are carried.

>>> repair = solve_vector("sum", "(c - r)**2", "r")
>>> [text(component) for component in repair.components]
['(c - r)**2', 'c - r', '1']
>>> text(repair.h)
"t_0 + t_1*(2*r - 2*r') + t_2*(r' - r)**2"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn, cast

import sympy as sp
from sympy import Dummy, Expr, ImmutableMatrix, S, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.domain import Domain
from neptune_lab.repair.family import Family, find_family, verify
from neptune_lab.repair.guard import zeros
from neptune_lab.repair.limit import limited
from neptune_lab.repair.prove import Proof, check_real
from neptune_lab.repair.read import RepairProblem, SymbolNames, assumed, declared_finite, name_symbols, read
from neptune_lab.repair.render import Line, equation, text
from neptune_lab.repair.simplify import is_zero, nicest, powsimp
from neptune_lab.repair.vector_check import VectorModel, check_vector, find_vector_guards
from neptune_lab.repair.vector_term import VectorRepair


def solve_vector(
    reducer: str,
    g: Expr | str,
    producer: str | Symbol | Iterable[str | Symbol],
    *,
    assumptions: Mapping[Any, Any] | None = None,
    constants: Iterable[str | Symbol] | str | Symbol = (),
) -> VectorRepair:
    """Derives and proves the vector repair of a sum of g(r, c) (the module's docstring has the theory and its limits).

    Args:
        reducer: f; only "sum" has vector repairs.
        g: the term, a SymPy expression or text such as "(c - r)**2".
        producer: the symbol that is the result r of another reduction; every other symbol is an input c.
        assumptions: as in `solve`.
        constants: symbols with one value for the whole reduction, which A may read.

    Returns:
        The family of sums and the matrix A(r, r'), with derivation and proofs.

    Raises:
        RepairError: `step` is "read" (another reducer, several producers), "close" (no finite family), "guard",
            "time", or the equation that was not proven.

    >>> solve_vector("max", "c - r", "r")
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: a vector repair carries sums, and the reducer is max
      help: ...
    """
    return limited(lambda: _solve(read(reducer, g, producer, assumptions, constants)), g)


@lru_cache(maxsize=512)
def _solve(question: RepairProblem) -> VectorRepair:
    """The vector repair of a sum, with `r` and `r_now` in the problem's own symbols.

    Raises:
        RepairError: the reducer is no sum, or the terms close under no small family.
    """
    if question.reducer != "sum":
        raise RepairError(
            f"a vector repair carries sums, and the reducer is {question.reducer}",
            step="read",
            expression=text(question.g),
            help=f"{question.reducer} is not linear, so no matrix passes through it; write the stage as a sum",
        )
    names = name_symbols(question)
    place = _only_producer(names)
    internal = dict(names.pairs)
    constants = tuple(internal[s] for s in question.constants or () if s in internal)
    inputs = (*(s for s in names.inputs if s not in constants), *(symbol for symbol, _ in names.opaque))
    domain = Domain((names.producers[place],), (names.current[place],))
    family, reference = _close(names.g, domain, inputs)
    r, r_now = domain.previous[0], domain.current[0]
    components = tuple(cast(Expr, g.xreplace({family.variable: reference})) for g in family.components)
    step = Dummy("s", real=True)
    by_step = family.moved(step)
    taken_step = {step: cast(Expr, reference.xreplace({r: r_now}) - reference)}
    matrix = ImmutableMatrix(by_step.applyfunc(lambda entry: nicest(sp.factor_terms(entry.xreplace(taken_step)))))
    proofs = _prove(family, components, matrix, r, r_now)
    # Back to the problem's own symbols and opaque calls.
    wide = domain.wide
    model = VectorModel(
        components=tuple(cast(Expr, g.xreplace(wide)) for g in components),
        matrix=ImmutableMatrix(matrix.xreplace(wide)),
        previous=cast(Symbol, wide[r]),
        current=cast(Symbol, wide[r_now]),
        inputs=inputs,
        constants=constants,
    )
    checks = check_vector(model)
    finite = names.producers[place] in declared_finite(question, internal)
    ends = [] if finite else [S.NegativeInfinity, S.Infinity]
    guards, starts = find_vector_guards(model, [*ends, *domain.points[model.previous]])
    calls = dict(names.opaque)
    taken = {symbol.name for symbol in (*names.producers, *names.inputs, *names.current)}
    return VectorRepair(
        components=tuple(cast(Expr, g.xreplace(calls)) for g in (names.g, *model.components[1:])),
        matrix=model.matrix,
        by_step=by_step,
        step=step,
        generator=family.generator,
        reference=cast(Expr, reference.xreplace(wide)),
        u=wide.get(family.variable, family.variable),
        over_u=tuple(cast(Expr, g.xreplace(wide).xreplace(calls)) for g in family.components),
        r=model.previous,
        r_now=model.current,
        t=tuple(Dummy(_free(f"t_{k}", taken), real=True) for k in range(len(components))),
        inputs=tuple(symbol.name for symbol in names.inputs if symbol not in constants),
        constant_symbols=constants,
        proofs=tuple(proof.replace(wide) for proof in proofs),
        guards=guards,
        checks=checks,
        pairs=names.pairs,
        assumptions=assumed(question, internal),
        starts=starts,
    )


def _only_producer(names: SymbolNames) -> int:
    """Position of the one producer that g depends on (0 if it depends on none)."""
    read_by_g = [n for n, symbol in enumerate(names.producers) if symbol in names.g.free_symbols]
    if len(read_by_g) > 1:
        both = ", ".join(names.producers[n].name for n in read_by_g)
        raise RepairError(
            f"g = {text(names.g)} depends on {len(read_by_g)} producers, {both}: a vector repair moves one",
            step="read",
            expression=text(names.g),
            help="fuse the stage where all producers but one are complete",
        )
    return read_by_g[0] if read_by_g else 0


def _close(g: Expr, domain: Domain, inputs: tuple[Symbol, ...]) -> tuple[Family, Expr]:
    """The smallest family of g, and the reference u(r) in which it is closed; `domain` excludes singular points of u.

    Candidates for u: the only expression through which g reads r; r; and if neither closes, log(r) for r >= 0.
    """
    domain.exclude(zeros(g, domain.previous, inputs))
    check_real(domain.narrow(g), domain.previous, inputs)
    r = domain.previous[0]
    through = _read_through(domain.narrow(g), r, inputs)
    logarithm = (cast(Expr, sp.log(r)),) if r.is_nonnegative else ()
    refusals: dict[Expr, RepairError] = {}
    for references in ((r,) if through is None else (through, r), logarithm):
        families = []
        for reference in references:
            try:
                families.append(_closed_in(g, reference, domain, inputs))
            except RepairError as error:
                refusals[reference] = error
        if families:
            return min(families, key=lambda one: len(one[0].components))
    also = " or ".join(text(reference) for reference in refusals if reference != r)
    first = refusals[r]
    reason = f"{first.reason}; nor is it as a function of {also}" if also else first.reason
    raise RepairError(reason, step=first.step, expression=first.expression, help=first.help)


def _closed_in(g: Expr, reference: Expr, domain: Domain, inputs: tuple[Symbol, ...]) -> tuple[Family, Expr]:
    """The family of g as a function of `reference`."""
    if reference == domain.previous[0]:
        return find_family(domain.narrow(g), domain.previous[0], inputs), reference
    domain.exclude(zeros(reference, domain.previous))
    reference, r = domain.narrow(reference), domain.previous[0]
    check_real(reference, (r,))
    u = Dummy("u", real=True)
    if isinstance(reference, sp.log):
        over = powsimp(cast(Expr, sp.expand(domain.narrow(g).xreplace({r: sp.exp(u)}))))
    else:
        factor, core = reference.as_independent(r, as_Add=False)
        over = domain.narrow(g).xreplace({core: u / factor})
    if r in over.free_symbols:
        raise RepairError(
            f"g is no function of {text(reference)} alone",
            step="close",
            expression=text(g),
            help=f"read {text(r)} in one form only, for example {text(reference)} everywhere",
        )
    return find_family(cast(Expr, over), u, inputs), reference


def _read_through(g: Expr, r: Symbol, inputs: tuple[Symbol, ...]) -> Expr | None:
    """The only expression of r alone, up to its sign, through which g reads r; None if it is r or there are several.

    >>> c, r = sp.symbols("c r", real=True)
    >>> _read_through((c - r/8)**2, r, (c,)), _read_through((c - r)*r**2, r, (c,))
    (r/8, None)
    """
    parts: set[Expr] = set()

    def look(expr: Expr) -> None:
        if r not in expr.free_symbols:
            return
        if not expr.free_symbols & set(inputs):
            parts.add(cast(Expr, -expr if expr.could_extract_minus_sign() else expr))
            return
        args = [cast(Expr, arg) for arg in expr.args]
        alone = [arg for arg in args if r in arg.free_symbols and not arg.free_symbols & set(inputs)]
        if isinstance(expr, (sp.Add, sp.Mul)) and alone:
            # A constant stays with what it multiplies: -r/8 in c - r/8.
            fixed = [arg for arg in args if isinstance(expr, sp.Mul) and not arg.free_symbols & {r, *inputs}]
            look(cast(Expr, expr.func(*alone, *fixed)))
            args = [arg for arg in args if arg not in alone and arg not in fixed]
        for arg in args:
            look(arg)

    look(g)
    return parts.pop() if len(parts) == 1 and r not in parts else None


def _prove(
    family: Family, components: tuple[Expr, ...], matrix: ImmutableMatrix, r: Symbol, r_now: Symbol
) -> tuple[Proof, ...]:
    """Closure; A moves the components (the counterpart of Eq. 3); A is linear (Eq. 4); A composes."""
    later = Dummy(f"{r.name}''", **r.assumptions0)
    moved = [cast(Expr, g.xreplace({r: r_now})) for g in components]
    carried = matrix * sp.Matrix(components)
    back = matrix.xreplace({r: r_now, r_now: later}) * matrix - matrix.xreplace({r_now: later})
    if not verify(family):
        _unproven(components, "dG/du = M G")
    if not all(is_zero(cast(Expr, carried[k] - g)) for k, g in enumerate(moved)):
        _unproven(components, "A(r, r') G(r, c) = G(r', c)")
    if not all(is_zero(cast(Expr, entry)) for entry in back):
        _unproven(components, "A(r', r'') A(r, r') = A(r, r'')")
    rows = [Line(f"row {k} simplifies to g_{k} at r'", equation(carried[k], g)) for k, g in enumerate(moved)]
    return (
        Proof(
            "Eq. 3",
            "A(r, r') G(r, c) = G(r', c)",
            (Line("the derivative of every component is a constant combination of the components"), *rows),
        ),
        Proof(
            "Eq. 4",
            "A(r, r') (T + S) = A(r, r') T + A(r, r') S",
            (Line("A reads r and r' alone, so A times T is linear in T, and a sum passes through it"),),
        ),
        Proof(
            "composition",
            "A(r', r'') A(r, r') = A(r, r'')",
            (Line("every entry of the difference simplifies to 0: the way from r to r'' does not matter"),),
        ),
    )


def _unproven(components: tuple[Expr, ...], what: str) -> NoReturn:
    raise RepairError(
        f"{what} was derived for g = {text(components[0])}, but not proven",
        step="prove Eq. 3",
        expression=text(components[0]),
        help="say what sign the inputs and producers have",
    )


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
