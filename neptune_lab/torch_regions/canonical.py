"""Operations that autograd's tracer makes, in the form in which the user wrote them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from neptune_lab.torch_regions.families import TRACED_ATTENTION, TRACED_LOSSES, TRACED_NORMS, name_of

aten = torch.ops.aten


def canonical(graph: torch.fx.Graph) -> None:
    """Replaces operations that only a backward pass or one device needs by those that functions of torch are made of.

    attention-for-cpu(q, k, v)[0]  ⇒  scaled_dot_product_attention(q, k, v)

    Args:
        graph: changed in place.  An operation stays as it is if one of its further results is used.
    """
    for node in list(graph.nodes):
        name = name_of(node)
        if name in (*TRACED_ATTENTION, *TRACED_LOSSES, *TRACED_NORMS):
            _replace(graph, node, name)
    graph.eliminate_dead_code()


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
