"""Layers of whole arrays in a mod, as `layer_norm` and `linear`, and sums of products by `einsum`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.array_functions import FUNCTIONS, usual_axis
from neptune_lab.operators.array_indices import from_end
from neptune_lab.operators.array_views import applied, as_array, as_scalar, axis_of, or_scalar
from neptune_lab.operators.arrays import Array, Indices, check_count, constant


def _log_softmax(x: Any, dim: Any = None, dtype: Any = None, **_options: Any) -> Any:
    x = x if dtype is None else x.to(dtype)
    return x - FUNCTIONS["logsumexp"](x, usual_axis(x) if dim is None else dim, True)


def _last(x: Array, shape: Sequence[int]) -> tuple[int, ...]:
    """The last axes, which have the extents of `shape`."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if x.shape[x.ndim - len(shape) :] != shape:
        raise DefinitionError(
            f"a mod normalises axes of the extents {shape}, and the array has the shape {x.shape}",
            help="give the extents of the last axes",
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_options: Any
) -> Any:
    axes = _last(as_array(x), normalized_shape)
    centred = x - FUNCTIONS["mean"](x, axes, True)
    return _scaled(centred, FUNCTIONS["mean"](centred * centred, axes, True) + eps, weight, bias)


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if eps is None:
        raise DefinitionError(
            "rms_norm in a mod takes its eps as a number", help="give eps=, such as torch.finfo(x.dtype).eps"
        )
    axes = _last(as_array(x), normalized_shape)
    return _scaled(x, FUNCTIONS["mean"](x * x, axes, True) + eps, weight, None)


def _scaled(x: Any, square: Any, weight: Any, bias: Any) -> Any:
    x = x / square.sqrt()
    x = x if weight is None else x * constant(weight)
    return x if bias is None else x + constant(bias)


def _embedding(x: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *_args: Any, **_options: Any) -> Any:
    if padding_idx is not None or max_norm is not None:
        raise DefinitionError(
            "embedding in a mod takes no padding_idx and no max_norm", help="read rows by an index: weight[x]"
        )
    return constant(weight)[x]


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    found = FUNCTIONS["matmul"](x, FUNCTIONS["transpose"](constant(weight), 0, 1))
    return found if bias is None else found + constant(bias)


def _one_hot(x: Any, num_classes: int = -1) -> Any:
    if num_classes < 1:
        raise DefinitionError("one_hot in a mod takes the number of classes", help="give num_classes=")
    array = x if isinstance(x, Array) else Array((), lambda _: as_scalar(x))
    classes = constant(np.arange(num_classes))  # read at the index, which may count from the end, or be refused
    return Array(
        (*array.shape, num_classes),
        lambda at: applied("eq", array.element(at[:-1]), classes.element(at[-1:])).long(),
    )


def _cumsum(x: Any, dim: Any = 0, *, dtype: Any = None) -> Any:
    """Each element is a sum over the whole axis, of what is before it, and of itself."""
    array = as_array(x if dtype is None else x.to(dtype))
    axis = axis_of(array.ndim, dim)
    extent = array.shape[axis]
    check_count([extent], array.name)

    def at(indices: Indices) -> Any:
        last = from_end(indices[axis], extent)

        def before(inner: Indices) -> Any:
            element = array.element((*indices[:axis], *inner, *indices[axis + 1 :]))
            return applied("select", applied("lt", inner[0], last), element, 0)

        total = applied("add", FUNCTIONS["sum"](Array((extent,), before)), array.element(indices))
        return total if dtype is None else total.to(dtype)

    return Array(array.shape, at)


def _einsum(equation: str, *operands: Any) -> Any:
    """torch.einsum with letters for axes: the sum of products over the letters that the result lacks."""
    operands = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    arrays = [constant(x) for x in operands]
    arrays = [x if isinstance(x, Array) else Array((), lambda _, x=x: as_scalar(x)) for x in arrays]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not left.replace(",", "").isalpha() or [len(t) for t in terms] != [a.ndim for a in arrays]:
        raise DefinitionError(
            f"torch.einsum({equation!r}) in a mod takes an operand for each term, with a letter for each of its axes",
            help="write it with `@`, or as a product and a sum",
        )
    letters = "".join(terms)
    if not arrow:
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    extents = {c: n for term, a in zip(terms, arrays, strict=True) for c, n in zip(term, a.shape, strict=True)}
    if any(extents[c] != n for term, a in zip(terms, arrays, strict=True) for c, n in zip(term, a.shape, strict=True)):
        raise DefinitionError(
            f"torch.einsum({equation!r}) in a mod of the shapes {[a.shape for a in arrays]}",
            help="axes of one letter have one extent",
        )
    if len(set(right)) < len(right) or not set(right) <= set(letters):
        raise DefinitionError(
            f"torch.einsum({equation!r}) in a mod: the result has a letter twice, or one that no operand has",
            help="name each axis of the result once, by a letter of an operand",
        )
    folded = sorted(set(letters) - set(right))
    check_count([extents[c] for c in folded])

    def at(indices: Indices) -> Any:
        outer = dict(zip(right, indices, strict=True))
        products = []
        for inner in product(*(range(extents[c]) for c in folded)):
            where = {**outer, **dict(zip(folded, inner, strict=True))}
            factors = [a.element(tuple(where[c] for c in term)) for term, a in zip(terms, arrays, strict=True)]
            total = factors[0]
            for factor in factors[1:]:
                total = total * factor
            products.append(total)
        return FUNCTIONS["sum"](Array((len(products),), lambda n: products[n[0]])) if folded else products[0]

    return or_scalar([extents[c] for c in right], at)


# By the name in torch.
LAYERS: dict[str, Callable[..., Any]] = {
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "one_hot": _one_hot,
    "embedding": _embedding,
    "cumsum": _cumsum,
    "einsum": _einsum,
}
