"""Exercises of `02_algebra`: a repair by hand, what must be known, a term for one reducer only, a matrix at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from neptune_lab.errors import RepairError
from neptune_lab.repair import solve, solve_vector
from neptune_lab.repair.read import WORDS
from neptune_widgets.course.exercise import NotYet, exercise

Repair = Callable[[Any, Any, Any], Any]

_SEED = 402


@exercise(
    "The repair term of `v * 2**(c - 3*r)` under a sum",
    hints=(
        "What do the inputs combine to here, and how do you get it from `t = C * 2**(-3*r)`?",
        "`C = t * 2**(3*r)`. Now substitute that `C` into `C * 2**(-3*now)`.",
    ),
)
def by_hand(h: Repair) -> str:
    if not callable(h):
        raise NotYet("expected a function of three arguments, such as `lambda t, r, now: t + now`")
    rng = np.random.default_rng(_SEED)
    c, v, r, now = (rng.uniform(-2, 2, shape) for shape in ((5, 40), (5, 40), 40, 40))

    def terms(at: Any) -> Any:
        return v * 2.0 ** (c - 3 * at)

    old, new = terms(r), terms(now)

    def moved(t: Any) -> Any:
        # One number at a time, since an answer may use the functions of `math`.
        columns = np.broadcast_arrays(t, r, now)
        try:
            return np.array([float(h(*map(float, xs))) for xs in zip(*(x.ravel() for x in columns), strict=True)])
        except TypeError as error:
            raise NotYet(f"the function could not be called with three numbers, t, r and now: {error}") from error
        except (ArithmeticError, ValueError) as error:
            raise NotYet(f"the function fails at some numbers that can occur in a reduction: {error}") from error

    def same(found: Any, expected: Any) -> bool:
        return bool(np.allclose(found, expected.ravel(), rtol=1e-8, atol=1e-10))

    each, once = same(moved(old), new), same(moved(old.sum(axis=0)), new.sum(axis=0))
    if each and once:
        return "it converts a term and a sum from `r` to `now`; it equals the factor `8**(r - now)`"
    if each:
        raise NotYet("it converts each single term (Equation 3), but not their sum (Equation 4)")
    if same(moved(old), terms(2 * r - now)):
        raise NotYet("it goes the wrong way: as far from `r` as `now` is, but on the other side")
    base = moved(np.ones(40))
    if np.allclose(base, 2.0 ** (r - now)):
        raise NotYet("nearly: it would be right for `2**(c - r)`. Here `r` has a factor")
    if np.allclose(base, np.exp(r - now)) or np.allclose(base, np.exp(3 * (r - now))):
        raise NotYet("this has the base e, and the term has the base 2")
    linear = same(moved(old.sum(axis=0)), sum(moved(old[k]) for k in range(5)))
    why = "it commutes with the sum (Equation 4), but" if linear else "it does not commute with the sum, and"
    at = f"at r = {r[0]:.3g} and now = {now[0]:.3g} it takes {old[0, 0]:.3g} to {moved(old[:1])[0]:.3g}"
    raise NotYet(f"{why} a term does not become the term with the new `r`: {at}, and {new[0, 0]:.3g} is wanted")


@exercise(
    "What must be known of `r`, so that `c*(r - 2)` has a repair under a maximum",
    hints=(
        "The factor in `h` is `(r' - 2)/(r - 2)`. When is it never negative, for every `r` and `r'` that may come?",
        "Both brackets must have the same sign, whatever `r` and `r'` are. When is `r - 2` always negative?",
    ),
)
def known(words: str | Iterable[str]) -> str:
    told = [words] if isinstance(words, str) else list(words)
    unknown = [word for word in told if word not in WORDS]
    if unknown:
        raise NotYet(f"{unknown[0]!r} is not a word that the solver knows; it knows {', '.join(WORDS)}")
    try:
        term = solve("max", "c*(r - 2)", "r", assumptions={"r": told})
    except RepairError as error:
        if error.step == "read":
            raise NotYet(error.reason) from error
        tried = {
            "positive": "r = 1 and r' = 3 are both positive, and (3 - 2)/(1 - 2) is -1",
            "nonnegative": "r = 0 and r' = 3 are allowed, and (3 - 2)/(0 - 2) is negative",
            "nonzero": "r = 1 and r' = 3 are allowed, and (3 - 2)/(1 - 2) is -1",
            "integer": "r = 1 and r' = 3 are integers, and (3 - 2)/(1 - 2) is -1",
            "finite": "r = 1 and r' = 3 are finite, and (3 - 2)/(1 - 2) is -1",
        }
        example = next((tried[word] for word in told if word in tried), "nothing was told")
        raise NotYet(
            f"it is refused at the step {error.step!r} still: {error.reason}. For example, {example}"
        ) from error
    return f"then both brackets are negative, the factor is positive, and h(t, r, r') = {term.as_record()['h']}"


@exercise(
    "A term with a repair under a maximum, and none under a sum",
    hints=(
        "A sum needs `r` as a factor. A maximum only needs an `h` that grows with `t`. What grows but is no factor?",
        "Try adding `r` rather than multiplying by it; or a function that grows, such as `sinh`, around such a thing.",
    ),
)
def only_maximum(g: str) -> str:
    if not isinstance(g, str):
        raise NotYet('expected the term as text, such as "c*r"')
    found: dict[str, str] = {}
    for reducer in ("sum", "max"):
        try:
            term = solve(reducer, g, "r", assumptions={})
        except RepairError as error:
            if error.step == "read":
                raise NotYet(error.reason) from error
            found[reducer] = error.reason
            continue
        if term.previous["r"] not in term.g.free_symbols:
            raise NotYet("this term does not depend on `r`, so there is nothing to repair")
        if reducer == "max" and term.as_record()["g"] == "c - r":
            raise NotYet("that one is in the table; find another")
        if reducer == "sum":
            raise NotYet(f"under a sum it has a repair: h = {term.as_record()['h']}")
        repaired = term.as_record()["h"]
    if "max" in found:
        raise NotYet(f"under a maximum it is refused too: {found['max']}")
    return f"a sum refuses it ({found['sum']}), and a maximum repairs it by h = {repaired}"


@exercise(
    "The sum of `(c - r)**2` at another `r`",
    hints=(
        "Read the first row of the matrix: each of the three sums has its own factor.",
        "With `r = 2` and `r' = 4`, the factors are `1`, `2*(r - r')` and `(r - r')**2`.",
    ),
)
def moved_sum(value: float) -> str:
    try:
        given = float(value)
    except (TypeError, ValueError) as error:
        raise NotYet("expected one number") from error
    family = solve_vector("sum", "(c - r)**2", "r")
    row = family.transport(2.0, 4.0)[0]
    carried = np.array([10.0, 4.0, 3.0])
    right = float(row @ carried)
    likely: Mapping[float, str] = {
        10.0: "that is the old sum; the reference has changed",
        float(np.abs(row) @ carried): "one sign is wrong: the second factor holds `r - r'`, which is negative here",
        float(row[0] * carried[0] + row[2] * carried[2]): "the companion `t_1` is missing",
        float(row[0] * carried[0] + row[1] * carried[1]): "the companion `t_2`, which counts the terms, is missing",
        float(carried[0] + row[1] / 2 * carried[1] + row[2] * carried[2]): "the factor of `t_1` has a 2 in it",
        -4.0: "that is the sum of `c - r'`, so the second row of the matrix; the exercise asks for the first",
        -2.0: "that is the sum of `c - r'`, so the second row of the matrix; the exercise asks for the first",
    }
    if abs(given - right) > 1e-9:
        raise NotYet(next((why for n, why in likely.items() if abs(given - n) < 1e-9), f"{given:g} is not that sum"))
    return (
        "10 - 16 + 12 = 6. The three numbers were 5, 3 and 2: about 2, their squares are 9 + 1 + 0; about 4, 1 + 1 + 4"
    )
