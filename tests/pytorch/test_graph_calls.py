"""`nl.attention` in graphs of torch.compile: mods that Dynamo traces, and what it leaves outside of a graph."""

from __future__ import annotations

from functools import partial
from random import randint
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from attention_reference import DEVICE
from graph_parts import SHAPE, drawn, error, expected, random

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import flex_attention, graph_calls
from neptune_lab.pytorch.flex_attention import attention as attend


def test_arguments_and_intermediates_whose_values_change(compile_whole):
    inputs = drawn(SHAPE)

    def function(q, k, v, bias, first):
        twice = bias * 2
        mod = lambda s, b, h, i, j: s + twice[h, i, j]  # noqa: E731
        return attend(q + 0, k, v, score_mod=mod, mask_mod=lambda b, h, q, kv: kv >= first[b]) + 1

    whole = compile_whole(function)
    for start in (0, 5):
        bias, first = random(2, 16, 16), torch.tensor([start], device=DEVICE)
        wanted = expected(inputs, lambda s, b, h, i, j: s + 2 * bias[h, i, j], lambda b, h, q, kv: kv >= start)  # noqa: B023
        assert error(whole(*inputs, bias, first) - 1, wanted) < 1e-5


@pytest.mark.nightly
def test_attributes_of_a_module_and_its_numbers(compile_whole):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.Parameter(random(2), requires_grad=False)
            self.width = 5

        def score(self, score, b, h, q, kv):
            return score + self.slopes[h] * (kv - q)

        def forward(self, q, k, v):
            return attend(q, k, v, score_mod=self.score, mask_mod=lambda b, h, q, kv: q - kv < self.width)

    layer, inputs = Layer(), drawn(SHAPE)
    whole = compile_whole(layer)
    for width in (5, 3):
        layer.width = width
        layer.slopes.mul_(-2)
        wanted = expected(inputs, layer.score, lambda b, h, q, kv: q - kv < width)  # noqa: B023
        assert error(whole(*inputs), wanted) < 1e-5


@pytest.mark.nightly
def test_an_object_whose_attributes_are_assigned(compile_whole):
    inputs, held = drawn(SHAPE), SimpleNamespace(table=random(16), width=3)
    score = lambda s, b, h, q, kv: s + held.table[q]  # noqa: E731
    whole = compile_whole(
        lambda q, k, v: attend(q, k, v, score_mod=score, mask_mod=lambda b, h, q, kv: q - kv < held.width)
    )
    for width in (3, 6):
        held.table, held.width = random(16), width
        wanted = expected(inputs, score, lambda b, h, q, kv: q - kv < width)  # noqa: B023
        assert error(whole(*inputs), wanted) < 1e-5


@pytest.mark.nightly
def test_numbers_of_the_compiled_function(compile_whole):
    inputs = drawn(SHAPE)

    def function(q, k, v, width, factor):
        return attend(q, k, v, score_mod=lambda s, *_: s * factor, mask_mod=lambda b, h, q, kv: q - kv < width)

    whole = compile_whole(function)
    for width, factor in ((5, 0.5), (3, 0.25), (7, 2.0)):
        wanted = expected(inputs, lambda s, *_: s * factor, lambda b, h, q, kv: q - kv < width)  # noqa: B023
        assert error(whole(*inputs, width, factor), wanted) < 1e-5


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["partial", "object", "nested"])
def test_callables(compile_whole, kind):
    def biased(table, s, b, h, q, kv):
        return s + table[q]

    class Biased:
        def __init__(self, table):
            self.table = table

        def __call__(self, s, b, h, q, kv):
            return s + self.table[q]

    def function(q, k, v, table):
        mods = {"partial": partial(biased, table), "object": Biased(table), "nested": lambda *a: biased(table, *a)}
        return attend(q, k, v, score_mod=mods[kind])

    inputs, table = drawn(SHAPE), random(16)
    wanted = expected(inputs, lambda s, b, h, q, kv: s + table[q])
    assert error(compile_whole(function)(*inputs, table), wanted) < 1e-5


@pytest.mark.nightly
def test_reads_that_mods_have_outside_of_graphs(compile_whole):
    inputs, table, index = drawn(SHAPE), random(16, 4), torch.randint(0, 16, (16,), device=DEVICE)

    def mods(t):
        def score(s, b, h, i, j):
            row = (t[i] * t[j]).sum() + torch.dot(t[i], t[j]) + t[index[i], 2] + t[:, 1][j]
            return s + row + torch.where(i > j, t.T[0, j], 0.0)

        return score, lambda b, h, q, kv: (kv // 4 == q // 4) | (index[q] < 5)

    def function(q, k, v, t):
        score, mask = mods(t * 1.5)
        return attend(q, k, v, score_mod=score, mask_mod=mask)

    score, mask = mods(table * 1.5)
    wanted = attend(*inputs, score_mod=score, mask_mod=mask)
    assert error(compile_whole(function)(*inputs, table), wanted) < 1e-5


@pytest.mark.nightly
def test_a_captured_tensor_that_the_graph_changes(compile_whole):
    inputs, bias = drawn(SHAPE), random(16, 16)
    before = bias.clone()

    def function(q, k, v, bias):
        mod = lambda s, b, h, i, j: s + bias[i, j] + q[b, h, i, 0]  # noqa: E731
        bias.mul_(2)
        first = attend(q, k, v, score_mod=mod)
        bias.add_(1)
        return first, attend(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j])

    first, second = compile_whole(function)(*inputs, bias)
    q = inputs[0]
    assert error(first, expected(inputs, lambda s, b, h, i, j: s + 2 * before[i, j] + q[b, h, i, 0])) < 1e-5
    assert error(second, expected(inputs, lambda s, b, h, i, j: s + 2 * before[i, j] + 1)) < 1e-5
    assert torch.equal(bias, 2 * before + 1)


@pytest.mark.nightly
def test_functions_and_layers_share_a_kernel(compile_whole):
    flex_attention.forget()
    inputs, table = drawn(SHAPE), random(16)

    def layer(q, k, v, table):
        bias = table * 2
        return attend(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i])

    def model(q, k, v, table):
        once = layer(q, k, v, table)
        return layer(once, k, v, table + 1)

    once = expected(inputs, lambda s, b, h, i, j: s + 2 * table[i])
    twice = expected([once, *inputs[1:]], lambda s, b, h, i, j: s + 2 * table[i] + 2)
    assert error(compile_whole(model)(*inputs, table), twice) < 1e-5
    assert error(compile_whole(lambda *given: layer(*given))(*inputs, table), once) < 1e-5
    assert len({id(known.kernel) for known in flex_attention._kernels.values()}) == 1


def test_it_stays_inside_of_a_checkpoint(compile_whole):
    def function(q, k, v, bias):
        twice = bias * 2
        inner = lambda q, k, v: attend(q, k, v, score_mod=lambda s, b, h, i, j: s + twice[i, j])  # noqa: E731
        return torch.utils.checkpoint.checkpoint(inner, q, k, v, use_reentrant=False)

    inputs, bias = drawn(SHAPE), random(16, 16)
    assert (
        error(compile_whole(function)(*inputs, bias), expected(inputs, lambda s, b, h, i, j: s + 2 * bias[i, j])) < 1e-5
    )


def test_the_kernel_is_compiled_as_the_graph_is_traced(compile_whole, monkeypatch):
    made, before = [], flex_attention._compiled
    monkeypatch.setattr(flex_attention, "_compiled", lambda *a: (made.append(a), before(*a))[1])

    def function(q, k, v, bias):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return attend(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j])

    whole, inputs = compile_whole(function), drawn((2, 16, 2, 16))
    outs = [whole(*inputs, random(16, 16)) for _ in range(2)]
    assert len(made) == 1
    assert outs[0].stride() == (512, 16, 32, 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_a_mod_that_is_refused_leaves_the_graph(backend):
    inputs, bias = drawn(SHAPE), random(16, 16)

    def function(q, k, v, bias):
        return attend(q + 0, k, v, score_mod=lambda s, b, h, i, j: s + torch.sort(bias[i]).values.sum()) + 1

    for whole in (False, True):
        torch._dynamo.reset()
        compiled: Any = torch.compile(function, backend=backend, fullgraph=whole)
        with pytest.raises(Exception, match=r"torch\.sort is not one of the functions that a mod can use"):
            compiled(*inputs, bias)


@pytest.mark.nightly
def test_a_mod_that_dynamo_cannot_trace_runs_outside_of_the_graph():
    inputs, bias = drawn(SHAPE), random(16)

    @torch.compiler.disable
    def doubled(x):
        return x * 2

    def function(q, k, v, bias):
        bias = bias + 0
        return attend(q + 0, k, v, score_mod=lambda s, b, h, i, j: s + doubled(bias[i])) + 1

    torch._dynamo.reset()
    wanted = expected(inputs, lambda s, b, h, i, j: s + 2 * bias[i])
    compiled: Any = torch.compile(function, backend="aot_eager")
    assert error(compiled(*inputs, bias) - 1, wanted) < 1e-5
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="doubled"):
        compiled(*inputs, bias)


def test_random_numbers_in_a_mod_leave_the_graph():
    inputs = drawn(SHAPE)
    torch._dynamo.reset()
    function = lambda q, k, v, t: attend(q, k, v, score_mod=lambda s, b, h, i, j: s + t[i] + torch.rand(()))  # noqa: E731
    compiled: Any = torch.compile(function, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="a mod calls rand, which gives other values each time"):
        compiled(*inputs, random(16))
    torch._dynamo.reset()  # (Dynamo makes a number of the graph of it, one at each call)
    function = lambda q, k, v, t: attend(q, k, v, score_mod=lambda s, b, h, i, j: s + t[i] * randint(1, 999))  # noqa: E731
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="a mod draws random numbers"):
        compiled(*inputs, random(16))


@pytest.mark.nightly
@pytest.mark.parametrize("which", [0, 3])
def test_gradients_leave_the_graph_whole(compile_whole, which):
    inputs = [*drawn(SHAPE), random(16, 16)]
    inputs[which].requires_grad_()
    function = lambda q, k, v, bias: attend(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j])  # noqa: E731
    whole = compile_whole(function)
    (found,) = torch.autograd.grad(whole(*inputs).sum(), inputs[which])
    (wanted,) = torch.autograd.grad(function(*inputs).sum(), inputs[which])
    assert error(found, wanted) < 1e-5
    with torch.no_grad():
        assert whole(*inputs).shape == SHAPE


def test_the_operator_is_as_torch_expects():
    nodes = []

    def backend(module, inputs):
        nodes.extend(n for n in module.graph.nodes if "neptune_lab" in str(n.target))
        return module

    torch._dynamo.reset()
    given = [*drawn(SHAPE), random(16, 16)]
    mod = lambda bias: lambda s, b, h, i, j: s + bias[i, j]  # noqa: E731
    torch.compile(lambda q, k, v, bias: attend(q, k, v, score_mod=mod(bias), return_lse=True), backend=backend)(*given)
    (node,) = nodes
    torch.library.opcheck(graph_calls.operator(), (given, node.args[1]))
    with pytest.raises(LaunchError, match="was compiled in another process"):
        graph_calls.operator()(given, "unknown")
