"""The forms that a compiled program takes, run in NumPy: what validation and bisection compare with the definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.htile import nodes as ir
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.pipeline.validate.compare import Difference, Wanted, difference
from neptune_lab.tensor_spec import Strides

Arrays = Mapping[str, np.ndarray]
Run = Callable[[], Arrays]


def is_plain(kernel: Kernel) -> bool:
    """Whether the emitted module is Triton throughout."""
    return bool(kernel.triton.kernels) and all(k.language == "triton" for k in kernel.triton.kernels)


def tile_programs(kernel: Kernel) -> Iterator[tuple[str, ir.Program]]:
    """The HTile program as translated, with the name "", and after each pass that changes it, with the pass's name."""
    yield "", kernel.translated
    for done in kernel.passes:
        if done.changed:
            yield done.name, done.program


def input_dtypes(kernel: Kernel) -> dict[str, str]:
    """The dtype of each buffer of the definition."""
    return {b.name: b.dtype for b in kernel.schedule.definition.buffers}


def input_strides(kernel: Kernel) -> dict[str, Strides]:
    """The strides of each input that is not contiguous."""
    return {t.name: t.strides for t in kernel.operator.inputs if t.strides is not None}


def run_triton(kernel: Kernel, inputs: Arrays) -> Arrays:
    """The outputs of the emitted Triton by name, run in NumPy.

    Raises:
        UnknownSpelling, IndexError: as `triton_numpy.run`.
    """
    definition = kernel.schedule.definition
    arrays = triton_numpy.run(kernel.triton, inputs, input_dtypes(kernel), definition.inputs, input_strides(kernel))
    return dict(zip(definition.outputs, arrays, strict=True))


def wrong_result(run: Run, wanted: Mapping[str, Wanted], removes: bool) -> Difference | str | None:
    """The first wrong element of a form's outputs, or why it does not run to its end; None if it is right.

    Args:
        removes: as in `difference`.

    Raises:
        UnknownSpelling: as `triton_numpy.run`.
    """
    try:
        return difference(wanted, run(), removes=removes)
    except IndexError as error:
        return str(error)
    except ScheduleError as error:  # of the loops, run in Python
        return error.reason
