"""Textbook PyTorch becomes fused kernels that agree with the function itself in float64."""

from __future__ import annotations

import pytest
import torch
from from_torch.patterns import ATTENTION
from torch.utils import _pytree as pytree

import neptune_lab as nl

# Not in one kernel yet: two softmaxes in one product need the product distributed over their difference.
APART = ("differential",)


def widened(tree):
    """Every float of a tree of tensors in float64."""
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, tree)


def outline(kernel) -> str:
    """The kernels with their loops, and why what is apart is apart."""
    apart = [r for r in kernel.remarks if not r.startswith("Numbers")]
    return f"{kernel.outline.rstrip()}\n\n{''.join(f'{r}{chr(10)}' for r in apart)}"


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


def test_plain_attention_is_one_kernel_with_one_loop():
    function, make = ATTENTION["vanilla"]
    operator = nl.from_torch(function, *make())
    kernel = nl.compile(operator, block_kv=16)
    assert len(kernel.htile.kernels) == 1
    assert not [r for r in kernel.remarks if "starts a loop of its own" in r]
    assert kernel.relative_error() < 1e-3


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
