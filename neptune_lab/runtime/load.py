"""Generated modules as callables: written to a file (Triton reads its source back), imported, checked, launched."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.device import check_device, interpreting
from neptune_lab.runtime.spec import KernelSpec, TensorSpec

if TYPE_CHECKING:
    import torch

_loaded: dict[tuple[str, str], ModuleType] = {}


class LoadedKernel:
    """A generated module, imported and ready: `kernel(q, k, v)` checks the arguments, launches, returns the outputs.

    CUDA tensors run on their GPU; where Triton's interpreter is on (always so without a GPU), CPU tensors run there.
    """

    def __init__(self, spec: KernelSpec, module: ModuleType, interpreter: bool) -> None:
        self.spec = spec
        self.module = module
        self.interpreter = interpreter

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The output tensor, or a tuple of them.

        Raises:
            LaunchError: an argument's shape, dtype, device or layout is not what the kernel was compiled for, or the
                kernel needs more shared memory or registers than the GPU has.
        """
        check_arguments(self.spec, tensors, self.interpreter)
        function = getattr(self.module, self.spec.entry)
        from triton.runtime.errors import OutOfResources

        try:
            return self._launch(function, tensors)
        except OutOfResources as error:
            raise LaunchError(
                f"{self.spec.name} needs {error.required} of {error.name}; this GPU has {error.limit}",
                help="compile with smaller tiles (block_q, block_kv), or a smaller num_stages",
            ) from error

    def _launch(self, function: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
        if self.interpreter:
            import numpy as np

            # Lanes past the end of a tile may divide by zero; a GPU does not warn of it either.
            with np.errstate(all="ignore"):
                return function(*tensors)
        import torch

        with torch.cuda.device(tensors[0].device):
            return function(*tensors)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the module, which needs torch and Triton only, to `path`."""
        target = Path(path)
        target.write_text(self.spec.text, encoding="utf-8")
        return target

    def __repr__(self) -> str:
        where = "Triton's interpreter" if self.interpreter else "GPU"
        inputs = ", ".join(f"{t.name}: {t.dtype}{list(t.shape)}" for t in self.spec.inputs)
        return f"<{self.spec.name}({inputs}) on {where}>"


def load(spec: KernelSpec) -> LoadedKernel:
    """Import the module of `spec`, once a process for each text.

    Raises:
        LaunchError: there is no GPU, and Triton was imported without its interpreter.
    """
    interpreter = interpreting()
    digest = hashlib.sha256(spec.text.encode()).hexdigest()[:20]
    stem = f"{re.sub(r'[^0-9A-Za-z_]', '_', spec.name)}_{digest}"
    key = (stem, spec.text)
    if key not in _loaded:
        _loaded[key] = _import(stem, _write(stem, spec.text))
    return LoadedKernel(spec, _loaded[key], interpreter)


def cache_directory() -> Path:
    """Where modules are written: $NEPTUNE_LAB_CACHE, or neptune_lab in the platform's cache directory."""
    chosen = os.environ.get("NEPTUNE_LAB_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "neptune_lab"


def _write(stem: str, text: str) -> Path:
    try:
        return _write_to(cache_directory(), stem, text)
    except OSError:  # read-only home, full disk: the process still gets its module
        return _write_to(Path(tempfile.mkdtemp(prefix="neptune_lab_")), stem, text)


def _write_to(directory: Path, stem: str, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}.py"
    if path.is_file() and path.read_bytes() == text.encode():
        return path
    # Whole or not at all, so that processes that write the same file do not see each other's halves.
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def _import(stem: str, path: Path) -> ModuleType:
    name = f"neptune_lab_generated_{stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_arguments(spec: KernelSpec, tensors: tuple[Any, ...], interpreter: bool) -> None:
    """Raise LaunchError, naming the argument, where `tensors` are not what `spec` was compiled for."""
    names = ", ".join(argument.name for argument in spec.inputs)
    if len(tensors) != len(spec.inputs):
        raise LaunchError(
            f"{spec.name} got {len(tensors)} arguments; expected {len(spec.inputs)}: {names}",
            help="give tensors in this order",
        )
    for argument, tensor in zip(spec.inputs, tensors, strict=True):
        _check_argument(argument, tensor, interpreter)
    first = tensors[0] if tensors else None
    for argument, tensor in zip(spec.inputs, tensors, strict=True):
        if first is not None and tensor.device != first.device:
            raise LaunchError(
                f"argument {argument.name} is on {tensor.device}; expected {first.device}, where "
                f"{spec.inputs[0].name} is",
                help=f"move it with {argument.name}.to({spec.inputs[0].name}.device)",
            )


def _check_argument(argument: TensorSpec, tensor: Any, interpreter: bool) -> None:
    import torch

    name = argument.name
    if not isinstance(tensor, torch.Tensor):
        raise LaunchError(
            f"argument {name} is a {type(tensor).__name__}; expected a torch.Tensor",
            help=f"torch.as_tensor({name}, dtype=torch.{argument.dtype})",
        )
    if tuple(tensor.shape) != argument.shape:
        raise LaunchError(
            f"argument {name} has shape {tuple(tensor.shape)}; expected {argument.shape}",
            help="a kernel is compiled for one shape; compile the operator for this one",
        )
    if tensor.dtype != getattr(torch, argument.dtype):
        raise LaunchError(
            f"argument {name} has dtype {tensor.dtype}; expected torch.{argument.dtype}",
            help=f"convert it with {name}.to(torch.{argument.dtype})",
        )
    check_device(name, tensor, interpreter)
    if not tensor.is_contiguous():
        raise LaunchError(
            f"argument {name} has strides {tensor.stride()}; expected a contiguous tensor",
            help=f"copy it with {name}.contiguous()",
        )
