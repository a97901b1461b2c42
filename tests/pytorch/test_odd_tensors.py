"""Tensors that are not at strides in memory, that have no values or no tokens: refused by name, or taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import DEVICE, causal, reference, tensors
from torch.masked import masked_tensor

import neptune_lab as nl
from neptune_lab.errors import LaunchError

ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse_coo": lambda t: t.to_sparse(),
    "sparse_csr": lambda t: t.reshape(-1, t.shape[-1]).to_sparse_csr(),
    "nested tensor": lambda t: torch.nested.nested_tensor([t.reshape(-1, t.shape[-1])]),
    "meta": lambda t: t.to("meta"),
    "MaskedTensor": lambda t: masked_tensor(t, t > 0),
}
CACHE = torch.zeros(4, 8, 2, 16, device=DEVICE)
PAGES = torch.tensor([[1, 2]], device=DEVICE)
LENGTHS = torch.tensor([9], device=DEVICE)


def attend(**given: Any) -> Any:
    q, k, v = tensors((1, 2, 16, 16), (1, 2, 16, 16))
    return nl.attention(**{"q": q, "k": k, "v": v, "mask_mod": causal, **given})


def scaled(**given: Any) -> Any:
    q, k, v = tensors((1, 2, 16, 16), (1, 2, 16, 16))
    return nl.scaled_dot_product_attention(**{"query": q, "key": k, "value": v, **given})


def paged(**given: Any) -> Any:
    q, _, _ = tensors((1, 2, 1, 16), (1, 2, 1, 16))
    named = {"q": q, "k_cache": CACHE, "v_cache": CACHE, "page_table": PAGES, "lengths": LENGTHS}
    return nl.paged_attention(**{**named, **given})


def captured(table: torch.Tensor) -> Any:
    return attend(score_mod=lambda s, b, h, q, kv: s + table[kv])


def called(x: torch.Tensor) -> Any:
    example = torch.zeros(16, 16)
    return nl.compile(nl.from_torch(lambda x: x.softmax(-1), example), validate="none")(x)


FORM = torch.zeros(1, 2, 16, 16, device=DEVICE)
CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "argument q": (lambda t: attend(q=t), FORM),
    "argument k": (lambda t: attend(k=t), FORM),
    "argument v": (lambda t: attend(v=t), FORM),
    "argument query": (lambda t: scaled(query=t), FORM),
    "argument value": (lambda t: scaled(value=t), FORM),
    "argument attn_mask": (lambda t: scaled(attn_mask=t), FORM[0, 0]),
    "argument k_cache": (lambda t: paged(k_cache=t), CACHE),
    "argument page_table": (lambda t: paged(page_table=t), PAGES),
    "argument cu_seqlens_q": (lambda t: attend(cu_seqlens_q=t), torch.tensor([0, 16], device=DEVICE)),
    "a mod captures a tensor": (captured, FORM[0, 0, 0]),
    "argument x": (called, FORM[0, 0]),
}


@pytest.mark.one_in(28)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_without_strides_or_values_is_named(name: str, kind: str):
    call, usual = CALLS[name]
    if kind == "sparse_csr" and usual.ndim < 2:
        return
    odd = ODD[kind](usual)
    for _ in range(2):  # before the kernel is known, and after
        with pytest.raises(LaunchError) as told:
            call(odd)
        # (with a query or keys on meta, another argument is on the wrong device)
        assert str(told.value).startswith("argument " if kind == "meta" and name != "a mod captures a tensor" else name)
        assert kind in str(told.value)
        assert told.value.help
        if name != "argument attn_mask":  # (zeros are no offsets)
            call(usual)


def test_packed_sequences_without_tokens():
    q, k, v = tensors((1, 2, 6, 16), (1, 2, 6, 16))
    none = torch.tensor([0, 0, 0], dtype=torch.int32, device=DEVICE)
    some = torch.tensor([0, 2, 6], dtype=torch.int32, device=DEVICE)
    out = nl.attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], mask_mod=causal, cu_seqlens_q=none)
    assert out.shape == (1, 2, 0, 16)
    out = nl.attention(q, k[:, :, :0], v[:, :, :0], mask_mod=causal, cu_seqlens_q=some, cu_seqlens_k=none)
    assert torch.equal(out, torch.zeros_like(q))
    out, lse = nl.attention(q[:, :, :0], k, v, cu_seqlens_q=none, cu_seqlens_k=some, mask_mod=causal, return_lse=True)
    assert (out.shape, lse.shape) == ((1, 2, 0, 16), (1, 2, 0))
    with pytest.raises(LaunchError, match=r"cu_seqlens_q is \[0, 0, 0\]; expected offsets that .* end with 6"):
        nl.attention(q, k, v, cu_seqlens_q=none)
    out = nl.attention(q, k, v, mask_mod=causal, cu_seqlens_q=some)
    first = reference(q[:, :, :2], k[:, :, :2], v[:, :, :2], None, causal)
    assert (out[:, :, :2] - first).abs().max() < 1e-5
