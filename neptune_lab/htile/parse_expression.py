"""Tile expressions from their syntax trees; an axis or dtype that the text does not state is "" (see `unstated`)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any, NoReturn, get_args

from neptune_lab.htile import nodes as ir
from neptune_lab.scalar_ops import in_htile, rows
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.syntax import Binary, Call, Group, Item, Number, Range, Syntax, Unary, Word
from neptune_lab.strict.tokens import Token, refusal

_SYMBOLS = {row.symbol: row.name for row in rows("htile") if row.arity == 2 and row.symbol}
_REDUCERS: tuple[ir.Reducer, ...] = get_args(ir.Reducer)
_INDEX_OPERATORS: tuple[ir.IndexOp, ...] = get_args(ir.IndexOp)
_CONSTANTS = {"True": True, "False": False}


class ExpressionReader:
    """Reads expressions over tensors.

    Args:
        tensors: their names.
    """

    def __init__(self, tensors: Collection[str]) -> None:
        self._tensors = tensors
        self._calls: dict[str, Callable[[Call], ir.TileExpr]] = {
            "index": lambda call: ir.Scalar(self.scalar(self._only(call, "index"))),
            "literal": self._literal,
            "gather": self._gather,
            "permute": self._permute,
            "grouped": self._grouped,
            "reduce": self._reduce,
            "dot": self._dot,
        }

    def access(self, item: Item) -> ir.Access:
        """`tensor[part, ...]`."""
        return ir.Access(self._tensor(item.name), tuple(self._part(part) for part in item.parts))

    def tile(self, syntax: Syntax) -> ir.TileExpr:
        """A tile expression.

        Raises:
            TextError: it is not a tile expression; the error has the place and what is expected.
        """
        match syntax:
            case Number(value):
                return ir.Literal(value, "")
            case Word(name, quoted):
                if not quoted and name in _CONSTANTS:
                    return ir.Literal(_CONSTANTS[name], "")
                if name in self._tensors:
                    raise refusal(syntax.at, f"an index after the tensor, such as {name}[0:4]")
                return ir.Scalar(ir.Name(name))
            case Item(Word("iota", False), parts):
                return ir.Iota(tuple(self._position(part) for part in parts))
            case Item():
                return self.access(syntax)
            case Unary(op, arg):
                return ir.Elementwise("not" if op == "not" else "neg", (self.tile(arg),), "")
            case Binary(op, a, b):
                return ir.Elementwise(_SYMBOLS[op], (self.tile(a), self.tile(b)), "")
            case Call():
                return self._call(syntax)
            case Group():
                raise refusal(syntax.at, "one expression in brackets")

    def scalar(self, syntax: Syntax | Range) -> ir.IndexExpr:
        """An integer expression over grid and loop variables; TextError if it is none."""
        match syntax:
            case Number(int(value)):
                return ir.Int(value)
            case Word(name):
                return ir.Name(name)
            case Binary(op, a, b) if op in _INDEX_OPERATORS:
                return ir.Arith(op, self.scalar(a), self.scalar(b))
            case Call("min" | "max" as op, (a, b)) if not syntax.named:
                return ir.Arith(op, self.scalar(a), self.scalar(b))
        raise refusal(syntax.at, f"integers and variables with {' '.join(_INDEX_OPERATORS)}", _INDEX_HELP)

    def _part(self, part: Syntax | Range) -> ir.Index:
        match part:
            case Range(start, stop, axis):
                first = self.scalar(start)
                return ir.Slice(first, self._extent(first, self.scalar(stop), part.at), axis or "")
            case Word("NewAxis", False):
                return ir.NewAxis()
            case _:
                return self.scalar(part)

    def _extent(self, start: ir.IndexExpr, stop: ir.IndexExpr, at: Token) -> int:
        match start, stop:
            case ir.Int(first), ir.Int(last):
                return last - first
            case _, ir.Arith("+", same, ir.Int(extent)) if same == start:
                return extent
        raise refusal(at, "a slice that stops a fixed number after its start, such as i0*4:i0*4+4", _INDEX_HELP)

    def _position(self, part: Syntax | Range) -> ir.Slice | ir.NewAxis:
        index = self._part(part)
        if not isinstance(index, ir.Slice | ir.NewAxis):
            raise refusal(part.at, "a slice or NewAxis")
        return index

    def _tensor(self, word: Word) -> str:
        if word.name not in self._tensors:
            raise refusal(word.at, f"a tensor of the program ({', '.join(self._tensors)})", "declare it at the top")
        return word.name

    def _call(self, call: Call) -> ir.TileExpr:
        function = call.function
        if function in self._calls:
            return self._calls[function](call)
        if function in DTYPES:
            return ir.Cast(self.tile(self._only(call, function)), function)
        row = in_htile(function)
        if row is not None and not row.symbol:
            if len(call.args) != row.arity or call.named:
                self._refuse(call, f"{row.arity} operands of {function}")
            return ir.Elementwise(function, tuple(self.tile(arg) for arg in call.args), "")
        operators = (row.htile or row.name for row in rows("htile") if not row.symbol)
        known = (*self._calls, *operators, *DTYPES)
        near = difflib.get_close_matches(function, known, 1)
        raise refusal(
            call.at, "an operator or a dtype", f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        )

    def _literal(self, call: Call) -> ir.TileExpr:
        match call.args:
            case (value, Word(dtype, False)) if dtype in DTYPES and not call.named:
                literal = self.tile(value)
                if isinstance(literal, ir.Literal):
                    return ir.Literal(literal.value, dtype)
        self._refuse(call, "literal(value, dtype)")

    def _gather(self, call: Call) -> ir.TileExpr:
        match call.args:
            case (Word() as tensor, *indices) if not call.named:
                return ir.Gather(self._tensor(tensor), tuple(self.tile(index) for index in indices))
        self._refuse(call, "gather(tensor, index, ...)")

    def _permute(self, call: Call) -> ir.TileExpr:
        match call.args:
            case (arg, Group(items)) if not call.named:
                order = tuple(self._dimension(item) for item in items)
            case (arg, Number() as item) if not call.named:  # of a tile with one dimension
                order = (self._dimension(item),)
            case _:
                self._refuse(call, "permute(tile, (1, 0))")
        return ir.Permute(self.tile(arg), order)

    def _grouped(self, call: Call) -> ir.TileExpr:
        match call.args:
            case (arg, Number(value=int() as size)) if not call.named:
                return ir.Grouped(self.tile(arg), size)
        self._refuse(call, "grouped(tile, 8)")

    def _reduce(self, call: Call) -> ir.TileExpr:
        match call.args, call.named:
            case (Word(op, False), arg), {"dim": dim, **others} if op in _REDUCERS and not others:
                return ir.Reduce(op, self.tile(arg), self._dimension(dim))
        self._refuse(call, f"reduce(reducer, tile, dim=0) with {', '.join(_REDUCERS)}")

    def _dot(self, call: Call) -> ir.TileExpr:
        if len(call.args) != 2 or set(call.named) - {"acc"}:
            self._refuse(call, "dot(a, b) or dot(a, b, acc=c)")
        a, b = (self.tile(arg) for arg in call.args)
        acc = call.named.get("acc")
        return ir.Dot(a, b, None if acc is None else self.tile(acc))

    def _only(self, call: Call, function: str) -> Syntax:
        if len(call.args) != 1 or call.named:
            self._refuse(call, f"{function} of one expression")
        return call.args[0]

    def _dimension(self, syntax: Any) -> int:
        if not isinstance(syntax, Number) or not isinstance(syntax.value, int):
            raise refusal(syntax.at, "the number of a dimension")
        return syntax.value

    def _refuse(self, call: Call, expected: str) -> NoReturn:
        raise refusal(call.at, expected, "change the arguments to this form")


_INDEX_HELP = "an index is computed from constants and from variables of the grid and of loops"
