"""Errors of outputs against a float64 reference, and torch's attention kernels to compare with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import MeasureError
from neptune_lab.strict.archives import read_npz, read_pt
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import shown_path

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

# How much larger than the best fused peer's our root mean square error may be.
ALLOWED = 1.2


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute errors of an output: root mean square, 90th and 99th percentile (Neptune, Table 5)."""

    rms: float
    p90: float
    p99: float


def error_summary(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> ErrorSummary:
    """The errors of all samples together.

    Args:
        got: one output per sample, of any float dtype that `numpy.asarray` takes.
        want: the float64 reference of each, of the same shape.

    Raises:
        MeasureError: no sample, shapes that differ, or an output that is not finite although the reference is.
    """
    if not got or len(got) != len(want):
        raise MeasureError(
            f"got {len(got)} outputs and {len(want)} references: expected as many, and at least one",
            help="give one reference per output, in the same order",
        )
    errors = np.concatenate([_errors(np.asarray(a), np.asarray(b)) for a, b in zip(got, want, strict=True)])
    if not errors.size:
        raise MeasureError(
            "the reference has no finite element: nothing to compare with", help="draw inputs whose result is finite"
        )
    p90, p99 = np.percentile(errors, (90, 99))
    return ErrorSummary(float(np.sqrt(np.mean(errors**2))), float(p90), float(p99))


def _errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    if got.shape != want.shape:
        raise MeasureError(
            f"an output has shape {got.shape}, its reference {want.shape}",
            help="give the reference in the shape of the output",
        )
    finite = np.isfinite(want)  # a fully masked row is NaN in both
    errors = np.abs(got.astype(np.float64)[finite] - want[finite])
    if not np.isfinite(errors).all():
        raise MeasureError(
            f"{np.count_nonzero(~np.isfinite(errors))} elements of the output are not finite, but the reference is",
            help="check the inputs for values that overflow in the operator's dtype",
        )
    return errors


def to_float64(value: Any) -> np.ndarray:
    """A torch tensor (on any device) or an array as a float64 array."""
    if hasattr(value, "detach"):
        value = value.detach().double().cpu().numpy()
    return np.asarray(value, dtype=np.float64)


# -- peers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """An attention operator in the terms of torch's kernels.

    Args:
        heads, kv_heads: of q, and of k and v.
        q_len, kv_len: numbers of queries and keys; the last query is at the position of the last key.
        scale: factor of the scores.
        causal: a query sees only the keys up to its own position.
        window: the most keys that a query sees, the last at its own position; None: all.
        cap: scores become cap * tanh(score / cap); None: no soft cap.
        alibi: 2**(-8 * (h + 1) / heads) * (key's position - query's) is added to a score.
    """

    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    scale: float
    causal: bool = False
    window: int | None = None
    cap: float | None = None
    alibi: bool = False


def case_of(op: Operator) -> AttentionCase:
    """An operator whose first inputs are q and k, in the terms of torch's kernels.

    Args:
        op: q has the shape (batch, heads, q_len, head_dim), k (batch, kv_heads, kv_len, head_dim).
    """
    (_, heads, q_len, width), (_, kv_heads, kv_len, _) = (tensor.shape for tensor in op.inputs[:2])
    params, scale = op.params, op.params.get("scale")
    causal = op.name in ("attention_causal", "attention_window") or bool(params.get("causal"))
    return AttentionCase(
        heads,
        kv_heads,
        q_len,
        kv_len,
        width**-0.5 if scale is None else scale,
        causal,
        params.get("window"),
        params.get("cap"),
        op.name == "attention_alibi",
    )


def modified(case: AttentionCase, score: Any, head: Any, query: Any, key: Any) -> Any:
    """The score of a pair after the operator's own change; positions count from the first key."""
    import torch

    if case.alibi:
        score = score + torch.exp2(-8.0 * (head + 1) / case.heads) * (key - query)
    if case.cap is not None:
        score = case.cap * torch.tanh(score / case.cap)
    return score


def seen(case: AttentionCase, query: Any, key: Any) -> Any:
    """Whether the query sees the key; positions count from the first key."""
    visible = key <= query
    return visible if case.window is None else visible & (query - key < case.window)


Peer = Callable[..., Any]

SDPA_ON_CPU = "SDPA (CPU)"


def peers(case: AttentionCase, device: str) -> dict[str, Peer]:
    """Torch's fused attention kernels for the case, by name: each takes q, k and v (batch, heads, length, head_dim).

    On "cpu": scaled_dot_product_attention, which computes in wider dtypes than its inputs'.  On "cuda": its flash,
    cuDNN and memory-efficient backends, and FlexAttention, compiled.  SDPA has no soft capping.  A backend that does
    not support a case raises RuntimeError when it is called.
    """
    available: dict[str, Peer] = {}
    if case.cap is None:
        if device == "cpu":
            available[SDPA_ON_CPU] = lambda q, k, v: _sdpa(case, q, k, v)
        else:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            def on(backend: Any) -> Peer:
                def run(q: Any, k: Any, v: Any) -> Any:
                    with sdpa_kernel(backend):
                        return _sdpa(case, q, k, v)

                return run

            available["SDPA flash"] = on(SDPBackend.FLASH_ATTENTION)
            available["SDPA cuDNN"] = on(SDPBackend.CUDNN_ATTENTION)
            available["SDPA efficient"] = on(SDPBackend.EFFICIENT_ATTENTION)
    if device != "cpu":
        available["FlexAttention"] = _flex(case, device)
    return available


def _sdpa(case: AttentionCase, q: Any, k: Any, v: Any) -> Any:
    """The case by scaled_dot_product_attention; all but a plain causal mask is a bias in q's dtype."""
    import torch

    plain = case.window is None and not case.alibi and (not case.causal or case.q_len == case.kv_len)
    grouped = case.kv_heads != case.heads
    if grouped and q.is_cuda:  # not every backend supports fewer key heads than query heads
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, dim=1) for x in (k, v))
        grouped = False
    bias = None if plain else _bias(case, q)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=plain and case.causal, scale=case.scale, enable_gqa=grouped
    )


def _bias(case: AttentionCase, q: Any) -> Any:
    import torch

    query = torch.arange(case.q_len, device=q.device)[:, None] + case.kv_len - case.q_len
    key = torch.arange(case.kv_len, device=q.device)[None]
    head = torch.arange(case.heads, device=q.device)[:, None, None]
    bias = modified(case, torch.zeros(1, 1, 1, device=q.device), head, query, key)
    masked = case.causal or case.window is not None
    return (torch.where(seen(case, query, key), bias, -torch.inf) if masked else bias).to(q.dtype)[None]


def _flex(case: AttentionCase, device: str) -> Peer:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    offset = case.kv_len - case.q_len

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return modified(case, score, h, i + offset, j)

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return seen(case, i + offset, j)

    masked = case.causal or case.window is not None
    mask = create_block_mask(mask_mod, None, None, case.q_len, case.kv_len, device=device) if masked else None
    changed = score_mod if case.alibi or case.cap is not None else None
    # After eight compiled shapes, torch would fall back to unfused code, which is not this peer.
    torch.compiler.reset()
    fused = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    grouped = case.kv_heads != case.heads
    return lambda q, k, v: fused(q, k, v, score_mod=changed, block_mask=mask, scale=case.scale, enable_gqa=grouped)


def run_peer(peer: Peer, arrays: Sequence[np.ndarray], device: str) -> np.ndarray | str:
    """The peer's output in float64, or the reason that it has none (the text of torch's RuntimeError)."""
    from neptune_lab.runtime.arrays import to_tensor

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            return to_float64(peer(*(to_tensor(a, device) for a in arrays)))
        except RuntimeError as refusal:
            # SDPA warns of each backend that it does not use; the other warnings say why this one refuses.
            said = [str(w.message).split(" (Triggered")[0] for w in heard]
            why = [x for x in said if not x.endswith(("because:", "has been runtime disabled."))]
            return " ".join(why) or str(refusal).strip().splitlines()[0]


# -- recorded inputs ------------------------------------------------------------------------------------------------


def read_tensors(path: Path) -> Mapping[str, np.ndarray]:
    """The tensors of a .npz file, or of a dict that torch.save wrote, by name, as arrays.

    Raises:
        MeasureError: no such file, another kind of file, one that holds anything but tensors, or more than 8 GiB.
    """
    readers = {".npz": read_npz, ".pt": read_pt, ".pth": read_pt}
    if path.suffix not in readers:
        raise MeasureError(
            f"{shown_path(path)} ends in {shown(path.suffix)}", help="a .npz or .pt file with q, k and v"
        )
    try:
        return readers[path.suffix](path, MeasureError)
    except MeasureError as error:
        raise MeasureError(
            error.reason, help='np.savez(path, q=q, k=k, v=v), or torch.save({"q": q, "k": k, "v": v}, path)'
        ) from error
