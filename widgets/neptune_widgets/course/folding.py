"""Long lines of code in several: a listing in a narrow notebook should not scroll sideways."""

from __future__ import annotations

import re

_OPEN, _CLOSE = "([{", ")]}"
# An index is broken last: it is read as one name.
_INDEX = 3
_STEP = 4
# A string, or a space before an operator or after a comma: a continued line begins with its operator.
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_STATEMENT = re.compile(r".* [-+*/|&]?= |\s*(?:for|if|else|while|return|def|assert|with|@)\b")
_OPERATOR = re.compile(r" (?:[-+*/%<>=!&|@]+|and|or|if|else|for) ")


def folded_code(line: str, columns: int) -> list[str]:
    """A line of code, or of a diff, in lines of at most `columns` characters if that can be: it is broken inside
    brackets, of which the outermost come first, and comments between words.

    >>> print(*folded_code("    total = tl.sum(tl.where(mask, p * q, 0.0), axis=1) + rest", 48), sep="\\n")
        total = tl.sum(tl.where(mask, p * q, 0.0),
            axis=1) + rest
    """
    mark = line[:1] if line[:1] in ("+", "-") else ""
    line = line[len(mark) :]
    columns -= len(mark)
    start = len(line) - len(line.lstrip())
    comment = line[start : start + 1] == "#"
    ahead = line[:start] + ("# " if comment else " " * _STEP)
    out: list[str] = []
    while len(line) > columns:
        least = start if not out else len(ahead)
        places = {at: rank for at, rank in _places(line, comment).items() if least < at <= columns}
        late = {at: rank for at, rank in places.items() if at > least + (columns - least) // 3}
        if not places:
            break
        at = min(late, key=lambda at: (late[at], -at)) if late else max(places)
        out.append(line[:at].rstrip())
        beside = not comment and places[at] == (0, False)  # the next item of a list
        line = (line[:start] if beside else ahead) + line[at:].lstrip()
    return [mark + part for part in [*out, line]]


def _places(line: str, comment: bool) -> dict[int, tuple[int, bool]]:
    """Where a line can be broken, and what comes first: in few brackets, after a comma."""
    if comment:
        return {at: (0, False) for at, char in enumerate(line) if char == " "}
    bare = _STRING.sub(lambda found: "_" * len(found.group()), line)
    bare = bare.partition(" #")[0]
    operators = {found.start() for found in _OPERATOR.finditer(bare)}
    found: dict[int, tuple[int, bool]] = {}
    brackets: list[int] = [] if _STATEMENT.match(bare) else [0]  # an item of a list is in brackets of lines before
    for at, char in enumerate(bare):
        if char in _OPEN:
            brackets.append(_INDEX if char == "[" else 1)
        elif char in _CLOSE and any(brackets):
            brackets.pop()
        elif char == " " and brackets and (at in operators or bare[at - 1] == ","):
            found[at] = sum(brackets), bare[at - 1] != ","
    return found


__all__ = ["folded_code"]
