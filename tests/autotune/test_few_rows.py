"""The model of products of few rows: what it knows of an operator, which choices it ranks, and its fit."""

from __future__ import annotations

import random
from dataclasses import astuple, replace
from math import ceil, exp, log
from statistics import geometric_mean, mean

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab import records
from neptune_lab.autotune import few_rows_fit
from neptune_lab.autotune.few_rows import MOST_PROGRAMS, FewRows
from neptune_lab.autotune.few_rows_rates import shipped_fit
from neptune_lab.autotune.ranking import FEW_ROWS, RECORD, ranking
from neptune_lab.autotune.resolved import Resolver
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.templates import SplitKConfig, choose_template
from neptune_lab.loop_schedule.templates.shown import shown_columns
from neptune_lab.operators import Operator, attention, mla, rows
from neptune_lab.pipeline import Choice, Given
from neptune_lab.target import Target

H200 = Target("h200")


def facts(op: Operator, target: Target = H200) -> FewRows:
    found = FewRows.found_in(op, target)
    assert found is not None
    return found


def decode(**sizes) -> Operator:
    return attention.full(**{"batch": 2, "heads": 8, "q_len": 1, "kv_len": 3000, "head_dim": 96, **sizes})


def test_what_it_knows_of_decoding():
    plain = facts(decode())
    assert (plain.programs, plain.rows, plain.columns, plain.seen) == (16, 1, 3000, (0, 3000))
    assert (plain.widths, plain.bytes, plain.kept, plain.pads) == ((96, 96), 4 * 96, 96, True)
    groups = facts(decode(kv_heads=2, head_dim=192, v_head_dim=128, dtype="bfloat16"))
    assert (groups.programs, groups.rows, groups.widths, groups.kept, groups.pads) == (4, 4, (192, 128), 128, False)
    latents = facts(mla.mla(batch=3, heads=16, kv_len=500))
    assert (latents.programs, latents.rows, latents.widths, latents.bytes) == (3, 16, (512, 64), 2 * 576)
    windowed = facts(attention.window(heads=4, q_len=1, kv_len=1000, head_dim=64, window=256))
    assert windowed.seen == (744, 1000)
    lengths = np.array([500, 600], np.int32)
    paged = facts(attention.paged(np.zeros((2, 40), np.int32), lengths, heads=4, head_dim=64))
    assert (paged.columns, paged.seen, paged.dealt, paged.placed) == (640, (0, 640), True, False)


def test_loops_over_pages_have_stages_for_the_table_too():
    """So as many tiles of keys are on their way as where keys follow each other."""
    table, lengths = np.zeros((4, 256), np.int32), np.full(4, 4096, np.int32)
    op = attention.paged(table, lengths, heads=32, kv_heads=8, head_dim=128, page_size=16)
    of_pages = facts(op)
    assert of_pages.placed
    first = ranking(op, H200).ranked[0].choice
    columns = first.sizes.block_kv
    following = [c for c in replace(of_pages, placed=False).choices() if c.sizes.block_kv == columns]
    assert (first.sizes.num_stages, {c.sizes.num_stages for c in following}) == (5, {3})
    written = replace(first, config=replace(first.config, num_stages=3))
    assert of_pages.seconds(written) > of_pages.seconds(first)


@pytest.mark.parametrize(("sizes", "two"), [
    ({"batch": 4, "heads": 32, "kv_len": 5000, "head_dim": 80}, True),
    ({"batch": 16, "heads": 12, "kv_len": 914, "head_dim": 96}, True),
    ({"batch": 16, "heads": 16, "kv_len": 1377, "head_dim": 80}, False),  # two splits would not run at once
    ({"batch": 4, "heads": 32, "kv_len": 5000, "head_dim": 128}, False),
    ({"batch": 1, "heads": 32, "kv_len": 5000, "head_dim": 80}, False),
])  # fmt: skip
def test_single_rows_of_padded_widths_have_two_splits(sizes, two):
    op = decode(**sizes)
    first = ranking(op, H200).ranked[0].choice
    assert facts(op).is_best_of_padded(first) == two


def test_a_window_is_shared_by_all_splits():
    """Its tiles are dealt to them; those that followed each other would be in two of ten."""
    windowed = facts(attention.window(heads=4, q_len=1, kv_len=20000, head_dim=64, window=2000))
    choice = Choice("split_k_update", SplitKConfig(block_kv=64, splits=10, pad_rows=True))
    assert windowed.seconds(choice) < 0.8 * replace(windowed, dealt=False).seconds(choice)


def test_it_is_not_for_products_of_which_two_variables_run_along_one_dimension():
    """The table that both gradients read makes queries and keys one dimension."""

    def gradients(d_out, v, weights, q, k, table):
        product = torch.bmm(d_out, v.transpose(1, 2)).float() * weights
        d_scores = (product - weights * product.sum(-1, keepdim=True)).to(torch.bfloat16)
        return torch.bmm(d_scores, k).float() * table, torch.bmm(d_scores.transpose(1, 2), q).float() * table

    rows = [torch.zeros(2, 32, 16, dtype=torch.bfloat16) for _ in range(4)]
    op = nl.from_torch(gradients, *rows[:2], torch.zeros(2, 32, 32), *rows[2:], torch.zeros(32, 16))
    assert FewRows.found_in(op, H200) is None


@pytest.mark.parametrize(
    "op",
    [
        attention.causal(heads=4, seq=300, head_dim=64),
        decode(dtype="float32"),
        rows.softmax(rows=4, cols=5000),
        mla.mla(batch=1, heads=32, kv_len=500),
    ],
    ids=["prefill", "float32", "rows", "many rows"],
)
def test_what_it_is_not_for(op: Operator):
    assert FewRows.found_in(op, H200) is None


def test_other_gpus():
    assert FewRows.found_in(decode(), Target("a100")) is None
    slower, here = facts(decode(kv_len=30000), Target("h100")), facts(decode(kv_len=30000))
    one = Resolver(decode(kv_len=30000), H200)(Choice())
    assert slower.seconds(one) > here.seconds(one), "its memory is slower"


@pytest.mark.parametrize("seed", range(6))
def test_columns_that_masks_show(seed: int):
    rng = random.Random(seed)
    q_len, kv_len, window = rng.randint(1, 40), rng.randint(41, 300), rng.randint(1, 60)
    op = attention.window(heads=2, q_len=q_len, kv_len=kv_len, head_dim=16, window=window)
    queries, keys = np.arange(q_len)[:, None] + kv_len - q_len, np.arange(kv_len)
    seen = (queries >= keys) & (queries - keys < window)
    (nest,) = plan(op.program)
    start = rng.randrange(q_len)
    for chosen in (range(q_len), range(start, q_len)):
        at = np.flatnonzero(seen[chosen.start :].any(axis=0))
        given = chosen if nest.row_axis else None
        if given is not None or chosen.start == 0:
            assert shown_columns(op.program, nest, given) == (at[0], at[-1] + 1)


def test_masks_of_values_hide_nothing():
    doc = np.repeat(np.arange(4), 50)[None]
    op = attention.document(doc, heads=2, head_dim=16, causal=False)
    assert shown_columns(op.program, plan(op.program)[0]) == (0, 200)


def test_columns_that_are_hidden_are_not_split():
    sizes = {"heads": 4, "q_len": 64, "kv_len": 6000, "head_dim": 64}
    assert choose_template(attention.causal(**sizes).program)[0] == "split_k_update"
    template, why = choose_template(attention.window(**sizes, window=256).program)
    assert (template, why) == ("rolling_update", "of j, masks show at most 6 tiles of 64: too few to split")
    assert choose_template(attention.window(**sizes, window=4096).program)[0] == "split_k_update"


def _drawn(seed: int) -> Operator:
    rng = random.Random(seed)
    kv_heads, width = rng.choice([1, 4, 8, 32]), rng.choice([64, 80, 128, 192, 256])
    sizes = {"batch": rng.choice([1, 2, 16]), "heads": kv_heads * rng.choice([1, 4, 8]), "kv_heads": kv_heads}
    op = {"q_len": 1, "kv_len": int(128 * 2 ** (8 * rng.random())), "head_dim": width, **sizes}
    return attention.full(**op) if rng.random() < 0.7 else attention.window(**op, window=rng.choice([256, 1000]))


@pytest.mark.parametrize("seed", range(8))
def test_every_choice_fits_and_leaves_no_split_empty(seed: int):
    op = _drawn(seed)
    few, made = facts(op), list(facts(op).choices())
    assert 3 <= len(made) < 300
    assert len(set(made)) == len(made)
    for one in made:
        assert few.fits(one)
        assert few.seconds(one) > 1e-6
        tiles = ceil(few.columns / one.sizes.block_kv)
        splits = one.splits or 1
        assert ceil(tiles / ceil(tiles / splits)) == splits
        assert splits == 1 or splits * few.programs <= MOST_PROGRAMS * H200.sm_count
        if one.code.combine == "last_program":
            assert (few.rows, one.code.dependent_launch, one.code.loads) == (1, False, "pointers")


def _first(op: Operator) -> Choice:
    few = facts(op)
    return min(few.choices(), key=few.seconds)


def test_few_columns_are_one_tile():
    """One of 256 columns, if it has all of them."""
    few = {n: {one.sizes.block_kv for one in facts(decode(kv_len=n, head_dim=64)).choices()} for n in (200, 300)}
    assert few == {200: {32, 64, 128, 256}, 300: {32, 64, 128}}
    assert _first(decode(batch=4, heads=64, kv_heads=16, kv_len=200, head_dim=64)).sizes.block_kv == 256
    assert _first(decode(heads=48, kv_len=164)).sizes.block_kv == 256


@pytest.mark.parametrize("width", [80, 128])
def test_fewer_stages_let_all_programs_run_at_once(width: int):
    """512 programs of a loop do with two stages; 256 do in any case."""

    def offered(batch: int) -> set[int | None]:
        few = facts(decode(batch=batch, heads=64, head_dim=width))
        return {one.sizes.num_stages for one in few.choices() if not one.splits and one.sizes.block_kv == 64}

    assert offered(8) == {2, 3}
    assert offered(4) == {3}
    assert _first(decode(batch=8, heads=64, kv_len=700, head_dim=width)).sizes.num_stages == 2


def test_wide_rows_are_loaded_ahead():
    """Tiles of 64 columns leave room for a second one, where one of 128 is computed with before the next is asked for:
    27.8 and 35.2 us on an H200."""
    first = _first(decode(batch=4, heads=16, kv_heads=4, kv_len=7294, head_dim=192, v_head_dim=128))
    assert (first.sizes.block_kv, first.sizes.num_stages) == (64, 3)


@pytest.mark.parametrize("seed", range(3))
def test_the_first_is_the_fastest_by_the_model(seed: int):
    op = _drawn(seed)
    record = records.nearest(op, "NVIDIA H200")
    near = Choice.of(record.template, record.options, "a record") if record else Choice("split_k_update")
    made = ranking(op, H200, near=near)
    assert made is not None
    assert [one.seconds for one in made.ranked] == sorted(one.seconds for one in made.ranked)
    assert "a model of few rows" in made.why(made.ranked[0])
    assert {one.choice.template for one in ranking(op, H200, given=Given("rolling_update")).ranked} == {
        "rolling_update"
    }  # type: ignore[union-attr]


def test_a_record_whose_tiles_do_not_fit_is_not_followed():
    op = decode(head_dim=256)
    near = Choice.of("split_k_update", {"block_kv": 128, "num_stages": 4, "splits": 2, "pad_rows": True}, "a record")
    made = ranking(op, H200, near=near)
    assert made is not None
    assert RECORD not in {one.origin for one in made.ranked}


@pytest.mark.nightly
def test_decoding_is_compiled_with_its_choice():
    kernel = nl.compile(decode(kv_len=839), tuned=True, target="h200")
    assert kernel.chosen.startswith("the tiles and splits that read the columns fastest, about ")
    assert (kernel.code.combine, len(kernel.triton.kernels)) == ("last_program", 1)
    groups = nl.compile(decode(kv_heads=2, kv_len=839), tuned=True, target="h200")
    assert groups.code.dependent_launch
    assert kernel.validated.sizes
    assert groups.validated.sizes


def test_more_columns_take_longer():
    one = Choice.of("split_k_update", {"block_kv": 64, "num_stages": 3, "splits": 8, "pad_rows": True}, "a choice")
    times = [facts(decode(kv_len=n)).seconds(one) for n in (1024, 4096, 16384, 65536)]
    assert times == sorted(times)
    assert times[-1] > 4 * times[1]


# -- the fit ------------------------------------------------------------------------------------------------------


def test_the_shipped_constants_are_as_good_as_they_say():
    problems, fit = few_rows_fit.measured(), shipped_fit()
    assert (fit.problems, fit.kernels) == (len(problems), sum(len(p.kernels) for p in problems))
    misses = [abs(log(p.facts.seconds(c) * 1e6 / us)) for p in problems for c, us in p.kernels]
    assert exp(mean(misses)) == pytest.approx(fit.error, rel=1e-2), "run python -m neptune_lab.autotune.few_rows_fit"
    losses = [few_rows_fit._loss(one, fit.rates) for one in problems]
    assert geometric_mean(losses) == pytest.approx(fit.loss, rel=0.02)
    assert fit.loss <= 1.08


@pytest.mark.nightly
def test_a_fit_finds_the_constants_that_made_the_times():
    wanted = replace(shipped_fit().rates, start=6.0, memory=3e6, combine=2.0)
    made = []
    for problem in few_rows_fit.measured()[:12]:
        kernels = tuple((c, problem.facts.seconds(c, wanted) * 1e6) for c, _ in problem.kernels[::2])
        made.append(few_rows_fit.Problem(problem.facts, kernels))
    found = few_rows_fit.fitted(made)
    estimates = [p.facts.seconds(c, found) * 1e6 / us for p in made for c, us in p.kernels]
    assert max(map(abs, np.log(estimates))) < 0.1
    assert len(astuple(found)) == len(astuple(wanted))


@pytest.mark.nightly
def test_the_shipped_constants_are_the_fit_of_the_measurements():
    made, kept = few_rows_fit.fit(few_rows_fit.measured()), shipped_fit()
    assert astuple(made.rates) == pytest.approx(astuple(kept.rates), rel=0.02)
    assert (made.error, made.loss) == pytest.approx((kept.error, kept.loss), rel=1e-2)


def test_origins():
    made = ranking(decode(), H200)
    assert made is not None
    assert made.ranked[0].origin == FEW_ROWS


@pytest.mark.parametrize(("queries", "several"), [(1, True), (2, False)])
def test_a_row_of_a_document_has_loops_that_leave_tiles_out(queries: int, several: bool):
    """Programs of one tile would read it, whatever its document; of several queries, no tile is left out by flags."""
    document, last = np.zeros(9791, "int32"), 9791 - queries

    def mask(b, h, q, kv):
        return (document[q + last] == document[kv]) & (q + last >= kv)

    operator = attention.general(1, 4, queries, 9791, 64, None, mask, empty_rows="zero", live=True)
    few = FewRows.found_in(operator, H200)
    assert few is not None
    assert few.equal == several
    found = ranking(operator, H200)
    assert found is not None
    first = found.ranked[0].choice
    tiles = -(-few.columns // first.sizes.block_kv)
    assert (tiles > first.splits) or not several
    plain = ranking(attention.full(batch=1, heads=4, q_len=1, kv_len=9791, head_dim=64), H200)
    assert plain is not None
    assert plain.ranked[0].choice.splits == -(-9791 // plain.ranked[0].choice.sizes.block_kv), "else, all are read"
