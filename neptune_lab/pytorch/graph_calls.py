"""Calls of attention as nodes of a graph of torch.compile: one operator, which runs a call as outside of a graph.

torch.ops.neptune_lab.call(tensors, key) takes all tensors that a call reads, those that its mods capture too.  `key`
names what does not change between calls: the mods as text, and the options.  So one graph serves every length, as
symbolic sizes need it, and the kernels are those of calls outside of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.dynamo import Tracing
from neptune_lab.pytorch.refusals import refuse_forward_gradients, refuse_recording
from neptune_lab.runtime.torch_op import NAMESPACE, operator_library, without_backward
from neptune_lab.runtime.torch_state import transform
from neptune_lab.tensor_spec import dense_strides


class Call(Protocol):
    """What a key names."""

    @cached_property
    def key(self) -> str:
        """A digest of everything that the call's results depend on, apart from its tensors."""
        ...

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The call's outputs."""
        ...

    def fake(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs without values, of the shapes, dtypes and strides of `run`'s; sizes may be symbols."""
        ...


_calls: dict[str, Call] = {}


def add_call(tracing: Tracing, name: str, tensors: Sequence[Any], call: Call) -> None:
    """Adds a call to the graph that Dynamo traces, and sets a local variable to the list of its outputs.

    Args:
        tensors: proxies of its tensors.
    """
    _calls.setdefault(call.key, call)
    tracing.assign_call(name, operator(), list(tensors), call.key)


def _call_of_key(key: str) -> Call:
    try:
        return _calls[key]
    except KeyError:
        raise LaunchError(
            f"the graph calls attention {key}, which was compiled in another process",
            help="trace the function again in this process: torch.compile(function)",
        ) from None


@lru_cache(1)
def operator() -> Any:
    """torch.ops.neptune_lab.call, which is registered at the first use."""
    library = operator_library()
    tags = torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides
    library.define("call(Tensor[] tensors, str key) -> Tensor[]", tags=tags)

    def run(tensors: list[torch.Tensor], key: str) -> list[torch.Tensor]:
        return _call_of_key(key).run(tensors)

    def fake(tensors: list[torch.Tensor], key: str) -> list[torch.Tensor]:
        return _call_of_key(key).fake(tensors)

    for backend in ("CPU", "CUDA"):  # on a CPU for Triton's interpreter
        library.impl("call", run, backend)
    torch.library.register_fake(f"{NAMESPACE}::call", fake, lib=library)
    without_backward("call", run, _refuse_derivatives)
    return getattr(torch.ops, NAMESPACE).call.default


def _refuse_derivatives(tensors: Sequence[torch.Tensor]) -> None:
    """Raise LaunchError for a tensor of which a transform of torch.func takes the derivative; `fake` refuses others."""
    if transform() is not None:
        named = {f"of shape {tuple(t.shape)}": t for t in tensors}
        refuse_forward_gradients(named)
        refuse_recording({f"argument {name}": t for name, t in named.items()})


def strides_like(shape: Sequence[Any], q: torch.Tensor) -> tuple[Any, ...]:
    """The strides of an output of attention: dense, in the order of q's dimensions."""
    return dense_strides(shape, q.stride()) if not q.is_contiguous() else _contiguous(shape)


def _contiguous(shape: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = [1]
    for size in reversed(shape[1:]):
        found.append(found[-1] * size)
    return tuple(reversed(found))


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor, or a copy with these strides if its own are others."""
    own = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if all(a == b for size, a, b in own if size > 1):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


__all__ = ["Call", "add_call", "operator", "strides_like", "with_strides"]
