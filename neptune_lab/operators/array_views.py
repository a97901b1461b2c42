"""Views of arrays inside mods, such as `transpose`, `view` and `unsqueeze`: the same elements under other indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.array_indices import from_end, index_of
from neptune_lab.operators.arrays import MOST, Array, Indices, broadcast, by_halves, constant, elementwise

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar


def as_array(x: Any) -> Array:
    """A value as an array.

    Args:
        x: an `Array`; or a `Scalar` or a number, which has one element and one axis.

    Returns:
        The array.
    """
    return x if isinstance(x, Array) else Array((1,), lambda _: as_scalar(x))


def as_scalar(x: Any) -> Scalar:
    """A value as a `Scalar`.

    Args:
        x: a `Scalar` or a number.

    Returns:
        The `Scalar`.
    """
    from neptune_lab.operators.scalar import Scalar

    return x if isinstance(x, Scalar) else Scalar(x)


def or_scalar(shape: Sequence[int], at: Callable[[Indices], Any], name: str = "") -> Any:
    """An array, or its only element if it has no axes.

    Args:
        shape, at, name: as for `Array`; the shape may be ().

    Returns:
        An `Array` or a `Scalar`.
    """
    return Array(shape, at, name) if len(shape) else at(())


def axis_of(ndim: int, dim: Any) -> int:
    """An axis, counted from 0.

    Args:
        ndim: the number of axes.
        dim: the axis; a negative one counts from the end.

    Returns:
        From 0 to ndim - 1.

    Raises:
        DefinitionError: there is no such axis.
    """
    if not isinstance(dim, int) or not -ndim <= dim < ndim:
        raise DefinitionError(
            f"axis {dim} of an array of {ndim} axes in a mod", help=f"give one from {-ndim} to {ndim - 1}"
        )
    return dim % ndim


def applied(name: str, *args: Any) -> Any:
    """`math.apply`, which imports this package's arrays.

    Args:
        name: the operation.
        args: its operands.

    Returns:
        The result.
    """
    from neptune_lab.operators.scalar import apply

    return apply(name, *args)


def _permuted(x: Array, *dims: Any) -> Any:
    order = [axis_of(x.ndim, d) for d in (dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims)]
    if sorted(order) != list(range(x.ndim)):
        raise DefinitionError(f"permute by {tuple(order)} of {x.ndim} axes in a mod", help="name each axis once")

    def at(indices: Indices) -> Any:
        own = dict(zip(order, indices, strict=True))
        return x.element(tuple(own[a] for a in range(x.ndim)))

    return Array([x.shape[a] for a in order], at, x.name)


def _transposed(x: Array, first: int = 0, second: int = 1) -> Any:
    order = list(range(x.ndim))
    if x.ndim > 1:
        one, other = axis_of(x.ndim, first), axis_of(x.ndim, second)
        order[one], order[other] = order[other], order[one]
    return _permuted(x, *order)


def _viewed(x: Any, *shape: Any) -> Any:
    """view and reshape: the elements in row-major order under another shape."""
    array = as_array(x)
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    count, known = prod(array.shape), prod(n for n in shape if n != -1)
    shape = tuple(count // known if n == -1 and known else n for n in shape)
    if prod(shape) != count or -1 in shape:
        raise DefinitionError(
            f"a mod views {array.described()} of shape {array.shape} as {shape}", help="keep the number of elements"
        )

    def at(indices: Indices) -> Any:
        flat: Any = 0
        for index, extent in zip(indices, shape, strict=True):
            flat = flat * extent + from_end(index, extent)
        own: list[Any] = []
        for extent in reversed(array.shape[1:]):
            own.insert(0, flat % extent)
            flat = flat // extent
        return array.element((flat, *own))  # what is outside of the view is outside of the first axis

    return or_scalar(shape, at, array.name)


def _flattened(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    array = as_array(x)
    start, end = axis_of(array.ndim, start_dim), axis_of(array.ndim, end_dim)
    return _viewed(array, *array.shape[:start], prod(array.shape[start : end + 1]), *array.shape[end + 1 :])


def _squeezed(x: Any, dim: int | None = None) -> Any:
    if not isinstance(x, Array):
        return x
    gone = [a for a in range(x.ndim) if x.shape[a] == 1 and (dim is None or a == axis_of(x.ndim, dim))]
    return x[tuple(0 if a in gone else slice(None) for a in range(x.ndim))] if gone else x


def _unsqueezed(x: Any, dim: int) -> Any:
    if not isinstance(x, Array):
        return as_array(x)
    place = axis_of(x.ndim + 1, dim)
    return x[(*[slice(None)] * place, None)]


def _expanded(x: Any, *shape: Any) -> Any:
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    if not isinstance(x, Array):
        return Array(shape, lambda _: as_scalar(x)) if shape else x
    kept = [own if new == -1 else new for own, new in zip(x.shape, shape[len(shape) - x.ndim :], strict=True)]
    wanted = (*shape[: len(shape) - x.ndim], *kept)
    if broadcast([x.shape, wanted]) != wanted:
        raise DefinitionError(f"a mod expands the shape {x.shape} to {wanted}", help="only extents of 1 are repeated")
    own = [n == 1 for n in x.shape]

    def at(indices: Indices) -> Any:
        last = indices[len(indices) - x.ndim :]
        return x.element(tuple(0 if one else i for one, i in zip(own, last, strict=True)))

    return Array(wanted, at, x.name)


def _unbound(x: Array, dim: int = 0) -> tuple[Any, ...]:
    before = (slice(None),) * axis_of(x.ndim, dim)
    return tuple(x[(*before, n)] for n in range(x.shape[len(before)]))


def _stacked(parts: Sequence[Any], dim: int = 0) -> Any:
    values = [constant(p) for p in parts]
    shape = broadcast([v.shape if isinstance(v, Array) else () for v in values])
    place = axis_of(len(shape) + 1, dim)

    def at(indices: Indices) -> Any:
        which, rest = indices[place], (*indices[:place], *indices[place + 1 :])
        found = [v.element(rest) if isinstance(v, Array) else as_scalar(v) for v in values]
        return _one_of(found, which)

    return Array((*shape[:place], len(values), *shape[place:]), at)


def _joined(parts: Sequence[Any], dim: int = 0) -> Any:
    """torch.cat."""
    arrays = [as_array(constant(p)) for p in parts]
    place = axis_of(arrays[0].ndim, dim)
    slices = [piece for array in arrays for piece in _unbound(array, place)]
    return _stacked(slices, place)


def _one_of(values: Sequence[Any], index: Any) -> Any:
    if isinstance(index, int):
        return values[index]
    if len(values) > MOST:
        raise DefinitionError(
            f"a mod joins {len(values)} tensors or elements, and reads one by an index that varies: at most {MOST}",
            help="join them before the call, in a variable of its own, and capture it",
        )
    return by_halves(values, from_end(index, len(values)))


def _selected(x: Array, dim: int, index: Any) -> Any:
    """index_select and select: indices of one axis, which may be an array."""
    return x[(*(slice(None),) * axis_of(x.ndim, dim), constant(index))]


def _gathered(x: Array, dim: int, index: Any) -> Any:
    place, index = axis_of(x.ndim, dim), constant(index)

    def at(indices: Indices) -> Any:
        own = index_of(x, place, index.element(indices))
        return x.element((*indices[:place], own, *indices[place + 1 :]))

    return Array(index.shape, at, x.name)


def _taken_along(x: Any, indices: Any, dim: int | None = None) -> Any:
    """take_along_dim: an index counts modulo the extent, as in PyTorch, and the other axes are broadcast."""
    array, index = as_array(constant(x)), as_array(constant(indices))
    if dim is None:
        array, index, dim = _viewed(array, -1), _viewed(index, -1), 0
    place, ndim = axis_of(array.ndim, dim), array.ndim
    if index.ndim != ndim:
        raise DefinitionError(
            f"take_along_dim of {array.described()} by indices of {index.ndim} axes: expected {ndim}",
            help="give the indices as many axes as the tensor has, for example with reshape(1)",
        )
    extent = array.shape[place]
    around = [a for a in range(ndim) if a != place]
    shared = broadcast([tuple(t.shape[a] for a in around) for t in (array, index)])
    wanted = [shared[around.index(a)] if a != place else -1 for a in range(ndim)]
    array, index = _expanded(array, *wanted), _expanded(index, *wanted)
    return _gathered(array, place, elementwise(lambda i: i % extent, index))


def _narrowed(x: Array, dim: int, start: int, length: int) -> Any:
    return x[(*(slice(None),) * axis_of(x.ndim, dim), slice(start, start + length))]


def _item(x: Any, index: Any) -> Any:
    """x[index]; a value without axes takes None and `...` only."""
    if isinstance(x, Array):
        return x[index]
    new = [i for i in (index if isinstance(index, tuple) else (index,)) if i is not Ellipsis]
    if any(i is not None for i in new):
        raise DefinitionError(
            "a mod indexes a value without axes", help="index a captured tensor with it: `table[kv]`, not `kv[0]`"
        )
    return or_scalar((1,) * len(new), lambda _: as_scalar(x))


def _size(x: Any, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


# By the name in torch or NumPy.
VIEWS: dict[str, Callable[..., Any]] = {
    "permute": _permuted,
    "transpose": _transposed,
    "swapaxes": _transposed,
    "t": _transposed,
    "view": _viewed,
    "reshape": _viewed,
    "flatten": _flattened,
    "ravel": _flattened,
    "squeeze": _squeezed,
    "unsqueeze": _unsqueezed,
    "expand": _expanded,
    "expand_as": lambda x, other: _expanded(x, *other.shape),
    "unbind": _unbound,
    "stack": _stacked,
    "cat": _joined,
    "concat": _joined,
    "select": _selected,
    "index_select": _selected,
    "gather": _gathered,
    "take_along_dim": _taken_along,
    "narrow": _narrowed,
    "getitem": _item,
    "size": _size,
}
