"""`nl.attention`, eagerly: numbers, what is compiled when, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import DEVICE, causal, make_bias, reference, tensors

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.pytorch import arguments, flex_attention
from neptune_lab.pytorch.flex_attention import attention as attend


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_grouped_heads_a_mask_and_a_scale(dtype):
    q, k, v = tensors((2, 4, 8, 16), (2, 2, 24, 16), dtype)
    out = attend(q, k, v, mask_mod=causal, enable_gqa=True, scale=0.5)
    assert (out.dtype, out.shape) == (dtype, q.shape)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    assert (out.double() - reference(q, k, v, None, causal, 0.5)).abs().max() < tolerance


def test_a_captured_tensor_is_read_at_each_call_and_compiled_for_once(compilations):
    q, k, v = tensors()
    slopes = torch.tensor([0.5, 0.25], device=DEVICE)
    for values in ([0.5, 0.25], [1.5, -0.25]):
        slopes.copy_(torch.tensor(values))
        out = attend(q, k, v, score_mod=make_bias(slopes), mask_mod=causal)
        assert (out - reference(q, k, v, make_bias(slopes), causal)).abs().max() < 1e-5
    other = torch.tensor([0.0, 2.0], device=DEVICE)  # another tensor, of the same shape
    out = attend(q, k, v, score_mod=make_bias(other), mask_mod=causal)
    assert (out - reference(q, k, v, make_bias(other), causal)).abs().max() < 1e-5
    assert len(compilations) == 1
    attend(q, k, v, score_mod=make_bias(slopes.half()), mask_mod=causal)
    assert len(compilations) == 2


@pytest.mark.nightly
def test_captured_integers_and_conditions_come_in_the_kernels_dtype():
    q, k, v = tensors((1, 1, 16, 16))
    doc = torch.arange(16, device=DEVICE) // 4
    seen = torch.arange(16, device=DEVICE) % 3 != 1
    first = torch.zeros(16, dtype=torch.bool, device=DEVICE).index_fill_(0, torch.arange(0, 16, 4, device=DEVICE), True)

    def mask(b, h, q, kv):
        return (doc[q] == doc[kv]) & (seen[kv] | first[kv])

    assert (attend(q, k, v, mask_mod=mask) - reference(q, k, v, None, mask)).abs().max() < 1e-5
    doc += 1
    doc[3] = 9
    first[3] = True
    assert (attend(q, k, v, mask_mod=mask) - reference(q, k, v, None, mask)).abs().max() < 1e-5


def test_a_new_number_in_a_mod_compiles_anew_and_an_old_one_does_not(compilations):
    q, k, v = tensors()
    slopes = torch.tensor([0.5, 0.25], device=DEVICE)
    for width in (3, 5, 3):
        out = attend(q, k, v, score_mod=make_bias(slopes, width))
        assert (out - reference(q, k, v, make_bias(slopes, width))).abs().max() < 1e-5
    assert len(compilations) == 2


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_a_position_without_axes_is_compiled_for_once_and_never_read_on_the_host(compilations, monkeypatch, dtype):
    q, k, v = tensors((1, 1, 1, 16), (1, 1, 16, 16))
    position, on = torch.tensor(3, dtype=dtype, device=DEVICE), torch.tensor(True, device=DEVICE)

    def mask(b, h, q, kv):
        return (kv <= q + position) & on

    def refuse(*arguments):
        raise AssertionError("a tensor was read on the host")

    for value in (3, 4, 15, 0):
        position.fill_(value)
        out = attend(q, k, v, mask_mod=mask)
        assert (out - reference(q, k, v, None, mask)).abs().max() < 1e-5
        for name in ("item", "cpu", "tolist"):  # from now on: the first call compiled
            monkeypatch.setattr(torch.Tensor, name, refuse)
    on.fill_(False)
    out = attend(q, k, v, mask_mod=mask)
    monkeypatch.undo()
    assert (out == 0).all()
    assert len(compilations) == 1


def test_captured_tensors_come_to_the_kernel_as_they_are():
    q, k, v = tensors((1, 1, 16, 16))
    doc = torch.arange(16, device=DEVICE) // 4
    first, bias = doc == 0, torch.zeros(16, device=DEVICE, dtype=torch.bfloat16)

    def mask(b, h, q, kv):
        return (doc[q] == doc[kv]) | first[kv]

    attend(q, k, v, score_mod=lambda score, b, h, q, kv: score + bias[kv], mask_mod=mask)
    found = next(reversed(flex_attention._kernels.values()))
    assert [t.dtype for t in found.kernel.spec.inputs[3:]] == ["bfloat16", "int64", "bool"]
    for tensor in (bias, doc, first):
        assert arguments.as_input(tensor, tensor.device, tensor.dtype) is tensor


@pytest.mark.nightly
def test_numpys_arrays_and_numbers_without_axes(compilations):
    q, k, v = tensors((1, 1, 8, 16))
    width = np.array(3)
    for value in (3, 5):
        width.fill(value)
        mask = lambda b, h, q, kv: q - kv < width  # noqa: E731
        plain = lambda b, h, q, kv, n=value: q - kv < n  # noqa: E731
        out = attend(q, k, v, mask_mod=mask)
        assert (out - reference(q, k, v, None, plain)).abs().max() < 1e-5
    assert len(compilations) == 1


@pytest.mark.gpu
def test_a_position_on_the_cpu_goes_to_the_gpu():
    q, k, v = tensors((1, 1, 1, 16), (1, 1, 16, 16))
    position = torch.tensor(3)
    for value in (3, 9):
        position.fill_(value)
        out = attend(q, k, v, mask_mod=lambda b, h, q, kv: kv <= q + position)
        assert (out - reference(q, k, v, None, lambda b, h, q, kv, n=value: kv <= q + n)).abs().max() < 1e-3


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q, kv: kv + 20 <= q,  # causal with fewer keys than queries
        lambda b, h, q, kv: (q < 21) & (kv < 21),  # padding
        lambda b, h, q, kv: (q // 12 == kv // 12) & (kv < q),  # the first query of each document
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_query_that_sees_no_key_gets_zero(mask, dtype):
    q, k, v = tensors(dtype=dtype)
    out = attend(q, k, v, mask_mod=mask)
    expected = reference(q, k, v, None, mask)
    empty = expected.isnan()
    assert empty.any()
    assert (out[empty] == 0).all()
    assert (out - expected)[~empty].abs().max() < {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]


def test_two_spellings_of_one_definition_are_one_kernel(compilations):
    q, k, v = tensors()
    attend(q, k, v, mask_mod=lambda b, h, i, j: i >= j)
    attend(q, k, v, mask_mod=lambda batch, head, one, two: two <= one)
    assert len(compilations) == 2
    first, second = flex_attention._kernels.values()
    assert first is second
    flex_attention.forget()
    attend(q, k, v, mask_mod=lambda batch, head, one, two: two <= one)
    assert len(compilations) == 2  # the other spelling is known on disk, too


def test_an_object_whose_changes_cannot_be_seen(compilations):
    class Settings:
        width = 3

    q, k, v = tensors()
    settings = Settings()

    def mask(b, h, q, kv):
        return (q >= kv) & (q - kv < settings.width)

    first = attend(q, k, v, mask_mod=mask)
    assert torch.equal(attend(q, k, v, mask_mod=mask), first)
    settings.width = 4
    out = attend(q, k, v, mask_mod=mask)
    assert (out - reference(q, k, v, None, mask)).abs().max() < 1e-5
    assert (out - first).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        (lambda q, k, v: (q.cpu().numpy(), k, v), {}, "argument q is an ndarray; expected a torch.Tensor"),
        (lambda q, k, v: (q, k.to("meta"), v), {}, "argument k is on meta; expected .*, where q is"),
        (lambda q, k, v: (q.to("meta"), k.to("meta"), v.to("meta")), {}, "q is on meta, where tensors have no values"),
        (lambda q, k, v: (q[0], k, v), {}, r"argument q has shape \(2, 32, 16\); expected \(batch, heads, length"),
        (lambda q, k, v: (q, k[:, :, :0], v), {}, r"argument k has shape \(1, 2, 0, 16\); .*none of them 0"),
        (lambda q, k, v: (q, k, v.to(torch.int16)), {}, "argument v has dtype torch.int16; expected torch.float16"),
        (lambda q, k, v: (q, k, v.repeat(3, 1, 1, 1)), {}, r"argument v has batch 3; expected 1, which k has"),
        (lambda q, k, v: (q.double(), k, v), {}, "argument q has dtype torch.float64; expected torch.float16"),
        (lambda q, k, v: (q.repeat(3, 1, 1, 1), k.repeat(2, 1, 1, 1), v), {}, r"k has batch 2; expected 3"),
        (lambda q, k, v: (q, k[..., :8], v), {}, "argument k has head_dim 8; expected 16"),
        (lambda q, k, v: (q, k, v[:, :, :8]), {}, "argument v has 2 heads and length 8; expected 2 and 32"),
        (lambda q, k, v: (q, k[:, :1], v[:, :1]), {}, r"k has 1 heads; expected 2, which q has\n.*enable_gqa=True"),
        (lambda q, k, v: (q[:, :1], k, v), {"enable_gqa": True}, "k has 2 heads; expected a divisor of 1"),
    ],
)  # fmt: skip
def test_arguments_are_checked(change, options, match):
    with pytest.raises(LaunchError, match=match):
        attend(*change(*tensors()), **options)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 2, 32, 16), (0, 2, 32, 16)),
        ((1, 2, 0, 16), (1, 2, 8, 16)),
        ((1, 0, 8, 16),) * 2,
        ((3, 4, 8, 16), (3, 2, 0, 16)),
    ],
    ids=["no samples", "no queries", "no heads", "no keys"],
)
def test_nothing_to_attend_gives_zeros(shapes):
    """As torch's SDPA does; FlexAttention's eager form fails for no keys.  In graphs, and of 8 bits, too."""
    q, (k, v) = torch.randn(shapes[0], requires_grad=True), torch.randn(2, *shapes[1])
    slopes = torch.ones(4, requires_grad=True)

    def scaled(score, b, h, q, kv):
        return score * slopes[h]

    for call in (nl.attention, torch.compile(nl.attention, backend="eager", fullgraph=True)):
        q.grad = slopes.grad = None
        out, lse = call(q, k, v, scaled, mask_mod=causal, return_lse=True, enable_gqa=True)
        assert out.shape == q.shape
        assert not out.any()
        assert torch.equal(lse, torch.full(q.shape[:3], -torch.inf))
        (out.sum() + torch.where(lse.isinf(), 0, lse).sum()).backward()
        assert q.grad is not None
        assert not q.grad.any()
        assert slopes.grad is not None
        assert not slopes.grad.any()
    with torch.no_grad():
        assert not nl.attention(q, k, v, enable_gqa=True).any()
        of_eight = [t.to(torch.float8_e4m3fn) for t in (q, k, v)]
        out = nl.attention(*of_eight, enable_gqa=True, k_scale=2.0, weights_dtype=torch.float8_e4m3fn)
        assert (out.shape, out.dtype) == (q.shape, torch.bfloat16)
        assert not out.any()


def test_gradients_are_no_obstacle_where_none_are_recorded():
    q, k, v = tensors()
    with torch.no_grad():
        out = attend(q.requires_grad_(), k, v, mask_mod=causal)
    assert not out.requires_grad


def test_wrong_mods_and_scales():
    q, k, v = tensors()
    with pytest.raises(DefinitionError, match="mask_mod"):
        attend(q, k, v, mask_mod=lambda b, h, q, kv: q + kv)
    with pytest.raises(DefinitionError, match="scale=inf"):
        attend(q, k, v, scale=float("inf"))


@pytest.mark.nightly
def test_a_scale_may_be_a_number_of_numpy():
    q, k, v = torch.randn(3, 1, 1, 4, 4, device=DEVICE)
    found = nl.attention(q, k, v, scale=np.float32(0.25))
    assert torch.equal(found, nl.attention(q, k, v, scale=0.25))
    assert torch.allclose(found, nl.scaled_dot_product_attention(q, k, v, scale=np.float64(0.25)))
    assert torch.equal(nl.attention(q, k, v, scale=np.int64(1)), nl.attention(q, k, v, scale=1))


@pytest.mark.nightly
def test_a_scale_may_be_a_tensor_without_dimensions():
    q, k, v = torch.randn(3, 1, 1, 4, 4, device=DEVICE)
    scale = torch.tensor(0.25)
    for call in (nl.attention, nl.scaled_dot_product_attention):
        assert torch.equal(call(q, k, v, scale=scale), call(q, k, v, scale=0.25))
        scale.fill_(0.5)  # it is read at each call
        assert torch.equal(call(q, k, v, scale=scale), call(q, k, v, scale=0.5))
        scale.fill_(0.25)
        for other in (torch.tensor(0.25, requires_grad=True), torch.tensor([0.25, 1.0]), torch.tensor(1j)):
            with pytest.raises(LaunchError, match="expected a finite number"):
                call(q, k, v, scale=other)


def test_a_captured_tensor_elsewhere():
    q, k, v = tensors()
    slopes = torch.ones(2, device=DEVICE)
    attend(q, k, v, score_mod=make_bias(slopes))
    match = r"a mod captures a tensor of shape \(2,\) on meta; expected .*, where q is"
    with pytest.raises(LaunchError, match=match):
        attend(q, k, v, score_mod=make_bias(slopes.to("meta")))


@pytest.mark.nightly
def test_numpy_arrays_may_be_captured_on_the_cpu():
    table = np.array([0.5, 0.25], dtype=np.float32)
    q, k, v = tensors()
    if DEVICE == "cuda":
        with pytest.raises(LaunchError, match="on cpu; expected cuda"):
            attend(q, k, v, score_mod=lambda score, b, h, q, kv: score * table[h])
    else:
        out = attend(q, k, v, score_mod=lambda score, b, h, q, kv: score * table[h])
        slopes = torch.from_numpy(table)
        assert (out - reference(q, k, v, lambda score, b, h, q, kv: score * slopes[h])).abs().max() < 1e-5


def test_a_missing_tensor_is_refused():
    q, k, _ = tensors()
    with pytest.raises(LaunchError, match="three tensors"):
        nl.attention(q, k)
