"""Which tensors are alike: those of another length, with the same other sizes, strides, dtype and device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neptune_lab.pytorch import known_calls
from neptune_lab.pytorch.alike import alike
from neptune_lab.runtime.tensor_guards import same_as

N = 24


def drawn(n: int = N, seed: int = 0, **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, n, 16, generator=generator, **options) for _ in range(3)]


def placed(*devices: str) -> list[Any]:
    """Tensors, as far as their devices are read."""
    found = [torch.device(device) for device in devices]
    numbers = [-1 if device.index is None else device.index for device in found]
    every = zip(found, numbers, strict=True)
    return [SimpleNamespace(device=d, is_cuda=d.type == "cuda", get_device=lambda n=n: n) for d, n in every]


def test_devices_are_told_apart():
    """Also those of one number: a kernel is compiled for one device, and its descriptors are of its memory."""
    names = ["cuda:0", "cuda:1", "xpu:0", "cpu", "meta"]
    every = [placed(a, b, c) for a in names for b in names for c in names]
    keys = [known_calls._devices(q, k, v) for q, k, v in every]
    assert len(set(keys)) == len(names) ** 3


def with_other(name: str) -> torch.Tensor:
    t = drawn(7)[0]
    made = {
        "dtype": lambda: t.half(),
        "heads": lambda: t[:, :1],
        "width": lambda: t[..., :8],
        "dimensions": lambda: t[0],
        "strides": lambda: t.transpose(1, 2).contiguous().transpose(1, 2),
        "device": lambda: t.to("meta"),
        "gradients": lambda: t.requires_grad_(),
        "sign": lambda: torch._neg_view(t),
        "class": lambda: torch.nn.Parameter(t, requires_grad=False),
        "layout": lambda: t.to_sparse(),
    }
    return made[name]()


OTHERS = ["dtype", "heads", "width", "dimensions", "strides", "device", "gradients", "sign", "class", "layout"]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_tensors_that_differ_in_more_than_their_length_are_not_alike(name: str, place: int, exact: bool):
    tells = same_as(drawn(7)) if exact else alike(drawn(5))
    assert tells is not None
    given = drawn(7)
    assert tells(*given)
    given[place] = with_other(name)
    assert not tells(*given)


def test_exactly_alike_tensors_have_all_sizes_and_strides():
    packed = torch.zeros(2, 7, 3 * 4, 16)
    q, k, v = (t.transpose(1, 2) for t in packed.chunk(3, 2))
    tells = same_as((q, k, v))
    assert tells is not None
    assert tells(*(t.transpose(1, 2) for t in torch.ones(2, 7, 12, 16).chunk(3, 2)))
    for other in (q.contiguous(), q[:, :, :6], q[:1], packed[:, :, :8].transpose(1, 2)[:, ::2]):
        assert not tells(other, k, v)
    assert not tells(q, k, k)  # (it goes the longer way)


def test_tensors_that_record_gradients_or_are_negated_have_nothing_alike():
    """Also where nothing is recorded now: the next call with them may record."""
    q, k, v = drawn()
    with torch.no_grad():
        assert alike((q, k.requires_grad_(), v)) is None
    assert alike((q, k.detach(), torch._neg_view(v))) is None  # (its launcher tests for negated values)
    tells = alike((q, k.detach(), v))
    assert tells is not None
    with torch.inference_mode():
        assert not tells(*drawn())  # (it goes the longer way)
