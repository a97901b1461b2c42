"""Reads the caller's reducer, g, producers and assumptions into a hashable `RepairProblem`.

Text is parsed by Python's `ast` and a whitelist, never evaluated.  The symbols of a problem are the caller's own (text
makes plain `Symbol`s); `SymbolNames` replaces each by a unique internal symbol with its assumptions, so that an input
called `t`, `C` or `r'` cannot be confused with an internal one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import sympy as sp
from sympy import Dummy, Expr, Float, Integer, Max, Symbol, default_sort_key
from sympy.core.function import AppliedUndef, Function

from neptune_lab.repair.condition import check_nonnegative, free_conditions
from neptune_lab.repair.expression_text import exact, names_in, parse, refuse
from neptune_lab.repair.functions import operation_of
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import text
from neptune_lab.strict.console import class_of, shown
from neptune_lab.strict.values import items_of

WORDS = ("positive", "nonnegative", "negative", "nonpositive", "nonzero", "finite", "integer")
"""Words that an assumption may use."""


@dataclass(frozen=True, slots=True)
class RepairProblem:
    """Everything that a repair term depends on, in the caller's symbols; the key of the cache in `solve`."""

    reducer: str
    g: Expr
    producers: tuple[Symbol, ...]
    assumptions: tuple[tuple[Symbol, tuple[tuple[str, bool], ...]], ...]
    constants: tuple[Symbol, ...] | None


@dataclass(frozen=True, slots=True)
class SymbolNames:
    """The internal symbols of one derivation.

    Attributes:
        producers: previous value r of each producer, in the caller's order (also the r of g).
        current: current value r' of each producer.
        inputs: every other symbol of g, sorted by name.
        t: a value of the consuming reduction.
        C: the separated input.
        x, y: two values of the reduction.
        g: the term, over these symbols.
        pairs: caller's symbol -> internal symbol.
        opaque: a real symbol for each opaque call without r, such as f(c) or a Piecewise; each is one more input.
    """

    g: Expr
    producers: tuple[Dummy, ...]
    current: tuple[Dummy, ...]
    inputs: tuple[Dummy, ...]
    t: Dummy
    C: Dummy
    x: Dummy
    y: Dummy
    pairs: tuple[tuple[Symbol, Dummy], ...]
    opaque: tuple[tuple[Dummy, Expr], ...]


def read(
    reducer: str,
    g: Expr | str,
    producers: Iterable[str | Symbol] | str | Symbol,
    assumptions: Mapping[Any, Any] | None,
    constants: Iterable[str | Symbol] | str | Symbol | None,
) -> RepairProblem:
    """Checks the caller's arguments and puts them in a normal form; the arguments are those of `solve`.

    Raises:
        RepairError: step "read": an argument is not of its kind, or they contradict each other.

    >>> q = read("sum", "exp(c - r)", ["r"], {"r": "nonnegative"}, None)
    >>> q.g, q.producers, q.assumptions
    (exp(c - r), (r,), ((r, (('nonnegative', True),)),))
    """
    if not isinstance(reducer, str) or reducer not in REDUCERS:
        refuse(f"reducer is {shown(reducer)}", shown(reducer), f"one of {', '.join(REDUCERS)}")
    expr = parse(g) if isinstance(g, str) else _as_expression(g)
    in_text = names_in(g) if isinstance(g, str) else frozenset()

    def symbol(name: object, role: str) -> Symbol:
        return _lookup(name, role, expr)

    chosen = tuple(symbol(name, "producer") for name in _listed(producers, "producers"))
    if not chosen:
        refuse("there is no producer", str(g), "name the symbols that are results of other reductions")
    if len(set(chosen)) != len(chosen):
        refuse(f"a producer is named twice in {[str(p) for p in chosen]}", str(g))
    of_g = _symbols(expr) | {Symbol(name) for name in in_text}
    for producer in set(chosen) - of_g:
        _check_spelling(producer.name, expr, sorted(symbol.name for symbol in of_g - set(chosen)))
    known = of_g | set(chosen)
    facts = []
    if assumptions is not None and not isinstance(assumptions, Mapping):
        refuse(f"assumptions is {shown(assumptions)}", str(g), 'give words for each symbol: {"r": "positive"}')
    for name, words in (assumptions or {}).items():
        about = symbol(name, "assumption")
        if about not in known:
            refuse(
                f"an assumption is about {about}, which g does not have",
                str(expr),
                f"g has {', '.join(sorted(map(str, known)))}",
            )
        facts.append((about, _facts(about, words)))
    fixed = None
    if constants is not None:
        fixed = tuple(
            sorted({symbol(name, "constant") for name in _listed(constants, "constants")}, key=default_sort_key)
        )
        unknown = [name for name in fixed if name not in known] if isinstance(g, str) else []
        if unknown:
            refuse(
                f"g does not have the constant {unknown[0]}", str(expr), f"g has {', '.join(sorted(map(str, known)))}"
            )
        both = set(fixed) & set(chosen)
        if both:
            refuse(f"{', '.join(map(str, both))} is both a producer and a constant", str(expr))
    return RepairProblem(reducer, expr, chosen, tuple(sorted(facts, key=lambda fact: default_sort_key(fact[0]))), fixed)


def _check_spelling(name: str, expr: Expr, others: list[str]) -> None:
    """A producer that g does not have may need no repair; one whose name is almost that of an input is misspelled."""
    near = difflib.get_close_matches(name, others, n=1)
    if near:
        refuse(f"g does not have the producer {name}", text(expr), f"did you mean {near[0]}? g has {', '.join(others)}")


def _listed(names: Iterable[str | Symbol] | str | Symbol, role: str) -> tuple[str | Symbol, ...]:
    found = (names,) if isinstance(names, (str, Symbol)) else items_of(names)
    if found is None:
        refuse(f"{role} is {shown(names)}", shown(names), 'give names: "r", or ["r1", "r2"]')
    return found


def _symbols(expr: Expr) -> set[Symbol]:
    return cast("set[Symbol]", expr.free_symbols)


def _lookup(name: object, role: str, expr: Expr) -> Symbol:
    if isinstance(name, Symbol):
        return name
    if not isinstance(name, str):
        refuse(f"a {role} is {shown(name)}", str(expr), "give a name or a SymPy symbol")
    if not name.isidentifier():
        refuse(f"a {role} is {shown(name)}, which is no name", str(expr), 'separate names: ["r1", "r2"]')
    named = [symbol for symbol in _symbols(expr) if symbol.name == name]
    if len(named) > 1:
        refuse(
            f"g has {len(named)} different symbols called {name}", str(expr), f"give the {role} as the symbol itself"
        )
    return named[0] if named else Symbol(name)


def _as_expression(g: object) -> Expr:
    if isinstance(g, (int, float)) and not isinstance(g, bool):
        g = Integer(g) if isinstance(g, int) else exact(g, str(g))
    if not isinstance(g, Expr):
        refuse(f"g is {class_of(g)}", shown(g), "give a SymPy expression or text")
    if any(not isinstance(symbol, Symbol) for symbol in g.free_symbols):
        refuse("g holds something that is not a scalar symbol", str(g), "replace each tensor access by a symbol")
    for symbol in _symbols(g):
        if symbol.is_real is False:
            refuse(f"{symbol} is declared not to be real", str(g), "repair terms are over real numbers")
    for called in g.atoms(AppliedUndef):
        if not str(called.func).isidentifier():
            refuse(f"the function {called.func!s} has no plain name", str(g))
    if _outside_branches(g).has(sp.nan, sp.zoo, sp.oo, -sp.oo, sp.I):
        refuse("g holds a value that is not a finite real number", str(g))
    return cast(Expr, g.xreplace({number: exact(float(number), str(g)) for number in g.atoms(Float)}))


def _outside_branches(g: Expr) -> Expr:
    """g without the infinities in branches of a `Piecewise`: a masked score of -oo is allowed."""
    masked = {node: node.replace(lambda e: e in (sp.oo, -sp.oo), lambda _: sp.S.Zero) for node in g.atoms(sp.Piecewise)}
    return cast(Expr, g.xreplace(masked))


def _facts(symbol: Symbol, words: object) -> tuple[tuple[str, bool], ...]:
    if isinstance(words, str):
        facts: dict[Any, Any] = {words: True}
    elif isinstance(words, Mapping):
        facts = dict(words)
    elif isinstance(words, Iterable):
        facts = dict.fromkeys(words, True)
    else:
        refuse(f"the assumption about {symbol} is {shown(words)}", str(symbol), f"words among {', '.join(WORDS)}")
    for word, value in facts.items():
        if not isinstance(word, str) or word not in WORDS:
            refuse(f"{shown(word)} is not an assumption ({symbol})", str(symbol), f"one of {', '.join(WORDS)}")
        if not isinstance(value, bool):
            refuse(f"{word} of {symbol} is {shown(value)}", str(symbol), "True or False")
    return tuple(sorted(facts.items()))


def name_symbols(question: RepairProblem) -> SymbolNames:
    """Gives every symbol of a problem a unique internal symbol, which is real and has the assumptions.

    >>> names = name_symbols(read("sum", "exp(t - r)", ["r"], None, None))
    >>> [s.name for s in (*names.inputs, names.t, *names.producers, *names.current)]
    ['t', 't_1', 'r', "r'"]
    """
    facts = {symbol: dict(words) for symbol, words in question.assumptions}
    others = sorted(_symbols(question.g) - set(question.producers), key=default_sort_key)
    taken: set[str] = set()
    pairs: dict[Symbol, Dummy] = {}
    for symbol in (*question.producers, *others):
        pairs[symbol] = _real(_fresh(symbol.name, taken), symbol, facts.get(symbol, {}))
    current = tuple(
        _real(_fresh(pairs[symbol].name + "'", taken), symbol, facts.get(symbol, {})) for symbol in question.producers
    )
    t, c, x, y = (Dummy(_fresh(name, taken), real=True) for name in ("t", "C", "x", "y"))
    try:
        g = cast(Expr, question.g.xreplace(pairs))
    except ValueError as error:  # max and min refuse to compare what is not real
        refuse(f"g = {text(question.g)} is not real: {error}", text(question.g), "say less, or more, of its symbols")
    # Roots and conditions need the symbols' signs, which are known only now.
    g = check_nonnegative(g, [pairs[symbol] for symbol in question.producers])
    g = free_conditions(g, [pairs[symbol] for symbol in question.producers])
    opaque = _opaque(g, frozenset(pairs[symbol] for symbol in question.producers))
    return SymbolNames(
        g=cast(Expr, g.xreplace({call: symbol for symbol, call in opaque})),
        producers=tuple(pairs[symbol] for symbol in question.producers),
        current=current,
        inputs=tuple(pairs[symbol] for symbol in others),
        t=t,
        C=c,
        x=x,
        y=y,
        pairs=tuple(pairs.items()),
        opaque=opaque,
    )


# Functions of derivatives and inverses, in addition to the operations of programs.
_UNDERSTOOD = (
    *(sp.sign, sp.tan, sp.asin, sp.acos, sp.atan),
    *(sp.sinh, sp.cosh, sp.asinh, sp.acosh, sp.atanh),
)
_ARITHMETIC = (Function, Max, sp.Min, sp.Add, sp.Mul, sp.Pow, sp.Number, sp.NumberSymbol, Symbol)


def _opaque(g: Expr, producers: frozenset[Dummy]) -> tuple[tuple[Dummy, Expr], ...]:
    """Outermost calls of functions that the algebra does not understand."""
    calls: dict[Expr, Dummy] = {}

    def look(node: sp.Basic) -> None:
        if isinstance(node, Function) and not isinstance(node, _UNDERSTOOD) and operation_of(type(node)) is None:
            if not producers.isdisjoint(cast("set[Dummy]", node.free_symbols)):
                refuse(
                    f"{node.func} is applied to a producer, and nothing is known of {node.func}",
                    text(node),
                    "functions of inputs alone may be anything; a producer needs exp, log, sqrt and the like",
                )
            calls.setdefault(node, Dummy(text(node), real=True))
            return
        if not isinstance(node, _ARITHMETIC):
            refuse(f"g holds {class_of(node)}", text(node), "give arithmetic and known functions of scalars")
        for arg in node.args:
            look(arg)

    look(g)
    return tuple((symbol, call) for call, symbol in calls.items())


def assumed(question: RepairProblem, internal: Mapping[Symbol, Symbol]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The assumptions of a problem as words, by the names of its internal symbols."""
    return tuple(
        (internal[symbol].name, tuple(word if value else f"not {word}" for word, value in words))
        for symbol, words in question.assumptions
        if symbol in internal
    )


def declared_finite(question: RepairProblem, internal: Mapping[Symbol, Symbol]) -> list[Symbol]:
    """The internal symbols that the caller declared to be finite."""
    return [
        internal[symbol] for symbol, words in question.assumptions if ("finite", True) in words and symbol in internal
    ]


def _fresh(name: str, taken: set[str]) -> str:
    name = re.sub(r"[^\w']", "_", name) or "_"
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _real(name: str, symbol: Symbol, facts: Mapping[str, bool]) -> Dummy:
    own = {word: getattr(symbol, f"is_{word}") for word in WORDS}
    both = {word: value for word, value in own.items() if value is not None} | dict(facts)
    try:
        return Dummy(name, real=True, **both)
    except ValueError:
        said = ", ".join(word if value else f"not {word}" for word, value in sorted(both.items()))
        refuse(f"the assumptions about {symbol} contradict each other: {said}", str(symbol))
