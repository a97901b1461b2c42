"""Runs any program natively through LLVM, intermediate and wrong ones too, and compares it with another program.

Every buffer becomes a parameter, so no buffer is compacted and all values are returned, those of scan buffers with one
element per tag.  Buffers start as NaN, so a read of an element that was never written is visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Const, Expr, Previous, Program, Store
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.loop_ir.tree import map_blocks, nearest, stores
from neptune_lab.loop_ir.walks import transform
from neptune_lab.relative_error import relative_error
from neptune_lab.strict.console import shown


def as_float64(program: Program) -> Program:
    """The same program computed in float64, with casts between floats dropped.

    Two programs that agree to 1e-9 in float64 are mathematically equal; the rounding of their own dtypes has no effect.
    """

    def is_float(dtype: str) -> bool:
        return "float" in dtype

    def rule(e: Expr) -> Expr:
        match e:
            case Const(value, dtype) if is_float(dtype):
                return Const(value, "float64")
            case Cast(dtype, arg) if is_float(dtype):
                return Cast("float64", arg)
            case Previous(buffer, indices, Const(value, dtype)) if is_float(dtype):
                return Previous(buffer, indices, Const(value, "float64"))
        return e

    def store(s: Store) -> Store:
        return Store(s.buffer, s.indices, transform(s.value, rule))

    def block(b: Block) -> Block:
        return replace(b, body=store(b.body), init=None if b.init is None else store(b.init))

    buffers = tuple(replace(b, dtype="float64") if is_float(b.dtype) else b for b in program.buffers)
    return replace(map_blocks(program, block), buffers=buffers)


EACH_INPUT = "give an array for each input; operator.random_inputs(0) has names, shapes and dtypes"


def run(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the program natively.

    Args:
        program: any legal program.
        inputs: one array for each input, by name, cast to the input's dtype; shapes must match.

    Returns:
        All buffers by name, internal ones too.

    Raises:
        ScheduleError: an input is missing or has another shape, or an access cannot be shown to stay in its buffer.
    """
    from neptune_lab.loop_ir.tvm_compat import run_native

    return run_native(program, initial_arrays(program, inputs))


def initial_arrays(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All buffers before a run: the inputs in their dtypes, NaN in other float buffers, 0 in other integer buffers.

    Raises:
        ScheduleError: an input is missing or has another shape.
    """
    start = {b.name: np.full(b.shape, np.nan if "float" in b.dtype else 0, b.dtype) for b in program.buffers}
    return start | _arrays_of(program, inputs)


def check_names(program: Program, inputs: Mapping[str, object]) -> None:
    """Raises ScheduleError for an array whose name is not an input's."""
    for name in inputs:
        if name not in program.inputs:
            raise ScheduleError(
                f"{program.name} has no input {shown(name)}", help=nearest(str(name), list(program.inputs), "inputs")
            )


def _arrays_of(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs in their dtypes."""
    arrays = {}
    for buffer in program.buffers:
        if buffer.name in program.inputs:
            if buffer.name not in inputs:
                raise ScheduleError(f"no array was given for input {buffer.name!r} of {program.name}", help=EACH_INPUT)
            array = as_array(inputs[buffer.name], buffer)
            if array.shape != buffer.shape:
                raise ScheduleError(
                    f"input {buffer.name!r} has shape {array.shape}, expected {buffer.shape}", help=EACH_INPUT
                )
            arrays[buffer.name] = array
    return arrays


def as_array(value: object, buffer: Buffer) -> np.ndarray:
    """An input's value as an array of the buffer's dtype; ScheduleError if it cannot be converted."""
    try:
        return np.array(value, dtype=buffer.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ScheduleError(
            f"input {buffer.name!r} is {shown(value)}, expected an array of {buffer.dtype} of shape {buffer.shape}",
            help=EACH_INPUT,
        ) from error


@dataclass(frozen=True, slots=True)
class Agreement:
    """The difference of two programs' outputs.

    Args:
        equal: whether `error` is at most `tolerance`.
        error: the largest relative Frobenius distance of an output, computed in float64.
        tolerance: the largest distance that counts as equal.
        outputs: (name, distance) of each output.
    """

    equal: bool
    error: float
    tolerance: float
    outputs: tuple[tuple[str, float], ...]

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        sign = "equals" if self.equal else "does NOT equal"
        return f"{sign} the definition: relative error {self.error:.1e} in float64 (tolerance {self.tolerance:g})"


# Up to this number of stores, plain Python (0.3 to 1.4 µs each) is faster than a native build (100 to 900 ms).
_FEW = 400_000


def run_wide(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the program in float64: in plain Python if it is small, else natively.

    A small program that reads elements which were never written is also run natively, since Python refuses it.

    Args:
        program: any legal program.
        inputs: as in `run`.

    Returns:
        At least the outputs, by name.
    """
    if stores(program) <= _FEW:
        try:
            return run_in_python(program, _arrays_of(as_float64(program), inputs))
        except ScheduleError:
            pass
    return run(as_float64(program), inputs)


def compare(program: Program, reference: Program, inputs: dict[str, np.ndarray], tolerance: float = 1e-9) -> Agreement:
    """Runs two programs in float64 on the same inputs and compares all outputs; NaNs and infinities must be at the same
    places.

    Args:
        program, reference: programs of the same outputs.
        inputs: as in `run`.
        tolerance: the largest relative Frobenius distance of an output that counts as equal.
    """
    ours, theirs = run_wide(program, inputs), run_wide(reference, inputs)
    errors = tuple((name, relative_error(ours[name], theirs[name])) for name in reference.outputs)
    worst = max(error for _, error in errors)
    return Agreement(worst <= tolerance, worst, tolerance, errors)
