"""Makes generated modules callable: writes them to a file (Triton reads its source back), imports, checks, launches."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import combinations
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import FileError, LaunchError
from neptune_lab.files import write_text
from neptune_lab.hashed import digest_of
from neptune_lab.runtime.device import check_device, interpreting
from neptune_lab.runtime.direct import direct
from neptune_lab.runtime.exported import exported
from neptune_lab.runtime.fitting import fitting
from neptune_lab.runtime.interpreter import lean_interpreter
from neptune_lab.runtime.precompiled import compiled_in, with_precompiled_launches
from neptune_lab.runtime.refusals import refuse_gradients, refuse_graphs, refuse_other_than_tensor, refuse_transforms
from neptune_lab.runtime.sized import check_sizes
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.strided import copy_with, fits_strides
from neptune_lab.runtime.subclasses import refuse_subclass
from neptune_lab.strict.forks import ReentrantLock

if TYPE_CHECKING:
    import torch

ALIGNMENT = 16

_loaded: dict[tuple[str, str], ModuleType] = {}

# Triton's interpreter keeps the program that it runs in variables of its modules: one launch at a time.
_interpreting = ReentrantLock()
# A module is imported once, whichever threads ask for it.
_loading = ReentrantLock()


class LoadedKernel:
    """A generated module, imported and ready: `kernel(q, k, v)` checks the arguments, launches, returns the outputs.

    CUDA tensors run on their GPU; with Triton's interpreter (always on without a GPU), CPU tensors run in it.
    """

    def __init__(self, spec: KernelSpec, module: ModuleType, interpreter: bool) -> None:
        import torch
        from torch.autograd import forward_ad
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import OutOfResources

        from neptune_lab.runtime import torch_state

        self.spec = spec
        self.module = module
        self.interpreter = interpreter
        self._fits = fitting(spec)
        # By the index of the device: launchers that Triton's launches go through, and those that call Triton's launch
        # function themselves; None: there is none for this module.
        self._launchers: dict[int, Callable[..., Any]] = {}
        self._direct: dict[int, Callable[..., Any] | None] = {}
        self._cuda, self._recording, self._forward = torch.cuda, torch.is_grad_enabled, forward_ad
        self._state = torch_state
        self._device_type = "cuda"
        self._too_large, self._refused = OutOfResources, (CompilationError, RuntimeError)
        # The copy engine takes addresses in whole 16 bytes.
        self._aligns = "TensorDescriptor(" in spec.text or "make_tensor_descriptor(" in spec.text

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The output tensor, or a tuple of them.

        Raises:
            LaunchError: an argument's shape, dtype, device, layout or strides are not what the kernel was compiled for,
                it records gradients (there is no backward), the kernel needs more shared memory or registers than the
                GPU has, or Triton's compiler fails.
        """
        if not self.fits(tensors):
            refuse_transforms(tensors)
            refuse_graphs(tensors)
            check_arguments(self.spec, tensors, self.interpreter)
            refuse_gradients(self.spec, tensors)
        return self.launch(*tensors)

    def fits(self, tensors: tuple[Any, ...]) -> bool:
        """Whether all arguments are right, in as little time as possible; `check_arguments` says what is wrong."""
        if len(tensors) != len(self.spec.inputs) or not tensors or self._forward._current_level >= 0:
            return False
        if self._state.modes() or self._state.transform() is not None or self._state.tracing() is not None:
            return False
        try:
            device = tensors[0].device
            if device.type != self._device_type and (device.type == "meta" or not self.interpreter):
                return False
            return self._fits(device, self._recording(), *tensors)
        except (AttributeError, IndexError, RuntimeError, TypeError):  # not a tensor, or one without sizes or strides
            return False

    def launch(self, *tensors: torch.Tensor) -> Any:
        """Launches without checking the arguments, which must be on one device and as in the spec.

        A kernel with tensor descriptors gets a copy of an argument that does not begin at a multiple of 16 bytes. So
        does every kernel of one whose memory holds the negated values (`Tensor.is_neg`).

        Raises:
            LaunchError: the kernel needs more shared memory or registers than the GPU has, or Triton's compiler fails.
        """
        launcher = self._direct.get(tensors[0].device.index)
        return self._launch_any(*tensors) if launcher is None else launcher(*tensors)

    def direct_on(self, device: torch.device) -> Callable[..., Any] | None:
        """What `launch` calls for tensors on this device, without the look-up; None as long as there is nothing."""
        return self._direct.get(device.index)

    def _launch_any(self, *tensors: torch.Tensor) -> Any:
        """`launch` of any tensors: not aligned, negated, on a device whose kernel is not compiled yet."""
        for tensor in tensors:
            if tensor.is_neg():
                tensors = self._copies(tensors, [t.is_neg() for t in tensors])
                break
        if self._aligns:
            tensors = self._copies(tensors, [t.data_ptr() % ALIGNMENT for t in tensors])
        try:
            if self.interpreter:
                return self._interpret(tensors)
            return self._launch(tensors)
        except self._too_large as error:
            raise LaunchError(
                f"{self.spec.name} needs {error.required} of {error.name}; this GPU has {error.limit}",
                help="compile with smaller tiles (block_q, block_kv), or a smaller num_stages",
            ) from error
        except self._refused as error:
            # A pass of Triton's that fails raises RuntimeError, as CUDA does too.
            if isinstance(error, RuntimeError) and "PassManager" not in str(error):
                check_arguments(self.spec, tensors, self.interpreter)  # (a tensor without memory of its own may fit)
                raise
            first = str(error).strip().splitlines()[-1:]
            raise LaunchError(
                f"Triton's compiler fails on {self.spec.name}: {' '.join(first)}",
                help="compile with tiles of at least 16 elements each way (block_q, block_kv), or with fewer num_warps",
            ) from error

    def _copies(self, tensors: tuple[torch.Tensor, ...], chosen: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """The tensors, the chosen ones copied to memory of their own with the same strides."""
        if not any(chosen):
            return tensors
        every = zip(tensors, self.spec.inputs, chosen, strict=True)
        return tuple(copy_with(t, s.strides_at(t.shape)) if c else t for t, s, c in every)

    def _launch(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        index = tensors[0].device.index
        launcher = self._launchers.get(index)
        if launcher is None:
            launcher = self._launchers[index] = with_precompiled_launches(self._entry, self.module)
        if self._cuda.current_device() == index:
            made = launcher(*tensors)
        else:
            with self._cuda.device(index):
                made = launcher(*tensors)
        if index not in self._direct:
            kernels = compiled_in(launcher)
            if kernels is not None:
                given = self.spec.text, self.spec.entry, self.module, kernels, tensors[0].device, self._launch_any
                self._direct[index] = direct(*given)
        return made

    def _interpret(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        import numpy as np

        entry = self._entry
        if (dynamo := sys.modules.get("torch._dynamo")) is not None:
            entry = dynamo.disable(entry)  # behind a graph break, Dynamo would trace Triton's interpreter
        # Lanes past the end of a tile may divide by zero; a GPU does not warn of it either.
        with _interpreting, lean_interpreter(), np.errstate(all="ignore"):
            return entry(*tensors)

    @property
    def _entry(self) -> Any:
        return getattr(self.module, self.spec.entry)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Saves the module, which needs only torch and Triton, to `path`; FileError if it cannot be written."""
        return write_text(path, exported(self.spec))

    def __repr__(self) -> str:
        where = "Triton's interpreter" if self.interpreter else "GPU"
        inputs = ", ".join(f"{t.name}: {t.dtype}{list(t.shape)}" for t in self.spec.inputs)
        return f"<{self.spec.name}({inputs}) on {where}>"


def load(spec: KernelSpec) -> LoadedKernel:
    """Import the module of `spec`, once per process and text.

    Raises:
        LaunchError: there is no GPU, and Triton was imported without its interpreter, or the module needs a GPU.
    """
    interpreter = interpreting()
    digest = digest_of(spec.text)[:20]
    stem = f"{re.sub(r'[^0-9A-Za-z_]', '_', spec.name)}_{digest}"
    key = (stem, spec.text)
    with _loading:
        if key not in _loaded:
            _loaded[key] = _import(stem, _write(stem, spec.text), spec.text)
    if interpreter and getattr(_loaded[key], "NEEDS_GPU", False):
        raise LaunchError(
            f"{spec.name} is written in Gluon, which Triton's interpreter does not run",
            help="run it on a Hopper GPU, or compile without code='gluon'",
        )
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
    except FileError as error:  # read-only home or full disk: use a temporary folder
        try:
            return _write_to(_temporary_folder(), stem, text)
        except OSError:  # nor is there a folder for temporary files
            raise error from None


def _write_to(directory: Path, stem: str, text: str) -> Path:
    path = directory / f"{stem}.py"
    if not _holds(path, text.encode()):
        write_text(path, text, parents=True)
    return path


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


@cache
def _temporary_folder() -> Path:
    """One folder for the modules of this process, removed at its end."""
    folder = tempfile.mkdtemp(prefix="neptune_lab_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class _Loader(SourceFileLoader):
    """Compiles the text; never loads bytecode from a cache, which could be damaged."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


def _import(stem: str, path: Path, text: str) -> ModuleType:
    name = f"neptune_lab_generated_{stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, path, text))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_arguments(spec: KernelSpec, tensors: tuple[Any, ...], interpreter: bool) -> None:
    """Raise LaunchError, naming the argument, unless `tensors` are what `spec` was compiled for."""
    check_shapes(spec, tensors)
    for argument, tensor in zip(spec.inputs, tensors, strict=True):
        check_device(argument.name, tensor, interpreter)
        if tensor.device != tensors[0].device:
            raise LaunchError(
                f"argument {argument.name} is on {tensor.device}; expected {tensors[0].device}, where "
                f"{spec.inputs[0].name} is",
                help=f"move it with {argument.name}.to({spec.inputs[0].name}.device)",
            )
        if str(tensor.layout) != "torch.strided":
            raise LaunchError(
                f"argument {argument.name} has layout {tensor.layout}; expected torch.strided",
                help=f"convert it with {argument.name}.to_dense()",
            )
        refuse_subclass(f"argument {argument.name}", tensor)
        strides = argument.strides_at(tensor.shape)
        if not fits_strides(tensor, strides):
            if strides is None:
                expected, help = "a contiguous tensor", f"copy it with {argument.name}.contiguous()"
            else:
                expected = f"{strides}, which the kernel was compiled for"
                help = f"compile the operator for these strides: op.with_strides({argument.name}={tensor.stride()})"
            raise LaunchError(f"argument {argument.name} has strides {tensor.stride()}; expected {expected}", help=help)


def _converted(name: str, tensor: torch.Tensor, dtype: str) -> str:
    """How to give a tensor of another dtype; a conversion of a complex one would drop its imaginary part."""
    if tensor.is_complex():
        return f"give {name}.real, or compile the operator for torch.view_as_real({name})"
    return f"convert it with {name}{'.dequantize()' * tensor.is_quantized}.to(torch.{dtype})"


def _reordered(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> str | None:
    """The call that puts dimensions in the expected order, if exchanging two of them does; else None."""
    for first, second in combinations(range(len(found)), 2):
        order = list(found)
        order[first], order[second] = found[second], found[first]
        if tuple(order) == expected:
            swapped = f"{name}.transpose({first}, {second}).contiguous()"
            return f"if only the order of dimensions differs: {swapped}; with_strides of the operator saves the copy"
    return None


def check_shapes(spec: KernelSpec, tensors: tuple[Any, ...]) -> None:
    """Raise LaunchError unless the number of `tensors`, their shapes and dtypes are those of `spec`."""
    import torch

    names = ", ".join(argument.name for argument in spec.inputs)
    if len(tensors) != len(spec.inputs):
        raise LaunchError(
            f"{spec.name} got {len(tensors)} arguments; expected {len(spec.inputs)}: {names}",
            help="give tensors in this order",
        )
    for argument, tensor in zip(spec.inputs, tensors, strict=True):
        name = argument.name
        refuse_other_than_tensor(argument, tensor)
        if tensor.is_nested:
            raise LaunchError(
                f"argument {name} is a nested tensor; expected a tensor of one shape",
                help="pad its parts to one shape: torch.nested.to_padded_tensor",
            )
        if not spec.ranges and tuple(tensor.shape) != argument.shape:
            raise LaunchError(
                f"argument {name} has shape {tuple(tensor.shape)}; expected {argument.shape}",
                help=_reordered(name, tuple(tensor.shape), argument.shape)
                or "a kernel is compiled for one shape; compile the operator for this one",
            )
        if tensor.dtype != getattr(torch, argument.dtype):
            raise LaunchError(
                f"argument {name} has dtype {tensor.dtype}; expected torch.{argument.dtype}",
                help=_converted(name, tensor, argument.dtype),
            )
    if spec.ranges:
        check_sizes(spec, tensors)
