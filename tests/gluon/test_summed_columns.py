"""Products of widened tiles sum over the columns that are in their tensors, and over few others."""

from __future__ import annotations

import re

import by_name
import numpy as np
import pytest
from gluon.test_numbers import simulate

from neptune_lab.gluon_simulator.tiles import Memory, Pending, tile, wait_for_products
from neptune_lab.htile_to_gluon.summed_columns import parts_of
from neptune_lab.operators import attention
from neptune_lab.power_of_two import power_of_two


@pytest.mark.parametrize(("block", "least"), [(64, 16), (128, 32)])
def test_parts_cover_what_is_inside(block: int, least: int):
    for inside in range(1, 257):
        columns = max(least, power_of_two(inside))
        parts = parts_of(columns, inside, block, least)
        assert [start for start, _ in parts] == [sum(n for _, n in parts[:i]) for i in range(len(parts))]
        assert inside <= sum(n for _, n in parts) <= columns
        if len(parts) > 1:
            assert all(n == power_of_two(n) >= least and start % block == 0 for start, n in parts)


WIDTHS = {
    "80": (lambda: attention.full(1, 1, 256, 80), [(0, 64), (64, 16)]),
    "96": (lambda: attention.full(1, 1, 256, 96), [(0, 64), (64, 32)]),
    "192": (lambda: attention.full(1, 1, 256, 192, v_head_dim=128), [(0, 128), (128, 64)]),
    "112": (lambda: attention.full(1, 1, 256, 112), []),
    "48": (lambda: attention.full(1, 1, 256, 48), []),
    "128": (lambda: attention.full(1, 1, 256, 128), []),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", WIDTHS)
def test_columns_of_zeros_are_not_multiplied(name: str):
    make, parts = WIDTHS[name]
    source = by_name.compile(make(), "rolling_update", code="gluon", block_q=128, block_kv=64, validate="none").source
    found = [(int(start), int(n)) for start, n in re.findall(r"\.slice\((\d+), (\d+), 1\)", source)]
    assert sorted(set(found)) == parts
    products = source.count("warpgroup_mma(")
    assert products == 2 * max(1, len(parts)) + 2  # of scores before and in the loop; of values in and after it


@pytest.mark.nightly
@pytest.mark.parametrize("width", [96, 192])
def test_products_that_start_ahead(width: int):
    """Both parts of the next tile's product of scores may still run when the last product of values is read."""
    operator = attention.causal(2, 2, 256, width, v_head_dim=64)
    options = {"persistent": True, "ahead": True}
    kernel = by_name.compile(
        operator, "rolling_update", code="gluon", block_q=128, block_kv=64, validate="none", **options
    )
    assert "warpgroup_mma_wait(2, [acc_pending" in kernel.source
    assert simulate(operator, **options) < 2e-3


def test_the_simulator_reads_no_product_that_may_still_run():
    one = tile(np.ones((4, 4), np.float32))
    first = Pending(one, Memory(np.ones((4, 4), np.float32)), one, use_acc=False)
    second = Pending(one, Memory(np.ones((4, 4), np.float32)), first, use_acc=True)
    np.testing.assert_array_equal(wait_for_products(0, [second]), np.full((4, 4), 8.0))
    np.testing.assert_array_equal(wait_for_products(1, [first]), np.full((4, 4), 4.0))
    running = wait_for_products(1, [second])
    for read in (lambda: running + one, lambda: one + running, lambda: np.asarray(running)):
        with pytest.raises((AssertionError, TypeError), match="may still run"):
            read()
    added = Pending(one, Memory(np.ones((4, 4), np.float32)), running, use_acc=True)
    np.testing.assert_array_equal(wait_for_products(0, [added]), np.full((4, 4), 12.0))
