"""Regions compute what their nodes compute, equal regions are compiled once, and what is refused says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch_regions.graphs import traced

from neptune_lab.torch_regions import Partition, Region, all_apart, partition
from neptune_lab.torch_regions.compiled import forget_regions

X, ROW, W = torch.randn(4, 32), torch.randn(32), torch.randn(32, 32)


def block(x, weight, w, mask):
    for _ in range(2):
        y = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        heads = (y @ w).view(4, 4, 8).transpose(0, 1)
        scores = heads @ heads.transpose(-2, -1) / 3.0 + mask
        x = (torch.softmax(scores, dim=-1) @ heads).transpose(0, 1).reshape(4, 32)
    return x.topk(2).values


INPUTS = (X, ROW, W, torch.zeros(4, 4))


@pytest.fixture(scope="module")
def found() -> Partition:
    graph = traced(block, *INPUTS)
    return partition(graph, [n for n in graph.nodes if n.name == "w_1"])


@pytest.mark.nightly
def test_every_chain_is_compiled(found: Partition):
    assert [r.title for r in found.regions] == ["norm", "attention", "norm", "attention"]
    assert found.holding("norm") == found.holding("attention") == (2, 0)


def test_every_operation_is_in_one_part(found: Partition):
    names = [name for part in (*found.regions, *found.apart) for name in part.nodes]
    assert sorted(names) == sorted(n.name for n in found.graph.nodes if n.op == "call_function")


def test_equal_regions_share_a_kernel(found: Partition):
    first, second, third, fourth = found.regions
    assert first.kernel is third.kernel
    assert second.kernel is fourth.kernel


def test_bytes_of_a_norm(found: Partition):
    norm = found.regions[0]
    x, row, column = 4 * 4 * 32, 4 * 32, 4 * 4
    operations = (x + x) + (x + column) + 2 * column + 2 * column + (x + column + x) + (row + x + x)
    assert norm.before == operations
    assert norm.after == x + row + x
    assert norm.after < norm.before


def test_reasons_name_the_operation(found: Partition):
    reasons = {name: part.reason for part in found.apart for name in part.nodes}
    assert "looks through all others" in reasons["topk"]
    assert "cuBLAS" in reasons["mm"]
    assert "views" in reasons["transpose"]


@pytest.mark.parametrize("function", [lambda x: x.softmax(-1) * x.median(), lambda x: x.softmax(-1) * x.median(0)[0]])
def test_the_reason_of_an_operation_that_is_taken_in_a_function_alone(function: Callable[[torch.Tensor], torch.Tensor]):
    reasons = {name: part.reason for part in partition(traced(function, X)).apart for name in part.nodes}
    assert "looks through all others" in reasons["median"]


def test_the_record_is_plain_data(found: Partition):
    data = found.as_record()
    assert [r["holds"][0]["kind"] for r in data["regions"]] == ["norm", "attention", "norm", "attention"]
    assert {n["name"] for n in data["nodes"]} >= set(data["regions"][0]["nodes"])


def _computed(region: Region, values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What a region's kernel gives, in the layout of the whole graph."""
    extract = region.extract
    given = [values[n.name].permute(o) for n, o in zip(extract.inputs, extract.input_orders, strict=True)]
    made = region.kernel(*given)
    made = made if isinstance(made, tuple) else (made,)
    return [t.permute([o.index(d) for d in range(len(o))]) for t, o in zip(made, extract.output_orders, strict=True)]


def test_kernels_give_what_the_nodes_give(found: Partition):
    values: dict[str, torch.Tensor] = {}

    class Kept(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            values[n.name] = super().run_node(n)
            return values[n.name]

    Kept(torch.fx.GraphModule(torch.nn.Module(), found.graph)).run(*INPUTS)
    for region in found.regions:
        for node, made in zip(region.extract.outputs, _computed(region, values), strict=True):
            torch.testing.assert_close(made, values[node.name])
            assert made.stride() == values[node.name].stride()


def test_a_refused_region_says_why():
    graph = traced(lambda x: torch.softmax(x, -1), torch.randn(4, 8).to(torch.float8_e4m3fn).to(torch.float16)[:, ::3])
    assert partition(graph).holding("softmax") == (1, 0)
    graph = traced(lambda x, y: F.mse_loss(torch.softmax(torch.fmod(x, 3.0), -1), y), X, X)
    (refused,) = [part for part in partition(graph).apart if part.holds]
    assert refused.reason.startswith("refused: ")
    assert "fmod" in refused.reason


def test_a_graph_of_which_nothing_is_compiled():
    found = all_apart(traced(block, *INPUTS), "no kernels here")
    assert found.regions == ()
    assert found.holding("attention") == (0, 2)
    assert {part.reason for part in found.apart} == {"no kernels here"}


@pytest.mark.nightly
def test_a_triangular_mask_is_computed_where_it_is_read():
    """So that loops skip the tiles that it hides, and it is not read from memory."""

    def causal(q, k, v):
        mask = torch.ones(32, 32, dtype=torch.bool).tril()
        return ((q @ k.mT).masked_fill(~mask, -torch.inf)).softmax(-1) @ v

    (region,) = partition(traced(causal, *torch.randn(3, 2, 32, 16))).regions
    assert len(region.inputs) == 3


@pytest.mark.nightly
def test_a_literal_tensor_is_a_number_of_the_region():
    def function(q, k, v):
        scores = q @ k.mT / torch.sqrt(torch.tensor(16.0))
        mask = torch.ones(32, 32, dtype=torch.bool).tril()
        return torch.where(mask, scores, torch.tensor(torch.finfo(q.dtype).min)).softmax(-1) @ v

    inputs = torch.randn(3, 2, 32, 16)
    (region,) = partition(traced(function, *inputs)).regions
    assert [spec.shape for spec in region.inputs] == [(2, 32, 16), (2, 16, 32), (2, 32, 16)]
    torch.testing.assert_close(region.kernel(*inputs), function(*inputs))


@pytest.mark.nightly
def test_a_tensor_that_is_read_for_its_shape_is_no_input():
    def function(x, y):
        return torch.softmax(torch.ops.aten.copy(y, x) * torch.full_like(y, 3), -1) + torch.ones_like(y)

    x = torch.randn(1, 24)
    (region,) = partition(traced(function, x, torch.randn(5, 24))).regions
    assert [spec.shape for spec in region.inputs] == [(1, 24)]
    torch.testing.assert_close(region.kernel(x), function(x, torch.empty(5, 24)))


def test_a_region_on_which_the_compiler_fails_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise RecursionError("too deep")

    forget_regions()
    monkeypatch.setattr("neptune_lab.torch_to_stages.from_graph", fails)
    found = partition(traced(lambda x: torch.softmax(x, -1), torch.randn(5, 24)))
    (apart,) = found.apart
    assert [h.kind for h in apart.holds] == ["softmax"]
    assert apart.reason.startswith("refused: the compiler failed: RecursionError: too deep")
    forget_regions()
