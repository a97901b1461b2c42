"""Run a rolling reduction with a repair term, as the compiler would emit it, next to the plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sympy as sp

from neptune_lab.repair import RepairTerm

UFUNC = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}

Values = Mapping[str, float]


def term_value(term: RepairTerm, r: Values, c: Values) -> float:
    """g(r, c), by SymPy's own lambdify."""
    names = (*term.producers, *term.inputs)
    internal = {symbol.name: symbol for symbol in term.symbols.values()}
    call = sp.lambdify([internal[name] for name in names], term.g, "numpy")
    with np.errstate(all="ignore"):
        return float(call(*(np.float64({**r, **c}[name]) for name in names)))


def plain(term: RepairTerm, r: Values, inputs: Sequence[Values]) -> float:
    """Every term with the producers' final values."""
    with np.errstate(all="ignore"):
        return float(UFUNC[term.reducer].reduce([term_value(term, r, c) for c in inputs]))


def rolled(
    term: RepairTerm, tags: Sequence[Values], inputs: Sequence[Values], reducers: Mapping[str, str]
) -> tuple[float, float]:
    """Roll over the tags with guards, from each producer's identity; also the largest number on the way."""
    stand_in = {(guard.producer, float(guard.point)): float(guard.stand_in) for guard in term.guards}
    previous = {}
    for name in term.producers:
        start = term.initial_stand_in(name, reducers[name])
        previous[name] = IDENTITY[reducers[name]] if start is None else float(start)
    t, size = IDENTITY[term.reducer], 0.0
    for r, c in zip(tags, inputs, strict=True):
        current = {name: stand_in.get((name, value), value) for name, value in r.items()}
        with np.errstate(all="ignore"):
            moved = term.evaluate(t, previous, current)
            t = float(UFUNC[term.reducer](moved, term_value(term, current, c)))
        size = max(size, abs(moved) if np.isfinite(moved) else 0.0, abs(t))
        previous = current
    ends = {
        guard.producer: float(guard.point)
        for guard in term.guards
        if guard.final_repair and tags[-1][guard.producer] == float(guard.point)
    }
    if ends:
        t = term.evaluate(t, previous, {**previous, **ends})
    return t, size
