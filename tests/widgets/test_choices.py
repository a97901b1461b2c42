"""Every offered argument goes through."""

from __future__ import annotations

import pytest
from neptune_widgets.choices import Trials, Unfinished, choices
from neptune_widgets.session import normal, prefix

import neptune_lab as nl
from neptune_lab.loop_schedule import PRIMITIVES
from neptune_lab.operators import attention, softmax


@pytest.fixture(scope="module")
def rolled():
    return nl.compile(softmax.figure1(4, 8), block_q=2, block_kv=4).schedule


def offered(parameters):
    """Every set of arguments that differs from the shown one in one place, by what is offered."""
    now = {p.name: p.value for p in parameters if p.value is not None}
    for p in parameters:
        if p.choices is None or p.kind == "loops":
            continue
        if p.kind == "tiles":
            for loop, sizes in p.choices.items():
                for size in sizes:
                    yield {**now, p.name: {**now[p.name], loop: size}}
            continue
        for choice in p.choices:
            yield {**now, p.name: choice}


# Each primitive behind every other prefix of the schedule, odd and even ones in turn; behind the others at night.
OFFERS = [
    pytest.param(primitive, before, marks=() if n % 2 == before % 2 else pytest.mark.nightly)
    for n, primitive in enumerate(sorted(PRIMITIVES))
    for before in range(10)
]


@pytest.mark.one_in(36)
@pytest.mark.parametrize(("primitive", "before"), OFFERS)
def test_all_offered_choices_are_legal(rolled, primitive, before):
    schedule = prefix(rolled, before)
    for arguments in offered(choices(schedule, primitive)):
        schedule.copy().apply(normal(primitive, arguments))  # raises where it is not


def test_the_arguments_of_a_step_stay_and_are_among_the_choices(rolled):
    for n, step in enumerate(rolled.steps):
        arguments = step.as_record()["arguments"]
        for p in choices(prefix(rolled, n), step.primitive, arguments):
            assert p.value == arguments.get(p.name)
            if p.kind not in ("tiles", "loops", "text", "sentence") and p.value is not None:
                assert p.value in p.choices


def test_a_tile_offers_divisors_and_powers_of_two():
    schedule = nl.Schedule(softmax.figure1(4, 24))
    tiles = next(p for p in choices(schedule, "tile", {"block": "s_max", "tiles": {"j": 8}}) if p.name == "tiles")
    assert tiles.kind == "tiles"
    assert {1, 2, 3, 4, 6, 8, 12, 16, 24} <= set(tiles.choices["j"])


def test_a_block_that_was_chosen_stays_while_the_rest_is_suggested():
    schedule = nl.Schedule(attention.causal(seq=16, head_dim=8))
    found = {p.name: p for p in choices(schedule, "tile", {"block": "acc", "tiles": {"nothing": 4}})}
    assert found["block"].value == "acc"
    assert found["tiles"].value != {"nothing": 4}


def test_where_nothing_is_legal_nothing_is_offered():
    (block,) = choices(nl.Schedule(softmax.figure1()), "retire_tags")
    assert block.choices == []
    assert block.value is None


def test_an_unknown_primitive_is_refused():
    with pytest.raises(nl.errors.ScheduleError, match="no primitive 'tiel'"):
        choices(nl.Schedule(softmax.figure1()), "tiel")


@pytest.mark.parametrize("primitive", ["tile", "split", "rolling_update", "compute_at"])
def test_what_is_offered_does_not_depend_on_time(rolled, primitive, monkeypatch):
    before = prefix(rolled, 1)
    expected = choices(before, primitive)
    monkeypatch.setattr("neptune_widgets.choices.PATIENCE", 0.0)  # one trial per answer
    trials, answers = Trials(), 1
    while True:
        try:
            found = choices(before, primitive, None, trials)
            break
        except Unfinished:
            answers += 1
    assert found == expected
    assert answers > 1
    assert not trials.limited


def test_a_limit_of_trials_is_told(rolled, monkeypatch):
    monkeypatch.setattr("neptune_widgets.choices.MOST_TRIALS", 3)
    trials = Trials()
    choices(prefix(rolled, 1), "tile", None, trials)
    assert trials.limited


@pytest.mark.parametrize(
    ("arguments", "mending"),
    [
        ({"block": "s_sum", "loop": "s_max.j", "repair": "t * exp(xmax_now - xmax_before)"}, {"proved": [False]}),
        ({"block": "s_sum", "loop": "s_max.j", "maps": "loose"}, {"maps": ["auto", "inline", "keep"]}),
        ({"block": "s_summ", "loop": "s_max.j"}, {"block": ["s_sum"]}),
    ],
)
def test_the_values_that_mend_a_refused_step_are_offered(arguments, mending):
    schedule = nl.Schedule(softmax.figure1(2, 4))
    found = {p.name: p for p in choices(schedule, "rolling_update", arguments)}
    for name, values in mending.items():
        assert sorted(found[name].choices) == sorted(values)
    for p in found.values():
        assert p.value == arguments.get(p.name), "what is written stays as it is"
