"""A workload that kernels are measured on, as plain data; makes its inputs and its float64 reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.arrays import to_tensor
from neptune_lab.runtime.definition_form import check_definition
from neptune_lab.runtime.reference import reference
from neptune_lab.runtime.strided import copy_with, drawn
from neptune_lab.runtime.torch_relative_error import relative_error
from neptune_lab.strict.typed import Count, Line, Name, pack, unpack
from neptune_lab.tensor_spec import TensorSpec

# The largest relative error (Frobenius norm) that counts as right: a few times the error of a kernel that rounds to
# this dtype between two matrix products (float32 ones may use tf32), and far less than that of a wrong kernel.
TOLERANCES: Mapping[str, float] = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-3, "float64": 1e-6}
# For outputs that are whole numbers: a value close to the middle between two may be rounded either way.
WHOLE_TOLERANCE = 2e-2


@dataclass(frozen=True, slots=True)
class Draw:
    """How an input's values are drawn: "normal" (standard normal), or "integers" from `low` to below `high`."""

    kind: Literal["normal", "integers"]
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if self.kind == "integers" and not -(2**31) <= self.low < self.high <= 2**31:
            raise MeasureError(
                f"integers from {self.low} to below {self.high}: expected a range of 32 bits",
                help="give the least number and one more than the largest",
            )


@dataclass(frozen=True, eq=False)
class Task:
    """A workload that kernels are measured on; it is sent to other processes and machines.

    Args:
        key: `workload_key` of the operator.
        definition: JSON data, as `neptune_lab.records.definition` describes it.
        draws: by name, for each input without a value.
        values: by name, the inputs that are not drawn (captured tensors, or inputs with a generator of their own).
        seed: of the drawn inputs.
        cold: flush L2 before each timed launch.
    """

    key: str
    definition: Mapping[str, Any]
    draws: Mapping[str, Draw]
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    seed: int = 0
    cold: bool = False

    def to_json(self) -> dict[str, Any]:
        """All but `values` as plain JSON data."""
        return pack(_Form(self.key, self.definition, dict(self.draws), self.seed, self.cold))

    @classmethod
    def from_json(cls, data: Any, values: Mapping[str, np.ndarray]) -> Task:
        """What `to_json` wrote, with its values.

        Raises:
            MeasureError: it has another form, or an input has neither a value of its shape and dtype nor a way to draw
                it.
        """
        form = unpack(data, _Form, "task", MeasureError)
        check_definition(form.definition, "task.definition", MeasureError)
        task = cls(form.workload, form.definition, form.draws, values, form.seed, form.cold)
        for spec in task.inputs:
            if spec.name in values:
                _check_value(spec, values[spec.name])
            elif spec.name not in form.draws:
                raise MeasureError(
                    f"input {spec.name!r} has no value, and no way to draw one",
                    help="give the input a value, or a way to draw one",
                )
        return task

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes, dtypes and strides of the inputs."""
        return tuple(_spec(t["name"], t) for t in self.definition["inputs"])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes, dtypes and strides of the outputs."""
        stages = {s["writes"]: s for s in self.definition["stages"]}
        return tuple(_spec(n, stages[n]) for n in self.definition["outputs"])

    @property
    def tolerance(self) -> float:
        """The largest relative error that counts as right: that of the coarsest dtype of an input or output."""
        floats = [TOLERANCES[t.dtype] for t in (*self.inputs, *self.outputs) if t.dtype in TOLERANCES]
        whole = [WHOLE_TOLERANCE for t in self.outputs if t.dtype not in TOLERANCES]
        return max(floats + whole)

    def make_inputs(self, device: Any) -> tuple[Any, ...]:
        """The inputs as torch tensors on `device`; the same for the same seed and kind of device.

        Raises:
            MeasureError: an input has neither a value nor a way to draw it.
        """
        import torch

        generator = torch.Generator(device).manual_seed(self.seed)
        return tuple(self._input(spec, device, generator) for spec in self.inputs)

    def _input(self, spec: TensorSpec, device: Any, generator: Any) -> Any:
        import torch

        dtype = getattr(torch, spec.dtype)
        if spec.name in self.values:
            tensor = to_tensor(self.values[spec.name], device)
            tensor = tensor.view(dtype) if tensor.dtype == torch.uint16 else tensor  # bfloat16 from a .npz file
            return tensor if spec.strides is None else copy_with(tensor, spec.strides)
        match self.draws.get(spec.name):
            case Draw("normal"):
                return drawn(
                    spec, lambda n: torch.randn(n, generator=generator, device=device, dtype=torch.float32).to(dtype)
                )
            case Draw("integers", low, high):
                return drawn(spec, lambda n: torch.randint(low, high, n, generator=generator, device=device).to(dtype))
        raise MeasureError(
            f"input {spec.name!r} has no value, and no way to draw one",
            help="give the input a value, or a way to draw one",
        )

    def error(self, outputs: Any, wanted: Sequence[Any]) -> float:
        """The largest relative error (Frobenius norm) over the outputs; infinite if NaN or infinities differ.

        Args:
            outputs: what the kernel returned, a tensor or a tuple.
            wanted: the reference's outputs.
        """
        computed = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(computed) != len(wanted) or any(a.shape != b.shape for a, b in zip(computed, wanted, strict=True)):
            return float("inf")
        return max(map(relative_error, computed, wanted))

    def make_reference(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs in float64, on the inputs' device."""
        return reference(self.definition, inputs)


@dataclass(frozen=True, slots=True)
class _Form:
    """A task in a file."""

    workload: Line
    definition: Any
    draws: dict[Name, Draw]
    seed: Count
    cold: bool


def _spec(name: str, data: Mapping[str, Any]) -> TensorSpec:
    strides = data.get("strides")
    return TensorSpec(name, tuple(data["shape"]), data["dtype"], None if strides is None else tuple(strides))


def _check_value(spec: TensorSpec, value: np.ndarray) -> None:
    # (a .npz file has the bits of bfloat16)
    dtype = "uint16" if spec.dtype == "bfloat16" and value.dtype.name == "uint16" else spec.dtype
    if value.shape != spec.shape or value.dtype.name != dtype:
        raise MeasureError(
            f"the value of input {spec.name!r} has shape {value.shape} and dtype {value.dtype}; expected {spec.shape} "
            f"and {dtype}",
            help="reshape or convert the value",
        )
