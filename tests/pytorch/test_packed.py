"""`nl.attention(cu_seqlens_q=...)`: packed sequences, beside each sequence by itself in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attention_reference import DEVICE, causal, reference
from by_turns import some_seeds
from other_thread import while_another_compiles
from torch.utils.flop_counter import FlopCounterMode

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.operators.math import Scalar
from neptune_lab.operators.relative import Relative
from neptune_lab.pytorch import flex_attention, known_options, packed
from neptune_lab.runtime.token_places import TOKENS, token_places

OF_Q, OF_K = [0, 7, 7, 40, 41, 64], [0, 30, 34, 34, 90, 96]
OFFSET = torch.tensor([a - b for a, b in zip(np.diff(OF_K), np.diff(OF_Q), strict=True)], device=DEVICE)
SLOPES = torch.tensor([0.5, 0.25], device=DEVICE)
TABLE = torch.linspace(-1, 1, 200, device=DEVICE)


def in_place(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q.clone().add_(3) >= kv if isinstance(q, torch.Tensor) else q.add_(3) >= kv


# (score_mod, mask_mod); in the reference they are called on the positions in one sequence.
MODS: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "none": (None, None),
    "causal": (None, causal),
    "causal, aligned at the end": (None, lambda b, h, q, kv: q + OFFSET[b] >= kv),
    "window": (None, lambda b, h, q, kv: (q - kv).abs() < 5),
    "window on one side": (None, lambda b, h, q, kv: (q >= kv) & (q - kv <= 3)),
    "by sequence and head": (None, lambda b, h, q, kv: (b % 2 == h) | (kv > 2 * q)),
    "first keys": (None, lambda b, h, q, kv: (kv < 3) | (-kv >= 1 - q)),
    "in place": (None, in_place),
    "a copy": (None, lambda b, h, q, kv: q.clone() - kv.clone() < 5),
    "hash": (None, lambda b, h, q, kv: (q * 73856093 + kv * 19349663 + b * 83492791) % 7 < 5),
    "interleaved bits": (None, lambda b, h, q, kv: ((q ^ kv) & 0x55555555) >= ((q & kv) << (b + 1))),
    "alibi": (lambda s, b, h, q, kv: s - SLOPES[h] * (q - kv), causal),
    "relative bias": (lambda s, b, h, q, kv: s + TABLE[q - kv + 100] * TABLE[kv], None),
    "comparison in a score": (lambda s, b, h, q, kv: torch.where(kv - q > 1, s * 0.5, s + b), None),
}


def tensors(q_len: int, kv_len: int, groups: int = 1, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(q_len)
    shapes = (1, 2, q_len, 16), (1, 2 // groups, kv_len, 16), (1, 2 // groups, kv_len, 8)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def offsets(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def by_sequence(q: Any, k: Any, v: Any, of_q: Any, of_k: Any, score_mod: Any = None, mask_mod: Any = None) -> Any:
    """Each sequence by itself; the row of a query that sees no key is 0."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64, device=q.device)
    for n in range(len(of_q) - 1):
        rows, columns = slice(of_q[n], of_q[n + 1]), slice(of_k[n], of_k[n + 1])
        own = q[:, :, rows], k[:, :, columns], v[:, :, columns]
        if own[0].numel() and own[1].numel():
            mods = _for(n, score_mod, True), _for(n, mask_mod, False)
            out[:, :, rows] = reference(*own, *mods).nan_to_num(0.0)
    return out


def _for(n: int, mod: Any, scores: bool) -> Any:
    if mod is None:
        return None
    if scores:
        return lambda s, b, h, q, kv: mod(s, b + n, h, q, kv)
    return lambda b, h, q, kv: mod(b + n, h, q, kv) & (kv >= 0)


@pytest.mark.one_in(36)
@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "apart"])
def test_every_sequence_is_by_itself(name, alike):
    score_mod, mask_mod = MODS[name]
    of_q, of_k = (OF_K, OF_K) if alike else (OF_Q, OF_K)
    q, k, v = tensors(of_q[-1], of_k[-1])
    given = {"cu_seqlens_q": offsets(of_q)} | ({} if alike else {"cu_seqlens_k": offsets(of_k)})
    found = nl.attention(q, k, v, score_mod, mask_mod=mask_mod, **given)
    assert (found - by_sequence(q, k, v, of_q, of_k, score_mod, mask_mod)).abs().max() < 1e-5


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", some_seeds(4, of=12))
def test_random_offsets_are_read_at_each_call(seed):
    """One kernel for each pair of lengths, whatever the offsets are, and however many."""
    drawn = random.Random(seed)
    count = drawn.randint(1, 9)
    of_q, of_k = (_drawn(drawn, total, count) for total in (64, 96))
    q, k, v = tensors(64, 96)
    mask_mod = drawn.choice([None, causal])
    found = nl.attention(q, k, v, mask_mod=mask_mod, cu_seqlens_q=offsets(of_q), cu_seqlens_k=offsets(of_k))
    assert (found - by_sequence(q, k, v, of_q, of_k, None, mask_mod)).abs().max() < 1e-5


def _drawn(drawn: random.Random, total: int, count: int) -> list[int]:
    """Offsets of `count` sequences, some of them empty."""
    return [0, *sorted(drawn.choices(range(total + 1), k=count - 1)), total]


@pytest.mark.nightly
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "apart"])
def test_a_known_call_computes_its_places_at_its_launch(alike, monkeypatch):
    looked, here = [], []
    whole, made = packed.places_of, packed.packed_mods
    monkeypatch.setattr(flex_attention, "places_of", lambda *given: looked.append("places") or whole(*given))
    monkeypatch.setattr(flex_attention, "packed_mods", lambda *given: looked.append("mods") or made(*given))
    # As on a GPU; here Triton's interpreter launches.
    monkeypatch.setattr(packed, "_is_here", lambda offsets: here.append(1) or True)
    monkeypatch.setattr(packed, "_looks", [])
    monkeypatch.setattr(packed, "current_gpu", lambda: offsets([0]).get_device())
    slope = torch.tensor([0.5, 0.25], device=DEVICE)
    for of_q, of_k in [(OF_Q, OF_K), (OF_Q, OF_K), ([0, 1, 2, 30, 30, 64], [0, 0, 40, 41, 80, 96])]:
        if alike:
            of_q = of_k
        q, k, v = tensors(of_q[-1], of_k[-1])
        given = {"cu_seqlens_q": offsets(of_q)} | ({} if alike else {"cu_seqlens_k": offsets(of_k)})
        score_mod = lambda s, b, h, q, kv: s - torch.abs(slope[h]) * (q - kv)  # noqa: E731
        found = nl.attention(q, k, v, score_mod, mask_mod=causal, **given)
        expected = by_sequence(q, k, v, of_q, of_k, score_mod, causal)
        assert (found - expected).abs().max() < 1e-5
    assert looked == ["places", "mods"]
    assert len(here) == (2 if alike else 3)  # of the first call: to know it, and for each of the places
    with pytest.raises(LaunchError, match="float32; expected int32 or int64"):
        nl.attention(q, k, v, cu_seqlens_q=offsets(of_q).float())


def test_no_places_are_computed_in_vain(monkeypatch):
    """Where torch has to see each operator, the call is not known, whatever its places are."""
    q, k, v = tensors(64, 64)
    given = q, k, v, None, causal, False, None, False, None, offsets(OF_Q), None
    monkeypatch.setattr(packed, "token_places", lambda *_: pytest.fail("the places"))
    monkeypatch.setattr(packed, "_is_here", lambda offsets: True)
    monkeypatch.setattr(packed, "_looks", [])
    monkeypatch.setattr(packed, "current_gpu", lambda: offsets([0]).get_device())
    assert known_options.launched_packed(*given) is None  # (it is not known)
    with torch.autograd.forward_ad.dual_level():
        assert known_options.launched_packed(*given) is None
    with FlopCounterMode(display=False):
        assert known_options.launched_packed(*given) is None
    torch.func.vmap(lambda x: known_options.launched_packed(*given) or x)(torch.zeros(2, device=DEVICE))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [1, TOKENS.value - 1, 2 * TOKENS.value + 3])
def test_places_are_those_of_a_search(tokens, dtype):
    generator = torch.Generator().manual_seed(tokens)
    keys = tokens // 2 + 5
    for sequences in (1, 2, 3, 8, 57):
        of_q, of_k = (
            torch.tensor(
                [-1, 0, *torch.randint(0, total + 1, (sequences - 1,), generator=generator).sort().values, total],
                dtype=of,
                device=DEVICE,
            )[1:]  # (not aligned)
            for total, of in ((tokens, dtype), (keys, torch.int32))
        )
        for positions in (True, False):
            found = token_places(of_q, of_k, tokens, keys, positions)
            for total, given, sequence, place in ((tokens, of_q, *found[::2]), (keys, of_k, *found[1::2])):
                every = torch.arange(total, device=DEVICE)
                expected = torch.searchsorted(given[1:].contiguous(), every, right=True)
                assert torch.equal(sequence.long(), expected)
                assert torch.equal(place.long(), every - given[expected] if positions else expected)
            one = token_places(of_q, of_q, tokens, tokens, positions)
            assert torch.equal(one[0], found[0])
            assert torch.equal(one[2], found[2])
            assert one[1] is one[0]
            assert one[3] is one[2]


def test_other_offsets_need_no_compilation(all_compilations):
    q, k, v = tensors(96, 96)
    shared = partial(nl.attention, q, k, v, mask_mod=causal)
    first = shared(cu_seqlens_q=offsets(OF_K))
    given = offsets([0, 96])
    assert (shared(cu_seqlens_q=given) - reference(q, k, v, mask_mod=causal)).abs().max() < 1e-5
    given = offsets([0, 50, 96])
    shared(cu_seqlens_q=given)
    given.copy_(offsets([0, 20, 96]))
    assert (
        shared(cu_seqlens_q=given) - by_sequence(q, k, v, [0, 20, 96], [0, 20, 96], None, causal)
    ).abs().max() < 1e-5
    assert torch.equal(shared(cu_seqlens_q=offsets(OF_K, torch.int64)), first)
    assert len(all_compilations) == 1


@pytest.mark.nightly
def test_tiles_of_other_sequences_are_skipped():
    q, k, v = tensors(256, 256)
    options = {"template": "rolling_update", "block_q": 16, "block_kv": 16}
    nl.attention(q, k, v, mask_mod=causal, cu_seqlens_q=offsets([0, 100, 256]), kernel_options=options)
    text = next(reversed(flex_attention._kernels.values())).kernel.spec.text
    assert "_tiles" in text


@pytest.mark.nightly
def test_groups_of_heads_further_outputs_and_halves():
    q, k, v = tensors(64, 96, groups=2, dtype=torch.float16)
    given = {"cu_seqlens_q": offsets(OF_Q), "cu_seqlens_k": offsets(OF_K), "enable_gqa": True}
    found, lse = nl.attention(q, k, v, return_lse=True, **given)
    assert found.dtype == torch.float16
    assert (found - by_sequence(q, k, v, OF_Q, OF_K)).abs().max() < 5e-3
    assert lse.isneginf().sum() == 2 * 33  # of sequence 2, which has queries and no keys
    k32 = k.float().repeat_interleave(2, 1)
    score = q[:, :, :7].double() @ k32[:, :, :30].double().mT / 4
    assert (lse[:, :, :7] - score.logsumexp(-1)).abs().max() < 1e-2


@pytest.mark.nightly
def test_in_a_graph():
    torch._dynamo.reset()

    def packed(q, k, v, of_q, of_k, bias):
        return nl.attention(q * 2, k, v, bias, mask_mod=causal, cu_seqlens_q=of_q, cu_seqlens_k=of_k)

    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    q, k, v = tensors(64, 96)
    bias = MODS["alibi"][0]
    for of_q, of_k in ((OF_Q, OF_K), ([0, 1, 2, 3, 4, 64], [0, 50, 60, 70, 80, 96])):
        found = compiled(q, k, v, offsets(of_q), offsets(of_k), bias)
        assert (found - by_sequence(q * 2, k, v, of_q, of_k, bias, causal)).abs().max() < 1e-5
    alike = torch.compile(partial(packed, of_k=None, bias=None), backend="aot_eager", fullgraph=True)
    q, k, v = tensors(96, 96)
    found = alike(q, k, v, offsets(OF_K))
    assert (found - by_sequence(q * 2, k, v, OF_K, OF_K, None, causal)).abs().max() < 1e-5
    torch._dynamo.reset()


REFUSED = {
    "no tensor": ({"cu_seqlens_q": [0, 64]}, r"cu_seqlens_q is a list; expected a torch.Tensor of int32"),
    "keys alone": ({"cu_seqlens_k": offsets([0, 96])}, r"cu_seqlens_k without cu_seqlens_q"),
    "floats": ({"cu_seqlens_q": torch.tensor([0.0, 64.0])}, r"dtype torch.float32; expected int32"),
    "one offset": (
        {"cu_seqlens_q": offsets([64])},
        r"shape \(1,\) and dtype torch.int32; expected int32 or int64",
    ),
    "lengths differ": ({"cu_seqlens_q": offsets([0, 64])}, r"q has 64 tokens and k 96; with cu_seqlens_q alone"),
    "other numbers of sequences": (
        {"cu_seqlens_q": offsets([0, 64]), "cu_seqlens_k": offsets([0, 3, 96])},
        r"cu_seqlens_k has 3 offsets and cu_seqlens_q 2; expected the same number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    given, match = REFUSED[name]
    with pytest.raises(LaunchError, match=match):
        nl.attention(*tensors(64, 96), **given)


@pytest.mark.skipif(DEVICE != "cpu", reason="values on a GPU are not looked at")
@pytest.mark.parametrize("values", [[1, 64], [0, 63], [0, 65], [0, 40, 39, 64], [0, *range(2, 20), 60]])
def test_offsets_that_are_none(values):
    k = tensors(64, 96)[1:]
    with pytest.raises(
        LaunchError, match=r"cu_seqlens_q is \[.*\]; expected offsets that start with 0, .* end with 64"
    ):
        nl.attention(tensors(64, 96)[0], *k, cu_seqlens_q=offsets(values), cu_seqlens_k=offsets(values))


@pytest.mark.skipif(DEVICE != "cpu", reason="values on a GPU are not looked at")
def test_offsets_that_are_none_while_another_thread_compiles():
    def refused() -> None:
        q, k, v = tensors(64, 64)
        with pytest.raises(LaunchError, match=r"expected offsets that start with 0"):
            nl.attention(q, k, v, cu_seqlens_q=offsets([0, 63]))

    while_another_compiles(refused)


def test_a_batch_and_a_block_mask_are_refused():
    from torch.nn.attention.flex_attention import create_block_mask

    q = torch.zeros(2, 2, 32, 16, device=DEVICE)
    with pytest.raises(LaunchError, match="argument q has batch 2; expected 1, since cu_seqlens_q"):
        nl.attention(q, q, q, cu_seqlens_q=offsets([0, 32]))
    mask = create_block_mask(causal, None, None, 32, 32, device=DEVICE)
    with pytest.raises(LaunchError, match="got cu_seqlens_q and block_mask"):
        nl.attention(q[:1], q[:1], q[:1], block_mask=mask, cu_seqlens_q=offsets([0, 32]))


# -- positions from the start of a sequence ---------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(40))
def test_comparisons_of_relative_positions(seed):
    """A random comparison is the plain one wherever query and key have one start, also after changes in place."""
    drawn = random.Random(seed)
    start = np.repeat([0, 5, 11], [5, 6, 9])
    q, kv = np.arange(20)[:, None], np.arange(20)[None, :]
    plain = Scalar(q - start[:, None]), Scalar(kv - start[None, :])
    relative = tuple(Relative(p.value, Scalar(at), 1) for p, at in zip(plain, (q, kv), strict=True))
    text = _comparison(drawn)
    found, expected = (eval(text, {"q": of_q, "kv": of_kv}) for of_q, of_kv in (relative, plain))
    same = start[:, None] == start[None, :]
    assert (np.broadcast_to(found.value, same.shape) == expected.value)[same].all(), text


def _comparison(drawn: random.Random) -> str:
    def value(depth: int) -> str:
        if depth == 0 or drawn.random() < 0.2:
            return drawn.choice(["q", "kv", "q", "kv", str(drawn.randint(-3, 3)), "(q // 2)"])
        a, b = value(depth - 1), value(depth - 1)
        return drawn.choice([f"({a} + {b})", f"({a} - {b})", f"(-{a})", f"abs({a})", f"({a} * {b})"])

    at = ["q", "kv"]
    drawn.shuffle(at)
    operator = drawn.choice(["<", "<=", ">", ">=", "==", "!="])
    return f"{at[0]} + {value(2)} {operator} {at[1]} - {value(2)}"


def test_a_position_that_is_changed_in_place_is_compared_by_its_value():
    q = Relative(np.arange(4), Scalar(np.arange(4) + 10), 1)
    kv = Relative(np.arange(4), Scalar(np.arange(4) + 10), 1)
    q.add_(3)
    assert (q > kv).value.all()
