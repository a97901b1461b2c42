"""torch.compile(…, backend="neptune_lab") gives the numbers of eager PyTorch, and records what it compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.load import LoadedKernel
from neptune_lab.torch_regions import Partition
from neptune_lab.torch_regions.backend import backend, recorded_partitions
from neptune_lab.torch_regions.launch import NO_KERNELS
from neptune_lab.torch_regions.partition import KEEPS_MORE, OWN_KERNEL

X, ROW, W = torch.randn(4, 32), torch.randn(32), torch.randn(32, 32)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compared(
    function: Callable[..., Any], *inputs: Any, tolerance: float | None = None, **options: Any
) -> list[Partition]:
    """Calls `function` as it is and compiled, compares results, strides and inputs, and gives the partitions.

    `tolerance` is relative and absolute; None for that of the results' dtype.
    """
    mine, theirs = (pytree.tree_map_only(torch.Tensor, _copied, inputs) for _ in range(2))
    with recorded_partitions() as found:
        got = torch.compile(function, backend=backend, **options)(*mine)
    want = function(*theirs)
    torch.testing.assert_close((got, mine), (want, theirs), rtol=tolerance, atol=tolerance)
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        assert not isinstance(a, torch.Tensor) or a.stride() == b.stride()
    return found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def titles(found: list[Partition]) -> list[str]:
    return [region.title for part in found for region in part.regions]


def reasons(found: list[Partition]) -> set[str]:
    return {apart.reason for part in found for apart in part.apart}


def views_and_mutation(x, weight, w):
    y = rms_norm(x, weight)
    x.add_(1)
    return y.view(-1)[:3], y.t(), {"none": None, "number": 3, "x": x}, (x, y @ w)


def in_another_layout(x, weight, w):
    return rms_norm(x.t(), weight[:4])


def broken(x, weight, w):
    y = rms_norm(x, weight)
    torch._dynamo.graph_break()
    return rms_norm(y @ w, weight)


def random_numbers(x, weight, w):
    torch.manual_seed(0)
    first = torch.rand(4, 32)
    return rms_norm(x + first, weight), torch.rand(4)


def autocast(x, weight, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return rms_norm(x @ w, weight)


CASES = {
    "views_and_mutation": (views_and_mutation, ["norm"]),
    "in_another_layout": (in_another_layout, ["norm"]),
    "broken": (broken, ["norm", "norm"]),
    "random_numbers": (random_numbers, ["norm"]),
    "autocast": (autocast, ["norm"]),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", CASES)
def test_numbers_strides_and_inputs_are_those_of_eager(case: str):
    function, holds = CASES[case]
    # Under autocast, eager PyTorch rounds each step to bfloat16 and gives float32.
    tolerance = 2**-6 if function is autocast else None
    with torch.inference_mode():
        assert titles(compared(function, X, ROW, W, tolerance=tolerance)) == holds


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype):
    with torch.no_grad():
        assert titles(compared(rms_norm, X.to(dtype), ROW.to(dtype))) == ["norm"]


def test_an_empty_batch_is_left_to_torch():
    with torch.no_grad():
        assert titles(compared(rms_norm, X[:0], ROW)) == []


@pytest.mark.nightly
def test_the_rest_by_inductor():
    with torch.no_grad():
        found = compared(views_and_mutation, X, ROW, W, options={"rest": "inductor"})
    assert titles(found) == ["norm"]


def first_of_a_cache(x: torch.Tensor, weight: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Keys of heads after an empty cache, whose strides Inductor's definition of `cat` takes over."""
    heads = rms_norm(x, weight).view(4, 2, 16).transpose(0, 1)[None]
    return torch.cat([held, heads], -2).view(2, 4, 16) + 1


@pytest.mark.nightly
def test_a_view_of_what_inductor_lays_out_otherwise(monkeypatch, caplog):
    import torch._inductor.compile_fx as inductor

    monkeypatch.setattr(inductor, "compile_fx_inner", lambda lowered, *_, **__: make_boxed_func(lowered.forward))
    with torch.no_grad():
        found = compared(first_of_a_cache, X, ROW, torch.empty(0), options={"rest": "inductor"})
    assert titles(found) == ["norm"]
    assert "Inductor failed" not in caplog.text


def test_what_inductor_refuses_runs_operation_by_operation(monkeypatch):
    import torch._inductor.compile_fx as inductor

    def refuses(*_: object, **__: object) -> None:
        raise ValueError("cannot view a tensor of this shape")

    monkeypatch.setattr(inductor, "compile_fx_inner", refuses)
    with torch.no_grad():
        found = compared(views_and_mutation, X, ROW, W, options={"rest": "inductor"})
    assert titles(found) == ["norm"]


def trained(function: Callable[..., Any], *inputs: Any, tolerance: float | None = None) -> list[Partition]:
    """Compares results and gradients of `function` as it is and compiled, and gives the partitions."""
    mine, theirs = ([_leaf(t) if isinstance(t, torch.Tensor) else t for t in inputs] for _ in range(2))
    with recorded_partitions() as found:
        got = torch.compile(function, backend=backend)(*mine)
        want = function(*theirs)
        given = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
        got.backward(given)
    want.backward(given)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
    return found


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    made = _copied(tensor)
    return made.requires_grad_() if made.is_floating_point() else made


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask).tanh()


def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w, target)


GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], list[list[str]]]] = {
    "norm": (rms_norm, (X, ROW), [["norm"], ["norm"]]),
    "softmax": (lambda x: torch.softmax(x, -1), (X,), [["softmax"], ["reduction"]]),
    "layer_norm": (lambda x, w, b: F.gelu(F.layer_norm(x, (32,), w, b)), (X, ROW, ROW + 1), [["norm"], ["reduction"]]),
    "loss": (loss, (X, W, torch.arange(4)), [["loss"], ["reduction"]]),
    "attention": (attended, (*torch.randn(3, 1, 2, 20, 8), torch.randn(20, 20)), [[], []]),
    "spelled": (
        lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
        tuple(torch.randn(3, 2, 20, 8)),
        [["attention"], ["product", "reduction"]],
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", GRADIENTS)
def test_forward_and_backward_graphs_have_regions(name: str):
    function, inputs, wanted = GRADIENTS[name]
    found = trained(function, *inputs, tolerance=1e-5 if name in ("attention", "spelled") else None)
    holds = [sorted({kind for r in part.regions for kind in r.title.split(", ")}) for part in found]
    assert holds == wanted
    assert (OWN_KERNEL in reasons(found)) == (name == "attention")


def test_attention_that_this_package_does_not_take_is_torchs():
    inputs = torch.randn(3, 1, 2, 20, 8, dtype=torch.float64)
    found = trained(lambda *t: F.scaled_dot_product_attention(*t) * 2, *inputs)
    assert OWN_KERNEL not in reasons(found)
    assert KEEPS_MORE in reasons(found)


def test_a_module_trains_with_dropout_and_buffers():
    """Parameters of modules get gradients, random numbers are those that the forward pass drew, and buffers change."""
    torch.manual_seed(0)
    own = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.5))
    own.append(torch.nn.LayerNorm(32))
    theirs = copy.deepcopy(own)
    for model in (own, theirs):
        torch.manual_seed(1)
        run = torch.compile(model, backend=backend) if model is own else model
        run(X).square().mean().backward()
    mine, other = (dict(m.named_parameters()) | dict(m.named_buffers()) for m in (own, theirs))
    for name, value in mine.items():
        torch.testing.assert_close(value, other[name], msg=name)
        torch.testing.assert_close(value.grad, other[name].grad, msg=name)


def test_an_unknown_option_is_refused():
    with pytest.raises(Exception, match="has no option rest='c'"):
        torch.compile(rms_norm, backend=backend, options={"rest": "c"})(X, ROW)


def test_without_interpreter_and_gpu_all_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("neptune_lab.torch_regions.launch.interpreting", lambda: False)
    with torch.no_grad():
        found = compared(rms_norm, X, ROW)
    assert reasons(found) == {NO_KERNELS}


def test_a_kernel_that_cannot_be_launched_falls_back(monkeypatch: pytest.MonkeyPatch):
    def refuses(self: Any, *tensors: torch.Tensor) -> Any:
        calls.append(len(tensors))
        raise LaunchError("too little shared memory", help="smaller tiles")

    calls: list[int] = []
    monkeypatch.setattr(LoadedKernel, "__call__", refuses)
    # A size of its own: an operator of an earlier test would keep its kernel's state.
    x, row = torch.randn(3, 24), torch.randn(24)
    with torch.no_grad():
        assert titles(compared(rms_norm, x, row)) == ["norm"]
    assert calls == [2]


def test_several_threads():
    inputs = [torch.randn(4, 32) for _ in range(4)]
    compiled = torch.compile(rms_norm, backend=backend)
    found: dict[int, torch.Tensor] = {}

    def call(n: int) -> None:
        with torch.no_grad():
            found[n] = compiled(inputs[n], ROW)

    threads = [Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, x in enumerate(inputs):
        torch.testing.assert_close(found[n], rms_norm(x, ROW))


@pytest.mark.nightly
def test_attention_of_a_packed_projection_and_a_loss():
    def function(x, w, target):
        q, k, v = (x @ w).view(2, 8, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(16, 32)
        return F.cross_entropy(out, target)

    with torch.no_grad():
        found = compared(function, torch.randn(2, 8, 32), torch.randn(32, 96), torch.arange(16))
    assert sorted(titles(found)) == ["attention", "loss"]


@pytest.mark.nightly
def test_a_region_reads_what_another_one_gives():
    """The attention could compute its mask from a row of the region before, which that region does not give."""

    def function(x, q, k, v):
        row = torch.softmax(x, -1).amax(-1, keepdim=True)
        mask = row > torch.linspace(0, 1, 32)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), mask

    with torch.no_grad():
        found = compared(function, torch.randn(32, 8), *torch.randn(3, 1, 2, 32, 16))
    assert [t.split(", ")[-1] for t in titles(found)] == ["reduction", "attention"]


def test_the_backend_is_found_by_its_name():
    from torch._dynamo.backends.registry import lookup_backend

    assert lookup_backend("neptune_lab") is backend


def test_an_index_out_of_range_on_the_cpu_raises_what_torch_raises():
    def losses(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, labels, reduction="none")

    (found,) = compared(losses, X, torch.tensor([0, 31, 2, 1]))
    assert found.regions
    compiled = torch.compile(losses, backend=backend)
    for labels, fits in (([0, 31, 2, 1], True), ([0, 32, 2, 1], False), ([0, -100, 2, 1], True)):
        inputs = X, torch.tensor(labels)
        if fits:
            torch.testing.assert_close(compiled(*inputs), losses(*inputs))
        else:
            with pytest.raises(IndexError, match="Target 32 is out of bounds"):
                compiled(*inputs)
