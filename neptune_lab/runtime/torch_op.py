"""Registers kernels as torch operators, which torch.compile and CUDA graphs support without a graph break."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.errors import LaunchError
from neptune_lab.hashed import digest_of
from neptune_lab.runtime.load import LoadedKernel, check_shapes
from neptune_lab.runtime.refusals import refuse_gradients, refuse_tangents
from neptune_lab.runtime.sized import check_sizes, shape_at
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.strict.console import shown
from neptune_lab.strict.forks import ReentrantLock
from neptune_lab.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload

# The operators are torch.ops.neptune_lab.<name>.
NAMESPACE = "neptune_lab"

_registered: dict[str, tuple[str, OpOverload]] = {}
_registering = ReentrantLock()


# torch's `backward` and `setup_context` of an operator.
Autograd: TypeAlias = "tuple[Callable[..., Any], Callable[..., None]]"


def torch_op(
    kernel: LoadedKernel,
    name: str | None = None,
    launch: Callable[..., Any] | None = None,
    autograd: Autograd | None = None,
    besides: str = "",
) -> OpOverload:
    """Registers `kernel` as torch.ops.neptune_lab.<name>; registering it again returns the same operator.

    The operator takes the kernel's inputs, with the strides of its spec, and gives its outputs as new tensors.  It has
    a fake implementation, so torch.compile(fullgraph=True) and torch.export know its shapes.

    Args:
        kernel: a loaded kernel.
        name: a Python identifier; None: the kernel's name and a digest of its source.
        launch: what the operator calls; None: the kernel.  The first one that is registered under a name stays.
        autograd: what torch calls for gradients; None: the operator has no backward.  An operator with it has another
            name.
        besides: text that tells it from other operators with the same kernel, which may differ in the backward pass
            (relu and maximum at 0) and in the integers that they take.

    Raises:
        LaunchError: `name` is no name of an operator, or another kernel has it.
    """
    digest = _digest(kernel.spec, besides)
    if name is None:
        name = f"{kernel.spec.entry}_{digest[:16]}{'_with_gradients' if autograd else ''}"
    if not isinstance(name, str) or not name.isidentifier():
        raise LaunchError(
            f"name={shown(name)}: expected a Python identifier, for torch.ops.{NAMESPACE}.<name>",
            help="such as name='my_attention'",
        )
    if not _may_name_an_operator(name):
        raise LaunchError(
            f"name={shown(name)}: torch takes no keyword, no letters other than a to z, and no attribute of "
            f"torch.ops.{NAMESPACE} as the name of an operator",
            help="such as name='my_attention'",
        )
    with _registering:
        if name not in _registered:
            _registered[name] = digest, _register(kernel, name, launch or kernel, autograd)
    owner, op = _registered[name]
    if owner != digest:
        raise LaunchError(
            f"torch.ops.{NAMESPACE}.{name} is another kernel already", help="give another name, or none for one by hash"
        )
    return op


def _may_name_an_operator(name: str) -> bool:
    """Whether torch can declare an operator of this identifier, and find it as an attribute."""
    import torch

    own = vars(getattr(torch.ops, NAMESPACE))  # operators that were used, and attributes of the namespace itself
    free = name in _registered or not (name in own or name.startswith("__"))
    return free and name.isascii() and not keyword.iskeyword(name) and name != "NoneType"


@lru_cache(1024)
def _digest(spec: KernelSpec, besides: str) -> str:
    return digest_of(spec, besides)


def _empty(spec: TensorSpec, shape: tuple[int, ...], device: Any) -> Tensor:
    """An output without values."""
    import torch

    dtype = getattr(torch, spec.dtype)
    strides = spec.strides_at(shape)
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


@lru_cache(1)
def operator_library() -> Any:
    """The library of torch.ops.neptune_lab.  It is kept until the process ends: torch removes the operators of a
    library that is garbage-collected."""
    import torch

    return torch.library.Library(NAMESPACE, "FRAGMENT")


def _register(kernel: LoadedKernel, name: str, launch: Callable[..., Any], autograd: Autograd | None) -> OpOverload:
    """Registers a kernel as an operator of torch, with a fake implementation, and with `autograd` a backward pass."""
    import torch

    spec = kernel.spec
    library = operator_library()
    strided = any(t.strides is not None for t in spec.inputs)

    def run(*tensors: Tensor) -> Any:
        return launch(*tensors)

    def fake(*tensors: Tensor) -> Any:
        check_shapes(spec, tensors)
        sizes = check_sizes(spec, tensors) if spec.ranges else {}
        results = [_empty(t, shape_at(t, sizes), tensors[0].device) for t in spec.outputs]
        return tuple(results) if len(results) > 1 else results[0]

    given = ", ".join(f"Tensor {t.name}" for t in spec.inputs)
    made = "Tensor" if len(spec.outputs) == 1 else f"({', '.join(['Tensor'] * len(spec.outputs))})"
    # Without the second tag, Inductor may pass other strides than those that were traced.
    exact = torch.Tag.needs_exact_strides if strided else torch.Tag.needs_contiguous_strides
    tags = torch.Tag.pt2_compliant_tag, exact
    library.define(f"{name}({given}) -> {made}", tags=tags)
    for backend in ("CPU", "CUDA"):  # on a CPU for Triton's interpreter
        library.impl(name, run, backend)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    if autograd is None:
        without_backward(name, run, lambda given: refuse_gradients(spec, tuple(given)))
    else:
        backward, keep = autograd
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}",
            backward,
            setup_context=lambda ctx, inputs, output: keep(ctx, inputs, output),
            lib=_WithoutTangents(spec),  # type: ignore[arg-type]
        )
    return getattr(getattr(torch.ops, NAMESPACE), name).default


class _WithoutTangents:
    """The library of the operators, as `register_autograd` uses it: an operator refuses tangents, which torch would
    drop."""

    def __init__(self, spec: KernelSpec) -> None:
        self._spec = spec

    def impl(self, name: str, function: Callable[..., Any], key: str, **options: Any) -> None:
        """Registers what torch calls for gradients, behind the look for tangents."""

        def checked(keyset: Any, *given: Any) -> Any:
            refuse_tangents([t.name for t in self._spec.inputs], given)
            return function(keyset, *given)

        operator_library().impl(name, checked, key, **options)


def without_backward(name: str, run: Callable[..., Any], refuse: Callable[[Sequence[Tensor]], None]) -> None:
    """Makes an operator refuse derivatives: transforms of torch.func take those of an operator without a backward pass
    to be 0.

    Args:
        name: of the operator, whose first argument is a list of its tensors, or all of whose arguments are tensors.
        run: launches on plain tensors, and refuses those that record gradients.
        refuse: raises LaunchError for tensors that record gradients or carry a tangent.
    """
    import torch

    from neptune_lab.runtime.torch_state import is_plain

    op = getattr(getattr(torch.ops, NAMESPACE), name).default
    below: Any = torch._C._AutoDispatchBelowAutograd  # pyright: ignore[reportAttributeAccessIssue]
    keys: Any = torch._C._after_autograd_keyset  # pyright: ignore[reportAttributeAccessIssue]

    def recorded(keyset: Any, *given: Any) -> Any:
        tensors = given[0] if isinstance(given[0], list | tuple) else given
        if is_plain(tensors):  # another pass through torch's dispatcher would take as long as the launch
            return run(*given)
        refuse(tensors)
        with below():
            return op.redispatch(keyset & keys, *given)

    operator_library().impl(name, recorded, "Autograd", with_keyset=True)
