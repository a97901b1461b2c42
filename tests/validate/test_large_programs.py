"""Validation of programs too large to run: their own program at small sizes, or their steps applied there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import planted, stale

import neptune_lab as nl
from neptune_lab.choice import CodeOptions
from neptune_lab.errors import ScheduleError, ValidationError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Op, Var, const
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import Operator, attention, gemm_chain, norms, performer, rows
from neptune_lab.pipeline import schedule
from neptune_lab.pipeline import validate as package
from neptune_lab.pipeline.lower import lower
from neptune_lab.pipeline.validate import (
    check,
    reference,
    replay,
    resize,
    sizes,
)

DOCUMENTS = np.arange(1000, dtype="int32") // 300


def documents(q_len: int, kv_len: int = 1000, **sizes: int) -> Operator:
    """The last queries of `kv_len`, each of which sees its own document."""

    def mask_mod(b, h, q, kv):
        return DOCUMENTS[q + kv_len - q_len] == DOCUMENTS[kv]

    return attention.general(2, 4, q_len, kv_len, 64, mask_mod=mask_mod, **sizes)


LARGE = {
    "documents": lambda: schedule(documents(40), "rolling_update", block_q=16, block_kv=16),
    "wide tiles": lambda: schedule(attention.causal(2, 8, 2048), "rolling_update", block_q=128, block_kv=16),
    "remainders": lambda: schedule(attention.alibi(1, 8, 1000, head_dim=100), "rolling_update", block_q=64),
    "window": lambda: schedule(attention.window(1, 4, 2048, window=256), "rolling_update"),
    "chain": lambda: schedule(gemm_chain.gemm_chain(1, 512, 512, 64, 64)),
    "performer": lambda: schedule(performer.performer(1, 2, 512, 64, 64)),
    "groups": lambda: schedule(attention.gqa(1, 8, 1024, kv_heads=2), "rolling_update"),
    "rows": lambda: schedule(rows.cross_entropy(4096, 5000), block_kv=512),
    "norm": lambda: schedule(norms.rms_norm_max(4096, 1024), block_kv=256),
    "parts": lambda: schedule(attention.causal(1, 8, 1000), "split_k_update"),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", LARGE)
def test_a_scheduled_program_is_resized_to_what_its_steps_make_of_the_small_definition(name: str):
    sch = LARGE[name]()
    planned = sizes.plan(sch)
    assert resize.resized_schedule(sch, planned).program == replay.small_schedule(sch, planned).program


def test_a_large_kernel_is_validated_without_its_steps(monkeypatch: pytest.MonkeyPatch):
    """It is its own program that is run, at other sizes."""
    monkeypatch.setattr(check, "small_schedule", None)
    assert nl.compile(attention.causal(1, 4, 512), "rolling_update").validated.stages == ("Triton",)


def test_a_large_kernel_that_is_wrong_is_found_with_a_script(monkeypatch: pytest.MonkeyPatch):
    planted(monkeypatch, "repair * s_sum", "s_sum")
    with pytest.raises(ValidationError, match="Triton differs from the definition at q") as caught:
        nl.compile(attention.causal(1, 4, 512), "rolling_update")
    assert "rolling_update" in Path(caught.value.script).read_text()


def test_a_step_that_goes_wrong_at_large_sizes_alone_is_seen(monkeypatch: pytest.MonkeyPatch):
    """What the steps make at small sizes is right here: the large program is what is run."""
    sch = schedule(attention.causal(1, 4, 512), "rolling_update")
    planned = sizes.plan(sch)
    small = resize.resized(stale(sch.program), sch.definition, planned)
    made = resize.ResizedSchedule(replay.small_operator(sch.operator, planned.definition), small)
    kernel = lower(made, CodeOptions(), None)
    found = check._compared(kernel, "quick", False)
    assert not isinstance(found, package.Validated)


@pytest.mark.nightly
def test_a_program_that_was_resized_wrongly_is_no_error(monkeypatch: pytest.MonkeyPatch):
    """The steps, applied at small sizes, decide."""
    made = check.resized_schedule
    ran = []

    def negative(block):
        return replace(block, body=replace(block.body, value=Op("neg", (block.body.value,))))

    def wrong(scheduled, planned):
        found = made(scheduled, planned)
        program = tree.map_blocks(found.program, lambda block: negative(block) if block.name == "out" else block)
        return resize.ResizedSchedule(found.operator, program)

    steps = check.small_schedule
    monkeypatch.setattr(check, "resized_schedule", wrong)
    monkeypatch.setattr(check, "small_schedule", lambda *a: ran.append(1) or steps(*a))
    assert nl.compile(attention.causal(1, 4, 512), "rolling_update").validated.stages == ("Triton",)
    assert ran == [1]


def test_a_number_that_no_place_explains_is_not_resized():
    sch = schedule(attention.causal(1, 4, 512), "rolling_update", block_q=64, block_kv=64)
    planned = sizes.plan(sch)
    end = Op("lt", (Var("i1"), const(60)))
    odd = tree.map_blocks(sch.program, lambda b: replace(b, predicates=(end,)) if b.name == "qk" else b)
    with pytest.raises(ScheduleError, match="'qk' cannot be resized: a predicate is not the end of a dimension"):
        resize.resized(odd, sch.definition, planned)


@pytest.mark.nightly
def test_numbers_of_folded_elements_are_not_resized():
    sch = schedule(norms.layer_norm(4096, 1024), block_kv=256)
    with pytest.raises(ScheduleError, match="how many elements were folded"):
        resize.resized_schedule(sch, sizes.plan(sch))
    assert nl.compile(sch).validated.stages == ("Triton",)  # its steps are applied at small sizes


def shapes_of(sch: Schedule) -> dict[str, tuple[int, ...]]:
    small = sizes.plan(sch).definition
    return {name: small.buffer(name).shape for name in small.inputs}


@pytest.mark.nightly
def test_an_axis_whose_end_is_read_is_made_small():
    """Decoding reads the document of its query at the last key, whose place is a constant of the mask."""
    assert shapes_of(schedule(documents(1), "split_k_update"))["DOCUMENTS"] == (14,)
    both = schedule(documents(40), "rolling_update", block_q=16, block_kv=16)
    assert {shapes_of(both)["DOCUMENTS"], shapes_of(both)["k"][2:3]} == {(14,)}
    assert nl.compile(both).validated.stages == ("Triton",)


@pytest.mark.parametrize("kv_len", [900, 30])
def test_an_axis_that_is_read_elsewhere_keeps_its_size(kv_len: int):
    """The last documents are not those of the last keys; and an axis that would be shorter than what is read of it."""
    sch = schedule(documents(10, kv_len), "rolling_update", block_q=16, block_kv=16)
    assert shapes_of(sch)["DOCUMENTS"] == (1000,)


def test_a_dimension_that_keeps_its_size_leaves_others_of_that_extent_alone():
    """Rows of packed groups keep their number, which is that of the columns here."""
    op = attention.general(1, 16, 32, 700, 256, kv_heads=2, pack_groups=True)
    small = shapes_of(schedule(op, "split_k_update", block_q=64, block_kv=64))
    assert small["q"][:3] == (1, 16, 32)
    assert max(small["q"][3], small["k"][2]) < 32


@pytest.mark.nightly
def test_heads_whose_tiles_are_groups_are_made_fewer():
    """A tile of decoding has the heads that share keys: two such groups are left."""
    op = attention.gqa(1, 32, kv_heads=4, q_len=1, kv_len=512, causal=False)
    sch = schedule(op, "split_k_update", config=nl.SplitKConfig(splits=4))
    assert (shapes_of(sch)["q"][1], shapes_of(sch)["k"][1]) == (8, 2)
    assert nl.compile(sch).validated.stages == ("Triton",)


def test_masks_keep_their_boundaries_at_small_sizes():
    op = attention.window(1, 1, 2048, window=256)
    sch = schedule(op, "rolling_update", block_q=64, block_kv=64)
    small = sizes.plan(sch).definition
    inputs = {n: np.random.default_rng(0).standard_normal(small.buffer(n).shape) for n in small.inputs}
    scores = reference.evaluate(small, inputs, wide=True)["score"][0, 0]
    seen = np.isfinite(scores)
    assert not seen[0, 1:].any()  # causal still
    assert 1 < seen[-1].sum() < seen.shape[1]  # and the window ends inside the row


def test_a_large_program_that_cannot_be_made_small_says_so(monkeypatch: pytest.MonkeyPatch):
    def refuses(*_):
        raise ScheduleError("it does not apply", help="none")

    monkeypatch.setattr(check, "resized_schedule", refuses)
    monkeypatch.setattr(check, "small_schedule", refuses)
    validated = nl.compile(attention.causal(1, 2, 256)).validated
    assert not validated.stages
    assert "it does not apply" in str(validated)
