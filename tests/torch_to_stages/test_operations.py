"""Each ATen operation that has a lowering, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch_to_stages.cases import CASES, Case

import neptune_lab as nl
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators.special_formulas import SPECIAL
from neptune_lab.torch_to_stages.decompositions import decomposition
from neptune_lab.torch_to_stages.graph import trace
from neptune_lab.torch_to_stages.lowering import lowering_of, taken_operations


def wide(tree):
    """Every float of a tree of tensors in float64."""
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, tree)


def agrees(got: np.ndarray, wanted: torch.Tensor) -> bool:
    """Equal up to float64 rounding, NaN and infinities included."""
    return got.shape == tuple(wanted.shape) and np.allclose(
        got.astype(np.float64), wanted.double().numpy(), rtol=1e-6, atol=1e-7, equal_nan=True
    )


@pytest.mark.one_in(27)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.texts[0])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_definition_is_the_function(case: Case, seed: int):
    function, inputs = case.function(), case.inputs(seed)
    operator = nl.from_torch(function, *inputs)
    arrays = dict(zip(case.names, (t.numpy() for t in inputs), strict=True))
    found = run_wide(operator.program, arrays | dict(operator.captured))
    reference = operator.reference(*arrays.values())
    references = iter(reference if isinstance(reference, tuple) else (reference,))
    outputs = iter(operator.outputs)
    for text, wanted, eager in zip(case.texts, function(*wide(inputs)), function(*inputs), strict=True):
        for want, plain in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(eager), strict=True):
            spec = next(outputs)
            assert spec.dtype == str(plain.dtype).removeprefix("torch."), text
            assert agrees(next(references), want), text
            assert agrees(found[spec.name], want), text


@pytest.mark.nightly
def test_every_lowering_has_a_case():
    reached = set(SPECIAL)  # (test_special_functions.py has these)
    for case in CASES:
        graph = trace(case.function(), case.inputs(0), decomposition)
        for node in graph.module.graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "_opname"):
                reached |= {node.target._opname, f"{node.target._opname}.{node.target._overloadname}"}
    # dropout is in a graph in training alone, where it is refused.
    assert {name for name in taken_operations() if name not in reached} == {"dropout"}
    assert lowering_of("no_such_operation.default") is None


@pytest.mark.nightly
def test_functions_keep_their_digits_near_zero_and_far_out():
    """In float32: a sum with 1 would lose them."""
    x = torch.tensor([[-88.0, -20.0, -1.5, -1e-3, -1e-7, 0.0, 1e-7, 1e-3, 1.5, 20.0, 80.0, float("inf")]])

    def function(x):
        p = x.abs()
        return (
            *(torch.log1p(p), torch.expm1(x), torch.sinh(x), torch.nn.functional.softplus(x)),
            *(torch.nn.functional.elu(x), torch.nn.functional.logsigmoid(x)),
            *(torch.sinh(1.0125 * x), torch.cosh(1.0125 * x)),  # exp(89.1) overflows, its half does not
        )

    kernel = nl.compile(nl.from_torch(function, x))
    for got, want in zip(kernel(x), function(x.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-37)


def test_a_row_that_a_mask_empties():
    x, mask = torch.randn(3, 8), torch.tensor([[True] * 8, [False] * 8, [True, False] * 4])

    def function(x, mask):
        masked = x.masked_fill(~mask, float("-inf"))
        return torch.ops.aten._safe_softmax(masked, -1), torch.softmax(masked, -1)

    safe, plain = nl.compile(nl.from_torch(function, x, mask))(x, mask)
    for got, want in zip((safe, plain), function(x.double(), mask), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.nightly
def test_infinities_and_nan_pass_as_in_torch():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor(
        [[1.0, nan, 2.0, -inf], [inf, 1.0, 2.0, 3.0], [-inf] * 4, [0.0, -0.0, 1e38, 3e38], [inf, nan, -inf, 0.0]]
    )

    def function(x):
        along = (x.amax(-1), x.amin(-1), x.sum(-1), x.mean(-1), x.logsumexp(-1), x.softmax(-1), x.log_softmax(-1))
        along = (
            *along,
            x.cumsum(-1),
            x.logcumsumexp(-1),
            *x.cummax(-1),
            *x.cummin(-1),
            x[2:4].logsumexp(-1).logsumexp(0),
        )
        each = (x.clamp(-1, 1), x.relu(), x.sigmoid(), x.tanh(), x.sign(), x.nan_to_num(), torch.maximum(x, -x))
        each = (*each, x // 2.0, torch.div(x, -0.5, rounding_mode="floor"), x % 2.0, torch.complex(x, x.flip(1)).abs())
        return *along, *each, torch.where(x.isnan(), 0.0, x)

    for got, wanted in zip(nl.compile(nl.from_torch(function, x))(x), function(x), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-5, equal_nan=True)


@pytest.mark.nightly
def test_variances_are_divided_by_no_less_than_zero():
    x = torch.arange(12.0).reshape(3, 4)

    def function(x):
        return (*(x.var(-1, correction=c) for c in (0.5, 4, 5)), x[:, :1].var(-1))

    for ours, theirs in zip(nl.compile(nl.from_torch(function, x))(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
