"""Rules 1 to 4 on the paper's own example (its Figure 7), each as a function that says what it changed."""

from __future__ import annotations

import pytest

from neptune_lab.autotune.expressions import gemm_chain
from neptune_lab.autotune.rules import (
    pads_little,
    whole_space,
    within_shared_memory,
    without_duplicates,
    without_padding,
    without_partial_intermediates,
)
from neptune_lab.autotune.shared_memory import tiles_in_shared_memory
from neptune_lab.autotune.waterfall import figure, waterfall
from neptune_lab.target import Target

# Eq. 1 as it is printed counts elements.
PAPER = gemm_chain(1024, 1024, 512, 512, itemsize=1)


def test_the_published_counts():
    levels = waterfall(PAPER, Target("a100").shared_memory)
    assert [(level.expressions, level.tile_choices, level.candidates) for level in levels] == [
        (26, 4_194_304, 109_051_904),
        (5, 4_194_304, 20_971_520),
        (3, 4_194_304, 12_582_912),
        (3, 1764, 5292),
        (3, 1065, 3195),
    ]
    assert 1 - levels[3].tile_choices / levels[2].tile_choices > 0.99
    assert 1 - levels[4].tile_choices / levels[3].tile_choices == pytest.approx(0.40, abs=0.01)


def test_what_the_first_two_rules_leave():
    space = without_duplicates(whole_space(PAPER))
    assert sorted(map(str, space.expressions)) == ["khn", "kn", "n(k,h)", "nhk", "nk"]
    assert sorted(map(str, without_partial_intermediates(space).expressions)) == ["n(k,h)", "nhk", "nk"]


@pytest.mark.parametrize("rule", [without_duplicates, without_partial_intermediates, without_padding])
def test_a_rule_with_nothing_to_drop_returns_the_same_space(rule):
    once = without_padding(without_partial_intermediates(without_duplicates(whole_space(PAPER))))
    assert rule(once) is once


def test_shared_memory_is_checked_on_every_combination():
    space = without_padding(whole_space(gemm_chain(32, 32, 16, 16)))
    # A = 1024, B = 1024, C = 2048, D = 1024 and E = 1024 bytes for the largest tiles, 512 each for the smallest.
    largest, smallest = {"m": 32, "n": 32, "k": 16, "h": 16}, dict.fromkeys("mnkh", 16)
    assert tiles_in_shared_memory(space.chain, largest) == 6144
    assert tiles_in_shared_memory(space.chain, smallest) == 2560
    assert within_shared_memory(space, 5120) is space  # 1.2 * 5120 = 6144
    left = within_shared_memory(space, 5119)
    assert (32, 32, 16, 16) not in (left.fitting or ())
    assert left.tile_choices == space.tile_choices - 1
    assert within_shared_memory(left, 5119) is left
    assert within_shared_memory(space, 100).count == 0


@pytest.mark.parametrize("extent", [16, 80, 96, 100, 512, 1000, 1024])
def test_padding_is_none_for_powers_of_two_and_little_otherwise(extent):
    for tile in range(16, extent + 16, 16):
        covered = tile * (-(-extent // tile))
        power = extent.bit_count() == 1
        assert pads_little(extent, tile) == (covered == extent if power else covered < 1.05 * extent)


def test_the_chart_shows_every_level():
    levels = waterfall(gemm_chain(64, 64, 32, 32), Target("a100").shared_memory)
    go = pytest.importorskip("plotly.graph_objects")
    drawn = go.Figure(figure(levels))
    assert tuple(drawn.data[0].y) == tuple(level.candidates for level in levels)
    assert drawn.layout.yaxis.type == "log"
