"""Kernels of a graph's regions are compiled side by side, and a launch waits for its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neptune_lab.errors import LaunchError
from neptune_lab.torch_regions import launch
from neptune_lab.torch_regions.launch import RegionLaunch, operators_of


class Tensor(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda", 1)  # type: ignore[assignment]


class Region:
    """A region with the fields that are read."""

    def __init__(self, kernel: Any, sizes: object = None) -> None:
        self.kernel, self.sizes = kernel, sizes


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, torch.device]]:
    """What is begun, and `operator_of` that gives what the launch waits for."""
    found: list[tuple[Any, torch.device]] = []

    def begin(spec: Any, device: torch.device):
        found.append((spec, device))
        return f"wait for {spec}"

    monkeypatch.setattr(launch, "begun", begin)
    monkeypatch.setattr(launch, "operator_of", lambda region, wait: wait)
    return found


def test_each_kernel_is_begun_once_and_every_region_waits_for_its_own(begun):
    a, b = SimpleNamespace(spec="a"), SimpleNamespace(spec="b")
    regions: list[Any] = [Region(a), Region(b), Region(a), Region(SimpleNamespace(spec="c"), sizes=object())]
    gpu = torch.zeros(2).as_subclass(Tensor)
    made = operators_of(regions, [3, torch.zeros(2), gpu])
    assert begun == [("a", gpu.device), ("b", gpu.device)]
    assert [made[region] for region in regions] == ["wait for a", "wait for b", "wait for a", None]


def test_on_a_cpu_nothing_is_begun(begun):
    regions: list[Any] = [Region(SimpleNamespace(spec="a"))]
    assert operators_of(regions, [torch.zeros(2)]) == {regions[0]: None}
    assert not begun


def test_the_first_launch_waits():
    order: list[str] = []

    def kernel(*tensors: torch.Tensor) -> torch.Tensor:
        order.append("launched")
        raise LaunchError("too little shared memory")

    kernel.spec = SimpleNamespace(inputs=())  # type: ignore[attr-defined]
    module: Any = lambda: [torch.ones(3)]  # noqa: E731
    region = RegionLaunch(kernel, module, lambda: order.append("waited"))  # type: ignore[arg-type]
    assert region().sum() == 3
    assert region().sum() == 3, "it is refused once, and then runs in torch"
    assert order == ["waited", "launched"]
