"""Known calls on packed sequences, by the launchers that compute places and attention at once.

These need a GPU; here `direct` writes them for the CPU, and each launch of an address is one of Triton's interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
from attention_reference import causal
from triton.runtime.jit import KernelInterface

import neptune_lab as nl
from neptune_lab.loop_schedule.templates import choose
from neptune_lab.pytorch import flex_attention, known_launches, packed
from neptune_lab.runtime import LoadedKernel, token_places, torch_state
from neptune_lab.runtime.direct import Compiled, direct

HEADS, WIDTH = 2, 16


def at(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose memory begins at an address."""
    return torch.frombuffer((ctypes.c_byte * 8).from_address(address), dtype=dtype)


def run_by_interpreter(jit: Any, dtypes: dict[str, torch.dtype], seen: list[Any]) -> Compiled:
    """A kernel that is "compiled": Triton's launch function, which takes addresses; the intermediates are float32, but
    for the numbers of tiles."""
    others = [name for name in jit.arg_names if name.endswith("_ptr") and name not in dtypes]
    dtypes |= {name: torch.int32 if "_tiles_" in name else torch.float32 for name in others}

    def run(x: int, y: int, z: int, *rest: Any) -> None:
        given = rest[6:]
        seen.append((jit.fn.__name__, given))
        pairs = zip(jit.arg_names, given, strict=True)
        jit[x, y, z](*[at(value, dtypes[name]) if name in dtypes else value for name, value in pairs])

    return Compiled(SimpleNamespace(run=run, function=0, packed_metadata=(4, 1, 0)), {})


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launches of direct launchers; every tensor is as on a GPU, and a call that is not known launches none."""
    seen: list[Any] = []
    made: dict[int, Any] = {}
    state = SimpleNamespace(seen=seen, current=None)

    def direct_on(self: LoadedKernel, device: torch.device) -> Any:
        if id(self) not in made:
            spec, module = self.spec, self.module
            of = [*spec.inputs, *spec.outputs]
            dtypes = {f"{tensor.name}_ptr": getattr(torch, tensor.dtype) for tensor in of}
            jits = {name: value for name, value in vars(module).items() if isinstance(value, KernelInterface)}
            kernels = {name: run_by_interpreter(jit, dtypes, seen) for name, jit in jits.items()}
            made[id(self)] = direct(spec.text, spec.entry, module, kernels, device, self._launch_any)
        return made[id(self)]

    def places_kernel(device: torch.device, of_q: torch.dtype, of_k: torch.dtype) -> Any:
        places = ("q_sequence", "k_sequence", "q_place", "k_place", "first_tile", "last_tile")
        dtypes = {"of_q": of_q, "of_k": of_k} | dict.fromkeys(places, torch.int32)
        return SimpleNamespace(compiled=run_by_interpreter(token_places._places, dtypes, seen).kernel)

    stream = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda index: 0))
    monkeypatch.setattr(triton.runtime, "driver", stream)
    monkeypatch.setattr(torch_state, "current_gpu", lambda: state.current)
    monkeypatch.setattr(LoadedKernel, "direct_on", direct_on)
    monkeypatch.setattr(known_launches, "places_kernel", places_kernel)
    monkeypatch.setattr(packed, "_is_here", lambda offsets: True)
    monkeypatch.setattr(packed, "_looks", [])
    monkeypatch.setattr(packed, "current_gpu", lambda: -1)
    flex_attention.forget()
    yield state
    flex_attention.forget()


def drawn(tokens: int, keys: int, seed: int, heads: int = HEADS) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, heads, n, WIDTH, generator=generator) for n in (tokens, keys, keys)]


def wanted(tensors: list[torch.Tensor], of_q: list[int], of_k: list[int], seen: Callable[..., Any]) -> torch.Tensor:
    """In float64, from a mask over all tokens."""
    q, k, v = (t.double() for t in tensors)
    i, j = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    (own, place), (other, other_place) = (
        (s := torch.bucketize(at, torch.tensor(of)[1:], right=True), at - torch.tensor(of)[s])
        for at, of in ((i, of_q), (j, of_k))
    )
    mask = (own[:, None] == other) & seen(own[:, None], 0, place[:, None], other_place)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num(0.0)


def everything(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv >= 0


BOUND = torch.tensor([3, 9, 2, 50, 4], dtype=torch.int32)


def bounded(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """A mask that reads positions, sequences and a tensor."""
    return (q >= kv) | (q + kv < BOUND[b])


OF_Q = [[0, 7, 7, 40, 41, 64], [0, 1, 2, 30, 30, 64], [0, 0, 0, 64, 64, 64]]
OF_K = [[0, 30, 34, 34, 90, 96], [0, 0, 40, 41, 80, 96], [0, 96, 96, 96, 96, 96]]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mask_mod", [None, causal, bounded])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "apart"])
def test_places_are_computed_with_the_launch(launches, alike: bool, mask_mod: Any, dynamic: bool):
    """The offsets are read at each call, also if they are changed in place; of new totals, if the kernel takes them."""
    of_q, of_k = (torch.zeros(6, dtype=dtype) for dtype in (torch.int32, torch.int64))
    for turn in range(6):
        one, other = OF_Q[turn % 3], OF_K[turn % 3]
        if dynamic:
            one, other = ([n * (turn + 5) // 8 for n in offsets] for offsets in (one, other))
        of_q.copy_(torch.tensor(one))
        of_k.copy_(torch.tensor(other))
        if alike:
            other = one
        given = drawn(one[-1], other[-1], turn)
        launches.seen.clear()
        options: dict[str, Any] = {} if alike else {"cu_seqlens_k": of_k}
        found = nl.attention(*given, mask_mod=mask_mod, cu_seqlens_q=of_q, dynamic=dynamic, **options)
        assert (found - wanted(given, one, other, mask_mod or everything)).abs().max() < 1e-5
        names = [name for name, _ in launches.seen]
        assert names[:1] == (["_places"] if turn else [])
    (_, arguments), *_ = launches.seen
    positions = [arguments[n + 2] != arguments[n] for n in (2, 3)]
    assert positions == [mask_mod is bounded or (mask_mod is causal and not alike)] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "apart"])
def test_tiles_are_found_with_the_places(launches, monkeypatch, alike: bool, dynamic: bool):
    """Kernels that visit tiles of keys of some sequences find them from the offsets, by no launches of their own."""
    monkeypatch.setattr(choose, "TILES_TO_SPLIT", 1 << 20)
    of_q, of_k = torch.zeros(6, dtype=torch.int32), torch.zeros(6, dtype=torch.int64)
    for turn in range(3):
        one = [0, [1, 90, 150][turn], 150, 180, 190, 200 + turn * dynamic]
        other = one if alike else [0, 70, [150, 70, 70][turn], 200, 240, 250 + turn * dynamic]
        of_q.copy_(torch.tensor(one))
        of_k.copy_(torch.tensor(other))
        given = drawn(one[-1], other[-1], turn, heads=3)  # (other kernels than those of the test before, with splits)
        launches.seen.clear()
        options: dict[str, Any] = {} if alike else {"cu_seqlens_k": of_k}
        found = nl.attention(*given, mask_mod=causal, cu_seqlens_q=of_q, dynamic=dynamic, **options)
        assert (found - wanted(given, one, other, causal)).abs().max() < 1e-5
    assert [name for name, _ in launches.seen] == ["_places", "attention_general_kernel"]


def test_what_a_launcher_does_not_take(launches):
    """Unaligned addresses, another GPU, negated values and other dtypes of offsets: right, by another way."""
    of_q = torch.tensor([0, 3, 16], dtype=torch.int32)
    flat = [torch.randn(HEADS * 16 * WIDTH + 1) for _ in range(3)]
    aligned = drawn(16, 16, 0)
    shifted = [t[1:].view(1, HEADS, 16, WIDTH) for t in flat]
    negated = [torch._neg_view(-t) for t in aligned]

    def check(given: Any, offsets: torch.Tensor, kernels: int) -> None:
        launches.seen.clear()
        found = nl.attention(*given, mask_mod=causal, cu_seqlens_q=offsets)
        assert (found - wanted(given, offsets.tolist(), offsets.tolist(), causal)).abs().max() < 1e-5
        assert len(launches.seen) == kernels

    for kernels in (0, 2, 2):
        check(aligned, of_q, kernels)
    check(shifted, of_q, 0)
    check(negated, of_q, 0)
    check(aligned, of_q.long(), 2)
    check(aligned, torch.tensor([9, 0, 3, 16], dtype=torch.int32)[1:], 0)
    launches.current = 1
    check(aligned, of_q, 0)
    launches.current = None
    check(aligned, torch.tensor([0, 8, 9, 16], dtype=torch.int32), 2)
    recorded = [t.clone().requires_grad_() for t in aligned]
    for _ in range(2):
        check(recorded, of_q, 0)
