"""Kernels as functions with gradients: norms, losses, chains of products, and operators of plain PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from other_thread import while_another_compiles

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.operators import gemm_chain, norms, rows, training

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(DEVICE, dtype).requires_grad_() for s in shapes]


def check(function, reference, inputs, limit=1e-5):
    every = [t for t in inputs if t.requires_grad]
    out = function(*inputs)
    given = torch.randn_like(out)
    found = torch.autograd.grad(out, every, given)
    wide = [t.detach().double().requires_grad_() if t.requires_grad else t for t in inputs]
    expected = torch.autograd.grad(reference(*wide), [t for t in wide if t.requires_grad], given.double())
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() < limit * theirs.norm()


@pytest.mark.nightly
def test_layer_norm():
    op = norms.layer_norm(rows=5, cols=33)
    x, gamma, beta = drawn((5, 33), (33,), (33,))
    check(nl.compile(op).with_gradients(), lambda x, g, b: F.layer_norm(x, (33,), g, b, 1e-5), (x, gamma, beta))


def test_softmax():
    op = rows.softmax(rows=5, cols=33, dtype="float32")
    check(nl.compile(op).with_gradients(), lambda x: x.softmax(-1), drawn((5, 33)))


def test_cross_entropy():
    op = rows.cross_entropy(rows=5, cols=33, dtype="float32")
    target = torch.arange(5, dtype=torch.int32, device=DEVICE) * 3
    (x,) = drawn((5, 33))
    check(
        nl.compile(op).with_gradients(),
        lambda x, t: F.cross_entropy(x, t.long(), reduction="none"),
        (x, target) if op.inputs[0].name == "x" or op.inputs[0].dtype == "float32" else (target, x),
    )


def test_a_chain_of_products():
    op = gemm_chain.gemm_chain(batch=1, m=9, n=7, k=5, h=3, dtype="float32")
    inputs = drawn(*(t.shape for t in op.inputs))
    check(nl.compile(op).with_gradients(), lambda a, b, c: (a @ b) @ c, inputs)


@pytest.mark.nightly
def test_plain_pytorch_and_a_whole_graph():
    def gated(x, w, u):
        return (F.silu(x @ w) * (x @ u)).sum(-1)

    inputs = drawn((6, 8), (8, 5), (8, 5))
    function = nl.compile(nl.from_torch(gated, *(t.detach() for t in inputs))).with_gradients()
    compiled = torch.compile(lambda *t: function(*t) * 2, fullgraph=True, backend="aot_eager")
    check(compiled, lambda *t: gated(*t) * 2, inputs)  # the first call is in the graph
    check(function, gated, inputs)
    assert torch.equal(function(inputs[0], u=inputs[2], w=inputs[1]), function(*inputs))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dim", "shape"), [(0, (3, 2)), (1, (3, 7))])
def test_an_index_that_is_narrower_than_what_it_reads(dim: int, shape: tuple[int, int]):
    (x,) = drawn((5, 4))
    index = (torch.arange(shape[0] * shape[1], device=DEVICE).reshape(shape) * 3) % x.shape[dim]
    function = lambda x, i: x.gather(dim, i) ** 2  # noqa: E731
    check(nl.compile(nl.from_torch(function, x.detach(), index)).with_gradients(), function, (x, index))


def test_what_has_no_gradient():
    x = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(DefinitionError, match=r"has no float input(.|\n)*call its kernel"):
        nl.compile(nl.from_torch(lambda x: x + 1, x)).with_gradients()
    (x,) = drawn((5, 33))
    function = nl.compile(rows.softmax(rows=5, cols=33, dtype="float32")).with_gradients()
    with pytest.raises(LaunchError, match=r"expected \(5, 33\)"):
        function(x[:4])


@pytest.mark.nightly
def test_linear_cross_entropy():
    target = torch.arange(6, device=DEVICE) * 5 % 11
    x, w = drawn((6, 8), (8, 11))
    function = lambda x, w, target: F.cross_entropy(x @ w, target, reduction="none")  # noqa: E731
    inputs = x, w, target
    kernel = nl.compile(nl.from_torch(function, *(t.detach() for t in inputs)))
    check(kernel.with_gradients(), function, inputs)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
        lambda f, x: torch.func.vjp(f, x),
        lambda f, x: torch.func.jacrev(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.vmap(f)(torch.stack([x, x])),
    ],
)
def test_transforms_of_torch_func_are_refused(transform):
    function = nl.compile(rows.softmax(rows=5, cols=9, dtype="float32")).with_gradients()
    with pytest.raises(LaunchError, match=r"transform of torch.func(.|\n)*torch.autograd.grad"):
        transform(function, torch.randn(5, 9, device=DEVICE))
    with pytest.raises(LaunchError, match=r"with gradients inside torch.jit.trace"):
        torch.jit.trace(lambda x: function(x), torch.randn(5, 9, device=DEVICE))


def test_the_gradient_of_a_gradient_is_refused():
    function = nl.compile(rows.softmax(rows=5, cols=9, dtype="float32")).with_gradients()
    (x,) = drawn((5, 9))
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    with pytest.raises(LaunchError, match=r"gradient of a gradient(.|\n)*torch's own operations"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.nightly
def test_captured_tensors_may_be_omitted_and_a_wrong_number_of_arguments_is_named():
    scale = torch.tensor([[0.5], [1.0], [-2.0]], device=DEVICE)

    def scaled(x, y):
        return torch.logsumexp(x * scale + y, -1)

    x, y = drawn((3, 9), (3, 9))
    function = nl.compile(nl.from_torch(scaled, x.detach(), y.detach())).with_gradients()
    check(function, lambda x, y: torch.logsumexp(x * scale.double() + y, -1), (x, y))
    compiled: Any = torch.compile(lambda x, y: function(x, y), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, y), function(x, y))
    with pytest.raises(LaunchError, match=r"scaled got 1 arguments, expected 2: x, y"):
        function(x)


@pytest.mark.nightly
def test_a_concatenation_is_split_in_a_part_of_the_backward_pass():
    """A sink as a further score of attention: each part of the backward pass is normalised, before it is cut off."""

    def sink(q, k, v):
        scores = torch.cat([q @ k.mT, torch.full((1, 5, 1), 0.5, dtype=q.dtype, device=q.device)], -1)
        return torch.softmax(scores, -1)[..., :-1] @ v

    tensors = drawn((1, 5, 4), (1, 5, 4), (1, 5, 4))
    op = nl.from_torch(sink, *(t.detach() for t in tensors))
    check(nl.compile(op).with_gradients(), sink, tensors)
    backward = training(op).backward
    steps = nl.compile(backward).schedule.steps
    assert nl.Schedule.replay(backward, steps).check()
    assert "split_concatenation" in [step.primitive for step in steps]


@pytest.mark.nightly
def test_a_softmax_of_quotients_is_trained():
    """Its forward pass compares the log-sum-exp with a number, so the maximum's quotients are exact, and so are all."""
    (x,) = drawn((3, 9))
    check(nl.compile(nl.from_torch(softened, x.detach())).with_gradients(), softened, (x,), limit=3e-4)


def softened(x):
    return torch.softmax(x / 0.07, -1)


LABELS = torch.tensor([1, 0, 5, 3], device=DEVICE)
TEMPERATURES = {
    "a loss": (lambda x: F.cross_entropy(x * 14.3, LABELS), (4, 6)),
    "a loss of quotients": (lambda x: F.cross_entropy(x / 0.7, LABELS, reduction="none"), (4, 6)),
    "InfoNCE": (lambda x, y: F.cross_entropy(x @ y.T / 0.07, LABELS % 4), (4, 5), (4, 5)),
    "scores and biases": (lambda x, y: F.cross_entropy(x * 0.7 + y * 14.3, LABELS), (4, 6), (4, 6)),
    "logarithms": (lambda x: torch.log_softmax(x * 0.07, -1) + torch.logsumexp(x / 0.7, -1, keepdim=True), (4, 6)),
    "weights": (lambda x, v: torch.softmax(x / 0.07, -1) @ v, (4, 6), (6, 3)),
    "learned": (lambda x, s: F.cross_entropy(x / s.exp(), LABELS), (4, 6), ()),
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", TEMPERATURES)
def test_temperatures_are_trained_at_every_size(case: str):
    """The kept sum of a row's exponentials is right also where one element is the sum: validation has such rows."""
    function, *shapes = TEMPERATURES[case]
    inputs = drawn(*shapes)
    check(nl.compile(nl.from_torch(function, *(t.detach() for t in inputs))).with_gradients(), function, inputs)


@pytest.mark.nightly
def test_a_gradient_that_is_the_same_for_many_elements_counts_each():
    """A cotangent that does not depend on the loop that it is summed over, here the columns of x for each row of y."""

    def pairs(x, y):
        return torch.logsumexp((x[:, :, None] + y[:, None, :]).sum(1), -1)

    x, y = drawn((3, 7), (3, 9))
    check(nl.compile(nl.from_torch(pairs, x.detach(), y.detach())).with_gradients(), pairs, (x, y))


# At the limits of functions with a kink, and at norms of rows of zeros.
KINKS = {
    "relu": lambda x: torch.relu(x),  # its kernel is that of maximum
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(-1, 3),
    "clamp_min": lambda x: (x + 1).clamp_min(0),
    "clamp by tensors": lambda x: torch.clamp(x * 2, torch.tensor(-2.0), torch.tensor(2.0)),
    "maximum": lambda x: torch.maximum(x, x.new_zeros(())),
    "abs": torch.abs,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "norm": lambda x: x.norm(dim=-1),
    "std": lambda x: x.std(-1),
    "cdist": lambda x: torch.cdist(x, x),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "max of rows": lambda x: x.amax(-1),
    "max with its place": lambda x: x.max(-1).values,
    "min with its place": lambda x: x.min(0).values,
    "max of what rounds": lambda x: (x * 0.7).max(-1).values * x.max(-1).indices,
    "asinh": torch.asinh,
    "atanh": lambda x: torch.atanh(x / 8),
    "sinh": torch.sinh,
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x * 0.1),
    "xlogy": lambda x: torch.xlogy(x, torch.arange(1.0, 9.0)),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, -1),
    "norm of order 1/2": lambda x: torch.linalg.vector_norm(x, 0.5, -1),
    "root of relu": lambda x: torch.relu(x).sqrt(),
    "root of clamp": lambda x: (x - 0.25).clamp(min=0).sqrt(),
    "root of maximum": lambda x: torch.maximum(x - 0.25, x.new_zeros(())).sqrt(),
    "logarithm of relu": lambda x: torch.relu(torch.relu(x)).log() * 0.5 + torch.relu(-x).log(),
    "pooled roots": lambda x: F.lp_pool1d(x, 2, 2),
    "acosh": lambda x: torch.acosh(x.abs() + 1.5),
    "hypot": lambda x: torch.hypot(x, x.flip(1) + 0.3),
    "atan2": lambda x: torch.atan2(x, x.flip(1)) + torch.atan2(x, x.new_zeros(())),
    "copysign": lambda x: torch.copysign(x, x.flip(1) + 0.5),
    "fmax": lambda x: torch.fmax(x, x.flip(1)) + torch.fmin(x, x.new_ones(())),
    "max_pool": lambda x: F.max_pool1d(x, 2, 1),
    "sinc": lambda x: torch.sinc(x / 4),
    "times zero": lambda x: (x * 0).sum(-1, keepdim=True) + x * 0 + x,
}
AT_KINKS = torch.tensor([[0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 2.0, -0.5], [0.0] * 8, [1.0] * 8])


@pytest.mark.nightly
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_derivatives_at_kinks_are_those_of_pytorch(part: int):
    kinks = dict(list(KINKS.items())[part::2])

    def every(x):
        return tuple(f(x) for f in kinks.values())

    x = AT_KINKS.to(DEVICE).requires_grad_()
    found = nl.compile(nl.from_torch(every, x.detach())).with_gradients()(x)
    for name, ours, theirs in zip(kinks, found, every(x), strict=True):
        given = torch.arange(ours.numel(), device=DEVICE).reshape(ours.shape) - 3.0
        (gradient,) = torch.autograd.grad(ours, x, given, retain_graph=True)
        (expected,) = torch.autograd.grad(theirs, x, given, retain_graph=True)
        torch.testing.assert_close(
            gradient, expected, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_functions_own_table_may_stop_its_gradients():
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    table = torch.nn.Embedding(4, 8, padding_idx=2).to(DEVICE)

    def function(x):
        return x * table(torch.tensor([1, 2], device=DEVICE)) + table.weight.detach()[2]

    ours = nl.compile(nl.from_torch(function, x.detach())).with_gradients()
    found, expected = (torch.autograd.grad(f(x).square().sum(), x) for f in (ours, function))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
def test_functions_with_one_kernel_have_derivatives_of_their_own():
    x = AT_KINKS.to(DEVICE).requires_grad_()
    expected = {"relu": 0.0, "maximum": 0.5, "max of rows": 0.125, "max with its place": 1.0}
    for name, wanted in expected.items():
        function = nl.compile(nl.from_torch(KINKS[name], x.detach(), name="kink")).with_gradients()
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        assert float(gradient[1, 0]) == wanted
        # (A graph calls the operator by its name.)
        (gradient,) = torch.autograd.grad(torch.compile(function, backend="eager", fullgraph=True)(x).sum(), x)
        assert float(gradient[1, 0]) == wanted


@pytest.mark.nightly
@pytest.mark.parametrize("axis", [-1, 0])
def test_an_extremum_of_exponentials_that_are_computed_again(axis: int):
    """Their roundings grow with the scores, so the forward pass's extremum may be none of the backward pass's terms."""
    given = drawn((16, 24), (24, 16))

    def largest(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).softmax(-1).amax(axis)

    check(nl.compile(nl.from_torch(largest, *given)).with_gradients(), largest, given, limit=1e-4)


@pytest.mark.nightly
def test_an_output_requires_a_gradient_if_an_input_behind_it_does():
    x, y = torch.randn(2, 3, 8)
    function = nl.compile(
        nl.from_torch(lambda x, y: (x.softmax(-1), y.softmax(-1), (x * y).sum(-1)), x, y)
    ).with_gradients()
    for given in ((x.clone().requires_grad_(), y), (x, y.clone().requires_grad_())):
        want = [given[0].requires_grad, given[1].requires_grad, True]
        assert [out.requires_grad for out in function(*given)] == want
        graph = torch.compile(lambda *tensors: function(*tensors), backend="aot_eager", fullgraph=True)
        assert [out.requires_grad for out in graph(*given)] == want
        sum((out.sum() for out in function(*given)), torch.zeros(())).backward()
        assert [t.grad is not None for t in given] == want[:2]


def test_parameters_that_a_call_leaves_out_get_no_gradients():
    """They are copies, so an optimiser would change nothing: a warning says so, and how they train."""
    model = torch.nn.Linear(7, 5, device=DEVICE)
    (x,) = drawn((4, 7))
    call = nl.compile(nl.from_torch(model, x.detach())).with_gradients()
    for given in (x, x[:2]):
        with pytest.warns(
            UserWarning, match="no gradients for weight, bias of Linear.*in this order: input, weight, bias$"
        ):
            call(given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            call(x)
        check(call, F.linear, (x, model.weight, model.bias))


def test_what_is_computed_of_parameters_beforehand_is_warned_of_too():
    weight = torch.nn.Parameter(torch.linspace(0.1, 0.9, 6, device=DEVICE))
    (x,) = drawn((4, 6))
    function = lambda x: (x * torch.special.ndtri(weight)).softmax(-1)  # noqa: E731
    op = nl.from_torch(function, x.detach())
    (quantiles,) = op.trained
    call = nl.compile(op).with_gradients()
    with pytest.warns(UserWarning, match=f"no gradients for {quantiles} of"):
        call(x)
    found = torch.autograd.grad(call(x, torch.special.ndtri(weight)).square().sum(), (x, weight))
    torch.testing.assert_close(found, torch.autograd.grad(function(x).square().sum(), (x, weight)))


def test_parameters_of_one_number_are_constants_and_a_warning_says_so():
    class Scaled(torch.nn.Module):
        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.full(shape, 2.0, device=DEVICE))

        def forward(self, x):
            return (x * self.scale).softmax(-1)

    (x,) = drawn((3, 8))
    with pytest.warns(UserWarning, match=r"no gradients for scale of Scaled.*torch\.ones\(1\)"):
        nl.compile(nl.from_torch(Scaled(()), x.detach())).with_gradients()
    model = Scaled((1,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call = nl.compile(nl.from_torch(model, x.detach())).with_gradients()
        check(call, lambda x, s: (x * s).softmax(-1), (x, model.scale))


def test_a_thread_is_refused_and_warned_while_another_compiles():
    function = nl.compile(rows.softmax(rows=5, cols=9, dtype="float32")).with_gradients()
    x = torch.randn(5, 9, device=DEVICE)

    def transformed() -> None:
        with pytest.raises(LaunchError, match=r"transform of torch.func"):
            torch.func.grad(lambda x: function(x).sum())(x)
        with pytest.raises(LaunchError, match=r"with gradients inside torch.jit.trace"):
            torch.jit.trace(lambda x: function(x), x)

    while_another_compiles(transformed)
    model = torch.nn.Linear(9, 2, device=DEVICE)
    call = nl.compile(nl.from_torch(model, x)).with_gradients()
    with pytest.warns(UserWarning, match="no gradients for weight, bias of Linear"):
        while_another_compiles(lambda: call(x))
