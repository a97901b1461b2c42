"""The text that states the inputs of a function: `q=float16[1,4,256,64] scale=0.125`.

The cell magic `%%explore` and the command line read it.
"""

from __future__ import annotations

import ast
import difflib
import re
from typing import TypeAlias

from neptune_lab.errors import TextError
from neptune_lab.strict.console import shown
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.values import INT32_MAX
from neptune_lab.tensor_spec import TensorSpec

Value: TypeAlias = TensorSpec | bool | int | float | None

_EXAMPLE = "write name=dtype[sizes], as in q=float16[1,4,256,64], or name=number, as in scale=0.125"
_NAME = re.compile(r"[^\W\d]\w*")
_BETWEEN = re.compile(r"\s*[,;]?\s*")
_DTYPE = re.compile(r"(?:torch\.)?(?P<dtype>[A-Za-z_]\w*)\s*\[")
_NUMBER = re.compile(r"[^\s,;\[\]]+")


def parse_inputs(text: str) -> dict[str, Value]:
    """The inputs that a text states, by name, in its order.

    >>> found = parse_inputs("q=float16[1, 4] mask=bool[] scale=0.5")
    >>> {name: str(value) for name, value in found.items()}
    {'q': 'q: float16[1, 4]', 'mask': 'mask: bool[]', 'scale': '0.5'}

    Args:
        text: entries with white space, a comma or a semicolon between them.  An entry is a tensor, `name=dtype[sizes]`
            with torch's dtypes, or a constant, `name=number` (or True, False, None).

    Returns:
        A `TensorSpec` for each tensor, and the value of each constant.

    Raises:
        TextError: with the line and column of the mistake, and what was expected there.
    """
    return _Reader(text).entries()


class _Reader:
    """Reads one text from its start to its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def entries(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        self._skip(re.compile(r"\s*"))
        while self.at < len(self.text):
            start = self.at
            name = self._name()
            if name in found:
                raise self._error(f"{name!r} is given twice", start, f"leave one of the two {name}=… out")
            found[name] = self._value(name)
            end = self.at
            self._skip(_BETWEEN)
            if self.at == end and self.at < len(self.text):
                raise self._error(f"found {shown(self.text[end])} after the input {name!r}", end, "write a space there")
        if not found:
            raise self._error("no inputs are given", 0, _EXAMPLE)
        return found

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = self.at if match is None else match.end()

    def _name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise self._error(f"found {self._word()}, expected the name of an input", self.at, _EXAMPLE)
        self.at = match.end()
        equals = re.compile(r"\s*=\s*").match(self.text, self.at)
        if equals is None:
            raise self._error(f"found {self._word()} after {match[0]!r}, expected =", self.at, _EXAMPLE)
        self.at = equals.end()
        return match[0]

    def _value(self, name: str) -> Value:
        start = self.at
        if (tensor := _DTYPE.match(self.text, start)) is not None:
            dtype = tensor["dtype"]
            if dtype not in DTYPES:
                raise self._error(f"there is no dtype {shown(dtype)}", tensor.start("dtype"), _similar_dtypes(dtype))
            self.at = tensor.end()
            return TensorSpec(name, self._sizes(name), dtype)
        number = _NUMBER.match(self.text, start)
        if number is None:
            raise self._error(f"found {self._word()}, expected a dtype or a number for {name!r}", start, _EXAMPLE)
        try:
            value = ast.literal_eval(number[0])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            plain = number[0].removeprefix("torch.")
            help = f"write {name}={plain}[sizes], as in {name}={plain}[4,8]" if plain in DTYPES else _EXAMPLE
            found = f"found {shown(number[0])} for {name!r}, expected dtype[sizes] or a number"
            raise self._error(found, start, help) from None
        if not isinstance(value, bool | int | float | None):
            raise self._error(f"{name!r} is {shown(value)}, expected a tensor or a number", start, _EXAMPLE)
        self.at = number.end()
        return value

    def _sizes(self, name: str) -> tuple[int, ...]:
        """The sizes after an opening bracket, up to the closing one."""
        close = self.text.find("]", self.at)
        if close < 0:
            raise self._error(f"the sizes of {name!r} have no ] at their end", self.at, "close them: [1,4,256,64]")
        inside = self.text[self.at : close]
        sizes = []
        for part in re.finditer(r"[^,]+|(?<=,)(?=,)|^(?=,)", inside):
            size = part[0].strip()
            where = self.at + part.start() + len(part[0]) - len(part[0].lstrip())
            if not re.fullmatch(r"[0-9][0-9_]*", size) or not 1 <= int(size) <= INT32_MAX:
                if not size and not inside.strip():
                    break
                what = shown(size) if size else "nothing"
                help = "sizes are numbers with a comma between them: [1,4,256,64]"
                raise self._error(
                    f"found {what} among the sizes of {name!r}, expected a whole number from 1", where, help
                )
            sizes.append(int(size))
        self.at = close + 1
        return tuple(sizes)

    def _word(self) -> str:
        """What is at this place, as an error shows it."""
        rest = re.match(r"\S*", self.text[self.at :].lstrip())
        return shown(rest[0]) if rest and rest[0] else "the end"

    def _error(self, message: str, at: int, help: str) -> TextError:
        before = self.text[:at]
        line = before.count("\n") + 1
        return TextError(message, line=line, column=at - (before.rfind("\n") + 1) + 1, help=help)


def _similar_dtypes(dtype: str) -> str:
    """What a wrong dtype may have meant."""
    short = {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64"}
    near = (
        [short[dtype.lower()]] if dtype.lower() in short else difflib.get_close_matches(dtype, sorted(DTYPES), 1, 0.5)
    )
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(DTYPES))}"


__all__ = ["Value", "parse_inputs"]
