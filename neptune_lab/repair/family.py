"""Finds the finite family that a term spans as its producer's value changes: the algebra of the vector repair.

Write the term as g(u, c), with u a function of the producer's value r (most often r itself).  If g and its derivatives
in u span a space of finite dimension over constants, then g_0 = g and some more components g_1, ..., g_n satisfy

    d/du (g_0, ..., g_n) = M (g_0, ..., g_n)   with a constant matrix M,

and the value of all of them at u' is exp((u' - u) M) times their value at u.  Such terms are the exponential
polynomials in u: sums of products of powers of u, exp(k u), sin(k u) and cos(k u), with any functions of c as
coefficients.

Where M has real eigenvalues, the components are chosen one after the other as g_{k+1} = (d/du - l_k) g_k, with l_k an
eigenvalue.  So M is upper bidiagonal and its exponential upper triangular: a component is repaired by itself and by
those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import sympy as sp
from sympy import Add, Dummy, Expr, ImmutableMatrix, Mul, S, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.column import Column, rank
from neptune_lab.repair.functions import kinks
from neptune_lab.repair.numeric import compute_all
from neptune_lab.repair.points import Generator, sample
from neptune_lab.repair.render import text
from neptune_lab.repair.simplify import as_polynomial, is_zero, powsimp

LARGEST = 6
"""The most components of a family; each is one more sum in the loop."""

_MOST_TERMS = 200
_MOST_OPERATIONS = 1000
_POINTS = 48
_HELP = (
    f"the term and its derivatives in the producer must span at most {LARGEST} functions, as sums of products of "
    "powers, exponentials, sines and cosines of the producer do: c - r, (c - r)**2, w*(c - r)**3, (c - r)*exp(c - r)"
)


@dataclass(frozen=True, slots=True)
class Family:
    """Components closed under a change of the reference value u.

    Attributes:
        components: g_0 (the term itself) to g_n, over `variable` and the inputs.
        generator: M of dG/du = M G, constant.
        variable: u.
    """

    components: tuple[Expr, ...]
    generator: ImmutableMatrix
    variable: Symbol

    def moved(self, step: Expr) -> ImmutableMatrix:
        """exp(step * M): takes the components from u to u + step.

        >>> c, u, s = sp.symbols("c u s", real=True)
        >>> find_family((c - u)**2, u, [c]).moved(s)
        Matrix([
        [1, -2*s, s**2],
        [0,    1,   -s],
        [0,    0,    1]])
        """
        matrix = exponential(self.generator, step).applyfunc(_real_form)
        if matrix.has(sp.I):
            _refuse(self.components[0], "the exponential of its matrix was not brought to a real form")
        return ImmutableMatrix(matrix)


def exponential(matrix: ImmutableMatrix, step: Expr) -> sp.Matrix:
    """exp(step * matrix).  SymPy finds a Jordan form for it, which takes most of the time of a vector repair; for a
    triangular matrix with one eigenvalue l, exp(step * l) times the sum of (step * (matrix - l))**k / k! ends.

    >>> s = sp.Symbol("s", real=True)
    >>> exponential(ImmutableMatrix([[2, 1], [0, 2]]), s)
    Matrix([
    [exp(2*s), s*exp(2*s)],
    [       0,   exp(2*s)]])
    """
    size, rate = matrix.rows, matrix[0, 0]
    if not matrix.is_upper or any(matrix[k, k] != rate for k in range(size)):
        return sp.Matrix(cast(sp.Matrix, step * matrix)).exp()
    nilpotent = sp.Matrix(matrix) - rate * sp.eye(size)
    total = power = sp.eye(size)
    for k in range(1, size):
        power = cast(sp.Matrix, power * nilpotent * step / k)
        total = cast(sp.Matrix, total + power)
    return cast(sp.Matrix, total * sp.exp(cast(Expr, step * rate)))


def find_family(g: Expr, variable: Symbol, inputs: Sequence[Symbol]) -> Family:
    """The family of `g` under a change of `variable`.

    Args:
        g: the term.
        variable: u.
        inputs: the symbols c; all others are constants.

    Raises:
        RepairError: step "close": no closure was found.

    >>> c, u, eps = sp.symbols("c u eps", real=True)
    >>> find_family((c - u)*sp.exp(c - u), u, [c]).components
    ((c - u)*exp(c - u), exp(c - u))
    >>> find_family(sp.exp(c - u) + eps, u, [c]).components
    (eps + exp(c - u), 1)
    >>> find_family(sp.erf(c - u), u, [c])
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: g = erf(c - u) is in no family of at most 6 sums: none of its first 6 ...
      help: ...
    """
    for node in sorted(g.atoms(*kinks()), key=sp.default_sort_key):
        if variable in node.free_symbols:
            _refuse(g, f"{text(node)} has a kink or a step in {text(variable)}, so no derivative tells of both sides")
    moving = (variable, *inputs)
    derivatives = [g]
    for _ in range(LARGEST):
        derivatives.append(cast(Expr, sp.diff(derivatives[-1], variable)))
        if derivatives[-1].count_ops() > _MOST_OPERATIONS:
            _refuse(g, f"a derivative in {text(variable)} has more than {_MOST_OPERATIONS} operations")
    size = _rank(derivatives, moving)
    if size == 0:
        return Family((g,), ImmutableMatrix([[S.Zero]]), variable)
    rows: list[dict[Expr, Expr]] = []
    relation: tuple[Expr, ...] | None = None
    # The numerical rank may be too small for nearly dependent functions, so the algebra may need more derivatives.
    while relation is None:
        if size > LARGEST:
            _refuse(g, f"none of its first {LARGEST} derivatives in {text(variable)} is a combination of those before")
        rows += [_coordinates(derivative, moving) for derivative in derivatives[len(rows) : size + 1]]
        relation = _combination(rows[-1], rows[:-1])
        size += 1
    rates = _rates(relation)
    if rates is None:
        return _by_derivatives(derivatives[: len(relation)], relation, variable)
    return _by_rates(g, variable, moving, rates)


def _rank(derivatives: Sequence[Expr], moving: Sequence[Symbol]) -> int:
    """How many of these functions are linearly independent, by their values at random points.

    This is fast, so a term that is in no such family is refused without multiplying it out.
    """
    symbols = sorted({s for e in derivatives for s in cast("set[Symbol]", e.free_symbols)}, key=sp.default_sort_key)
    draw = Generator()
    # A constant has one value at all points.
    points = {
        symbol: sample(symbol, _POINTS, draw) if symbol in moving else sample(symbol, 1, draw)[0] for symbol in symbols
    }
    table = compute_all(derivatives, points)
    finite = [point for point, seen in enumerate(zip(*(row.finite for row in table), strict=True)) if all(seen)]
    if not finite:
        return len(derivatives)
    table = [row.at(finite) for row in table]
    scales = [max(abs(row)) for row in table]
    return rank([Column(x / scale for x in row) for row, scale in zip(table, scales, strict=True) if scale], 1e-9)


def _refuse(g: Expr, why: str) -> NoReturn:
    reason = f"g = {text(g)} is in no family of at most {LARGEST} sums: {why}"
    raise RepairError(reason, step="close", expression=text(g), help=_HELP)


def _coordinates(expr: Expr, moving: Sequence[Symbol]) -> dict[Expr, Expr]:
    """`expr` as a sum of products of the moving symbols: product -> constant coefficient."""
    exponential = cast(Expr, expr.rewrite((sp.sinh, sp.cosh, sp.tanh), sp.exp))
    terms = Add.make_args(sp.expand(powsimp(cast(Expr, sp.expand(exponential, trig=True))), trig=True))
    if len(terms) > _MOST_TERMS:
        _refuse(expr, f"it has more than {_MOST_TERMS} terms when multiplied out")
    coefficients: dict[Expr, Expr] = {}
    for term in terms:
        coefficient, product = term.as_independent(*moving, as_Add=False)
        coefficients[product] = cast(Expr, coefficients.get(product, S.Zero) + coefficient)
    return {product: coefficient for product, coefficient in coefficients.items() if coefficient != 0}


def _combination(target: dict[Expr, Expr], rows: Sequence[dict[Expr, Expr]]) -> tuple[Expr, ...] | None:
    """Constants a_k with target = sum of a_k * rows[k]; None if there are none."""
    if not rows:
        return () if not target else None
    products = list(dict.fromkeys(product for row in (*rows, target) for product in row))
    table = sp.Matrix([[row.get(product, S.Zero) for row in (*rows, target)] for product in products])
    reduced, pivots = table.rref(simplify=True)
    if len(rows) in pivots:
        return None
    values = dict.fromkeys(range(len(rows)), cast(Expr, S.Zero))
    values |= {column: cast(Expr, reduced[line, len(rows)]) for line, column in enumerate(pivots)}
    return tuple(values.values())


def _rates(relation: Sequence[Expr]) -> list[Expr] | None:
    """The eigenvalues, with multiplicity, of the relation that expresses the n-th derivative by those before it; None
    if they are not all real, or not all found."""
    rate = Dummy("rate")
    degree = len(relation)
    polynomial = cast(Expr, rate**degree - Add(*(a * rate**k for k, a in enumerate(relation))))
    roots = cast("dict[Expr, int]", sp.roots(sp.Poly(polynomial, rate)))
    if sum(roots.values()) < degree or not all(root.is_real for root in roots):
        return None
    return [root for root, times in roots.items() for _ in range(times)]


def _by_rates(g: Expr, variable: Symbol, moving: Sequence[Symbol], rates: list[Expr]) -> Family:
    """g_{k+1} = (d/du - l_k) g_k up to a constant factor, with the eigenvalue l_k that gives the shortest component."""
    components = [g]
    size = len(rates)
    generator = sp.zeros(size, size)
    for place in range(size - 1):
        slope = sp.diff(components[-1], variable)
        chosen = []
        for rate in dict.fromkeys(rates):
            factor, component = _primitive(cast(Expr, slope - rate * components[-1]), moving, g)
            chosen.append((int(sp.count_ops(component)), len(text(component)), rate, factor, component))
        _, _, rate, factor, component = min(chosen, key=lambda one: one[:2])
        rates.remove(rate)
        generator[place, place] = rate
        generator[place, place + 1] = factor
        components.append(component)
    generator[size - 1, size - 1] = rates[0]
    return Family(tuple(components), ImmutableMatrix(generator), variable)


def _by_derivatives(derivatives: Sequence[Expr], relation: Sequence[Expr], variable: Symbol) -> Family:
    """The derivatives as components: M shifts, and its last row is the relation."""
    size = len(derivatives)
    generator = sp.zeros(size, size)
    for place in range(size - 1):
        generator[place, place + 1] = S.One
    for place, value in enumerate(relation):
        generator[size - 1, place] = value
    return Family(tuple(derivatives), ImmutableMatrix(generator), variable)


def _primitive(expr: Expr, moving: Sequence[Symbol], g: Expr) -> tuple[Expr, Expr]:
    """(factor, component) with expr = factor * component, a constant factor, and sums in the form that `g` has."""
    sums = g.atoms(Add)
    candidates = []
    for form in _forms(expr):
        factor, rest = cast("tuple[Expr, Expr]", form.as_independent(*moving, as_Add=False))
        parts = []
        for part in Mul.make_args(rest):
            base, power = part.as_base_exp()
            for own in sums if isinstance(base, Add) else ():
                ratio = as_polynomial(sp.cancel, cast(Expr, base / own))
                if not ratio.free_symbols & set(moving):
                    base, factor = own, cast(Expr, factor * ratio**power)
                    break
            parts.append(base**power)
        component = cast(Expr, Mul(*parts))
        candidates.append((int(sp.count_ops(component)), len(text(component)), factor, component))
    _, _, factor, component = min(candidates, key=lambda one: one[:2])
    return factor, component


def _forms(expr: Expr) -> Iterator[Expr]:
    for form in (expr, sp.expand(expr)):
        for factored in (form, as_polynomial(sp.factor, form), sp.factor_terms(form)):
            yield cast(Expr, factored)
            # One exponential where factoring has left a product of several.
            yield powsimp(cast(Expr, factored))


def _real_form(entry: Expr) -> Expr:
    return cast(Expr, sp.expand(entry, complex=False) if not entry.has(sp.I) else sp.simplify(entry.rewrite(sp.cos)))


def verify(family: Family) -> bool:
    """Whether dG/du = M G, proved component by component.

    >>> c, u = sp.symbols("c u", real=True)
    >>> verify(find_family(sp.sin(c - u), u, [c]))
    True
    """
    whole = family.generator * sp.Matrix(family.components)
    slopes = (sp.diff(component, family.variable) for component in family.components)
    return all(is_zero(cast(Expr, slope - whole[k])) for k, slope in enumerate(slopes))
