"""Compiles a region; regions that compute the same are compiled once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neptune_lab.errors import DefinitionError, NeptuneError
from neptune_lab.strict.forks import ReentrantLock
from neptune_lab.torch_regions.extract import Extract
from neptune_lab.torch_regions.tensors import tensor_of

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """A region's operator and kernel.

    Args:
        operator: from the region's graph.
        kernel: compiled from it.
        after: bytes that the kernel reads from and writes to HBM.
    """

    operator: Operator
    kernel: Kernel
    after: int


_log = logging.getLogger(__name__)

_MOST = 512
# Touches of tiles that are simulated to count a kernel's bytes. A large model's regions have a hundred times as many.
_TOUCHES = 1 << 16
_found: OrderedDict[str, CompiledRegion | NeptuneError] = OrderedDict()
_lock = ReentrantLock()  # TVM and the cache serve one call at a time


def compiled_region(extract: Extract, name: str) -> CompiledRegion:
    """The kernel of a region.

    Args:
        extract: the region as a graph.
        name: of its operator, if it is compiled for the first time.

    Returns:
        The kernel.

    Raises:
        NeptuneError: a stage of the compiler refused, or failed.
    """
    return _once(extract.key, lambda: _compiled(extract, name))


def kernel_for_sizes(
    key: str, name: str, hints: Mapping[str, int], at: Callable[[Mapping[str, int]], Extract]
) -> CompiledRegion:
    """The kernel of a region for all values of some sizes.

    Args:
        key: of the region.
        name: of its operator.
        hints: the sizes at which it was traced, by name.
        at: the region at other values of these.

    Raises:
        NeptuneError: there is no such kernel, or the compiler failed.
    """
    return _once(f"{key} for all sizes", lambda: _for_sizes(name, hints, at))


def _once(key: str, make: Callable[[], CompiledRegion]) -> CompiledRegion:
    """What `make` gives or raises, made once for each key."""
    with _lock:
        if key not in _found:
            try:
                _found[key] = make()
            except NeptuneError as refusal:
                _found[key] = refusal.with_traceback(None)
            except Exception as error:  # noqa: BLE001 - TVM, SymPy and torch raise whatever they meet; the model must run
                _log.warning("torch runs a region on which the compiler failed", exc_info=True)
                _found[key] = _failure(error)
            if len(_found) > _MOST:
                _found.popitem(last=False)
        _found.move_to_end(key)
        found = _found[key]
    if isinstance(found, NeptuneError):
        raise found
    return found


def _failure(error: Exception) -> NeptuneError:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return NeptuneError(
        f"the compiler failed: {type(error).__name__}: {first}",
        help="a defect of neptune_lab: report it with the traceback that it logged",
    )


def forget_regions() -> None:
    """Empties the cache of compiled regions."""
    with _lock:
        _found.clear()


def _compiled(extract: Extract, name: str) -> CompiledRegion:
    from neptune_lab.pipeline import compile
    from neptune_lab.torch_to_stages import from_graph

    operator = from_graph(extract.module, name)
    _check_results(operator, extract)
    kernel = compile(operator)
    return CompiledRegion(operator, kernel, _bytes_moved(kernel))


def _for_sizes(name: str, hints: Mapping[str, int], at: Callable[[Mapping[str, int]], Extract]) -> CompiledRegion:
    from neptune_lab.pipeline import compile
    from neptune_lab.pipeline.other_sizes import compiled_for_usual_sizes
    from neptune_lab.torch_to_stages import from_graph
    from neptune_lab.torch_to_stages.sized import checked_alike

    def made(sizes: Mapping[str, int]) -> Operator:
        extract = at(sizes)
        operator = from_graph(extract.module, name)
        _check_results(operator, extract)
        return operator

    alike = checked_alike(made, hints)
    kernel = compiled_for_usual_sizes(alike, hints)
    own = compile(alike(hints), validate="none")
    return CompiledRegion(own.operator, kernel, _bytes_moved(own))


def _bytes_moved(kernel: Kernel) -> int:
    """Bytes that a kernel reads from and writes to HBM; of many tiles, each kernel's bytes once."""
    from neptune_lab.target import DEFAULT
    from neptune_lab.traffic import kernel_traffic

    return kernel_traffic(kernel.at_hint, DEFAULT, most=_TOUCHES).hbm


def _check_results(operator: Operator, extract: Extract) -> None:
    """Raise DefinitionError unless the operator takes and gives the graph's tensors."""
    for specs, nodes, orders in (
        (operator.inputs, extract.inputs, extract.input_orders),
        (operator.outputs, extract.outputs, extract.output_orders),
    ):
        for spec, node, order in zip(specs, nodes, orders, strict=True):
            value = tensor_of(node)
            assert value is not None
            wanted = tuple(value.shape[d] for d in order) or spec.shape, str(value.dtype).removeprefix("torch.")
            if (spec.shape, spec.dtype) != wanted:
                raise DefinitionError(
                    f"{node.name} is {wanted[1]}{list(wanted[0])}, and its kernel's is {spec.dtype}{list(spec.shape)}",
                    help="convert it in the model: x.int() for positions, x.float() for values",
                )


__all__ = ["CompiledRegion", "compiled_region", "forget_regions"]
