"""Graphs of torch.compile for all lengths: one graph and one kernel, from the second length on or on request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_reference import DEVICE, causal, reference, tensors
from torch._dynamo.testing import CompileCounterWithBackend

import neptune_lab as nl
from neptune_lab.operators import attention as operators
from neptune_lab.pytorch import flex_attention
from neptune_lab.pytorch.flex_attention import attention as attend


@pytest.fixture
def graphs() -> Any:
    """Counts the graphs."""
    torch._dynamo.reset()
    flex_attention.forget()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


def expected(inputs: Any, score_mod: Any = None, mask_mod: Any = None) -> Any:
    q, k, v = inputs
    return reference(q, k, v, score_mod, mask_mod)


def drawn(q: Any, kv: Any = None) -> Any:
    return tensors(q, kv)


def kernels():
    return len({id(known.kernel) for known in flex_attention._kernels.values()})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dynamic", [None, True])
def test_one_graph_and_one_kernel_for_all_lengths(graphs, dynamic):
    whole: Any = torch.compile(
        lambda q, k, v: attend(q + 0, k, v, mask_mod=causal), backend=graphs, fullgraph=True, dynamic=dynamic
    )
    for length in (33, 50, 17, 64, 130):
        inputs = drawn((1, 2, length, 16))
        assert (whole(*inputs) - expected(inputs, None, causal)).abs().max() < 1e-5
    assert (graphs.frame_count, kernels()) == ((2, 1) if dynamic is None else (1, 1))


@pytest.mark.nightly
def test_captured_tensors_and_numbers_that_vary_with_both_lengths(graphs):
    def function(q, k, v, bias):
        ahead = k.shape[2] - q.shape[2]
        score = lambda s, b, h, i, j: s + bias[i, j]  # noqa: E731
        return attend(q, k, v, score_mod=score, mask_mod=lambda b, h, q, kv: q + ahead >= kv, return_lse=True)

    whole: Any = torch.compile(function, backend=graphs, fullgraph=True)
    for rows, columns in ((20, 33), (25, 50), (17, 17)):
        inputs, bias = drawn((1, 2, rows, 16), (1, 2, columns, 16)), torch.randn(rows, columns, device=DEVICE)
        out, lse = whole(*inputs, bias)
        mods = lambda s, b, h, i, j: s + bias[i, j], lambda b, h, q, kv: q + columns - rows >= kv  # noqa: B023
        assert (out - expected(inputs, *mods)).abs().max() < 1e-5
        assert lse.shape == (1, 2, rows)
    assert graphs.frame_count == 2


@pytest.mark.nightly
def test_layouts_whose_strides_vary(graphs):
    def function(q, k, v):
        out = attend(*(t.transpose(1, 2) for t in (q, k, v)), mask_mod=causal)
        return out.transpose(1, 2).view(q.shape[0], q.shape[1], -1)  # needs the layout of q

    whole: Any = torch.compile(function, backend=graphs, fullgraph=True)
    for length in (33, 50, 17):
        inputs = drawn((2, length, 2, 16))
        wanted = expected([t.transpose(1, 2) for t in inputs], None, causal).transpose(1, 2).flatten(2)
        assert (whole(*inputs) - wanted).abs().max() < 1e-5
    assert graphs.frame_count == 2


@pytest.mark.nightly
def test_a_growing_cache(graphs):
    whole: Any = torch.compile(lambda q, k, v: attend(q, k, v, enable_gqa=True), backend=graphs, fullgraph=True)
    for length in range(20, 25):
        q, k, v = drawn((1, 4, 1, 16), (1, 2, length, 16))
        wanted = expected([q, *(t.repeat_interleave(2, 1) for t in (k, v))])
        assert (whole(q, k, v) - wanted).abs().max() < 1e-5
    assert (graphs.frame_count, kernels()) == (2, 1)


@pytest.mark.nightly
def test_a_length_that_depends_on_values(graphs):
    def function(q, k, v, length):
        count = length.item()
        torch._check(count >= 2)
        torch._check(count <= k.shape[2])
        return attend(q, k[:, :, :count], v[:, :, :count])

    inputs = drawn((1, 2, 32, 16))
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        whole: Any = torch.compile(function, backend=graphs, fullgraph=True)
        for length in (20, 7):
            q, k, v = inputs
            wanted = expected([q, k[:, :, :length], v[:, :, :length]])
            assert (whole(*inputs, torch.tensor(length)) - wanted).abs().max() < 1e-5
    assert graphs.frame_count == 1


@pytest.mark.nightly
def test_each_length_compiles_with_dynamic_false(graphs):
    whole: Any = torch.compile(
        lambda q, k, v: attend(q + 0, k, v, mask_mod=causal, dynamic=False),
        backend=graphs,
        fullgraph=True,
        dynamic=True,
    )
    for length in (32, 48, 32):
        inputs = drawn((1, 2, 32, 16), (1, 2, length, 16))
        assert (whole(*inputs) - expected(inputs, None, causal)).abs().max() < 1e-5
    assert graphs.frame_count == 2


@pytest.mark.nightly
def test_masks_of_scaled_dot_product_attention(graphs):
    plain = torch.nn.functional.scaled_dot_product_attention
    whole: Any = torch.compile(
        lambda q, k, v, mask: nl.scaled_dot_product_attention(q, k, v, attn_mask=mask | False),
        backend=graphs,
        fullgraph=True,
    )
    for rows, columns in ((20, 33), (25, 50), (40, 64)):
        inputs, mask = drawn((1, 2, rows, 16), (1, 2, columns, 16)), torch.rand(rows, columns, device=DEVICE) > 0.3
        assert (whole(*inputs, mask) - plain(*inputs, attn_mask=mask)).abs().max() < 1e-5
    assert graphs.frame_count == 2


@pytest.mark.nightly
def test_a_kernel_for_all_sizes_is_an_operator_of_a_graph(graphs):
    kernel = nl.compile(operators.causal(batch=1, heads=2, seq=nl.dim("n"), head_dim=16, dtype="float32"))
    op = kernel.as_torch_op()
    whole: Any = torch.compile(lambda q, k, v: op(q + 0, k, v) * 2, backend=graphs, fullgraph=True, dynamic=True)
    for length in (100, 33, 64):
        inputs = drawn((1, 2, length, 16))
        assert (whole(*inputs) / 2 - expected(inputs, None, causal)).abs().max() < 1e-5
    assert graphs.frame_count == 1


@pytest.mark.nightly
def test_sizes_of_an_export():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v, mask_mod=causal)

    given, other = tuple(drawn((1, 2, 32, 16))), drawn((1, 2, 50, 16))
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = ({2: length},) * 3
    exported = torch.export.export(Layer(), given, dynamic_shapes=shapes, strict=True)
    assert (exported.module()(*other) - expected(other, None, causal)).abs().max() < 1e-5
    with pytest.raises(Exception, match=r"of symbols, outside of torch\.compile"):
        torch.export.export(Layer(), given, dynamic_shapes=shapes, strict=False)
