"""The value of a mod at each position: `Scalar`, with Python's operators, and the operations that it is combined by.

A `Scalar` holds a TVM expression while the definition is built, and a NumPy array while the reference runs; the mod's
code is the same for both.  torch's and NumPy's functions accept a `Scalar` too, so that a mod written for FlexAttention
works unchanged.  This does not import torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import foreign
from neptune_lab.operators.arrays import Array, constant, elementwise
from neptune_lab.operators.bits import bits, invert, shift
from neptune_lab.operators.extents import ONE, after
from neptune_lab.operators.mod_ties import note
from neptune_lab.operators.operations import NARROW, convert, half_of, is_wide, kind_of, narrow_of, operate, wrapped
from neptune_lab.operators.stopped_gradients import SAME, noted, same
from neptune_lab.operators.tensor_class import seen_class
from neptune_lab.operators.whole_limits import Limits, with_width
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.console import class_of
from neptune_lab.strict.dtypes import HALVES

# Operations whose operands have one dtype.
_WRAPPING = ("number", "integer", "bits", "comparison")


class Scalar:
    """A value that differs by position: a TVM expression, or a NumPy array over all positions.

    Args:
        value: the expression (int32, int64, float32, float64 or bool), the array (int64, float64 or bool), or a plain
            number if all positions have the same.
        short_int: the dtype that PyTorch has for it, if that is an integer of 8 or 16 bits, else "".
        short_float: that dtype, if it is float16 or bfloat16: of an element of a captured tensor, of what was
            converted, and of what is computed of such values.  The number itself is computed in float32.

    `extent` is the expression's size (extents.py), `limits` those of a number of conditions and constants, or None.
    """

    __slots__ = ("extent", "limits", "short_float", "short_int", "value")
    __hash__ = None  # type: ignore[assignment]  # == gives a Scalar, so sets and dicts cannot hold one

    def __init__(self, value: Any, short_int: str = "", short_float: str = "") -> None:
        self.value = value
        self.short_int = short_int
        self.short_float = short_float
        self.extent = ONE
        self.limits: Limits | None = None

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """torch.Tensor, to a mod that asks whether it is one."""
        return seen_class(Scalar)

    @property
    def kind(self) -> str:
        """ "bool", "int" or "float"."""
        return kind_of(self.value)

    def __repr__(self) -> str:
        return f"Scalar({self.value})"

    def __bool__(self) -> bool:
        raise DefinitionError(
            "a mod needs one truth value of an expression that differs by position",
            help="write `&`, `|`, `~` and `torch.where` (or `operators.math.where`) for `and`, `or`, `not` and `if`",
        )

    def __add__(self, other: Any) -> Scalar:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Scalar:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Scalar:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return apply("div", other, self)

    def __floordiv__(self, other: Any) -> Scalar:
        return apply("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Scalar:
        return apply("floordiv", other, self)

    def __mod__(self, other: Any) -> Scalar:
        return apply("floormod", self, other)

    def __rmod__(self, other: Any) -> Scalar:
        return apply("floormod", other, self)

    def __pow__(self, other: Any) -> Scalar:
        return foreign.power(self, other)

    def __rpow__(self, other: Any) -> Scalar:
        return foreign.power(other, self)

    def __neg__(self) -> Scalar:
        return apply("neg", self)

    def __abs__(self) -> Scalar:
        return apply("abs", self)

    def __lt__(self, other: Any) -> Scalar:
        return apply("lt", self, other)

    def __le__(self, other: Any) -> Scalar:
        return apply("le", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return apply("gt", self, other)

    def __ge__(self, other: Any) -> Scalar:
        return apply("ge", self, other)

    def __eq__(self, other: Any) -> Scalar:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: Any) -> Scalar:  # type: ignore[override]
        return apply("ne", self, other)

    def __and__(self, other: Any) -> Scalar:
        return bits("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Scalar:
        return bits("or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Scalar:
        return bits("xor", self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Scalar:
        return shift(self, other)

    def __rshift__(self, other: Any) -> Scalar:
        return shift(self, other, right=True)

    def __invert__(self) -> Scalar:
        return invert(self)

    def __rlshift__(self, other: Any) -> Scalar:
        return shift(other, self)

    def __rrshift__(self, other: Any) -> Scalar:
        return shift(other, self, right=True)

    def __pos__(self) -> Scalar:
        return self

    def __round__(self, digits: int | None = None) -> Scalar:
        return foreign.call("torch.Tensor", "round", (self, digits or 0), None)

    def __divmod__(self, other: Any) -> tuple[Scalar, Scalar]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Scalar, Scalar]:
        return other // self, other % self

    def __getitem__(self, index: Any) -> Any:
        return foreign.call("torch.Tensor", "getitem", (self, index), None)

    @property
    def dtype(self) -> Any:
        """torch's dtype, or NumPy's if torch is not loaded."""
        wide = is_wide(self.value) or self.limits is not None
        return foreign.dtype_of(self.kind, wide, self.short_int or self.short_float)

    @property
    def device(self) -> Any:
        """The CPU, where a mod's constants such as `torch.tensor(0.5, device=x.device)` are read; `x.to(y.device)`
        changes nothing."""
        return foreign.device()

    @property
    def shape(self) -> tuple[int, ...]:
        """The empty tuple, since a mod computes one position at a time."""
        return ()

    ndim = 0

    def dim(self) -> int:
        """0: a mod computes one position at a time."""
        return 0

    def to(self, *targets: Any, dtype: Any = None, **_others: Any) -> Scalar:
        """The value converted to a dtype, as in torch.

        Args:
            targets: dtypes, `Scalar`s (for their dtype) or devices (which change nothing); the first dtype is used.
            dtype: a dtype, if `targets` has none.

        Returns:
            The converted value; the same object if no dtype is given.

        Raises:
            DefinitionError: the dtype is not bool, an integer, or a float of 16, 32 or 64 bits.
        """
        for target in (*targets, dtype):
            name = foreign.dtype_named(target.dtype if isinstance(target, Scalar) else target)
            if name is not None:
                return self._converted(name)
        return self

    def type(self, dtype: Any) -> Scalar:
        """The value converted to a dtype, as by `to`.

        Args:
            dtype: a dtype, or a `Scalar` for its dtype.

        Returns:
            The converted value.

        Raises:
            DefinitionError: as for `to`.
        """
        return self.to(dtype)

    astype = type_as = type

    def _converted(self, name: str) -> Scalar:
        found = self._in_dtype(foreign.NARROW_METHODS.get(name, name))
        found.extent = after([self.extent])
        return found

    def _in_dtype(self, name: str) -> Scalar:
        if name in NARROW:
            return Scalar(convert(wrapped(convert(self.value, "int64"), name), "int32"), name)
        if name not in foreign.DTYPES:
            raise DefinitionError(
                f"a mod converts a value to {name}: expected {', '.join(sorted({*foreign.DTYPES, *NARROW}))}",
                help="such as .float() or .to(torch.int32)",
            )
        dtype = foreign.DTYPES[name]
        return Scalar(convert(self.value, dtype), short_float=dtype if dtype in HALVES else "")

    def __index__(self) -> int:
        raise DefinitionError(
            "a mod uses a value of a position or of a tensor as a Python number",
            help="index captured tensors with it, use torch's functions in place of Python's, and make numbers of "
            "tensors outside of the mod",
        )

    __int__ = __float__ = __index__

    def __getattr__(self, name: str) -> Any:
        """A method of torch's tensors: a conversion such as `float`, or the function of that name."""
        if name in foreign.DTYPES or name in foreign.NARROW_METHODS:
            return lambda: self._converted(name)
        if name in SAME:
            return same(self, name)
        foreign.refuse_attribute(name)
        return lambda *args, **kwargs: foreign.call("torch.Tensor", name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Scalar:
        """torch's functions on a `Scalar` (torch calls this)."""
        return foreign.call("torch", func.__name__, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Scalar:
        """NumPy's elementwise functions on a `Scalar` (NumPy calls this)."""
        return foreign.call(
            "numpy", ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", args, kwargs
        )

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Scalar:
        """NumPy's other functions, such as `numpy.where`, on a `Scalar` (NumPy calls this)."""
        return foreign.call("numpy", func.__name__, args, kwargs)


for _name in ("floor", "ceil"):
    setattr(Scalar, f"__{_name}__", lambda self, name=_name: apply(name, self))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(Scalar, f"__i{_name}__", foreign.in_place_operator(_name))


def apply(name: str, *args: Any) -> Scalar:
    """The result of an operation of the loop-scalar IR.

    Args:
        name: the operation's name in the IR.
        args: its operands: `Scalar`s, plain numbers, arrays and tensors.

    Returns:
        A `Scalar`; an `Array` if an operand is one.  If all integer operands are captured integers of 8 or 16 bits,
        it wraps around as theirs do.

    Raises:
        DefinitionError: an operand is no number, or of a kind that the operation does not take.
    """
    args = tuple(constant(a, typed=True) for a in args)
    if any(isinstance(a, Array) for a in args):
        return elementwise(lambda *elements: apply(name, *elements), *args)
    for arg in args:
        if not isinstance(arg, Scalar | bool | int | float | np.bool_ | np.integer | np.floating):
            raise DefinitionError(
                f"a mod combines its arguments with {class_of(arg)}: only numbers and tensors can be combined",
                help="read one element of a captured tensor, as in `slopes[h]`",
            )
    own = narrow_of(args) if OPERATIONS[name].kind in _WRAPPING and name not in ("shl", "shr") else ""
    if own:  # PyTorch converts a Python number to the dtype of the tensor beside it: bytes[kv] == 256 means == 0
        whole = (isinstance(a, int | np.integer) and not isinstance(a, bool) for a in args)
        args = tuple(int(wrapped(int(a), own)) if is_int else a for a, is_int in zip(args, whole, strict=True))
    args, limits = with_width(name, args)
    result = operate(name, [a.value if isinstance(a, Scalar) else a for a in args])
    note(name, result)
    narrow = narrow_of(args) if kind_of(result) == "int" else ""
    if narrow and name not in ("select", "min", "max", "floormod"):  # these cannot overflow
        result = wrapped(result, narrow)
    found = Scalar(result, narrow, half_of(args) if kind_of(result) == "float" else "")
    found.extent = after([a.extent for a in args if isinstance(a, Scalar)])
    found.limits = limits if found.kind == "int" and not is_wide(result) else None
    return noted(found)


__all__ = ["Scalar", "apply"]
