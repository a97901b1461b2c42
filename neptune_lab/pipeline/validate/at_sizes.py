"""Runs a module for sizes that are known at the launch, at some of them, against the definition: Triton in NumPy, Gluon
in the simulator of warps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.operators import Operator
from neptune_lab.pipeline.validate import simulated, triton_numpy
from neptune_lab.pipeline.validate.compare import Wanted, difference, expectations, may_remove
from neptune_lab.pipeline.validate.data import data_sets

# Relative roundings of dtypes that kernels in Gluon multiply, and how many of them the error of an output may be.
_ROUNDINGS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
_MOST = 8.0


def wrong_at(module: EmittedModule, operator: Operator, kinds: int = 1) -> str | None:
    """How the emitted module differs from the definition at the sizes of `operator`.

    Args:
        module: for sizes that are known at the launch.
        operator: the definition at one choice of them.
        kinds: how many kinds of data are tried, ordinary numbers first.

    Returns:
        The kind of data, the first output that differs and by how much, as a sentence; None if none differs.

    Raises:
        UnknownSpelling: the module uses what the NumPy form of Triton does not know.
    """
    definition = operator.program
    strides = {tensor.name: tensor.strides for tensor in operator.inputs}
    in_gluon = any(kernel.language == "gluon" for kernel in module.kernels)
    run = simulated.run if in_gluon else triton_numpy.run
    dtypes = {buffer.name: buffer.dtype for buffer in definition.buffers}
    for kind, inputs in data_sets(definition, operator.captured, kinds):
        wanted = expectations(definition, [inputs])[0]
        try:
            arrays = run(module, inputs, dtypes, definition.inputs, strides)
        except IndexError as error:
            return f"{kind}: {error}"
        found = dict(zip(definition.outputs, arrays, strict=True))
        what = difference(wanted, found, removes=may_remove(definition, inputs))
        if what is None and in_gluon:
            halves = {buffer.dtype for buffer in definition.buffers} & _ROUNDINGS.keys()
            rounding = max((_ROUNDINGS[dtype] for dtype in halves), default=2.0**-11)
            what = far_from(wanted, found, _MOST * rounding)
        if what is not None:
            return f"{kind}: {what}"
    return None


def far_from(wanted: Mapping[str, Wanted], found: Mapping[str, np.ndarray], most: float) -> str | None:
    """The first output whose error is more than `most` of its norm; None if there is none.

    `difference` compares element by element, and what rounding may do to one is large where many are summed: a mask
    that lets in 64 of 400 keys too many is within it.  Over all elements, errors of rounding even out.
    """
    for name, want in wanted.items():
        error, norm = _norm_of(found[name] - want.wide), _norm_of(want.wide)
        if error > most * norm:
            return f"{name} differs by {error / norm if norm else error:.2g} of its norm"
    return None


def _norm_of(array: np.ndarray) -> float:
    """The norm of the finite elements."""
    return float(np.linalg.norm(np.where(np.isfinite(array), array, 0.0).astype(np.float64).reshape(-1)))


__all__ = ["far_from", "wrong_at"]
