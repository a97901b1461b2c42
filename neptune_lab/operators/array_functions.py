"""torch's functions and methods of whole arrays in a mod: reductions, products, and views.

A reduction is written out: a sum of n elements is n reads and n - 1 additions at each position, so n is at most
`arrays.MOST`.  Sums and products of integers and conditions have 64 bits, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.array_indices import from_end
from neptune_lab.operators.array_views import VIEWS, applied, as_array, as_scalar, axis_of, or_scalar
from neptune_lab.operators.arrays import Array, Indices, check_count, constant, elementwise
from neptune_lab.operators.stopped_gradients import noted

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar


def call(library: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function that a mod calls on arrays.

    Args:
        library: for messages, as for `foreign.call`.
        name: the function's name in the library.
        args: the positional arguments: arrays, `Scalar`s and plain values.
        kwargs: the keyword arguments.

    Returns:
        An `Array` or a `Scalar`, or a plain value for a question about a shape.

    Raises:
        DefinitionError: there is no such function of arrays, or it does not take these arguments.
    """
    from neptune_lab.operators import foreign
    from neptune_lab.operators.array_layers import LAYERS

    function = FUNCTIONS.get(name) or LAYERS.get(name)
    if function is None:
        if not foreign.is_known(name):
            raise foreign.unknown(library, name, kwargs)
        names = list(kwargs)
        values = [*args, *kwargs.values()]

        def of_elements(*elements: Any) -> Any:
            count = len(elements) - len(names)
            return foreign.call(library, name, elements[:count], dict(zip(names, elements[count:], strict=True)))

        return elementwise(of_elements, *values)
    try:
        return function(*(_given(a) for a in args), **kwargs)
    except TypeError as error:
        raise DefinitionError(
            f"{library}.{name} of an array in a mod: {error}", help="call it with the arguments of the library"
        ) from error


def _given(argument: Any) -> Any:
    """An argument of a function of arrays, which are no lists of whole numbers: these are shapes and axes."""
    whole = isinstance(argument, list) and all(isinstance(each, int) for each in argument)
    return tuple(argument) if whole else constant(argument)


# -- reductions -------------------------------------------------------------------------------------------------


def _axes(x: Array, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(x.ndim))
    given = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(axis_of(x.ndim, d) for d in given)


def _folded(x: Array, dim: Any, keepdim: bool, fold: Callable[[list[Any]], Any]) -> Any:
    """`fold` of the elements along axes, for each index of the others."""
    axes = _axes(x, dim)
    check_count([x.shape[a] for a in axes], x.name)
    kept = [a for a in range(x.ndim) if a not in axes]
    shape = [1 if a in axes else x.shape[a] for a in range(x.ndim) if keepdim or a not in axes]

    def at(indices: Indices) -> Any:
        outer = dict(zip(range(x.ndim) if keepdim else kept, indices, strict=True))
        elements = []
        for inner in product(*(range(x.shape[a]) for a in axes)):
            chosen = {**outer, **dict(zip(axes, inner, strict=True))}
            elements.append(x.element(tuple(chosen[a] for a in range(x.ndim))))
        return fold(elements)

    return or_scalar(shape, at)


def _paired(name: str, elements: list[Any]) -> Any:
    """The elements combined in pairs, and the results again: an expression of logarithmic depth."""
    from neptune_lab.operators.scalar import apply

    while len(elements) > 1:
        left = [apply(name, a, b) for a, b in zip(elements[::2], elements[1::2], strict=False)]
        elements = left + (elements[-1:] if len(elements) % 2 else [])
    return elements[0]


def _wide(element: Scalar) -> Scalar:
    """An integer or a condition in 64 bits; a float as it is."""
    return element if element.kind == "float" else element.long()


def _condition(element: Scalar) -> Scalar:
    return element if element.kind == "bool" else element.bool()


def _reduction(name: str, prepared: Callable[[Any], Any]) -> Callable[..., Any]:
    def reduced(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        def fold(elements: list[Any]) -> Any:
            converted = elements if dtype is None else [e.to(dtype) for e in elements]
            found = _paired(name, [prepared(e) for e in converted])
            return found if dtype is None else found.to(dtype)

        return _folded(as_array(x), dim, keepdim, fold)

    return reduced


_sum = _reduction("add", _wide)
_any = _reduction("or", _condition)
_all = _reduction("and", _condition)


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    array = as_array(x)
    count = prod(array.shape[a] for a in _axes(array, dim))
    return _sum(array, dim, keepdim, dtype=dtype) / float(count)


class _Extremum(tuple[Any, Any]):
    """What torch's max and min give for an axis: `values` and `indices`."""

    values = property(lambda self: self[0])
    indices = property(lambda self: self[1])


def _extremum(name: str, comparison: str) -> Callable[..., Any]:
    extreme = _reduction(name, lambda element: element)

    def found(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Array) or (dim is not None and not isinstance(dim, int | tuple | list)):  # max(a, b)
            return elementwise(lambda a, b: applied(name, a, b), x, dim)
        if dim is None:
            return extreme(x)
        return _Extremum((extreme(x, dim, keepdim), _place(comparison)(x, dim, keepdim)))

    return found


def _place(comparison: str) -> Callable[..., Any]:
    """torch's argmax and argmin: the first index of the extremum, or of NaN.

    The winners of pairs meet in pairs again: an expression that uses its last result at each step would double.
    """
    extremum = {"gt": "max", "lt": "min"}[comparison]

    def better(left: Any, right: Any) -> Any:
        if left.kind != "float":
            return applied(comparison, right, left)
        lost = applied("and", applied("ne", right, right), applied("eq", left, left))
        return applied("or", applied(comparison, right, left), lost)

    def fold(elements: list[Any]) -> Any:
        entered = [(element, as_scalar(n).long()) for n, element in enumerate(elements)]
        while len(entered) > 1:
            pairs = zip(entered[::2], entered[1::2], strict=False)
            won = [
                (applied(extremum, left, right), applied("select", better(left, right), place, first))
                for (left, first), (right, place) in pairs
            ]
            entered = won + (entered[-1:] if len(entered) % 2 else [])
        return entered[0][1]

    return lambda x, dim=None, keepdim=False: _folded(as_array(x), dim, keepdim, fold)


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, ord: Any = None, dtype: Any = None) -> Any:
    p = p if ord is None else ord
    x = x if dtype is None else x.to(dtype)
    if p in (2, "fro", None):
        squares = _sum(x * x, dim, keepdim)
        return squares.sqrt()
    if p == math.inf:
        return _reduction("max", abs)(x, dim, keepdim)
    if p == 1:
        return _sum(abs(x), dim, keepdim)
    raise DefinitionError(f"a norm of order {p!r} in a mod", help="the orders 1, 2 and infinity are known")


# -- products ---------------------------------------------------------------------------------------------------


def _matmul(a: Any, b: Any) -> Any:
    """torch.matmul of arrays of one or two axes."""
    a, b = constant(a), constant(b)
    if not (isinstance(a, Array) and isinstance(b, Array)) or max(a.ndim, b.ndim) > 2:
        raise DefinitionError("a product `@` in a mod takes arrays of one or two axes", help="index them before")
    if a.shape[-1] != b.shape[0]:
        raise DefinitionError(
            f"a product `@` of the shapes {a.shape} and {b.shape} in a mod",
            help="the last axis of the first and the first axis of the second have one extent",
        )
    shape = (*a.shape[:-1], *b.shape[1:])

    def at(indices: Indices) -> Any:
        row, column = indices[: a.ndim - 1], indices[a.ndim - 1 :]
        return _sum(Array(a.shape[-1:], lambda k: a.element((*row, *k)) * b.element((*k, *column))))

    return or_scalar(shape, at)


def _counted(before: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The number of boundaries that are before a value, for each value."""

    def count(boundaries: Array, value: Any) -> Any:
        def of_value(v: Any) -> Any:
            return _sum(elementwise(lambda edge: before(edge, v), boundaries))

        return elementwise(of_value, value) if isinstance(value, Array) else of_value(value)

    return count


def _searchsorted(boundaries: Any, value: Any, *, right: bool = False, side: str = "", out_int32: bool = False) -> Any:
    """torch.searchsorted of one row of boundaries: how many are below the value, or with `right` not above it."""
    boundaries = constant(boundaries)
    if not isinstance(boundaries, Array) or boundaries.ndim != 1:
        raise DefinitionError("torch.searchsorted in a mod takes boundaries of one axis", help="index them before")
    if right or side == "right":
        return _counted(lambda edge, v: edge <= v)(boundaries, value)
    return _counted(lambda edge, v: edge < v)(boundaries, value)


# -- statistics and distances of vectors ------------------------------------------------------------------------


def _count_nonzero(x: Any, dim: Any = None) -> Any:
    return _sum(elementwise(_condition, as_array(x)), dim)


def _isin(x: Any, elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """torch.isin: whether a value is one of the elements of an array."""
    members = as_array(constant(elements))

    def of_value(value: Any) -> Any:
        found = _any(elementwise(lambda member: member == value, members))
        return ~found if invert else found

    return elementwise(of_value, x) if isinstance(x, Array) else of_value(x)


def _var(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    array = as_array(x)
    count = prod(array.shape[a] for a in _axes(array, dim))
    freedom = count - (float(unbiased) if correction is None else correction)
    return _sum((array - _mean(array, dim, True)) ** 2, dim, keepdim) / freedom


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    largest = _reduction("max", lambda element: element)(x, dim, True)
    total = _sum((x - largest).exp(), dim, True).log() + largest
    return total if keepdim else _sum(total, dim)


def usual_axis(x: Any) -> int:
    """The axis of torch.nn.functional's softmax and log_softmax without one."""
    return 0 if as_array(x).ndim in (0, 1, 3) else 1


def _softmax(x: Any, dim: Any = None, dtype: Any = None, **_options: Any) -> Any:
    x = x if dtype is None else x.to(dtype)
    dim = usual_axis(x) if dim is None else dim
    exponentials = (x - _reduction("max", lambda element: element)(x, dim, True)).exp()
    return exponentials / _sum(exponentials, dim, True)


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    lengths = [_norm(x, 2, dim).clamp(min=eps) for x in (x1, x2)]
    return _sum(x1 * x2, dim) / (lengths[0] * lengths[1])


def _normalized(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_options: Any) -> Any:
    return x / _norm(x, p, dim, True).clamp(min=eps)


def _flip(x: Any, *dims: Any) -> Any:
    axes = {axis_of(x.ndim, d) for d in (dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims)}

    def turned(axis: int, index: Any) -> Any:
        extent = x.shape[axis]
        return extent - 1 - from_end(index, extent) if axis in axes else index

    return Array(x.shape, lambda at: x.element(tuple(turned(a, i) for a, i in enumerate(at))))


def _outer(x: Array, y: Array) -> Array:
    return Array((x.shape[0], y.shape[0]), lambda at: x.element(at[:1]) * y.element(at[1:]))


def _item(x: Array) -> Any:
    if prod(x.shape) != 1:
        raise DefinitionError(
            f"a mod reads {x.described()} of shape {x.shape} by item(), which takes tensors of one element",
            help="read an element by its index, such as table[0]",
        )
    return x.element((0,) * x.ndim).item()


def _identity(x: Any, *_others: Any, **_options: Any) -> Any:
    return x


# By the name in torch or NumPy.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **VIEWS,
    "sum": _sum,
    "prod": _reduction("mul", _wide),
    "mean": _mean,
    "any": _any,
    "all": _all,
    "max": _extremum("max", "gt"),
    "min": _extremum("min", "lt"),
    "amax": _reduction("max", lambda element: element),
    "amin": _reduction("min", lambda element: element),
    "argmax": _place("gt"),
    "argmin": _place("lt"),
    "norm": _norm,
    "linalg_norm": lambda x, ord=None, dim=None, keepdim=False: _norm(x, ord, dim, keepdim),
    "linalg_vector_norm": lambda x, ord=2, dim=None, keepdim=False: _norm(x, ord, dim, keepdim),
    "dot": _matmul,
    "vdot": _matmul,
    "inner": _matmul,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "vecdot": lambda x, y, dim=-1: _sum(x * y, dim),
    "linalg_vecdot": lambda x, y, dim=-1: _sum(x * y, dim),
    "outer": _outer,
    "count_nonzero": _count_nonzero,
    "isin": _isin,
    "var": _var,
    "std": lambda x, *args, **options: _var(x, *args, **options).sqrt(),
    "logsumexp": _logsumexp,
    "softmax": _softmax,
    "cosine_similarity": _cosine_similarity,
    "normalize": _normalized,
    "pairwise_distance": lambda x, y, p=2.0, eps=1e-6: _norm(x - y + eps, p, -1),
    "flip": _flip,
    "take": lambda x, index: VIEWS["reshape"](x, (-1,))[index],
    "searchsorted": _searchsorted,
    "bucketize": lambda value, boundaries, **options: _searchsorted(boundaries, value, **options),
    "dim": lambda x: x.ndim,
    "numel": lambda x: prod(x.shape),
    "tolist": list,
    **dict.fromkeys(("contiguous", "clone", "cpu", "cuda"), _identity),
    "detach": lambda x: noted(x, stops=True),
    "item": _item,
}
# Those of one element too: a `Scalar` has no axes.
OF_SCALARS = frozenset(
    {
        *("view", "reshape", "squeeze", "unsqueeze", "expand", "expand_as", "flatten", "ravel", "stack", "cat"),
        *("size", "numel", "getitem", "searchsorted", "bucketize", "sum", "mean", "any", "all", "amax", "amin"),
        *("max", "min", "prod", "concat", "isin", "one_hot", "embedding"),
    }
)
