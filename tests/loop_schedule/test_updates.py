"""rolling_update and split_k_update: the phases they record, and their numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import small_operators as small
from phases import assert_phases_hold

from neptune_lab.loop_schedule import Phase, Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, softmax

BOTH = pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])


# -- the record ------------------------------------------------------------------------------------


def summary(phases: tuple[Phase, ...]) -> list[tuple[str, str, bool]]:
    return [(p.key, p.title, p.wrong) for p in phases]


def test_rolling_update_records_four_phases():
    sch = Schedule(softmax.figure1())
    sch.rolling_update("s_sum", "s_max.j")
    assert summary(sch.phases) == [
        ("dataflow", "dataflow reorganisation", False),
        ("naive", "naive fusion", True),
        ("repair", "repair function", True),
        ("repaired", "repaired program", False),
    ]
    dataflow, naive, repair, repaired = sch.phases
    assert dataflow.note == "s_sum depends on s_max; s_exp is inlined."
    assert naive.reads_early == (("s_sum", "s_max"),)
    assert repair.program is naive.program
    assert repair.derivation is not None
    assert repair.derivation.as_record()["h"] == "t*exp(xmax - xmax')"
    assert repaired.program is sch.program
    assert [p.key for p in sch.phases if p.derivation is not None] == ["repair"]
    assert all(p.refusal is None for p in sch.phases)


def test_split_k_update_records_four_phases():
    sch = Schedule(softmax.figure1())
    sch.split("s_max.j", (None, 2))
    assert sch.split_k_update("s_sum", "s_max.j0") == ("s_sum_local",)
    assert [(p.key, p.wrong) for p in sch.phases] == [
        ("dataflow", False),
        ("naive", True),
        ("repair", True),
        ("repaired", False),
    ]
    (reader, _), *rest = sch.phases[1].reads_early
    assert (reader, rest) == ("s_sum_local", [])
    assert sch.phases[-1].note == (
        "As s_sum combines the splits, it repairs the value of each from xmax_local to xmax."
    )


def test_maps_kept_or_inlined_as_asked():
    kept, inlined = Schedule(softmax.figure1()), Schedule(softmax.figure1())
    kept.rolling_update("s_sum", "s_max.j", maps="keep")
    inlined.rolling_update("s_sum", "s_max.j", maps="inline")
    assert kept.blocks == ("s_max", "s_exp", "s_sum")
    assert kept.phases[1].reads_early == (("s_exp", "s_max"),)
    assert inlined.blocks == ("s_max", "s_sum")
    assert "xexp" not in [b.name for b in inlined.program.buffers]
    assert kept.check()
    assert inlined.check()


def test_where_nothing_rolls_nothing_is_repaired():
    sch = Schedule(attention.full(1, 1, q_len=4, kv_len=4, head_dim=2))
    sch.tile("qk", i=2, j=2)
    sch.reverse_compute_at("score", "qk.j0")
    sch.rolling_update("s_max", "qk.j0")
    assert [(p.key, p.wrong) for p in sch.phases] == [("dataflow", False), ("naive", False), ("repaired", False)]
    assert_phases_hold(sch)


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@BOTH
@pytest.mark.parametrize("tile", [1, 2, 3, 4, 6])
def test_figure1_at_every_tile(update: str, tile: int):
    if (update, tile) == ("split_k_update", 1):
        tile = 5  # splits of one element are no splits
    sch = Schedule(softmax.figure1(rows=3, cols=7))
    sch.split("s_max.j", (None, tile))
    getattr(sch, update)("s_sum", "s_max.j0")
    assert_phases_hold(sch)
    assert sch.check(seed=1)


@BOTH
@pytest.mark.parametrize("factors", [(None, 7), (None, 9), (1, None)])
def test_one_tile(update: str, factors: tuple[int | None, int | None]):
    """A rolling loop of one iteration: nothing is ever repaired, and the numbers hold."""
    sch = Schedule(softmax.figure1(rows=3, cols=7))
    sch.split("s_max.j", factors)
    getattr(sch, update)("s_sum", "s_max.j0")
    assert sch.check()


def window(b, h, q, kv):
    return (q >= kv) & (q - kv <= 2)


def late_keys(b, h, q, kv):
    return kv >= 5


def seen_by_none(b, h, q, kv):
    return (kv >= 5) & (q != 1)


MASKS = {"none": None, "window": window, "late_keys": late_keys, "seen_by_none": seen_by_none}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(4, 8), (5, 7)])
def test_attention_with_masks(template: str, mask: str, q_len: int, kv_len: int):
    """Rows that are masked throughout their first tiles (late_keys), and a row without any key (NaN as defined)."""
    sch = Schedule(attention.general(1, 1, q_len, kv_len, 3, mask_mod=MASKS[mask]))
    TEMPLATES[template](sch, block_q=2, block_kv=2)
    for seed in (0, 1):
        assert sch.check(seed=seed)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "block_q", "block_kv"),
    [(4, 6, 2, 3), (5, 7, 2, 3), (1, 7, 4, 2), (3, 1, 2, 2), (4, 3, 64, 64), (1, 1, 1, 1)],
)
def test_attention_at_many_sizes(template: str, q_len: int, kv_len: int, block_q: int, block_kv: int):
    sch = Schedule(attention.general(2, 2, q_len, kv_len, 2))
    TEMPLATES[template](sch, block_q=block_q, block_kv=block_kv)
    assert sch.check()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_every_phase_of_attention(template: str):
    sch = Schedule(attention.causal(1, 1, q_len=4, kv_len=5, head_dim=2))
    TEMPLATES[template](sch, block_q=2, block_kv=2)
    assert_phases_hold(sch)


@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_figure1_templates(template: str):
    for rows, cols in [(4, 8), (5, 7)]:
        sch = Schedule(softmax.figure1(rows, cols))
        TEMPLATES[template](sch, block_q=2, block_kv=3)
        assert_phases_hold(sch)


CHAINS: dict[str, tuple[Callable[[], small.Definition], tuple[str, ...]]] = {
    "L2 norm": (small.l2_norm, ("o",)),
    "RMS then max": (small.rms_max, ("o",)),
    "e and r read again later": (small.late_reader, ("s",)),
    "two sums share a map": (small.two_sums, ("s", "q")),
    "two sums read r themselves": (small.two_direct_sums, ("s", "q")),
    "normalised before use": (small.weighted, ("s", "o")),
    "two producers": (small.two_producers, ("s", "o")),
    "the map is an output": (small.exponential_output, ("s",)),
    "c - 2 r with max": (lambda: small.pair(lambda c, r: c - r * 2.0, "max", dtype="float16"), ("o",)),
    "c + r with min": (lambda: small.pair(lambda c, r: c + r, "min"), ("o",)),
    "c / r, r a sum of squares": (lambda: small.pair(lambda c, r: c / r, first="sum", of=lambda c: c * c), ("o",)),
}


@pytest.mark.one_in(9)
@BOTH
@pytest.mark.parametrize("name", CHAINS)
def test_chains(update: str, name: str):
    definition, chain = CHAINS[name]
    assert_phases_hold(small.updated(small.schedule(definition()), update, *chain))


@pytest.mark.one_in(6)
@BOTH
@pytest.mark.parametrize("maps", ["inline", "keep"])
@pytest.mark.parametrize("name", ["e and r read again later", "two sums share a map", "normalised before use"])
def test_later_readers_see_final_values_under_every_policy(update: str, name: str, maps: str):
    definition, chain = CHAINS[name]
    assert small.updated(small.schedule(definition()), update, *chain, maps=maps).check()


@BOTH
def test_l2_norm_with_leading_zeros(update: str):
    """The naive term is 0/0 there; the definition is finite, and so is the repaired program."""
    sch = small.updated(small.schedule(small.l2_norm(m=6), small.leading_zeros), update, "o")
    reference = sch.run(**sch.operator.random_inputs(0))["o"]
    assert (reference >= 1).all()
    for seed in range(3):
        assert sch.check(seed=seed)
    assert "guard(" in str(sch)


def test_rolling_over_an_unsplit_loop_with_leading_zeros():
    sch = small.schedule(small.l2_norm(m=6), small.leading_zeros)
    sch.rolling_update("o", "r.j")
    assert sch.check()


def test_a_later_reader_sees_the_last_tag_and_then_the_current_value():
    sch = small.updated(small.schedule(small.late_reader()), "rolling_update", "s")
    assert "r⟨2⟩[i]" in str(sch)
    assert "e_rolled" in str(sch)
    sch.retire_tags("r")
    assert "⟨" not in str(sch)
    assert sch.check()


def test_the_last_consumer_takes_the_copy_away():
    sch = small.updated(small.schedule(small.two_sums()), "rolling_update", "s")
    assert "e_rolled" in sch.blocks
    sch.rolling_update("q", "r.j0")
    assert "e_rolled" not in sch.blocks
    assert sch.blocks.count("e") == 1


def test_a_second_direct_reader_rolls_with_its_own_tag():
    sch = small.updated(small.schedule(small.two_direct_sums()), "rolling_update", "s", "q")
    assert "q_tile[i, j0] += exp((x[i, j0 * 2 + j1] - guard(r⟨j0⟩[i], -inf, 0)) * 2)" in str(sch)


def test_two_producers_are_repaired_at_once():
    sch = small.updated(small.schedule(small.two_producers()), "rolling_update", "s", "o")
    term = sch.phases[2].derivation
    assert term is not None
    assert sorted(term.previous) == ["r", "s"]
    assert sch.phases[1].reads_early == (("o_tile", "r"), ("o_tile", "s"))
