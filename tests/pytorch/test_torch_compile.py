"""Kernels as operators of torch, and `nl.attention` inside torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attention_reference import DEVICE, causal, make_bias, reference, tensors
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.operators import attention as operators
from neptune_lab.pytorch import traced
from neptune_lab.pytorch.flex_attention import attention as attend


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(operators.causal(batch=1, heads=2, seq=32, head_dim=16, dtype="float32"))


@pytest.fixture
def preparations(monkeypatch):
    """How often Dynamo asked for a kernel."""
    made = []
    before = traced.compiled_for

    def counted(*arguments):
        made.append(arguments)
        return before(*arguments)

    monkeypatch.setattr(traced, "compiled_for", counted)
    return made


# -- kernel.as_torch_op -----------------------------------------------------------------------------------------


def test_an_operator_for_each_kernel(kernel):
    op = kernel.as_torch_op()
    assert kernel.as_torch_op() is op
    assert str(op).startswith("neptune_lab.attention_causal_")
    named = kernel.as_torch_op("my_attention")
    assert torch.ops.neptune_lab.my_attention.default is named is kernel.as_torch_op("my_attention")
    again = nl.compile(kernel.operator)
    assert again.as_torch_op() is op
    other = nl.compile(kernel.operator, block_q=16, block_kv=16)
    with pytest.raises(LaunchError, match=r"torch.ops.neptune_lab.my_attention is another kernel already"):
        other.as_torch_op("my_attention")
    with pytest.raises(LaunchError, match="name='my attention': expected a Python identifier"):
        kernel.as_torch_op("my attention")
    for name in ("for", "None", "NoneType", "éa", "name", "_dir", "__init__", "yield"):
        with pytest.raises(LaunchError, match=f"name='{name}': torch takes no keyword"):
            kernel.as_torch_op(name)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU nothing is checked")
def test_an_operator_refuses_the_indices_that_its_kernel_refuses():
    op = nl.from_torch(lambda w, i: torch.nn.functional.embedding(i, w), torch.randn(5, 8), torch.tensor([0, 1, 4]))
    taken, w = nl.compile(op).as_torch_op(), torch.randn(5, 8)
    assert torch.equal(taken(w, torch.tensor([4, 0, 2])), w[[4, 0, 2]])
    for wrong in (5, -1):
        with pytest.raises(LaunchError, match=f"argument i holds {wrong}; expected integers from 0 to 4"):
            taken(w, torch.tensor([0, 1, wrong]))


def test_torch_finds_nothing_wrong_with_it(kernel):
    torch.library.opcheck(kernel.as_torch_op(), tuple(tensors()))


def test_it_stands_in_a_graph(kernel, compile_whole):
    op = kernel.as_torch_op()
    inputs = tensors()
    out = compile_whole(lambda q, k, v: op(q + 0, k, v) * 2)(*inputs)
    assert (out / 2 - reference(*inputs, mask_mod=causal)).abs().max() < 1e-5


def test_it_is_exported(kernel):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return kernel.as_torch_op()(q, k, v)

    inputs = tuple(tensors())
    exported = torch.export.export(Layer(), inputs)
    assert str(kernel.as_torch_op()) in exported.graph_module.code.replace("torch.ops.", "")
    assert torch.equal(exported.module()(*inputs), kernel(*inputs))


@pytest.mark.nightly
def test_several_outputs(compile_whole):
    kernel = nl.compile(
        operators.causal(batch=1, heads=2, seq=16, head_dim=16, dtype="float32", return_lse=True), block_q=16
    )
    op = kernel.as_torch_op()
    inputs = tensors((1, 2, 16, 16))
    out, lse = compile_whole(lambda *given: op(*given))(*inputs)
    assert (out - reference(*inputs, mask_mod=causal)).abs().max() < 1e-5
    assert lse.shape == (1, 2, 16)
    torch.library.opcheck(op, tuple(inputs))


def test_wrong_arguments_are_refused_as_the_graph_is_made(kernel, compile_whole):
    op = kernel.as_torch_op()
    q, k, v = tensors()
    with pytest.raises(Exception, match=r"argument k has shape \(1, 2, 16, 16\); expected \(1, 2, 32, 16\)"):
        compile_whole(lambda *given: op(*given))(q, k[:, :, :16].contiguous(), v)
    with pytest.raises(LaunchError, match="argument v has strides"):
        op(q, k, v.mT.contiguous().mT)
    with pytest.raises(LaunchError, match=r"q records gradients, and the kernel has no backward(.|\n)*with_gradients"):
        op(q.requires_grad_(), k, v)
    with torch.no_grad():
        assert not op(q, k, v).requires_grad


@pytest.mark.nightly
def test_a_kernel_leaves_the_graph_that_calls_it(kernel):
    torch._dynamo.reset()
    q, k, v = tensors()
    doubled = torch.compile(lambda q, k, v: kernel(q * 1, k, v) * 2, backend="eager")
    assert torch.equal(doubled(q, k, v), kernel(q, k, v) * 2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compiled", [False, True])
def test_no_transform_takes_its_derivative_to_be_0(kernel, compile_whole, compiled: bool):
    op = kernel.as_torch_op()
    q, k, v = tensors()

    def call(function):
        return (compile_whole(function) if compiled else function)(q, k, v)

    with pytest.raises(Exception, match="argument k records gradients, and the kernel has no backward"):
        call(torch.func.grad(lambda q, k, v: op(q, k, v).square().sum(), 1))
    with pytest.raises(Exception, match="argument v carries a forward gradient, and the kernel has no derivative"):
        call(lambda q, k, v: torch.func.jvp(lambda t: op(q, k, t), (v,), (v,)))
    # What does not depend on the variable is a constant.
    assert torch.equal(call(torch.func.grad(lambda q, k, v: (op(k, k, v) * q).sum())), op(k, k, v))
    both = call(lambda q, k, v: torch.func.vmap(op, (0, None, None))(torch.stack([q, k]), k, v))
    assert (both - torch.stack([op(q, k, v), op(k, k, v)])).abs().max() < 1e-5


@pytest.mark.nightly
def test_no_transform_takes_the_derivative_of_attention_in_a_graph_to_be_0(compile_whole):
    q, k, v = tensors()
    pages = (t.mT.reshape(2, 16, 2, 16).contiguous() for t in (k, v))
    table, lengths = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([32], dtype=torch.int32)
    cache = [*pages, table.to(DEVICE), lengths.to(DEVICE)]
    with pytest.raises(Exception, match="argument q records gradients, and the kernel has no backward"):
        compile_whole(torch.func.grad(lambda q: nl.attention(q, k, v).sum()))(q)
    with pytest.raises(Exception, match="records gradients, and attention inside of a graph"):
        compile_whole(torch.func.grad(lambda q: nl.paged_attention(q[:, :, :1], *cache).sum()))(q)


@pytest.mark.nightly
def test_a_kernel_with_gradients_refuses_tangents_in_a_graph(kernel, compile_whole):
    """torch drops those of an operator whose backward pass is given."""
    call = kernel.with_gradients()
    q, k, v = tensors()
    with pytest.raises(Exception, match="argument v carries a forward gradient, and the kernel has no derivative"):
        compile_whole(lambda q, k, v: torch.func.jvp(lambda t: call(q, k, t), (v,), (v,)))(q, k, v)
    assert torch.equal(compile_whole(call)(q, k, v), call(q, k, v))


def test_a_tangent_is_refused_behind_a_graph_break(compile_whole):
    """Dynamo, which then traces our functions, sees no tangents."""
    q, k, v = tensors()
    compiled = torch.compile(lambda q: nl.attention(q, k, v), backend="aot_eager")
    with pytest.raises(LaunchError, match=r"inside torch.vmap or a transform"):
        torch.func.grad(lambda q: compiled(q).sum())(q)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(LaunchError, match="argument q carries a forward gradient"):
            compiled(dual)


class Calls(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.nightly
def test_a_compiled_kernel_in_a_graph_names_its_operator(compile_whole):
    kernel = nl.compile(operators.causal(batch=1, heads=2, seq=32, head_dim=16, dtype="float32"))  # (not loaded yet)
    q, k, v = tensors()
    error = r"a compiled kernel inside of a graph of torch.compile(.|\n)*kernel.as_torch_op\(\)"
    for way in (
        lambda: compile_whole(lambda *given: kernel(*given))(q, k, v),
        lambda: torch.export.export(Calls(kernel), (q, k, v)),
        lambda: torch.export.export(Calls(kernel), (q, k, v), strict=True),
        lambda: make_fx(kernel)(q, k, v),
        lambda: make_fx(kernel, tracing_mode="fake")(q, k, v),
    ):
        with pytest.raises(Exception, match=error):
            way()
    whole = torch.compile(lambda *given: kernel(*given), backend="aot_eager")
    with FlopCounterMode(display=False):  # (a mode that makes no graph)
        assert torch.equal(whole(q, k, v), kernel(q, k, v))


# -- nl.attention inside torch.compile --------------------------------------------------------------------------


def test_attention_in_a_graph_follows_its_captured_tensors(compile_whole, preparations):
    q, k, v = tensors()
    slopes = torch.tensor([0.5, 0.25], device=DEVICE)
    bias = make_bias(slopes, 7)
    function = compile_whole(lambda q, k, v: attend(q + 0, k, v, score_mod=bias, mask_mod=causal) + 1)
    for values in ([0.5, 0.25], [1.5, -0.25]):
        slopes.copy_(torch.tensor(values))
        assert (function(q, k, v) - 1 - reference(q, k, v, bias, causal)).abs().max() < 1e-5
    slopes = torch.tensor([0.0, 2.0], device=DEVICE)
    bias = make_bias(slopes, 7)  # another tensor
    assert (function(q, k, v) - 1 - reference(q, k, v, bias, causal)).abs().max() < 1e-5
    assert len(preparations) == 1
    bias = make_bias(slopes, 3)  # another number
    assert (function(q, k, v) - 1 - reference(q, k, v, bias, causal)).abs().max() < 1e-5
    assert len(preparations) == 2


@pytest.mark.nightly
def test_attention_in_a_graph_follows_a_position_without_axes(compile_whole, preparations):
    q, k, v = tensors((1, 1, 4, 16), (1, 1, 16, 16))
    position = torch.tensor(3, device=DEVICE)

    def mask(b, h, q, kv):
        return kv <= q + position

    function = compile_whole(lambda q, k, v: attend(q + 0, k, v, mask_mod=mask))
    for value in (3, 7, 0):
        position.fill_(value)
        assert (function(q, k, v) - reference(q, k, v, None, mask)).abs().max() < 1e-5
    assert len(preparations) == 1


@pytest.mark.nightly
def test_attention_in_a_graph_takes_strided_inputs_and_mods_of_its_own(compile_whole):
    def function(q, k, v):
        def mask(b, h, q, kv):
            return q >= kv

        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask_mod=mask).transpose(1, 2)

    inputs = tensors((1, 32, 2, 16))
    wanted = reference(*(t.transpose(1, 2) for t in inputs), mask_mod=causal).transpose(1, 2)
    assert (compile_whole(function)(*inputs) - wanted).abs().max() < 1e-5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", [np.float32(3), np.arange(32), object()])
def test_what_a_mod_only_compares_is_no_obstacle(compile_whole, value):
    q, k, v = tensors()

    def mask(b, h, q, kv):
        return (q >= kv) | (value is None)

    out = compile_whole(lambda q, k, v: attend(q, k, v, mask_mod=mask))(q, k, v)
    assert (out - reference(q, k, v, mask_mod=causal)).abs().max() < 1e-5


def test_attention_is_traced_with_fake_tensors_outside_of_dynamo():
    q, k, v = tensors()

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v, mask_mod=causal)

    exported = torch.export.export(Layer(), (q, k, v), strict=False)
    assert (exported.module()(q, k, v) - reference(q, k, v, None, causal)).abs().max() < 1e-5


@pytest.mark.gpu
def test_attention_is_captured_in_a_cuda_graph():
    q, k, v = tensors()
    slopes = torch.tensor([0.5, 0.25], device=DEVICE)
    bias = make_bias(slopes)
    attend(q, k, v, score_mod=bias, mask_mod=causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v, score_mod=bias, mask_mod=causal)
    slopes.copy_(torch.tensor([1.5, -0.25]))
    q.neg_()
    graph.replay()
    assert (out - reference(q, k, v, bias, causal)).abs().max() < 1e-3


@pytest.mark.nightly
def test_switches_that_are_computed_of_numbers_of_modules():
    """Dynamo has symbols for numbers that differ between calls, and for comparisons of them."""

    def attends(heads: int, kv_heads: int) -> Any:
        return lambda q, k, v: attend(q, k, v, enable_gqa=heads != kv_heads)

    torch._dynamo.reset()
    for heads, kv_heads in ((4, 2), (2, 2), (6, 3)):
        q, k, v = (torch.randn(1, n, 5, 8, device=DEVICE).requires_grad_() for n in (heads, kv_heads, kv_heads))
        own = attends(heads, kv_heads)
        compiled: Any = torch.compile(own, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(q, k, v), own(q, k, v), rtol=1e-4, atol=1e-5)
