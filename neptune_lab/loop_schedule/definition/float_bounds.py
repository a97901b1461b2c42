"""Bounds on the values of a definition's stages for finite inputs, also from what relates two values.

Interval arithmetic alone knows nothing about x - max x, sum exp(x - max x) or x / sqrt(sum x²).  Here

- a - m is at most 0 if m is a maximum that a takes part in;
- a sum of exp(x - m) over all that the maximum m is taken of is at least 1: the largest term is exp(0);
- x / sqrt(sum x²) and x / max |x| are at most 1 in magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Program, Var, children, rebuild
from neptune_lab.loop_ir.reduction import match_reduction, reducer_of
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.value_range import ValueRange, range_of_operation
from neptune_lab.loop_ir.walks import substitute, variables, walk_once
from neptune_lab.loop_schedule.definition.stages import computed, without_casts
from neptune_lab.strict.dtypes import INTEGERS, LARGEST_FINITE

# What a bound over the reals stays below if the value is finite in float32 after a few roundings.
FINITE_IN_FLOAT32 = (1 - 1e-5) * LARGEST_FINITE["float32"]
# The least magnitudes that are rounded to infinity.
ROUNDS_TO_INFINITY = {"float16": 65520.0, "bfloat16": 3.3961e38}
# A quotient that is at most 1 over the reals may be 1 and a few roundings.
_ONE = 1.0 + 1e-5
# The most nodes of an expression of inputs and reductions.
_MOST_NODES = 2000

_fresh = count()


@dataclass(frozen=True, slots=True)
class _Family:
    """An expression for each value of some variables, by their extents: what a reduction folds, or one value."""

    value: Expr
    over: Mapping[str, int]


class Bounds:
    """Bounds on values of one definition.

    Args:
        program: the definition.
        extents: of the iterations that expressions are over, by name.
    """

    def __init__(self, program: Program, extents: Mapping[str, int]) -> None:
        self.program = program
        self.extents = dict(extents)
        self._known: dict[Expr, ValueRange] = {}

    def of(self, expr: Expr) -> ValueRange:
        """The range of a value, if all inputs are finite and nothing before it overflows.

        Args:
            expr: over the iterations and the tensors of the definition.

        Returns:
            The range; an end is infinite if no bound is known.
        """
        form = self._form(expr)
        if form not in self._known:
            self._known[form] = self._of(expr)
        return self._known[form]

    def _form(self, expr: Expr) -> Expr:
        """The same expression for all names of its variables, as `_folded` makes new ones: only their ranges matter.

        Without it, the layers of a deep model would double what there is to bound: each read would be of other names.
        """
        names = dict.fromkeys(node.name for node in walk_once(expr) if isinstance(node, Var))
        return substitute(expr, {n: Var(f"*{i} of {self.extents.get(n)}") for i, n in enumerate(names)})

    def magnitude(self, expr: Expr) -> float:
        """The largest magnitude of a value; `of` has the conditions.

        Args:
            expr: as in `of`.

        Returns:
            A number, or infinity.
        """
        found = self.of(expr)
        return max(abs(found.low), abs(found.high))

    def _of(self, expr: Expr) -> ValueRange:
        """The range of an expression, by its form."""
        match expr:
            case Const(value):
                return ValueRange(float(value), float(value))
            case Var(name):
                return ValueRange(0.0, float(self.extents[name] - 1) if name in self.extents else math.inf)
            case Cast(dtype, arg) if "float" in dtype:
                return self.of(arg)
            case Op("select", (_, a, b)):
                return self.of(a).hull(self.of(b))
            case Op("mul", (a, b)) if without_casts(a) == without_casts(b):
                most = self.magnitude(a)
                return ValueRange(0.0, most * most)
            case Op("sub", (a, b)):
                plain = range_of_operation("sub", [self.of(a), self.of(b)])
                return ValueRange(plain.low, min(plain.high, 0.0)) if self.is_maximum_with(b, a) else plain
            case Op("div", (a, b)):
                plain = range_of_operation("div", [self.of(a), self.of(b)])
                if self.is_norm_of(b, a):
                    return ValueRange(max(plain.low, -_ONE), min(plain.high, _ONE))
                return plain
            case Op("add", (a, b)):
                plain = range_of_operation("add", [self.of(a), self.of(b)])
                return ValueRange(max(plain.low, 1.0), plain.high) if self.has_exp_of_0(expr) else plain
            case Op(name, args):
                return range_of_operation(name, [self.of(a) for a in args])
            case Load():
                return self._of_stage(expr)
        return ValueRange()

    def _of_stage(self, read: Load) -> ValueRange:
        buffer = self.program.buffer(read.buffer)
        if read.buffer in self.program.inputs:
            most = LARGEST_FINITE.get(buffer.dtype)
            if most is not None:
                return ValueRange(-most, most)
            return ValueRange(0.0, 1.0) if buffer.dtype == "bool" else ValueRange(-(2.0**63), 2.0**63)
        value = computed(self.program, read)
        if value is not None:
            return self.of(value)
        family = self._folded(read)
        if family is None:
            return ValueRange()
        reducer = reducer_of(writer_of(self.program, read.buffer))  # type: ignore[arg-type]
        each = self.of(family.value)
        if reducer in ("max", "min"):
            return each
        if reducer == "sum":
            terms = math.prod(family.over.values())
            low = each.low * (terms if each.low < 0 else 1)
            high = each.high * (terms if each.high > 0 else 1)
            return ValueRange(max(low, 1.0) if self.has_exp_of_0(read) else low, high)
        return ValueRange()

    def _folded(self, read: Load) -> _Family | None:
        """The terms that a reduction folds into an element, over variables of fresh names."""
        block = writer_of(self.program, read.buffer)
        if block is None or not block.is_reduction or reducer_of(block) is None or block.predicates:
            return None
        env: dict[str, Expr] = {}
        for own, index in zip(block.body.indices, read.indices, strict=True):
            if not isinstance(own, Var):
                return None
            env[own.name] = index
        over: dict[str, int] = {}
        for it in block.iters:
            if it.kind == "reduce":
                name = f"*{next(_fresh)}"
                env[it.name], over[name] = Var(name), it.extent
        self.extents.update(over)
        return _Family(substitute(match_reduction(block).term, env), over)

    # -- maxima ---------------------------------------------------------------------------------------------

    def is_maximum_with(self, m: Expr, a: Expr) -> bool:
        """Whether m is a maximum of several values that a is one of, so that a - m is at most 0.

        Args:
            m, a: as in `of`.

        Returns:
            True if it is shown.
        """
        wanted = self._expanded(a)
        return wanted is not None and any(
            (own := self._expanded(leaf.value)) is not None and self._is_among(wanted, own, leaf.over)
            for leaf in self._operands(m, "max")
        )

    def _operands(self, expr: Expr, name: str, over: Mapping[str, int] | None = None) -> Iterator[_Family]:
        """What an expression combines by `name` ("max" or "add"), through stages and reductions."""
        over = over or {}
        inner = without_casts(expr)
        match inner:
            case Op(op, args) if op == name:
                for arg in args:
                    yield from self._operands(arg, name, over)
                return
            case Load():
                block = writer_of(self.program, inner.buffer)
                value = computed(self.program, inner)
                if isinstance(value, Op | Cast | Load) and "float" in self.program.buffer(inner.buffer).dtype:
                    found = list(self._operands(value, name, over))
                    if len(found) > 1 or any(f.over != over for f in found):
                        yield from found
                        return
                reducer = {"max": "max", "add": "sum"}[name]
                if block is not None and reducer_of(block) == reducer and (family := self._folded(inner)) is not None:
                    yield from self._operands(family.value, name, {**over, **family.over})
                    return
        yield _Family(inner, over)

    # -- sums of exponentials -----------------------------------------------------------------------------------

    def has_exp_of_0(self, total: Expr) -> bool:
        """Whether a value is a sum of numbers that are at least 0, and one of them is exp(0) = 1: it has exp(x - m) for
        every x that the maximum m is taken of.

        Args:
            total: as in `of`.

        Returns:
            True if it is shown.
        """
        addends = list(self._operands(total, "add"))
        if len(addends) == 1 and not addends[0].over:
            return False
        powers: list[tuple[Expr, Expr, Mapping[str, int]]] = []
        for family in addends:
            power = self._exponent(family.value)
            if power is None:
                if self.of(family.value).low < 0:
                    return False
                continue
            powers.append((*power, family.over))
        # One m for all of a sum: a maximum of its own for each term says nothing about the others.
        powers = [p for p in powers if not variables(p[1]) & p[2].keys()]
        for _, m, _ in powers:
            largest = self._expanded(m)
            matching = [
                (own, over)
                for x, other, over in powers
                if largest is not None and self._expanded(other) == largest and (own := self._expanded(x)) is not None
            ]
            leaves = list(self._operands(m, "max"))
            if len(leaves) == 1 and not leaves[0].over:
                continue
            if all(
                (one := self._expanded(leaf.value)) is not None
                and any(self._is_among(one, own, over) for own, over in matching)
                for leaf in leaves
            ):
                return True
        return False

    def _exponent(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """x and m of exp(x - m), through stages."""
        inner = without_casts(expr)
        value: Expr | None = inner
        while isinstance(value, Load):
            value = computed(self.program, value)
            value = None if value is None else without_casts(value)
        match value:
            case Op("exp", (Op("sub", (x, m)),)):
                return x, m
        return None

    # -- norms --------------------------------------------------------------------------------------------------

    def is_norm_of(self, norm: Expr, x: Expr) -> bool:
        """Whether |x| is at most `norm`: that is sqrt of a sum that has x², or a maximum that has |x|, over positive
        constants too.

        Args:
            norm, x: as in `of`.

        Returns:
            True if it is shown.
        """
        wanted = self._expanded(x)
        if wanted is None:
            return False
        for leaf in self._operands(norm, "max"):
            match without_casts(leaf.value):
                case Op("abs", (inner,)):
                    found = self._expanded(inner)
                    if found is not None and self._is_among(wanted, found, leaf.over):
                        return True
                case Op("sqrt", (square,)) if not leaf.over and self._sums_square(square, wanted):
                    return True
        return False

    def _sums_square(self, total: Expr, wanted: Expr) -> bool:
        found = False
        for family in self._operands(total, "add"):
            if self.of(family.value).low < 0:
                return False
            match without_casts(family.value):
                case Op("mul", (a, b)) if without_casts(a) == without_casts(b):
                    own = self._expanded(a)
                    found = found or (own is not None and self._is_among(wanted, own, family.over))
        return found

    # -- comparing ----------------------------------------------------------------------------------------------

    def _expanded(self, expr: Expr) -> Expr | None:
        """An expression over inputs and reductions, without conversions to float32; None if it is too long."""
        left = [_MOST_NODES]

        def expand(e: Expr) -> Expr:
            left[0] -= 1
            if left[0] < 0:
                raise OverflowError
            value = computed(self.program, e)
            if value is not None:
                return expand(value)
            return rebuild(without_casts(e), tuple(expand(c) for c in children(without_casts(e))))

        try:
            return expand(expr)
        except OverflowError:
            return None

    def _is_among(self, wanted: Expr, family: Expr, over: Mapping[str, int]) -> bool:
        """Formal statement: for values of the variables `over`, within their extents, `family` is `wanted`."""
        env: dict[str, Expr] = {}

        def same(f: Expr, w: Expr) -> bool:
            if isinstance(f, Var) and f.name in over:
                return env.setdefault(f.name, w) == w
            if type(f) is not type(w) or len(children(f)) != len(children(w)):
                return False
            if not children(f):
                return f == w
            if rebuild(f, children(w)) != w:
                return False
            return all(same(a, b) for a, b in zip(children(f), children(w), strict=True))

        if not same(family, wanted):
            return False
        for name, value in env.items():
            reach = bounds(value, self.extents)
            if reach is None or reach[0] < 0 or reach[1] >= over[name]:
                return False
        return True


def is_coarse(program: Program, expr: Expr) -> bool:
    """Whether a value is a float16 or an integer, so that it is 0 or at least 2^-24 in magnitude.

    Args:
        program: the definition.
        expr: over its tensors.

    Returns:
        True if it is shown.
    """
    inner = without_casts(expr)
    match inner:
        case Load(buffer, _):
            return program.buffer(buffer).dtype in {"float16", "bool", *INTEGERS} or (
                (value := computed(program, inner)) is not None and is_coarse(program, value)
            )
        case Op("round" | "floor" | "ceil" | "trunc", _):
            return True
        case Cast(dtype, _):
            return dtype == "float16" or dtype.startswith("int")
        case Op("neg", (arg,)):
            return is_coarse(program, arg)
        case Op("select", (_, a, b)):
            return is_coarse(program, a) and is_coarse(program, b)
        case Const(value):
            return value == 0 or abs(value) >= 2.0**-24
    return False


def is_half(program: Program, expr: Expr) -> bool:
    """Whether a value is one of 16 bits, converted to float32 at most: rounding it to 16 bits changes nothing.

    Args:
        program: the definition.
        expr: over its tensors.

    Returns:
        True if it is.
    """
    inner = without_casts(expr)
    return isinstance(inner, Load) and program.buffer(inner.buffer).dtype in ("float16", "bfloat16")
