"""Operations that autograd's tracer makes, in the form in which the user wrote them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from neptune_lab.torch_regions.families import TRACED_ATTENTION, TRACED_LOSSES, TRACED_NORMS, name_of

aten = torch.ops.aten

# Operations that read a tensor for its shape and dtype alone, and the number that their results hold.
_FILLED = {"ones_like": 1, "new_ones": 1, "zeros_like": 0, "new_zeros": 0, "empty_like": 0, "new_empty": 0}
_FILLED |= {"full_like": None, "new_full": None}  # their argument fill_value


def canonical(graph: torch.fx.Graph) -> None:
    """Replaces operations that only a backward pass or one device needs by those that functions of torch are made of.

    attention-for-cpu(q, k, v)[0]  ⇒  scaled_dot_product_attention(q, k, v)
    copy(x, y)                     ⇒  y, converted and broadcast; a copy reads x for its shape and dtype alone
    ones_like(x)                   ⇒  full(shape of x, 1)
    lift_fresh_copy(x)             ⇒  x

    Args:
        graph: changed in place.  An operation stays as it is if one of its further results is used.
    """
    for node in list(graph.nodes):
        name = name_of(node)
        if name in (*TRACED_ATTENTION, *TRACED_LOSSES, *TRACED_NORMS):
            _replace(graph, node, name)
        elif name == "copy" or name in _FILLED:
            _without_data(graph, node, name)
        elif name == "lift_fresh_copy":
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    graph.eliminate_dead_code()


def _without_data(graph: torch.fx.Graph, node: torch.fx.Node, name: str) -> None:
    """Replaces an operation by one that does not read the tensor whose values it does not need."""
    value = node.meta["val"]
    with graph.inserting_before(node):
        if name == "copy":
            made = node.args[1]
            assert isinstance(made, torch.fx.Node)
            if made.meta["val"].dtype != value.dtype:
                made = _new_call(graph, aten._to_copy.default, made, dtype=value.dtype)
            if made.meta["val"].shape != value.shape:
                made = _new_call(graph, aten.expand.default, made, list(value.shape))
        else:
            number = _FILLED[name]
            if number is None:
                number = _arguments(node)["fill_value"]
            made = graph.call_function(
                aten.full.default, (list(value.shape), number), {"dtype": value.dtype, "device": value.device}
            )
            made.meta = dict(node.meta)
    node.replace_all_uses_with(made)


def _new_call(
    graph: torch.fx.Graph, target: Callable[..., Any], source: torch.fx.Node, *arguments: Any, **named: Any
) -> torch.fx.Node:
    made = graph.call_function(target, (source, *arguments), named)
    made.meta = {**source.meta, "val": target(source.meta["val"], *arguments, **named)}
    return made


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, name: str) -> None:
    results = [user for user in node.users if user.target is operator.getitem]
    if not results or any(user.args[1] != 0 and user.users for user in results) or len(results) != len(node.users):
        return
    make = _attention if name in TRACED_ATTENTION else _loss if name in TRACED_LOSSES else _NORMS[name]
    given = _arguments(node)
    with graph.inserting_before(node):
        made = make(graph, given)
    if made is None:
        return
    for result in results:
        if result.args[1] == 0:
            made.meta = {**node.meta, "val": result.meta["val"]}
            result.replace_all_uses_with(made)


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """All arguments by the names of the operation's schema, with its defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}


def _attention(graph: torch.fx.Graph, given: dict[str, Any]) -> torch.fx.Node | None:
    if given.get("dropout_p") or given.get("return_debug_mask"):
        return None
    q, k, v = (given[name] for name in ("query", "key", "value"))
    heads, kv_heads = q.meta["val"].shape[-3], k.meta["val"].shape[-3]
    mask = given.get("attn_mask") or given.get("attn_bias")
    more = {"scale": given.get("scale"), "enable_gqa": heads != kv_heads}
    target = aten.scaled_dot_product_attention.default
    return graph.call_function(target, (q, k, v, mask, 0.0, bool(given.get("is_causal"))), more)


def _loss(graph: torch.fx.Graph, given: dict[str, Any]) -> torch.fx.Node:
    names = ("self", "target", "weight", "reduction", "ignore_index")
    return graph.call_function(aten.nll_loss_nd.default, tuple(given[name] for name in names))


def _group_norm(graph: torch.fx.Graph, given: dict[str, Any]) -> torch.fx.Node:
    arguments = tuple(given[name] for name in ("input", "group", "weight", "bias", "eps"))
    return graph.call_function(aten.group_norm.default, arguments)


def _rms_norm(graph: torch.fx.Graph, given: dict[str, Any]) -> torch.fx.Node:
    arguments = tuple(given[name] for name in ("input", "normalized_shape", "weight", "eps"))
    return graph.call_function(aten.rms_norm.default, arguments)


_NORMS: dict[str, Callable[[torch.fx.Graph, dict[str, Any]], torch.fx.Node]] = {
    "native_group_norm": _group_norm,
    "_fused_rms_norm": _rms_norm,
}
