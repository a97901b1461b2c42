"""Programs with sizes that are known at the launch: made from programs at samples, and made static again.

A compiler that works on numbers makes one program per length.  Programs for several lengths by the same steps are the
same tree with other numbers at the same places; `generalized` replaces each such number by an expression of the sizes
that gives it at every sample.  The result is accepted only if `at(result, sample)` is, node for node, the program that
was made for that sample.  The expressions are those that tiling makes: multiples of a size, and numbers of tiles
ceil(size / extent).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import product
from typing import Any

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.at_sample import AtSample, Sample, at, field_names, folded
from neptune_lab.htile.bounds import Interval, interval
from neptune_lab.htile.tile_bounds import INT32
from neptune_lab.htile.walk import evaluate, names_of_index, simplify
from neptune_lab.tensor_spec import LARGEST


def generalized(
    programs: Sequence[ir.Program],
    samples: Sequence[Sample],
    divisors: Collection[int],
    largest: Mapping[str, int] | None = None,
) -> ir.Program:
    """One program for all sizes, from programs that the same steps made at some.

    Args:
        programs: at least four, without sizes.
        samples: the sizes of each, by name.
        divisors: what sizes are cut into besides tiles: tiles times the number of splits.
        largest: the largest value of a size by name; None, or no such name: `LARGEST`.

    Returns:
        A program with `sizes`; its shapes are those of the first.

    Raises:
        TileError: the programs differ in more than numbers, or a number is no multiple of a size and no number of
            tiles.
    """
    for taken in sorted(variables(programs[0]) & set(samples[0])):
        raise TileError(
            f"{taken!r} is the name of a size and of a loop of {programs[0].name}, which are variables of one kernel",
            help=f'give the size another name, such as nl.dim("n_{taken}")',
        )
    literals = AtSample({})
    programs = [literals.program(program) for program in programs]  # (a number is a literal, as it will be at a sample)
    made = _Generalizer(programs, samples, sorted({*divisors, *_extents(programs[0])} - {1}), largest or {}).program()
    for program, sample in zip(programs, samples, strict=True):
        if at(made, sample) != program:
            raise TileError(
                f"program {program.name} at {_sample_text(sample)} is not its generalization at these sizes",
                help="compile it for one size",
            )
    return replace(made, kernels=tuple(replace(k, body=_from_zero(k.body)) for k in made.kernels))


def _from_zero(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """`body` with loops that begin at 0 or later.

    Every loop is a part of one from 0 on.  The first iteration of a part may be below 0 at sizes of which there is no
    sample: those at which a split of the columns is empty.
    """
    made: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.For):
            start = stmt.start if isinstance(stmt.start, ir.Int) else ir.Arith("max", stmt.start, ir.Int(0))
            stmt = replace(stmt, start=start, body=_from_zero(stmt.body))
        made.append(stmt)
    return tuple(made)


def corners(program: ir.Program) -> Iterator[Sample]:
    """Sizes at which tiles and their ends fall in every way: one row, a whole number of tiles, one row more.

    Bounds of index expressions are linear in the sizes and in the numbers of tiles between these corners.
    """
    extents = sorted({s for s in _extents(program) if s > 1})
    inner = {1, 2, 3}
    for extent in extents:
        inner |= {extent, extent + 1, 3 * extent, 3 * extent + 1}
    # Sizes meet in masks only, so they are varied one by one, with the others small, equal and large.
    small = {1, max(extents, default=1) + 1}
    seen: dict[tuple[int, ...], None] = {}
    for n, size in enumerate(program.sizes):
        for value in sorted({*inner, size.most - 1, size.most}):
            every = [sorted({min(v, o.most) for v in (*small, o.most, value)}) for o in program.sizes]
            every[n] = [min(value, size.most)]
            seen.update(dict.fromkeys(product(*every)))
    for chosen in seen:
        yield {size.name: v for size, v in zip(program.sizes, chosen, strict=True)}


def at_samples(program: ir.Program) -> Iterator[ir.Program]:
    """The program at sizes at which it is verified: few, since bounds are checked at all corners when masks are
    written; itself if it has no sizes that are known at the launch."""
    if not program.sizes:
        yield program
        return
    every = list(corners(program))
    for sample in every[:: max(1, len(every) // 8)]:
        yield at(program, sample)


def grid_envs(program: ir.Program, kernel: ir.Kernel) -> list[dict[str, Interval]]:
    """The bounds of a kernel's grid variables and of the sizes, at every corner of these."""
    return [grid_env_at(kernel, sample) for sample in (corners(program) if program.sizes else ({},))]


def grid_env_at(kernel: ir.Kernel, sample: Sample) -> dict[str, Interval]:
    """The bounds of the grid's variables, and of the sizes, at one sample of these."""
    env = {name: Interval(value, value) for name, value in sample.items()}
    for axis in kernel.grid:
        extent = axis.extent if axis.size is None else evaluate(axis.size, sample)
        env[axis.var] = Interval(0, extent - 1)
    return env


def variables(program: ir.Program) -> set[str]:
    """The names of all variables of grids and loops."""

    def inside(body: tuple[ir.Stmt, ...]) -> Iterator[str]:
        for stmt in body:
            if isinstance(stmt, ir.For):
                yield stmt.var
                yield from inside(stmt.body)

    grids = {axis.var for kernel in program.kernels for axis in kernel.grid}
    return grids | {name for kernel in program.kernels for name in inside(kernel.body)}


def _sample_text(sample: Sample) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sample.items())


def _extents(node: Any) -> Iterator[int]:
    """The extents of all slices."""
    if isinstance(node, ir.Slice):
        yield node.extent
    for child in _children(node):
        yield from _extents(child)


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, tuple):
        yield from node
    elif is_dataclass(node):
        for name in field_names(type(node)):
            yield getattr(node, name)


def expressions(node: Any, names: Collection[str]) -> Iterator[ir.IndexExpr]:
    """The index expressions in a program that have sizes and no other variables, the outermost of each, in order."""
    if isinstance(node, ir.Name | ir.Arith):
        used = names_of_index(node)
        if used and used <= set(names):
            yield node
            return
    for child in _children(node):
        yield from expressions(child, names)


# -- expressions of sizes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Base:
    """A quantity that numbers of the program are multiples of, and its values at the samples."""

    expr: ir.IndexExpr
    values: tuple[int, ...]


def _ceiling(size: ir.IndexExpr, by: int) -> ir.IndexExpr:
    return ir.Arith("//", ir.Arith("+", size, ir.Int(by - 1)), ir.Int(by))


# Why numbers of the programs have no expression.
_NOTHING = "which no expression of these sizes gives"
_HELD = "and a tile has the same extent at all sizes: one tile holds a whole dimension, or is made for its length"


class _Generalizer:
    def __init__(
        self,
        programs: Sequence[ir.Program],
        samples: Sequence[Sample],
        divisors: Sequence[int],
        largest: Mapping[str, int],
    ) -> None:
        self.programs, self.samples = programs, samples
        names = tuple(samples[0])
        self.sizes = tuple(ir.Size(name, samples[0][name], largest.get(name, LARGEST)) for name in names)
        self.bases: list[_Base] = []
        singles = [ir.Name(name) for name in names]
        for name in singles:
            self._add(name)
        for name, by in product(singles, divisors):
            self._add(_ceiling(name, by))
        for name, by in product(singles, divisors):
            # The elements of the last tile, less a whole tile; 0, and not one tile less, if tiles divide the size.
            self._add(ir.Arith("-", name, ir.Arith("*", _ceiling(name, by), ir.Int(by))))
        for n, one in enumerate(singles):
            for other in singles[n:]:
                self._add(ir.Arith("*", one, other))

    def _add(self, expr: ir.IndexExpr) -> None:
        values = tuple(evaluate(expr, sample) for sample in self.samples)
        if len(set(values)) > 2 and all(values != base.values for base in self.bases):
            self.bases.append(_Base(expr, values))

    def program(self) -> ir.Program:
        made = self.node(tuple(self.programs), "program")
        return replace(made, sizes=self.sizes)

    def node(self, nodes: tuple[Any, ...], where: str) -> Any:
        first = nodes[0]
        if all(node is first or node == first for node in nodes[1:]) and all(type(n) is type(first) for n in nodes):
            return first
        if any(type(node) is not type(first) for node in nodes):
            self.refuse(nodes, where)
        match first:
            case ir.Int():
                return self.number(tuple(node.value for node in nodes), where)
            case ir.Literal(dtype=dtype):
                return self.literal(tuple(node.value for node in nodes), dtype, where)
            case ir.Tensor(name=name):
                if any(len(node.shape) != len(first.shape) for node in nodes):  # (axes of some strides are one axis)
                    self.refuse(nodes, where)
                shapes = tuple(zip(*(node.shape for node in nodes), strict=True))
                sizes = tuple(self.extent(values, f"tensor {name}") for values in shapes)
                plain = {replace(node, shape=first.shape, strides=None) for node in nodes}
                if len(plain) > 1:
                    self.refuse(nodes, where)
                return replace(first, sizes=sizes, steps=self.strides(nodes, f"strides of {name}"))
            case ir.GridAxis(var=var):
                if any(node.var != var for node in nodes):
                    self.refuse(nodes, where)
                return replace(first, size=self.extent(tuple(node.extent for node in nodes), f"grid axis {var}"))
            case tuple():
                if any(len(node) != len(first) for node in nodes):
                    self.refuse(nodes, where)
                return tuple(self.node(items, where) for items in zip(*nodes, strict=True))
        if not is_dataclass(first):
            held = isinstance(first, int) and any(_fitted(base, nodes) is not None for base in self.bases)
            self.refuse(nodes, where, _HELD if held else _NOTHING)
        if isinstance(first, ir.Store | ir.For | ir.Kernel):
            where = first.node_id
        made = {n: self.node(tuple(getattr(node, n) for node in nodes), where) for n in field_names(type(first))}
        return type(first)(**made)

    def strides(self, tensors: tuple[ir.Tensor, ...], where: str) -> tuple[ir.IndexExpr, ...] | None:
        """The strides of a tensor in terms of sizes; None if they are the same at all samples."""
        every = {tensor.strides for tensor in tensors}
        if len(every) == 1:
            return None
        if None in every:
            self.refuse(tuple(tensor.strides for tensor in tensors), where)
        steps = []
        for values in zip(*(tensor.strides or () for tensor in tensors), strict=True):
            step = self.extent(values, where)
            if multiple_of(step) is None:
                self.refuse(values, where)
            steps.append(step)
        return tuple(steps)

    def extent(self, values: tuple[int, ...], where: str) -> ir.IndexExpr:
        return ir.Int(values[0]) if len(set(values)) == 1 else self.number(values, where)

    def number(self, values: tuple[int, ...], where: str) -> ir.IndexExpr:
        """factor * base + offset: the simplest that gives all values."""
        fits = [(base, fitted) for base in self.bases if (fitted := _fitted(base, values)) is not None]
        if not fits:
            return self.refuse(values, where)
        base, (factor, offset) = min(fits, key=lambda fit: (fit[1][0] != 1, fit[1][1] != 0))
        return simplify(ir.Arith("+", ir.Arith("*", base.expr, ir.Int(factor)), ir.Int(offset)))

    def literal(self, values: tuple[Any, ...], dtype: str, where: str) -> ir.TileExpr:
        if dtype.startswith("int") and all(isinstance(value, int) for value in values):
            number = self.number(values, where)
            if dtype == "int64" and not self.is_int32(number):
                return self.refuse(values, where)
            return ir.Scalar(number) if dtype == "int32" else ir.Cast(ir.Scalar(number), dtype)
        if dtype == "float32":
            whole = tuple(int(value) if float(value).is_integer() else 0 for value in values)
            if all(a == b and abs(a) < 1 << 24 for a, b in zip(values, whole, strict=True)):
                return ir.Cast(ir.Scalar(self.number(whole, where)), dtype)
            scaled = self.scaled(values)
            if scaled is not None:
                return scaled
        return self.refuse(values, where)

    def is_int32(self, number: ir.IndexExpr) -> bool:
        """Whether a kernel may compute an expression in int32, whatever the sizes are."""
        found = interval(number, {size.name: Interval(1, size.most) for size in self.sizes})
        return INT32.lo <= found.lo and found.hi <= INT32.hi

    def scaled(self, values: tuple[float, ...]) -> ir.TileExpr | None:
        """constant / size, as in a mean, or constant * size, that is each of these values to the last bit."""
        for size in self.sizes:
            numbers = [sample[size.name] for sample in self.samples]
            name = ir.Cast(ir.Scalar(ir.Name(size.name)), "float32")
            for op, inverse in (("div_rn", values[0] * numbers[0]), ("mul", values[0] / numbers[0])):
                for constant in (float(f"{inverse:.12g}"), inverse):
                    if all(folded(op, constant, a) == b for a, b in zip(numbers, values, strict=True)):
                        return ir.Elementwise(op, (ir.Literal(constant, "float32"), name), "float32")
        return None

    def refuse(self, found: tuple[Any, ...], where: str, cause: str = _NOTHING) -> Any:
        kinds = {type(item).__name__ for item in found}
        what = ", ".join(sorted(kinds)) if len(kinds) > 1 else ", ".join(_short(item) for item in found)
        samples = "; ".join(map(_sample_text, self.samples))
        raise TileError(
            f"{where}: the programs at {samples} have {what} here, {cause}",
            help="compile it for one size",
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _fitted(base: _Base, values: tuple[int, ...]) -> tuple[int, int] | None:
    """(factor, offset) such that factor * base + offset has these values at the samples, if they are whole."""
    low, high = (
        min(range(len(values)), key=base.values.__getitem__),
        max(range(len(values)), key=base.values.__getitem__),
    )
    factor, rest = divmod(values[high] - values[low], base.values[high] - base.values[low])
    if rest or factor == 0:
        return None
    offset = values[low] - factor * base.values[low]
    if any(factor * b + offset != value for b, value in zip(base.values, values, strict=True)):
        return None
    return factor, offset


def multiple_of(step: ir.IndexExpr) -> tuple[str, int] | None:
    """The size that a stride is a multiple of, and the factor; ("", factor) for a constant; None for anything else.

    >>> multiple_of(ir.Arith("*", ir.Name("n"), ir.Int(64))), multiple_of(ir.Int(8))
    (('n', 64), ('', 8))
    """
    match step:
        case ir.Int(value=value):
            return "", value
        case ir.Name(name=name):
            return name, 1
        case ir.Arith(op="*", a=ir.Name(name=name), b=ir.Int(value=value)):
            return name, value
        case ir.Arith(op="*", a=ir.Int(value=value), b=ir.Name(name=name)):
            return name, value
    return None


def product_of(sizes: Sequence[ir.IndexExpr]) -> ir.IndexExpr:
    """The product of some sizes, the constant factor last."""
    constant = math.prod(size.value for size in sizes if isinstance(size, ir.Int))
    made: ir.IndexExpr | None = None
    for size in sizes:
        if not isinstance(size, ir.Int):
            made = size if made is None else ir.Arith("*", made, size)
    return ir.Int(constant) if made is None else simplify(ir.Arith("*", made, ir.Int(constant)))


__all__ = [
    "Sample",
    "at",
    "at_samples",
    "corners",
    "expressions",
    "generalized",
    "grid_envs",
    "multiple_of",
    "product_of",
    "variables",
]
