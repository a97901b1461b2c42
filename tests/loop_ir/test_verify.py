"""A program that is not legal is refused by the step that makes it, before tiles, and before a native run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import small_operators as small
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Buffer, Const, Iter, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_to_htile import translate
from neptune_lab.operators import attention, custom, rows


def refuses(sch: Schedule, step: Callable[[], object], match: str) -> None:
    before = sch.program
    with pytest.raises(ScheduleError, match=match) as refusal:
        step()
    assert refusal.value.help
    assert sch.program is before
    assert sch.check()


# -- steps that leave a program that reads or writes too early, too late, or twice ----------------------------------


def test_a_producer_does_not_move_into_a_loop_that_it_folds_along():
    sch = Schedule(rows.softmax(rows=6, cols=24))
    sch.tile("s_exp", i=2, j=8)
    refuses(sch, lambda: sch.fuse_under("s_max", "s_exp.j0"), "'s_max' has folded only a part of it")


def test_a_reduction_with_a_reader_in_its_loop_is_not_made_private():
    sch = small.schedule(small.late_reader(4, 6))
    sch.split("s.j", (None, 2))
    sch.fuse_under("o", "s.i")
    refuses(sch, lambda: sch.privatize_reduction("s.j0"), "'o' would read 's' before 's' writes it")


@pytest.mark.parametrize("loop", ["o.i", "o.j"])
def test_a_scan_keeps_all_of_its_tags(loop):
    sch = small.schedule(small.pair(lambda c, r: c - r))
    sch.materialize_tags("r")
    refuses(sch, lambda: sch.compute_at("r", loop), "'r' would fold 1 of the 5 values of j")


def test_a_reduction_that_is_computed_again_starts_again():
    sch = small.schedule(small.late_reader(4, 6))
    sch.split("o.j", (None, 2))
    sch.compute_at("s", "o.j0")
    refuses(sch, lambda: sch.decompose_reduction("s", "s.j0"), "'s' would fold again in every iteration of loop 'j0'")
    sch.decompose_reduction("s", "s.j")
    assert sch.check()


def test_a_start_value_stays_before_its_fold():
    sch = small.schedule(small.late_reader(4, 6))
    sch.decompose_reduction("s", "s.i")
    refuses(sch, lambda: sch.fuse_under("s_start", "s.i"), "start value of 's' after 's'")


def test_a_split_after_a_rolling_update_inside_it():
    sch = nl.Schedule(attention.full(seq=16, head_dim=4))
    sch.inline("score")
    sch.split("s_max.j", (2, 2, 4))
    sch.split_k_update("s_sum", "s_max.j0")
    sch.rolling_update("s_sum_local", "s_max_local.j1")
    sch.split_k_update("acc", "s_max_local.j0")
    assert sch.check()


@pytest.mark.parametrize("loop", ["i1", "j"])
def test_start_values_of_fused_rows_and_columns_may_be_taken_out(loop):
    sch = Schedule(rows.softmax(rows=6, cols=4))
    sch.split("s_sum.i", (None, 4))
    if loop == "i1":
        sch.fuse("s_sum", "i1", "j", name="i1")
    sch.decompose_reduction("s_sum", f"s_sum.{loop}")
    assert sch.check()


# -- programs broken by hand, one per rule --------------------------------------------------------------------------


def change(program: Program, name: str, rule: Callable[[Block], Block]) -> Program:
    return tree.replace_block(program, name, rule(tree.find_block(program, name)[1]))


def binding(name: str, index: object) -> Callable[[Block], Block]:
    def rule(block: Block) -> Block:
        return replace(block, iters=tuple(replace(i, binding=index) if i.name == name else i for i in block.iters))

    return rule


def bound(variable: str, limit: int) -> Callable[[Block], Block]:
    return lambda block: replace(block, predicates=(Op("lt", (Var(variable), Const(limit))),))


def swapped(program: Program) -> Program:
    return replace(program, body=(*program.body[1:], program.body[0]))


def renamed(program: Program, old: str, new: str) -> Program:
    return tree.map_blocks(program, lambda b: replace(b, name=new) if b.name == old else b)


def wider(block: Block) -> Block:
    return replace(block, iters=tuple(replace(i, extent=i.extent + 2) if i.name == "j" else i for i in block.iters))


def shifted(block: Block) -> Block:
    return replace(block, body=replace(block.body, indices=(Op("add", (block.body.indices[0], Const(1))),)))


TWICE = Op("floordiv", (Var("j"), Const(2)))
BROKEN: dict[str, tuple[str, Callable[[Program], Program]]] = {
    "a loop that is not around": ("not inside the loop 'k'", lambda p: change(p, "s", binding("j", Var("k")))),
    "an iteration past its end": (
        "would run 'j' from 0 to 8",
        lambda p: change(p, "s", binding("j", Op("mul", (Var("j"), Const(2))))),
    ),
    "before the start": (
        "would run 'j' from -1 to 3",
        lambda p: change(p, "s", binding("j", Op("sub", (Var("j"), Const(1))))),
    ),
    "a store outside": ("outside: index i \\+ 1 runs from 1 to 3", lambda p: change(p, "r", shifted)),
    "a loop over the same elements": ("would fold elements again", lambda p: change(p, "s", binding("j", TWICE))),
    "a bound on a fold": ("would fold 3 of the 5 values of j", lambda p: change(p, "s", bound("j", 3))),
    "a wider fold": ("would fold 5 of the 7 values of j", lambda p: change(p, "s", wider)),
    "a bound on an output": ("does not write all of the output 'o'", lambda p: change(p, "o", bound("i", 2))),
    "a bound on what is read": ("'e' has not written", lambda p: change(p, "e", bound("j", 4))),
    "nests in another order": ("before 'r' writes it", swapped),
    "a name given twice": ("two blocks are called 'e'", lambda p: renamed(p, "r", "e")),
    "a buffer declared twice": (
        "two buffers are called 'r'",
        lambda p: replace(p, buffers=(*p.buffers, Buffer("r", (3,), "float32"))),
    ),
    "a buffer that nothing writes": (
        "reads 'z', which nothing writes",
        lambda p: replace(
            change(p, "o", lambda b: replace(b, body=replace(b.body, value=Load("z", (Var("i"),))))),
            buffers=(*p.buffers, Buffer("z", (3,), "float32")),
        ),
    ),
    "no start value": ("which has no start value", lambda p: change(p, "s", lambda b: replace(b, init=None))),
    "a wrong rank": (
        "with 1 indices; it has 2 dimensions",
        lambda p: change(p, "o", lambda b: replace(b, body=replace(b.body, value=Load("e", (Var("i"),))))),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_is_refused(name):
    match, change_it = BROKEN[name]
    definition = small.operator(small.late_reader()).program
    verify(definition, definition)
    with pytest.raises(ScheduleError, match=match):
        verify(change_it(definition), definition)
    with pytest.raises(ScheduleError, match=match):
        translate(change_it(definition))


def test_a_read_that_data_chooses_needs_the_whole_dimension():
    x, ids = te.placeholder((4, 5), "float32", name="x"), te.placeholder((7,), "int32", name="ids")
    k = te.reduce_axis((0, 5), name="k")
    s = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="s")
    o = te.compute((7,), lambda j: s[ids[j]], name="o")
    program = custom("chosen", [x, ids], [o]).program
    verify(program, program)
    with pytest.raises(ScheduleError, match=r"'s' has not written: it cannot be shown that ids\[j\]"):
        verify(change(program, "s", bound("i", 3)), program)


def test_nothing_runs_natively_that_leaves_its_memory():
    op = small.operator(small.late_reader())
    inputs = op.random_inputs(0)
    for name in ("an iteration past its end", "before the start", "a store outside"):
        with pytest.raises(ScheduleError, match=BROKEN[name][0]):
            run(BROKEN[name][1](op.program), inputs)


def test_what_cannot_be_judged_is_refused():
    """A bound that is no arithmetic of loops: whether it holds is data."""
    op = small.operator(small.late_reader())
    data = Op("lt", (Load("x", (Const(0), Const(0))), Const(1.0, "float32")))
    guarded = change(
        op.program, "s", lambda b: replace(b, predicates=(Op("and", (data, Op("lt", (Var("j"), Const(3))))),))
    )
    with pytest.raises(ScheduleError, match="cannot be shown which values"):
        verify(guarded)


def test_a_tile_that_loses_elements_is_seen_by_the_definition():
    """The last tile may hold fewer elements; how many there are in all, the definition says."""
    sch = small.schedule(small.late_reader(3, 10))
    sch.split("s.j", (None, 4))
    sch.privatize_reduction("s.j0")
    verify(sch.program, sch.definition)
    short = change(
        sch.program,
        "s_local",
        lambda b: replace(
            b, predicates=(Op("lt", (Op("add", (Op("mul", (Var("j0"), Const(4))), Var("j1"))), Const(9))),)
        ),
    )
    with pytest.raises(ScheduleError, match="would fold 9 elements of 's', which folds 10"):
        verify(short, sch.definition)


def test_a_guarded_read_may_reach_past_the_end():
    """A choice reads one side only: x[i, j + 1] where j + 1 < m."""
    from tvm import tirx

    x = small.matrix(m=5)
    o = small.compute((3, 5), lambda i, j: tirx.if_then_else(j < 4, x[i, j + 1], 0.0), name="o")
    op = small.operator(([x], [o]))
    sch = Schedule(op)
    sch.tile("o", i=2, j=2)
    assert sch.check()
    found = sch.run(**op.random_inputs(0))["o"]
    assert np.isfinite(found).all()


def test_a_fused_loop_of_large_dimensions_is_judged_by_its_digits():
    """64 x 1024 x 1024 points are too many to look at one by one."""
    x = te.placeholder((64, 1024, 1024), "float32", name="x")
    o = small.compute((64, 1024, 1024), lambda b, i, j: x[b, i, j] * 2.0, name="o")
    sch = Schedule(small.operator(([x], [o])))
    sch.split("o.i", (None, 128))
    sch.fuse("o", "b", "i0")
    sch.fuse("o", "i1", "j")
    sch.split("o.i1j", (None, 256))
    verify(sch.program, sch.definition)


def test_a_block_of_a_hand_made_program():
    """The least legal program: one store per element."""
    store = Store("o", (Var("i"),), Load("x", (Var("i"),)))
    block = Block("o", (Iter("i", 3, "spatial", Var("i")),), store)
    buffers = (Buffer("x", (3,), "float32"), Buffer("o", (3,), "float32"))
    program = Program("p", ("x", "o"), ("o",), buffers, (tree.loop_nest([("i", 3)], block),))
    verify(program)
    with pytest.raises(ScheduleError, match="'o' does not write all of the output 'o': index 0 takes 2"):
        verify(replace(program, body=(tree.loop_nest([("i", 2)], block),)))


@pytest.mark.parametrize("scope", ["global", "local"])
def test_a_program_is_refused_whatever_its_scopes(scope: str):
    program = rows.softmax(rows=6, cols=24).program
    verify(program)
    moved = [replace(b, scope=scope) if b.name not in program.params else b for b in program.buffers]
    small_ones = [replace(b, shape=(5,)) if b.name == "s_max" else b for b in moved]
    verify(replace(program, buffers=tuple(moved)))
    with pytest.raises(ScheduleError, match="'s_max' has 5 elements"):
        verify(replace(program, buffers=tuple(small_ones)))
