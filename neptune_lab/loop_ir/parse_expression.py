"""Parses the expressions of a loop program; a dtype that the text does not state is "" (see `constant_dtypes`)."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import NoReturn

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Var
from neptune_lab.scalar_ops import in_loops, rows
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.syntax import Binary, Call, Group, Item, Number, Range, Syntax, Unary, Word
from neptune_lab.strict.tokens import refusal

_SYMBOLS = {row.symbol: row.name for row in rows("loop") if row.arity == 2 and row.symbol}
_CONSTANTS = {"True": True, "False": False}
_OTHERS = ("where", "previous", "literal")


class ExpressionReader:
    """Parses expressions over buffers with these names."""

    def __init__(self, buffers: Collection[str]) -> None:
        self._buffers = buffers

    def scalar(self, syntax: Syntax | Range) -> Expr:
        """A scalar expression.

        Raises:
            TextError: the text is no expression of a loop program; with the place and what is expected.
        """
        match syntax:
            case Number(value):
                return Const(value, "")
            case Word(name, quoted):
                if not quoted and name in _CONSTANTS:
                    return Const(_CONSTANTS[name], "")
                if name in self._buffers:
                    raise refusal(syntax.at, f"an index after the buffer, such as {name}[i]")
                return Var(name)
            case Item():
                return self.access(syntax)
            case Unary(op, arg):
                return Op("not" if op == "not" else "neg", (self.scalar(arg),))
            case Binary(op, a, b):
                return Op(_SYMBOLS[op], (self.scalar(a), self.scalar(b)))
            case Call():
                return self._call(syntax)
            case Group() | Range():
                raise refusal(syntax.at, "one expression")

    def access(self, item: Item) -> Load:
        """`buffer[index, ...]`."""
        if item.name.name not in self._buffers:
            known = ", ".join(self._buffers)
            raise refusal(item.name.at, f"a buffer of the program ({known})", "declare it at the top")
        return Load(item.name.name, tuple(self.scalar(part) for part in item.parts))

    def _call(self, call: Call) -> Expr:
        """The expression of a call: a literal, a previous value, a choice, a cast or an operation of the table."""
        function = call.function
        if call.named:
            self._refuse(call, "no named arguments")
        match function, call.args:
            case "literal", (value, Word(dtype, False)) if dtype in DTYPES:
                constant = self.scalar(value)
                if isinstance(constant, Const):
                    return Const(constant.value, dtype)
            case "previous", (Item() as item, start):
                initial = self.scalar(start)
                if isinstance(initial, Const):
                    access = self.access(item)
                    return Previous(access.buffer, access.indices, initial)
            case "where", (_, _, _):
                return Op("select", tuple(self.scalar(arg) for arg in call.args))
            case _, (arg,) if function in DTYPES:
                return Cast(function, self.scalar(arg))
        forms = {
            "literal": "literal(value, dtype)",
            "previous": "previous(buffer[tag, index, ...], initial value)",
            "where": "where(condition, value, other value)",
        }
        if function in forms or function in DTYPES:
            self._refuse(call, forms.get(function, f"{function} of one expression"))
        row = in_loops(function)
        if row is None or row.symbol or row.htile:
            known = (*_OTHERS, *(row.name for row in rows("loop") if not row.symbol and not row.htile), *DTYPES)
            near = difflib.get_close_matches(function, known, 1)
            help = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise refusal(call.at, "an operation or a dtype", help)
        if len(call.args) != row.arity:
            self._refuse(call, f"{row.arity} operands of {function}")
        return Op(function, tuple(self.scalar(arg) for arg in call.args))

    def _refuse(self, call: Call, expected: str) -> NoReturn:
        raise refusal(call.at, expected, "change the arguments to this form")
