"""Gradients at NaN and infinities are those of PyTorch: the definition of the backward pass, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from gradients import gradients

import neptune_lab as nl
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import training

INF, NAN = float("inf"), float("nan")
ROWS = torch.tensor(
    [[NAN, 1.0, -2.0, 0.5], [INF, 1.0, -1.0, 0.0], [-INF, 2.0, 2.0, -1.0], [0.0, -0.0, 0.0, 1.0], [INF, NAN, 1.0, -INF]]
)
LABELS = torch.tensor([1, 0, 2, 3, 1])
# Places on an image, next to it and far from it.
GRID = torch.tensor([[-1.0, 0.0, 0.5, -0.5], [3.0, 1.0, 1.5, -1.5], [0.0, 1.0, 5.0, 5.0]]).double().reshape(1, 3, 2, 2)
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda x: torch.relu(x),
    "clamp": lambda x: x.clamp(0, 1),
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "minimum": lambda x: torch.minimum(x, 1 - x),
    "amax": lambda x: x.amax(-1),
    "amax of what rounds": lambda x: (x * 0.7).amax(-1),
    "max": lambda x: x.max(-1).values,
    "min of what rounds": lambda x: (x * 0.7).min(-1).values,
    "max_pool": lambda x: F.max_pool1d(x * 0.7, 2),
    "a power": lambda x: x**-2,
    "max of all": lambda x: x.max(),
    "min of all": lambda x: (x * 0.7)[:3].min(),
    "norm": lambda x: torch.linalg.vector_norm(x, INF, -1) + torch.linalg.vector_norm(x[:4, 1:], -1.5, -1).sum(),
    "windows": lambda x: F.max_pool2d((x * 0.7)[None], (5, 2), 1),
    "windows with positions": lambda x: F.max_pool2d(x[None], 2, 1, 1, return_indices=True)[0],
    "windows of -inf": lambda x: F.max_pool1d(x.nan_to_num(0.0, 0.0, 0.0) - INF, 2, 1, 1),
    "least of rows": lambda x: x[1:4].index_reduce(0, LABELS[:3] * 0 + 1, x[1:4].flip(1), "amin"),
    "limits": lambda x: x.clamp(x[3] - 2, x[3] + 0.5),
    "losses": lambda x: F.huber_loss(x, x.flip(1) * 0.3) * F.smooth_l1_loss(x[:1], x[:1] * 0.1),
    "samples": lambda x: F.grid_sample(x[None, None], (x[:4] * 0.4).reshape(1, 2, 4, 2), align_corners=True),
    "nearest samples": lambda x: F.grid_sample(x[None, None], GRID, mode="nearest", align_corners=True),
    "samples outside": lambda x: F.grid_sample(x[None, None], GRID, align_corners=True),
    "mixed": lambda x: torch.lerp(x, x.flip(0), 0.7) + F.interpolate(x[None], size=7, mode="linear")[0, :, :4],
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "a part of a sum": lambda x: torch.logsumexp(x * 0.7, -1) * x[:, 3],
    "a loss": lambda x: x.logsumexp(-1) - x.gather(1, LABELS[:, None]).squeeze(1),
}


def derived(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Our gradient."""
    op = nl.from_torch(function, x)
    found = gradients(training(op), {"x": x.numpy(), **op.captured}, {"d_out": given.numpy()})
    return torch.from_numpy(found["x"])


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_at_nan_and_infinities_are_those_of_pytorch(name: str):
    x = ROWS.double().requires_grad_()
    out = FUNCTIONS[name](x)
    given = torch.linspace(1, 2, out.numel(), dtype=torch.float64).reshape(out.shape)
    (expected,) = torch.autograd.grad(out, x, given)
    torch.testing.assert_close(derived(FUNCTIONS[name], x.detach(), given), expected, equal_nan=True)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["samples outside", "nearest samples", "samples", "mixed"])
def test_values_between_numbers_are_those_of_pytorch(name: str):
    x = ROWS.double()
    op = nl.from_torch(FUNCTIONS[name], x)
    found = run_wide(op.program, {"x": x.numpy(), **op.captured})
    torch.testing.assert_close(torch.from_numpy(found["out"]), FUNCTIONS[name](x), equal_nan=True)


@pytest.mark.nightly
def test_activations_at_special_numbers():
    """One number at a time: PyTorch's vector instructions have other gradients at NaN than its scalar code."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (
            F.hardsigmoid(x) + 2 * F.hardswish(x) + 3 * F.elu(x) + 4 * F.softshrink(x) + 5 * F.celu(x, 0.4) + F.selu(x)
        )

    passes = training(nl.from_torch(function, torch.zeros(1).double()))
    for number in (NAN, INF, -3.0, 3.0, 0.0, 0.5, -0.5, 0.25):
        x = torch.tensor([number]).double().requires_grad_()
        (expected,) = torch.autograd.grad(function(x), x)
        found = gradients(passes, {"x": x.detach().numpy()}, {"d_out": torch.ones(1).numpy()})
        torch.testing.assert_close(torch.from_numpy(found["x"]), expected, equal_nan=True)


def test_terms_beside_a_zero_and_an_infinity_have_no_gradient():
    x = torch.tensor([[0.0, INF, 1.0], [0.0, 2.0, 3.0]]).double()
    found = derived(lambda x: (x * 0.5).prod(-1), x, torch.ones(2))
    assert found[0, 2].isnan()
    torch.testing.assert_close(found[1], torch.tensor([1.5 * 0.5, 0.0, 0.0]).double())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["logsumexp", "a loss"])
def test_a_row_of_minus_infinity_has_gradient_0(name: str):
    """Where PyTorch's is NaN; but for the element that the loss reads."""
    x = torch.full((5, 4), -INF, dtype=torch.float64)
    wanted = torch.zeros(5, 4, dtype=torch.float64)
    if name == "a loss":
        wanted[torch.arange(5), LABELS] = -1.0
    assert torch.equal(derived(FUNCTIONS[name], x, torch.ones(5, dtype=torch.float64)), wanted)


HIDDEN = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]).bool()
MASKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logsumexp": lambda x: x.masked_fill(HIDDEN, -INF).logsumexp(-1),
    "logsumexp of scaled": lambda x: torch.where(HIDDEN, -INF, x * 3).logsumexp(-1).exp(),
    "softmax": lambda x: x.masked_fill(HIDDEN, -INF).softmax(-1),
    "log_softmax": lambda x: x.masked_fill(HIDDEN, -INF).log_softmax(-1).masked_fill(HIDDEN, 0),
    "norm": lambda x: x.masked_fill(HIDDEN, 0).norm(dim=-1),
    "layer_norm": lambda x: F.layer_norm(x.masked_fill(HIDDEN, 0), (4,)),
    "variance": lambda x: x.masked_fill(HIDDEN, 0).var(-1),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MASKED)
def test_hidden_elements_of_a_row_with_nan_have_gradient_0(name: str):
    x = ROWS.double().requires_grad_()
    out = MASKED[name](x)
    given = torch.linspace(1, 2, out.numel(), dtype=torch.float64).reshape(out.shape)
    (expected,) = torch.autograd.grad(out, x, given)
    found = derived(MASKED[name], x.detach(), given)
    for gradient in (found, expected):
        assert not gradient[HIDDEN].any()
    torch.testing.assert_close(found.isfinite(), expected.isfinite())


@pytest.mark.nightly
def test_a_log_sum_exp_counts_no_maxima():
    """Its derivative is the softmax, also with the choice of an infinite maximum."""
    for function in (FUNCTIONS["logsumexp"], FUNCTIONS["a part of a sum"]):
        backward = training(nl.from_torch(function, torch.zeros(3, 4))).backward
        assert not [b.name for b in backward.program.buffers if "max" in b.name]


def test_a_cotangent_that_is_rounded_has_its_own_dimensions():
    """That of a sum of a product's rows is the same for all columns."""

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh((x * 1.5 @ x.mT).sum(-1))

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    wide = x.double().requires_grad_()
    (expected,) = torch.autograd.grad(product(wide).sum(), wide)
    found = gradients(training(nl.from_torch(product, x)), {"x": x.double().numpy()}, {"d_out": torch.ones(3).numpy()})
    torch.testing.assert_close(torch.from_numpy(found["x"]), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.nightly
def test_the_maxima_of_windows_are_not_computed_again():
    """Positions are whole numbers, whose arithmetic rounds nothing."""
    backward = training(nl.from_torch(lambda x: F.max_pool1d(x, 2, 1, 1), torch.zeros(3, 4))).backward
    assert not [b.name for b in backward.program.buffers if "again" in b.name]


@pytest.mark.nightly
def test_an_extremum_that_rounds_has_its_own_dtype():
    """The cotangent is in float64, and so is the comparison."""
    x, y = torch.tensor([[0.1, 0.7, 0.3]]), torch.ones(1).double()
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    function = lambda x, y: (x * 0.7).amax(-1).to(y.dtype) * y  # noqa: E731
    nl.compile(nl.from_torch(function, x, y)).with_gradients()(ours, y).sum().backward()
    function(theirs, y).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
