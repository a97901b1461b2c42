"""Turns a graph of ATen operations into stages: one lowering per operation."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.nodes import Cast, Const, Expr
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.torch_to_stages.graph import Graph
from neptune_lab.torch_to_stages.lines import line_of_node, lines_of_node
from neptune_lab.torch_to_stages.lowering import lowering_of
from neptune_lab.torch_to_stages.lowering.context import LARGEST_MASK, Context, dtype_name
from neptune_lab.torch_to_stages.refusals import refusal, refused_operation
from neptune_lab.torch_to_stages.stages import Stages
from neptune_lab.torch_to_stages.values import HALVES, Value, constant

# Operations that only check or mark.
_IGNORED = frozenset({"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size"})


def lowered(graph: Graph) -> tuple[Stages, tuple[str, ...]]:
    """The stages of a graph.

    Args:
        graph: from `trace`.

    Returns:
        The stages, and the names of those that are results, in order.

    Raises:
        DefinitionError: an operation, a dtype or an argument is not taken; the message has the user's line.
    """
    stages = Stages(reserved=frozenset(graph.names))
    values: dict[torch.fx.Node, Any] = {}
    given = _placeholders(graph)
    for name in (*graph.inputs, *graph.held):
        tensor = given[name].meta["val"]
        if tensor.ndim == 0 and name in graph.held:  # a number
            values[given[name]] = constant(graph.held[name].item(), _dtype(given[name], tensor))
            continue
        values[given[name]] = stages.input(name, tuple(tensor.shape), _dtype(given[name], tensor))
    results: tuple[str, ...] = ()
    for node in graph.module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            results = _outputs(stages, graph, node, values)
        elif node.op == "call_function":
            _lower_node(stages, node, values)
        else:
            raise refusal(f"the graph has a node of kind {node.op}", line_of_node(node), None)
    return stages, results


def _placeholders(graph: Graph) -> dict[str, torch.fx.Node]:
    nodes = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
    tensors = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return dict(zip(graph.placeholders, tensors, strict=True))


def _lower_node(stages: Stages, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> None:
    line = line_of_node(node)
    if node.target is operator.getitem:
        source, index = node.args
        values[node] = values[source][index]  # type: ignore[index]
        _stage_if_shared(stages, node, values)
        return
    full = str(getattr(node.target, "_opname", node.target))
    overload = str(getattr(node.target, "_overloadname", "default"))
    if full in _IGNORED:
        return
    lowering = lowering_of(f"{full}.{overload}")
    if lowering is None:
        raise refused_operation(full, line)
    metas = node.meta.get("val")
    tensors = [m for m in (metas if isinstance(metas, list | tuple) else [metas]) if isinstance(m, torch.Tensor)]
    if not tensors:
        raise refused_operation(full, line, "where it gives no tensor")
    tensors = [t for t in tensors if t.numel() or t is tensors[0]]
    stages.line, stages.callers = line, lines_of_node(node)[:-1]
    stages.hint = _hint(node, full)
    context = Context(
        stages,
        full,
        tuple(tuple(t.shape) for t in tensors),
        tuple(_dtype(node, t) for t in tensors),
        len(node.users),
        line,
    )
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])  # type: ignore[misc]
    kept = {k: v for k, v in kwargs.items() if v is not None and k not in ("memory_format", "layout", "pin_memory")}
    try:
        made = lowering(context, *args, **kept)
    except TypeError as error:
        raise refused_operation(full, line, f"with these arguments ({error})") from error
    values[node] = pytree.tree_map_only(Value, stages.noted, made)
    _stage_if_shared(stages, node, values, context)


def _stage_if_shared(
    stages: Stages, node: torch.fx.Node, values: dict[torch.fx.Node, Any], context: Context | None = None
) -> None:
    """Gives a result that several operations read a stage, unless computing it again costs next to nothing."""
    value = values[node]
    if not isinstance(value, Value) or value.plain:
        return
    if not value.hint:
        value = values[node] = replace(value, hint=stages.hint, line=stages.line)
    if len(node.users) < 2:
        return
    if context is None:
        context = Context(stages, "", (value.shape,), (value.dtype,), len(node.users), line_of_node(node))
    if value.dtype == "bool" and context.size(value) <= LARGEST_MASK:
        return
    values[node] = context.staged(value)


def _hint(node: torch.fx.Node, name: str) -> str:
    """A stage's name: the variable that the user assigns, if the node is the last one of its line."""
    line = line_of_node(node)
    after = node.next
    last = after.op != "call_function" or str(line_of_node(after)) != str(line)
    assigned = line.assigned_name() if line is not None and last else ""
    return assigned or name.strip("_")


def _dtype(node: torch.fx.Node, tensor: torch.Tensor) -> str:
    name = dtype_name(tensor.dtype)
    if name not in DTYPES:
        raise refusal(f"a tensor has dtype {name}", line_of_node(node), "use floats, integers or conditions")
    if any(not isinstance(n, int) for n in tensor.shape):
        raise refusal(
            "a tensor's shape depends on values", line_of_node(node), "keep the full shape, and mask with torch.where"
        )
    if tensor.numel() == 0:
        raise refusal(f"a tensor has shape {tuple(tensor.shape)}, without elements", line_of_node(node), "leave it out")
    return name


def _outputs(stages: Stages, graph: Graph, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> tuple[str, ...]:
    """A stage for each result, in torch's dtype."""
    names: list[str] = []
    for name, source in zip(graph.names, node.args[0], strict=True):  # type: ignore[arg-type]
        if not isinstance(source, torch.fx.Node):
            raise DefinitionError(
                f"the function returns {source!r} as {name}", help="return tensors, alone or in tuples and dicts"
            )
        stages.line, stages.callers = line_of_node(source), lines_of_node(source)[:-1]
        stages.reserved -= {name}
        value: Value = values[source]
        names.append(_stored(stages, value, name))
    return tuple(names)


def _stored(stages: Stages, value: Value, name: str) -> str:
    def element(index: tuple[Expr, ...]) -> Expr:
        expr = value.at(index)
        if value.dtype in HALVES:
            return (
                expr.arg if isinstance(expr, Cast) and _is_half(stages, expr, value.dtype) else Cast(value.dtype, expr)
            )
        return expr

    made = stages.map(replace(value, at=element), name, value.dtype)
    return _name_of(made)


def _is_half(stages: Stages, expr: Cast, dtype: str) -> bool:
    return expr.dtype == "float32" and stages.type_of(expr.arg) == dtype


def _name_of(value: Value) -> str:
    load = value.at(tuple(Const(0) for _ in value.shape))
    while isinstance(load, Cast):
        load = load.arg
    return load.buffer  # type: ignore[union-attr]
