"""Regions of graphs whose sizes differ between calls: one kernel for all of them, or a few kernels of one size each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from neptune_lab.errors import LaunchError, NeptuneError
from neptune_lab.hashed import digest_of
from neptune_lab.runtime.load import LoadedKernel, load
from neptune_lab.runtime.refusals import refuse_tangents
from neptune_lab.runtime.sized import sizes_in
from neptune_lab.runtime.torch_op import NAMESPACE, operator_library, without_backward
from neptune_lab.torch_regions.compiled import CompiledRegion, compiled_region, kernel_for_sizes
from neptune_lab.torch_regions.extract import Extract, extracted_as
from neptune_lab.torch_regions.symbols import Symbols

_log = logging.getLogger(__name__)
# Kernels of one size each that a region compiles; at further sizes its own operations run.
_MOST_KERNELS = 4


@dataclass(frozen=True, eq=False)
class Sizes:
    """A region at other sizes.

    Args:
        symbols: of the whole graph.
        names: of those on which the region depends.
        extract: the region at the sizes of the trace.
        title: of its operator.
        kernel: for all sizes; None: the compiler has none, for the reason `refusal`.
    """

    symbols: Symbols
    names: tuple[str, ...]
    extract: Extract
    title: str
    kernel: CompiledRegion | None
    refusal: str = ""

    def at(self, values: Sequence[int]) -> Extract:
        """The region at these values of `names`."""
        return extract_at(self.symbols, self.extract, dict(zip(self.names, values, strict=True)))

    @cached_property
    def key(self) -> str:
        """A digest of what the region computes."""
        return digest_of(self.names, self.text, self.extract.output_orders)

    @property
    def text(self) -> str:
        wanted = {*self.extract.body, *self.extract.read}
        results = [n.name for n in self.extract.outputs]
        return f"{self.symbols.text([n for n in self.symbols.graph.nodes if n.name in wanted])} {results}"


def extract_at(symbols: Symbols, extract: Extract, values: Mapping[str, int]) -> Extract:
    """A region at other values of some symbols."""
    return extracted_as(symbols.at({**symbols.hints, **values}), extract)


def sizes_of(symbols: Symbols, names: tuple[str, ...], extract: Extract, title: str) -> Sizes:
    """A region whose tensors have symbols among their sizes, with the kernel for all of them, if there is one."""
    hints = {name: symbols.hints[name] for name in names}
    plain = Sizes(symbols, names, extract, title, None)
    try:
        found = kernel_for_sizes(plain.key, title, hints, lambda values: extract_at(symbols, extract, values))
    except NeptuneError as error:
        return replace(plain, refusal=str(error))
    return replace(plain, kernel=found)


class SizedLaunch:
    """Launches a region's kernel for all sizes, a kernel of the call's sizes, or runs the region's own operations."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.for_all = None if sizes.kernel is None else load(sizes.kernel.kernel.spec)
        self.own: dict[tuple[int, ...], LoadedKernel | Extract] = {}
        self.refusal = ""

    def __call__(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> list[torch.Tensor]:
        """The region's results, new and contiguous."""
        given = [tensor.contiguous() for tensor in tensors]
        kernel = self._kernel(given, tuple(values))
        if isinstance(kernel, Extract):
            return [t.clone(memory_format=torch.contiguous_format) for t in kernel.module(*tensors)]
        try:
            found = kernel(*(t if s.sizes else t.view(s.shape) for t, s in zip(given, kernel.spec.inputs, strict=True)))
        except LaunchError as error:
            self.refusal = str(error)
            _log.warning("a region runs in torch: %s", self.refusal)
            return self(tensors, values)
        return list(found) if isinstance(found, tuple | list) else [found]

    def _kernel(self, tensors: Sequence[torch.Tensor], values: tuple[int, ...]) -> LoadedKernel | Extract:
        """The kernel, or the region itself if there is none."""
        if not self.refusal and self.for_all is not None:
            shapes = [t.shape if s.sizes else s.shape for t, s in zip(tensors, self.for_all.spec.inputs, strict=True)]
            if sizes_in(self.for_all.spec, shapes) is not None:
                return self.for_all
        found = self.own.get(values)
        if found is None or (self.refusal and not isinstance(found, Extract)):
            extract = self.sizes.at(values)
            kernels = sum(not isinstance(one, Extract) for one in self.own.values())
            found = extract
            if not self.refusal and kernels < _MOST_KERNELS:
                try:
                    found = load(compiled_region(extract, self.sizes.title).kernel.spec)
                except NeptuneError as error:
                    _log.warning("a region runs in torch at sizes %s: %s", values, error)
            self.own[values] = found
        return found


def sized_operator(sizes: Sizes) -> Callable[..., Any]:
    """The torch operator of a region: from contiguous inputs and the values of its symbols to contiguous results."""
    name = f"region_sized_{sizes.key[:16]}"
    library = operator_library()
    if not hasattr(getattr(torch.ops, NAMESPACE), name):
        launch = SizedLaunch(sizes)
        shapes = [
            ([t.shape[d] for d in order], t.dtype)
            for t, order in zip(_original(sizes), sizes.extract.output_orders, strict=True)
        ]

        def run(tensors: list[torch.Tensor], values: list[int]) -> list[torch.Tensor]:
            return launch(tensors, values)

        def fake(tensors: list[torch.Tensor], values: list[Any]) -> list[torch.Tensor]:
            own = dict(zip(sizes.names, values, strict=True))
            return [tensors[0].new_empty([_size(n, own) for n in shape], dtype=dtype) for shape, dtype in shapes]

        tags = torch.Tag.pt2_compliant_tag, torch.Tag.needs_contiguous_strides
        library.define(f"{name}(Tensor[] tensors, SymInt[] values) -> Tensor[]", tags=tags)
        for device in ("CPU", "CUDA"):  # on a CPU for Triton's interpreter
            library.impl(name, run, device)
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
        without_backward(name, run, _refuse_derivatives)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _refuse_derivatives(tensors: Sequence[torch.Tensor]) -> None:
    """Raise LaunchError for tensors that record gradients or carry a tangent."""
    names = [f"{index} of a region" for index in range(len(tensors))]
    for name, tensor in zip(names, tensors, strict=True):
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise LaunchError(
                f"argument {name} records gradients, and the region's kernel has no backward",
                help="take the gradient of the compiled function, which is made for it then",
            )
    refuse_tangents(names, tensors)


def _original(sizes: Sizes) -> list[torch.Tensor]:
    """The fake results of the region, with symbols."""
    by_name = {node.name: node for node in sizes.symbols.graph.nodes}
    return [by_name[n.name].meta["val"] for n in sizes.extract.outputs]


def _size(value: Any, own: Mapping[str, Any]) -> Any:
    """A size at the values of the symbols, which may be other symbols."""
    if not isinstance(value, torch.SymInt):
        return value
    expr = value.node.expr
    return sympy_interp(PythonReferenceAnalysis, {symbol: own[symbol.name] for symbol in expr.free_symbols}, expr)


__all__ = ["SizedLaunch", "Sizes", "extract_at", "sized_operator", "sizes_of"]
