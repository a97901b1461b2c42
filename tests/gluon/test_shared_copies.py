"""Shared memory of the simulator: loads and copies read it as late as hardware may, and stores need a fence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from neptune_lab.gluon_simulator import shared_copies
from neptune_lab.gluon_simulator.shared_copies import fence, wait_for_copies
from neptune_lab.gluon_simulator.tiles import Memory, Pending, copy_out, tile, wait_for_products


class Rows:
    """A tensor in global memory, of one block."""

    array = np.zeros((2, 2), np.float32)

    def put(self, place: object, block: np.ndarray) -> None:
        self.array = block.copy()


def filled(value: float) -> Memory:
    return Memory(np.full((2, 2), value, np.float32))


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    shared_copies.begin(lambda *, last: None)
    yield
    fence()
    shared_copies.end()


def test_a_load_arrives_when_it_is_used():
    slot = filled(1)
    used, unused = slot.load(None), slot.load(None)
    column = used[:, None]
    made = used + 1.0
    slot.array[...] = 5
    assert np.all(made == 2)
    assert np.all(column == 1), "arrived with the load that it is of"
    assert np.all(np.isnan(tile(np.zeros((2, 2))) + unused))
    assert used.shape == (2, 2)
    assert column.shape == (2, 1, 2)


def test_a_copy_reads_its_tile_until_it_is_waited_for():
    rows, slots = [Rows() for _ in range(3)], [filled(n) for n in range(3)]
    for row, slot in zip(rows, slots, strict=True):
        copy_out(row, [0, 0], slot)  # pyright: ignore[reportArgumentType]
    slots[1].array += 10
    wait_for_copies(1)
    slots[0].array += 10
    shared_copies.end()
    assert [row.array[0, 0] for row in rows[::2]] == [0, 2]
    assert np.isnan(rows[1].array).all()


def test_a_product_reads_its_operands_until_it_is_waited_for():
    a, b, zero = filled(1), filled(1), tile(np.zeros((2, 2), np.float32))
    whole, changed = (Pending(a, b, zero, use_acc=False) for _ in range(2))
    assert np.all(wait_for_products(1, [whole]) == 2)
    b.array[0, 0] = 5
    assert np.isnan(wait_for_products(0, [changed])).all()


def test_what_is_stored_needs_a_fence():
    slots = Memory(np.zeros((2, 2, 4), np.float32))
    slots.index(1).store(tile(np.ones((2, 4), np.float32)))
    copy_out(Rows(), [0, 0], slots.index(0))  # pyright: ignore[reportArgumentType]
    half = slots.index(1).slice(2, 2, dim=1)
    with pytest.raises(AssertionError, match="without a fence"):
        copy_out(Rows(), [0, 0], half)  # pyright: ignore[reportArgumentType]
    with pytest.raises(AssertionError, match="without a fence"):
        Pending(tile(np.ones((2, 2))), half, tile(np.ones((2, 2))), use_acc=False)
    fence()
    copy_out(Rows(), [0, 0], half)  # pyright: ignore[reportArgumentType]
