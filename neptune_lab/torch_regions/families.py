"""What an operation of an ATen graph is to the partition: a view, an elementwise operation, a reduction, a product."""

from __future__ import annotations

import operator
from enum import Enum
from functools import cache
from typing import Any

import torch

from neptune_lab.torch_to_stages.decompositions import decomposition
from neptune_lab.torch_to_stages.lowering import lowering_of


class Family(Enum):
    """Families of operations; the value completes "the node is …"."""

    INPUT = "an input"
    VIEW = "a view"
    MOVE = "a rearrangement"
    POINTWISE = "elementwise"
    CREATION = "made without data"
    REDUCTION = "a reduction"
    PRODUCT = "a product"
    OTHER = "another operation"


# Operations that autograd's tracer leaves in a graph in place of those that have a lowering; `canonical` replaces them.
TRACED_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
TRACED_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
TRACED_NORMS = ("native_group_norm", "_fused_rms_norm")

ATTENTION = ("scaled_dot_product_attention", *TRACED_ATTENTION)
SOFTMAX = ("_softmax", "_safe_softmax", "softmax", "special_softmax")
LOG_SOFTMAX = ("_log_softmax", "log_softmax", "special_log_softmax", "logsumexp", "special_logsumexp")
NORMS = ("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "_native_batch_norm_legit", *TRACED_NORMS)
LOSSES = ("cross_entropy_loss", "nll_loss_nd", "l1_loss", "mse_loss", *TRACED_LOSSES)
# Views that read each element of a tensor, or a part of it, where it is; they cost nothing.
_READ_IN_PLACE = ("slice", "select", "split", "split_with_sizes", "unbind", "diagonal", "unfold")
_PLAIN_VIEWS = (
    "_unsafe_view",
    "alias",
    "detach",
    "expand",
    "permute",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
)
_POINTWISE_NORMS = ("_native_batch_norm_legit_no_training",)
_MOVES = ("cat", "stack", "constant_pad_nd", "select_scatter", "slice_scatter", "gather", "index", "index_select")
_MOVES = (*_MOVES, "embedding", "flip", "repeat", "repeat_interleave")
# They keep or drop each element by its position.
_MASKS = ("tril", "triu")
# Defined by reads at computed positions, or by a comparison with each element of a row, where torch is faster.
_WITH_POSITIONS = ("upsample_", "grid_sampler_", "as_strided", "bucketize", "searchsorted", "linalg_matrix_power")
_COPIES = ("clone", "copy", "lift_fresh_copy")


def name_of(node: torch.fx.Node) -> str:
    """The name of a node's ATen operation, such as "softmax"; "" if it calls none."""
    return str(getattr(node.target, "_opname", "")) if node.op == "call_function" else ""


def is_getitem(node: torch.fx.Node) -> bool:
    """Whether a node takes one result of an operation that has several."""
    return node.op == "call_function" and node.target is operator.getitem


def owner_of(node: torch.fx.Node) -> torch.fx.Node:
    """The operation of which a node takes a result; the node itself if it is an operation."""
    while is_getitem(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def keeps_more(node: torch.fx.Node) -> bool:
    """Whether an operation is an attention that also gives what torch's own backward pass reads."""
    return name_of(node) in TRACED_ATTENTION and any(u.args[1] != 0 and u.users for u in node.users if is_getitem(u))


def family_of(node: torch.fx.Node) -> Family:
    """The family of a node's operation.

    Args:
        node: of a graph of ATen operations; one that takes a result of another has that one's family.

    Returns:
        The family; OTHER if the operation has neither a lowering nor a definition by operations that have one.
    """
    node = owner_of(node)
    if node.op in ("placeholder", "get_attr"):
        return Family.INPUT
    name = name_of(node)
    if not name or name.startswith(_WITH_POSITIONS):
        return Family.OTHER
    if name in _PLAIN_VIEWS or name in _READ_IN_PLACE:
        return Family.VIEW
    if name in (*ATTENTION, *SOFTMAX, *LOG_SOFTMAX, *LOSSES, *NORMS):
        return Family.REDUCTION
    if name in (*_POINTWISE_NORMS, *_MASKS, *_COPIES):
        return Family.POINTWISE
    if name in _MOVES:
        return Family.MOVE
    return _family_of_lowering(node.target)


@cache
def _family_of_lowering(target: Any) -> Family:
    lowering = lowering_of(f"{target._opname}.{target._overloadname}")
    if lowering is None:
        pointwise = torch.Tag.pointwise in getattr(target, "tags", ()) and decomposition(target) is not None
        return Family.POINTWISE if pointwise else Family.OTHER
    known = {
        # Each element looks through all positions, where torch adds at each position: torch is faster.
        "scatters": Family.OTHER,
        "scans": Family.OTHER,
        "orders": Family.OTHER,
        "bags": Family.OTHER,
        "reductions": Family.REDUCTION,
        "norms": Family.REDUCTION,
        "contractions": Family.PRODUCT,
        "creation": Family.CREATION,
        "views": Family.MOVE,
    }
    return known.get(lowering.__module__.rpartition(".")[2], Family.POINTWISE)


def reads_in_place(node: torch.fx.Node) -> bool:
    """Whether a view's elements are at a constant distance from those of a tile: all but reads of a part."""
    return name_of(owner_of(node)) in _PLAIN_VIEWS
