"""Complex tensors as two real ones: rotary embeddings turn pairs of channels by products of complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from torch.utils import _pytree as pytree

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowering_of
from neptune_lab.torch_to_stages.values import Complex, Index, Value, constant

Part: TypeAlias = Expr | None  # None: 0

# Operations that give the same for both parts, one by one.
_BY_PARTS = frozenset(
    (
        *("permute", "transpose", "t", "unsqueeze", "squeeze", "view", "_unsafe_view", "expand", "select", "slice"),
        *("split", "split_with_sizes", "unbind", "flip", "repeat", "repeat_interleave", "alias", "detach", "clone"),
        *("cat", "stack", "neg", "sum", "mean", "unfold", "index", "index_select", "stop_gradient"),
    )
)


def complex_lowering(name: str, overload: str) -> Callable[..., Any] | None:
    """The lowering of an operation that takes or gives complex tensors.

    Args:
        name: such as "mul".
        overload: such as "Tensor".

    Returns:
        A function from a context and the arguments, as other lowerings are; None if it is not taken.
    """
    if name in _BY_PARTS:
        return lambda ctx, *args, **kwargs: _by_parts(f"{name}.{overload}", ctx, args, kwargs)
    return _TABLE.get(name)


def _by_parts(name: str, ctx: Context, args: Any, kwargs: Any) -> Any:
    lowering = lowering_of(name)
    assert lowering is not None, name

    def made(take: Callable[[Complex], Value]) -> Any:
        own = pytree.tree_map_only(Complex, take, (args, kwargs))
        return lowering(ctx, *own[0], **own[1])

    re, im = made(lambda z: z.re), made(lambda z: z.im)
    return tuple(map(Complex, re, im)) if isinstance(re, tuple) else Complex(re, im)


def _view_as_complex(ctx: Context, x: Value) -> Complex:
    """Pairs along the last dimension as real and imaginary parts."""
    x = ctx.staged(x) if ctx.users > 1 else x
    re, im = (x.viewed(ctx.shape, lambda i, n=n: (*i, Const(n))) for n in (0, 1))
    return Complex(re, im)


def _view_as_real(ctx: Context, z: Complex) -> Value:
    """Both parts along a new last dimension."""

    def element(i: Index) -> Expr:
        return Op("select", (Op("eq", (i[-1], Const(0))), z.re.at(i[:-1]), z.im.at(i[:-1])))

    return Value(ctx.shape, ctx.dtype, element)


def _polar(ctx: Context, radius: Value, angle: Value) -> Complex:
    """radius * (cos angle + i sin angle)."""

    def part(function: str) -> Value:
        return ctx.elementwise(lambda r, a: ctx.applied("mul", r, Op(function, (a,))), radius, angle)

    return Complex(part("cos"), part("sin"))


def _complex(ctx: Context, re: Value, im: Value) -> Complex:
    """re + i im."""
    return Complex(*(ctx.elementwise(lambda e: e, x) for x in (re, im)))


def _conjugate(ctx: Context, z: Complex) -> Complex:
    """re - i im."""
    return Complex(z.re, replace(z.im, at=lambda i: Op("neg", (z.im.at(i),)), plain=False))


def _exp(ctx: Context, z: Complex) -> Complex:
    """exp(re) * (cos im + i sin im)."""

    def part(function: str) -> Value:
        return ctx.elementwise(lambda r, a: Op("mul", (Op("exp", (r,)), Op(function, (a,)))), z.re, z.im)

    return Complex(part("cos"), part("sin"))


def _size(ctx: Context, z: Complex) -> Value:
    """sqrt(re * re + im * im), whose squares do not overflow; infinite if a part is.  At 0, its derivative is 0."""

    def element(re: Expr, im: Expr) -> Expr:
        a, b, own = Op("abs", (re,)), Op("abs", (im,)), ctx.stages.type_of(re)
        zero, one, infinite = (Const(v, own) for v in (0.0, 1.0, math.inf))
        large, small = Op("max", (a, b)), Op("min", (a, b))
        nothing = Op("eq", (large, zero))
        ratio = Op("div", (small, Op("select", (nothing, one, large))))
        length = Op("mul", (large, Op("sqrt", (Op("add", (one, Op("mul", (ratio, ratio)))),))))
        endless = Op("or", (Op("eq", (a, infinite)), Op("eq", (b, infinite))))
        return Op("select", (endless, infinite, Op("select", (nothing, zero, length))))

    return ctx.elementwise(element, ctx.reused(z.re), ctx.reused(z.im))


def _both(ctx: Context, x: Any) -> tuple[Value, Value | None]:
    """The parts of an operand in the result's shape; None for the imaginary part of a real one."""
    if isinstance(x, complex):
        x = Complex(constant(x.real, ctx.dtype), constant(x.imag, ctx.dtype))
    parts = (x.re, x.im) if isinstance(x, Complex) else (ctx.tensor(x, ctx.dtype), None)
    re, im = (None if p is None else ctx.converted(p, ctx.dtype).expanded(ctx.shape) for p in parts)
    assert re is not None
    return re, im


def _multiply(ctx: Context, a: Any, b: Any) -> Complex:
    """(re a re b - im a im b) + i (re a im b + im a re b)."""
    (ar, ai), (br, bi) = _both(ctx, a), _both(ctx, b)

    def of(i: Index, *factors: tuple[Value | None, Value | None]) -> list[Part]:
        return [None if x is None or y is None else Op("mul", (x.at(i), y.at(i))) for x, y in factors]

    def re(i: Index) -> Expr:
        first, second = of(i, (ar, br), (ai, bi))
        assert first is not None
        return first if second is None else Op("sub", (first, second))

    def im(i: Index) -> Expr:
        return _sum(ctx, *of(i, (ar, bi), (ai, br)))

    return Complex(Value(ctx.shape, ctx.dtype, re), Value(ctx.shape, ctx.dtype, im))


def _sum(ctx: Context, a: Part, b: Part) -> Expr:
    """a + b, of parts that may be 0."""
    if a is None or b is None:
        return a if a is not None else b if b is not None else ctx.as_dtype(Const(0.0, "float32"), ctx.dtype)
    return Op("add", (a, b))


def _add(ctx: Context, a: Any, b: Any, alpha: float = 1) -> Complex:
    """a + b or a - b, by parts."""
    if alpha != 1:
        raise ctx.refused(f"for complex numbers with alpha={alpha}")
    (ar, ai), (br, bi) = _both(ctx, a), _both(ctx, b)

    def part(x: Value | None, y: Value | None) -> Value:
        def element(i: Index) -> Expr:
            first, second = (None if v is None else v.at(i) for v in (x, y))
            if ctx.name == "sub" and second is not None:
                second = Op("neg", (second,))
            return _sum(ctx, first, second)

        return Value(ctx.shape, ctx.dtype, element)

    return Complex(part(ar, br), part(ai, bi))


_TABLE: dict[str, Callable[..., Any]] = {
    "view_as_complex": _view_as_complex,
    "view_as_real": _view_as_real,
    "polar": _polar,
    "complex": _complex,
    "_conj": _conjugate,
    "conj": _conjugate,
    "exp": _exp,
    "abs": _size,
    "mul": _multiply,
    "add": _add,
    "sub": _add,
}
