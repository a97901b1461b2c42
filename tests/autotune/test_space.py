"""Spaces: their knobs are options that `compile` takes, and each rule refuses what it is there for."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from by_name import choice

from neptune_lab.autotune import limits
from neptune_lab.autotune.nests import Nests
from neptune_lab.autotune.space import Knob, Space, Subspace, space
from neptune_lab.errors import TuneError
from neptune_lab.operators import attention, gemm_chain, norms, performer
from neptune_lab.pipeline import compile_choice
from neptune_lab.target import ANY, Target

PREFILL = attention.preset("causal_pf", seq=2048)
H200, A100 = Target("h200"), Target("a100")
TINY = replace(H200, sm_count=4)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "operator",
    [
        attention.softcap(heads=2, seq=256, head_dim=32),
        attention.causal(heads=2, q_len=1, kv_len=512, head_dim=32),
        attention.gqa(heads=8, kv_heads=2, q_len=1, kv_len=512, head_dim=32, causal=False),
        gemm_chain.gemm_chain(m=128, n=128, k=32, h=64),
        norms.rms_norm_quantize(rows=8, cols=2048, dtype="float16"),
        performer.performer(heads=2, seq=128, head_dim=32, features=64),
    ],
    ids=lambda operator: operator.name,
)
def test_candidates_compile(operator):
    """Drawn at random: every knob is an option, and several nests have one entry each."""
    for candidate in space(operator, TINY).sample(random.Random(1), 3):
        kernel = compile_choice(operator, candidate, target=H200)
        assert kernel.htile.kernels, candidate


@pytest.mark.nightly
def test_the_space_of_prefill_attention_is_small():
    found = space(PREFILL, H200)
    counts = found.refused()
    assert sum(counts.values()) == found.size
    assert 50 <= counts["kept"] <= 300
    assert counts["kept"] == len(set(found))
    assert sum(c.code.code == "gluon" for c in found) <= 96
    good = choice(
        "rolling_update",
        block_q=128,
        block_kv=128,
        num_warps=8,
        num_stages=2,
        loads="descriptors",
        interleave=1,
    )
    assert good in set(found)


@pytest.mark.parametrize("target", [A100, Target("hip"), ANY], ids=str)
def test_descriptors_are_hoppers(target):
    """Not for Ampere, not for AMD's GPUs, whose capability is another count, and not where nothing is known."""
    knobs = {knob.option for subspace in space(PREFILL, target).subspaces for knob in subspace.knobs}
    assert "loads" not in knobs
    assert "block_q" in knobs


@pytest.mark.parametrize(
    ("operator", "templates"),
    [
        (PREFILL, ["rolling_update", "rolling_update"]),
        (attention.preset("causal_dc", seq=8192), ["split_k_update"]),
        (attention.preset("s7"), ["rolling_update", "split_k_update", "rolling_update"]),
    ],
)
def test_templates_by_shape(operator, templates):
    assert [subspace.template for subspace in space(operator, H200).subspaces] == templates


def test_warp_specialised_kernels_are_a_family_of_their_own_on_hopper():
    found = space(PREFILL, H200)
    plain, gluon = found.subspaces
    assert dict(gluon.fixed) == {"block_q": 128, "code": "gluon", "one_consumer": True}
    rng = random.Random(0)
    drawn = [c for c in found.sample(rng, 40) if c in gluon]
    assert 5 < len(drawn) < 40
    assert all(c not in plain and found.mutate(c, rng) in gluon for c in drawn)
    assert len(space(PREFILL, A100).subspaces) == 1
    rings = choice("rolling_update", block_q=128, block_kv=128, code="gluon", one_consumer=True, ring_stages=4)
    assert "bytes of shared memory" in (found.refusal(rings) or "")
    one_tile = space(attention.preset("s7"), H200)
    wide = choice("rolling_update", block_q=128, block_kv=256, code="gluon", one_consumer=True)
    assert "no loop to specialise" in (one_tile.refusal(wide) or "")


@pytest.mark.parametrize(
    ("options", "rule", "reason"),
    [
        (
            {"block_q": 128, "block_kv": 128, "num_stages": 4},
            "shared_memory",
            "294912 bytes .* a block can have 232448",
        ),
        ({"block_q": 128, "block_kv": 128, "num_warps": 4}, "registers", "256 numbers per thread with 4 warps"),
        ({"block_q": 16, "block_kv": 16, "num_warps": 32}, "registers", "2 numbers per thread"),
        ({"block_q": 48, "block_kv": 64}, "little_padding", "tiles of 48 pad i, which has 2048"),
        ({"block_q": 64, "block_kv": 64, "num_stages": 1}, "stages", "1 stages for a loop of 32 iterations"),
        ({"block_q": 64, "block_kv": 1024, "num_stages": 3}, "stages", "3 stages for a loop of 2 iterations"),
        ({"block_q": 64, "block_kv": 64, "interleave": 2}, "halves", "interleave=2 halves tiles of 64 rows"),
        ({"block_q": 16, "block_kv": 64}, "useful_tiles", "tiles of 16 rows in 4096 blocks"),
        ({"block_q": 64, "block_kv": 16}, "useful_tiles", "tiles of 16 columns, of 2048"),
        ({"block_q": 64, "block_kv": 64, "num_warps": 2}, "useful_tiles", "fewer than 4 warps"),
        ({"block_q": 2048, "block_kv": 64}, "useful_tiles", "tiles of 2048 rows in 32 blocks: most"),
        ({"block_q": 64, "block_kv": 64, "loop_stages": 2}, "stages", "loop_stages without a loop"),
    ],
)
def test_each_rule_says_why(options, rule, reason):
    nests = Nests.found_in(PREFILL).plain
    candidate = choice("rolling_update", **options)
    assert re.search(reason, getattr(limits, rule)(nests, candidate, H200) or "")
    fine = choice("rolling_update", block_q=128, block_kv=64, num_warps=8, num_stages=3)
    assert all(rule(nests, fine, H200) is None for rule in limits.RULES)


def test_a_tile_that_the_dimension_does_not_fill_takes_its_whole_registers():
    """149 rows in a tile of 256: 256 numbers of the output and 64 scores per thread spilled (310 us on an H100, where
    tiles of 64 rows took 79)."""
    nests = Nests.found_in(attention.full(batch=16, heads=64, seq=149, head_dim=128)).plain
    tall = choice("rolling_update", block_q=256, block_kv=32, num_warps=4, num_stages=3)
    assert limits.registers(nests, tall, H200) == "320 numbers per thread with 4 warps; expected 4 to 200"


def test_splits_are_of_tiles_and_of_something():
    nests = Nests.found_in(attention.preset("causal_dc", seq=512)).plain
    assert limits.splits(nests, choice("split_k_update", block_kv=64, splits=16), H200) == "16 splits of 8 tiles"
    assert "rolling_update" in (limits.splits(nests, choice("split_k_update", block_kv=64, splits=1), H200) or "")
    assert limits.splits(nests, choice("split_k_update", block_kv=64, splits=8), H200) is None


def test_a_mutation_changes_one_knob_and_stays_in_the_space():
    found = space(PREFILL, H200)
    rng = random.Random(0)
    candidate = found.sample(rng, 1)[0]
    for _ in range(30):
        changed = found.mutate(candidate, rng)
        differing = {name for name, _ in changed.options.items() ^ candidate.options.items()}
        assert len(differing) == 1
        assert found.refusal(changed) is None
        candidate = changed


def test_options_of_several_nests_are_tuples():
    subspace = Subspace(
        "rolling_update", (Knob("block_q", (16, 32), 1), Knob("block_kv", (64,), 0), Knob("loads", ("pointers",)))
    )
    made = subspace.candidate((16, 64, "pointers"))
    assert made.options == {"block_q": (None, 16), "block_kv": (64, None)}
    assert subspace.values_of(made) == (16, 64, "pointers")


@pytest.mark.parametrize("length", [100, 257, 1025, 4099])
def test_odd_lengths_have_candidates(length):
    """No power of two divides these, and for some none even comes near."""
    found = space(attention.causal(heads=32, seq=length, head_dim=64), H200).sample(random.Random(0), 20)
    assert len(found) == 20


def test_the_one_candidate_that_is_left_is_found():
    rows, columns = Knob("block_q", (*range(1, 128), 128), 0), Knob("block_kv", (*range(1, 64), 64), 0)
    fixed = [Knob("num_warps", (8,), 0), Knob("num_stages", (3,), 0)]
    subspace = Subspace("rolling_update", (rows, columns, *fixed))
    wanted = subspace.candidate((128, 64, 8, 3))
    narrow = Space((subspace,), Nests.found_in(PREFILL), H200)
    assert wanted in narrow.sample(random.Random(0), 50)


def test_nothing_to_tune_and_nothing_that_fits():
    nests = Nests.found_in(PREFILL)
    empty = Space((Subspace("rolling_update", (Knob("block_q", (48,), 0),)),), nests, H200)
    with pytest.raises(TuneError, match=r"none of 5000 candidates fits h200: .* pad i"):
        empty.sample(random.Random(0), 4)
