"""Definitions with a dtype for each tensor, as plain JSON data: made into tensor expressions, and evaluated in NumPy.

A definition is {"inputs": {name: [shape, dtype]}, "stages": [stage, ...], "outputs": [name, ...]}; a stage is {"name",
"dtype", "space": [[var, extent], ...], "fold": [[var, extent], ...], "reducer", "term"}.  A term is nested lists:
["at", name, *indices], ["place", index], ["cast", dtype, term], ["where", condition, a, b], or an operation and its
operands.  A number takes the dtype of the operand beside it, and that of its stage where it stands alone.  An index is
a variable, a number, ["+", a, b] or ["-", a, b], or ["value", term] of an integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from fuzz.definitions import unless_large

Data: TypeAlias = dict[str, Any]
Term: TypeAlias = Any

COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_LOGIC = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}
_NUMPY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "abs": np.abs, "floor": np.floor,
    "round": np.round, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "power": np.power,
}  # fmt: skip
_REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "any": np.any, "all": np.all}
FLOATS = ("float32", "float16", "bfloat16")


def dtype_of(term: Term, tensors: Mapping[str, str]) -> str:
    """The dtype of a term; "" of a number.

    Args:
        tensors: the dtypes of tensors.
    """
    if not isinstance(term, list):
        return ""
    op, *args = term
    match op:
        case "at":
            return tensors[args[0]]
        case "place":
            return "int32"
        case "cast":
            return args[0]
        case "where":
            return dtype_of(args[1], tensors) or dtype_of(args[2], tensors)
    if op in COMPARISONS or op in _LOGIC:
        return "bool"
    return next((d for d in (dtype_of(a, tensors) for a in args) if d), "")


def named(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype of a name."""
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


# -- NumPy ----------------------------------------------------------------------------------------------------


class _Reader:
    """Evaluates terms in float32 or float64; integers and truth values as they are."""

    def __init__(self, definition: Data, wide: bool, moved: float) -> None:
        self.dtypes = {name: dtype for name, (_, dtype) in definition["inputs"].items()}
        self.wide, self.moved = wide, moved
        self.tensors: dict[str, np.ndarray] = {}

    def kind(self, dtype: str) -> np.dtype[Any]:
        return np.dtype("float64") if self.wide and dtype in FLOATS else named(dtype)

    def term(self, term: Term, env: Mapping[str, Any], alone: str) -> Any:
        """The value of a term.

        Args:
            alone: the dtype of a number that stands alone.
        """
        if not isinstance(term, list):
            return self.kind(alone).type(term)
        op, *args = term
        match op:
            case "at":
                return self.tensors[args[0]][tuple(self.index(index, env) for index in args[1:])]
            case "place":
                return np.asarray(self.index(args[0], env)).astype(np.int32)
            case "cast":
                inner = dtype_of(args[1], self.dtypes) or args[0]
                return np.asarray(self.term(args[1], env, inner)).astype(self.kind(args[0]))
            case "where":
                kind = dtype_of(term, self.dtypes) or alone
                chosen, yes, no = self.term(args[0], env, "bool"), *(self.term(a, env, kind) for a in args[1:])
                return np.where(chosen, yes, no).astype(self.kind(kind))
        kind = next((d for d in (dtype_of(a, self.dtypes) for a in args) if d), alone)
        values = [self.term(a, env, kind) for a in args]
        if op in COMPARISONS or op in _LOGIC:
            return (COMPARISONS | _LOGIC)[op](*values)
        found = _NUMPY[op](*values)
        if op in ("tanh", "sigmoid"):
            found = found + self.moved
        return np.asarray(found).astype(self.kind(kind))

    def index(self, index: Any, env: Mapping[str, Any]) -> Any:
        if isinstance(index, int):
            return index
        if isinstance(index, str):
            return env[index]
        op, *args = index
        if op == "value":
            return np.asarray(self.term(args[0], env, "int32")).astype(np.int64)
        a, b = (self.index(i, env) for i in args)
        return a + b if op == "+" else a - b


def evaluate(definition: Data, inputs: Mapping[str, np.ndarray], mode: str) -> dict[str, np.ndarray]:
    """Every stage in turn, in "float32" (each tensor in its own dtype) or "float64", as `definitions.evaluate`."""
    sign = mode.endswith("+") - mode.endswith("-")
    reader = _Reader(definition, mode.startswith("float64"), 2.0**-22 * sign)
    with np.errstate(all="ignore"):
        for name, (_, dtype) in definition["inputs"].items():
            reader.tensors[name] = np.asarray(inputs[name]).astype(reader.kind(dtype))
        for stage in definition["stages"]:
            found = _stage(stage, reader)
            reader.tensors[stage["name"]] = found
            reader.dtypes[stage["name"]] = stage["dtype"]
    found = {name: reader.tensors[name] for name in definition["outputs"]}
    return {name: a if reader.dtypes[name] in FLOATS else a.astype(np.float64) for name, a in found.items()}


def _stage(stage: Data, reader: _Reader) -> np.ndarray:
    axes = [*stage["space"], *stage["fold"]]
    grid = np.ogrid[tuple(slice(0, extent) for _, extent in axes)]
    env = {var: index for (var, _), index in zip(axes, grid, strict=True)}
    kind = reader.kind(stage["dtype"])
    value = np.broadcast_to(reader.term(stage["term"], env, stage["dtype"]), tuple(extent for _, extent in axes))
    if not stage["fold"]:
        return value.astype(kind)
    folded = tuple(range(len(stage["space"]), len(axes)))
    if stage["reducer"] in ("any", "all"):
        return _REDUCE[stage["reducer"]](value, axis=folded)
    if reader.moved and value.dtype.kind == "f":  # each term is rounded
        way = np.random.default_rng([len(reader.tensors), int(reader.moved > 0)]).choice([-1.0, 1.0], value.shape)
        value = value * (1 + 2.0**-23 * way)
    total = np.asarray(_REDUCE[stage["reducer"]](value, axis=folded, **(
        {"dtype": kind} if stage["reducer"] in ("sum", "prod") else {})))  # fmt: skip
    if stage["reducer"] == "sum" and kind == np.float32:
        total = unless_large(total, value.astype(np.float64), folded)
    return total.astype(kind)


# -- tensor expressions ---------------------------------------------------------------------------------------


def tensor_expressions(definition: Data) -> tuple[list[Any], list[Any]]:
    """The placeholders, and the outputs, for `operators.custom`."""
    from tvm import te

    tensors = {name: te.placeholder(tuple(s), d, name=name) for name, (s, d) in definition["inputs"].items()}
    placeholders = list(tensors.values())
    for stage in definition["stages"]:
        tensors[stage["name"]] = _compute(stage, tensors)
    return placeholders, [tensors[name] for name in definition["outputs"]]


def _compute(stage: Data, tensors: Mapping[str, Any]) -> Any:
    from tvm import te

    from fuzz.definitions import of_arity

    folds = {var: te.reduce_axis((0, extent), name=var) for var, extent in stage["fold"]}
    names = [var for var, _ in stage["space"]]

    def body(*indices: Any) -> Any:
        env = {**dict(zip(names, indices, strict=True)), **{var: axis.var for var, axis in folds.items()}}
        value = _te(stage["term"], env, tensors, stage["dtype"])
        return value if not folds else _reducer(stage["reducer"])(value, axis=list(folds.values()))

    return te.compute(tuple(extent for _, extent in stage["space"]), of_arity(body, names), name=stage["name"])


def _reducer(name: str) -> Any:
    from tvm import te, tirx

    match name:
        case "prod":
            return te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="prod")
        case "any":
            return te.comm_reducer(lambda a, b: tirx.Or(a, b), lambda dtype: tirx.const(False, dtype), name="any")
        case "all":
            return te.comm_reducer(lambda a, b: tirx.And(a, b), lambda dtype: tirx.const(True, dtype), name="all")
    return getattr(te, name)


def _te(term: Term, env: Mapping[str, Any], tensors: Mapping[str, Any], alone: str) -> Any:
    from tvm import te, tirx

    if not isinstance(term, list):
        return tirx.const(term, alone)
    dtypes = {name: str(t.dtype) for name, t in tensors.items()}
    op, *args = term
    match op:
        case "at":
            return tensors[args[0]][tuple(_te_index(index, env, tensors) for index in args[1:])]
        case "place":
            return _te_index(args[0], env, tensors)
        case "cast":
            return _te(args[1], env, tensors, dtype_of(args[1], dtypes) or args[0]).astype(args[0])
        case "where":
            kind = dtype_of(term, dtypes) or alone
            return te.if_then_else(_te(args[0], env, tensors, "bool"), *(_te(a, env, tensors, kind) for a in args[1:]))
    kind = next((d for d in (dtype_of(a, dtypes) for a in args) if d), alone)
    made = [_te(a, env, tensors, kind) for a in args]
    if op in COMPARISONS:
        return {"lt": tirx.LT, "le": tirx.LE, "gt": tirx.GT, "ge": tirx.GE, "eq": tirx.EQ, "ne": tirx.NE}[op](*made)
    if op in _LOGIC:
        return {"and": tirx.And, "or": tirx.Or, "not": tirx.Not}[op](*made)
    match op:
        case "add":
            return made[0] + made[1]
        case "sub":
            return made[0] - made[1]
        case "mul":
            return made[0] * made[1]
        case "div":
            return made[0] / made[1]
        case "max" | "min":
            return (tirx.max if op == "max" else tirx.min)(*made)
    return getattr(te, op)(*made)


def _te_index(index: Any, env: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return env[index]
    op, *args = index
    if op == "value":
        return _te(args[0], env, tensors, "int32")
    a, b = (_te_index(i, env, tensors) for i in args)
    return a + b if op == "+" else a - b


__all__ = ["COMPARISONS", "FLOATS", "dtype_of", "evaluate", "named", "tensor_expressions"]
