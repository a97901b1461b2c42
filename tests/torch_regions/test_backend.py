"""torch.compile(…, backend="neptune_lab") gives the numbers of eager PyTorch, and records what it compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from neptune_lab.errors import LaunchError, TileError
from neptune_lab.runtime.load import LoadedKernel
from neptune_lab.torch_regions import Partition
from neptune_lab.torch_regions.backend import backend, recorded_partitions
from neptune_lab.torch_regions.launch import NO_KERNELS
from neptune_lab.torch_regions.partition import KEEPS_MORE, OWN_KERNEL, SYMBOLIC
from neptune_lab.torch_regions.sizes import SizedLaunch, sized_operator

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


def softmax_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) * 2


def attention_of_a_projection(x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(*x.shape[:2], 32)


def joined_sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.view(x.shape[0] * 2, -1), -1).view(x.shape)


CHANGING: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], bool]] = {
    "rows": (softmax_of_rows, [(5, 16), (6, 16), (7, 16), (130, 16)], True),
    "a length": (attention_of_a_projection, [(1, 16, 96), (1, 33, 96), (1, 40, 96), (1, 7, 96)], True),
    "a product of sizes": (joined_sizes, [(4, 8, 16), (5, 8, 16), (6, 8, 16)], False),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name == "a length" else name for name in CHANGING]
)
def test_one_kernel_for_a_size_that_changes(name: str):
    """Also if Dynamo makes the size a symbol: the second graph's region has a kernel for all sizes, or one per size."""
    function, shapes, for_all = CHANGING[name]
    compiled = torch.compile(function, backend=backend)
    with torch.inference_mode(), recorded_partitions() as found:
        for shape in shapes:
            x = torch.randn(shape)
            got, want = compiled(x), function(x)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
    assert [len(part.regions) for part in found] == [1, 1]
    sizes = found[1].regions[0].sizes
    assert sizes is not None
    assert (sizes.kernel is not None) is for_all, sizes.refusal
    assert SYMBOLIC not in reasons(found)


@pytest.mark.nightly
def test_rows_that_change_in_training():
    """Forward and backward graphs have one kernel each for all numbers of rows."""
    compiled = torch.compile(rms_norm, backend=backend)
    weight = ROW.clone().requires_grad_()
    with recorded_partitions() as found:
        for rows in (4, 6, 9, 33):
            x, given = torch.randn(rows, 32, requires_grad=True), torch.randn(rows, 32)
            got = torch.autograd.grad(compiled(x, weight), (x, weight), given)
            torch.testing.assert_close(got, torch.autograd.grad(rms_norm(x, weight), (x, weight), given))
    assert all(region.sizes is not None for part in found[2:] for region in part.regions)
    assert [len(part.regions) for part in found] == [1, 1, 1, 1]


@pytest.mark.nightly
def test_all_sizes_from_the_first_call():
    compiled = torch.compile(softmax_of_rows, backend=backend, dynamic=True)
    with torch.inference_mode(), recorded_partitions() as found:
        for shape in ((5, 16), (6, 30), (1, 16)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), softmax_of_rows(x))
    assert found[0].regions[0].sizes is not None


@pytest.mark.nightly
def test_no_transform_takes_the_derivative_of_a_region_for_all_sizes_to_be_0():
    x = torch.randn(5, 16)
    with torch.inference_mode(), recorded_partitions() as found:
        torch.compile(softmax_of_rows, backend=backend, dynamic=True)(x)
    sizes = found[0].regions[0].sizes
    assert sizes is not None
    op = sized_operator(sizes)
    values = [5, 16][: len(sizes.names)]
    torch.testing.assert_close(op([x], values)[0], softmax_of_rows(x))
    with pytest.raises(LaunchError, match="records gradients, and the region's kernel has no backward"):
        torch.func.grad(lambda x: op([x], values)[0].sum())(x)
    with pytest.raises(LaunchError, match="carries a forward gradient"):
        torch.func.jvp(lambda x: op([x], values)[0], (x,), (x,))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What regions whose kernels for all sizes are refused launch at each of their sizes."""

    def refused(*_: Any) -> Any:
        raise TileError("no kernel for all sizes", help="")

    monkeypatch.setattr("neptune_lab.torch_regions.sizes.kernel_for_sizes", refused)
    launches: list[Any] = []
    own = SizedLaunch._kernel
    monkeypatch.setattr(SizedLaunch, "_kernel", lambda self, *given: launches.append(own(self, *given)) or launches[-1])
    return launches


@pytest.mark.nightly
def test_a_region_without_a_kernel_for_all_sizes_compiles_few_and_then_runs_in_torch(launches: list[Any]):
    compiled = torch.compile(lambda x: torch.log_softmax(x, -1) * 3, backend=backend)
    with torch.inference_mode():
        for rows in (5, 6, 7, 8, 9, 10, 6):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(compiled(x), torch.log_softmax(x, -1) * 3)
    kinds = [isinstance(one, LoadedKernel) for one in launches]
    assert kinds == [True, True, True, True, False, True]  # of rows 6 to 10, and 6 again


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x.softmax(-1) * n,
        lambda x, n: torch.where(torch.arange(8) < n, x, -1e9).softmax(-1),
        lambda x, n: (x * n).softmax(-1) + n // 2,
    ],
)
def test_an_integer_argument_that_changes_is_read_at_each_call(function: Callable[..., Any]):
    """It is a symbol from the second value on, and no size of a tensor."""
    compiled = torch.compile(function, backend=backend)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        for n in (3, 4, 5, 7):
            torch.testing.assert_close(compiled(x, n), function(x, n))


@pytest.mark.nightly
def test_tensors_that_torch_s_definition_of_attention_makes_are_fake(launches: list[Any]):
    """A causal mask met fake tensors at the second length, and the region ran in torch."""
    attention = partial(F.scaled_dot_product_attention, is_causal=True)
    compiled = torch.compile(lambda q, k, v: attention(q, k, v), backend=backend)
    for length in (3, 5):
        q, k, v = torch.randn(3, 1, 1, length, 8)
        torch.testing.assert_close(compiled(q, k, v), attention(q, k, v))
    assert [type(one) for one in launches] == [LoadedKernel]


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
