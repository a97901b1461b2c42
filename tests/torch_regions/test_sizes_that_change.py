"""torch.compile(backend="neptune_lab") on sizes that change: one kernel for all, and what is compiled again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from neptune_lab.errors import LaunchError, TileError
from neptune_lab.runtime.load import LoadedKernel
from neptune_lab.torch_regions import Partition
from neptune_lab.torch_regions.backend import backend, recorded_partitions
from neptune_lab.torch_regions.partition import SYMBOLIC
from neptune_lab.torch_regions.sizes import SizedLaunch, sized_operator

ROW = torch.randn(32)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def reasons(found: list[Partition]) -> set[str]:
    return {apart.reason for part in found for apart in part.apart}


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
