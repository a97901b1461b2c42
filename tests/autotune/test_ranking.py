"""The choice without a record: what is ranked, by what, and that nothing is worse than the nearest record."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from neptune_lab import records
from neptune_lab.autotune import calibration, ranking
from neptune_lab.autotune.calibration import Calibration, calibration_of, features, fit, operator_of, read, to_text
from neptune_lab.autotune.nests import Nests
from neptune_lab.autotune.ranking import FEW_ROWS, GLUON, MOST, RECORD, SHAPE, SPACE, Ranked
from neptune_lab.autotune.resolved import Resolver
from neptune_lab.bench.drawn import rows
from neptune_lab.bench.drawn.problems import ROWS, draw
from neptune_lab.errors import TuneError
from neptune_lab.operators import Operator, attention
from neptune_lab.operators.rows import cross_entropy
from neptune_lab.pipeline import Choice, Given, TileConfig
from neptune_lab.target import Target
from neptune_lab.tuning import tune

H200, A100 = Target("h200"), Target("a100")


def _near(op: Operator) -> Choice | None:
    record = records.nearest(op, "NVIDIA H200")
    return record and Choice.of(record.template, record.options, "a record")


def _origins(op: Operator, target: Target, **given) -> list[str]:
    made = ranking.ranking(op, target, **given)
    assert made is not None
    return [one.origin for one in made.ranked]


def _drawn() -> list[Operator]:
    """Attention of every kind that records have, and rows, at sizes without records."""
    rng = random.Random(5)
    made: list[Operator] = []
    for make in (attention.causal, attention.full, attention.alibi, attention.softcap, attention.window):
        for q_len in (1, rng.randint(100, 400), rng.randint(1000, 9000)):
            kv_len = max(q_len, rng.randint(500, 9000))
            batch, width = rng.choice((1, 3, 8)), rng.choice((64, 96, 128))
            made.append(make(batch=batch, heads=rng.choice((8, 32)), q_len=q_len, kv_len=kv_len, head_dim=width))
    return made + [rows.operator(problem) for problem in draw(11, 30) if problem.kind == "rows"]


class Made(NamedTuple):
    """A ranking, the record that it was given, and how many choices were estimated for it."""

    op: Operator
    near: Choice | None
    ranked: tuple[Ranked, ...]
    estimates: int


@pytest.fixture(scope="module")
def rankings() -> list[Made]:
    """Those of the drawn operators."""
    counted = 0
    estimate = Calibration.seconds

    def counting(*args):
        nonlocal counted
        counted += 1
        return estimate(*args)

    made: list[Made] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Calibration, "seconds", counting)
        for op in _drawn():
            counted, near = 0, _near(op)
            found = ranking.ranking(op, H200, near=near)
            assert found is not None
            made.append(Made(op, near, found.ranked, counted))
    return made


@pytest.mark.nightly
def test_the_first_is_by_the_model_no_worse_than_the_nearest_record(rankings: list[Made]):
    followed = 0
    for made in rankings:
        op, near = made.op, made.near
        assert {SHAPE} <= {one.origin for one in made.ranked}
        if near is None:
            continue
        if op.name in ROWS:
            assert RECORD not in {one.origin for one in made.ranked}, "rows of all lengths were measured"
            continue
        if RECORD not in {one.origin for one in made.ranked}:
            continue  # (a record in Gluon is not followed by problems that have too little to do)
        followed += 1
        of_record = next(one.seconds for one in made.ranked if one.origin == RECORD)
        assert made.ranked[0].seconds <= of_record, op.params
        rest = [one.seconds for one in made.ranked[1:]]
        assert rest == sorted(rest), "what is tried after a refusal"
    assert followed >= 5


@pytest.mark.nightly
def test_few_choices_are_estimated(rankings: list[Made]):
    """An estimate takes a tenth of a millisecond, and the choice should take less than fifty."""
    for made in rankings:
        few = any(one.origin == FEW_ROWS for one in made.ranked)
        assert made.estimates == 0 if few else 0 < made.estimates <= MOST + 3


def test_what_no_record_of_the_class_has_is_not_ranked():
    """Where nothing was measured, the nearest record comes first, then what the shape suggests."""
    op = attention.causal(batch=1, heads=32, seq=777, head_dim=64)
    near = Choice("rolling_update", TileConfig(block_q=16, block_kv=16))
    assert _origins(op, A100, near=near)[0] == RECORD
    assert _origins(op, A100) == [SHAPE]
    assert _origins(op, H200)[0] == GLUON
    assert calibration_of(A100).told.startswith("the analytical model, not calibrated")


@pytest.mark.nightly
def test_a_choice_of_the_space_comes_first_only_if_it_is_faster_by_more_than_the_error(monkeypatch):
    op = attention.full(batch=1, heads=8, q_len=1, kv_len=4096, head_dim=64, dtype="float32")
    whole = ranking.space(op, H200)
    every = {f for one in list(whole)[:2000] for f in features(whole.nests, one)}
    split = "vector split_k_update triton"

    def first(error: float, gain: float) -> str:
        known = Calibration("9.0", 1, 1, error, 1.0, {}, {f: -gain * (f == split) for f in every}, {})
        monkeypatch.setattr(ranking, "calibration_of", lambda target: known)
        made = ranking.ranking(op, H200, given=Given("rolling_update"))
        rolling = made.ranked[0].seconds  # type: ignore[union-attr]
        made = ranking.ranking(op, H200, near=Choice("rolling_update"))
        best = made.ranked[0]  # type: ignore[union-attr]
        assert best.seconds <= rolling
        return best.origin

    assert first(1.01, 3.0) in (SPACE, SHAPE)
    assert first(1e6, 3.0) == RECORD, "the model is too far off to overrule a record"


@pytest.mark.parametrize(("sizes", "splits"), [((125, 124_823), False), ((125, 124_824), True), ((64, 124_823), True)])
def test_unaligned_rows_are_split_only_if_they_leave_half_of_the_gpu_idle(sizes: tuple[int, int], splits: bool):
    made = ranking.ranking(cross_entropy(*sizes, dtype="float16"), H200)
    assert made is not None
    assert (made.ranked[0].choice.template == "split_k_update") == splits


def test_the_callers_template_leaves_others_out():
    op = attention.full(batch=1, heads=8, q_len=1, kv_len=4096, head_dim=64)
    made = ranking.ranking(op, H200, near=Choice("split_k_update"), given=Given("rolling_update"))
    assert made is not None
    assert {one.choice.template for one in made.ranked} == {"rolling_update"}


@pytest.mark.nightly
def test_the_resolver_writes_out_what_the_compiler_chooses():
    from neptune_lab.pipeline import compile_choice

    for op in (
        attention.causal(batch=1, heads=2, seq=640, head_dim=32),
        attention.full(batch=1, heads=2, q_len=1, kv_len=4096, head_dim=64),
        rows.operator(next(p for p in draw(3, 9) if p.kind == "rows")),
    ):
        sources = {compile_choice(op, one, validate="none").source for one in (Resolver(op, H200)(Choice()), Choice())}
        assert len(sources) == 1


@pytest.mark.nightly
def test_the_shipped_calibration_is_the_fit_of_the_shipped_records(tmp_path):
    of_class = [record for record in records.shipped() if record.capability == "9.0"]
    made, kept = fit(of_class, H200), calibration_of(H200)
    help = "run python -m neptune_lab.autotune.calibration"
    assert (made.records, made.workloads) == (kept.records, kept.workloads), help
    assert made.error == pytest.approx(kept.error, rel=1e-2), help
    assert made.coefficients == pytest.approx(kept.coefficients, abs=2e-3), help
    assert made.usual == kept.usual, help
    path = tmp_path / "made.json"
    path.write_text(to_text(kept))
    assert read(path) == kept
    assert f"off by a factor of {kept.error:.2f}" in kept.told
    assert 1 <= kept.ranking_loss <= kept.error <= 2


def test_the_operator_of_a_record_is_rebuilt():
    for record in records.shipped()[::9]:
        op = operator_of(record)
        assert op is not None
        assert records.workload_key(op) == record.workload


def test_a_fit_finds_which_option_is_slow():
    """Of estimates that are equal, the one with the slow option ranks last in workloads that were not seen."""
    seen = [
        calibration.Observation(f"w{n}", "rows", (f"rows block_q={q}",), 0.0, 0.1 * n + (1.0 if q == 4 else 0.0))
        for n in range(6)
        for q in (1, 2, 4)
    ]
    _, found = calibration.fitted(seen)
    assert found["rows block_q=4"] - found["rows block_q=1"] > 0.8


def test_operators_without_reductions_have_no_ranking():
    import torch

    import neptune_lab as nl

    op = nl.from_torch(lambda x: x * 2, torch.zeros(8, 8))
    assert not Nests.found_in(op).plain
    assert ranking.ranking(op, H200) is None


def test_a_tuning_run_starts_with_the_shapes_choice_and_the_one_without_a_record():
    """So that what it finds is no slower than either; at a length that no tile divides, Gluon is in the space too."""
    op = attention.causal(batch=2, heads=8, seq=1001, head_dim=64)
    search = tune.default_search(op, H200, 0)
    first, second, *others = search.ask(40)
    assert first == Choice("rolling_update")
    assert (second.code.code, second.code.tie) == ("gluon", True)
    search.tell(first, 9.0)
    search.tell(second, 8.0)
    assert any(one.code.code == "gluon" for one in others)
    with pytest.raises(TuneError, match="was not asked for"):
        search.tell(Choice("split_k_update"), 1.0)


def test_masks_are_looked_at_only_where_gluon_may_be_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = []
    shown = ranking._most_shown
    monkeypatch.setattr(ranking, "_most_shown", lambda resolve: asked.append(resolve) or shown(resolve))
    op = attention.causal(1, 8, 1024, 64)
    assert ranking.ranking(op, A100, near=Choice("rolling_update")) is not None
    assert not asked
    assert ranking.ranking(op, H200) is not None
    assert len(asked) == 1
