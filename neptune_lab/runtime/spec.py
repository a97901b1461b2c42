"""What the runtime needs to know of a generated module; nothing of the compiler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One argument or result: `dtype` as torch spells it after its dot ("float16")."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A generated module and how it is called.

    Args:
        name: name of the program, for messages and for the file that the module is written to.
        entry: the function of the module that takes the inputs in order and returns the outputs.
        text: the module, complete: it needs torch and Triton only.
        inputs, outputs: in calling order.
    """

    name: str
    entry: str
    text: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
