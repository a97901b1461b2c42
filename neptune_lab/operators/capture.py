"""Tensors that a mod captures: `slopes[h]`, `doc[b, q] == doc[b, kv]`.

A mod is a Python function, and the tensors that it captures are arrays in its variables, such as its closure or the
globals of its module.  A `Scalar` cannot index an array, so the function is copied with each array replaced by a
`arrays.Array`, whose `[...]` reads an element symbolically (for the definition) or numerically (for the reference).
The user's function, and the functions that it calls, do not change.

A captured array becomes an input of the operator, named after its variable.  float16, bfloat16 and float32 are kept;
float64 becomes float32; integers and bool become int32, and the elements of a bool array are read as conditions.  An
array of shape () becomes a plain number.  The values are copied when the operator is made.

Live captures are for a caller who passes the arrays to the kernel at each call, because their values may change.  Then
int64, float64 and bool are kept as well, so that no call converts them and no value is lost; uint32 becomes int64; and
an array of shape () becomes an input of shape (1,).  What a mod computes with an int64 or float64 element is int64 or
float64, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.arrays import REAL, Array, Indices
from neptune_lab.operators.base import BFLOAT16, as_numpy
from neptune_lab.operators.captured_indices import Read, counted_from_the_end, given_index, narrowed, times_written
from neptune_lab.operators.extents import of_read
from neptune_lab.operators.operations import NARROW, is_wide
from neptune_lab.operators.reach import Rebuild, arrays_of
from neptune_lab.operators.scalar import Scalar
from neptune_lab.operators.stopped_gradients import noted
from neptune_lab.operators.tensor_class import refuse_types
from neptune_lab.strict.dtypes import HALVES

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Block, Expr, Program

_INT32 = np.iinfo(np.int32)

# Shapes in place of those of captured tensors, by the tensor's `id`.
_shapes: ContextVar[Mapping[int, tuple[int, ...]]] = ContextVar("_shapes", default=MappingProxyType({}))


@contextmanager
def with_shapes(shapes: Mapping[int, tuple[int, ...]]) -> Iterator[None]:
    """Operators that are made inside take captured tensors (by their `id`) to have these shapes, and to hold zeros.

    A kernel for every length is made from operators at several lengths; the tensors of a call have one.
    """
    token = _shapes.set(shapes)
    try:
        yield
    finally:
        _shapes.reset(token)


def captured(name: str, source: Any, shape: tuple[int, ...], boolean: bool, narrow: str, used: set[str]) -> Array:
    """A captured tensor inside a mod.

    Args:
        name: the name of the operator's input.
        source: the TVM placeholder, or a NumPy array of int64 or float64, of shape `shape`.
        shape: the tensor's shape.
        boolean: whether its elements are conditions.
        narrow: the dtype of the user's array if it has 8 or 16 bits, else "".
        used: a set to which a read of an element adds `name`.

    Returns:
        The array, whose elements are reads of `source`.
    """

    def read(indices: Indices) -> Scalar:
        used.add(name)
        given = tuple(given_index(array, axis, index) for axis, index in enumerate(indices))
        if isinstance(source, np.ndarray):
            element = Scalar(np.asarray(source[given]))
        else:
            element = Scalar(source(*(narrowed(i) if is_wide(i) else i for i in given)))
            if element.kind != "bool" and not is_wide(element.value):
                element = Scalar(element.value.astype("float32" if element.kind == "float" else "int32"))
        if boolean and element.kind != "bool":
            return element != 0
        element.short_int, element.short_float = ("", narrow) if narrow in HALVES else (narrow, "")
        computed = [index for index in indices if isinstance(index, Scalar)]
        element.extent = of_read([(index.extent, times_written(index.value)) for index in computed])
        return noted(element)

    array = Array(shape, read, name)
    return array


@dataclass(frozen=True)
class Captures:
    """The tensors that an operator's mods capture.

    Args:
        arrays: copies of the captured arrays, by the name of the operator's input, in the input's dtype: float16,
            bfloat16, float32 or int32; if live, also int64, float64 or bool.
        booleans: names of the inputs that the user has as bool.
        mods: the mods by argument. A mod that captures tensors is a copy whose variables keep the values that they had
            when the operator was made, since the user may assign others before the definition is built.
        names: the input's name of each captured object, by `id`; `mods` keeps these objects alive.
        scalars: names of the inputs that the user has with shape (), and that have shape (1,) here.
        narrow: the user's dtypes, by the input's name, of those with 8 or 16 bits.
    """

    arrays: Mapping[str, np.ndarray]
    booleans: frozenset[str]
    mods: Mapping[str, Any] = field(repr=False)
    names: Mapping[int, str] = field(repr=False)
    scalars: frozenset[str] = frozenset()
    narrow: Mapping[str, str] = field(default_factory=dict)

    def bind(self, argument: str, sources: Mapping[str, Any], used: set[str] | None = None) -> Any:
        """The mod given as `argument`, reading its captured tensors from `sources`.

        Args:
            argument: a key of `mods`.
            sources: TVM placeholders, or NumPy arrays of int64 or float64, by the input's name.
            used: a set to which reads add the names of the tensors.

        Returns:
            A copy of the mod; the same object if it captures no tensor.
        """

        def replaced(name: str, value: Any) -> Any:
            own = self.names[id(value)]
            if own not in sources:  # the mod reads no element of it
                return value
            read = used if used is not None else set()
            shape, boolean = self.arrays[own].shape, own in self.booleans
            tensor = captured(own, sources[own], shape, boolean, self.narrow.get(own, ""), read)
            return tensor[0] if own in self.scalars else tensor

        return Rebuild(replaced).value("", self.mods[argument])

    def only(self, used: Collection[str]) -> Captures:
        """The captures without the tensors that no mod reads.

        Args:
            used: names of the tensors that are read.

        Returns:
            Captures with the arrays of these names only.
        """
        return replace(self, arrays={n: a for n, a in self.arrays.items() if n in used})

    def lookups(self, program: Program) -> list[str]:
        """The reads of captured tensors with an index that is computed, such as `bias[i - j + 32]`.

        Args:
            program: the operator's program.

        Returns:
            The reads as text, each once: those with an index that is neither a loop variable nor a constant.
        """
        from neptune_lab.loop_ir.render import expression
        from neptune_lab.loop_ir.tree import blocks
        from neptune_lab.loop_ir.walks import is_plain, loads

        reads = [r for block in blocks(program) for r in loads(block.body.value) if r.buffer in self.arrays]
        computed = [r for r in reads if not is_plain(r)]
        return list(dict.fromkeys(map(expression, computed)))

    def within(self, program: Program) -> Program:
        """The program in which negative indices of captured tensors count from the end of the axis, as in PyTorch.

        before ⇒ after, for an axis of 8 elements and an index e that may be negative:
            table[e]    ⇒    table[select(e < 0, e + 8, e)]

        Args:
            program: the operator's program.

        Returns:
            The program with indices in int32.

        Raises:
            DefinitionError: the extents of the loops show that a read of a captured tensor is out of range.
        """
        from neptune_lab.loop_ir.guards import with_guards
        from neptune_lab.loop_ir.nodes import Load
        from neptune_lab.loop_ir.tree import map_blocks

        def of_block(block: Block) -> Block:
            extents = {it.name: it.extent for it in block.iters}

            def of_read(expr: Expr, conditions: tuple[Expr, ...]) -> Expr:
                if not isinstance(expr, Load) or expr.buffer not in self.arrays:
                    return expr
                read = Read(expr.buffer, self.arrays[expr.buffer].shape, conditions, extents)
                indices = tuple(counted_from_the_end(read, n, i) for n, i in enumerate(expr.indices))
                return expr if indices == expr.indices else replace(expr, indices=indices)

            value = with_guards(block.body.value, of_read)
            return block if value == block.body.value else replace(block, body=replace(block.body, value=value))

        return map_blocks(program, of_block)


def capture(mods: Mapping[str, Any], taken: Collection[str], live: bool = False) -> Captures:
    """The tensors that the mods capture, converted to dtypes that an input can have.

    Args:
        mods: the mods by argument, "score_mod" and "mask_mod"; None if there is none.
        taken: names that an input must not have; a captured tensor of such a name gets a number, such as `q_2`.
        live: whether the caller passes the arrays at each call (see the module's docstring).

    Returns:
        The arrays, with copies of the mods.

    Raises:
        DefinitionError: a tensor is empty; its dtype is not a float, integer or bool; it has integers that int32 does
            not hold (if live: int64 and uint32 are accepted, uint64 is not).
    """
    arrays: dict[str, np.ndarray] = {}
    booleans: set[str] = set()
    scalars: set[str] = set()
    narrow: dict[str, str] = {}
    names: dict[int, str] = {}
    frozen: dict[str, Any] = {}
    for argument, mod in mods.items():
        refuse_types(argument, mod)
        frozen[argument] = Rebuild(_same if live else _number_or_same).value("", mod)
        for variable, value in arrays_of(mod):
            array = as_numpy(value)
            if id(value) in names or (array.ndim == 0 and not live):
                continue
            shape = _shapes.get().get(id(value), array.shape)
            replaced = shape != array.shape
            if replaced:
                array = np.zeros((1,) * len(shape), array.dtype)
            name, n = variable, 2
            while name in taken or name in arrays:
                name, n = f"{variable}_{n}", n + 1
            names[id(value)] = name
            own = _converted(argument, variable, np.atleast_1d(array), live)
            arrays[name] = np.broadcast_to(own, shape) if replaced else own
            if array.dtype == np.bool_:
                booleans.add(name)
            if str(array.dtype) in (*NARROW, *HALVES):
                narrow[name] = str(array.dtype)
            if array.ndim == 0:
                scalars.add(name)
    return Captures(arrays, frozenset(booleans), frozen, names, frozenset(scalars), narrow)


def converted(array: np.ndarray, dtype: Any) -> np.ndarray:
    """A copy of the array in another dtype; one number in memory, as `with_shapes` makes them, stays one."""
    if any(array.strides):
        return array.astype(dtype)
    return np.broadcast_to(array[(slice(1),) * array.ndim].astype(dtype), array.shape)


def _same(name: str, value: Any) -> Any:
    return value


def _number_or_same(name: str, value: Any) -> Any:
    array = as_numpy(value)
    return array.item() if array.ndim == 0 else value


def _converted(argument: str, variable: str, array: np.ndarray, live: bool) -> np.ndarray:
    """A copy of the array in a dtype that an input can have."""
    if array.size == 0:
        raise DefinitionError(
            f"{argument} captures the tensor {variable} of shape {array.shape}, which is empty",
            help="capture a tensor with at least one element",
        )
    if array.dtype in (np.float16, np.float32, BFLOAT16):
        return array.copy()
    if array.dtype == np.float64:
        return array.copy() if live else array.astype(np.float32)
    if array.dtype == np.bool_:
        return array.copy() if live else array.astype(np.int32)
    if live and array.dtype in (np.int64, np.uint32):
        return array.astype(np.int64)
    if live and array.dtype == np.uint64:
        raise DefinitionError(
            f"{argument} captures the tensor {variable} of dtype uint64, and int64 does not hold all of its values",
            help=f"capture {variable}.to(torch.int64)",
        )
    if array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        if low < _INT32.min or high > _INT32.max:
            raise DefinitionError(
                f"{argument} captures the tensor {variable} with values from {low} to {high}: int32 does not hold them",
                help="capture floats, or smaller whole numbers",
            )
        return array.astype(np.int32)
    raise DefinitionError(
        f"{argument} captures the tensor {variable} of dtype {array.dtype}: expected floats, integers or bool",
        help=REAL if array.dtype.kind == "c" else "convert it before, for example with .float()",
    )
