"""Descriptors by address and sizes: encoded as Triton does, and never those of another address or size."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neptune_lab.runtime import kept_descriptors
from neptune_lab.runtime.kept_descriptors import Descriptors, SizedDescriptors

META = {"swizzle": 3, "elem_size": 2, "elem_type": 9, "block_size": [1, 64, 64], "fp4_padded": False}


class Made:
    """Triton's class of a descriptor, as far as `make_tensordesc_arg` reads it."""

    padding, round_f32_to_tf32 = "zero", False

    def __init__(self, base: Any, shape: Any, strides: Any, block: Any) -> None:
        self.base, self.shape, self.strides, self.block = base, shape, strides, block


@pytest.fixture
def encoder(monkeypatch):
    """Triton's utilities: a descriptor is what it was encoded from."""
    from triton.backends.nvidia import driver
    from triton.runtime.driver import driver as active

    names = "fill_tma_descriptor", "fill_tma_descriptor_tiled"  # Triton 3.6 and 3.7
    utils = SimpleNamespace(**{name: lambda *given: ("encoded", *given) for name in names})
    monkeypatch.setattr(type(active), "active", property(lambda self: SimpleNamespace(utils=utils)))
    return driver


def described(n: int, m: int) -> tuple[Any, ...]:
    return [4, n, 64], [n * m, m, 1], [1, 64, 64]


def test_later_sizes_are_encoded_as_the_first(encoder):
    """The first descriptor is Triton's own; the others have the same fields."""
    draw = random.Random(0)
    quick = SizedDescriptors(Made, described, [None, META], 1)
    tensor = torch.zeros(4, dtype=torch.float16)
    for _ in range(20):
        address, n, m = 16 * draw.randint(1, 999), draw.randint(1, 99), draw.randint(1, 99)
        found = quick(tensor, address, n, m)
        fresh = SizedDescriptors(Made, described, [None, META], 1)
        own = fresh(tensor, address, n, m)  # the first one, by `make_tensordesc_arg`
        assert found == own
        assert own[0][:5] == ("encoded", address, 3, 2, encoder.TMA_DTYPE_DEVICE_TO_HOST[9])
        assert own[1:] == [4, n, 64, n * m, m, 1]
        assert quick._encode is not None
        assert quick.kept[address, n, m] is found


@pytest.mark.parametrize("meta", [None, {**META, "fp4_padded": True}])
def test_other_kinds_are_made_by_triton(encoder, meta: Any):
    quick = SizedDescriptors(Made, described, [meta], 0)
    tensor = torch.zeros(4, dtype=torch.float16)
    for n in (5, 6):
        found = quick(tensor, 32, n, 8)
        assert quick._encode is None
        assert list(found[-3:]) == [n * 8, 8, 1]


def test_without_kinds_they_stay_descriptors():
    """Triton then makes the arguments of each launch itself."""
    kept = SizedDescriptors(Made, described, None, 0)
    tensor = torch.zeros(4, dtype=torch.float16)
    first, second = kept(tensor, 32, 5, 8), kept(tensor, 32, 6, 8)
    assert (first.shape, second.shape) == ([4, 5, 64], [4, 6, 64])
    assert kept.kept == {(32, 5, 8): first, (32, 6, 8): second}
    assert not isinstance(first.base, torch.Tensor)  # it would keep the tensor's memory


def test_full_tables_are_emptied_and_stay_the_same_objects(monkeypatch):
    """Launchers hold the tables' `get`."""
    monkeypatch.setattr(kept_descriptors, "MOST", 3)
    tensor = torch.zeros(4, dtype=torch.float16)
    sized, fixed = SizedDescriptors(Made, described, None, 0), Descriptors(Made, ([4], [1], [4]), None, 0)
    get, get_fixed = sized.kept.get, fixed.kept.get
    for n in range(10):
        assert get((n, n, 8)) is None
        assert get_fixed(n) is None
        assert (sized(tensor, n, n, 8), fixed(tensor, n)) == (get((n, n, 8)), get_fixed(n))
        assert max(len(sized.kept), len(fixed.kept)) <= 3
