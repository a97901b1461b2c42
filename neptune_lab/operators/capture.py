"""Tensors that a mod captures: `slopes[h]`, `doc[b, q] == doc[b, kv]`.

A mod is an ordinary Python function, and the tensors that it names are ordinary arrays of its closure or its module.
An array cannot be indexed by a `Scalar`, so the function is made anew with each array replaced by a `Captured`, whose
`[...]` reads an element symbolically (for the definition) or numerically (for the reference).  The function itself,
and the functions that it calls, are left as they are.

What a captured array becomes: an input of the operator, named after its variable.  float64 becomes float32; int64 and
the other integers become int32; bool becomes int32, and its elements are conditions again where they are read.  An
array without axes becomes a plain number.  Values are those at the time the operator is made.

Live captures are for a caller who gives the kernel the arrays at each call, when their values may be others: int64,
float64 and bool stay as they are, so that nothing has to be converted first and no value is lost, and an array without
axes becomes an input of shape (1,).  What a mod computes with an int64 or a float64 is int64 or float64, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import BFLOAT16, as_numpy
from neptune_lab.operators.math import Scalar, Unread
from neptune_lab.operators.operations import NARROW, is_wide
from neptune_lab.operators.reach import Rebuild, arrays_of

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Block, Expr, Program

_INT32 = np.iinfo(np.int32)


class Captured(Unread):
    """A captured tensor inside a mod: `x[i, j]` is an element, `x[i]` with indices left is a tensor of fewer axes.

    Args:
        name: of the operator's input.
        source: a placeholder of TVM, or a NumPy array of int64 or float64.
        shape: of the whole tensor.
        boolean: whether its elements are conditions.
        narrow: the dtype of its elements, if it is an integer of 8 or 16 bits, else "".
        used: names of the tensors that were read; added to.
        first: the indices given so far.
    """

    __slots__ = ("_boolean", "_first", "_narrow", "_shape", "_source", "_used")

    def __init__(
        self,
        name: str,
        source: Any,
        shape: tuple[int, ...],
        boolean: bool,
        narrow: str,
        used: set[str],
        first: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(name, len(shape) - len(first))
        self._source, self._shape, self._boolean, self._used, self._first = source, shape, boolean, used, first
        self._narrow = narrow

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes that no index was given for."""
        return self._shape[len(self._first) :]

    @property
    def ndim(self) -> int:
        """How many axes are left."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise DefinitionError(
            f"a mod iterates over the captured tensor {self.name}: it can read single elements only",
            help="index it with the mod's arguments, such as bias[q, kv]",
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        raise DefinitionError(
            f"a mod writes to the captured tensor {self.name}: a mod only reads",
            help="compute the values before the call, and capture the result",
        )

    def __getitem__(self, index: Any) -> Any:
        given = self._first + (index if isinstance(index, tuple) else (index,))
        if len(given) > len(self._shape):
            raise DefinitionError(
                f"the captured tensor {self.name} has shape {self._shape}, but a mod gives it {len(given)} indices",
                help="give one index per dimension",
            )
        own = given[len(self._first) :]
        checked = tuple(self._index(len(self._first) + n, i) for n, i in enumerate(own))
        whole = self._first + checked
        if len(whole) < len(self._shape):
            return Captured(self.name, self._source, self._shape, self._boolean, self._narrow, self._used, whole)
        self._used.add(self.name)
        if isinstance(self._source, np.ndarray):
            element = Scalar(np.asarray(self._source[whole]))
        else:
            element = Scalar(self._source(*(i.astype("int32") if is_wide(i) else i for i in whole)))
            if element.kind != "bool" and not is_wide(element.value):
                element = Scalar(element.value.astype("float32" if element.kind == "float" else "int32"))
        if self._boolean and element.kind != "bool":
            return element != 0
        element.narrow = self._narrow
        return element

    def _index(self, axis: int, index: Any) -> Any:
        """One index: a whole number or an expression, in range as far as it can be told."""
        value = index.value if isinstance(index, Scalar) else index
        if isinstance(value, Unread) or not isinstance(index, Scalar | int | np.integer) or isinstance(index, bool):
            found = f"a {type(index).__name__}"
        elif isinstance(index, Scalar) and index.kind != "int":
            found = f"a {index.kind}"
        else:
            found = ""
        if found:
            raise DefinitionError(
                f"index {axis} of the captured tensor {self.name} is {found}: expected a whole number",
                help="b, h, q, kv, what `+ - * // %` makes of them, and elements of int tensors are whole numbers",
            )
        if isinstance(value, int | np.integer):
            value = int(value)
            value += self._shape[axis] if value < 0 else 0  # from the end, as in Python
        if isinstance(value, int | np.ndarray):
            _in_range(self.name, axis, self._shape, int(np.min(value)), int(np.max(value)))
        return _position(value)


def _position(index: Any) -> Any:
    """A position without the cast that made it an int64."""
    if is_wide(index) and hasattr(index, "value") and str(index.value.ty.dtype) == "int32":
        return index.value
    return index


def _in_range(name: str, axis: int, shape: tuple[int, ...], low: int, high: int) -> None:
    """Raise DefinitionError for an index that leaves the axis; those below 0 count from its end, as in PyTorch."""
    if low < -shape[axis] or high >= shape[axis]:
        found = high if high >= shape[axis] else low
        raise DefinitionError(
            f"index {axis} of the captured tensor {name} reaches {found}, but its shape is {shape}",
            help="keep it in range everywhere with math.minimum and math.maximum, also where a condition hides it",
        )


@dataclass(frozen=True)
class Captures:
    """The tensors that an operator's mods capture.

    Args:
        arrays: by the name of the operator's input, in its dtype: float16, bfloat16, float32 or int32, and for live
            captures int64 or bool.
        booleans: names of those that were bool.
        mods: the mods by argument, with the variables that they see as they were when the operator was made, since a
            variable may be given another value before the definition is built.
        names: the name for each captured object, by `id`; the mods keep these objects.
        scalars: names of those that had no axes, and have one here.
        narrow: the dtypes of those that were integers of 8 or 16 bits.
    """

    arrays: Mapping[str, np.ndarray]
    booleans: frozenset[str]
    mods: Mapping[str, Any] = field(repr=False)
    names: Mapping[int, str] = field(repr=False)
    scalars: frozenset[str] = frozenset()
    narrow: Mapping[str, str] = field(default_factory=dict)

    def bind(self, argument: str, sources: Mapping[str, Any], used: set[str] | None = None) -> Any:
        """The mod given as `argument`, reading its captured tensors from `sources`; as it is where it captures none.

        Args:
            argument: a key of `mods`.
            sources: a placeholder, or an array of int64 or float64, for each name.
            used: where given, the names of the tensors that are read are added to it.
        """

        def replaced(name: str, value: Any) -> Any:
            own = self.names[id(value)]
            if own not in sources:  # captured, but no element of it is ever read
                return value
            read = used if used is not None else set()
            found = Captured(
                own, sources[own], self.arrays[own].shape, own in self.booleans, self.narrow.get(own, ""), read
            )
            return found[0] if own in self.scalars else found

        return Rebuild(replaced).value("", self.mods[argument])

    def only(self, used: Collection[str]) -> Captures:
        """Without the tensors that are never read."""
        return replace(self, arrays={n: a for n, a in self.arrays.items() if n in used})

    def lookups(self, program: Program) -> list[str]:
        """The reads of captured tensors with an index that is no position, as text: `bias[i - j + 32]`."""
        from neptune_lab.loop_ir.nodes import Const, Var, loads
        from neptune_lab.loop_ir.render import expression
        from neptune_lab.loop_ir.tree import blocks

        reads = [r for block in blocks(program) for r in loads(block.body.value) if r.buffer in self.arrays]
        found = [r for r in reads if not all(isinstance(index, Var | Const) for index in r.indices)]
        return list(dict.fromkeys(map(expression, found)))

    def within(self, program: Program) -> Program:
        """The program with indices of captured tensors that may be below 0 counted from the end, as PyTorch does.

        Raises:
            DefinitionError: the bounds of the loops show that a read of a captured tensor leaves it.
        """
        from neptune_lab.loop_ir.nodes import Load, transform
        from neptune_lab.loop_ir.tree import map_blocks

        def of_block(block: Block) -> Block:
            extents = {it.name: it.extent for it in block.iters}

            def of_read(expr: Expr) -> Expr:
                if not isinstance(expr, Load) or expr.buffer not in self.arrays:
                    return expr
                shape = self.arrays[expr.buffer].shape
                indices = tuple(self._within(expr.buffer, n, i, shape, extents) for n, i in enumerate(expr.indices))
                return expr if indices == expr.indices else replace(expr, indices=indices)

            value = transform(block.body.value, of_read)
            return block if value == block.body.value else replace(block, body=replace(block.body, value=value))

        return map_blocks(program, of_block)

    def _within(self, name: str, axis: int, index: Expr, shape: tuple[int, ...], extents: Mapping[str, int]) -> Expr:
        from neptune_lab.loop_ir.nodes import Const, Op
        from neptune_lab.loop_ir.simplify import bounds, in_int32

        index = in_int32(index, extents)
        found = bounds(index, extents)
        if found is not None:
            _in_range(name, axis, shape, *found)
            if found[0] >= 0:
                return index
        return Op("select", (Op("lt", (index, Const(0))), Op("add", (index, Const(shape[axis]))), index))


def capture(mods: Mapping[str, Any], taken: Collection[str], live: bool = False) -> Captures:
    """What the mods capture.

    Args:
        mods: the mods by the argument they were given as; None where there is none.
        taken: names that an input cannot have.
        live: whether the captures are live ones (the module says what that means).

    Raises:
        DefinitionError: a tensor's dtype or values have no place in int32, float16, bfloat16 or float32.
    """
    arrays: dict[str, np.ndarray] = {}
    booleans: set[str] = set()
    scalars: set[str] = set()
    narrow: dict[str, str] = {}
    names: dict[int, str] = {}
    frozen: dict[str, Any] = {}
    for argument, mod in mods.items():
        frozen[argument] = Rebuild(_same if live else _number_or_same).value("", mod)
        for variable, value in arrays_of(mod):
            array = as_numpy(value)
            if id(value) in names or (array.ndim == 0 and not live):
                continue
            name, n = variable, 2
            while name in taken or name in arrays:
                name, n = f"{variable}_{n}", n + 1
            names[id(value)] = name
            arrays[name] = _converted(argument, variable, np.atleast_1d(array), live)
            if array.dtype == np.bool_:
                booleans.add(name)
            if str(array.dtype) in NARROW:
                narrow[name] = str(array.dtype)
            if array.ndim == 0:
                scalars.add(name)
    return Captures(arrays, frozenset(booleans), frozen, names, frozenset(scalars), narrow)


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
        help="convert it before, for example with .float()",
    )
