"""Checks what an HTile program puts into emitted source: identifiers, numbers and words of closed sets.

Emitters write these into a module that Python runs.  A name with a line break, or text in place of a number, would
become code, so both emitters call `check_spelling` first.
"""

from __future__ import annotations

from typing import Any, get_args

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import arity
from neptune_lab.htile.walk import roots, subexpressions
from neptune_lab.strict.console import shown
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.values import is_integer

_PARTS = frozenset(get_args(ir.Part))
_INDEX_OPS = frozenset(get_args(ir.IndexOp))
_REDUCERS = frozenset(get_args(ir.Reducer))


def check_spelling(program: ir.Program) -> None:
    """Raise TileError unless everything of `program` that an emitter writes is an identifier, a number or a known word.

    Formal statement: every text of `program` but node ids is a Python identifier or a member of a closed set (an
    origin may also be empty), and every number is an int, or a float or bool in a literal.
    """
    _name("program", program.name)
    for tensor in program.tensors:
        _name("tensor", tensor.name)
        _word(f"dtype of {tensor.name}", tensor.dtype, DTYPES)
        for extent in tensor.shape:
            _integer(f"an extent of {tensor.name}", extent)
        for size in tensor.sizes or ():
            _index(size)
    for size in program.sizes:
        _name("size", size.name)
        _integer(f"the sample of size {size.name}", size.sample)
    for name in (*program.inputs, *program.outputs):
        _name("argument", name)
    for kernel in program.kernels:
        _kernel(kernel)


def _kernel(kernel: ir.Kernel) -> None:
    _name("kernel", kernel.name)
    for axis in kernel.grid:
        _name("grid axis", axis.var)
        _integer(f"extent of grid axis {axis.var}", axis.extent)
        _index(axis.size or ir.Int(axis.extent))
    for what in ("num_warps", "num_stages"):
        value = getattr(kernel, what)
        if value is not None:
            _integer(what, value)
    _body(kernel.body)


def _body(body: tuple[ir.Stmt, ...]) -> None:
    for stmt in body:
        if stmt.origin != "":
            _name("origin", stmt.origin)
        match stmt:
            case ir.For():
                _name("loop variable", stmt.var)
                _word("part of a loop", stmt.part, _PARTS)
                _index(stmt.start)
                _index(stmt.stop)
                _body(stmt.body)
            case ir.Store():
                for root in (stmt.target, *roots(stmt)):
                    for expr in subexpressions(root):
                        _expression(expr)


def _expression(expr: ir.TileExpr) -> None:
    match expr:
        case ir.Access(tensor, index):
            _name("tensor", tensor)
            for part in index:
                _index(part)
        case ir.Gather(tensor):
            _name("tensor", tensor)
        case ir.Iota(index):
            for part in index:
                _index(part)
        case ir.Scalar(value):
            _index(value)
        case ir.Literal(value, dtype):
            _word("dtype", dtype, DTYPES)
            if type(value) not in (int, float, bool):
                raise TileError(f"a literal is {shown(value)}; expected an int, a float or a bool")
        case ir.Elementwise(op, _, dtype):
            arity(op)  # refuses an operator that is not known
            _word("dtype", dtype, DTYPES)
        case ir.Cast(_, dtype):
            _word("dtype", dtype, DTYPES)
        case ir.Permute(_, order):
            for dim in order:
                _integer("a dimension", dim)
        case ir.Grouped(_, size):
            _integer("the size of a group", size)
        case ir.Reduce(op, _, dim):
            _word("reducer", op, _REDUCERS)
            _integer("a dimension", dim)
        case ir.Dot():
            pass


def _index(index: ir.Index) -> None:
    match index:
        case ir.NewAxis():
            pass
        case ir.Slice(start, extent, axis):
            _index(start)
            _integer("extent of a slice", extent)
            _name("axis of a slice", axis)
        case ir.Int(value):
            _integer("an index", value)
        case ir.Name(name):
            _name("index variable", name)
        case ir.Arith(op, a, b):
            _word("operator of an index", op, _INDEX_OPS)
            _index(a)
            _index(b)


def _name(what: str, value: Any) -> None:
    # (a keyword passes: the emitter renames it)
    if not isinstance(value, str) or not value.isidentifier():
        raise TileError(f"{what} is called {shown(value)}; expected a Python identifier")


def _integer(what: str, value: Any) -> None:
    if not is_integer(value):
        raise TileError(f"{what} is {shown(value)}; expected an integer")


def _word(what: str, value: Any, known: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise TileError(f"{what} is {shown(value)}; expected one of {', '.join(map(repr, sorted(known)))}")
