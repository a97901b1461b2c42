"""Evaluates the definition stage by stage in NumPy: the reference that every later form of the program is compared
with."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from neptune_lab.htile.rounding import AS_FLOAT32, round_to
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, Var
from neptune_lab.loop_ir.positions import may_be_outside
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.walks import variables
from neptune_lab.scalar_ops import NUMPY, OPERATIONS

Array = np.ndarray
Arrays = dict[str, np.ndarray]

_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "any": np.any, "all": np.all,
}  # fmt: skip
_ROUNDING = 2.0**-23
_ROUNDED = np.array([1 - _ROUNDING, 1 + _ROUNDING])
# Beyond it, a sum may overflow on the way ("Near the largest float" in docs/concepts/numbers.md).
_LARGE = 1e35


def evaluate(
    definition: Program,
    inputs: Mapping[str, Array],
    *,
    wide: bool = False,
    moved: float = 0.0,
    unclear: Collection[str] = (),
    rounding: np.random.Generator | None = None,
) -> Arrays:
    """Evaluates every stage of the definition in order: all tensors by name.

    Args:
        definition: a program before any step, one block per stage.
        inputs: an array per input, of its shape; `evaluate_sets` takes several of each.
        wide: floats are float64, and conversions between floats do nothing; else each stage is in its own dtype.
        moved: added to the result of each function whose error is absolute (tanh and sigmoid).
        unclear: stages whose infinities are NaN here, since the promise allows both.
        rounding: moves the result of each operation that rounds, at random, by about a rounding of float32, and makes
            NaN at random of sums whose terms are near the largest float.
    """
    one = {name: np.asarray(inputs[name])[None] for name in definition.inputs}
    arrays = evaluate_sets(definition, one, wide=wide, moved=moved, unclear=unclear, rounding=rounding)
    return {name: a[0] for name, a in arrays.items()}


def evaluate_sets(
    definition: Program,
    inputs: Mapping[str, Array],
    *,
    wide: bool = False,
    moved: float = 0.0,
    unclear: Collection[str] = (),
    rounding: np.random.Generator | None = None,
) -> Arrays:
    """As `evaluate`, for several sets of inputs at once: the first axis of every array, of inputs and of results, is
    the set."""
    sets = len(inputs[definition.inputs[0]]) if definition.inputs else 1
    machine = _Machine(definition, wide, moved, rounding, sets)
    for name in definition.inputs:
        machine.arrays[name] = machine.convert(np.asarray(inputs[name]), definition.buffer(name).dtype)
    with np.errstate(all="ignore"):
        for block in tree.blocks(definition):
            machine.stage(block)
            values = machine.arrays[block.writes]
            if block.name in unclear and values.dtype.kind == "f":
                machine.arrays[block.writes] = np.where(np.isfinite(values), values, np.asarray(np.nan, values.dtype))
    return machine.arrays


class _Machine:
    """The first axis of every array, and of every value of an expression, is the set of inputs; it is 1 for a value
    that is the same in all of them."""

    def __init__(
        self, program: Program, wide: bool, moved: float, rounding: np.random.Generator | None, sets: int
    ) -> None:
        self.program, self.wide, self.moved, self.rounding, self.sets = program, wide, moved, rounding, sets
        self.arrays: Arrays = {}
        self.every = np.arange(sets)  # the numbers of the sets, of as many axes as values of the stage have
        self.places: dict[str, int] = {}  # the axis of each iteration of the stage in its values

    def convert(self, value: Any, dtype: str) -> Array:
        if "float" in dtype and self.wide:
            return np.asarray(value, np.float64)
        if dtype in AS_FLOAT32:
            return round_to(np.asarray(value, np.float32), dtype)
        array = np.asarray(value)
        if array.dtype.kind == "f" and "int" in dtype:
            # What NaN and numbers out of range are as whole numbers is not stated: two that are far apart.
            limits = np.iinfo(dtype)
            held = (array > limits.min - 1.0) & (array < limits.max + 1.0)
            array = np.where(held, array, 3.0 if self.wide else float(limits.max // 4))
        return array.astype(dtype)

    def stage(self, block: Block) -> None:
        """Computes a stage for all sets of inputs at once."""
        kept = [it for it in block.iters if it.kind == "spatial"]
        folded = [it for it in block.iters if it.kind == "reduce"]
        axes = [it.name for it in (*kept, *folded)]
        extents = tuple(it.extent for it in (*kept, *folded))
        env = {
            name: np.arange(extent, dtype=np.int32).reshape([1, *(-1 if n == m else 1 for m in range(len(axes)))])
            for n, (name, extent) in enumerate(zip(axes, extents, strict=True))
        }
        self.every = np.arange(self.sets).reshape([-1, *(1 for _ in axes)])
        self.places = {name: 1 + n for n, name in enumerate(axes)}
        dtype = self.program.buffer(block.writes).dtype
        if folded:
            reduction = match_reduction(block)
            value = self.product(reduction.term, env, axes, len(kept)) if reduction.reducer == "sum" else None
            if value is None:
                term = np.broadcast_to(self.expr(reduction.term, env), (self.sets, *extents))
                value = _REDUCE[reduction.reducer](term, axis=tuple(range(1 + len(kept), 1 + len(axes))))
            if reduction.reducer in ("sum", "prod"):
                value = self.rounded(value)
            if reduction.reducer == "sum" and self.rounding is not None:
                value = self.ordered(value, reduction.term, env, (self.sets, *extents))
        else:
            value = np.broadcast_to(self.expr(block.body.value, env), (self.sets, *extents))
        order = [1 + axes.index(i.name) for i in block.body.indices if isinstance(i, Var)]
        # A tensor without dimensions is written by a stage with one iteration.
        idle = tuple(n for n in range(1, 1 + len(kept)) if n not in order)
        value = np.transpose(np.broadcast_to(value, (self.sets, *extents[: len(kept)])), [0, *order, *idle])
        value = value.reshape(value.shape[: 1 + len(order)])
        self.arrays[block.writes] = self.convert(value, dtype)

    def product(self, term: Expr, env: Mapping[str, Array], axes: list[str], kept: int) -> Array | None:
        """A sum of products of two factors by one matrix product; None if the term is not of that form."""
        match term:
            case Op("mul", (left, right)):
                pass
            case _:
                return None
        sides = [variables(left), variables(right)]
        folded = set(axes[kept:])
        if not folded <= sides[0] & sides[1]:
            return None
        batch = [a for a in axes[:kept] if a in sides[0] & sides[1] or a not in sides[0] | sides[1]]
        own = [[a for a in axes[:kept] if a in sides[n] and a not in sides[1 - n]] for n in (0, 1)]
        if not own[0] or not own[1]:
            return None
        size = {a: env[a].size for a in axes}
        matrices = []
        for n, side in enumerate((left, right)):
            whole = [*batch, *own[n], *axes[kept:]] if n == 0 else [*batch, *axes[kept:], *own[n]]
            value = self.expr(side, env)
            missing = set(axes) - set(whole)
            value = np.broadcast_to(value, [self.sets, *(1 if a in missing else size[a] for a in axes)])
            order = [1 + axes.index(a) for a in (*whole, *(a for a in axes if a in missing))]
            value = np.transpose(value, [0, *order])
            lead = self.sets * math.prod(size[a] for a in batch)
            inner, mine = math.prod(size[a] for a in folded), math.prod(size[a] for a in own[n])
            matrices.append(value.reshape((lead, mine, inner) if n == 0 else (lead, inner, mine)))
        now = [*batch, *own[0], *own[1]]
        made = (matrices[0] @ matrices[1]).reshape([self.sets, *(size[a] for a in now)])
        return np.transpose(made, [0, *(1 + now.index(a) for a in axes[:kept])])

    def rounded(self, value: Array) -> Array:
        if self.rounding is None or value.dtype.kind != "f":
            return value
        return value * _ROUNDED[self.rounding.integers(0, 2, value.shape)]

    def ordered(self, value: Array, term: Expr, env: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
        """A sum; NaN at random if the order of its terms decides whether it overflows in float32."""
        assert self.rounding is not None
        if value.dtype == np.float64 and self.most(term) * math.prod(shape[value.ndim :]) <= _LARGE:
            return value
        terms = np.broadcast_to(self.expr(term, env), shape).astype(np.float64)
        folded = tuple(range(value.ndim, len(shape)))
        largest = np.finfo(np.float32).max
        up, down = (terms > largest).any(axis=folded), (terms < -largest).any(axis=folded)
        finite = np.where(np.abs(terms) <= largest, terms, 0.0)
        above, below = (np.where(side > 0, side, 0.0).sum(axis=folded) for side in (finite, -finite))
        # (beside an infinite term, those of the other sign count, which may make an infinity of that sign; of infinite
        # terms of both signs, a matrix product of a library makes any number)
        beside = (up & (below > _LARGE)) | (down & (above > _LARGE)) | (up & down)
        near = np.where(up | down, beside, above + below > _LARGE)
        return np.where(near & (self.rounding.random(value.shape) < 0.5), np.nan, value)

    def most(self, e: Expr) -> float:
        """At least the largest finite value of an expression of reads, products and conversions between floats; an
        infinity for any other.

        A product is finite only if its factors are, so it is at most the product of their largest finite values.
        """
        match e:
            case Load(buffer, _) if self.arrays[buffer].dtype.kind == "f":
                array = self.arrays[buffer]
                return float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))
            case Cast(dtype, arg) if self.wide and "float" in dtype:
                return self.most(arg)
            case Op("mul", (left, right)):
                return self.most(left) * self.most(right)
        return math.inf

    def whole(self, array: Array, indices: tuple[Expr, ...], env: Mapping[str, Array]) -> Array | None:
        """A read at iterations of the stage as a view, which takes no time; None if an index is anything else."""
        names = [i.name for i in indices if isinstance(i, Var)]
        if len(set(names)) < len(indices):
            return None
        sizes = [env[name].size for name in names]
        if any(size > n for size, n in zip(sizes, array.shape[1:], strict=True)):
            return None
        part = array[(slice(None), *(slice(size) for size in sizes))]
        axes = [self.places[name] for name in names]
        part = np.transpose(part, [0, *(1 + n for n in np.argsort(axes))])
        return part[(slice(None), *(slice(None) if n in axes else None for n in range(1, self.every.ndim)))]

    def expr(self, e: Expr, env: Mapping[str, Array]) -> Any:
        match e:
            case Const(value, dtype):
                return self.convert(np.asarray(value), dtype)
            case Var(name):
                return env[name]
            case Load(buffer, indices):
                array = self.arrays[buffer]
                whole = self.whole(array, indices, env)
                if whole is not None:
                    return whole
                places = [np.asarray(self.expr(i, env)) for i in indices]
                # A read that a condition guards may be out of bounds if the condition is false.
                inside = [
                    p if isinstance(i, Var) and p.size <= n else np.clip(p, 0, n - 1)
                    for i, p, n in zip(indices, places, array.shape[1:], strict=True)
                ]
                values = array[(self.every, *inside)]
                # An index of data or floats may be anything; outside of the tensor it reads 0.
                for index, place, n in zip(indices, places, array.shape[1:], strict=True):
                    if may_be_outside(index):
                        values = np.where((place >= 0) & (place < n), values, np.zeros((), array.dtype))
                return values
            case Cast(dtype, arg):
                return self.convert(self.expr(arg, env), dtype)
            case Op(name, args):
                parts = [self.expr(a, env) for a in args]
                result = np.asarray(NUMPY[name](*parts))
                if OPERATIONS[name].absolute_error and self.moved:
                    result = result + self.moved
                if not OPERATIONS[name].exact:
                    result = self.rounded(result)
                # NumPy computes a function of whole numbers in float64; single precision is what was written.
                written = self.wide or name == "select" or any(np.asarray(p).dtype == np.float64 for p in parts)
                return result if written or result.dtype != np.float64 else result.astype(np.float32)
        raise TypeError(f"{type(e).__name__} is not part of a definition")
