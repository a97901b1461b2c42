"""An emitted Gluon module run warp by warp, without a GPU: for kernels whose sizes are known at the launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from neptune_lab.gluon_simulator import Deadlock, Simulator
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.runtime.arrays import to_tensor
from neptune_lab.runtime.strided import copy_with
from neptune_lab.tensor_spec import Strides

# Dtypes of 16 and 8 bits that data sets hold in float32.
_NARROW = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}


def run(
    module: EmittedModule,
    inputs: Mapping[str, np.ndarray],
    dtypes: Mapping[str, str],
    order: tuple[str, ...],
    strides: Mapping[str, Strides | None],
) -> tuple[np.ndarray, ...]:
    """The outputs of the module's entry; the arguments are those of `triton_numpy.run`.

    Raises:
        UnknownSpelling: a kernel in Triton uses what `triton_numpy` does not know.
        IndexError: a copy leaves its tensor, or every group of warps waits.
    """
    tensors = []
    for name in order:
        tensor = to_tensor(np.asarray(inputs[name]).astype(_NARROW.get(dtypes[name], dtypes[name])))
        tensors.append(tensor if strides.get(name) is None else copy_with(tensor, strides[name]))
    try:
        made = _simulator(module.text)(module.entry, *tensors)
    except (AssertionError, Deadlock) as error:
        raise IndexError(str(error) or "the kernel does not run") from error
    several = made if isinstance(made, tuple) else (made,)
    return tuple(tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy() for tensor in several)


@lru_cache(maxsize=4)
def _simulator(text: str) -> Simulator:
    made = Simulator(text, triton=triton_numpy.for_tensors(_array_of, _keep))
    made.space["torch"] = _Blank(made.space["torch"])
    return made


def _array_of(tensor: Any) -> np.ndarray:
    narrow = tensor.is_floating_point() and str(tensor.dtype).removeprefix("torch.") in _NARROW
    return tensor.float().numpy() if narrow else tensor.numpy()


def _keep(tensor: Any, array: np.ndarray) -> None:
    """Rounds the values of a tensor whose dtype NumPy does not have."""
    if str(tensor.dtype).removeprefix("torch.") in _NARROW:
        tensor.copy_(to_tensor(array))


class _Blank:
    """torch, whose empty tensors are full of NaN: an element that no kernel stores shows."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def empty(self, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
        """A tensor without values."""
        return self._filled(self._torch.empty(shape, dtype=dtype, device=device))

    def empty_strided(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any) -> Any:
        """The same with these strides."""
        return self._filled(self._torch.empty_strided(shape, strides, dtype=dtype, device=device))

    def _filled(self, tensor: Any) -> Any:
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor.zero_()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


__all__ = ["run"]
