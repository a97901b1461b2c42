"""The backend of torch.compile: chains of reductions are compiled here, the rest goes to Inductor or runs eagerly.

Registered as "neptune_lab" through the package's entry point:
torch.compile(model, backend="neptune_lab", options={"rest": "eager"}).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor

from neptune_lab.errors import DefinitionError
from neptune_lab.torch_regions.launch import NO_KERNELS, can_launch, operators_of
from neptune_lab.torch_regions.partition import all_apart, partition, partition_of_model, records_gradients
from neptune_lab.torch_regions.record import Partition
from neptune_lab.torch_regions.splice import spliced
from neptune_lab.torch_regions.training import with_gradients

Rest: TypeAlias = Literal["inductor", "eager"]

_log = logging.getLogger(__name__)
_partitions: ContextVar[list[Partition] | None] = ContextVar("partitions", default=None)


@contextmanager
def recorded_partitions() -> Iterator[list[Partition]]:
    """Collects the partition of each graph that the backend compiles in this thread, in order.

    Yields:
        A list, which grows.
    """
    found: list[Partition] = []
    before = _partitions.set(found)
    try:
        yield found
    finally:
        _partitions.reset(before)


def backend(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured.

    Args:
        module: the graph.
        example_inputs: its inputs, as fake tensors, and sizes.
        options: {"rest": "inductor"} or {"rest": "eager"} chooses who runs what stays apart; Inductor on a CUDA GPU if
            it is left out, and nobody (torch itself, operation by operation) elsewhere.

    Returns:
        A function with the graph's numbers.

    Raises:
        DefinitionError: an option that does not exist.
    """
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    rest = _rest(options or {}, tensors)
    if records_gradients(example_inputs):

        def of_training(
            graph_module: torch.fx.GraphModule, inputs: Sequence[Any], weights: list[torch.fx.Node]
        ) -> Callable[..., Any]:
            return _compiled(
                graph_module,
                inputs,
                _partition(graph_module.graph, lambda g: partition(g, weights, records_gradients=True)),
                rest,
            )

        return with_gradients(module, example_inputs, of_training)

    def compiled(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found = _partition(graph_module.graph, lambda graph: partition_of_model(graph, example_inputs))
        return _compiled(graph_module, inputs, found, rest)

    return aot_autograd(fw_compiler=compiled, inference_compiler=compiled)(module, example_inputs)


def _compiled(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any], found: Partition, rest: Rest
) -> Callable[..., Any]:
    """A graph with its regions' kernels; it takes its inputs in a list."""
    _note(found)
    if not found.regions:
        return _rest_compiled(graph_module, inputs, rest)
    calls = operators_of(found.regions, inputs)
    made = torch.fx.GraphModule(graph_module, spliced(found, calls.__getitem__))
    return _rest_compiled(made, inputs, rest)


def _rest(options: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Rest:
    for name, value in options.items():
        if name != "rest" or value not in ("inductor", "eager"):
            raise DefinitionError(
                f"the backend neptune_lab has no option {name}={value!r}",
                help='options={"rest": "inductor"} or options={"rest": "eager"}',
            )
    if "rest" in options:
        return options["rest"]
    return "inductor" if any(t.device.type == "cuda" for t in tensors) else "eager"


def _partition(graph: torch.fx.Graph, partitioned: Callable[[torch.fx.Graph], Partition]) -> Partition:
    values = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder"]
    return partitioned(graph) if can_launch(values) else all_apart(graph, NO_KERNELS)


def _rest_compiled(module: torch.fx.GraphModule, inputs: Sequence[Any], rest: Rest) -> Callable[..., Any]:
    if rest == "inductor":
        try:
            return _by_inductor(module, inputs)
        except Exception:  # noqa: BLE001 - Inductor raises whatever its lowerings meet; the model must run
            _log.warning("torch runs what is left apart operation by operation: Inductor failed", exc_info=True)
    return make_boxed_func(module.forward)


def _by_inductor(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad(), _literals(inputs):
        wanted = module(*inputs)
        lowered = make_fx(_with_reshapes(module), decomposition_table=select_decomp_table())(*inputs)
    results = lowered.graph.output_node()
    given: Sequence[Any] = results.args[0]  # type: ignore[assignment]
    lowered.graph.output_node().meta["user_visible_output_idxs"] = [
        n for n, value in enumerate(given) if isinstance(value, torch.fx.Node)
    ]
    with TracingContext.report_output_strides():  # AOTAutograd gets the strides that `_laid_out` gives, not Inductor's
        run = compile_fx_inner(lowered, list(inputs), is_inference=True)
    return _laid_out(run, [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in given], wanted)


@contextmanager
def _literals(inputs: Sequence[Any]) -> Iterator[None]:
    """Inside, operations take tensors of numbers that a graph holds, such as torch.tensor(0.5), with fake ones."""
    modes = {id(t.fake_mode): t.fake_mode for t in inputs if isinstance(t, FakeTensor)}.values()
    before = [mode.allow_non_fake_inputs for mode in modes]
    for mode in modes:
        mode.allow_non_fake_inputs = True
    try:
        yield
    finally:
        for mode, was in zip(modes, before, strict=True):
            mode.allow_non_fake_inputs = was


def _with_reshapes(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy that reshapes where the module views: Inductor defines some operations (`cat` with an empty tensor) with
    other strides than theirs, of which no view exists."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for view in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        view.target = torch.ops.aten.reshape.default
    return torch.fx.GraphModule(module, graph)


def _laid_out(run: Callable[..., Any], given: Sequence[Any], wanted: Sequence[Any]) -> Callable[..., Any]:
    """`run`, whose results lie in memory as `given`, and are copied where `wanted` has other strides."""
    other = {
        n: b.stride()
        for n, (a, b) in enumerate(zip(given, wanted, strict=True))
        if isinstance(a, torch.Tensor) and a.stride() != b.stride()
    }
    if not other:
        return run

    def copied(args: Sequence[Any]) -> list[Any]:
        results = list(run(args))
        for n, strides in other.items():
            was = results[n]
            results[n] = torch.empty_strided(was.shape, strides, dtype=was.dtype, device=was.device).copy_(was)
        return results

    copied._boxed_call = True  # type: ignore[attr-defined]  # as make_boxed_func marks what takes its inputs in a list
    return copied


def _note(found: Partition) -> None:
    collected = _partitions.get()
    if collected is not None:
        collected.append(found)
    _log.info("%d regions compiled, %d parts left to torch", len(found.regions), len(found.apart))


__all__ = ["Rest", "backend", "recorded_partitions"]
