"""Wraps nested text: brackets that do not fit on a line are opened, with one item per line.

The printers of both IRs and the emitters build a `Doc` and print its lines, so all wrap in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, assert_never

from neptune_lab.scalar_ops import ATOM, COMPARE, symbol

INDENT = "    "
WORTH_OPENING = 12  # characters between brackets: shorter ones stay closed

# A sequence tries its parts in up to three ways, and each part tries its own parts: without the cache, the time would
# be exponential in the depth.  The lists that these functions return are never changed.
_remembered = lru_cache(maxsize=1 << 14)


@dataclass(frozen=True, slots=True)
class Bracketed:
    """`head item, item tail`, such as `max(`, `a`, `b`, `)`: on one line or on several."""

    head: str
    items: tuple[Doc, ...]
    tail: str


@dataclass(frozen=True, slots=True)
class Seq:
    """Parts one after the other, with nothing between them; only brackets inside it break."""

    parts: tuple[Doc, ...]


@dataclass(frozen=True, slots=True)
class Loose:
    """`inner`, in round brackets if no break inside it makes the lines short enough."""

    inner: Doc


Doc: TypeAlias = str | Bracketed | Seq | Loose


def seq(*parts: Doc) -> Doc:
    """The parts one after the other."""
    return Seq(parts)


def call(function: str, *args: Doc) -> Doc:
    """`function(arg, ...)`."""
    return Bracketed(f"{function}(", args, ")")


@_remembered
def flat(doc: Doc) -> str:
    """`doc` on one line."""
    match doc:
        case str():
            return doc
        case Bracketed(head=head, items=items, tail=tail):
            return head + ", ".join(flat(item) for item in items) + tail
        case Seq(parts=parts):
            return "".join(flat(part) for part in parts)
        case Loose(inner=inner):
            return flat(inner)
        case _:
            assert_never(doc)


def number_text(value: float | int | bool) -> str:
    """A constant as text: `inf`, `-inf`, `True`, and the shortest decimal that reads back as the same number."""
    return str(value) if isinstance(value, bool | int) else repr(float(value))


def operation(name: str, operands: Sequence[tuple[Doc, int]], negated_number: bool = False) -> tuple[Doc, int]:
    """An operation of `scalar_ops` on printed operands with their precedences: infix with the brackets that it needs,
    or a call.

    Args:
        negated_number: the operand of a negation is a number; since -2.0 is one number, the result is -(2.0).

    >>> flat(operation("mul", [operation("add", [("a", ATOM), ("b", ATOM)]), ("c", ATOM)])[0])
    '(a + b) * c'
    """
    sign, level = symbol(name)
    if not sign:
        return call(name, *(doc for doc, _ in operands)), ATOM
    left, inner = operands[0]
    # A comparison takes no comparison as an operand without brackets: Python would chain them.
    strong = inner > level if level == COMPARE else inner >= level
    left = left if strong and not negated_number else seq("(", left, ")")
    if len(operands) == 1:
        return seq(sign, left), level
    right, inner = operands[1]
    return seq(left, f" {sign} ", right if inner > level else seq("(", right, ")")), level


def lines(doc: Doc, width: int, indent: str = "") -> list[str]:
    """`doc` in lines of at most `width` characters if its brackets allow that, each starting with `indent`.

    >>> lines(call("max", "score[i]", call("sum", "p[i]")), 16)
    ['max(', '    score[i],', '    sum(p[i]),', ')']
    """
    return [indent + line for line in _lines(doc, width - len(indent))]


@_remembered
def _lines(doc: Doc, width: int) -> list[str]:
    one = flat(doc)
    if len(one) <= width:
        return [one]
    match doc:
        case str():
            return [doc]
        case Bracketed():
            return _an_item_a_line(doc, width)
        case Seq(parts=parts):
            return _break_seq(parts, width, width)
        case Loose(inner=inner):
            out = _lines(inner, width)
            return out if _widest(out) <= width else _narrower(out, _wrapped(inner, width))
        case _:
            assert_never(doc)


def _an_item_a_line(doc: Bracketed, width: int) -> list[str]:
    if not doc.items:
        return [doc.head + doc.tail]
    out = [doc.head]
    for item in doc.items:
        out += [INDENT + line for line in _lines(item, width - len(INDENT) - 1)]
        out[-1] += ","
    return [*out, doc.tail]


def _widest(lines: list[str]) -> int:
    return max(map(len, lines))


def _narrower(bare: list[str], wrapped: list[str]) -> list[str]:
    """`wrapped` if its brackets make the lines shorter, else `bare`."""
    return wrapped if _widest(wrapped) < _widest(bare) else bare


def _wrapped(doc: Doc, width: int) -> list[str]:
    if isinstance(doc, Loose):
        return _wrapped(doc.inner, width)  # these are its brackets
    return ["(", *(INDENT + line for line in _lines(doc, width - len(INDENT))), ")"]


@_remembered
def _break_seq(parts: tuple[Doc, ...], width: int, enough: int) -> list[str]:
    # Break the longest part alone, if that makes all lines at most `enough` long; then every part; then put loose parts
    # in brackets.
    longest = max(range(len(parts)), key=lambda n: len(flat(parts[n])))
    best = _join(parts, {longest}, width)
    if _widest(best) <= enough:
        return best
    broken = {n for n, part in enumerate(parts) if not isinstance(part, str)}
    all_broken = _join(parts, broken, width)
    loose = {n for n, part in enumerate(parts) if isinstance(part, Loose)}
    if not loose or _widest(all_broken) <= enough:
        return all_broken
    return _narrower(all_broken, _join(parts, loose, width, wrap=True))


def _join(parts: tuple[Doc, ...], broken: set[int], width: int, *, wrap: bool = False) -> list[str]:
    out = [""]
    for n, part in enumerate(parts):
        inner = [flat(part)] if n not in broken else _wrapped(part, width) if wrap else _opened(part, width)
        out[-1] += inner[0]
        out += inner[1:]
    return out


@_remembered
def _opened(doc: Doc, width: int) -> list[str]:
    match doc:
        case Bracketed() if len(flat(doc)) > len(doc.head) + len(doc.tail) + WORTH_OPENING:
            return _an_item_a_line(doc, width)
        case Seq(parts=parts):
            return _break_seq(parts, width, width // 2)  # it shares its lines with what is beside it
        case Loose(inner=inner):
            return _opened(inner, width)
        case _:
            return [flat(doc)]
