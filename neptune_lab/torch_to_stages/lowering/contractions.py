"""Products of matrices as sums of products: matmul, bmm, linear, addmm, einsum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import HALVES, Index, Value


def contract(ctx: Context, a: Value, b: Value, labels: tuple[str, str, str], hint: str = "") -> Value:
    """The sum over the labels that only the operands have of a product, as einsum writes it.

    Args:
        ctx: the operation.
        a, b: the operands; a size of 1 is broadcast.
        labels: of the dimensions of `a`, `b` and the result, one letter each: ("bik", "bkj", "bij").
        hint: the stage's name.

    Returns:
        The result, in torch's dtype of the operands; in float32 if that has 16 bits.
    """
    first, second, out = labels
    sizes: dict[str, int] = {}
    for label, value in ((first, a), (second, b)):
        for letter, size in zip(label, value.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    folded = [letter for letter in dict.fromkeys(first + second) if letter not in out]
    # Without a sum there is no product of matrices, whose factors would be computed once.
    left, right = (operand(ctx, x) if folded or x.dtype in HALVES else ctx.reused(x) for x in (a, b))

    def at(value: Value, label: str, indices: dict[str, Expr]) -> Expr:
        index = tuple(
            Const(0) if size == 1 and sizes[letter] != 1 else indices[letter]
            for letter, size in zip(label, value.shape, strict=True)
        )
        return value.at(index)

    def term(spatial: Index, reduced: Index) -> Expr:
        indices = {**dict(zip(out, spatial, strict=True)), **dict(zip(folded, reduced, strict=True))}
        return ctx.applied("mul", at(left, first, indices), at(right, second, indices))

    shape = [sizes[letter] for letter in out]
    if not folded:
        value = Value(tuple(shape), a.dtype, lambda i: term(i, ()))
        return value
    return ctx.stages.reduce("sum", shape, [sizes[x] for x in folded], term, a.dtype, hint)


def operand(ctx: Context, value: Value) -> Value:
    """A factor of a product: what is computed gets a stage, rounded to 16 bits if that is its dtype in torch, since a
    matrix unit multiplies such numbers."""
    if value.plain and value.dtype in HALVES:
        return replace(value, at=lambda i: ctx.rounded(value.at(i), value.dtype))
    if value.plain or value.dtype == "bool":
        return value
    dtype = value.dtype if value.dtype in HALVES else None
    if dtype is not None:
        return ctx.stages.map(replace(value, at=lambda i: _narrow(ctx, value.at(i), dtype)), dtype=dtype)
    return ctx.stages.map(value)


def _narrow(ctx: Context, expr: Expr, dtype: str) -> Expr:
    rounded = ctx.rounded(expr, dtype)
    return rounded.arg if isinstance(rounded, Cast) else rounded


@lowers("matmul", "bmm", "mm", "mv", "dot")
def matmul(ctx: Context, a: Value, b: Value) -> Value:
    """A product of matrices; leading dimensions are broadcast, a vector is a row or a column."""
    _check_factors(ctx, a, b)
    batch = max(a.ndim, b.ndim) - 2
    letters = "abcdefgh"[: max(0, batch)]
    first = letters[len(letters) - (a.ndim - 2) :] + "ik" if a.ndim > 1 else "k"
    second = letters[len(letters) - (b.ndim - 2) :] + "kj" if b.ndim > 1 else "k"
    out = letters + ("i" if a.ndim > 1 else "") + ("j" if b.ndim > 1 else "")
    return contract(ctx, a, b, (first, second, out))


def _check_factors(ctx: Context, *factors: Value) -> None:
    """Refuse a product of different dtypes, which PyTorch refuses when it runs, and not when it is traced."""
    dtypes = list(dict.fromkeys(v.dtype for v in factors))
    if len(dtypes) > 1:
        raise ctx.refused(
            f"of {dtypes[0]} and {dtypes[1]}, as in PyTorch: convert one of them before, with .to(x.dtype)"
        )


@lowers("linear")
def linear(ctx: Context, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x @ weight.T + bias."""
    _check_factors(ctx, x, weight)
    letters = "abcdefgh"[: x.ndim - 1]
    if weight.ndim == 1:
        return with_bias(ctx, contract(ctx, x, weight, (letters + "k", "k", letters)), bias)
    return with_bias(ctx, contract(ctx, x, weight, (letters + "k", "jk", letters + "j")), bias)


def with_bias(ctx: Context, product: Value, bias: Value | None) -> Value:
    """product + bias, which is broadcast."""
    if bias is None:
        return product
    return ctx.elementwise(lambda x, y: ctx.applied("add", x, y), product, bias)


@lowers("addmm", "baddbmm")
def addmm(ctx: Context, bias: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    """beta * bias + alpha * (a @ b); with beta 0, what is not finite in the bias does not count."""
    product = matmul(ctx, a, b)

    def scaled(x: Expr, factor: float) -> Expr:
        return x if factor == 1 else Op("mul", (x, ctx.as_dtype(Const(factor, "float32"), ctx.dtype)))

    if beta == 0:
        return ctx.elementwise(lambda y: scaled(y, alpha), product)
    return ctx.elementwise(lambda x, y: ctx.applied("add", scaled(x, beta), scaled(y, alpha)), bias, product)


@lowers("outer")
def outer(ctx: Context, a: Value, b: Value) -> Value:
    """Every product of an element of `a` and one of `b`."""
    a, b = (ctx.converted(x, ctx.dtype) for x in (a, b))
    return contract(ctx, a, b, ("i", "j", "ij"))


@lowers("einsum")
def einsum(ctx: Context, equation: str, operands: Sequence[Value], path: object = None) -> Value:
    """Sums of products by labels; several operands are multiplied from left to right, as torch does."""
    _check_factors(ctx, *operands)
    labels, out = _labels(ctx, equation, operands)
    values = [_diagonal(value, label) for value, label in zip(operands, labels, strict=True)]
    value, label = values[0]
    for n, (other, other_label) in enumerate(values[1:], 2):
        later = "".join(l for _, l in values[n:]) + out
        kept = "".join(x for x in dict.fromkeys(label + other_label) if x in later) if n < len(values) else out
        value = contract(ctx, value, other, (label, other_label, kept))
        label = kept
    return value if label == out else _summed(ctx, value, label, out)


def _labels(ctx: Context, equation: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, with letters for what an ellipsis stands for."""
    plain = equation.replace(" ", "")
    left, arrow, out = plain.partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ctx.refused(f"with the equation {equation!r} for {len(operands)} operands")
    unused = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in plain]
    most = max((v.ndim - len(p) + 3 for p, v in zip(parts, operands, strict=True) if "..." in p), default=0)
    dots = "".join(unused[:most])
    full = [p.replace("...", dots[most - (v.ndim - len(p) + 3) :]) for p, v in zip(parts, operands, strict=True)]
    if not arrow:
        letters = "".join(full)
        out = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots))
    return full, out.replace("...", dots)


def _diagonal(value: Value, label: str) -> tuple[Value, str]:
    """`value` with each label once: a repeated label reads the diagonal."""
    distinct = "".join(dict.fromkeys(label))
    if distinct == label:
        return value, label
    shape = [value.shape[label.index(c)] for c in distinct]
    return value.viewed(shape, lambda i: tuple(i[distinct.index(c)] for c in label)), distinct


def _summed(ctx: Context, value: Value, label: str, out: str) -> Value:
    """One operand, with dimensions summed up and permuted."""
    folded = [c for c in label if c not in out]
    sizes = dict(zip(label, value.shape, strict=True))

    def at(spatial: Index, reduced: Index) -> Expr:
        indices = {**dict(zip(out, spatial, strict=True)), **dict(zip(folded, reduced, strict=True))}
        return value.at(tuple(indices[c] for c in label))

    shape = [sizes[c] for c in out]
    if not folded:
        return value.viewed(shape, lambda i: tuple(i[out.index(c)] for c in label))
    return ctx.stages.reduce("sum", shape, [sizes[c] for c in folded], at, value.dtype)
