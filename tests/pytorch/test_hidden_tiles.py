"""`nl.attention` with `hidden_tiles="list"`: masks over tensors in any order, beside the float64 definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attention_reference import DEVICE, causal, reference, tensors
from torch.nn.attention.flex_attention import BlockMask

import neptune_lab as nl
from neptune_lab.htile_passes.skip_tiles_by_list import MOST_LISTED
from neptune_lab.operators import attention, backward
from neptune_lab.pytorch import compiled, lengths

OPTIONS: dict[str, Any] = {"hidden_tiles": "list", "block_q": 16, "block_kv": 16}


def given(*shape: int, share: float = 0.3, seed: int = 0) -> torch.Tensor:
    """A table of which this share is true."""
    return torch.from_numpy(np.random.default_rng(seed).random(shape) < share).to(DEVICE)


def ids(length: int, most: int = 5, run: int = 16, seed: int = 0) -> torch.Tensor:
    """Numbers of documents in no order, with parts of a document in several places."""
    numbers = np.random.default_rng(seed).integers(0, most, -(-length // run)).repeat(run)[:length]
    return torch.from_numpy(numbers.astype("int32")).to(DEVICE)


def check(q: Any, k: Any, v: Any, mask_mod: Any, score_mod: Any = None, found: Any = None, **options: Any) -> None:
    if found is None:
        more = {"enable_gqa": q.shape[1] != k.shape[1], "kernel_options": OPTIONS | options}
        found = nl.attention(q, k, v, score_mod, mask_mod=mask_mod, **more)
    if k.shape[0] != q.shape[0]:
        k, v = (t.expand(q.shape[0], -1, -1, -1) for t in (k, v))
    expected = reference(q, k, v, score_mod, mask_mod).nan_to_num(0.0)
    size = 2e-3 if q.dtype == torch.float16 else 1e-5
    assert (found.double() - expected).abs().max() < size * max(1.0, expected.abs().max().item())


def kernels_with_lists() -> list[bool]:
    """For each kernel in memory, whether a loop of it has a list."""
    return ["_place in range" in c.kernel.spec.text for _, c in compiled._by_definition.values()]


Q, KV = 75, 90
MASKS: dict[str, Callable[[], Any]] = {
    "documents": lambda: (lambda one, two: lambda b, h, q, kv: one[q] == two[kv])(ids(Q), ids(KV, seed=1)),
    "documents, causal": lambda: (lambda one: lambda b, h, q, kv: (one[q] == one[kv]) & (q >= kv))(ids(KV)),
    "documents of samples": lambda: (lambda one: lambda b, h, q, kv: one[b, q] == one[b, kv])(
        torch.stack([ids(KV, seed=n) for n in range(2)])
    ),
    "blocks": lambda: (lambda table: lambda b, h, q, kv: table[q // 16, kv // 16])(given(5, 6)),
    "blocks of heads": lambda: (lambda table: lambda b, h, q, kv: table[h, q // 16, kv // 16])(given(4, 5, 6)),
    "blocks of samples and heads": lambda: (lambda table: lambda b, h, q, kv: table[b, h, q // 16, kv // 16])(
        given(2, 4, 5, 6)
    ),
    "a mask of one sample": lambda: (lambda table: lambda b, h, q, kv: table[0, 0, q, kv])(given(1, 1, Q, KV)),
    "nothing": lambda: (lambda table: lambda b, h, q, kv: table[q, kv])(given(Q, KV, share=0.0)),
    "everything": lambda: (lambda table: lambda b, h, q, kv: table[q, kv])(given(Q, KV, share=1.0)),
    "keys": lambda: (lambda table: lambda b, h, q, kv: table[kv])(given(KV)),
    "queries": lambda: (lambda table: lambda b, h, q, kv: table[q])(given(Q)),
    "64 bits": lambda: (lambda one: lambda b, h, q, kv: one[q] == one[kv])(ids(KV).long() * (1 << 40)),
}


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", MASKS)
def test_a_mask(name: str):
    half = len(name) % 2 == 0
    q, k, v = tensors((2, 4, Q, 16), (2, 2, KV, 16), torch.float16 if half else torch.float32)
    check(q, k, v, MASKS[name]())
    assert kernels_with_lists()[-1]


@pytest.mark.nightly
def test_keys_that_samples_share():
    q, k, v = tensors((2, 4, Q, 16), (1, 4, KV, 16))
    table = given(2, 5, 6)
    check(q, k, v, lambda b, h, q, kv: table[b, q // 16, kv // 16])


@pytest.mark.nightly
def test_one_query_and_splits():
    q, k, v = tensors((2, 4, 1, 16), (2, 4, 300, 16))
    table = given(2, 19)
    mod = lambda b, h, q, kv: table[b, kv // 16]  # noqa: E731
    found = nl.attention(
        q,
        k,
        v,
        mask_mod=mod,
        kernel_options={"template": "split_k_update", "hidden_tiles": "list", "splits": 2, "block_kv": 16},
    )
    check(q, k, v, mod, found=found)


@pytest.mark.nightly
def test_values_that_change_in_place():
    """The list is made at each call, so none is stale: after a change in place, of a view, and of the whole tensor."""
    q, k, v = tensors((1, 2, Q, 16), (1, 2, KV, 16))
    table = given(5, 6)
    mod = lambda b, h, q, kv: table[q // 16, kv // 16]  # noqa: E731
    check(q, k, v, mod)
    made = len(kernels_with_lists())
    table[2:4] = True
    check(q, k, v, mod)
    table.view(-1)[::3] = False
    check(q, k, v, mod)
    table.data.copy_(~table)  # which no version counts
    check(q, k, v, mod)
    assert len(kernels_with_lists()) == made


@pytest.mark.nightly
def test_block_lists_made_by_hand():
    """FlexAttention's lists are tables of a mask, which has a list as any other."""
    q, k, v = tensors((1, 4, Q, 16), (1, 4, KV, 16))
    table = given(1, 4, 5, 6)
    counts = table.sum(-1, dtype=torch.int32)
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True).int()
    mask = BlockMask.from_kv_blocks(
        counts, order, BLOCK_SIZE=16, mask_mod=causal, seq_lengths=(Q, KV), compute_q_blocks=False
    )
    found = nl.attention(q, k, v, block_mask=mask, kernel_options=OPTIONS)
    check(q, k, v, lambda b, h, q, kv: table[0, h, q // 16, kv // 16] & (q >= kv), found=found)
    assert kernels_with_lists()[-1]


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_window_that_a_tensor_moves(dynamic: bool):
    """As of a cache of static length: tiles outside are not visited, whatever the tensor holds."""
    q, k, v = tensors((2, 4, 1, 16), (2, 2, 200, 16))
    offset = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    mod = lambda b, h, q, kv: (kv <= q + offset[b]) & (kv > q + offset[b] - 24)  # noqa: E731
    for values in ([0, 199], [70, -5], [1 << 40, 210]):
        offset.copy_(torch.tensor(values))
        check(q, k, v, mod, found=nl.attention(q, k, v, mask_mod=mod, enable_gqa=True, dynamic=dynamic))
    if not dynamic:
        assert "_first), " in list(compiled._by_definition.values())[-1][1].kernel.spec.text


@pytest.mark.nightly
def test_every_length():
    """By one kernel, whose lists have as many tiles as the length has."""
    for length in (100, 7, 64, 65, 271):
        q, k, v = tensors((1, 2, length, 16))
        one = ids(length)
        mod = lambda b, h, q, kv, one=one: one[q] == one[kv]  # noqa: E731
        found = nl.attention(q, k, v, mask_mod=mod, kernel_options=OPTIONS, dynamic=True)
        check(q, k, v, mod, found=found)
    entries = [entry for family in lengths._families.values() for entry in family.entries.values()]
    assert len(entries) == 1, [family.refusals for family in lengths._families.values()]
    assert entries[0] is not None
    assert "_place in range" in entries[0].spec.text
    assert entries[0].spec.ranges == (("n", 1, 16 * MOST_LISTED),), "longer ones have more tiles than a list"


@pytest.mark.nightly
def test_gradients():
    """Both passes visit what their lists have."""
    table = given(5, 6).cpu().numpy()
    op = attention.general(
        *(1, 2, Q, KV, 16), mask_mod=lambda b, h, q, kv: table[q // 16, kv // 16], dtype="float32", empty_rows="zero"
    )
    kernel = nl.compile(backward(op), block_q=16, block_kv=16, code=nl.CodeOptions(hidden_tiles="list"))
    assert "_place in range" in kernel.source
    assert kernel.relative_error() < 1e-5


def drawn(rng: np.random.Generator, sizes: tuple[int, int, int, int]) -> tuple[Any, str]:
    """A mask over tensors of these sizes (samples, heads, queries, keys), as a function and as text."""
    batch, heads, q_len, kv_len = sizes
    block = int(rng.choice([1, 3, 8, 16, 40]))
    share = float(rng.choice([0.0, 0.1, 0.5, 0.9]))
    seed = int(rng.integers(1 << 30))
    q_blocks, kv_blocks = -(-q_len // block), -(-kv_len // block)
    longest = max(q_len, kv_len)
    table = given(batch, heads, q_blocks, kv_blocks, share=share, seed=seed)
    one, two = ids(longest, 4, block, seed), ids(longest, 4, 16, seed + 1)
    order = torch.randperm(longest, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    weights = torch.randn(longest, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    atoms: dict[str, Any] = {
        "table[b, h]": lambda b, h, q, kv: table[b, h, q // block, kv // block],
        "table[0, h]": lambda b, h, q, kv: table[0, h, q // block, kv // block],
        "table[b, 0]": lambda b, h, q, kv: table[b, 0, q // block, kv // block],
        "ids": lambda b, h, q, kv: one[q] == one[kv],
        "order": lambda b, h, q, kv: one[order[q]] <= two[kv],
        "weights": lambda b, h, q, kv: weights[q] < weights[order[kv]],
        "causal": lambda b, h, q, kv: q >= kv,
        "window": lambda b, h, q, kv: (q - kv).abs() < 20,
        "shifted": lambda b, h, q, kv: (one[kv] >> b) == 1,
    }
    names = [str(name) for name in rng.choice(list(atoms), size=int(rng.integers(1, 4)), replace=False)]
    words = [str(word) for word in rng.choice(["&", "|", "& ~"], size=len(names))]

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        mask = atoms[names[0]](b, h, q, kv)
        for name, word in zip(names[1:], words, strict=False):
            other = atoms[name](b, h, q, kv)
            mask = mask | other if word == "|" else mask & (other if word == "&" else ~other)
        return mask

    return mod, f"{names} {words} block={block} share={share} seed={seed}"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(5, 50))])
def test_a_random_mask(seed: int):
    rng = np.random.default_rng(seed)
    batch, groups, kv_heads = (int(rng.integers(1, 4)) for _ in range(3))
    q_len, kv_len = (int(rng.integers(1, 140)) for _ in range(2))
    dtype = (torch.float16, torch.float32)[int(rng.integers(2))]
    own = int(rng.choice([1, batch]))
    q, k, v = tensors((batch, kv_heads * groups, q_len, 16), (own, kv_heads, kv_len, 16), dtype)
    mod, text = drawn(rng, (batch, kv_heads * groups, q_len, kv_len))
    try:
        check(q, k, v, mod, block_q=int(rng.choice([16, 32])), block_kv=int(rng.choice([16, 32])))
    except AssertionError as error:
        raise AssertionError(f"{text}: {q.shape}, {k.shape}, {dtype}") from error
