"""Parts of a loop that differ in a mask share a body, and give the same bits as loops of their own."""

from __future__ import annotations

import by_name
import numpy as np
import pytest
import torch

from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile.nodes import Access, Arith, Elementwise, For, Int, Iota, Literal, Name, NewAxis, Slice, Store
from neptune_lab.htile_to_gluon import shared_body
from neptune_lab.htile_to_gluon.structure import LoopPart
from neptune_lab.operators import attention

SHORT = {
    "right edge": (lambda: attention.causal(heads=1, seq=256, head_dim=64), 1),
    "both edges": (lambda: attention.window(heads=1, seq=512, head_dim=64, window=320), 2),
    "both edges, and lengths between tiles": (lambda: attention.window(heads=1, seq=517, head_dim=64, window=320), 2),
    "a chunk that ends between tiles": (lambda: attention.causal(1, 1, q_len=131, kv_len=300, head_dim=64), 1),
    "a prefix and a bias": (
        lambda: attention.general(
            1, 1, 200, 260, 64, lambda s, b, h, q, k: s + 0.1 * (k - q), lambda b, h, q, k: (k < 70) | (q + 60 >= k)
        ),
        1,
    ),
}


def loops_of(source: str) -> list[str]:
    """The loops and branches over tiles in the consumer."""
    lines = [line.strip() for line in source.split("_consumer(")[1].split("_consumer,")[0].splitlines()]
    return [line for line in lines if line.startswith("for step in") or (line.startswith("if") and "edge" in line)]


def outputs(operator, kernel) -> np.ndarray:
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in operator.random_inputs(0).values()]
    return Simulator(kernel.source, 5)(kernel.triton.entry, *tensors).numpy()


@pytest.mark.one_in(10)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", SHORT)
def test_the_bits_are_those_of_loops_of_their_own(name, persistent, monkeypatch):
    make, edges = SHORT[name]
    options = {"code": "gluon", "block_q": 128, "block_kv": 64, "persistent": persistent}
    shared = by_name.compile(make(), "rolling_update", **options)
    monkeypatch.setattr(shared_body, "_shared", lambda parts, env: None)
    apart = by_name.compile(make(), "rolling_update", **options)
    kinds = [line.split()[0] for line in loops_of(shared.source)]
    assert kinds == ["for", *["if"] * edges]
    assert [line.split()[0] for line in loops_of(apart.source)] == ["for"] * (edges + 1)
    operator = make()
    assert np.array_equal(outputs(operator, shared), outputs(operator, apart))


@pytest.mark.nightly
def test_a_tile_between_two_edges_shares_their_body():
    operator = attention.window(q_len=112, kv_len=211, head_dim=32, window=128)
    kernel = by_name.compile(operator, "rolling_update", code="gluon", block_q=64, block_kv=32)
    assert [line.split()[0] for line in loops_of(kernel.source)] == ["for", "if", "if"]
    expected = operator.reference(*operator.random_inputs(0).values())
    np.testing.assert_allclose(outputs(operator, kernel), expected, atol=2e-3)


@pytest.mark.nightly
def test_long_kernels_share_too():
    kernel = by_name.compile(attention.window(heads=32, seq=16384, head_dim=128, window=2048), code="gluon")
    assert [line.split()[0] for line in loops_of(kernel.source)] == ["for", "if", "if"]


@pytest.mark.parametrize(("size", "downward", "dropped"), [(130, True, True), (130, False, False), (192, False, True)])
def test_only_conditions_that_hold_in_every_other_tile_are_dropped(size, downward, dropped):
    """Of three tiles of 64 columns, the last is the first one downward; upward it is tile 0."""
    j = Slice(Arith("*", Name("j0"), Int(64)), 64, "j1")
    tile = Access("s", (Slice(Int(0), 64, "i"), j))
    condition = Elementwise("lt", (Iota((NewAxis(), j)), Literal(size, "int32")), "bool")
    store = Store("n", tile, Elementwise("where", (condition, tile, Literal(0.0, "float32")), "float32"), "s")
    loop = For("l", "j0", Int(0), Int(3), (store,), "s")
    part = shared_body._after_first(LoopPart(loop, (), (store,), (), (), True), {}, downward=downward)
    assert (part.middle[0].value == tile) is dropped
