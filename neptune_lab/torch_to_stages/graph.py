"""Traces a function of torch tensors to a graph of ATen operations without side effects."""

from __future__ import annotations

import builtins
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, is_dataclass, replace
from threading import RLock
from typing import Any, TypeAlias

import torch
import torch.fx.traceback as fx_traceback
from torch._guards import detect_fake_mode
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from neptune_lab.errors import DefinitionError
from neptune_lab.strict.console import shown
from neptune_lab.strict.forks import fork_waits_for
from neptune_lab.torch_to_stages import refusals as why
from neptune_lab.torch_to_stages.closure_parameters import with_parameters
from neptune_lab.torch_to_stages.composite import composite_operations_once
from neptune_lab.torch_to_stages.definitions import refused_arguments
from neptune_lab.torch_to_stages.kept_state import KeptState
from neptune_lab.torch_to_stages.lines import RecordedLines, line_of_error, line_of_node
from neptune_lab.torch_to_stages.marked_stops import MarkedStops
from neptune_lab.torch_to_stages.names import argument_names, identifier, result_names, unused
from neptune_lab.torch_to_stages.outside_writes import OutsideWrite, OutsideWrites
from neptune_lab.torch_to_stages.refusals import help_for, refusal, refused_derivative, refused_operation, untraced
from neptune_lab.torch_to_stages.replaced_functions import ReplacedFunctions
from neptune_lab.torch_to_stages.transform_levels import is_level_of_derivative, levels_restored

# Loggers of torch that write down errors which are raised as well.
_NOISY = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_HELP = "a traced function is straight-line code over tensors: choose with torch.where, and loop over Python numbers"
_HELD = "nl.from_torch(lambda x: f(x, config), x)"

_Operations: TypeAlias = "tuple[tuple[str, ...], ...]"


@dataclass(frozen=True, eq=False)
class Graph:
    """A function as a graph of ATen operations.

    Args:
        module: the graph.
        placeholders: the name of each of its placeholders that is a tensor, in the graph's order.
        inputs: the name of each tensor among the arguments, in order.
        held: the tensors that the function holds (parameters, buffers, tensors of its closure), by name.
        out_spec: how the results are put together, as pytree describes it.
        names: the name of each result.
        marked: whether `stop_gradient` is where the function stops gradients; otherwise nothing tells.
    """

    module: torch.fx.GraphModule
    placeholders: tuple[str, ...]
    inputs: tuple[str, ...]
    held: dict[str, torch.Tensor]
    out_spec: pytree.TreeSpec
    names: tuple[str, ...]
    marked: bool = False


class _Called(torch.nn.Module):
    """The function as a module, which the exporter takes; a module keeps its parameters."""

    def __init__(self, function: Callable[..., Any], stops: MarkedStops) -> None:
        super().__init__()
        self.function = function
        self.stops = stops

    def forward(self, *args: Any) -> Any:
        kept = KeptState(self.function)
        with kept, self.stops.restart(), ReplacedFunctions(), OutsideWrites(), RecordedLines():
            out = self.function(*args)
            kept.check(args)
            return out


def trace(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    decomposition: Callable[[Any], Callable[..., Any] | None],
    settled: set[_Operations] | None = None,
) -> Graph:
    """The graph of `function`, called on tensors like the examples.

    Args:
        function: a function or a `torch.nn.Module`.
        example_inputs: its positional arguments: tensors, numbers, and tuples, lists and dicts of them.
        decomposition: gives torch's own definition of an operation by others; None for one that stays in the graph.
        settled: graphs of the function at other sizes that torch's pass over them left as they were; grows.  The pass
            is left out for the same operations, since it takes most of the time of tracing.

    Returns:
        The graph.

    Raises:
        DefinitionError: the function cannot be traced, changes an input or a buffer, or an argument is no tensor.
    """
    if not callable(function):
        raise DefinitionError(
            f"expected a function or a torch.nn.Module, got {type(function).__name__}",
            help="nl.from_torch(f, torch.randn(4, 8))",
        )
    paths, spec = pytree.tree_flatten_with_path(tuple(example_inputs))
    # A tensor that is given twice would be one input of the graph.
    examples = [_alone(leaf) if isinstance(leaf, torch.Tensor) else leaf for _, leaf in paths]
    _check_examples(function, examples)
    args, stops = pytree.tree_unflatten(examples, spec), MarkedStops(marks=True)
    exported = _exported(function, args, decomposition, stops, settled)
    if stops.is_wrong:
        stops = MarkedStops(marks=False)
        exported = _exported(function, args, decomposition, stops, settled)
    names = argument_names(function, [path for path, _ in paths])
    tensors = [name for name, leaf in zip(names, examples, strict=True) if isinstance(leaf, torch.Tensor)]
    graph = _graph(exported, tensors)
    return replace(graph, marked=stops.marks, held=with_parameters(function, graph.held))


def graph_of_module(module: torch.fx.GraphModule, decomposition: Callable[[Any], Callable[..., Any] | None]) -> Graph:
    """The graph of a module that is a graph of ATen operations already.

    Args:
        module: without side effects and attributes; its nodes have fake values, and its results are a tuple.
        decomposition: gives torch's own definition of an operation by others; None for one that stays in the graph.

    Returns:
        The graph.

    Raises:
        DefinitionError: torch cannot take an operation apart.
    """
    examples = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    names = tuple(node.name for node in module.graph.nodes if node.op == "placeholder")
    try:
        while found := _found(module.graph, decomposition):
            # (a definition of torch may make tensors, which have to be fake as its inputs are)
            with fx_traceback.preserve_node_meta(), detect_fake_mode(examples) or nullcontext():
                module = make_fx(torch.fx.Interpreter(module).run, decomposition_table=found)(*examples)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise DefinitionError(f"torch cannot take a graph apart: {first_line(str(error))}", help=_HELP) from error
    results = len(module.graph.output_node().args[0])  # type: ignore[arg-type]
    out_spec = pytree.tree_structure((0,) * results)
    return Graph(module, names, names, {}, out_spec, result_names(out_spec))


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like this one that shares nothing with it.  It holds nothing: no value counts in a trace."""
    return torch.empty_like(tensor.detach())


def _check_examples(function: Callable[..., Any], examples: Sequence[Any]) -> None:
    array = next((leaf for leaf in examples if type(leaf).__name__ == "ndarray"), None)
    if array is not None:
        raise DefinitionError(
            f"an example input of {_name(function)} is {shown(array)}: expected a torch.Tensor",
            help="torch.as_tensor(x) makes one of an array",
        )
    if not any(isinstance(leaf, torch.Tensor) or is_dataclass(leaf) for leaf in examples):
        raise DefinitionError(
            f"{_name(function)} is given no tensor{f', but {shown(examples[0])}' if len(examples) == 1 else ''}",
            help="give one example per argument: nl.from_torch(f, torch.randn(4, 8))",
        )
    for leaf in examples:
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 0:
            raise DefinitionError(
                f"an example input has shape {tuple(leaf.shape)}: expected sizes from 1", help="give a larger example"
            )


def _exported(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    decomposition: Callable[[Any], Callable[..., Any] | None],
    stops: MarkedStops,
    settled: set[_Operations] | None = None,
) -> torch.export.ExportedProgram:
    """The graph of a function, in operations that have lowerings or are taken apart into such.

    Args:
        decomposition: how an operation is taken apart; None: it stays.
        stops: what is active while the function runs.
        settled: the graphs, as sets of operations, that no further pass changes; this one is added if none does.

    Raises:
        DefinitionError: the function cannot be traced; the message has torch's reason.
    """
    module = _Called(function, stops)
    module = module if isinstance(function, torch.nn.Module) else module.eval()
    if isinstance(function, torch.nn.Module):
        module.training = function.training
    try:
        with (
            _tracing,
            without_torchs_words(),
            warnings.catch_warnings(),
            fx_traceback.preserve_node_meta(),
            torch.no_grad(),
            composite_operations_once(),
            levels_restored(),
        ):
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, args, strict=False)
            _check_nodes(exported.graph_module)
            # Each pass traces the graph again, so the pass that removes writes in place takes operations apart too.
            found, operations, before = _found(exported.graph, decomposition), _operations(exported), str(exported)
            if settled is not None and not found and operations in settled:
                return exported
            exported = exported.run_decompositions(found)
            if settled is not None and not found and str(exported) == before:
                settled.add(operations)
            while found := _found(exported.graph, decomposition):
                exported = exported.run_decompositions(found)
            return exported
    except DefinitionError:
        raise
    except Exception as error:
        raise _untraceable(function, error) from error


# torch.export keeps what it is at in globals, and `sys.stderr` is replaced meanwhile.
_tracing = RLock()
fork_waits_for(_tracing)


def _operations(exported: torch.export.ExportedProgram) -> _Operations:
    """The nodes of a graph, without their arguments, which depend on sizes; and which of its tensors are written."""
    nodes = ((node.op, node.name, str(node.target)) for node in exported.graph.nodes)
    signature = exported.graph_signature
    return *nodes, *((str(spec.kind), str(spec.target)) for spec in (*signature.input_specs, *signature.output_specs))


def _found(
    graph: torch.fx.Graph, decomposition: Callable[[Any], Callable[..., Any] | None]
) -> dict[Any, Callable[..., Any]]:
    """The operations of the graph that `decomposition` takes apart, with their definitions.

    Raises:
        DefinitionError: a definition is not for the arguments of a node.
    """
    for node in graph.nodes:
        if why := refused_arguments(node):
            raise refused_operation(node.target._opname, line_of_node(node), why)
    return {n.target: f for n in graph.nodes if (f := decomposition(n.target)) is not None}


@contextmanager
def without_torchs_words() -> Iterator[None]:
    """Silences what torch's exporter logs and prints about an error that it raises too; the function's own words stay.

    One logger writes each error with a traceback, another one a warning; the exporter prints the graph so far.
    """
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [logger.disabled for logger in loggers]
    printed, graph = io.StringIO(), ""
    try:
        for logger in loggers:
            logger.disabled = True
        with redirect_stderr(printed):
            yield
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
        sys.stderr.write(printed.getvalue().replace(f"{graph}\n", "") if graph else printed.getvalue())


def _check_nodes(module: torch.fx.GraphModule) -> None:
    """Refuses operations whose result's shape depends on values, and those that torch's decompositions would hide."""
    for node in [n for m in module.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes]:
        name = getattr(node.target, "_opname", "")
        results = pytree.tree_leaves(node.meta.get("val"))
        if any(not isinstance(n, int) for t in results if isinstance(t, torch.Tensor) for n in t.shape):
            raise refused_operation(name, line_of_node(node), "here, since its result's shape depends on values")
        if is_level_of_derivative(node.target):
            raise refused_derivative(line_of_node(node))
        if name.startswith("linalg_") and help_for(name) is not None:
            raise refused_operation(name, line_of_node(node))


def _untraceable(function: Callable[..., Any], error: Exception) -> DefinitionError:
    """The refusal of a function that torch cannot trace."""
    line = line_of_error(error.__traceback__)
    kind = type(error).__name__
    if isinstance(error, OutsideWrite):
        what, help = f"{_name(function)} {error}", error.help
    elif "DataDependent" in kind or "unbacked" in str(error).lower():
        what = "the function's control flow depends on the values of a tensor"
        help = why.OF_DISTRIBUTION if why.raised_in(error, "torch/distributions/") else _HELP
        help = why.OF_ONE_HOT if line is not None and "one_hot(" in line.text else help
    elif kind == "DynamicOutputShapeException":
        what, help = f"torch knows no shape of the result of {first_line(str(error))} before it runs", why.OUTSIDE
    elif isinstance(function, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        what, help = f"torch cannot trace {_name(function)}", "give it as it was before torch.jit.script"
    elif (found := re.match("Found <class '(.+?)'> in output", str(error))) is not None:
        what = f"the function returns an object of class {found[1].removeprefix('__main__.')!r}"
        help = f"return tensors, alone or in tuples, lists and dicts; {why.OF_DATACLASS}"
    elif (found := re.match("Unsupported input type <class '(.+?)'>", str(error))) is not None:
        what = f"an argument of {_name(function)} is an object of class {found[1].removeprefix('__main__.')!r}"
        help = f"give tensors, numbers and strings, and hold other objects: {_HELD}; {why.OF_DATACLASS}"
    elif (said := untraced(error)) is not None:
        what, help = f"torch cannot trace {_name(function)}: it {said[0]}", said[1]
    else:
        what = f"torch cannot trace {_name(function)}: {kind}: {first_line(str(error))}"
        own = isinstance(error, RuntimeError | TypeError | ValueError | IndexError) and kind in dir(builtins)
        help = "call the function itself on the examples: torch should give this error there too" if own else _HELP
        help = why.help_for_message(what) or help
    return refusal(what, line, help)


def first_line(text: str) -> str:
    """The first line of a message."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _graph(exported: torch.export.ExportedProgram, tensors: Sequence[str]) -> Graph:
    """The exported program as a `Graph`.

    Raises:
        DefinitionError: it holds something else than tensors, or changes an input.
    """
    signature = exported.graph_signature
    constants = {**exported.state_dict, **exported.constants}
    held: dict[str, torch.Tensor] = {}
    inputs: list[str] = []
    order: list[str] = []
    given = iter(tensors)
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(node.meta.get("val"), torch.Tensor):
                inputs.append(next(given))
                order.append(inputs[-1])
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            name = identifier(str(spec.target).removeprefix("function."))
            order.append(unused(name, [*inputs, *held, *tensors]))
            held[order[-1]] = constants[str(spec.target)]
        else:
            raise DefinitionError(
                f"the function holds a {spec.kind.name.lower()}, {spec.target}, which is no tensor",
                help="pass it as a tensor; of a torch.Generator, pass the numbers that it draws",
            )
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise _mutation(spec, exported)
    module = exported.graph_module
    out_spec = exported.call_spec.out_spec
    assert out_spec is not None
    return Graph(module, tuple(order), tuple(inputs), held, out_spec, result_names(out_spec))


def _mutation(spec: Any, exported: torch.export.ExportedProgram) -> DefinitionError:
    """The refusal of a function that writes to what it was given."""
    line = None
    for node in exported.graph.nodes:
        if node.name == getattr(spec.arg, "name", None):
            line = line_of_node(node)
    name = str(spec.target).removeprefix("function.")
    if spec.kind is OutputKind.BUFFER_MUTATION:
        what, help = f"the module writes to its buffer {name!r}", why.OF_STATE
    elif spec.kind is OutputKind.PARAMETER_MUTATION:
        what, help = (
            f"the module writes to its parameter {name!r}",
            "do it before the call; an embedding's max_norm does",
        )
    else:
        what, help = "the function changes an input in place", "work on a new tensor: y = x + 1 in place of x += 1"
    return refusal(what, line, help)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
