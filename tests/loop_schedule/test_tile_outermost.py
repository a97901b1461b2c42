"""tile_outermost, and fuse_under of a producer: what is computed again for each tile stays right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import small_operators as small
from loop_texts import figure  # pyright: ignore[reportMissingImports]

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import gemm_chain, softmax


@pytest.fixture
def chain() -> Schedule:
    """(a @ b) @ d for 4 rows, the first product in the loop that the second one folds."""
    sch = Schedule(gemm_chain.gemm_chain(1, m=4, n=6, k=2, h=5))
    sch.reorder("ab", "z", "i", "j", "c")
    sch.reverse_compute_at("ab_rounded", "ab.j")
    sch.rolling_update("abd", "ab.j")
    return sch


def test_the_first_product_is_computed_for_each_tile(chain: Schedule, golden: Callable[[str, str], None]):
    assert chain.tile_outermost("abd.e", 2) == "abd.e0"
    golden("tile_outermost.txt", figure(chain.program))
    assert chain.loops("ab")[0] == "ab.e0"
    (phase,) = chain.phases
    assert phase.note == (
        "The loop over 3 tiles of e is the outermost now; ab, ab_rounded are computed again for each tile."
    )
    assert chain.check(), "2 does not divide 5"


def test_every_block_along_the_dimension_is_tiled(chain: Schedule):
    """The rounded output has the same columns and comes along, to its own place in the tile."""
    chain.fuse_under("out", "ab.i")
    loop = chain.tile_outermost("abd.e", 5)
    chain.bind(loop, "blockIdx.x")
    assert chain.loops("out")[0] == "out.e0"
    assert "e0 * 5 + e1" in str(chain)
    assert chain.check()


def test_it_replays(chain: Schedule):
    chain.tile_outermost("abd.e", 2)
    assert Schedule.replay(chain.operator, chain.to_json()).program == chain.program


REFUSALS = {
    "a folded loop": (lambda s: s.tile_outermost("abd.j", 2), "'abd.j' is not an independent iteration of 'abd'"),
    "no size": (lambda s: s.tile_outermost("abd.e", 0), "size=0, expected a positive integer"),
    "no such loop": (lambda s: s.tile_outermost("abd.x", 2), "has no loop 'x'"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(chain: Schedule, name: str):
    apply, match = REFUSALS[name]
    before = chain.program
    with pytest.raises(ScheduleError, match=match):
        apply(chain)
    assert chain.program is before


def test_a_shared_loop_is_tiled_as_well(chain: Schedule):
    chain.tile_outermost("abd.i", 2)
    assert chain.loops("ab")[:3] == ("ab.i0", "ab.z", "ab.i1")
    assert chain.check()


def test_another_block_in_tiles_already(chain: Schedule):
    chain.fuse_under("out", "ab.i")
    chain.split("out.e", (None, 2))
    with pytest.raises(ScheduleError, match="block 'out' of the same nest does not run along the whole of 'e' by its"):
        chain.tile_outermost("abd.e", 2)


def test_a_sum_along_the_dimension_keeps_it_whole():
    sch = Schedule(softmax.figure1(2, 5))
    sch.fuse_under("s_exp", "s_max.i")
    sch.fuse_under("s_sum", "s_max.i")
    with pytest.raises(ScheduleError, match="block 's_max' of the same nest folds along the whole of 'j'"):
        sch.tile_outermost("s_exp.j", 2)


def test_a_start_value_outside_the_nest_is_seen():
    sch = Schedule(gemm_chain.gemm_chain(1, m=4, n=6, k=2, h=5))
    sch.decompose_reduction("ab", "ab.z")
    sch.reorder("ab", "c", "j")
    with pytest.raises(ScheduleError, match=r"'ab' reads 'ab' before the nest of 'ab\.j' writes it"):
        sch.tile_outermost("ab.j", 2)


def test_a_producer_joins_the_start_of_its_readers_loop():
    """The maximum is read by the norm alone; it is computed there, row by row."""
    sch = small.schedule(small.l2_norm(3, 5))
    sch.fuse_under("r", "o.i")
    assert sch.blocks == ("r", "o")
    assert sch.loops("r")[0] == "r.i"
    assert "for i in range(3):\n    for j in range(5):\n        # r" in str(sch)
    assert sch.check()


def test_a_producer_is_computed_again_where_the_loop_is_none_of_its_own():
    """The first product has no columns e: each of them computes it anew."""
    sch = Schedule(gemm_chain.gemm_chain(1, m=4, n=6, k=2, h=5))
    sch.reorder("abd", "z", "e", "i", "j")
    sch.fuse_under("ab_rounded", "abd.e")
    sch.fuse_under("ab", "abd.e")
    assert sch.blocks == ("ab", "ab_rounded", "abd", "out")
    assert sch.loops("ab")[:2] == ("ab.z", "ab.e")
    assert sch.check()


def test_a_producer_with_other_readers_stays():
    sch = Schedule(softmax.figure1(2, 5))
    with pytest.raises(ScheduleError, match="'s_max'"):
        sch.fuse_under("s_max", "s_sum.i")
