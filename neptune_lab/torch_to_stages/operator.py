"""An operator from a traced function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.int32_range import exceeds_int32
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.positions import positions_below
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.operators.base import Operator, as_numpy, source_of
from neptune_lab.operators.recipe import Recipe
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_kind, check_switch
from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.torch_to_stages.arguments import example_arguments, named_arguments
from neptune_lab.torch_to_stages.decompositions import decomposition
from neptune_lab.torch_to_stages.gradient_stops import gradient_stops
from neptune_lab.torch_to_stages.graph import Graph, graph_of_module, trace
from neptune_lab.torch_to_stages.index_ranges import check_held_indices, index_limits
from neptune_lab.torch_to_stages.lines import SourceLine, line_of_caller
from neptune_lab.torch_to_stages.lower import lowered
from neptune_lab.torch_to_stages.other_sizes import resized, with_free_sizes
from neptune_lab.torch_to_stages.reference import reference_of
from neptune_lab.torch_to_stages.sized import sized
from neptune_lab.torch_to_stages.source_text import python_functions
from neptune_lab.torch_to_stages.values import in_64_bits

if TYPE_CHECKING:
    import torch

# The dtypes that a kernel made here reads.
_READ = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
_SMALL = 8  # random integers are below it


def from_torch(
    function: Callable[..., Any],
    *example_inputs: Any,
    name: str = "",
    draw: Callable[[np.random.Generator], Any] | None = None,
    dynamic_shapes: Any = None,
    dynamic: bool | None = None,
) -> Operator:
    """An operator from a function of PyTorch tensors, or from a module.

    The function is traced once, on tensors of the examples' shapes and dtypes.  Its ATen operations become stages:
    softmax, norms, losses and attention are taken apart into their reductions, views into maps of indices, and
    comparisons of positions into masks.

    Numbers are computed in float32 if a tensor has float16 or bfloat16.  They are rounded to 16 bits where a matrix
    product reads them, where the function converts them, and where they are returned.

    Args:
        function: a function or a `torch.nn.Module`, called with `example_inputs`.  Parameters, and tensors of its
            closure, are copied when the operator is made.
        example_inputs: the arguments: tensors, numbers (which stay as they are), and tuples, lists and dicts of them.
            Only the tensors' shapes and dtypes count.
        name: of the operator; "" for the function's own.
        draw: a function from a random generator to one array per input, in order; if None, floats are standard normal,
            integers are drawn from 0 to 7 and below the size of what they index, and conditions are true or false.
        dynamic_shapes: sizes with a name (`nl.dim`), for one kernel at all their values: one entry per argument, which
            is None or a dict from dimensions to sizes; or a dict of these by the arguments' names.  Dimensions that are
            always equal have one name.  The examples' own extents there do not count.
        dynamic: how its kernel takes tensors of other sizes than the examples', as torch.compile's.  None: the first
            call with other sizes compiles a kernel for all sizes that differ, which have names then.  True: all sizes
            have names from the first call on, except those on which the function depends.  False: each
            combination of sizes has a kernel of its own.  So have sizes that no kernel with names can take.

    Returns:
        The operator, from the tensors among the arguments to those that the function returns.  Its reference is the
        function itself in float64.

    Raises:
        DefinitionError: torch cannot trace the function; what it does depends on a size with a name; it has an
            operation that is not supported, or changes an input in place; an input has a dtype that kernels do not
            read, such as uint8.  The message has the line of the function, and a fix.
    """
    check_kind("name", name, str, "a text", DefinitionError, help='such as name="attention"')
    if draw is not None and not callable(draw):
        raise DefinitionError(
            f"draw={shown(draw)}: expected a function of a random generator, or None",
            help="draw=lambda rng: (rng.standard_normal(shape), ...), with an array for each input",
        )
    title = name or getattr(function, "__name__", type(function).__name__)
    caller = line_of_caller()
    settled: set[Any] = set()

    def made_for(examples: Sequence[Any]) -> Operator:
        graph = trace(function, examples, decomposition, settled)
        made = _operator(graph, function, title, _source(function), draw, caller)
        names = [t.name for t in made.inputs]
        return replace(made, gradient_stops=gradient_stops(function, examples, names, graph.marked))

    def remade_for(examples: Sequence[Any]) -> Operator:
        return replace(made_for(examples), recipe=_recipe(function, examples, name, draw))

    if dynamic_shapes is not None:
        if draw is not None:
            raise DefinitionError("draw makes arrays of one shape", help="leave draw or dynamic_shapes out")
        if dynamic is not None:
            raise DefinitionError(
                f"dynamic={shown(dynamic)} and dynamic_shapes, which names the sizes",
                help="leave one of them out: dynamic=True names all sizes",
            )
        return sized(remade_for, function, example_inputs, dynamic_shapes)
    if dynamic is not None:
        check_switch("dynamic", dynamic, DefinitionError)
    made = remade_for(example_inputs)
    if draw is not None:
        return made
    others = resized(remade_for, function, example_inputs, made, dynamic)
    if dynamic and others is not None:
        return with_free_sizes(remade_for, function, example_inputs, replace(made, resized=others), others)
    return replace(made, resized=others)


def _recipe(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    name: str,
    draw: Callable[[np.random.Generator], Any] | None,
) -> Recipe | None:
    """How the operator is made for other shapes; None if an argument is neither a tensor nor a number, or if `draw`
    makes arrays of these shapes."""
    arguments = named_arguments(function, example_inputs)
    if arguments is None or draw is not None:
        return None
    return Recipe(
        arguments, lambda values: from_torch(function, *example_arguments(function, values), name=name, draw=None)
    )


def from_graph(module: torch.fx.GraphModule, name: str) -> Operator:
    """An operator from a graph of ATen operations, as autograd's tracer or torch.export makes it.

    Args:
        module: a graph without side effects, whose nodes have fake values; it gives a tuple of tensors.
        name: of the operator.

    Returns:
        The operator, from the graph's inputs to its results, as `from_torch` makes it.

    Raises:
        DefinitionError: an operation is not supported, or an input has a dtype that kernels do not read.
    """
    return _operator(graph_of_module(module, decomposition), module, name, module.code, None, None)


def _operator(
    graph: Graph,
    function: Callable[..., Any],
    title: str,
    source: str,
    draw: Callable[[np.random.Generator], Any] | None,
    caller: SourceLine | None,
) -> Operator:
    """The operator of a traced graph; indices have 64 bits if 32 do not hold what it computes with them.

    Raises:
        DefinitionError: an operation or a dtype is not supported.
    """
    plain = title if title.isidentifier() else "function"
    check_held_indices(graph)
    made = lowered(graph)
    program = made.stages.program(plain, made.results, graph.inputs)
    if exceeds_int32(program):
        with in_64_bits():
            made = lowered(graph)
            program = made.stages.program(plain, made.results, graph.inputs)
    stages, outputs = made.stages, made.results
    buffers = {b.name: b for b in program.buffers}
    inputs = tuple(TensorSpec(n, buffers[n].shape, buffers[n].dtype) for n in program.inputs)
    held = {n: np.array(as_numpy(t), order="C").reshape(tuple(t.shape)) for n, t in made.held.items() if n in buffers}
    _check_dtypes(inputs, held)
    kept = [b.name for b in blocks(program)]
    lines = {n: stages.lines[n] for n in kept if n in stages.lines}
    own = inputs[: len(inputs) - len(held)]
    return Operator(
        name=plain,
        title=title,
        doc="a function of PyTorch",
        params={"function": title},
        inputs=inputs,
        outputs=tuple(TensorSpec(n, buffers[n].shape, buffers[n].dtype) for n in outputs),
        source=source,
        build=lambda: program,
        compute=reference_of(graph, program.inputs, {t.name: t.dtype for t in inputs}),
        draw=draw or (lambda rng: tuple(_random(rng, spec, program) for spec in own)),
        captured=held,
        holds={n: made.held[n] for n in held},
        trained=tuple(n for n in held if made.held[n].requires_grad),
        constants=tuple(n for n, t in graph.held.items() if t.ndim == 0 and t.requires_grad),
        copies=True,
        ties=partial(dict, stages.ties),
        lines=lines,
        index_limits=index_limits(graph),
        python=python_functions(function, lines, {n: stages.within[n] for n in kept}, caller),
    )


def _check_dtypes(inputs: Sequence[TensorSpec], held: Collection[str]) -> None:
    """Raise DefinitionError for an argument, or a tensor that the function holds, that kernels do not read."""
    for tensor in inputs:
        if tensor.dtype in _READ:
            continue
        if tensor.name in held:
            what = f"a parameter, or a tensor from outside of the function, of shape {tensor.shape}"
            help = "convert it before nl.from_torch, such as mask = mask.int()"
        else:
            what = f"the input {tensor.name!r}"
            help = "convert it before: nl.from_torch(f, x.int()), and call the kernel with x.int()"
        raise DefinitionError(f"{what} has dtype {tensor.dtype}; expected {', '.join(_READ)}", help=help)


def _random(rng: np.random.Generator, spec: TensorSpec, program: Program) -> np.ndarray:
    if "float" in spec.dtype:
        return rng.standard_normal(spec.shape)
    below = 2 if spec.dtype == "bool" else positions_below(program, spec.name, _SMALL)
    return rng.integers(0, below, spec.shape)


def _source(function: Callable[..., Any]) -> str:
    import torch

    return source_of(type(function) if isinstance(function, torch.nn.Module) else function)


__all__ = ["from_graph", "from_torch"]
