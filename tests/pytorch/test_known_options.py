"""Known calls with a block mask, return_aux or kernel_options: found by looks, and never where one of them changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import causal
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, create_block_mask

import neptune_lab as nl
from neptune_lab.errors import LaunchError, NeptuneError
from neptune_lab.pytorch import flex_attention

HEADS, N, WIDTH, BLOCK = 2, 24, 16, 8
PLACES = torch.arange(N)


@pytest.fixture(autouse=True)
def nothing_known():
    flex_attention.forget()
    yield
    flex_attention.forget()


def drawn(seed: int = 0, n: int = N) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, HEADS, n, WIDTH, generator=generator) for _ in range(3)]


def made(mask_mod: Any) -> BlockMask:
    return create_block_mask(mask_mod, None, None, N, N, device="cpu", BLOCK_SIZE=BLOCK)


def seen_by(block_mask: BlockMask) -> torch.Tensor:
    """What FlexAttention's kernels show of a block mask now: the full blocks, and the mask in the others."""
    rows, columns = (PLACES // size for size in block_mask.BLOCK_SIZE)

    def table(counts: Any, indices: Any) -> torch.Tensor:
        found = torch.zeros(int(rows[-1]) + 1, N, dtype=torch.bool)  # (blocks past the last key hold none)
        if counts is not None:
            for row, count in enumerate(counts[0, 0].tolist()):
                found[row, indices[0, 0, row, :count].long()] = True
        return found[rows][:, columns]

    zero = torch.tensor(0)
    mask = block_mask.mask_mod(zero, zero, PLACES[:, None], PLACES[None])
    full = table(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    return full | (table(block_mask.kv_num_blocks, block_mask.kv_indices) & mask)


def wanted(q: Any, k: Any, v: Any, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, the log-sum-exp and the largest score, in float64; a row that sees no key gives 0."""
    scores = (q.double() @ k.double().mT / WIDTH**0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v.double(), scores.logsumexp(-1), scores.amax(-1)


def check(block_mask: BlockMask, seed: int = 0) -> None:
    q, k, v = drawn(seed)
    out, aux = nl.attention(q, k, v, block_mask=block_mask, return_aux=AuxRequest(lse=True))
    expected, lse, _ = wanted(q, k, v, seen_by(block_mask))
    assert (out - expected).abs().max() < 1e-5
    assert torch.allclose(aux.lse.double(), lse, atol=1e-5)


@pytest.fixture
def only_known(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on, a call that takes the long way fails."""
    return lambda: monkeypatch.setattr(flex_attention, "_attend", lambda *_: pytest.fail("the long way"))


def documents(table: torch.Tensor) -> Callable[..., Any]:
    return lambda b, h, q, kv: table[q] == table[kv]


def handmade() -> BlockMask:
    """Lists of their own: each row of blocks sees its first column and itself."""
    counts = torch.tensor([1, 2, 2], dtype=torch.int32)[None, None]
    indices = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 2, 1]], dtype=torch.int32)[None, None]
    return BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=BLOCK, mask_mod=causal, seq_lengths=(N, N))


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "block mask": lambda: {"block_mask": made(causal)},
    "block mask over a tensor": lambda: {"block_mask": made(documents(PLACES // 9))},
    "lists of their own": lambda: {"block_mask": handmade()},
    "aux": lambda: {"return_aux": AuxRequest(lse=True, max_scores=True)},
    "nothing of aux": lambda: {"return_aux": AuxRequest()},
    "their options": lambda: {"kernel_options": {"BLOCK_M": 64}},
    "our options": lambda: {"kernel_options": {"block_q": 16}},
    "in any order": lambda: {"kernel_options": {"deterministic": False}},
    "other names": dict,
}


@pytest.mark.filterwarnings("ignore:attention ignores BLOCK_M")
@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_is_known_and_looks_at_little(name: str, only_known):
    options = CALLS[name]()
    named = ("query", "key", "value") if name == "other names" else "qkv"
    first = [dict(zip(named, drawn(seed), strict=True)) for seed in (0, 1)]
    for given in first:
        nl.attention(**given, **options)
    only_known()
    for given in first:  # (the second of these notes how calls like them are told)
        nl.attention(**given, **options)
    launched, calls = [], []
    kernel = flex_attention.known.LoadedKernel
    one = torch.zeros(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "launch", lambda *_: launched.append(1) or (one, one, one))
        sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
        nl.attention(**first[1], **options)
        sys.setprofile(None)
    assert launched
    assert len(calls) < 40  # (57 to 138 on the long way)


@pytest.mark.nightly
def test_a_known_block_mask_is_the_mask():
    for block_mask in (made(causal), made(documents(PLACES // 9)), handmade()):
        for seed in range(3):
            check(block_mask, seed)


def fewer(block_mask: BlockMask) -> None:
    block_mask.kv_num_blocks.clamp_(max=1)


def other_indices(block_mask: BlockMask) -> None:
    block_mask.kv_indices = block_mask.kv_indices.flip(-1).contiguous()


def no_full(block_mask: BlockMask) -> None:
    block_mask.full_kv_num_blocks = block_mask.full_kv_indices = None


def fewer_full(block_mask: BlockMask) -> None:
    assert block_mask.full_kv_num_blocks is not None
    block_mask.full_kv_num_blocks.zero_()


def other_mask(block_mask: BlockMask) -> None:
    block_mask.mask_mod = lambda b, h, q, kv: q > kv


def wider_blocks(block_mask: BlockMask) -> None:
    block_mask.BLOCK_SIZE = (BLOCK, 2 * BLOCK)


CHANGES = [fewer, other_indices, no_full, fewer_full, other_mask, wider_blocks]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_block_mask_is_another(change: Callable[[BlockMask], None]):
    block_mask = made(causal)
    for _ in range(2):
        check(block_mask)
    change(block_mask)
    for _ in range(2):
        check(block_mask)


def test_what_its_mask_reads_may_change():
    table = PLACES // 9
    holder = documents(table)
    block_mask = made(holder)
    for _ in range(2):
        check(block_mask)
    table.copy_(PLACES // 5)  # the lists stay, and hide what the new values would show
    for _ in range(2):
        check(block_mask)
    assert holder.__closure__ is not None
    holder.__closure__[0].cell_contents = PLACES // 12
    for _ in range(2):
        check(block_mask)


def test_what_does_not_fit_a_known_block_mask_is_refused():
    block_mask = made(causal)
    q, k, v = drawn()
    for _ in range(2):
        nl.attention(q, k, v, block_mask=block_mask)
    with pytest.raises(LaunchError, match="has a mask_mod of its own"):
        nl.attention(q, k, v, mask_mod=causal, block_mask=block_mask)
    with pytest.raises(LaunchError, match=r"q_len and kv_len \(24, 24\); expected \(23, 23\)"):
        nl.attention(*drawn(n=23), block_mask=block_mask)
    with pytest.raises(LaunchError, match="k is a str"):
        nl.attention(q, "k", v, block_mask=block_mask)
    with pytest.raises(LaunchError, match="expected a BlockMask"):
        nl.attention(q, k, v, block_mask=(block_mask,))
    with pytest.raises(LaunchError, match="shape"):
        nl.attention(q[0], k, v, block_mask=block_mask)
    block_mask.seq_lengths = (N, 25)
    with pytest.raises(LaunchError, match=r"q_len and kv_len \(24, 25\)"):
        nl.attention(q, k, v, block_mask=block_mask)


@pytest.mark.nightly
def test_requests_are_told_apart():
    q, k, v = drawn()
    every = wanted(q, k, v, torch.ones(N, N, dtype=torch.bool))
    for _ in range(2):
        for lse, largest in ((True, False), (False, True), (True, True), (False, False)):
            out, aux = nl.attention(q, k, v, return_aux=AuxRequest(lse=lse, max_scores=largest))
            assert isinstance(aux, AuxOutput)
            assert (aux.lse is not None, aux.max_scores is not None) == (lse, largest)
            for found, expected in zip((out, *aux), every, strict=True):
                assert found is None or torch.allclose(found.double(), expected, atol=1e-5)
    for options in (
        {"return_aux": AuxRequest(lse=1)},  # type: ignore[arg-type]
        {"return_aux": (True, False)},
        {"return_aux": AuxRequest(lse=True), "return_lse": True},
    ):
        with pytest.raises(LaunchError, match=r"return_aux"):
            nl.attention(q, k, v, **options)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_options_may_change_in_their_dict():
    q, k, v = drawn()
    options: dict[str, Any] = {"block_q": 16}
    kinds = []
    for value in (16, 16, 32, 32):
        options["block_q"] = value
        nl.attention(q, k, v, kernel_options=options)
        kinds.append(len(flex_attention._kernels))
    assert kinds == [1, 1, 2, 2]
    for name, value in (("block_q", "wide"), ("block_q", 16.0), ("no_such_option", 1), ("block_q", {1: 2})):
        with pytest.raises(NeptuneError):
            nl.attention(q, k, v, kernel_options={name: value})
    with pytest.raises(NeptuneError):
        nl.attention(q, k, v, kernel_options=[("block_q", 16)])  # type: ignore[arg-type]


@pytest.mark.nightly
def test_gradients_of_a_known_block_mask():
    """Recorded calls are known too, and the others stay without gradients."""
    block_mask = handmade()
    mask, given = seen_by(block_mask), drawn(9)[0]
    for seed in range(3):
        inputs = [t.requires_grad_() for t in drawn(seed)]
        found = torch.autograd.grad(nl.attention(*inputs, block_mask=block_mask), inputs, given)
        wide = [t.detach().double().requires_grad_() for t in inputs]
        for ours, theirs in zip(found, torch.autograd.grad(wanted(*wide, mask)[0], wide, given.double()), strict=True):
            assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert not nl.attention(*drawn(), block_mask=block_mask).requires_grad


def test_a_score_mod_beside_a_known_block_mask_reads_its_own_tensor():
    block_mask = made(documents(PLACES // 9))
    bias = torch.linspace(-2, 2, N)
    mod = lambda s, b, h, i, j: s + bias[j]  # noqa: E731
    q, k, v = drawn()
    for factor in (1, 2, 3):
        bias.mul_(factor)
        scores = (q.double() @ k.double().mT / WIDTH**0.5 + bias).masked_fill(~seen_by(block_mask), -torch.inf)
        expected = scores.softmax(-1) @ v.double()
        assert (nl.attention(q, k, v, score_mod=mod, block_mask=block_mask) - expected).abs().max() < 1e-5
