"""What this package asks of Dynamo's internals: a function of the traced program as a graph, with what it captures.

Dynamo represents each value of the program that it traces by a variable.  `Tracing` reads the variables of the frame
that calls `comptime`, traces functions among them to graphs (as torch does for the mods of FlexAttention), and sets
variables of that frame.  The module uses what torch 2.10 to 2.13 have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.exc import TorchRuntimeError, Unsupported, UserError
from torch.overrides import TorchFunctionMode

from neptune_lab.errors import DefinitionError, LaunchError

# What Dynamo raises for a function that it cannot trace.
UNTRACEABLE: tuple[type[Exception], ...] = (Unsupported, TorchRuntimeError, UserError)


@dataclass(frozen=True)
class Traced:
    """A function of the traced program as a graph.

    Args:
        graph: its inputs are the arguments, and then what `captured` lists.
        captured: what the function captures, as proxies of the program's graph.
    """

    graph: torch.fx.Graph
    captured: tuple[Any, ...]


class _Positions(TorchFunctionMode):
    """Reads of an element at a position without a value: `t[q]` would ask a tensor without axes for its number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, index = args
            several = index if isinstance(index, tuple) else (index,)
            return func(tensor, tuple(0 if _is_position(i) else i for i in several))
        return func(*args, **(kwargs or {}))


def _is_position(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.dtype in (torch.int32, torch.int64)


class Tracing:
    """The frame that Dynamo traces; `context` is what `comptime` gives."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self._tx = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()

    @property
    def whole(self) -> bool:
        """Whether a graph break is an error."""
        translator, found = self._tx, bool(getattr(self._tx, "error_on_graph_break", False))
        while translator is not None and not found:  # only the outermost frame knows of fullgraph=True
            found, translator = bool(getattr(translator, "one_graph", False)), getattr(translator, "parent", None)
        return found

    def fake(self, name: str) -> Any:
        """The tensor of a local variable, without values."""
        return self.context.get_local(name).as_fake()

    def constant(self, name: str) -> tuple[bool, Any]:
        """Whether a local variable has a value that is known, and the value."""
        try:
            return True, self._variable(name).as_python_constant()
        except (NotImplementedError, Unsupported):
            return False, None

    def is_given(self, name: str) -> bool:
        """Whether a local variable has a value from outside of the traced program, which Dynamo can guard."""
        return self._variable(name).source is not None

    def is_tensor(self, name: str) -> bool:
        """Whether a local variable is a tensor."""
        return issubclass(self._variable(name).python_type(), torch.Tensor)

    def value(self, name: str) -> Any:
        """The value of a local variable that is known as the program is traced."""
        return self._variable(name).as_python_constant()

    def number(self, name: str) -> Any:
        """The value of a local variable that is a number or None; a guard is added for a symbolic one.

        Raises:
            LaunchError: it is something else, such as a tensor.
        """
        known, value = self.constant(name)
        if known:
            return value
        symbolic = getattr(self._variable(name), "sym_num", None)
        if symbolic is None:
            raise LaunchError(
                f"{name} is a tensor in a compiled function; its value is not known while the graph is made",
                help=f"call the compiled function with the number, float({name})",
            )
        kinds = {torch.SymFloat: float, torch.SymBool: bool}
        return kinds.get(type(symbolic), int)(symbolic)

    def fakes(self, name: str) -> list[Any]:
        """The tensors of a local variable that is a tuple or list of tensors."""
        return [item.as_proxy().node.meta["example_value"] for item in self._items(name)]

    def _items(self, name: str) -> list[Any]:
        return [item.realize() for item in self._variable(name).items]

    def _variable(self, name: str) -> Any:
        return self.context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker().realize()

    def trace(self, name: str, arguments: Sequence[torch.dtype], device: torch.device) -> Traced:
        """A local function as a graph.

        Args:
            name: of the variable.
            arguments: dtypes of the arguments that it is traced with, tensors without axes.
            device: of these.

        Raises:
            UNTRACEABLE: Dynamo cannot trace it to one graph.
            DefinitionError: it draws a random number, which would be one for all positions.
        """
        from torch._dynamo.variables.higher_order_ops import speculate_subgraph
        from torch._higher_order_ops.flex_attention import flex_attention

        effects = self._tx.output.side_effects
        drawn: list[Any] = getattr(self._tx.output, "random_calls", [])
        before = len(drawn)
        with self._discarded():
            given = [self._added(torch.empty, ((),), {"dtype": dtype, "device": device}) for dtype in arguments]
        try:
            with _Positions():
                _, graph, lifted = speculate_subgraph(
                    self._tx,
                    self._variable(name),
                    given,
                    {},
                    description=name,
                    source_target=flex_attention,  # whose mods are traced so
                    set_subgraph_inputs="flatten_manual",
                )
        except UNTRACEABLE:
            self._tx.output.side_effects = effects  # what the function had changed until then
            raise
        if len(drawn) > before:
            del drawn[before:]
            raise DefinitionError(
                "inside torch.compile a mod draws random numbers, and is called once for all positions",
                help="draw them before the call, and read one per position: `noise[q, kv]`",
            )
        return Traced(graph, tuple(lifted))

    def _discarded(self) -> AbstractContextManager[None]:
        """Inside, what is added to the graph is left out of it."""
        from torch._dynamo.variables.higher_order_ops import discard_graph_changes

        return discard_graph_changes(self._tx)

    def proxy(self, name: str) -> Any:
        """The proxy of a local variable that is a tensor."""
        return self._variable(name).as_proxy()

    def proxies(self, name: str) -> list[Any]:
        """The proxies of a local variable that is a tuple or list of tensors."""
        return [item.as_proxy() for item in self._items(name)]

    def tensor_of(self, proxy: Any, dtype: torch.dtype, device: torch.device) -> Any:
        """The proxy of a tensor without axes that holds a symbolic number."""
        return self._added(torch.full, ((), proxy), {"dtype": dtype, "device": device}).as_proxy()

    def contiguous(self, name: str) -> Any:
        """The proxy of a local variable that is a tensor, made contiguous."""
        return self.added(torch.Tensor.contiguous, self.proxy(name))

    def added(self, function: Any, *args: Any) -> Any:
        """The proxy of a call that is added to the graph."""
        return self._added(function, args, {}).as_proxy()

    def assign_call(self, name: str, function: Any, *args: Any) -> None:
        """Adds a call of an operator to the graph, and sets a local variable to its result."""
        self._tx.symbolic_locals[name] = self._added(function, args, {})

    def assign(self, name: str, value: Any) -> None:
        """Sets a local variable to a constant."""
        from torch._dynamo.variables import ConstantVariable

        self._tx.symbolic_locals[name] = ConstantVariable.create(value)

    def _added(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch._dynamo.variables.builder import wrap_fx_proxy

        return wrap_fx_proxy(self._tx, self._tx.output.create_proxy("call_function", function, args, kwargs))


def value_of(proxy: Any) -> Any:
    """The tensor without values, or the symbolic number, that a proxy stands for."""
    return proxy.node.meta["example_value"]


def hint_of(size: Any) -> int | None:
    """The number that a symbolic size has in the call that is traced; None if it depends on values."""
    if isinstance(size, int):
        return size
    node = size.node
    return int(node.hint) if node.has_hint() else None


__all__ = ["UNTRACEABLE", "Traced", "Tracing", "hint_of", "value_of"]
