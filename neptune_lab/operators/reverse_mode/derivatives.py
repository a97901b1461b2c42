"""Derivatives of scalar expressions: a rule per operation, each with its source.

The derivatives are those of PyTorch (tools/autograd/derivatives.yaml), also where a function has no derivative: at
ties, a maximum of two values divides the gradient between them, and a relu or clamp does what `ties` says; abs has
derivative 0 at 0; roundings have derivative 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.gradient_marks import is_mark
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.walks import loads
from neptune_lab.operators.ties import HALVES_TIES, Ties, merged, without_indices
from neptune_lab.scalar_ops import OPERATIONS, compose

Rule: TypeAlias = "Callable[[Op, Sequence[Expr | None], Arithmetic], Expr | None]"
"""From an operation, the derivatives of its operands (None: 0) and arithmetic, to its derivative (None: 0)."""


class Arithmetic:
    """Builds expressions of one float dtype, without sums with 0 and products with 0 or 1; None stands for 0."""

    def __init__(
        self,
        dtype: str,
        dtype_of: Callable[[Expr], str],
        ties: Mapping[str, Ties] = MappingProxyType({}),
        tie: Ties = MappingProxyType({}),
    ) -> None:
        """
        Args:
            dtype: "float32" or "float64".
            dtype_of: dtypes of expressions.
            ties: derivatives where expressions have none, by stage (`operators.ties`).
            tie: those that hold.
        """
        self.dtype = dtype
        self.tie = tie
        self._ties = ties
        self._dtype_of = dtype_of

    def within(self, *stages: str) -> Arithmetic:
        """The arithmetic of derivatives of these stages' expressions."""
        given = [self._ties[stage] for stage in stages if stage in self._ties]
        return Arithmetic(self.dtype, self._dtype_of, self._ties, merged(given)) if given else self

    def number(self, value: float) -> Const:
        """A constant."""
        return Const(float(value), self.dtype)

    def wide(self, x: Expr) -> Expr:
        """The expression in this dtype."""
        if isinstance(x, Const) and not isinstance(x.value, bool):
            return self.number(x.value)
        return x if self._dtype_of(x) == self.dtype else Cast(self.dtype, x)

    def add(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """a + b; a factor that both end with is taken out, and so is a condition under which both are not 0."""
        if a is None or b is None:
            return a if b is None else b
        match a, b:
            case Op("select", (one, Const(0.0), x)), Op("select", (other, Const(0.0), y)) if one == other:
                return self.select(one, None, self.add(x, y))
            case Op("select", (one, x, Const(0.0))), Op("select", (other, y, Const(0.0))) if one == other:
                return self.select(one, self.add(x, y), None)
            case Op("mul", (x, y)), Op("mul", (z, w)) if y == w:
                return Op("mul", (Op("add", (x, z)), y))
        return Op("add", (a, b))

    def negated(self, a: Expr | None) -> Expr | None:
        """-a."""
        if isinstance(a, Const):
            return self.number(-a.value)
        return self._within_choice(a, self.negated) or (None if a is None else Op("neg", (a,)))

    def mul(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """a * b; where a choice has 0, the product has 0 too, whatever the other factor is."""
        if a is None or b is None:
            return None
        if isinstance(a, Const) and isinstance(b, Const):
            return self.number(a.value * b.value)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Const) and one.value in (1, 0, -1):
                return {1: other, 0: None, -1: self.negated(other)}[int(one.value)]
        for one, other in ((a, b), (b, a)):
            if chosen := self._within_choice(one, lambda x, other=other: self.mul(other, x)):
                return chosen
        return Op("mul", (a, b))

    def div(self, a: Expr | None, b: Expr) -> Expr | None:
        """a / b; where a choice has 0, the quotient has 0 too, also for a divisor of 0."""
        if isinstance(b, Const) and _is_power_of_two(b.value):
            return self.mul(a, self.number(1 / b.value))
        return self._within_choice(a, lambda x: self.div(x, b)) or _quotient(a, b)

    def _within_choice(self, a: Expr | None, change: Callable[[Expr], Expr | None]) -> Expr | None:
        """A choice between 0 and something else, with that changed; None for other expressions."""
        match a:
            case Op("select", (condition, Const(0.0), y)):
                return self.select(condition, None, change(y))
            case Op("select", (condition, x, Const(0.0))):
                return self.select(condition, change(x), None)
        return None

    def select(self, condition: Expr, a: Expr | None, b: Expr | None) -> Expr | None:
        """a if the condition holds, else b."""
        if a is None and b is None:
            return None
        zero = self.number(0)
        return Op("select", (condition, zero if a is None else a, zero if b is None else b))


def _is_power_of_two(value: float) -> bool:
    return value != 0 and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5


def _quotient(a: Expr | None, b: Expr) -> Expr | None:
    return None if a is None else Op("div", (a, b))


def partial(expr: Expr, read: Load, arithmetic: Arithmetic) -> Expr | None:
    """The derivative of an expression with respect to one read, as if that read were a variable.

    Args:
        expr: a float expression.
        read: every read that equals it is the variable.
        arithmetic: makes the derivative's expressions.

    Returns:
        The derivative, in the dtype of `arithmetic`; None if it is 0.

    Raises:
        DefinitionError: an operation has no derivative.

    >>> from neptune_lab.loop_ir.render import expression
    >>> x = Load("x", (Var("i"),))
    >>> expression(partial(Op("exp", (Op("mul", (x, x)),)), x, Arithmetic("float32", lambda _: "float32")))
    'exp(x[i] * x[i]) * (x[i] + x[i])'
    """
    if expr == read:
        return arithmetic.number(1)
    if isinstance(expr, Const | Var | Load) or is_mark(expr) or read not in loads(expr):
        return None
    if isinstance(expr, Cast):
        # A conversion rounds, and its derivative is that of the identity.
        return partial(expr.arg, read, arithmetic) if "float" in expr.dtype else None
    assert isinstance(expr, Op)
    row = OPERATIONS.get(expr.name)
    if row is not None and (row.kind in ("comparison", "logic", "integer", "bits") or expr.name in _STEPS):
        return None
    capped = _of_cap(expr, read, arithmetic)
    if capped is not None:
        return capped
    rule = RULES.get(expr.name)
    if rule is None and row is not None and row.formula is not None:
        written = compose(row.formula, expr.args, lambda name, parts: Op(name, tuple(parts)), arithmetic.number)
        return partial(written, read, arithmetic)
    if rule is None:
        raise DefinitionError(
            f"{expr.name} has no derivative here",
            help=f"write the stage with other functions, or leave out what reads {read.buffer} in wrt",
        )
    return rule(expr, [partial(arg, read, arithmetic) for arg in expr.args], arithmetic)


def rules_of(expr: Expr, read: Load) -> tuple[str, ...]:
    """Names of the rules by which `partial` differentiates an expression, the outermost first, each once.

    >>> x = Load("x", (Var("i"),))
    >>> rules_of(Op("exp", (Op("mul", (x, x)),)), x)
    ('exp', 'mul')
    """
    if expr == read or isinstance(expr, Load) or is_mark(expr) or read not in loads(expr):
        return ()  # a read at an index that is computed of this read: an index has no derivative
    if isinstance(expr, Cast):
        return rules_of(expr.arg, read) if "float" in expr.dtype else ()
    assert isinstance(expr, Op)
    row = OPERATIONS.get(expr.name)
    if row is not None and (row.kind in ("comparison", "logic", "integer", "bits") or expr.name in _STEPS):
        return ()
    if expr.name not in RULES and row is not None and row.formula is not None:
        written = compose(row.formula, expr.args, lambda name, parts: Op(name, tuple(parts)), Const)
        return rules_of(written, read)
    below = expr.args[1:] if expr.name == "select" else expr.args
    return tuple(dict.fromkeys((expr.name, *(name for arg in below for name in rules_of(arg, read)))))


def _of_cap(expr: Op, read: Load, a: Arithmetic) -> Expr | None:
    """The derivative of a soft cap c * tanh(s / c) whose c depends on the read; None for other expressions.

        (tanh(u) - u * (1 - tanh(u)²)) * dc + (1 - tanh(u)²) * ds    where u = s / c

    The factor of dc is about 2/3 u³ for a small u, less than the error of tanh(u).  So below 1 it is computed as
    u * (tanh(u)² - (1 - tanh(u) / u)), and the last part by itself.  Source: Lambert's continued fraction
    tanh(u) = u / (1 + u²/(3 + u²/(5 + u²/(7 + u²/9)))), up to where its relative error is below 1e-7 for |u| < 1.
    """
    match expr:
        case Op("mul", (cap, Op("tanh", (Op("div", (score, below)),)) as bent)) if cap == below:
            pass
        case Op("mul", (Op("tanh", (Op("div", (score, below)),)) as bent, cap)) if cap == below:
            pass
        case _:
            return None
    of_cap = partial(cap, read, a)
    if of_cap is None:
        return None
    t, u = a.wide(bent), Op("div", (a.wide(score), a.wide(cap)))
    square, bend = Op("mul", (u, u)), Op("mul", (t, t))
    slope = Op("sub", (a.number(1), bend))

    def plus(number: float, other: Expr) -> Expr:
        return Op("add", (a.number(number), Op("mul", (square, other))))

    factor: Expr = Op("sub", (t, Op("mul", (u, slope))))
    if a.dtype == "float32":
        first = Op("div", (Op("mul", (square, plus(315, a.number(14)))), plus(945, plus(420, a.number(15)))))
        near = Op("sub", (a.number(1), first))  # tanh(u) / u
        small = Op("mul", (u, Op("sub", (Op("mul", (square, Op("mul", (near, near)))), first))))
        factor = Op("select", (Op("lt", (Op("abs", (u,)), a.number(1))), small, factor))
    return a.add(a.mul(factor, of_cap), a.mul(slope, partial(score, read, a)))


# Roundings: their derivative is 0 wherever they have one, and 0 elsewhere too (derivatives.yaml: floor, ceil, round).
_STEPS = frozenset({"floor", "ceil", "round"})


def _add(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.add(d[0], d[1])


def _sub(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.add(d[0], a.negated(d[1]))


def _neg(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.negated(d[0])


def _mul(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    x, y = map(a.wide, op.args)
    return a.add(a.mul(d[0], y), a.mul(x, d[1]))


def _div(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    # -(x / y) / y, as derivatives.yaml has it: x / y² would overflow earlier.
    x, y = map(a.wide, op.args)
    return a.add(a.div(d[0], y), a.negated(a.mul(a.div(a.div(x, y), y), d[1])))


_OPPOSITE = {"gt": "le", "lt": "ge", "ge": "lt", "le": "gt"}


def _larger(comparison: str, or_equal: str) -> Rule:
    """Of max ("gt", "ge") and min ("lt", "le"): at ties, each operand gets one half (derivatives.yaml: maximum,
    minimum), unless `tie` says otherwise (relu, clamp).  Where an operand is NaN, maximum gives both the cotangent,
    relu gives it to x (threshold_backward), and clamp gives it none."""

    def rule(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
        x, y = op.args
        part = a.tie.get(without_indices(op), HALVES_TIES) if a.tie else HALVES_TIES
        if part == 0:
            return a.select(Op(_OPPOSITE[comparison], (x, y)), d[1], d[0])
        if part == 1:
            return _of_clamp(or_equal, op, d, a)
        share = a.select(Op("eq", (x, y)), a.number(0.5), a.number(1))
        if d[0] is None or d[1] is None:  # (a choice that has 0 itself, so that its product is 0 beside an infinity)
            if d[1] is None:
                return a.select(Op(_OPPOSITE[or_equal], (x, y)), None, a.mul(share, d[0]))
            return a.select(Op(comparison, (x, y)), None, a.mul(share, d[1]))
        both = a.mul(share, a.add(d[0], d[1]))
        return a.select(Op(comparison, (x, y)), d[0], a.select(Op(_OPPOSITE[or_equal], (x, y)), d[1], both))

    return rule


def _of_clamp(or_equal: str, op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    """All to x at its limit, and nothing to either of them if one is NaN (clamp_backward)."""
    return a.select(Op(or_equal, op.args), d[0], a.select(Op(_OPPOSITE[or_equal], op.args), d[1], None))


def _select(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.select(op.args[0], d[1], d[2])


def _exp(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.mul(a.wide(op), d[0])


def _exp2(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.mul(a.mul(a.wide(op), a.number(math.log(2))), d[0])


def _log(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.div(d[0], a.wide(op.args[0]))


def _log2(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.div(a.mul(d[0], a.number(1 / math.log(2))), a.wide(op.args[0]))


def _sqrt(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    slope = a.div(a.mul(d[0], a.number(0.5)), a.wide(op))
    flat = a.tie.get(without_indices(op)) == 0 if a.tie else False  # a norm's root has derivative 0 at 0
    return a.select(Op("eq", (a.wide(op), a.number(0))), None, slope) if flat else slope


def _rsqrt(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    r = a.wide(op)
    return a.mul(a.mul(a.number(-0.5), a.mul(a.mul(r, r), r)), d[0])


def _tanh(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    t = a.wide(op)
    return a.mul(a.add(a.number(1), a.negated(a.mul(t, t))), d[0])


def _sigmoid(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    s = a.wide(op)
    return a.mul(a.mul(s, a.add(a.number(1), a.negated(s))), d[0])


def _sin(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.mul(Op("cos", (a.wide(op.args[0]),)), d[0])


def _cos(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    return a.negated(a.mul(Op("sin", (a.wide(op.args[0]),)), d[0]))


def _erf(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    x = a.wide(op.args[0])
    bell = Op("exp", (Op("neg", (Op("mul", (x, x)),)),))
    return a.mul(a.mul(a.number(2 / math.sqrt(math.pi)), bell), d[0])


def _atan(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    x = a.wide(op.args[0])
    square = a.add(a.number(1), Op("mul", (x, x)))
    assert square is not None
    return a.div(d[0], square)


def _abs(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    x = a.wide(op.args[0])
    zero = a.number(0)
    sign = a.select(Op("gt", (x, zero)), a.number(1), a.select(Op("lt", (x, zero)), a.number(-1), None))
    return a.mul(sign, d[0])


def _pow(op: Op, d: Sequence[Expr | None], a: Arithmetic) -> Expr | None:
    # For an exponent of 0, and for a base of 0 in the exponent's derivative, derivatives.yaml gives 0, not NaN.
    x, n = map(a.wide, op.args)
    zero = a.number(0)
    if isinstance(n, Const):
        slope = None if n.value == 0 else a.mul(n, x if n.value == 2 else Op("pow", (x, a.number(n.value - 1))))
        of_base = a.mul(slope, d[0])
    else:
        slope = a.mul(n, Op("pow", (x, Op("sub", (n, a.number(1))))))
        of_base = a.mul(a.select(Op("eq", (n, zero)), None, slope), d[0])
    if d[1] is None:
        return of_base
    of_exponent = a.mul(a.wide(op), Op("log", (x,)))
    if not (isinstance(x, Const) and x.value != 0):
        of_exponent = a.select(Op("and", (Op("eq", (x, zero)), Op("ge", (n, zero)))), None, of_exponent)
    return a.add(of_base, a.mul(of_exponent, d[1]))


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "max": _larger("gt", "ge"),
    "min": _larger("lt", "le"),
    "select": _select,
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log2": _log2,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "sin": _sin,
    "cos": _cos,
    "erf": _erf,
    "abs": _abs,
    "atan": _atan,
    "pow": _pow,
}
"""By operation of the loop-scalar IR.  One without a rule is derived through the formula of its row, if it has one."""

__all__ = ["RULES", "Arithmetic", "partial", "rules_of"]
