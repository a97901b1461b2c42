"""What the runtime needs to know of a generated module; nothing of the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.typed import Extent, Line, Name, OneOf, Words

DType: TypeAlias = Annotated[str, OneOf(DTYPES)]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One argument or result: `dtype` as torch spells it after its dot ("float16")."""

    name: Name
    shape: tuple[Extent, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A generated module and how it is called.

    Args:
        name: name of the program, for messages and for the file that the module is written to.
        entry: the function of the module that takes the inputs in order and returns the outputs.
        text: the module, complete: it needs torch and Triton only.
        inputs, outputs: in calling order.
    """

    name: Line
    entry: Name
    text: Annotated[str, Words(4 << 20)]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
