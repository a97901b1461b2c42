"""The order in which persistent programs take tiles: each tile once, and no program much longer than the others."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile_to_gluon import tile_schedule
from neptune_lab.htile_to_gluon.helpers import HELPERS
from neptune_lab.htile_to_gluon.turns import Order, counted, longest, order_of
from neptune_lab.operators import attention
from neptune_lab.target import MOST_HOPPER_SMS


def tiles_of_programs(blocks: int, heads: int, order: Order, programs: int) -> list[list[tuple[int, int]]]:
    """(row block, head) of each tile that each program takes, by the text of the helpers."""
    taken = []
    for program in range(programs):
        language = SimpleNamespace(
            constexpr=int,
            num_programs=lambda axis: programs,
            program_id=lambda axis, own=program: own,
            where=lambda condition, a, b: a if condition else b,
        )
        space: dict[str, object] = {"gl": language, "gluon": SimpleNamespace(jit=lambda function: function)}
        for name in ("_locate", "_turn", "_turn_on"):
            exec(HELPERS[name][0], space)
        step, locate = space["_turn" if order.sections else "_turn_on"], space["_locate"]
        assert callable(step)
        assert callable(locate)
        more = (order.together * blocks,) if order.sections else ()
        turn, tile = step(0, *more)
        own = []
        while tile < blocks * heads:
            own.append(locate(tile, blocks, order.together))
            turn, tile = step(turn + 1, *more)
        taken.append(own)
    return taken


def drawn(seed: int) -> tuple[tuple[int, ...], int, int]:
    """Tiles of row blocks, heads and the usual number of heads in a section."""
    rng = random.Random(seed)
    blocks, heads = rng.randint(1, 20), rng.choice([1, 4, 6, 16, 32, 64, 96])
    most = rng.randint(blocks, 40)
    tiles = rng.choice([(most,) * blocks, tuple(range(most, most - blocks, -1)), (most,) * (blocks - 1) + (1,)])
    usual = next((n for n in range(1, heads + 1) if heads % n == 0 and n * blocks >= MOST_HOPPER_SMS), heads)
    return tiles, heads, usual


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(20))
def test_every_tile_is_taken_once_on_any_gpu(seed):
    tiles, heads, usual = drawn(seed)
    order = order_of(tiles, heads, 132, usual)
    assert heads % order.together == 0
    multiprocessors = random.Random(seed).choice([1, 3, 78, 114, 132, MOST_HOPPER_SMS])
    taken = tiles_of_programs(len(tiles), heads, order, min(multiprocessors, heads * len(tiles)))
    counts = Counter(tile for own in taken for tile in own)
    assert counts == Counter((row, head) for row in range(len(tiles)) for head in range(heads))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seed", range(20))
def test_the_longest_program_is_that_of_the_helpers(seed):
    tiles, heads, usual = drawn(seed)
    for order in {Order(usual), Order(1, sections=False), order_of(tiles, heads, 132, usual)}:
        taken = tiles_of_programs(len(tiles), heads, order, 132)
        assert longest(tiles, heads, order, 132) == max(sum(tiles[row] + 0.5 for row, _ in own) for own in taken)


@pytest.mark.parametrize("seed", range(30))
def test_an_order_is_never_longer_than_the_usual_one(seed):
    tiles, heads, usual = drawn(seed)
    chosen = order_of(tiles, heads, 132, usual)
    assert counted(tiles, heads, chosen, 132) <= counted(tiles, heads, Order(usual), 132)
    assert longest(tiles, heads, chosen, 132) <= counted(tiles, heads, chosen, 132)


@pytest.mark.parametrize(
    ("tiles", "heads", "together"),
    [
        ((12,) * 12, 128, 16),  # eight sections of 192 tiles, which take two turns of 132 programs each
        (tuple(range(53, 0, -1)), 128, 8),  # sixteen of 424: in the third turn, the first programs have the long ones
        ((9, 8, 7), 128, 64),
    ],
)
def test_sections_from_both_ends_even_out(tiles, heads, together):
    """The programs that have most to do in one section have least in the next."""
    ideal = (sum(tiles) + 0.5 * len(tiles)) * heads / 132
    taken = tiles_of_programs(len(tiles), heads, Order(together), 132)
    most = max(sum(tiles[row] + 0.5 for row, _ in own) for own in taken)
    one = longest(tiles, together, Order(together), 132) * (heads // together)
    assert most < 1.04 * ideal < one


def test_no_section_leaves_programs_idle():
    """Eight sections of 192 tiles take two turns each of 132 programs, where all tiles together take twelve."""
    tiles = (12,) * 12
    assert not order_of(tiles, 128, 132, usual=16).sections
    causal = tuple(range(12, 0, -1))
    ideal = (sum(causal) + 0.5 * len(causal)) * 64 / 132
    assert longest(causal, 64, order_of(causal, 64, 132, usual=32), 132) < 1.06 * ideal


def test_heads_side_by_side_fit_the_cache():
    """Of 128 heads with 68 MB of keys and values, each row block would read them again; with one head at a time, its
    row blocks share them.  If they fit, or there is one row block, the longest program alone counts."""
    chunk = (9, 8, 7)
    assert order_of(chunk, 128, 132, 64, 68 << 20) == Order(1, sections=False)
    assert order_of(chunk, 128, 132, 64, 20 << 20) == order_of(chunk, 128, 132, 64)
    assert order_of((9,), 128, 132, 128, 68 << 20) == order_of((9,), 128, 132, 128)


@pytest.mark.nightly
def test_heads_of_256_columns_are_not_persistent():
    """Shared memory has no room for the output beside what is loaded ahead."""
    for width, persistent in ((128, True), (256, False)):
        op = attention.causal(16, 8, 626, width, kv_heads=2)
        kernel = nl.compile(op, tuned=True, target="h200", validate="none")
        assert (kernel.code.code, kernel.code.persistent) == ("gluon", persistent)


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [False, True])
def test_turns_that_go_on_over_all_tiles_are_right(causal, monkeypatch):
    """With five programs and 24 tiles, of which 6 are of the heads that are side by side."""
    monkeypatch.setattr(tile_schedule, "order_of", lambda *_: Order(2, sections=False))
    operator = (attention.causal if causal else attention.full)(2, 4, q_len=300, kv_len=400, head_dim=64)
    code = nl.CodeOptions(code="gluon", persistent=True, tie=True)
    config = nl.TileConfig(block_q=128, block_kv=64)
    kernel = nl.compile(operator, "rolling_update", config=config, code=code, target="h200", validate="none")
    assert "_turn_on(" in kernel.source
    inputs = operator.random_inputs(0)
    made = Simulator(kernel.source, 5)(kernel.triton.entry, *(torch.from_numpy(a) for a in inputs.values()))
    wanted = operator.reference(*inputs.values())
    assert np.linalg.norm(made.double().numpy() - wanted) / np.linalg.norm(wanted) < 2e-3


def test_a_chunk_gets_an_order_of_its_own():
    """368 queries over 1096 keys with 128 heads: sections of 192 tiles would give some programs four, others two."""

    def mask(b, h, q, kv):
        return q + 728 >= kv

    operator = attention.general(2, 64, 368, 1096, 128, None, mask, dtype="bfloat16")
    code = nl.CodeOptions(code="gluon", persistent=True, tie=True)
    config = nl.TileConfig(block_q=128, block_kv=128)
    kernel = nl.compile(operator, "rolling_update", config=config, code=code, target="h200", validate="none")
    assert "_turn(0, 192)" not in kernel.source
