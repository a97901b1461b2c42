"""Gradients of `attention`: those of the float64 definition, for q, k, v and everything that a mod captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch
from attention_reference import DEVICE, causal, reference, tensors
from captured_parameters import PARAMETERS, pair_bias
from gradient_reference import check, leaf

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import flex_attention, recording

pytestmark = pytest.mark.filterwarnings("ignore:attention copies")


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARAMETERS)
def test_what_a_mod_captures_gets_its_gradient(name):
    make, parameter = PARAMETERS[name]
    check(tensors((1, 2, 20, 8)), lambda *given: (make(*given), causal), (parameter,))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("q", "kv"), [((2, 2, 20, 8), None), ((1, 4, 19, 8), (1, 2, 19, 8)), ((1, 2, 7, 8), (1, 2, 33, 8))]
)
@pytest.mark.parametrize("masked", [False, True])
def test_shapes_and_groups(q, kv, masked):
    check(tensors(q, kv), lambda: (None, causal if masked else None), enable_gqa=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
def test_dtypes(dtype, limit):
    check(tensors((1, 2, 40, 16), dtype=dtype), lambda: (None, causal), limit=limit)


@pytest.mark.nightly
def test_widths_differ():
    q, k = tensors((1, 2, 20, 8))[:2]
    check([q, k, tensors((1, 2, 20, 5))[0]], lambda: (None, causal))


@pytest.mark.nightly
def test_the_pair_bias_of_alphafold():
    """Each row of a pair representation attends along itself, with a bias of pairs; a gate follows."""
    q, k, v = (t.requires_grad_() for t in tensors((5, 2, 13, 8)))
    bias, gate, seen = leaf(2, 13, 13), leaf(5, 2, 13, 8), torch.arange(13, device=DEVICE) < 11

    def gated(attend: Callable[..., torch.Tensor], q, k, v, bias, gate):
        mods = lambda score, b, h, i, j: score + bias[h, i, j], lambda b, h, i, j: seen[j]
        return (gate.sigmoid() * attend(q, k, v, *mods)).square().sum()

    every = q, k, v, bias, gate
    ours = lambda q, k, v, score, mask: nl.attention(q, k, v, score, mask_mod=mask)  # noqa: E731
    found = torch.autograd.grad(gated(ours, *every), every)
    wide = [t.detach().double().requires_grad_() for t in every]
    for a, b in zip(found, torch.autograd.grad(gated(reference, *wide), wide), strict=True):
        assert (a - b).norm() < 1e-5 * b.norm()


@pytest.mark.nightly
def test_sinks_get_gradients_through_the_log_sum_exp():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    sinks = leaf(2)
    out, lse = nl.attention(q, k, v, mask_mod=causal, return_lse=True)
    found = torch.autograd.grad((out * (lse - sinks[:, None]).sigmoid()[..., None]).sum(), (q, k, v, sinks))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v, sinks)]
    hidden = torch.ones(20, 20, device=DEVICE).triu(1).bool()
    scores = (wide[0] @ wide[1].mT * 8**-0.5).masked_fill(hidden, -torch.inf)
    with_sink = torch.cat([scores, wide[3][:, None, None].expand(1, -1, 20, 1)], -1).softmax(-1)[..., :-1]
    for a, b in zip(found, torch.autograd.grad((with_sink @ wide[2]).sum(), wide), strict=True):
        assert (a - b).norm() < 1e-5 * b.norm()


@pytest.mark.nightly
def test_cotangents_of_any_strides():
    """Expanded, as `sum` gives them, transposed, a part of a larger tensor, and of another dtype's result."""
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    out = nl.attention(q, k, v, mask_mod=causal)
    plain = torch.randn(1, 2, 20, 8, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    whole = torch.cat([plain, plain], -1)
    for given in (
        torch.ones((), device=DEVICE).expand(1, 2, 20, 8),
        plain.transpose(2, 3).contiguous().transpose(2, 3),
        plain.transpose(1, 2).contiguous().transpose(1, 2),
        whole[..., 8:],
        plain[..., :1].expand(1, 2, 20, 8),
    ):
        found = torch.autograd.grad(out, (q, k, v), given, retain_graph=True)
        expected = torch.autograd.grad(out, (q, k, v), given.contiguous(), retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    twice = torch.autograd.grad(out.transpose(1, 2).reshape(1, 20, 16).matmul(plain.view(1, 16, 20)).sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    total = reference(*wide, None, causal).transpose(1, 2).reshape(1, 20, 16).matmul(plain.double().view(1, 16, 20))
    for a, b in zip(twice, torch.autograd.grad(total.sum(), wide), strict=True):
        assert (a - b).norm() < 1e-5 * b.norm()


@pytest.mark.nightly
def test_rows_that_see_no_key_have_gradient_0():
    q, k, v = (t.requires_grad_() for t in tensors((1, 1, 9, 8)))
    nl.attention(q, k, v, mask_mod=lambda b, h, q, kv: (q >= kv) & (q != 4)).sum().backward()
    assert not q.grad[0, 0, 4].any()
    assert torch.isfinite(k.grad).all()
    given = torch.randn(1, 1, 9, 8, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    given[0, 0, 4] = 0
    hiding, seeing = (lambda b, h, q, kv: (q >= kv) & (q != 4)), causal
    found, expected = (
        torch.autograd.grad(nl.attention(q, k, v, mask_mod=mask), (q, k, v), given) for mask in (hiding, seeing)
    )
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


@pytest.mark.nightly
def test_views_of_a_packed_projection():
    packed = torch.randn(1, 20, 3, 2, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    q, k, v = (packed[:, :, n].transpose(1, 2) for n in range(3))
    out = nl.attention(q, k, v, mask_mod=causal)
    given = torch.randn_like(out)
    found = torch.autograd.grad(out, packed, given)[0]
    wide = packed.detach().double().requires_grad_()
    expected = reference(*(wide[:, :, n].transpose(1, 2) for n in range(3)), None, causal)
    assert (found - torch.autograd.grad(expected, wide, given.double())[0]).norm() < 1e-5 * found.norm()


def test_the_log_sum_exp_has_a_gradient():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    out, lse = nl.attention(q, k, v, mask_mod=causal, return_lse=True)
    found = torch.autograd.grad(out.sum() + (lse * lse).sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    hidden = torch.ones(20, 20, device=DEVICE).triu(1).bool()
    scores = (wide[0] @ wide[1].mT * 8**-0.5).masked_fill(hidden, -torch.inf)
    total = (scores.softmax(-1) @ wide[2]).sum() + (scores.logsumexp(-1) ** 2).sum()
    for ours, theirs in zip(found, torch.autograd.grad(total, wide), strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_only_what_needs_a_gradient_is_computed():
    q, k, v = tensors((1, 2, 20, 8))
    v.requires_grad_()
    nl.attention(q, k, v, mask_mod=causal).sum().backward()
    assert q.grad is None
    assert k.grad is None
    check([*(t.detach() for t in (q, k)), v.detach()], lambda: (None, causal))


@pytest.mark.nightly
def test_a_number_that_changes_before_the_backward_pass_has_no_effect_on_it():
    layers = [tensors((1, 2, 6, 8)) for _ in range(2)]
    leaves = [t.requires_grad_() for layer in layers for t in layer]
    wide = [t.detach().double().requires_grad_() for t in leaves]

    def total(attend: Callable[..., torch.Tensor], own: Sequence[torch.Tensor]) -> torch.Tensor:
        summed = torch.zeros((), dtype=own[0].dtype, device=DEVICE)
        for layer, slope in enumerate((0.5, 2.0)):  # every mod reads the variable of the loop
            out = attend(*own[3 * layer : 3 * layer + 3], lambda s, b, h, q, kv: s * slope, None)  # noqa: B023
            summed = summed + (out**2).sum()
        return summed

    found = torch.autograd.grad(total(nl.attention, leaves), leaves)
    for ours, theirs in zip(found, torch.autograd.grad(total(reference, wide), wide), strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_the_gradient_of_a_gradient_is_refused():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    out = nl.attention(q, k, v, mask_mod=causal)
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(LaunchError, match=r"gradient of a gradient(.|\n)*torch's own operations"):
        torch.autograd.grad(first.sum(), q)


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the names of operators of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "neptune_lab":
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_operators_and_other_calls_launch_kernels():
    """The results are the same; so are those of a pass that a mode sees after one that it did not."""
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    given = torch.randn(1, 2, 20, 8, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    out = nl.attention(q, k, v, mask_mod=causal)
    direct = torch.autograd.grad(out, (q, k, v), given, retain_graph=True)
    with Seen() as first:
        seen = torch.autograd.grad(nl.attention(q, k, v, mask_mod=causal), (q, k, v), given)
    assert len(first.names) == 2
    with Seen() as second:
        later = torch.autograd.grad(out, (q, k, v), given)
    assert len(second.names) == 1
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(direct, seen, later, strict=True))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("vmapped", [False, True])
def test_batches_of_cotangents(vmapped: bool):
    """torch.autograd.grad(is_grads_batched=True) has a vmap of its own."""
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    out = nl.attention(q, k, v, mask_mod=causal)
    given = torch.randn(3, 1, 2, 20, 8, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    single = [torch.autograd.grad(out, q, one, retain_graph=True)[0] for one in given]
    if vmapped:
        found = torch.vmap(lambda one: torch.autograd.grad(out, q, one, retain_graph=True)[0])(given)
    else:
        found = torch.autograd.grad(out, q, given, is_grads_batched=True)[0]
    assert torch.allclose(found, torch.stack(single), atol=1e-5)


def test_changes_in_place_of_what_is_kept_are_refused():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    for make in (lambda: q * 1, lambda: None):
        kept = make()
        out = nl.attention(q if kept is None else kept, k, v, mask_mod=causal)
        with torch.no_grad():
            (out if kept is None else kept).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(out.sum(), (k, v))


@pytest.mark.nightly
def test_gradients_are_the_same_in_each_run():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 40, 8)))
    runs = [torch.autograd.grad(nl.attention(q, k, v, mask_mod=causal).sum(), (q, k, v)) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.nightly
def test_gradients_in_any_order_are_asked_for(monkeypatch):
    """The kernel of both nests is asked for once, and not if torch is to be deterministic; there is none on a CPU."""
    asked: list[Any] = []
    monkeypatch.setattr(recording, "_joint_kernel", lambda op: asked.append(op))
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    options = {"deterministic": False}

    def gradients(**more) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(nl.attention(q, k, v, mask_mod=causal, **more).sum(), (q, k, v))

    expected = gradients()
    assert not asked
    torch.use_deterministic_algorithms(True)
    try:
        found = [gradients(kernel_options=options)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert not asked
    found += [gradients(kernel_options=options) for _ in range(3)]
    assert len(asked) == 1
    for mode in (False, True):  # (operators of torch: each has a backward pass of its own)
        with Seen() as seen:
            found.append(gradients(kernel_options={"deterministic": mode}))
        assert len(seen.names) == 2
    assert all(torch.equal(a, b) for one in found for a, b in zip(one, expected, strict=True))
    with pytest.raises(LaunchError, match="deterministic=3: expected True or False"):
        gradients(kernel_options={"deterministic": 3})
    with torch.no_grad():
        assert nl.attention(q, k, v, mask_mod=causal, kernel_options=options).shape == q.shape


@pytest.mark.nightly
def test_scaled_dot_product_attention_and_its_mask():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    mask = leaf(20, 20)
    inputs = q, k, v, mask
    found = torch.autograd.grad(nl.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum(), inputs)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    for ours, expected in zip(found, torch.autograd.grad(theirs.sum(), inputs), strict=True):
        assert (ours - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.nightly
def test_masks_of_the_least_float():
    """As models write them; also a row that is masked completely, whose gradients are finite."""
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 20, 8)))
    least = torch.finfo(torch.float32).min
    mask = torch.zeros(20, 20, device=DEVICE).masked_fill(torch.ones(20, 20, device=DEVICE).triu(1).bool(), least)
    mask[3] = least
    given = torch.randn(1, 2, 20, 8, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    given[:, :, 3] = 0
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    expected = torch.autograd.grad(theirs, (q, k, v), given)
    written = lambda s, b, h, i, j: torch.where((i >= j) & (i != 3), s, least)  # noqa: E731
    for out in (nl.scaled_dot_product_attention(q, k, v, attn_mask=mask), nl.attention(q, k, v, score_mod=written)):
        found = torch.autograd.grad(out, (q, k, v), given, retain_graph=True)
        assert all((a - b).norm() < 1e-5 * b.norm() for a, b in zip(found, expected, strict=True))
        assert all(torch.isfinite(t).all() for t in torch.autograd.grad(out.sum(), (q, k, v)))


def test_transforms_of_captured_tensors_are_refused():
    q, k, v = tensors((1, 2, 20, 8))
    with pytest.raises(LaunchError, match=r"a transform of torch\.func"):
        torch.func.grad(lambda bias: nl.attention(q, k, v, score_mod=pair_bias(bias)).sum())(leaf(2, 20, 20).detach())


def test_tensors_of_8_bits_are_refused():
    q, k, v = tensors((1, 2, 20, 8))
    with pytest.raises(LaunchError, match=r"8 bits has no backward pass(.|\n)*bfloat16"):
        nl.attention(q.requires_grad_(), k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn))


def test_backward_kernels_are_found_on_disk(monkeypatch):
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 24, 8)))

    def gradients():
        flex_attention.forget()
        return torch.autograd.grad(nl.attention(q, k, v, mask_mod=causal).sum(), (q, k, v))

    first = gradients()
    compiled: list[str] = []
    before = recording.stored.put
    monkeypatch.setattr(recording.stored, "put", lambda key, entry: (compiled.append(key), before(key, entry)))
    assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
    assert not compiled


def test_a_backward_pass_of_too_many_stages_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A softmax of 21 elements in a mod took minutes: each element that a score reads has a stage of its own."""
    monkeypatch.setattr(recording, "_MOST_STAGES", 8)
    x, table = torch.randn(1, 1, 4, 4), torch.randn(5, requires_grad=True)
    out = nl.attention(x, x, x, score_mod=lambda score, b, h, q, kv: score * table.mean())
    with pytest.raises(LaunchError, match="score_mod reads many elements of 'table' for each score") as caught:
        out.sum().backward()
    assert "before the call" in caught.value.help
