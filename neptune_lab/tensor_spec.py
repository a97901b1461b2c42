"""Name, shape, dtype and strides of an input or output, the same for definitions, kernels and measurements.

Strides are in elements.  Those of dimensions of size 1 have no meaning: `layout_of` replaces them, so that two layouts
of the same elements are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeAlias

from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.typed import OMIT_DEFAULT, Count, Extent, Line, Name, OneOf

DType: TypeAlias = Annotated[str, OneOf(DTYPES)]
Strides: TypeAlias = tuple[int, ...]

# The largest value of a size that is known at the launch only: 65,535 programs of 16 rows, the most along the second
# axis of a grid.
LARGEST = (1 << 20) - 16
# Sizes below and from this on have kernels of their own: few tiles are best in one loop, many can be split.  And the
# sizes that templates and tiles are chosen for.
LONG = 1024
SHORT_HINT, LONG_HINT = LONG // 2, 4 * LONG


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, static shape, dtype and strides of an input or output.

    Args:
        dtype: as torch spells it after its dot ("float16").
        strides: elements from one index of each dimension to the next; None: contiguous.
        sizes: the name of each dimension whose size is known at the launch only, "" of the others; None: all are
            static.  `shape` is a sample's.
        steps: the name of the size that each stride is a multiple of, "" of the others; None: none is.  `strides` are a
            sample's.
    """

    name: Name
    shape: tuple[Extent, ...]
    dtype: DType
    strides: tuple[Count, ...] | None = field(default=None, metadata=OMIT_DEFAULT)
    sizes: tuple[Line, ...] | None = field(default=None, metadata=OMIT_DEFAULT)
    steps: tuple[Line, ...] | None = field(default=None, metadata=OMIT_DEFAULT)

    def strides_at(self, shape: Sequence[int]) -> Strides | None:
        """The strides of a tensor of this shape, whose sizes are those of a call.

        >>> TensorSpec("q", (2, 4, 16, 8), "float16", (512, 8, 32, 1), ("", "", "n", ""), ("n", "", "", "")).strides_at(
        ...     (2, 4, 10, 8)
        ... )
        (320, 8, 32, 1)
        """
        if self.strides is None or self.steps is None or self.sizes is None:
            return self.strides
        found = list(self.strides)
        for dim, name in enumerate(self.steps):
            if name:
                at = self.sizes.index(name)
                found[dim] = self.strides[dim] // self.shape[at] * shape[at]
        return tuple(found)

    def __str__(self) -> str:
        names = self.sizes or ("",) * len(self.shape)
        extents = [name or str(extent) for name, extent in zip(names, self.shape, strict=True)]
        return _typed(self.name, self.dtype, extents) + strides_text(self.strides)


class Tensor(Protocol):
    """A tensor of a program of any stage."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def signature(name: str, tensors: Iterable[Tensor], inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """A program or kernel in a line: its name, and the names, dtypes and shapes of its inputs and outputs.

    Args:
        name: of the program.
        tensors: those whose dtypes and shapes are known.
        inputs, outputs: names, in calling order.

    >>> x, y = TensorSpec("x", (2, 3), "float16", (1, 2)), TensorSpec("y", (2,), "float32")
    >>> signature("scale", [x, y], ["x"], ["y"])
    'scale(x: float16[2, 3] strides (1, 2)) -> y: float32[2]'
    """
    typed = {t.name: str(t) if isinstance(t, TensorSpec) else _typed(t.name, t.dtype, t.shape) for t in tensors}
    given, made = (", ".join(typed.get(n, n) for n in names) for names in (inputs, outputs))
    return f"{name}({given}) -> {made}"


def _typed(name: str, dtype: str, extents: Iterable[object]) -> str:
    return f"{name}: {dtype}[{', '.join(map(str, extents))}]"


def strides_text(strides: Strides | None) -> str:
    """The strides as they follow a shape in a text; "" for a contiguous tensor.

    >>> strides_text((64, 1)), strides_text(None)
    (' strides (64, 1)', '')
    """
    return "" if strides is None else f" strides ({', '.join(map(str, strides))})"


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> Strides | None:
    """The strides, with the ones of dimensions of size 1 replaced; None for those of a contiguous tensor.

    >>> layout_of((1, 8, 16, 4), (99, 4, 32, 1)), layout_of((2, 1, 3), (3, 7, 1))
    ((32, 4, 32, 1), None)
    """
    found: list[int] = []
    inside, contiguous = 1, True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            found.append(shape[len(shape) - len(found)] * found[-1] if found else 1)
            continue
        contiguous &= stride == inside
        inside *= size
        found.append(stride)
    return None if contiguous else tuple(reversed(found))


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """The strides of a dense tensor of this shape whose dimensions have the order of `strides` in memory.

    As `torch.empty_like` gives them: a stride of 0 (an expanded dimension) leaves the order of the shape.

    >>> dense_strides((2, 4, 16, 8), (1536, 8, 96, 1))
    (512, 8, 32, 1)
    """
    # The insertion sort of TensorIterator: a comparison with a stride of 0 decides nothing, so the order is no total
    # one, and `sorted` would give another result.
    order = list(reversed(range(len(shape))))
    for start in range(1, len(order)):
        at = start
        for before in reversed(range(start)):
            a, b = order[before], order[at]
            if strides[a] == 0 or strides[b] == 0:
                continue
            if (strides[a], shape[a]) > (strides[b], shape[b]):
                order[before], order[at] = b, a
                at = before
            elif strides[a] < strides[b]:
                break
    found = [0] * len(shape)
    step = 1
    for dim in order:
        found[dim] = step
        step *= max(shape[dim], 1)
    return tuple(found)


def resized_strides(shape: Sequence[int], old_shape: Sequence[int], old: Sequence[int]) -> Strides:
    """The strides of a tensor of another shape: dimensions in the old order, expanded and with gaps as they were.

    A gap becomes as large as what is inside it.

    >>> resized_strides((2, 2, 4, 8), (4, 16, 512, 64), (1572864, 64, 3072, 1))
    (128, 8, 32, 1)
    """
    found = [0] * len(shape)
    step, dense = 1, 1
    for dim in sorted(range(len(shape)), key=lambda n: (old[n], old_shape[n] > 1, -n)):
        if old[dim]:
            step = step if old[dim] == dense else 2 * step
            found[dim] = step
            step, dense = step * shape[dim], old[dim] * old_shape[dim]
    return tuple(found)


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory from the first element of a tensor to its last, both included.

    >>> span((2, 3), (8, 1)), span((2, 3), (0, 1))
    (11, 3)
    """
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share memory: False is certain.

    >>> overlaps((2, 3), (3, 1)), overlaps((2, 3), (0, 1))
    (False, True)
    """
    inside = 0  # the offset of the last element of the dimensions so far
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= inside:
            return True
        inside += stride * (size - 1)
    return False


__all__ = [
    "LARGEST",
    "LONG",
    "LONG_HINT",
    "SHORT_HINT",
    "DType",
    "Strides",
    "TensorSpec",
    "dense_strides",
    "layout_of",
    "overlaps",
    "resized_strides",
    "signature",
    "span",
    "strides_text",
]
