"""Runs small programs in plain Python, element by element, with every access checked.

For tiny shapes this takes milliseconds; a native build takes a tenth of a second.  It is also stricter than native
code: an index outside its buffer and a read of an element that was never written are errors.  Indices whose bounds
follow from the extents of loops are not checked again at each access.  A read at an index that is computed of data or
with floats is 0 outside of its buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.dtypes import dtype_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Loop, Op, Previous, Program, Stmt, Store, Var
from neptune_lab.loop_ir.positions import may_be_outside
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.start_values import explicit_start_values
from neptune_lab.loop_ir.walks import walk
from neptune_lab.scalar_ops import NUMPY, OPERATIONS, Functions, ScalarOp, python_operator
from neptune_lab.strict.dtypes import wrapped


def run_in_python(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the program with Python's numbers; floats are float64, whatever their dtype.

    Args:
        program: any program.
        inputs: an array for each input, by name, of its shape.

    Returns:
        The outputs by name, in float64; an element that was never written is NaN.

    Raises:
        ScheduleError: an access leaves its buffer, or reads an element that was never written; `node` is the block.
    """
    buffers: dict[str, list[Any]] = {}
    for buffer in program.buffers:
        if buffer.name in program.inputs:
            array = np.asarray(inputs[buffer.name])
            wide = array.astype(np.float64) if "float" in buffer.dtype else array
            buffers[buffer.name] = wide.reshape(-1).tolist()
        else:
            buffers[buffer.name] = [None] * prod(buffer.shape)
    scope: dict[str, Any] = {**_NAMES, "operations": _FUNCTIONS, "buffers": buffers, "where": [""]}
    exec(
        compile(python_source(explicit_start_values(program)), f"<{program.name}>", "exec"), scope
    )  # names and numbers of our own making
    try:
        scope["run"]()
    except (IndexError, TypeError) as error:
        block = scope["where"][0]
        outside = f"leaves a buffer: {error}" if isinstance(error, IndexError) else ""
        raise ScheduleError(
            f"block {block!r} {outside or 'reads an element that nothing has written'}",
            node=block,
            help="undo the last step; Schedule.tag_table() shows every read",
        ) from error
    outputs = {}
    for name in program.outputs:
        buffer = program.buffer(name)
        values = [math.nan if v is None else v for v in buffers[name]]
        outputs[name] = np.asarray(values, np.float64).reshape(buffer.shape)
    return outputs


def python_source(program: Program) -> str:
    """The program as the text of a Python function `run()`."""
    writer = _Writer(program)
    lines = ["def run():"]
    lines += [f"    {writer.names[b.name]} = buffers[{b.name!r}]" for b in program.buffers]
    for stmt in program.body:
        lines += writer.statement(stmt, 1, {}, {})
    return "\n".join([*lines, "    return None", ""])


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = {b.name: f"b{n}" for n, b in enumerate(program.buffers)}
        self.count = 0
        # One more than the greatest value of each variable that the expression may use, if it is known; the least is 0.
        self.extents: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def statement(self, stmt: Stmt, depth: int, env: dict[str, str], extents: dict[str, int]) -> list[str]:
        pad = "    " * depth
        if isinstance(stmt, Loop):
            var = self.fresh("v")
            inner = {**env, stmt.var: var}
            within = {**extents, stmt.var: int(stmt.extent)}
            body = [line for s in stmt.body for line in self.statement(s, depth + 1, inner, within)]
            return [f"{pad}for {var} in range({int(stmt.extent)}):", *body]
        return [pad + line for line in self.block(stmt, env, extents)]

    def block(self, block: Block, env: dict[str, str], extents: dict[str, int]) -> list[str]:
        self.extents = extents
        lines = [f"where[0] = {block.name!r}"]
        indent = ""
        if block.predicates:
            lines.append(f"if {' and '.join(self.expr(p, env) for p in block.predicates)}:")
            indent = "    "
        inner: dict[str, str] = {}
        for it in block.iters:
            inner[it.name] = self.fresh("t")
            lines.append(f"{indent}{inner[it.name]} = {self.expr(it.binding, env)}")
        self.extents = {
            it.name: limits[1] + 1 for it in block.iters if (limits := bounds(it.binding, extents)) and limits[0] >= 0
        }
        if block.init is not None:
            first = [f"{inner[it.name]} == 0" for it in block.iters if it.kind == "reduce"]
            lines.append(f"{indent}if {' and '.join(first) or 'True'}:")
            lines.append(f"{indent}    {self.store(block.init, inner)}")
        lines.append(indent + self.store(block.body, inner))
        return lines

    def store(self, store: Store, env: dict[str, str]) -> str:
        target = f"{self.names[store.buffer]}[{self.offset(store.buffer, store.indices, env)}]"
        return f"{target} = {self.expr(store.value, env)}"

    def offset(self, buffer: str, indices: tuple[Expr, ...], env: dict[str, str]) -> str:
        shape = self.program.buffer(buffer).shape
        if len(indices) != len(shape):
            raise ScheduleError(
                f"{buffer!r} has {len(shape)} axes and is given {len(indices)} indices", help="undo the last step"
            )
        parts = [
            f"{self.index(index, size, buffer, env)} * {prod(shape[n + 1 :])}"
            for n, (index, size) in enumerate(zip(indices, shape, strict=True))
        ]
        return " + ".join(parts) or "0"

    def index(self, index: Expr, size: int, buffer: str, env: dict[str, str]) -> str:
        """An index, with a check at each access unless all its values are known to be inside."""
        text = self.expr(index, env)
        limits = bounds(index, self.extents)
        if limits is not None and limits[0] >= 0 and limits[1] < size:
            return f"({text})"
        return f"inside({text}, {size}, {buffer!r})"

    def without_bounds(self, buffer: str, indices: tuple[Expr, ...]) -> list[tuple[Expr, int]]:
        """The indices of a read that may be outside of the tensor, where it reads 0, with their axes' sizes."""
        shape = self.program.buffer(buffer).shape
        return [(i, size) for i, size in zip(indices, shape, strict=True) if may_be_outside(i)]

    def expr(self, e: Expr, env: dict[str, str]) -> str:
        match e:
            case Const(value):
                return {"inf": "INF", "-inf": "(-INF)", "nan": "NAN"}.get(repr(value), f"({value!r})")
            case Var(name):
                return env[name]
            case Load(buffer, indices):
                read = f"{self.names[buffer]}[{self.offset(buffer, indices, env)}]"
                known = [
                    f"0 <= {self.expr(index, env)} < {size}" for index, size in self.without_bounds(buffer, indices)
                ]
                return f"({read} if {' and '.join(known)} else 0)" if known else read
            case Previous(buffer, indices, initial):
                before = (Op("sub", (indices[0], Const(1))), *indices[1:])
                read = f"{self.names[buffer]}[{self.offset(buffer, before, env)}]"
                return f"({read} if {self.expr(indices[0], env)} > 0 else {self.expr(initial, env)})"
            case Cast(dtype, arg):
                inner = self.expr(arg, env)
                if "int" in dtype:
                    return f"wrapped(truncated({inner}), {dtype!r})"
                return inner if "float" in dtype else f"bool({inner})"
            case Op("select", (condition, yes, no)):
                return f"({self.expr(yes, env)} if {self.expr(condition, env)} else {self.expr(no, env)})"
            case Op(name, args):
                parts = [self.expr(a, env) for a in args]
                symbol = OPERATIONS[name].symbol
                if not symbol or name in _OWN:
                    text = f"operations[{name!r}]({', '.join(parts)})"
                else:
                    text = f"({parts[0]} {symbol} {parts[1]})" if len(parts) == 2 else f"({symbol}{parts[0]})"
                dtype = dtype_of(e, self.program)
                # Positions are small; Python's integers, which have no end, are cut where tensors are computed with.
                wraps = "int" in dtype and any(isinstance(part, (Load, Previous)) for part in walk(e))
                return f"wrapped({text}, {dtype!r})" if wraps else text


def _wrapped(value: Any, dtype: str) -> Any:
    """What an integer dtype holds of an integer; other numbers as they are."""
    return wrapped(value, dtype) if isinstance(value, int) else value


def _inside(index: int, size: int, buffer: str) -> int:
    if not 0 <= index < size:
        raise IndexError(f"{buffer!r} at {index}, on an axis of {size} elements")
    return index


def _total(function: Callable[..., float]) -> Callable[..., float]:
    """A NumPy function on Python floats: it returns infinities and NaN without warnings."""

    def call(*args: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(a) for a in args)))

    return call


def _fast(exact: Callable[[float], float], total: Callable[..., float]) -> Callable[[float], float]:
    def call(x: float) -> float:
        try:
            return exact(x)
        except (ValueError, OverflowError):
            return total(x)

    return call


def _div(a: float, b: float) -> float:
    return a / b if b else _total(np.divide)(a, b)


def _max(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


def _min(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


def _on_numbers(row: ScalarOp) -> Callable[..., Any] | None:
    """Python's operator, the function of `math` with that name, or NumPy's function; None: the formula is used."""
    if row.formula is not None and not row.numpy:
        return None
    if row.kind == "float" and row.arity == 1 and not row.exact and hasattr(math, row.name):
        return _fast(getattr(math, row.name), _total(NUMPY[row.name]))
    return python_operator(row) or _total(NUMPY[row.name])


_NAMES: dict[str, Any] = {
    "INF": math.inf,
    "NAN": math.nan,
    "inside": _inside,
    "wrapped": _wrapped,
    "truncated": lambda x: math.trunc(x) if math.isfinite(x) else -(1 << 31),  # as x86 does; the result is unspecified
}
# These keep integers, and raise no errors.
_OWN: dict[str, Callable[..., Any]] = {
    "max": _max,
    "min": _min,
    "div": _div,
    "select": lambda condition, yes, no: yes if condition else no,
}
_FUNCTIONS = Functions(_on_numbers, own=_OWN)
