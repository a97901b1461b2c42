"""Gradients of `attention` inside models and graphs of torch.compile: those of eager attention."""

from __future__ import annotations

import copy

import pytest
import torch
from attention_reference import DEVICE, causal, tensors
from captured_parameters import alibi, pair_bias
from gradient_reference import leaf
from tiny_generators import MODELS, pair

import neptune_lab as nl

pytestmark = pytest.mark.filterwarnings("ignore:attention copies")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["Llama", "T5"] if "Llama" in MODELS else list(MODELS)[:2])
def test_models_of_transformers_have_eager_s_gradients(name):
    nl.register_attention()
    eager, ours = pair(name)
    ids = torch.randint(2, 64, (2, 11), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    more = {"decoder_input_ids": ids[:, :5]} if name == "T5" else {}
    for model in (eager, ours):
        model.train(False)
        model(input_ids=ids, **more).logits.float().square().mean().backward()
    exact = copy.deepcopy(eager).double()
    exact.zero_grad()
    exact(input_ids=ids, **more).logits.square().mean().backward()
    for (key, a), b, c in zip(eager.named_parameters(), ours.parameters(), exact.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), key
        if a.grad is not None:
            theirs, own = ((g.double() - c.grad).norm() for g in (a.grad, b.grad))
            # T5 does not scale its scores, and a row's log-sum-exp is rounded to 1e-7 of its size.
            assert own <= 3 * theirs + (1e-3 if name == "T5" else 1e-5) * c.grad.norm(), key


@pytest.mark.nightly
def test_a_whole_graph_of_torch_compile_trains():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    slopes = leaf(2)
    score_mod = alibi(slopes)

    def attend(q, k, v):
        return torch.tanh(nl.attention(q * 2, k, v, score_mod=score_mod, mask_mod=causal)).sum()

    every = q, k, v, slopes
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(
        torch.autograd.grad(compiled(q, k, v), every), torch.autograd.grad(attend(q, k, v), every), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-6)
    with torch.no_grad():
        assert not compiled(q, k, v).requires_grad


@pytest.mark.nightly
def test_a_tiny_model_trains_with_the_losses_of_eager():
    """50 steps of Adam on one batch, whose loss falls by more than a half."""
    nl.register_attention()
    ids = torch.randint(2, 64, (2, 11), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    losses = []
    for model in pair("Llama"):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        curve = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            curve.append(float(loss))
        losses.append(curve)
    assert losses[0][-1] < losses[0][0] / 2
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 1e-3


@pytest.mark.nightly
def test_mods_over_tensors_of_the_compiled_function_leave_the_graph_whole():
    """Taken, made of an input, and made of nothing; each gets the gradient that it has without torch.compile."""
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    slopes, bias = leaf(2), leaf(20, 20)

    def attend(q, k, v, slopes, bias):
        steep = torch.exp(slopes) + torch.ones(2, device=DEVICE)
        table = bias.tanh().mT

        def score_mod(score, b, h, q_idx, kv_idx):
            return score * steep[h] + table[q_idx, kv_idx]

        out, lse = nl.attention(q, k, v, score_mod=score_mod, mask_mod=causal, return_lse=True)
        return out.square().sum() + lse.sum()

    every = q, k, v, slopes, bias
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(f(*every), every) for f in (compiled, attend))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    with torch.no_grad():
        assert not compiled(*every).requires_grad


class Biased(torch.nn.Module):
    """Attention whose mod is made in `forward`, over a parameter and over what is computed from one."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.gate = torch.nn.Parameter(leaf(2, 39).detach()), torch.nn.Parameter(leaf(2).detach())

    def forward(self, x: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = x.unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        gate = self.gate.sigmoid()

        def score_mod(score, b, h, q_idx, kv_idx):
            return score * gate[h] + self.bias[h, q_idx - kv_idx + 19]

        return nl.attention(q, k, v, score_mod, cu_seqlens_q=offsets) * 2


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("packed", [False, True])
def test_a_compiled_module_trains_the_parameters_that_its_mods_read(packed: bool):
    model = Biased().to(DEVICE)
    x = leaf(1, 20, 48)
    offsets = torch.tensor([0, 7, 20], dtype=torch.int32, device=DEVICE) if packed else None
    every = x, *model.parameters()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(f(x, offsets).square().sum(), every) for f in (compiled, model))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.nightly
def test_a_mask_of_a_compiled_function_gets_its_gradient():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    mask = leaf(20, 20)

    def attend(q, k, v, mask):
        return nl.scaled_dot_product_attention(q, k, v, attn_mask=mask * 2).square().sum()

    every = q, k, v, mask
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(f(*every), every) for f in (compiled, attend))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.nightly
def test_checkpointing_and_autocast():
    from torch.utils.checkpoint import checkpoint

    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))

    def block(q, k, v):
        return nl.attention(q, k, v, mask_mod=causal)

    direct = torch.autograd.grad(block(q, k, v).sum(), (q, k, v))
    again = torch.autograd.grad(checkpoint(block, q, k, v, use_reentrant=False).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(direct, again, strict=True))
    with torch.autocast(DEVICE, torch.bfloat16):
        half = torch.autograd.grad(block(q @ torch.eye(8, device=DEVICE), k, v).float().sum(), (q, k, v))
    assert all((a - b).norm() < 3e-2 * b.norm() for a, b in zip(half, direct, strict=True))


@pytest.mark.nightly
def test_a_parameter_that_starts_to_need_a_gradient_gets_one_from_a_known_call():
    q, k, v = tensors((1, 2, 20, 8))
    bias = torch.randn(2, 20, 20, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    score_mod = pair_bias(bias)
    for _ in range(3):
        assert not nl.attention(q, k, v, score_mod=score_mod).requires_grad
    bias.requires_grad_()
    nl.attention(q, k, v, score_mod=score_mod).sum().backward()
    assert bias.grad is not None
    assert bias.grad.norm() > 0
