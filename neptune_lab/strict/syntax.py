"""Expressions in Python's notation, as trees with source positions; the readers of each IR give them meaning.

Operators, from the loosest to the strongest: `or`; `and`; `not`; comparisons, which do not chain; `+ -`; `* / // %`;
a sign. A number with a minus directly before it is one negative number: `-(2.0)` is the negation of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from neptune_lab.errors import TextError
from neptune_lab.scalar_ops import COMPARE, NEGATE, NOT, rows
from neptune_lab.strict.tokens import Statement, Token, number, refusal

# Nesting levels of operators and brackets; the compiler prints about a dozen.
MOST_LEVELS = 100

_BINARY = {row.symbol: row.level for row in rows("htile") if row.arity == 2 and row.symbol}
_CONSTANTS = {"inf": math.inf, "nan": math.nan}


@dataclass(frozen=True, slots=True)
class Number:
    """A number, its minus sign included; `inf` and `nan` are numbers."""

    value: int | float
    at: Token


@dataclass(frozen=True, slots=True)
class Word:
    """A name; `quoted`: it was in backquotes, so it is not a word of the language."""

    name: str
    quoted: bool
    at: Token


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arg, ..., name=arg)`."""

    function: str
    args: tuple[Syntax, ...]
    named: Mapping[str, Syntax]
    at: Token


@dataclass(frozen=True, slots=True)
class Range:
    """`start:stop` or `start:stop:axis` between square brackets."""

    start: Syntax
    stop: Syntax
    axis: str | None
    at: Token


@dataclass(frozen=True, slots=True)
class Item:
    """`name[part, ...]`."""

    name: Word
    parts: tuple[Syntax | Range, ...]
    at: Token


@dataclass(frozen=True, slots=True)
class Unary:
    """`-arg` or `not arg`."""

    op: str
    arg: Syntax
    at: Token


@dataclass(frozen=True, slots=True)
class Binary:
    """`a op b`; `at` is the operator."""

    op: str
    a: Syntax
    b: Syntax
    at: Token


@dataclass(frozen=True, slots=True)
class Group:
    """`(item, ...)`, with at least one comma, or nothing in it."""

    items: tuple[Syntax, ...]
    at: Token


Syntax: TypeAlias = Number | Word | Call | Item | Unary | Binary | Group


class Reader:
    """Reads one statement from left to right."""

    def __init__(self, statement: Statement) -> None:
        self._tokens = statement.tokens
        self._next = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """The next token, which is passed; the end stays."""
        token = self.token
        if token.kind != "end":
            self._next += 1
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these signs or words."""
        return self.token.kind in ("sign", "word") and self.token.text in texts

    def accept(self, text: str) -> bool:
        """Passes the sign or word, if it is next."""
        if self.at(text):
            self._next += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Passes a sign or word, which must be next."""
        if not self.at(text):
            raise refusal(self.token, repr(text))
        return self.take()

    def name(self, what: str) -> str:
        """A name, in backquotes or not."""
        if self.token.kind not in ("word", "quoted"):
            raise refusal(self.token, f"the name of {what}")
        return self.take().text

    def names(self, what: str) -> tuple[str, ...]:
        """Names with commas between them, up to what is neither."""
        read: list[str] = []
        while self.token.kind in ("word", "quoted"):
            read.append(self.name(what))
            if not self.accept(","):
                break
        return tuple(read)

    def integer(self, what: str) -> int:
        """An integer, 0 or above."""
        value = number(self.token) if self.token.kind == "number" else None
        if not isinstance(value, int):
            raise refusal(self.token, f"{what}, an integer")
        self.take()
        return value

    def program(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """`program NAME(INPUT, ...) -> OUTPUT, ...`, the whole statement: name, inputs, outputs."""
        self.expect("program")
        name = self.name("the program")
        self.expect("(")
        inputs = self.names("an input")
        self.expect(")")
        self.expect("->")
        outputs = self.names("an output")
        self.end()
        return name, inputs, outputs

    def label(self) -> Token | None:
        """The label, if one is next."""
        return self.take() if self.token.kind == "label" else None

    def comment(self) -> str:
        """The comment's text, if one is next; else nothing."""
        return self.take().text if self.token.kind == "comment" else ""

    def end(self) -> None:
        """Passes a comment, after which the statement must end."""
        self.comment()
        if self.token.kind != "end":
            raise refusal(self.token, "the end of the line")

    def expression(self) -> Syntax:
        """An expression.

        Raises:
            TextError: no expression, or one of more than `MOST_LEVELS` levels.
        """
        return self._expression(1, 0)[0]

    def _expression(self, least: int, around: int) -> tuple[Syntax, int]:
        """An expression whose operators bind at least as strongly as `least`, and the number of its levels."""
        left, levels = self._operand(around)
        while (level := self._operator()) >= least:
            op = self.take()
            right, more = self._expression(level + 1, around)
            levels = self._within(op, max(levels, more), around)
            left = Binary(op.text, left, right, op)
            if level == COMPARE and self._operator() == COMPARE:
                raise refusal(self.token, "no further comparison", "put brackets around one of the two")
        return left, levels

    def _operator(self) -> int:
        return _BINARY.get(self.token.text, 0) if self.token.kind in ("sign", "word") else 0

    def _within(self, token: Token, levels: int, around: int) -> int:
        if levels + around >= MOST_LEVELS:
            raise TextError(
                f"the expression has more than {MOST_LEVELS} levels of operators and brackets",
                line=token.line, column=token.column, help="store a part of it in a tensor of its own",
            )  # fmt: skip
        return levels + 1

    def _operand(self, around: int) -> tuple[Syntax, int]:
        token = self.take()
        self._within(token, 0, around)
        around += 1
        if token.kind == "number":
            return Number(number(token), token), 1
        if token.kind == "word" and token.text in _CONSTANTS:
            return Number(_CONSTANTS[token.text], token), 1
        if token.kind == "quoted" or (token.kind == "word" and token.text not in ("not", *_BINARY)):
            return self._named(Word(token.text, token.kind == "quoted", token), around)
        match token.text if token.kind in ("sign", "word") else "":
            case "-" if self.token.kind == "number":
                return Number(-number(self.take()), token), 1
            case "-" if self.at("inf"):
                return Number(-_CONSTANTS[self.take().text], token), 1
            case "-" | "not" as op:
                arg, levels = self._expression(NEGATE if op == "-" else NOT, around)
                return Unary(op, arg, token), self._within(token, levels, around - 1)
            case "(":
                return self._brackets(token, around)
        raise refusal(token, "an expression")

    def _brackets(self, token: Token, around: int) -> tuple[Syntax, int]:
        items, levels, commas = [], 0, 0
        while not self.at(")"):
            item, depth = self._expression(1, around)
            items.append(item)
            levels = max(levels, depth)
            if not self.accept(","):
                break
            commas += 1
        self.expect(")")
        if len(items) == 1 and not commas:
            return items[0], levels
        return Group(tuple(items), token), levels + 1

    def _named(self, word: Word, around: int) -> tuple[Syntax, int]:
        """A word with what follows it: an item, a call, or nothing; and how deep it nests."""
        if self.accept("["):
            parts, levels = [], 0
            while not self.at("]"):
                part, depth = self._part(around)
                parts.append(part)
                levels = max(levels, depth)
                if not self.accept(","):
                    break
            self.expect("]")
            return Item(word, tuple(parts), word.at), levels + 1
        if word.quoted or not self.accept("("):
            return word, 1
        args: list[Syntax] = []
        named: dict[str, Syntax] = {}
        levels = 0
        while not self.at(")"):
            name = self._argument_name()
            arg, depth = self._expression(1, around)
            levels = max(levels, depth)
            if name is None:
                args.append(arg)
            elif name.text in named:
                raise refusal(name, "each argument once")
            else:
                named[name.text] = arg
            if not self.accept(","):
                break
        self.expect(")")
        return Call(word.name, tuple(args), named, word.at), levels + 1

    def _argument_name(self) -> Token | None:
        after = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        if self.token.kind != "word" or after.kind != "sign" or after.text != "=":
            return None
        name = self.take()
        self.take()
        return name

    def _part(self, around: int) -> tuple[Syntax | Range, int]:
        first = self.token
        start, levels = self._expression(1, around)
        if not self.accept(":"):
            return start, levels
        stop, more = self._expression(1, around)
        axis = self.name("an axis") if self.accept(":") else None
        return Range(start, stop, axis, first), max(levels, more) + 1
