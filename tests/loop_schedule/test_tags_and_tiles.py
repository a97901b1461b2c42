"""privatize_reduction, materialize_tags and retire_tags: effect, numbers, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import small_operators as small
from loop_texts import figure  # pyright: ignore[reportMissingImports]

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.tags import record
from neptune_lab.loop_ir.tree import find_block
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import softmax


@pytest.fixture
def sch() -> Schedule:
    return Schedule(softmax.figure1(2, 5))


def test_privatize_reduction(sch: Schedule, golden: Callable[[str, str], None]):
    sch.split("s_max.j", (None, 2))
    assert sch.privatize_reduction("s_max.j0") == "s_max_local"
    golden("privatize_reduction.txt", figure(sch.program))
    local, whole = (find_block(sch.program, b)[1] for b in ("s_max_local", "s_max"))
    assert (local.role, local.origin) == (Role.LOCAL, "s_max")
    assert (whole.role, whole.origin) == (Role.GLOBAL, "s_max")
    assert sch.program.buffer(local.writes).shape == (2, 3)
    assert sch.check()


def test_a_private_reduction_is_its_tiles_folded(sch: Schedule):
    sch.split("s_max.j", (None, 2))
    sch.privatize_reduction("s_max.j0")
    inp = np.array([[1, 3, 2, 5, 4], [-4, -1, -2, -9, -3]], dtype="float32")
    values = sch.run(inp=inp)
    assert values["xmax_local"].tolist() == [[3, 5, 4], [-1, -2, -3]]
    assert values["xmax"].tolist() == [5, -1]


def test_materialize_tags_shows_every_value(sch: Schedule):
    sch.materialize_tags("s_max")
    assert "xmax⟨j⟩[i] = max(xmax⟨j-1⟩[i], inp[i, j])" in str(sch)
    assert "xexp[i, j] = exp(inp[i, j] - xmax⟨4⟩[i])" in str(sch)
    inp = np.array([[1, 3, 2, 5, 4], [-4, -1, -2, -9, -3]], dtype="float32")
    assert sch.run(inp=inp)["xmax"].T.tolist() == np.maximum.accumulate(inp, axis=1).tolist()
    assert sch.check()


def test_retire_tags_keeps_two_values(sch: Schedule):
    sch.set_scope("s_max", "local")
    sch.materialize_tags("s_max")
    sch.retire_tags("s_max")
    assert sch.blocks == ("s_max_start", "s_max", "s_max_next", "s_exp", "s_sum")
    assert {b.name: (b.shape, b.scope) for b in sch.program.buffers if b.name.startswith("xmax")} == {
        "xmax_0": ((2,), "local"),
        "xmax_1": ((2,), "local"),
    }
    assert sch.phases[0].note.endswith(
        "xmax_0 starts as -inf. After the loop, s_exp reads xmax_0, which is then the last value."
    )
    assert sch.check()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("tile", [1, 2, 3])
@pytest.mark.parametrize("definition", [small.late_reader, small.two_sums, small.weighted, small.two_producers])
def test_retire_every_producer_of_a_fused_chain(definition: Callable[[], small.Definition], tile: int):
    sch = small.schedule(definition())
    sch.split("r.j", (None, tile))
    for block in ("s", "q", "o"):
        if sch.has_block(block) and find_block(sch.program, block)[1].is_reduction:
            sch.rolling_update(block, "r.j0")
    for buffer in [b.name for b in sch.program.buffers if b.tagged]:
        sch.retire_tags(buffer)
    assert not any(b.tagged for b in sch.program.buffers)
    assert sch.check()
    assert sch.check(seed=1)


@pytest.mark.parametrize("retired", [False, True])
def test_a_scan_that_a_loop_runs_again_is_complete_each_time(retired: bool):
    sch = small.schedule(small.scaled_first())
    sch.compute_at("r", "o.j")
    sch.materialize_tags("r")
    if retired:
        sch.retire_tags("r")
    assert sch.check()
    assert not record(sch.program, sch.operator.random_inputs(0)).early()


def test_nothing_is_written_past_the_last_tag(sch: Schedule):
    sch.split("s_max.j", (None, 2))
    sch.rolling_update("s_sum", "s_max.j0")
    values = run(sch.program, sch.operator.random_inputs(0))
    assert values["xmax"].shape == (3, 2)
    assert np.isfinite(values["xmax"]).all()


REFUSALS: dict[str, tuple[Callable[[Schedule], object], str]] = {
    "private, element by element": (
        lambda s: s.privatize_reduction("s_max.j"),
        "folds a single element of [^:]*: there is nothing to make private",
    ),
    "private along a spatial loop": (
        lambda s: s.privatize_reduction("s_max.i"),
        "'s_max' does not reduce along loop 'i': no reduce iteration does",
    ),
    "private, a map": (lambda s: s.privatize_reduction("s_exp.j"), "'s_exp' is not a reduction"),
    "private along the inner loop": (
        lambda s: (s.split("s_max.j", (None, 2)), s.privatize_reduction("s_max.j1")),
        "reduces along 'j1' and along the outer loop 'j0' as well",
    ),
    "tags of a map": (lambda s: s.materialize_tags("s_exp"), "does not fold over exactly one loop"),
    "tags over two loops": (
        lambda s: (s.split("s_max.j", (None, 2)), s.materialize_tags("s_max")),
        "does not fold over exactly one loop",
    ),
    "tags of an output": (lambda s: s.materialize_tags("s_sum"), "'s_sum' writes the output 'xsum'"),
    "tags twice": (
        lambda s: (s.materialize_tags("s_max"), s.materialize_tags("s_max")),
        "'s_max' has its tags materialised already",
    ),
    "tags after decompose": (
        lambda s: (s.decompose_reduction("s_max", "s_max.j"), s.materialize_tags("s_max")),
        "has no constant start value",
    ),
    "retire no tags": (lambda s: s.retire_tags("s_max"), "'s_max' has no tags to retire"),
    "retire twice": (
        lambda s: (s.materialize_tags("s_max"), s.retire_tags("s_max"), s.retire_tags("s_max")),
        "'s_max' has no tags to retire",
    ),
}


def test_two_values_are_too_few_for_readers_outside_of_the_loop():
    sch = small.schedule(small.scaled_first())
    sch.rolling_update("o", "r.j", maps="keep")
    sch.fuse_under("r", sch.loops("c")[-1])
    assert sch.check()
    with pytest.raises(ScheduleError, match=r"is outside of loop 'r\.[^:]* and reads 'r' at every tag"):
        sch.retire_tags("r")


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(sch: Schedule, name: str):
    action, match = REFUSALS[name]
    with pytest.raises(ScheduleError, match=match) as caught:
        action(sch)
    assert caught.value.help
    assert sch.check()


def test_a_table_of_a_phase_that_the_step_does_not_have(sch: Schedule):
    sch.rolling_update("s_sum", "s_max.j")
    assert len(sch.tag_table("j", phase="naive").columns) == 5
    for name in ("naiv", 3):
        with pytest.raises(ScheduleError, match=f"the last step has no phase {name!r}\n.*naive"):
            sch.tag_table("j", phase=name)  # pyright: ignore[reportArgumentType]
