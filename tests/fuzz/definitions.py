"""Definitions as plain JSON data: made into tensor expressions for the compiler, and evaluated in NumPy for the judge.

The two readings share nothing but the data, so a mistake of the compiler's own front end shows too.

A definition is {"inputs": {name: extents}, "dtype": str, "stages": [stage, ...], "outputs": [name, ...]}; a stage is
{"name", "space": [[var, extent], ...], "fold": [[var, extent], ...], "reducer", "term"}; terms and indices are nested
lists such as ["exp", ["sub", ["at", "x", "i", "j"], ["at", "r0", "i"]]]. An index is a variable, a number, or
["+", index, index], ["-", index, index], ["*", index, number], ["//", index, number], ["%", index, number].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Data: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, np.ndarray]

_REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
_NUMPY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "abs": np.abs, "neg": np.negative,
    "square": np.square, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "power": np.power, "gt": np.greater, "le": np.less_equal, "lt": np.less, "and": np.logical_and,
}  # fmt: skip


# -- NumPy ----------------------------------------------------------------------------------------------------

# "Near the largest float" in docs/concepts/numbers.md.
LARGE = 1e35


def evaluate(definition: Data, inputs: Mapping[str, np.ndarray], dtype: str) -> Arrays:
    """Every stage in turn, as its definition says, in float `dtype`; all tensors by name.

    Args:
        inputs: an array per input, in the input's own dtype.
        dtype: "float32" or "float64"; "float64+" and "float64-" for float64 with tanh and sigmoid moved by 2**-22, the
            absolute error that they may have, and each reduction by a rounding.
    """
    kind = np.dtype(dtype.rstrip("+-"))
    tensors = {name: np.asarray(inputs[name]).astype(kind) for name in definition["inputs"]}
    sign = dtype.endswith("+") - dtype.endswith("-")
    with np.errstate(all="ignore"):
        of: dict[str, set[str]] = {name: {name} for name in definition["inputs"]}
        for stage in definition["stages"]:
            found = _stage(stage, tensors, kind, 2.0**-22 * sign, of)
            if stage["fold"] and sign:
                way = np.random.default_rng([len(tensors), sign + 1]).choice([-1.0, 1.0], found.shape)
                found = found * (1 + 2.0**-23 * way)
            tensors[stage["name"]] = found
            of[stage["name"]] = _inputs_of(stage["term"], of)
    return tensors


def _stage(stage: Data, tensors: Arrays, kind: np.dtype[Any], moved: float, of: Mapping[str, set[str]]) -> np.ndarray:
    axes = [*stage["space"], *stage["fold"]]
    grid = np.ogrid[tuple(slice(0, extent) for _, extent in axes)] if axes else []
    env = {"": moved, **{var: index for (var, _), index in zip(axes, grid, strict=True)}}
    shape = tuple(extent for _, extent in axes)
    value = np.broadcast_to(_term(stage["term"], env, tensors, kind), shape)
    if stage["fold"]:
        folded = tuple(range(len(stage["space"]), len(axes)))
        total = _REDUCE[stage["reducer"]](value, axis=folded)
        if stage["reducer"] == "sum":
            wide = np.broadcast_to(_term(stage["term"], env, _wide(tensors), np.dtype(np.float64)), shape)
            total = unless_large(np.asarray(total, kind), wide, folded)
            for factor in _weighted(stage["term"], of):
                weighted = np.broadcast_to(_term(factor, env, tensors, kind), shape)
                total = unless_large(total, weighted, folded)
        value = total
    return np.asarray(value, kind)


def _wide(tensors: Arrays) -> Arrays:
    return {name: a.astype(np.float64) for name, a in tensors.items()}


def unless_large(total: np.ndarray, terms: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Sums in float32, NaN where the order of the terms, or a fused product, decides whether they overflow.

    Args:
        terms: in float64, where they are finite if their factors are.
    """
    if total.dtype != np.float32:
        return total
    size = np.where(np.isfinite(terms), np.abs(terms.astype(np.float64)), 0.0).sum(axis=axes)
    return np.where(size > LARGE, np.nan, total).astype(np.float32)


def _weighted(term: Any, of: Mapping[str, set[str]]) -> list[Any]:
    """Factors of a sum's term beside an exponential, as the v of sum p * v, or that read what nothing else in it
    depends on: a partial sum of them may overflow ("Near the largest float" in docs/concepts/numbers.md)."""
    factors = _factors(term)
    found = []
    if any(isinstance(factor, list) and factor[0] == "exp" for factor in factors):
        return [factor for factor in factors if not (isinstance(factor, list) and factor[0] == "exp")]
    for n, factor in enumerate(factors):
        rest: set[str] = set().union(*(_inputs_of(f, of) for m, f in enumerate(factors) if m != n))
        if len(factors) > 1 and not _inputs_of(factor, of) & rest:
            found.append(factor)
    return found


def _factors(term: Any) -> list[Any]:
    if isinstance(term, list) and term[0] in ("mul", "div"):
        return _factors(term[1]) + (_factors(term[2]) if term[0] == "mul" else [["div", 1.0, term[2]]])
    return [term]


def _inputs_of(term: Any, of: Mapping[str, set[str]]) -> set[str]:
    """The inputs that a term depends on."""
    if not isinstance(term, list | tuple):
        return set()
    if term[0] == "at":
        return of[term[1]]
    return set().union(*(_inputs_of(arg, of) for arg in term[1:]))


def _term(term: Any, env: Mapping[str, Any], tensors: Arrays, kind: np.dtype[Any]) -> Any:
    if isinstance(term, int | float):
        return kind.type(term)
    op, *args = term
    if op == "at":
        return tensors[args[0]][tuple(_index(index, env) for index in args[1:])]
    if op == "where":
        condition, yes, no = (_term(a, env, tensors, kind) for a in args)
        return np.where(condition, yes, no).astype(kind)
    if op in ("index<=", "index<"):
        a, b = (_index(index, env) for index in args)
        return a <= b if op == "index<=" else a < b
    found = _NUMPY[op](*(_term(a, env, tensors, kind) for a in args))
    if op in ("tanh", "sigmoid"):
        found = found + env[""]
    return found if np.asarray(found).dtype == bool else np.asarray(found).astype(kind)


def _index(index: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return env[index]
    op, a, b = index
    x, y = _index(a, env), _index(b, env)
    return {"+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.mod}[op](x, y)


# -- tensor expressions ---------------------------------------------------------------------------------------


def tensor_expressions(definition: Data) -> tuple[list[Any], list[Any]]:
    """The placeholders, and the outputs, for `operators.custom`."""
    from tvm import te

    tensors: dict[str, Any] = {
        name: te.placeholder(tuple(shape), definition["dtype"], name=name)
        for name, shape in definition["inputs"].items()
    }
    placeholders = list(tensors.values())
    for stage in definition["stages"]:
        tensors[stage["name"]] = _compute(stage, tensors)
    return placeholders, [tensors[name] for name in definition["outputs"]]


def _compute(stage: Data, tensors: Mapping[str, Any]) -> Any:
    from tvm import te

    folds = {var: te.reduce_axis((0, extent), name=var) for var, extent in stage["fold"]}
    names = [var for var, _ in stage["space"]]

    def body(*indices: Any) -> Any:
        env = {**dict(zip(names, indices, strict=True)), **{var: axis.var for var, axis in folds.items()}}
        value = _te_term(stage["term"], env, tensors)
        return value if not folds else getattr(te, stage["reducer"])(value, axis=list(folds.values()))

    if stage.get("reducer") == "prod":
        te_prod = te.comm_reducer(lambda a, b: a * b, lambda dtype: _const(1.0, dtype), name="prod")

        def body(*indices: Any) -> Any:
            env = {**dict(zip(names, indices, strict=True)), **{var: axis.var for var, axis in folds.items()}}
            return te_prod(_te_term(stage["term"], env, tensors), axis=list(folds.values()))

    return te.compute(tuple(extent for _, extent in stage["space"]), of_arity(body, names), name=stage["name"])


def of_arity(body: Any, names: list[str]) -> Any:
    """`body` with parameters of these names, which TVM reads to name the loops."""
    scope: dict[str, Any] = {"body": body}
    exec(f"def stage({', '.join(names)}):\n    return body({', '.join(names)})\n", scope)  # names are the generator's
    return scope["stage"]


def _const(value: float, dtype: str = "float32") -> Any:
    from tvm import tirx

    return tirx.const(value, dtype)


def _te_term(term: Any, env: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    from tvm import te

    if isinstance(term, int | float):
        return _const(float(term))
    op, *args = term
    if op == "at":
        read = tensors[args[0]][tuple(_te_index(index, env) for index in args[1:])]
        return read if str(read.dtype) == "float32" else read.astype("float32")
    if op in ("index<=", "index<"):
        a, b = (_te_index(index, env) for index in args)
        return a <= b if op == "index<=" else a < b
    made = [_te_term(a, env, tensors) for a in args]
    infix = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
        "gt": lambda a, b: a > b, "le": lambda a, b: a <= b, "lt": lambda a, b: a < b,
        "neg": lambda a: a * _const(-1.0),
        "square": lambda a: a * a, "max": te.max, "min": te.min, "where": te.if_then_else, "and": te.all,
    }  # fmt: skip
    return infix[op](*made) if op in infix else getattr(te, op)(*made)


def _te_index(index: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return env[index]
    op, a, b = index
    x, y = _te_index(a, env), _te_index(b, env)
    return {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "//": lambda: x // y, "%": lambda: x % y}[op]()


# -- text -----------------------------------------------------------------------------------------------------


def to_python(definition: Data) -> list[str]:
    """The definition as lines of Python that make `op`, for people to paste."""
    lines = [
        f'{name} = te.placeholder({tuple(shape)}, "{definition["dtype"]}", name="{name}")'
        for name, shape in definition["inputs"].items()
    ]
    for stage in definition["stages"]:
        names = ", ".join(var for var, _ in stage["space"])
        shape = tuple(extent for _, extent in stage["space"])
        term = _text(stage["term"])
        if stage["fold"]:
            axes = [f"{var}_{stage['name']}" for var, _ in stage["fold"]]
            for axis, (var, extent) in zip(axes, stage["fold"], strict=True):
                lines.append(f'{axis} = te.reduce_axis((0, {extent}), name="{var}")')
            term = _text(stage["term"], dict(zip([v for v, _ in stage["fold"]], axes, strict=True)))
            term = f"te.{stage['reducer']}({term}, axis=[{', '.join(axes)}])"
        lines.append(f'{stage["name"]} = te.compute({shape}, lambda {names}: {term}, name="{stage["name"]}")')
    given = ", ".join(definition["outputs"])
    lines.append(f'op = nl.operators.custom("f", [{", ".join(definition["inputs"])}], [{given}])')
    return lines


_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "gt": ">",
    "le": "<=",
    "lt": "<",
    "index<=": "<=",
    "index<": "<",
}


def _text(term: Any, rename: Mapping[str, str] | None = None) -> str:
    rename = rename or {}

    def index(value: Any) -> str:
        if isinstance(value, int):
            return str(value)
        return (
            rename.get(value, value) if isinstance(value, str) else f"({index(value[1])} {value[0]} {index(value[2])})"
        )

    if isinstance(term, int | float):
        return (
            f'tirx.const({float(term)}, "float32")' if np.isfinite(term) else f'tirx.const(float("{term}"), "float32")'
        )
    op, *args = term
    if op == "at":
        return f"{args[0]}[{', '.join(index(a) for a in args[1:])}]"
    if op.startswith("index"):
        return f"({index(args[0])} {_INFIX[op]} {index(args[1])})"
    parts = [_text(a, rename) for a in args]
    if op in _INFIX:
        return f"({parts[0]} {_INFIX[op]} {parts[1]})"
    if op == "neg":
        return f"({parts[0]} * -1.0)"
    if op == "square":
        return f"({parts[0]} * {parts[0]})"
    name = {"where": "if_then_else", "and": "all"}.get(op, op)
    return f"te.{name}({', '.join(parts)})"
