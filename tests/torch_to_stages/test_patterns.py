"""Textbook PyTorch becomes fused kernels that agree with the function itself in float64."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.utils import _pytree as pytree
from torch_to_stages.patterns import ATTENTION, BEYOND

import neptune_lab as nl

# Tile sizes go with one template, and this needs several parts: both norms precede the product along other dimensions.
APART = ("info_nce",)


def widened(tree):
    """Every float of a tree of tensors in float64."""
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, tree)


def outline(kernel) -> str:
    """The kernels with their loops, and why what is apart is apart."""
    apart = [r for r in kernel.remarks if not r.startswith("Numbers")]
    return f"{kernel.outline.rstrip()}\n\n{''.join(f'{r}{chr(10)}' for r in apart)}"


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_in_textbook_spelling(name: str, golden):
    function, make = ATTENTION[name]
    torch.manual_seed(0)
    inputs = make()
    operator = nl.from_torch(function, *inputs)
    kernel = nl.compile(operator) if name in APART else nl.compile(operator, "rolling_update", block_kv=16)
    wanted = function(*widened(inputs))
    got = kernel(*inputs)
    assert got.dtype == torch.float16
    assert got.shape == wanted.shape
    assert torch.linalg.norm(got.double() - wanted) / torch.linalg.norm(wanted) < 1e-3
    golden(f"from_torch_{name}.outline.txt", outline(kernel))


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", BEYOND)
def test_reductions_in_textbook_spelling(name: str, golden):
    function, make = BEYOND[name]
    torch.manual_seed(0)
    inputs = make()
    operator = nl.from_torch(function, *inputs)
    kernel = nl.compile(operator) if name in APART else nl.compile(operator, block_kv=16)
    wanted = pytree.tree_leaves(function(*widened(inputs)))
    for got, want in zip(pytree.tree_leaves(kernel(*inputs)), wanted, strict=True):
        assert got.shape == want.shape
        assert torch.linalg.norm(got.double() - want) / torch.linalg.norm(want) < 2e-3
    golden(f"from_torch_{name}.outline.txt", outline(kernel))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["vanilla", "causal", "alibi", "softcap", "gqa", "evoformer", "invariant_point"])
def test_attention_is_one_kernel_without_scores_in_memory(name: str):
    function, make = ATTENTION[name]
    kernel = nl.compile(nl.from_torch(function, *make()), block_kv=16)
    assert len(kernel.htile.kernels) == 1
    assert "between kernels, in global memory: nothing" in kernel.outline


@pytest.mark.nightly
def test_a_sum_beside_a_narrower_one_divides_its_columns_among_programs():
    def mean(x, mask):
        return (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)

    x, mask = torch.randn(3, 37, 150), torch.rand(3, 37) < 0.7
    kernel = nl.compile(nl.from_torch(mean, x, mask))
    assert len(kernel.htile.kernels) == 1
    assert "grid (i: 3, j0: 3)" in kernel.outline
    torch.testing.assert_close(kernel(x, mask), mean(x, mask))
    # The norm needs all columns of the mean: each program may not divide them.
    norm = nl.compile(nl.from_torch(lambda x, mask: mean(x, mask).norm(dim=-1), x, mask))
    torch.testing.assert_close(norm(x, mask), mean(x, mask).norm(dim=-1))


def test_stages_know_the_users_lines():
    function, make = ATTENTION["vanilla"]
    operator = nl.from_torch(function, *make())
    texts = {name: line.text for name, line in operator.lines.items()}
    assert texts["scores"] == "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"
    assert texts["p_max"] == texts["p_sum"] == texts["p"] == "p = torch.softmax(scores, dim=-1)"
    assert texts["out"] == "return p @ v"
    assert {line.path for line in operator.lines.values()} == {function.__code__.co_filename}


def test_an_argument_given_twice_is_two_inputs():
    x = torch.randn(1, 2, 64, 32, dtype=torch.float16)
    operator = nl.from_torch(ATTENTION["vanilla"][0], x, x, x)
    assert [t.name for t in operator.inputs] == ["q", "k", "v"]
    assert "k" in str(operator.program.params)


def test_the_function_stays_when_its_package_is_imported():
    importlib.import_module("neptune_lab.torch_to_stages.graph")
    assert nl.from_torch(torch.exp, torch.randn(2, 3)).inputs[0].shape == (2, 3)


def test_dicts_and_tuples_in_and_out():
    def function(batch, pair):
        x, (a, b) = batch["x"], pair
        return {"sum": x + a, "parts": (x * b, x.mean(-1))}

    x, a, b = torch.randn(3, 4, 8)
    operator = nl.from_torch(function, {"x": x}, (a, b))
    assert [t.name for t in operator.inputs] == ["batch_x", "pair_0", "pair_1"]
    assert [t.name for t in operator.outputs] == ["sum", "parts_0", "parts_1"]
    got = nl.compile(operator)(x, a, b)
    for own, want in zip(got, (x + a, x * b, x.mean(-1)), strict=True):
        torch.testing.assert_close(own, want)


@pytest.mark.nightly
def test_parameters_of_a_module_and_tensors_of_a_closure():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    table = torch.randn(8)
    x = torch.randn(4, 16)
    operator = nl.from_torch(module, x)
    assert sorted(operator.captured) == ["x_0_bias", "x_0_weight", "x_2_bias", "x_2_weight"]
    torch.testing.assert_close(nl.compile(operator)(x), module(x), rtol=1e-4, atol=1e-5)
    closed = nl.from_torch(lambda x: x[:, :8] * table, x)
    assert [tuple(a.shape) for a in closed.captured.values()] == [(8,)]
    torch.testing.assert_close(nl.compile(closed)(x), x[:, :8] * table)


@pytest.mark.nightly
def test_writes_to_tensors_that_the_function_made():
    def function(x):
        y = x * 2
        y += 1
        y[:, 0] = 0
        y[1, 2:4] = x[0, 2:4]
        y.masked_fill_(y > 1, 0.5)
        return y.sum(-1)

    x = torch.randn(4, 8)
    torch.testing.assert_close(nl.compile(nl.from_torch(function, x))(x), function(x))
