"""The runtime's view of what is compiled: the module's text, and its inputs and outputs with the sizes of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neptune_lab.htile import sizes
from neptune_lab.htile.nodes import FoundTiles, Name, Program
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.htile_to_triton.source import KernelSource
from neptune_lab.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.runtime import KernelSpec
    from neptune_lab.runtime.spec import TileLaunches


def spec_of(operator: Operator, program: Program, module: EmittedModule, least: Mapping[str, int]) -> KernelSpec:
    """The runtime's view of a kernel.

    Args:
        operator: that it computes.
        program: its tiles, from which the module was written.
        module: the emitted module.
        least: the smallest value of each size that is known at the launch only.
    """
    from neptune_lab.runtime import KernelSpec

    return KernelSpec(
        name=module.name,
        entry=module.entry,
        text=module.text,
        inputs=tuple(_with_sizes(tensor, program) for tensor in operator.inputs),
        outputs=tuple(_with_sizes(tensor, program) for tensor in operator.outputs),
        ranges=tuple((size.name, least.get(size.name, 1), size.most) for size in program.sizes),
        tiles=_tile_launches(module.kernels),
    )


def _with_sizes(spec: TensorSpec, program: Program) -> TensorSpec:
    """An input or output with the names of the sizes that are known at the launch only."""
    tensor = program.tensor(spec.name)
    names = tensor.sizes if program.sizes else None
    if names is None:
        return spec
    found = replace(spec, sizes=tuple(size.name if isinstance(size, Name) else "" for size in names))
    if tensor.steps is None:
        return found
    multiples = [sizes.multiple_of(step) or ("", 0) for step in tensor.steps]
    return replace(found, shape=tensor.shape, strides=tensor.strides, steps=tuple(name for name, _ in multiples))


def _tile_launches(kernels: Sequence[KernelSource]) -> tuple[TileLaunches, ...]:
    """What kernels say that they find, with the names of all that find it together."""
    from neptune_lab.runtime.spec import TileLaunches

    names: dict[FoundTiles, list[str]] = {}
    for kernel in kernels:
        if kernel.finds is not None:
            names.setdefault(kernel.finds, []).append(kernel.name)
    return tuple(
        TileLaunches(tuple(own), f.first, f.last, f.rows, f.columns, f.row_extent, f.column_extent)
        for f, own in names.items()
    )


__all__ = ["spec_of"]
