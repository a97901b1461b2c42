"""Turns a graph of ATen operations into stages: one lowering per operation."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Var
from neptune_lab.loop_ir.walks import walk
from neptune_lab.strict.dtypes import COMPUTED
from neptune_lab.torch_to_stages.graph import Graph
from neptune_lab.torch_to_stages.known import MOST, Known, known
from neptune_lab.torch_to_stages.lines import line_of_node, lines_of_node
from neptune_lab.torch_to_stages.lowering import lowering_of
from neptune_lab.torch_to_stages.lowering.complex_parts import complex_lowering
from neptune_lab.torch_to_stages.lowering.context import LARGEST_MASK, Context, dtype_name
from neptune_lab.torch_to_stages.refusals import refusal, refused_kernel, refused_operation
from neptune_lab.torch_to_stages.stages import Stages
from neptune_lab.torch_to_stages.values import HALVES, Complex, Value, constant

# The dtype of the parts of a complex tensor.
_PARTS = {"complex64": "float32", "complex128": "float64"}
# Operations that read at positions which a tensor holds.
GATHERS = frozenset(
    (
        *("embedding", "index_select", "index", "gather", "_embedding_bag", "_embedding_bag_forward_only"),
        *("scatter", "scatter_add", "scatter_reduce", "index_add", "index_reduce", "index_put"),
    )
)
# Operations that give elements where an operand has none, such as a cache before the first token.
_OF_NOTHING = frozenset(
    (
        *("cat", "constant_pad_nd", "sum", "mean", "prod", "any", "all", "logsumexp", "linalg_vector_norm"),
        *("matmul", "bmm", "mm", "mv", "dot", "linear", "addmm", "baddbmm", "einsum"),
        *("scatter", "scatter_add", "scatter_reduce", "index_add", "index_put", "index_copy"),
        *("full_like", "ones_like", "zeros_like", "empty_like", "new_full", "new_ones", "new_zeros", "new_empty"),
    )
)
# Running results and ranks take n * n steps in a kernel: those that no argument changes are computed ahead.
_AHEAD = frozenset(
    (
        *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
        *("topk", "kthvalue", "median", "nanmedian"),
    )
)
# Operations that only check or mark.
_IGNORED = frozenset({"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size"})


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph as stages.

    Args:
        stages: all that were made.
        results: the names of those that are results, in order.
        held: the tensors that the function holds, and those that were computed ahead, by the name of their input.
    """

    stages: Stages
    results: tuple[str, ...]
    held: dict[str, torch.Tensor]


def lowered(graph: Graph) -> Lowered:
    """The stages of a graph.

    What no argument changes is computed ahead by torch if it has no lowering, or is an index that is rounded from
    floats, such as T5's buckets of distances: a kernel reads the result.

    Args:
        graph: from `trace`.

    Returns:
        The stages, its results, and the tensors that it holds.

    Raises:
        DefinitionError: an operation, a dtype or an argument is not taken; the message has the user's line.
    """
    stages = Stages(reserved=frozenset(graph.names))
    given = _placeholders(graph)
    state = _State(stages, known(graph, given), dict(graph.held))
    for name in (*graph.inputs, *graph.held):
        tensor = given[name].meta["val"]
        try:
            dtype = _dtype(given[name], tensor)
        except DefinitionError as error:
            if name not in graph.held:
                raise
            state.untaken[given[name]] = error
            continue
        if tensor.ndim == 0 and name in graph.held:  # a number
            state.values[given[name]] = constant(graph.held[name].item(), dtype)
            continue
        if tensor.numel() == 0:
            state.values[given[name]] = constant(0, dtype, tuple(tensor.shape))
            continue
        state.values[given[name]] = stages.input(name, tuple(tensor.shape), dtype)
    results: tuple[str, ...] = ()
    for node in graph.module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op not in ("output", "call_function"):
            raise refusal(f"the graph has a node of kind {node.op}", line_of_node(node), None)
        if node in state.known.nodes:
            state.take_if_possible(node)
            continue
        state.compute_ahead(node)
        if node.op == "output":
            results = _outputs(stages, graph, node, state.values)
        else:
            _lower_node(stages, node, state.values)
    return Lowered(stages, results, state.held)


@dataclass(slots=True)
class _State:
    """What is known of the nodes seen so far.

    Args:
        stages: where stages go.
        known: the nodes that no argument changes.
        held: tensors that become inputs of the program, by name.
        values: of the nodes that were lowered.
        untaken: why nodes that no argument changes were not.
    """

    stages: Stages
    known: Known
    held: dict[str, torch.Tensor]
    values: dict[torch.fx.Node, Any] = field(default_factory=dict)
    untaken: dict[torch.fx.Node, DefinitionError] = field(default_factory=dict)

    def take_if_possible(self, node: torch.fx.Node) -> None:
        """Lowers a node that no argument changes; what is refused waits for a reader."""
        refused = [self.untaken[n] for n in node.all_input_nodes if n in self.untaken]
        if refused:
            self.untaken[node] = refused[0]
            return
        name = str(getattr(node.target, "_opname", ""))
        if name in _AHEAD:
            self.untaken[node] = refused_operation(name, line_of_node(node), f"of more than {MOST} numbers")
            return
        try:
            _lower_node(self.stages, node, self.values)
        except DefinitionError as error:
            self.untaken[node] = error

    def compute_ahead(self, node: torch.fx.Node) -> None:
        """Operands of `node` that were refused become tensors that kernels read, and so do indices from floats."""
        for operand in node.all_input_nodes:
            if operand in self.untaken:
                self.values[operand] = self._read(operand)
                del self.untaken[operand]
            elif str(getattr(node.target, "_opname", "")) in GATHERS and operand in self.known.nodes:
                value = self.values[operand]
                if isinstance(value, Value) and "int" in value.dtype and _from_floats(self.stages, value):
                    self.values[operand] = self._read(operand)

    def _read(self, node: torch.fx.Node) -> Value | Complex:
        tensor = self.known.value(node) if _size(node) <= MOST else None
        plain = isinstance(tensor, torch.Tensor) and dtype_name(tensor.dtype) in (*COMPUTED, *_PARTS)
        if tensor is None or not plain or not tensor.numel():
            if node in self.untaken:
                raise self.untaken[node]
            return self.values[node]
        line = line_of_node(node)
        assigned = line.assigned_name() if line is not None else ""
        name = assigned or node.name
        if tensor.is_complex():
            return Complex(self._held(f"{name}_re", tensor.real), self._held(f"{name}_im", tensor.imag))
        return self._held(name, tensor)

    def _held(self, name: str, tensor: torch.Tensor) -> Value:
        """A tensor as an input of the program."""
        name = unique(name, {*self.held, *self.stages.names}, "_")
        self.held[name] = tensor
        return self.stages.input(name, tuple(tensor.shape), dtype_name(tensor.dtype))


def _size(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else MOST + 1


def _from_floats(stages: Stages, value: Value) -> bool:
    """Whether an integer element is rounded from a float."""
    element = value.at(tuple(Var(f"?{n}") for n in range(value.ndim)))
    return any(isinstance(p, Cast) and "int" in p.dtype and "float" in stages.type_of(p.arg) for p in walk(element))


def _placeholders(graph: Graph) -> dict[str, torch.fx.Node]:
    nodes = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
    tensors = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return dict(zip(graph.placeholders, tensors, strict=True))


def _lower_node(stages: Stages, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> None:
    """Adds the stages of one operation of the graph, and its result to `values`.

    Raises:
        DefinitionError: there is no lowering for it, or not with these arguments.
    """
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
    metas = node.meta.get("val")
    tensors = [m for m in (metas if isinstance(metas, list | tuple) else [metas]) if isinstance(m, torch.Tensor)]
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])  # type: ignore[misc]
    of_complex = any(isinstance(leaf, Complex) for leaf in pytree.tree_leaves((args, kwargs)))
    of_complex |= any(t.is_complex() for t in tensors)
    lowering = complex_lowering(full, overload) if of_complex else lowering_of(f"{full}.{overload}")
    if getattr(node.target, "namespace", "") == "neptune_lab":
        raise refused_kernel(line)
    if lowering is None:
        raise refused_operation(full, line, "for complex numbers" if of_complex and lowering_of(full) else "")
    if not tensors:
        raise refused_operation(full, line, "where it gives no tensor")
    if not isinstance(metas, list):  # (of a list, such as the parts of a split, each is somebody's)
        tensors = [t for t in tensors if t.numel() or t is tensors[0]]
    if isinstance(metas, torch.Tensor) and not metas.numel():
        values[node] = constant(0, _dtype(node, metas), tuple(metas.shape))
        return
    operands = pytree.tree_leaves((args, kwargs))
    if full not in _OF_NOTHING and any(isinstance(v, Value) and 0 in v.shape for v in operands):
        raise refused_operation(full, line, "of a tensor without elements")
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
    kept = {k: v for k, v in kwargs.items() if v is not None and k not in ("memory_format", "layout", "pin_memory")}
    try:
        made = lowering(context, *args, **kept)
    except TypeError as error:
        raise refused_operation(full, line, f"with these arguments ({error})") from error
    noted = {Value: stages.noted, Complex: lambda z: Complex(stages.noted(z.re), stages.noted(z.im))}
    values[node] = pytree.tree_map_only((Value, Complex), lambda v: noted[type(v)](v), made)
    _stage_if_shared(stages, node, values, context)


def _stage_if_shared(
    stages: Stages, node: torch.fx.Node, values: dict[torch.fx.Node, Any], context: Context | None = None
) -> None:
    """Gives a result that several operations read a stage, unless computing it again costs next to nothing."""
    value = values[node]
    if isinstance(value, Complex) and len(node.users) > 1:
        context = context or Context(stages, "", (value.re.shape,), (value.re.dtype,), len(node.users), None)
        values[node] = Complex(context.reused(value.re), context.reused(value.im))
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


# Stages of operations whose name in torch is longer than what users call them.
_SHORT = {"linalg_vector_norm": "norm", "native_layer_norm": "layer_norm", "special_softmax": "softmax"}


def _hint(node: torch.fx.Node, name: str) -> str:
    """A stage's name: the variable that the user assigns, if the node is the last one of its line."""
    line = line_of_node(node)
    after = node.next
    last = after.op != "call_function" or str(line_of_node(after)) != str(line)
    assigned = line.assigned_name() if line is not None and last else ""
    return assigned or _SHORT.get(name, name.strip("_"))


def _dtype(node: torch.fx.Node, tensor: torch.Tensor) -> str:
    name = dtype_name(tensor.dtype)
    name = _PARTS.get(name, name) if node.op != "placeholder" else name
    if name not in COMPUTED:
        help = "use floats, integers or conditions"
        if tensor.is_complex():
            help = "give torch.view_as_real(x), and take torch.view_as_complex of it in the function"
        raise refusal(f"a tensor has dtype {name}", line_of_node(node), help)
    if any(not isinstance(n, int) for n in tensor.shape):
        raise refusal(
            "a tensor's shape depends on values", line_of_node(node), "keep the full shape, and mask with torch.where"
        )
    return name


def _outputs(stages: Stages, graph: Graph, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> tuple[str, ...]:
    """A stage for each result that is a tensor, in torch's dtype; a number and None are left out."""
    names: list[str] = []
    for name, source in zip(graph.names, node.args[0], strict=True):  # type: ignore[arg-type]
        if source is None or isinstance(source, (bool, int, float)):
            continue
        if not isinstance(source, torch.fx.Node):
            raise DefinitionError(
                f"the function returns {source!r} as {name}", help="return tensors, alone or in tuples and dicts"
            )
        stages.line, stages.callers = line_of_node(source), lines_of_node(source)[:-1]
        stages.reserved -= {name}
        value: Value | Complex = values[source]
        if isinstance(value, Complex):
            raise refusal(f"the result {name} is complex", stages.line, "return torch.view_as_real(x)")
        if 0 in value.shape:
            raise refusal(f"the result {name} has shape {value.shape}, without elements", stages.line, "leave it out")
        names.append(_stored(stages, value, name))
    if not names:
        raise DefinitionError("the function returns no tensor", help="return what it computes")
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
