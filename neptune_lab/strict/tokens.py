"""Splits the text of programs into statements and tokens with source positions, within limits.

A statement is one line, or several while brackets are open. Nothing is looked up or run: the reader of each language
decides what a word means.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from neptune_lab.errors import TextError
from neptune_lab.strict.console import shown

# The longest programs of tiles have some ten thousand characters.
MOST_CHARACTERS = 1 << 20
# Python converts longer numbers in quadratic time.
MOST_DIGITS = 400
# The greatest of uint64; a minus is no part of the number.
MOST_INTEGER = (1 << 64) - 1

Kind: TypeAlias = Literal["word", "quoted", "number", "sign", "label", "comment", "end"]

_BLANKS = re.compile(r" *")
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LABEL = re.compile(rf'@(?:[^\s"=]+|{_STRING.pattern})(?:=(?:[^\s"=]+|{_STRING.pattern}))?')
_SIGNS = re.compile(r"->|\+=|//|<=|>=|==|!=|[-+*/%<>=,:()\[\]]")
_OPENING, _CLOSING = {"(": ")", "[": "]"}, {")": "(", "]": "["}

_HELP = "start from what the compiler prints: `neptune-lab compile OPERATOR --emit htile`, or --emit loops"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and where it begins; lines and columns count from 1.

    Kinds: a word (an identifier), a name in backquotes (quoted: `text` is the name), a number, a sign, a label
    (`@qk/left`), a comment (`text` without # and blanks), and the end of a statement.
    """

    kind: Kind
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the line" if self.kind == "end" else shown(self.text)


@dataclass(frozen=True, slots=True)
class Statement:
    """The tokens of one statement, its end included, and how many blanks it begins with."""

    indent: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Nested:
    """A statement and the statements of its body, which are indented further."""

    statement: Statement
    body: list[Nested]


def refusal(token: Token, expected: str, help: str = _HELP) -> TextError:
    """The error for a token in place of something else."""
    return TextError(f"found {token}, expected {expected}", line=token.line, column=token.column, help=help)


def statements(text: str) -> tuple[Statement, ...]:
    """The statements of a text, empty lines and lines of nothing but a comment left out.

    >>> [[token.text for token in s.tokens] for s in statements("x[0:4] = max(\\n    y[0:4],\\n    -inf,\\n)")]
    [['x', '[', '0', ':', '4', ']', '=', 'max', '(', 'y', '[', '0', ':', '4', ']', ',', '-', 'inf', ',', ')', '']]

    Raises:
        TextError: more text than is read, a character or number that no token has, or brackets that do not match.
    """
    if len(text) > MOST_CHARACTERS:
        raise TextError(
            f"found {len(text):,} characters, expected at most {MOST_CHARACTERS:,}", line=1, column=1, help=_HELP
        )
    complete: list[Statement] = []
    indent = 0
    tokens: list[Token] = []
    opened: list[Token] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        position = _blanks(line, 0)
        if not tokens:
            indent = position
        while position < len(line):
            token, position = _token(line, position, number, in_brackets=bool(opened))
            if token is not None:
                tokens.append(token)
                _match(token, opened)
            position = _blanks(line, position)
        if not opened and tokens:
            if any(token.kind != "comment" for token in tokens):
                complete.append(Statement(indent, (*tokens, Token("end", "", number, len(line) + 1))))
            tokens = []
    if opened:
        last = opened[-1]
        raise TextError(
            f"{last} is never closed, expected {_OPENING[last.text]!r}",
            line=last.line, column=last.column, help="close each bracket that is opened",
        )  # fmt: skip
    return tuple(complete)


def nested(flat: tuple[Statement, ...], most: int) -> list[Nested]:
    """The statements by their indentation.

    Raises:
        TextError: a body is not aligned, or there are more than `most` levels.
    """
    top: list[Nested] = []
    bodies = [(-1, top)]
    for statement in flat:
        while statement.indent <= bodies[-1][0]:
            bodies.pop()
        body = bodies[-1][1]
        first = statement.tokens[0]
        if body and body[0].statement.indent != statement.indent:
            raise refusal(first, f"it indented by {body[0].statement.indent} blanks", "align a body")
        if len(bodies) > most:
            raise refusal(first, f"at most {most} levels of statements", "make one loop of several")
        body.append(Nested(statement, []))
        bodies.append((statement.indent, body[-1].body))
    return top


def _blanks(line: str, position: int) -> int:
    blanks = _BLANKS.match(line, position)
    assert blanks is not None
    return blanks.end()


def _token(line: str, position: int, number: int, *, in_brackets: bool) -> tuple[Token | None, int]:
    """The token at `position` and where it ends; None for a comment inside brackets."""
    column, first = position + 1, line[position]
    if first == "#":
        text = line[position + 1 :].strip()
        return (None if in_brackets else Token("comment", text, number, column)), len(line)
    if first == "`":
        end = line.find("`", position + 1)
        name = line[position + 1 : end] if end > 0 else ""
        if not name.isidentifier():
            raise TextError(
                f"found {shown(name)} in backquotes, expected a name", line=number, column=column, help=_HELP
            )
        return Token("quoted", name, number, column), end + 1
    if first == "@" and not in_brackets and (label := _LABEL.match(line, position)) is not None:
        return Token("label", label[0], number, column), label.end()
    if (amount := _NUMBER.match(line, position)) is not None:
        end = amount.end()
        if end < len(line) and ("a" + line[end]).isidentifier():
            raise TextError(
                f"found {shown(line[position : end + 1])}, expected a number or a name",
                line=number, column=column, help="a name begins with a letter or an underscore",
            )  # fmt: skip
        return Token("number", amount[0], number, column), end
    if first.isidentifier():
        end = position + 1
        while end < len(line) and ("a" + line[end]).isidentifier():
            end += 1
        return Token("word", line[position:end], number, column), end
    if (sign := _SIGNS.match(line, position)) is not None:
        return Token("sign", sign[0], number, column), sign.end()
    raise TextError(
        f"found {shown(first)}, expected a name, a number or a sign", line=number, column=column, help=_HELP
    )


def _match(token: Token, opened: list[Token]) -> None:
    """Updates the open brackets, and checks that each closing one matches."""
    if token.kind != "sign":
        return
    if token.text in _OPENING:
        opened.append(token)
    elif token.text in _CLOSING:
        if not opened or opened[-1].text != _CLOSING[token.text]:
            expected = f"{_OPENING[opened[-1].text]!r}" if opened else f"{_CLOSING[token.text]!r} before it"
            raise refusal(token, expected, "close each bracket that is opened")
        opened.pop()


def number(token: Token) -> int | float:
    """The value of a number's token: a float if it has a point or an exponent.

    Raises:
        TextError: an integer of more than 64 bits, a float beyond float64's range, or too many digits.
    """
    if len(token.text) <= MOST_DIGITS:
        if token.text.isdigit():
            value = int(token.text)
            if value <= MOST_INTEGER:
                return value
        elif (amount := float(token.text)) != float("inf"):
            return amount
    raise refusal(token, f"an integer up to {MOST_INTEGER} or a float64", "write an infinity as inf")


def label_parts(token: Token) -> tuple[str, str | None]:
    """The one or two texts of a label: `@qk` has "qk", `@qk=tile:qk/a` has "qk" and "tile:qk/a".

    Raises:
        TextError: a text in quotation marks that is no JSON string of printable characters.
    """
    parts: list[str] = []
    rest = token.text[1:]
    while rest:
        quoted = _STRING.match(rest)
        if quoted is None:
            part, _, rest = rest.partition("=")
        else:
            try:
                part, rest = json.loads(quoted[0]), rest[quoted.end() + 1 :]
            except ValueError as error:
                raise refusal(token, "a JSON string", 'such as @"a name"') from error
        if not part.isprintable():
            raise refusal(token, "printable characters", "leave the label out, and the statement is named anew")
        parts.append(part)
    return parts[0], parts[1] if len(parts) > 1 else None


def label_text(*parts: str) -> str:
    """What `label_parts` reads back.

    >>> label_text("qk", "a b")
    '@qk="a b"'
    """
    return "@" + "=".join(part if re.fullmatch(r'[^\s"=]+', part) else json.dumps(part) for part in parts)
