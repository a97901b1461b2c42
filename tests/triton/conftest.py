"""Puts the hand-written HTile programs (tests/htile/htile_programs.py) on the path; runs programs through Triton."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from neptune_lab.htile.nodes import Program
from neptune_lab.htile_to_triton import emit
from neptune_lab.runtime import KernelSpec, LoadedKernel, load
from neptune_lab.tensor_spec import TensorSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "htile"))

Run = Callable[[Program, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def loaded(program: Program) -> LoadedKernel:
    source = emit(program)

    def specs(names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
        tensors = [program.tensor(name) for name in names]
        return tuple(TensorSpec(t.name, t.shape, t.dtype) for t in tensors)

    return load(KernelSpec(source.name, source.entry, source.text, specs(program.inputs), specs(program.outputs)))


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def build() -> Callable[[Program], LoadedKernel]:
    """`build(program)`: the emitted module, loaded."""
    return loaded


@pytest.fixture
def run_triton() -> Run:
    """`run_triton(program, arrays)`: outputs of the emitted kernels as float64 (or integer) arrays."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def run(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        dtypes = {name: getattr(torch, program.tensor(name).dtype) for name in program.inputs}
        tensors = [torch.tensor(inputs[name]).to(device, dtypes[name]) for name in program.inputs]
        result = loaded(program)(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        arrays = [r.double().cpu().numpy() if r.is_floating_point() else r.cpu().numpy() for r in results]
        return dict(zip(program.outputs, arrays, strict=True))

    return run
