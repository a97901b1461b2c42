"""Runs a module for sizes that are known at the launch, at some of them, against the definition."""

from __future__ import annotations

from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.operators import Operator
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.pipeline.validate.compare import difference, expectations, may_remove
from neptune_lab.pipeline.validate.data import data_sets


def wrong_at(module: EmittedModule, operator: Operator, kinds: int = 1) -> str | None:
    """How the emitted Triton differs from the definition at the sizes of `operator`; None if it does not.

    Args:
        kinds: of data, ordinary numbers first.

    Raises:
        UnknownSpelling: the module uses what the NumPy form of Triton does not know.
    """
    definition = operator.program
    strides = {tensor.name: tensor.strides for tensor in operator.inputs}
    dtypes = {buffer.name: buffer.dtype for buffer in definition.buffers}
    for kind, inputs in data_sets(definition, operator.captured, kinds):
        wanted = expectations(definition, [inputs])[0]
        try:
            arrays = triton_numpy.run(module, inputs, dtypes, definition.inputs, strides)
        except IndexError as error:
            return f"{kind}: {error}"
        found = dict(zip(definition.outputs, arrays, strict=True))
        what = difference(wanted, found, removes=may_remove(definition, inputs))
        if what is not None:
            return f"{kind}: {what}"
    return None


__all__ = ["wrong_at"]
