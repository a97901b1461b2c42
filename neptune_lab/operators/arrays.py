"""Arrays inside a mod: captured tensors, their views, and what is computed of them, element by element.

A mod computes one position at a time, so an array is a shape and a function from indices to an element.  An element is
computed when it is read: `table.T[kv, h]` and `(table * 2)[h, kv]` read one element of the table each, and
`(table[q] - table[kv]).square().sum()` reads two rows.

    >>> from neptune_lab.operators.scalar import Scalar
    >>> squares = Array((3,), lambda at: Scalar(at[0] ** 2))
    >>> (squares + 1).sum(), (squares[1:] * 2)[0]
    (Scalar(8), Scalar(2))
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.stopped_gradients import noted, records
from neptune_lab.operators.tensor_class import seen_class
from neptune_lab.strict.dtypes import HALVES

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar

# One index per axis: ints and integer `Scalar`s.
Indices: TypeAlias = tuple[Any, ...]
# The most elements that a mod may read at one position by one reduction, or of a tensor that it makes: each is an
# expression of its own.
MOST = 256
REAL = "mods compute with real numbers: take x.real, x.imag, x.abs() or torch.view_as_real(x) before the call"


def check_count(shape: Sequence[int], name: str = "") -> None:
    """Raises DefinitionError if elements of this shape, which a mod reads at one position, are more than `MOST`.

    Args:
        shape: of what is read.
        name: the captured tensor's name, as in `Array`.
    """
    if prod(shape) > MOST:
        raise DefinitionError(
            f"a mod reads all {prod(shape)} elements of {_described(shape, name)} at one position: at most {MOST}",
            help="compute what is made of them before the call, and capture the result",
        )


def _described(shape: Sequence[int], name: str) -> str:
    return f"the captured tensor {name}" if name else f"an array of shape {tuple(shape)}"


class Array:
    """A tensor inside a mod.

    Args:
        shape: the extents of its axes, at least one.
        at: the element at indices, one per axis; ints are at least 0 and below their axis's extent.
        name: the captured tensor's name; "" for what is computed.
    """

    __slots__ = ("_at", "name", "shape")
    __hash__ = None  # type: ignore[assignment]  # == gives an Array

    def __init__(self, shape: Sequence[int], at: Callable[[Indices], Scalar], name: str = "") -> None:
        self.shape = tuple(shape)
        # (elements are computed when they are read, where torch may record again)
        self._at = at if records() else lambda place: noted(at(place), stops=True)
        self.name = name

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """torch.Tensor, to a mod that asks whether it is one."""
        return seen_class(Array)

    def element(self, indices: Indices) -> Scalar:
        """The element at indices that are inside, one per axis."""
        return self._at(indices)

    def elements(self) -> Iterator[Scalar]:
        """All elements, in row-major order.

        Raises:
            DefinitionError: there are more than `MOST`.
        """
        check_count(self.shape, self.name)
        return map(self.element, product(*map(range, self.shape)))

    def described(self) -> str:
        """The array in a message."""
        return _described(self.shape, self.name)

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def missing(self) -> int:
        """How many more indices an element needs."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype that a mod sees for its elements, as for `Scalar.dtype`."""
        return self.element((0,) * self.ndim).dtype

    @property
    def device(self) -> Any:
        """As `Scalar.device`."""
        from neptune_lab.operators.foreign import device

        return device()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.shape[0] > MOST:
            check_count(self.shape, self.name)
        return (self[n] for n in range(self.shape[0]))

    def __bool__(self) -> bool:
        raise DefinitionError(unread(self), help="reduce it to one condition with .any() or .all()")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise DefinitionError(
            f"a mod writes to {self.described()}: a mod only reads",
            help="compute the values before the call, and capture the result",
        )

    def __getitem__(self, index: Any) -> Any:
        from neptune_lab.operators.array_indices import indexed

        return indexed(self, index if isinstance(index, tuple) else (index,))

    def __getattr__(self, name: str) -> Any:
        """A method of torch's tensors, such as `sum`, `float` or `view`."""
        from neptune_lab.operators import array_functions, foreign

        if name == "data":
            return noted(self, stops=True)
        if name in ("T", "mT"):
            return array_functions.FUNCTIONS["transpose"](self, -2, -1) if self.ndim > 1 else self
        foreign.refuse_attribute(name)
        return lambda *args, **kwargs: array_functions.call("torch.Tensor", name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """torch's functions on an array (torch calls this)."""
        from neptune_lab.operators.foreign import call

        return call("torch", func.__name__, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """NumPy's elementwise functions on an array (NumPy calls this)."""
        from neptune_lab.operators.foreign import call

        return call("numpy", ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", args, kwargs)

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """NumPy's other functions on an array (NumPy calls this)."""
        from neptune_lab.operators.foreign import call

        return call("numpy", func.__name__, args, kwargs)

    def __matmul__(self, other: Any) -> Any:
        from neptune_lab.operators.array_functions import FUNCTIONS

        return FUNCTIONS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Any:
        from neptune_lab.operators.array_functions import FUNCTIONS

        return FUNCTIONS["matmul"](other, self)


def _operator(name: str, swapped: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name)

    def applied(self: Array, *others: Any) -> Any:
        return elementwise(function, *others, self) if swapped else elementwise(function, self, *others)

    return applied


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift")
for _name in (*_BINARY, "lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert"):
    setattr(Array, f"__{_name.rstrip('_')}__", _operator(_name))
for _name in _BINARY:
    setattr(Array, f"__r{_name.rstrip('_')}__", _operator(_name, swapped=True))


def elementwise(function: Callable[..., Any], *args: Any) -> Any:
    """A function of the elements at each index; arrays are broadcast, other arguments are passed as they are.

    Args:
        function: from `Scalar`s and the other arguments to a `Scalar`.
        args: `Array`s and other arguments.

    Returns:
        An `Array`; what the function gives if no argument is one.

    Raises:
        DefinitionError: the shapes cannot be broadcast.
    """
    args = tuple(constant(a) for a in args)
    shapes = [a.shape for a in args if isinstance(a, Array)]
    if not shapes:
        return function(*args)
    shape = broadcast(shapes)

    def at(indices: Indices) -> Any:
        return function(*(stretched(a, indices) if isinstance(a, Array) else a for a in args))

    return Array(shape, at)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that the shapes are broadcast to.

    Args:
        shapes: at least one.

    Returns:
        A shape.

    Raises:
        DefinitionError: they do not fit together.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise DefinitionError(
            f"a mod combines arrays of the shapes {', '.join(map(str, shapes))}",
            help="index them until their shapes are equal, or one of each pair of extents is 1",
        ) from None


def stretched(array: Array, indices: Indices) -> Scalar:
    """The element at indices of a shape that the array is broadcast to.

    Args:
        array: the array.
        indices: one per axis of that shape.

    Returns:
        The element.
    """
    own = indices[len(indices) - array.ndim :]
    return array.element(tuple(0 if n == 1 else i for i, n in zip(own, array.shape, strict=True)))


def constant(value: Any, typed: bool = False) -> Any:
    """A tensor that a mod makes of numbers, as a number or as an `Array`; any other value as it is.

    Args:
        value: any value that a mod combines.
        typed: whether the dtype of a tensor without axes counts, which a plain number beside another value leaves to
            that.

    Returns:
        A number, or a `Scalar` if `typed`, for a tensor without axes; an `Array` for another tensor, NumPy array or
        list; else `value`.

    Raises:
        DefinitionError: the tensor has more than `MOST` elements.
    """
    from neptune_lab.operators.base import as_numpy
    from neptune_lab.operators.reach import is_array
    from neptune_lab.operators.scalar import Scalar

    if isinstance(value, list) and value and not any(isinstance(v, Scalar | Array) for v in value):
        value = np.asarray(value)
    if not is_array(value):
        return value
    numbers = as_numpy(value)
    if numbers.dtype.kind == "c":
        raise DefinitionError("a mod makes a tensor of complex numbers", help=REAL)
    if numbers.ndim == 0:
        return _chosen(numbers, ()) if typed else numbers.item()
    if numbers.size > MOST or numbers.size == 0:
        raise DefinitionError(
            f"a mod makes a tensor of {numbers.size} elements, of shape {numbers.shape}: from 1 to {MOST}",
            help="make it before the call, in a variable of its own, and capture it",
        )

    def at(indices: Indices) -> Any:
        return _chosen(numbers, indices)

    return Array(numbers.shape, at)


def _chosen(numbers: np.ndarray, indices: Indices) -> Any:
    """An element of constant numbers, by comparisons with the index if it differs by position."""
    from neptune_lab.operators.array_indices import from_end
    from neptune_lab.operators.operations import NARROW
    from neptune_lab.operators.scalar import Scalar

    if not indices:
        name = str(numbers.dtype)
        return Scalar(numbers.item(), name if name in NARROW else "", name if name in HALVES else "")
    first, rest = indices[0], indices[1:]
    if not isinstance(first, Scalar):
        return _chosen(numbers[first], rest)
    return by_halves([_chosen(part, rest) for part in numbers], from_end(first, len(numbers)))


def by_halves(values: Sequence[Any], index: Any, first: int = 0) -> Any:
    """The value at an index, by comparisons that are nested as often as its digits.

    Args:
        values: at least one.
        index: a `Scalar` from `first` to less than `first` and their number.
        first: the index of the first value.

    Returns:
        One of the values; some of them for another index.
    """
    from neptune_lab.operators.scalar import apply

    if len(values) == 1:
        return values[0]
    middle = (len(values) + 1) // 2
    low, high = by_halves(values[:middle], index, first), by_halves(values[middle:], index, first + middle)
    return apply("select", apply("lt", index, first + middle), low, high)


def unread(array: Array) -> str:
    """The error message for an array that is used where one number is needed.

    Args:
        array: the array.

    Returns:
        The message, with the number of indices that are missing.
    """
    return f"{array.described()} is used whole: an element of it needs {array.missing} more indices"
