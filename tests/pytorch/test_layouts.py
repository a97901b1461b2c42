"""`nl.attention` on tensors that are not contiguous: right numbers, no copies, the layout of torch's SDPA."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from attention_reference import DEVICE, causal, reference, tensors
from by_turns import in_turn
from layouts import LAYOUTS, packed, transposed

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.operators import attention as operators
from neptune_lab.pytorch import flex_attention as flex
from neptune_lab.pytorch import traced, transformers_attention, warned
from neptune_lab.pytorch.flex_attention import attention as attend
from neptune_lab.runtime import LoadedKernel
from neptune_lab.tensor_spec import dense_strides, layout_of

HEADS, WIDTH = 4, 16
BIAS = torch.linspace(-2, 2, 37, device=DEVICE)


def biased(score, b, h, q, kv):
    return score + BIAS[kv]


def seen(b, h, q, kv):
    return (BIAS[kv] > -1.5) | (q == kv)


# Name -> (q_len, kv_len, kv_heads, options).
CALLS = {
    "causal": (32, 32, 4, {"mask_mod": causal}),
    "grouped": (32, 32, 2, {"mask_mod": causal, "enable_gqa": True}),
    "mods over a captured tensor": (37, 37, 4, {"score_mod": biased, "mask_mod": seen}),
    "other lengths": (20, 37, 2, {"score_mod": biased, "enable_gqa": True}),
    "decoding": (1, 37, 2, {"score_mod": biased, "enable_gqa": True}),
}


def drawn(call: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    q_len, kv_len, kv_heads, _ = CALLS[call]
    return tensors((2, HEADS, q_len, WIDTH), (2, kv_heads, kv_len, WIDTH), dtype)


def wanted(q, k, v, options):
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    return reference(q, k, v, options.get("score_mod"), options.get("mask_mod"))


def like_sdpa(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the output has the strides of torch's own attention."""
    given = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return layout_of(out.shape, out.stride()) == layout_of(given.shape, given.stride())


@pytest.fixture
def launched(monkeypatch):
    """Where the tensors that kernels get lie in memory; warnings are errors."""
    places: list[list[tuple[int, tuple[int, ...]]]] = []
    before = LoadedKernel.launch

    def launch(self, *given):
        places.append([(t.data_ptr(), t.stride()) for t in given[:3]])
        return before(self, *given)

    monkeypatch.setattr(LoadedKernel, "launch", launch)
    monkeypatch.setattr(warned, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield places


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("call", "layout"), in_turn(CALLS, LAYOUTS, every=2))
def test_layouts(call: str, layout: str, launched):
    options = CALLS[call][3]
    given = [LAYOUTS[layout](t) for t in drawn(call)]
    out = attend(*given, **options)
    assert launched == [[(t.data_ptr(), t.stride()) for t in given]]
    assert (out - wanted(*given, options)).abs().max() < 1e-5
    assert like_sdpa(out, *given)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("which", range(3))
def test_one_tensor_of_another_layout(which: int, launched):
    given = drawn("causal")
    given[which] = packed(given[which])
    out = attend(*given, mask_mod=causal)
    assert launched == [[(t.data_ptr(), t.stride()) for t in given]]
    assert (out - wanted(*given, {"mask_mod": causal})).abs().max() < 1e-5
    assert like_sdpa(out, *given)


@pytest.mark.nightly
def test_a_width_of_v_of_its_own(launched):
    q, k, _ = drawn("causal")
    v = torch.randn(2, 32, HEADS, 24, device=DEVICE).transpose(1, 2)
    out = attend(transposed(q), k, v, mask_mod=causal)
    assert out.stride() == (32 * HEADS * 24, 24, HEADS * 24, 1)
    assert (out - wanted(q, k, v, {"mask_mod": causal})).abs().max() < 1e-5


@pytest.mark.nightly
def test_a_cache_that_fills(launched):
    """Each step of decoding reads the beginning of one cache, where it is."""
    cache = torch.randn(2, 2, 2, 48, WIDTH, device=DEVICE)
    for length in (33, 34):
        q = torch.randn(2, 1, HEADS, WIDTH, device=DEVICE).transpose(1, 2)
        k, v = cache[0, :, :, :length], cache[1, :, :, :length]
        out = attend(q, k, v, enable_gqa=True, dynamic=False)
        assert (out - wanted(q, k, v, {})).abs().max() < 1e-5
        assert launched[-1][1:] == [(k.data_ptr(), k.stride()), (v.data_ptr(), v.stride())]


@pytest.mark.nightly
def test_further_outputs_are_contiguous(launched):
    q, k, v = map(transposed, drawn("causal"))
    out, lse = attend(q, k, v, mask_mod=causal, return_lse=True)
    assert like_sdpa(out, q, k, v)
    assert lse.is_contiguous()
    score = (q.double() @ k.double().mT) / WIDTH**0.5
    score = score.masked_fill(~torch.ones(32, 32, dtype=torch.bool, device=DEVICE).tril(), -torch.inf)
    assert (lse - score.logsumexp(-1)).abs().max() < 1e-5


@pytest.mark.nightly
def test_half_precision_through_descriptors(launched):
    given = [packed(t) for t in drawn("causal", torch.float16)]
    out = attend(*given, mask_mod=causal, kernel_options={"loads": "host_descriptors", "block_q": 16, "block_kv": 16})
    assert (out - wanted(*given, {"mask_mod": causal})).abs().max() < 5e-3
    assert launched == [[(t.data_ptr(), t.stride()) for t in given]]


@pytest.mark.nightly
def test_a_kernel_for_each_layout(all_compilations):
    given = drawn("causal")
    for layout in (lambda t: t, transposed, packed, transposed, lambda t: t):
        attend(*map(layout, given), mask_mod=causal)
    assert len(all_compilations) == 3
    flex.forget()
    attend(*map(packed, given), mask_mod=causal)  # from the disk
    assert len(all_compilations) == 3


def test_dimensions_of_size_1_need_no_kernel_of_their_own(all_compilations):
    memory = torch.randn(4096, device=DEVICE)
    outs = [
        attend(*[memory.as_strided((1, 2, 16, 16), (first, 16, 32, 1))] * 3, mask_mod=causal) for first in (1, 512, 7)
    ]
    assert len(all_compilations) == 1
    assert torch.equal(outs[0], outs[1])


def test_only_a_strided_last_dimension_is_copied_and_that_is_said_once(monkeypatch):
    monkeypatch.setattr(warned, "_warned", set())
    q, k, v = (t.mT.contiguous().mT for t in tensors((1, 2, 32, 16)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out = attend(q, k, transposed(v), mask_mod=causal)
    assert "attention copies q at each call, since its strides (1024, 512, 1, 32)" in str(told[0].message)
    assert [str(w.message)[:18] for w in told] == [f"attention copies {name}" for name in "qk"]
    assert told[0].filename == __file__
    assert (out - reference(q, k, v, None, causal)).abs().max() < 1e-5
    assert out.is_contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(q, k, packed(v), mask_mod=causal)


# -- the other ways to call it ---------------------------------------------------------------------------------


@pytest.mark.one_in(6)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaled_dot_product_attention(layout: str, launched):
    given = [LAYOUTS[layout](t) for t in drawn("causal")]
    out = nl.scaled_dot_product_attention(*given, is_causal=True)
    assert launched == [[(t.data_ptr(), t.stride()) for t in given]]
    assert (out - F.scaled_dot_product_attention(*given, is_causal=True)).abs().max() < 1e-5
    assert like_sdpa(out, *given)


def test_the_output_of_a_layer_of_transformers_is_not_copied(launched, monkeypatch):
    q, k, v = map(transposed, drawn("causal"))
    made = []
    before = transformers_attention.attention
    monkeypatch.setattr(transformers_attention, "attention", lambda *a, **b: made.append(before(*a, **b)) or made[-1])
    out, _ = transformers_attention.attention_forward(torch.nn.Module(), q, k, v, None, is_causal=True)
    assert out.is_contiguous()
    assert out.data_ptr() == made[0].data_ptr()
    assert out.shape == (2, 32, HEADS, WIDTH)
    assert (out.transpose(1, 2) - wanted(q, k, v, {"mask_mod": causal})).abs().max() < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize(("layout", "backend"), in_turn(LAYOUTS, ["aot_eager", "inductor"], every=2, first=1))
def test_torch_compile(layout: str, backend: str, compile_whole, monkeypatch):
    """Tensors that the graph takes and makes; the output's strides are those of a call outside."""
    problems = []
    before = traced.compiled_for
    monkeypatch.setattr(traced, "compiled_for", lambda p, *rest: problems.append(p) or before(p, *rest))

    def layer(q, k, v):
        return attend(q, k, v, mask_mod=causal), attend(LAYOUTS[layout](q * 2), k, v + 1, mask_mod=causal)

    given = [LAYOUTS[layout](t) for t in drawn("causal")]
    first, second = compile_whole(layer, backend=backend)(*given)
    outside = layer(*given)
    assert all(p.strides is not None for p in problems)
    for out, expected in zip((first, second), outside, strict=True):
        assert (out - expected).abs().max() < 1e-5
        assert layout_of(out.shape, out.stride()) == layout_of(expected.shape, expected.stride())


@pytest.mark.nightly
def test_another_layout_compiles_again(compile_whole):
    layer = compile_whole(lambda q, k, v: attend(q, k, v, mask_mod=causal).transpose(1, 2), backend="aot_eager")
    given = drawn("causal")
    for layout in (transposed, packed, lambda t: t):
        out = layer(*map(layout, given))
        assert (out.transpose(1, 2) - wanted(*given, {"mask_mod": causal})).abs().max() < 1e-5
    assert not out.is_contiguous()


@pytest.mark.nightly
def test_a_shared_batch_of_keys_is_not_repeated_inside_a_graph(compile_whole, launched):
    q, (k, v) = drawn("causal")[0], (t[:1] for t in drawn("causal")[1:])
    out = compile_whole(lambda *given: attend(*given, mask_mod=causal), backend="aot_eager")(q, k, v)
    assert [stride[0] for _, stride in launched[-1]] == [HEADS * 32 * WIDTH, 0, 0]
    assert (out - wanted(q, k, v, {"mask_mod": causal})).abs().max() < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kernel_as_an_operator(layout: str, compile_whole):
    q, k, v = (LAYOUTS[layout](t) for t in drawn("causal"))
    plain = operators.causal(batch=2, heads=HEADS, seq=32, head_dim=WIDTH, dtype="float32")
    strides = {name: t.stride() for name, t in zip("qkv", (q, k, v), strict=True)}
    kernel = nl.compile(plain.with_strides(**strides, out=dense_strides(q.shape, q.stride())), block_q=16, block_kv=16)
    op = kernel.as_torch_op()
    if layout == "transposed":  # of what is not dense, opcheck makes copies with other strides
        torch.library.opcheck(op, (q, k, v))
    out = compile_whole(lambda *given: op(*given), backend="aot_eager")(q, k, v)
    assert torch.equal(out, kernel(q, k, v))
    assert out.stride() == kernel(q, k, v).stride()
    with pytest.raises(LaunchError, match="argument k has strides"):
        op(q, k.mT.contiguous().mT, v)
