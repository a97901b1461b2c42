"""Lists of the tiles that a mask of positions shows are made by the first call on a device, and are right."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention
from neptune_lab.runtime.early import launches
from neptune_lab.runtime.load import load

LENGTH, TILE = 128, 8


def blocks(b, h, q, kv):
    return (q >= kv) & (q // 16 % 4 == kv // 16 % 4)


@cache
def kernel() -> nl.Kernel:
    operator = attention.general(1, 1, LENGTH, LENGTH, 16, mask_mod=blocks, dtype="float32")
    config = nl.TileConfig(block_q=TILE, block_kv=TILE)
    return nl.compile(operator, "rolling_update", config=config, validate="none")


@pytest.mark.nightly
def test_the_kernel_and_its_lists_give_the_definition():
    assert [k.name.split("_")[-1] for k in kernel().triton.kernels] == ["visible", "ranks", "list", "kernel"]
    assert kernel().relative_error() < 2e-6


def test_a_device_makes_them_once_and_graphs_before_that_their_own(monkeypatch: pytest.MonkeyPatch):
    module = load(kernel().spec).module
    made, waits = [], []
    monkeypatch.setattr(module, "_made", lambda device: made.append(device) or (len(made),))
    stream = SimpleNamespace(synchronize=lambda: waits.append(len(made)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    first, second, third = (torch.device("cuda", n) for n in range(3))
    assert [module._kept(device) for device in (first, first, second, first)] == [(1,), (1,), (2,), (1,)]
    assert waits == [1, 2], "other streams read them"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert [module._kept(device) for device in (first, third, third)] == [(1,), (3,), (4,)], (
        "a graph's may be given back"
    )
    assert waits == [1, 2], "a stream that is captured cannot be waited for"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert module._kept(third) == (5,)


def test_kernels_that_make_them_are_compiled_ahead_too(monkeypatch: pytest.MonkeyPatch):
    loaded = load(kernel().spec)
    from triton.runtime import jit

    monkeypatch.setattr(jit, "JITFunction", type(loaded.module.attention_general_list))
    assert len(launches(loaded)) == 4


@pytest.mark.nightly
def test_masks_whose_tiles_bounds_tell_have_no_list():
    for mask in (lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: q // 48 == kv // 48):
        operator = attention.general(1, 1, LENGTH, LENGTH, 16, mask_mod=mask, dtype="float32")
        config = nl.TileConfig(block_q=TILE, block_kv=TILE)
        made = nl.compile(operator, "rolling_update", config=config, validate="none")
        assert len(made.triton.kernels) == 1
        assert "_kept" not in made.source


def test_a_list_that_reads_an_input_is_made_at_each_call():
    table = np.tril(np.ones((16, 16), bool)) & (np.arange(16) % 3 == np.arange(16)[:, None] % 3)
    operator = attention.general(
        1, 8, LENGTH, LENGTH, 16, mask_mod=lambda b, h, q, kv: table[q // TILE, kv // TILE], dtype="float32"
    )
    config = nl.TileConfig(block_q=TILE, block_kv=TILE)
    made = nl.compile(operator, "rolling_update", config=config, validate="none")
    assert len(made.triton.kernels) == 4
    assert "_kept" not in made.source
