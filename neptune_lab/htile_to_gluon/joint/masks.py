"""The masks in terms of pairs of a query and a key: whether the parts of two nests have one, and which pairs it hides.

A part of a nest of which the compiler has shown that a condition of the mask is true everywhere has the term without
it.  So the mask of a nest is what its parts ask for together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from neptune_lab.htile import nodes as ir

HIDDEN = ("literal", "-inf")

_OPERATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "and": np.logical_and,
        "or": np.logical_or,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
        "min": np.minimum,
        "max": np.maximum,
    }
)


@dataclass(frozen=True, slots=True)
class Definition:
    """What the parts of a nest compute.

    Args:
        conditions: those of the mask, which are all true where a pair is seen.
        masked: the term, with the same word for each part's mask; None: no part has one.
        plain: the term without the mask.
    """

    conditions: frozenset[Any]
    masked: Any
    plain: Any


def definition(terms: list[Any]) -> Definition | None:
    """What the parts of a nest compute; None if they do not compute one thing.

    >>> causal, near = ("le", "bool", ("iota", "key"), ("iota", "query")), ("lt", "bool", ("iota", "query"), "...")
    >>> parts = [("where", "float32", mask, "s", ("literal", "-inf", "float32")) for mask in (causal, near)]
    >>> definition([*parts, "s"]) == definition([("where", "float32", ("and", "bool", near, causal), *parts[0][3:])])
    True
    """
    plain = {_rewritten(term, lambda mask, shown: shown) for term in terms}
    every = [frozenset(_masks(term)) for term in terms]
    with_mask = [term for term, masks in zip(terms, every, strict=True) if masks]
    masked = {_rewritten(term, _under_a_mask) for term in with_mask}
    if len(plain) > 1 or len(masked) > 1 or any(len(masks) > 1 for masks in every):
        return None
    conditions = frozenset(condition for masks in every for mask in masks for condition in _conjuncts(mask))
    return Definition(conditions, next(iter(masked), None), next(iter(plain)))


def hides(wanted: Definition | None, squares: list[tuple[int, int]], extent: int) -> bool:
    """Whether the mask is false for all pairs of these squares, given by the number of `extent` queries and keys.

    False also if it depends on more than positions.

    >>> mask = ("le", "bool", ("iota", "key"), ("iota", "query"))
    >>> causal = definition([("where", "float32", mask, "s", ("literal", "-inf", "float32"))])
    >>> hides(causal, [(0, 1), (2, 4)], 64), hides(causal, [(0, 0)], 64), hides(definition(["s"]), [(0, 1)], 64)
    (True, False, False)
    """
    if not squares:
        return True
    if wanted is None or not wanted.conditions:
        return False
    numbers = np.asarray(squares, dtype=np.int64)
    inside = np.arange(extent)
    places = {
        "query": (numbers[:, 0, None] * extent + inside)[:, :, None],
        "key": (numbers[:, 1, None] * extent + inside)[:, None, :],
    }
    shown: Any = True
    for condition in wanted.conditions:
        value = _value(condition, places)
        if value is None:
            continue  # (whatever it is, the others may hide the pair)
        shown = np.logical_and(shown, value)
    return not np.any(shown)


def _value(term: Any, places: Mapping[str, Any]) -> Any:
    """The values of a term of positions; None if it is of something else, or of floats."""
    match term:
        case ("iota", name):
            return places[name]
        case ("literal", text, "int32" | "bool"):
            return {"True": True, "False": False}.get(text, int(text) if text.lstrip("-").isdigit() else None)
        case (str(op), "int32" | "bool", *arguments) if op in _OPERATIONS:
            values = [_value(argument, places) for argument in arguments]
            return None if any(value is None for value in values) else _OPERATIONS[op](*values)
        case _:
            return None


def zero_unless(terms: list[Any]) -> tuple[Any, ...]:
    """Conditions of positions, in one order; where one is false, what the parts of a nest compute is 0.

    Formal statement: exp(-inf) is 0, and stays 0 if it is multiplied or rounded; and a score of -inf stays that if a
    number is added, or if it is multiplied by one above 0.  A part without a condition is one where it is true.  Beside
    infinities and NaN, what is computed may be NaN in place of 0; PyTorch has 0 there.

    >>> seen = ("le", "bool", ("iota", "key"), ("iota", "query"))
    >>> score = ("where", "float32", seen, "s", ("literal", "-inf", "float32"))
    >>> zero_unless([("mul", "float32", "g", ("exp", "float32", ("sub", "float32", score, "lse")))]) == (seen,)
    True
    >>> zero_unless([("exp", "float32", ("tanh", "float32", score))])
    ()
    """
    at_zero = {"query": np.zeros(1, np.int64), "key": np.zeros(1, np.int64)}
    found = {condition for term in terms for condition in _zero(term)}
    return tuple(sorted((one for one in found if _value(one, at_zero) is not None), key=repr))


def _zero(term: Any) -> Iterator[Any]:
    """Conditions where one of which is false, a term is 0."""
    match term:
        case ("exp" | "exp2", _, exponent):
            yield from _lowest(exponent)
        case ("mul", _, *factors):
            for factor in factors:
                yield from _zero(factor)
        case ("cast", _, value):
            yield from _zero(value)
        case _:
            pass


def _lowest(term: Any) -> Iterator[Any]:
    """Conditions where one of which is false, a term is -inf."""
    match term:
        case ("where", _, mask, shown, (*hidden, _)) if tuple(hidden) == HIDDEN:
            yield from _conjuncts(mask)
            yield from _lowest(shown)
        case ("add", _, a, b):
            yield from _lowest(a)
            yield from _lowest(b)
        case ("sub", _, a, _):
            yield from _lowest(a)
        case ("mul", _, a, ("literal", str(factor), _)) if float(factor) > 0:
            yield from _lowest(a)
        case ("cast", _, value):
            yield from _lowest(value)
        case _:
            pass


def as_tile(term: Any, query: ir.TileExpr, key: ir.TileExpr) -> ir.TileExpr:
    """A condition of `zero_unless`, or a term of it, as a tile.

    Args:
        query, key: the positions of the tile's queries and keys.
    """
    match term:
        case ("iota", name):
            return {"query": query, "key": key}[name]
        case ("literal", str(text), str(dtype)):
            return ir.Literal(text == "True" if dtype == "bool" else int(text), dtype)
        case (op, dtype, *arguments):
            return ir.Elementwise(op, tuple(as_tile(argument, query, key) for argument in arguments), dtype)
        case _:
            raise AssertionError(term)


def _conjuncts(mask: Any) -> Iterator[Any]:
    match mask:
        case ("and", "bool", *conditions):
            for condition in conditions:
                yield from _conjuncts(condition)
        case _:
            yield mask


def _masks(term: Any) -> Iterator[Any]:
    """The masks in a term: the conditions without which a score is -inf."""
    match term:
        case ("where", _, mask, shown, (*hidden, _)) if tuple(hidden) == HIDDEN:
            inner = [*_masks(shown)]
            yield ("and", "bool", mask, *inner) if inner else mask
        case tuple() | frozenset():
            for part in term:
                yield from _masks(part)
        case _:
            pass


def _under_a_mask(_: Any, shown: Any) -> Any:
    """A score under a mask, or under several: one word for all of them."""
    return shown if isinstance(shown, tuple) and shown[:1] == ("shown",) else ("shown", shown)


def _rewritten(term: Any, seen: Callable[[Any, Any], Any]) -> Any:
    """A term with `seen(mask, score)` in place of scores that a mask hides."""
    match term:
        case ("where", _, mask, shown, (*hidden, _)) if tuple(hidden) == HIDDEN:
            return seen(mask, _rewritten(shown, seen))
        case tuple():
            return tuple(_rewritten(part, seen) for part in term)
        case frozenset():
            return frozenset(_rewritten(part, seen) for part in term)
        case _:
            return term


__all__ = ["Definition", "as_tile", "definition", "hides", "zero_unless"]
