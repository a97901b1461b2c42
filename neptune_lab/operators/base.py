"""What every operator is: names, shapes, a program, a reference, inputs to try it on."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

from neptune_lab.errors import DefinitionError, NotPickledError
from neptune_lab.operators.dims import Family
from neptune_lab.operators.index_limits import IndexLimits
from neptune_lab.operators.python_source import PythonFunction
from neptune_lab.operators.recipe import Recipe
from neptune_lab.operators.resized import Resized
from neptune_lab.operators.strided import sharing
from neptune_lab.operators.ties import Ties
from neptune_lab.strict.console import shown
from neptune_lab.strict.dtypes import EIGHTS
from neptune_lab.strict.values import INT32_MAX, check_integer
from neptune_lab.tensor_spec import TensorSpec, layout_of, overlaps, signature

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program

Arrays: TypeAlias = tuple[np.ndarray, ...]

# NumPy's own dtypes stop at float16; importing ml_dtypes also teaches NumPy the names of the others.
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Inputs of these dtypes reach a reference as int64, others as float64.
WHOLE = ("int32", "int64")

# Elements of a tensor, 2 TiB in float16.
LARGEST_TENSOR = 2**40


# Plain JSON, so that a record can name the operator it was made from.
Params: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """A definition and what is needed to show, run and check it.

    Not slotted: `program` is built on first use, which is when TVM is loaded, and kept.

    Args:
        name: a Python identifier; kernels are named after it.
        title: one line for people.
        doc: where the definition comes from.
        params: the arguments the operator was made from, plain JSON; a mod is given by its name.
        inputs: the tensors it takes, in the order of its arguments.
        outputs: the tensors it gives.
        source: the Python text of the definition, and of the mods, for display.
        template: the schedule that `nl.compile(op)` takes by itself, "rolling_update" or "split_k_update"; None: by
            shape.
        build: makes the loop-scalar program, with marks where a gradient stops (imports TVM).
        compute: the reference, arrays of the inputs' shapes (float64, or int64 for `WHOLE`) to float64 arrays of the
            outputs'.
        draw: makes the inputs that are not captured from a random generator; they are cast to the inputs' dtypes.
        captured: values of the last inputs, by name, where a mod captured them: they need not be given.
        holds: the tensors that captured inputs are copies of, by name, where a function of PyTorch captured them.
        trained: names of the captured inputs that recorded gradients when they were captured.
        constants: names of tensors of one number that recorded gradients, and are constants of the program.
        lines: the line of the user's file that each stage comes from, by the stage's name
            (`torch_to_stages.lines.SourceLine`); empty if the stages were not traced.
        python: the user's functions that it was traced from, with the stages of each line.
        recipe: how it can be made again with other arguments; None if that is not known.
        family: the sizes that are known at the launch only, and how the operator is made at others
            (`operators.dims`); its own are those of the hints.  None: all are numbers.
        resized: how it is made for calls with other sizes; None: its kernel takes no other ones.
        copies: whether its kernel copies inputs that are not contiguous, at each call; False: it refuses them.
        ties: finds the derivatives where a stage's expression has none (`operators.ties`), by the stage's name.
        gradient_stops: finds the user's line at which a gradient that flows from one of the inputs of these names
            stops or changes in a way that the definition does not show (a `torch.autograd.Function`); None: there is
            none.
        index_limits: the range of integers that a call on the CPU may give, of inputs that are positions or labels.
        parts: names of the stages of each part of the definition, in order, if it is to be scheduled in parts that
            share no kernel; empty: as a whole.
    """

    name: str
    title: str
    doc: str
    params: Params
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: str
    build: Callable[[], Program] = field(repr=False)
    compute: Callable[..., Arrays] = field(repr=False)
    draw: Callable[[np.random.Generator], Arrays] = field(repr=False)
    captured: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    holds: Mapping[str, Any] = field(repr=False, default_factory=dict)
    trained: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    template: str | None = None
    lines: Mapping[str, Any] = field(repr=False, default_factory=dict)
    python: tuple[PythonFunction, ...] = field(repr=False, default=())
    recipe: Recipe | None = field(repr=False, default=None)
    family: Family | None = field(repr=False, default=None)
    resized: Resized | None = field(repr=False, default=None)
    copies: bool = False
    ties: Callable[[], Mapping[str, Ties]] = field(repr=False, default=dict)
    gradient_stops: Callable[[Collection[str]], Any] | None = field(repr=False, default=None)
    parts: tuple[tuple[str, ...], ...] = ()
    index_limits: tuple[IndexLimits, ...] = field(repr=False, default=())

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise DefinitionError(
                f"name={shown(self.name)}: an operator's name is a Python identifier",
                help="use letters, digits and underscores, such as 'row_sum'",
            )
        for tensor in (*self.inputs, *self.outputs):
            if prod(int(extent) for extent in tensor.shape) > LARGEST_TENSOR:
                raise DefinitionError(
                    f"{tensor.name} has shape {tuple(tensor.shape)}: more than {LARGEST_TENSOR} elements",
                    help="choose smaller sizes",
                )

    def __repr__(self) -> str:
        """Name, inputs and outputs; `program` and `source` are the definition."""
        inputs, outputs = ([t.name for t in tensors] for tensors in (self.inputs, self.outputs))
        return f"<Operator {signature(self.name, (*self.inputs, *self.outputs), inputs, outputs)}>"

    def __copy__(self) -> Operator:
        """The operator itself, which never changes."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Operator:
        """The operator itself, which never changes: what holds it can be copied."""
        return self

    def __reduce__(self) -> Any:
        raise NotPickledError(
            f"the operator {self.name} cannot be pickled, since it holds functions",
            help="make it again in the other process; nl.compile(op).export(path) writes its kernel to a file",
        )

    @cached_property
    def marked(self) -> Program:
        """The definition as a loop-scalar program, with marks where a gradient stops (`loop_ir.gradient_marks`)."""
        return self.build()

    @cached_property
    def program(self) -> Program:
        """The definition as a loop-scalar program, a block a stage."""
        from neptune_lab.loop_ir.gradient_marks import unmarked

        return unmarked(self.marked)

    def at(self, **sizes: int) -> Operator:
        """The operator at numbers in place of the sizes with a name (`nl.dim`).

        Args:
            sizes: values by name; those that are left out have their hints.

        Returns:
            An operator whose sizes are all numbers.

        Raises:
            DefinitionError: there is no such size, or a value that it does not take.
        """
        return (self.family or Family({}, lambda _: self)).at(sizes)

    def reference(self, *arrays: Any) -> np.ndarray | Arrays:
        """The outputs in float64, computed in NumPy from the inputs.

        Args:
            arrays: the inputs, in order, as anything `numpy.asarray` takes, or torch tensors; captured ones may be
                omitted.

        Returns:
            The output, or a tuple of them if the operator has several.

        Raises:
            DefinitionError: the number of arrays is wrong, or one has another shape.
        """
        if len(arrays) == len(self.inputs) - len(self.captured):
            arrays = (*arrays, *self.captured.values())
        if len(arrays) != len(self.inputs):
            names = ", ".join(t.name for t in self.inputs)
            raise DefinitionError(
                f"{self.name} takes {len(self.inputs)} inputs ({names}), got {len(arrays)}",
                help="give one array per input, in this order",
            )
        wide = []
        for spec, array in zip(self.inputs, arrays, strict=True):
            try:
                values = as_numpy(array).astype(np.int64 if spec.dtype in WHOLE else np.float64)
            except (TypeError, ValueError, OverflowError) as error:
                raise DefinitionError(
                    f"{spec.name}={shown(array)}: expected an array of numbers: {error}",
                    help="give a NumPy array, or a tensor on the CPU",
                ) from error
            if values.shape != spec.shape:
                raise DefinitionError(
                    f"{spec.name} has shape {values.shape}, {self.name} takes {spec.shape}",
                    help="reshape the array, or make the operator for this shape",
                )
            wide.append(values)
        found = self.compute(*wide)
        return found[0] if len(found) == 1 else found

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs; captured inputs have the captured values.

        Args:
            seed: the same seed gives the same inputs.

        Returns:
            Arrays by input name, in the operator's shapes and dtypes.
        """
        check_integer("seed", seed, 0, 2**63 - 1, DefinitionError, help="such as 0")
        arrays = (*self.draw(np.random.default_rng(seed)), *self.captured.values())
        # `np.ascontiguousarray` would give a number a dimension.
        cast = (np.asarray(a, dtype=t.dtype, order="C") for t, a in zip(self.inputs, arrays, strict=True))
        return {t.name: sharing(array, t.strides) for t, array in zip(self.inputs, cast, strict=True)}

    def with_strides(self, **strides: Sequence[int] | None) -> Operator:
        """The operator whose inputs and outputs lie in memory with these strides.

            attention.causal(heads=8, seq=256).with_strides(q=(131072, 64, 512, 1), out=(131072, 64, 512, 1))

        Its kernel reads and stores such tensors directly, and refuses others; the definition is the same.

        Args:
            strides: by input or output, elements from one index of each dimension to the next; None: contiguous.  Those
                of dimensions of size 1 have no meaning.

        Raises:
            DefinitionError: there is no such tensor, it has another number of dimensions, a stride is negative, or two
                elements of an output would share memory.
        """
        if self.family is not None:
            raise DefinitionError(
                f"{self.name} has sizes with a name, and strides are numbers",
                help="give strides to the operator at numbers: op.at(n=128).with_strides(...)",
            )
        tensors = {t.name: t for t in (*self.inputs, *self.outputs)}
        written = {t.name for t in self.outputs}
        for name, given in strides.items():
            if name not in tensors:
                raise DefinitionError(f"{self.name} has no tensor {name!r}", help=f"one of {', '.join(tensors)}")
            tensors[name] = _laid_out(tensors[name], given, written=name in written)
        inputs, outputs = (tuple(tensors[t.name] for t in every) for every in (self.inputs, self.outputs))
        made = replace(self, inputs=inputs, outputs=outputs, resized=None, copies=False)
        if "marked" in vars(self):  # (the definition is the same: it is not built again)
            vars(made).update(marked=self.marked, program=self.program)
        return made

    def __str__(self) -> str:
        taken = ", ".join(map(str, self.inputs))
        given = ", ".join(map(str, self.outputs))
        return f"{self.name}({taken}) -> {given}"


def tensor_expressions() -> Any:
    """TVM's `te`, loaded now; untyped, since its own hints take `compute` for a list."""
    from neptune_lab.loop_ir.tvm_compat.loading import load_tvm

    load_tvm()
    from tvm import te

    return te


def _laid_out(tensor: TensorSpec, strides: Sequence[int] | None, *, written: bool) -> TensorSpec:
    """The tensor with these strides, which are checked."""
    if strides is None:
        return replace(tensor, strides=None)
    for stride in strides:
        check_integer(f"a stride of {tensor.name}", stride, 0, 2**63 - 1, DefinitionError)
    if len(strides) != len(tensor.shape):
        raise DefinitionError(
            f"{tensor.name}={shown(tuple(strides))}: expected {len(tensor.shape)} strides, one for each dimension of "
            f"{tensor.shape}",
            help="such as tensor.stride()",
        )
    if written and overlaps(tensor.shape, strides):
        raise DefinitionError(
            f"{tensor.name}={shown(tuple(strides))}: two elements of an output of shape {tensor.shape} would share "
            "memory",
            help="give an output strides with which each element has memory of its own",
        )
    return replace(tensor, strides=layout_of(tensor.shape, strides))


def positive(**sizes: int) -> None:
    """Each size is a positive integer of 32 bits, as loops count, or DefinitionError names the one that is not."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise DefinitionError(f"{name}={shown(size)}: expected a positive integer", help="such as 128")
        if size > INT32_MAX:
            raise DefinitionError(
                f"{name}={shown(size)}: expected at most {INT32_MAX}, the largest that loops count to",
                help="split the data, and call the kernel once per part",
            )


# What dtypes are called elsewhere.
_SHORT = {"fp16": "float16", "half": "float16", "f16": "float16", "bf16": "bfloat16"}
_SHORT |= dict.fromkeys(("fp32", "f32", "float", "single"), "float32")


def supported(dtype: str, *dtypes: str) -> None:
    """`dtype` is one of `dtypes`, or DefinitionError lists them."""
    if not isinstance(dtype, str) or dtype not in dtypes:
        meant = _SHORT.get(str(dtype).removeprefix("torch."), str(dtype).removeprefix("torch."))
        raise DefinitionError(
            f"dtype={shown(dtype)}: expected one of {', '.join(dtypes)}",
            help=f"write it as text: dtype={meant!r}" if meant in dtypes else f"such as dtype={dtypes[0]!r}",
        )


def as_numpy(value: Any) -> np.ndarray:
    """Anything that `numpy.asarray` takes, and torch tensors (bfloat16 ones too), as an array."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return np.asarray(value)
    # (torch.export traces what it sees, and would make a tensor without values of one that has them)
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        return _read(value, torch)


def _read(value: Any, torch: Any) -> np.ndarray:
    """A tensor as an array."""
    # (a copy: memory that NumPy shares cannot be freed by torch, which FSDP does with parameters)
    tensor = value.detach().to("cpu", copy=True)
    if tensor.dtype == torch.bfloat16:  # torch gives NumPy no bfloat16, but the bits are the same
        return tensor.contiguous().view(torch.int16).numpy().view(BFLOAT16)
    if str(tensor.dtype).removeprefix("torch.") in EIGHTS:
        return tensor.contiguous().view(torch.int8).numpy().view(str(tensor.dtype).removeprefix("torch."))
    return tensor.numpy()


# By the identity of a function's code: code that is equal may stand elsewhere.  An entry keeps its code alive.
_known_sources: dict[int, tuple[CodeType, str]] = {}
_MOST_SOURCES = 512


def source_of(function: Callable[..., Any]) -> str:
    """The function's own text, for display; a comment in its place where Python does not have it."""
    code = function.__code__ if type(function) is FunctionType and not hasattr(function, "__wrapped__") else None
    if code is not None and id(code) in _known_sources:
        return _known_sources[id(code)][1]
    try:
        text = textwrap.dedent(inspect.getsource(function)).rstrip() + "\n"
    except (OSError, TypeError):
        return f"# {name_of(function)}: its source is not available\n"
    if code is not None:
        if len(_known_sources) >= _MOST_SOURCES:
            _known_sources.clear()
        _known_sources[id(code)] = code, text
    return text


def name_of(function: Callable[..., Any]) -> str:
    """The function's name, or its type's where it has none (a partial, an object)."""
    return getattr(function, "__name__", type(function).__name__)
