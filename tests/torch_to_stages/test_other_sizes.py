"""Kernels of `from_torch` called with tensors of other sizes: one for all of them from the second sizes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    mask = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ v


def joined(x: Any) -> Any:
    return torch.softmax(torch.cat([x, x], -1), -1)


def compared(kernel: Any, function: Any, *shapes: tuple[int, ...]) -> None:
    given = [torch.randn(shape, device=DEVICE) for shape in shapes]
    assert (kernel(*given) - function(*(x.double() for x in given))).abs().max() < 1e-5


def counts(kernel: Any) -> tuple[int, int]:
    """Kernels for all sizes beside the first one, and reasons why there was none."""
    return len(kernel.other_sizes._for_all), len(kernel.other_sizes.refusals)


@pytest.mark.nightly
def test_the_second_number_of_rows_makes_one_kernel_for_all():
    kernel = nl.compile(nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64)))
    compared(kernel, norm, (8, 64), (64,))
    assert counts(kernel) == (0, 0)
    for rows in (5, 1, 77, 300):
        compared(kernel, norm, (rows, 64), (64,))
    assert counts(kernel) == (1, 0)
    assert kernel.other_sizes is not None
    (made,) = kernel.other_sizes._for_all
    assert [str(tensor) for tensor in made.spec.inputs] == ["x: float32[n, 64]", "w: float32[64]"]


@pytest.mark.nightly
def test_no_kernel_for_all_sizes_if_that_is_not_wanted():
    kernel = nl.compile(nl.from_torch(norm, torch.zeros(8, 32), torch.zeros(32), dynamic=False))
    for rows in (8, 5, 9):
        compared(kernel, norm, (rows, 32), (32,))
    assert counts(kernel) == (0, 0)
    assert kernel.other_sizes is not None
    assert len(kernel.other_sizes._by_shapes) == 2


@pytest.mark.nightly
def test_all_sizes_from_the_first_call():
    op = nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64), dynamic=True)
    assert [str(tensor) for tensor in op.inputs] == ["x: float32[n0, n1]", "w: float32[n1]"]
    kernel = nl.compile(op)
    for rows, columns in ((8, 64), (3, 100), (1, 1), (70, 33)):
        compared(kernel, norm, (rows, columns), (columns,))
    assert counts(kernel) == (0, 0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function", [lambda x: x * x[:1] + x[:, :1], lambda x: (x.t() + 1, x * 2)], ids=["one order", "two orders"]
)
def test_a_function_without_reductions_has_one_kernel_for_all_sizes(function: Callable[..., Any]):
    op = nl.from_torch(function, torch.zeros(8, 64), dynamic=True)
    kernel = nl.compile(op)
    assert all(size in str(kernel.spec.inputs[0]) for size in ("n0", "n1"))
    for shape in ((8, 64), (1, 1), (130, 3), (3, 130), (65, 129)):
        x = torch.randn(shape, device=DEVICE)
        made, wanted = kernel(x), function(x)
        for one, other in zip(*((a if isinstance(a, tuple) else (a,)) for a in (made, wanted)), strict=True):
            torch.testing.assert_close(one, other)
    assert counts(kernel) == (0, 0)


@pytest.mark.nightly
def test_sizes_without_such_a_kernel_have_kernels_of_their_own():
    kernel = nl.compile(nl.from_torch(joined, torch.zeros(4, 16)))
    for columns in (16, 20, 24, 20):
        compared(kernel, joined, (4, columns))
    assert counts(kernel) == (0, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_samples_and_heads(dynamic):
    op = nl.from_torch(attention, *torch.zeros(3, 1, 2, 64, 16), dynamic=dynamic)
    kernel = nl.compile(op)
    for batch, heads, q_len, kv_len in (
        (1, 2, 64, 64),
        (1, 2, 77, 77),
        (1, 2, 130, 130),
        (3, 2, 33, 33),
        (2, 4, 20, 20),
        (1, 2, 40, 50),
    ):
        compared(kernel, attention, (batch, heads, q_len, 16), *[(batch, heads, kv_len, 16)] * 2)


@pytest.mark.nightly
def test_what_the_function_reads_is_that_of_the_first_time():
    scale = torch.ones(64)
    kernel = nl.compile(nl.from_torch(lambda x: torch.softmax(x * scale, -1), torch.zeros(8, 64)))
    scale.mul_(2)
    for rows in (8, 9, 11):
        compared(kernel, lambda x: torch.softmax(x, -1), (rows, 64))


def test_what_the_function_makes_anew_in_each_trace_must_not_change():
    table = [1.0] * 16
    kernel = nl.compile(nl.from_torch(lambda x: x * torch.tensor(table), torch.zeros(8, 16)))
    table[3] = 2.0
    with pytest.raises(LaunchError, match=r"has changed since its operator was made.*: it makes \w+ in each trace"):
        kernel(torch.zeros(9, 16, device=DEVICE))
    factor = [2]
    kernel = nl.compile(nl.from_torch(lambda x: x ** factor[0], torch.zeros(8, 16)))
    factor[0] = 3
    with pytest.raises(LaunchError, match=r"has changed since its operator was made.*: its stages"):
        kernel(torch.zeros(9, 16, device=DEVICE))


OUTSIDE = torch.nn.Parameter(torch.ones(6))


def test_parameters_of_closures_and_globals_are_known_as_such():
    """torch's exporter takes their data, without gradients; of other containers, what lasts is known by its memory."""
    model, inside = torch.nn.Linear(6, 3), [torch.nn.Parameter(torch.ones(6))]
    functions = (lambda x: x * OUTSIDE, lambda x: model(x), lambda x: x * inside[0])
    for function, trained in zip(functions, (1, 2, 0), strict=True):
        op = nl.from_torch(function, torch.zeros(4, 6))
        assert len(op.trained) == trained
        with torch.no_grad():
            for parameter in (OUTSIDE, *model.parameters(), *inside):
                parameter.mul_(2)
        assert op.resized is not None
        other = op.resized.at([(5, 6)])
        assert all((other.captured[name] == array).all() for name, array in op.captured.items())


@pytest.mark.parametrize("dynamic", [None, pytest.param(False, marks=pytest.mark.nightly)])
def test_batches_of_another_size_after_steps_of_an_optimizer(dynamic: bool | None):
    """A step changes the parameters in place: those that a call gives are taken, and for others the first ones."""
    model = torch.nn.Linear(6, 3, device=DEVICE)
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    op = nl.from_torch(model, torch.zeros(4, 6), dynamic=dynamic)
    call = nl.compile(op).with_gradients()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows in (4, 4, 3, 5):
        x = torch.randn(rows, 6, device=DEVICE)
        y = call(x, **dict(model.named_parameters()))
        given = torch.randn_like(y)
        found = torch.autograd.grad(y, [*model.parameters()], given)
        wanted = torch.autograd.grad(model(x), [*model.parameters()], given)
        torch.testing.assert_close(y, model(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    x = torch.randn(7, 6, device=DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(call(x), torch.func.functional_call(model, first, x), rtol=1e-5, atol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((8, 64), (60,)), r"norm does not take tensors of the shapes \(8, 64\), \(60,\): torch cannot trace norm"),
        (((8,), (64,)), r"tensors of \[1, 1\] dimensions; expected \[2, 1\]"),
        (((0, 64), (64,)), r"argument x has shape \(0, 64\): a tensor without elements"),
    ],
)
def test_tensors_that_the_function_does_not_take(shapes, match):
    kernel = nl.compile(nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64)))
    with pytest.raises(LaunchError, match=match):
        kernel(*(torch.zeros(shape, device=DEVICE) for shape in shapes))


@pytest.mark.nightly
def test_strides_are_those_of_the_operator_alone():
    op = nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64)).with_strides(x=(128, 1))
    assert op.resized is None


@pytest.mark.parametrize(("dynamic", "shapes"), [(True, ({0: nl.dim("n")}, None)), (1, None)])
def test_refused_arguments(dynamic, shapes):
    with pytest.raises(DefinitionError, match="dynamic="):
        nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64), dynamic=dynamic, dynamic_shapes=shapes)


@pytest.mark.nightly
def test_a_dict_of_tensors_has_a_kernel_per_size():
    def scaled(given: dict[str, Any]) -> Any:
        return torch.softmax(given["x"] * given["y"], -1)

    kernel = nl.compile(nl.from_torch(scaled, {"x": torch.zeros(4, 16), "y": torch.zeros(4, 16)}))
    for rows in (4, 5):
        x, y = torch.randn(2, rows, 16, device=DEVICE)
        assert (kernel(x, y) - torch.softmax(x * y, -1)).abs().max() < 1e-5
    assert counts(kernel) == (0, 1)


def test_tensors_of_any_strides():
    """A function of PyTorch takes them, so its kernel does; with strides that were asked for, only those."""
    x, w = torch.randn(9, 5, device=DEVICE).T, torch.randn(1, device=DEVICE).expand(9)
    op = nl.from_torch(norm, x, w)
    kernel = nl.compile(op)
    for given in (x, torch.randn(1, 9, device=DEVICE).expand(5, 9), torch.randn(10, 18, device=DEVICE)[::2, ::2]):
        torch.testing.assert_close(kernel(given, w), norm(given, w))
    with pytest.raises(LaunchError, match=r"argument x records gradients"):
        kernel(x.detach().requires_grad_(), w)
    with pytest.raises(LaunchError, match=r"argument x has strides \(9, 1\); expected \(1, 5\)"):
        nl.compile(op.with_strides(x=(1, 5), w=(0,)))(x.contiguous(), w)


@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_no_tensor(gradients: bool):
    kernel: Any = nl.compile(nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64)))
    call = kernel.with_gradients() if gradients else kernel
    x, w = torch.zeros(8, 64, device=DEVICE), torch.zeros(64, device=DEVICE)
    for given, text in (((None, w), "x is None"), ((None, x), "x is None"), ((x.cpu().numpy(), w), "x is an ndarray")):
        with pytest.raises(LaunchError, match=rf"argument {text}; expected a torch.Tensor\n(.|\n)*torch.as_tensor"):
            call(*given)
    with pytest.raises(LaunchError, match=r"argument w is a float"):
        call(x, 1.0)
    with pytest.raises(LaunchError, match=r"argument w is None"):
        kernel.as_torch_op()(x, None)


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_other_sizes(dynamic: bool | None):
    """The last batch of an epoch is smaller; a module's parameters are those of the first sizes."""
    scale = torch.linspace(0.5, 2, 6, device=DEVICE)
    function = lambda x: (x * scale.to(x.dtype)).softmax(-1) * torch.arange(len(x), device=x.device)[:, None]  # noqa: E731
    call = nl.compile(nl.from_torch(function, torch.zeros(5, 6), dynamic=dynamic)).with_gradients()
    for rows in (5, 3):
        x, given = torch.randn(2, rows, 6, device=DEVICE)
        (found,) = torch.autograd.grad(call(x.requires_grad_()), x, given)
        wide = x.detach().double().requires_grad_()
        (expected,) = torch.autograd.grad(function(wide), wide, given.double())
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    for given, text in ((torch.zeros(3, 7), "does not take tensors of the shapes"), (torch.zeros(6), "1.* dimensions")):
        with pytest.raises(LaunchError, match=text):
            call(given.to(DEVICE))


def test_captured_tensors_that_a_call_of_other_sizes_gives_are_taken_by_what_they_are():
    """Not by their order: the function may use them in another one, or others, at other sizes."""
    a, b, c = (torch.zeros(16, device=DEVICE) for _ in range(3))  # (equal values do not tell them apart)

    def branches(x: Any) -> Any:
        return {8: lambda: x * a + b, 4: lambda: x * b + a, 1: lambda: x * a + c}[x.shape[0]]()

    kernel = nl.compile(nl.from_torch(branches, torch.zeros(8, 16), dynamic=False))
    x, one, two = (torch.randn(n, 16, device=DEVICE) for n in (4, 1, 1))
    for function in (kernel, kernel.with_gradients()):
        assert torch.allclose(function(x, one[0], two[0]), x * two + one)
        with pytest.raises(LaunchError, match="branches got 2 arguments, expected 1: x"):
            function(x, one[0])
        with pytest.raises(LaunchError, match=r"at the shapes \(1, 16\) it reads lifted_tensor_1 .* none of them"):
            function(one, one[0], two[0])


@pytest.mark.nightly
def test_constants_of_a_function_are_the_same_inputs_at_other_sizes():
    a = torch.randn(16, device=DEVICE)
    kernel = nl.compile(nl.from_torch(lambda x: x * a + torch.tensor([0.5] * 16, device=DEVICE), torch.zeros(8, 16)))
    x, given = torch.randn(3, 16, device=DEVICE), torch.randn(2, 16, device=DEVICE)
    want = torch.addcmul(given[1], x, given[0])
    for function in (kernel, kernel.with_gradients()):
        assert torch.allclose(function(x, *given), want)


def test_gradients_of_other_sizes_while_another_thread_exports_and_in_graphs(monkeypatch):
    function = nl.compile(nl.from_torch(lambda x: x.softmax(-1), torch.zeros(2, 8))).with_gradients()
    x = torch.randn(3, 8, device=DEVICE)
    for mode in ("fake", "symbolic"):
        with pytest.raises(LaunchError, match=r"expected \(2, 8\)"):
            make_fx(function, tracing_mode=mode)(x)
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)  # (as torch.export sets it, for all threads)
    torch.testing.assert_close(function(x), x.softmax(-1))

    results: list[Any] = []

    def traced(y: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            results.append(pool.submit(function, x).result())
        return y + 1

    make_fx(traced, pre_dispatch=True)(x)
    torch.testing.assert_close(results, [x.softmax(-1)])
