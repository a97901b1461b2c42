"""Gradients of `nl.attention` at all lengths: kernels of the first length, and one for all others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from attention_reference import DEVICE, causal, reference
from gradient_reference import check, leaf

import neptune_lab as nl
from neptune_lab.pytorch import length_training, lengths, recording

pytestmark = pytest.mark.usefixtures("nothing_seen")


@pytest.fixture(autouse=True)
def one_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second length on, kernels for all lengths serve."""
    monkeypatch.setattr(length_training, "OWN_LENGTHS", 1)


def drawn(q_len: int, kv_len: int, heads: int = 2, kv_heads: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (1, heads, q_len, 8), (1, kv_heads, kv_len, 8), (1, kv_heads, kv_len, 8)
    return tuple(torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)


def kernels() -> int:
    """How many kernels with gradients are in use."""
    return len({id(found.kernel) for found in recording._known.values()})


@pytest.fixture
def made_for_all(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels for all lengths that were compiled."""
    names: list[str] = []

    def counted(*args: Any, **options: Any):
        names.append((kernel := compiled(*args, **options)).spec.name)
        return kernel

    compiled = length_training.compiled
    monkeypatch.setattr(length_training, "compiled", counted)
    return names


def sweep(pairs: Sequence[tuple[int, int]], mods: Callable[..., Any] = lambda: (None, None), **options: Any) -> None:
    for q_len, kv_len in pairs:
        check(drawn(q_len, kv_len), mods, **options)


def some(count: int, together: bool, most: int = 150) -> list[tuple[int, int]]:
    """Drawn lengths, ends of tiles among them; not 1, of which the gradient of the queries is 0."""
    rng = random.Random(count)
    pairs = [(64, 64), (65, 65), (2, 2), (128, 128)]
    pairs += [(n := rng.randint(2, most), n if together else rng.randint(2, most)) for _ in range(count)]
    return pairs


@pytest.mark.nightly
def test_two_kernels_serve_every_length_of_causal_attention(made_for_all: list[str]):
    sweep([(40, 40), *((n, n) for n in (41, 64, 65, 2, 130))], lambda: (None, causal))
    assert (kernels(), len(made_for_all)) == (2, 2)
    assert lengths.refusals() == []


@pytest.mark.nightly
def test_the_first_lengths_have_kernels_of_their_own(made_for_all: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(length_training, "OWN_LENGTHS", 2)
    sweep([(20, 20), (21, 21), (20, 20)], lambda: (None, causal))
    assert (kernels(), made_for_all) == (2, [])


@pytest.mark.nightly
def test_numbers_that_change_before_the_backward_pass_leave_the_kernel_of_the_forward_pass(
    made_for_all: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(length_training, "OWN_LENGTHS", 0)
    slope = 1.0

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s * slope

    sweep([(21, 21)], lambda: (score_mod, None))
    q, k, v = drawn(22, 22)
    wide = [t.double() for t in (q, k, v)]
    out, exact = nl.attention(q, k.requires_grad_(), v, score_mod=score_mod), reference(*wide, score_mod, None)
    wide[1].requires_grad_()
    (theirs,) = torch.autograd.grad((reference(*wide, score_mod, None) ** 2).sum(), wide[1])
    assert (out - exact).norm() < 1e-5 * exact.norm()
    slope = 3.0
    (ours,) = torch.autograd.grad((out**2).sum(), k)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert len(made_for_all) == 2


@pytest.mark.nightly
def test_the_third_length_gets_a_kernel_for_all(made_for_all: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(length_training, "OWN_LENGTHS", 2)
    sweep([(20, 20), (21, 21)], lambda: (None, causal))
    sweep([(22, 22), (20, 20), (23, 23)], lambda: (None, causal))
    assert (kernels(), len(made_for_all)) == (3, 2)


@pytest.mark.nightly
def test_two_kernels_serve_every_pair_of_lengths(made_for_all: list[str]):
    sweep([(40, 50), (41, 51), (64, 65), (7, 130), (130, 3), (97, 64)])
    assert (kernels(), len(made_for_all)) == (2, 2)


@pytest.mark.nightly
def test_slopes_get_gradients_by_kernels_of_each_length():
    """Theirs are sums over queries and keys, of which there is no kernel for all lengths."""
    slopes = leaf(2)
    for n in (20, 21):
        check(drawn(n, n), lambda s: (lambda x, b, h, q, kv: x + s[h] * (kv - q), causal), (slopes,))
    assert kernels() == 2


@pytest.mark.nightly
def test_captured_tensors_vary_with_the_lengths(made_for_all: list[str]):
    for n in (40, 41, 66, 9):
        check(drawn(n, n), lambda t: (lambda x, b, h, q, kv: x + t[h, q, kv], None), (leaf(2, n, n),))
    assert (kernels(), len(made_for_all)) == (2, 2)


@pytest.mark.nightly
def test_dynamic_true_has_one_kernel(made_for_all: list[str]):
    sweep([(40, 40), (41, 41), (100, 100)], lambda: (None, causal), dynamic=True)
    assert (kernels(), len(made_for_all)) == (1, 2)


@pytest.mark.nightly
def test_a_graph_of_torch_compile_whose_sizes_are_symbols_has_kernels_of_its_length(
    made_for_all: list[str], monkeypatch: pytest.MonkeyPatch
):
    """A graph that records gradients is for one length, so its kernels may be, too, as outside of graphs."""
    monkeypatch.setattr(length_training, "OWN_LENGTHS", 8)
    torch._dynamo.reset()
    attend = torch.compile(nl.scaled_dot_product_attention, backend="eager", fullgraph=True)
    for n in (4, 5):
        q, k, v = (t.requires_grad_() for t in drawn(n, n))
        bias = leaf(n, n)
        attend(q, k, v, bias).sum().backward()
        want = torch.nn.functional.scaled_dot_product_attention(*(t.detach().double() for t in (q, k, v, bias)))
        assert (attend(q, k, v, bias) - want).abs().max() < 1e-5
    assert made_for_all == []
    torch._dynamo.reset()


@pytest.mark.nightly
def test_dynamic_false_has_kernels_of_each_length(made_for_all: list[str]):
    sweep([(20, 20), (21, 21)], lambda: (None, causal), dynamic=False)
    assert (kernels(), made_for_all) == (2, [])


@pytest.mark.nightly
def test_some_inputs_alone_get_gradients_at_every_length():
    for n in (40, 41, 70):
        q, k, v = drawn(n, n)
        nl.attention(q, k.requires_grad_(), v, mask_mod=causal).sum().backward()
        wide = k.detach().double().requires_grad_()
        out = torch.nn.functional.scaled_dot_product_attention(q.double(), wide, v.double(), is_causal=True)
        (want,) = torch.autograd.grad(out.sum(), wide)
        assert k.grad is not None
        assert float((k.grad - want).norm() / want.norm()) < 1e-5


@pytest.mark.nightly
def test_an_output_that_nobody_reads_has_cotangent_0_at_every_length():
    for n in (40, 41, 70):
        q, k, v = (t.requires_grad_() for t in drawn(n, n))
        _, lse = nl.attention(q, k, v, return_lse=True)
        wide = [t.detach().double().requires_grad_() for t in (q, k)]
        exact = (wide[0] @ wide[1].transpose(-1, -2) / 8**0.5).logsumexp(-1)
        found = torch.autograd.grad(lse.sum(), (q, k))
        for ours, theirs in zip(found, torch.autograd.grad(exact.sum(), wide), strict=True):
            assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    assert kernels() == 2


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [1, 1 << 40], ids=["in registers", "in memory"])
def test_heads_that_share_keys(rows: int, made_for_all: list[str], monkeypatch: pytest.MonkeyPatch):
    from neptune_lab.operators.reverse_mode import groups

    monkeypatch.setattr(groups, "FEWEST_ROWS", rows)
    for n in (40, 41, 70):
        check(drawn(n, n, heads=4), lambda: (None, causal), enable_gqa=True)
    assert (kernels(), len(made_for_all)) == (2, 2)


def test_a_call_without_a_kernel_for_all_lengths_has_one_of_its_own():
    def wide_window(b, h, q, kv):
        return (q >= kv) & (q - kv < 3000)

    sweep([(20, 20), (21, 21)], lambda: (None, wide_window))
    assert kernels() == 2
    assert "compares positions with" in lengths.refusals()[0]


@pytest.mark.nightly
@pytest.mark.parametrize("together", [True, False])
def test_50_lengths_have_few_kernels(together: bool, made_for_all: list[str]):
    sweep(some(50, together), lambda: (None, causal if together else None))
    # (the first pairs are equal, so there is a kernel for equal lengths too)
    assert (kernels(), len(made_for_all)) == ((2, 2) if together else (3, 4))
