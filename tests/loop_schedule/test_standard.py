"""The standard primitives: what each does to the text, that the numbers stay, and what each refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import small_operators as small

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.dataflow import graph
from neptune_lab.loop_ir.nodes import Block, Loop
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.tree import find_block, statements
from neptune_lab.loop_schedule import PRIMITIVES, Schedule
from neptune_lab.loop_schedule.schedule import Step
from neptune_lab.operators import attention, norms, softmax


@pytest.fixture
def sch() -> Schedule:
    return Schedule(softmax.figure1(4, 8))


@pytest.fixture
def scores() -> Schedule:
    """Attention: a matmul, and a map of its result."""
    return Schedule(attention.full(1, 1, q_len=4, kv_len=6, head_dim=2))


def nest(sch: Schedule, block: str) -> list[tuple[str, int]]:
    return [(loop.var, loop.extent) for loop in find_block(sch.program, block)[2]]


def predicates(sch: Schedule, block: str) -> int:
    return len(find_block(sch.program, block)[1].predicates)


# -- split, reorder, fuse, tile --------------------------------------------------------------------


def test_split(sch: Schedule):
    assert sch.split("s_max.j", (None, 4)) == ("s_max.j0", "s_max.j1")
    assert nest(sch, "s_max") == [("i", 4), ("j0", 2), ("j1", 4)]
    assert predicates(sch, "s_max") == 0
    assert nest(sch, "s_exp") == [("i", 4), ("j", 8)]
    assert sch.check()


def test_split_that_does_not_divide_is_guarded(sch: Schedule):
    sch.split("s_max.j", (None, 3))
    assert nest(sch, "s_max") == [("i", 4), ("j0", 3), ("j1", 3)]
    assert "if j0 * 3 + j1 < 8:" in str(sch)
    assert sch.check()


def test_split_in_three_with_names(sch: Schedule):
    assert sch.split("s_sum.j", (None, 2, 2), names=["block", "row", "lane"]) == (
        "s_sum.block",
        "s_sum.row",
        "s_sum.lane",
    )
    assert nest(sch, "s_sum") == [("i", 4), ("block", 2), ("row", 2), ("lane", 2)]
    assert "xsum[i] += xexp[i, block * 4 + row * 2 + lane]" in str(sch)
    assert sch.check()


def test_reorder(sch: Schedule):
    assert sch.reorder("s_exp", "j", "i") == ("s_exp.j", "s_exp.i")
    assert nest(sch, "s_exp") == [("j", 8), ("i", 4)]
    assert sch.check()


def test_fuse(sch: Schedule):
    assert sch.fuse("s_exp", "i", "j") == "s_exp.ij"
    assert nest(sch, "s_exp") == [("ij", 32)]
    assert sch.check()
    other = Schedule(sch.operator)
    assert other.fuse("s_exp", "i", "j", name="flat") == "s_exp.flat"
    assert nest(other, "s_exp") == [("flat", 32)]


def test_tile(sch: Schedule):
    assert sch.tile("s_exp", i=2, j=4) == ("s_exp.i0", "s_exp.j0", "s_exp.i1", "s_exp.j1")
    assert nest(sch, "s_exp") == [("i0", 2), ("j0", 2), ("i1", 2), ("j1", 4)]
    assert sch.check()


# -- moving ----------------------------------------------------------------------------------------


def test_reverse_compute_at(scores: Schedule):
    scores.tile("qk", i=2, j=3)
    scores.reverse_compute_at("score", "qk.j0")
    assert nest(scores, "score") == [("b", 1), ("h", 1), ("i0", 2), ("j0", 2), ("i1", 2), ("j1", 3)]
    assert scores.check()


def test_compute_at(scores: Schedule):
    scores.tile("score", i=2, j=3)
    scores.compute_at("qk", "score.j0")
    assert nest(scores, "qk")[:4] == nest(scores, "score")[:4]
    assert dict(nest(scores, "qk")) == {"b": 1, "h": 1, "i0": 2, "j0": 2, "i1": 2, "j1": 3, "d": 2}
    assert scores.blocks.index("qk") < scores.blocks.index("score")
    assert scores.check()


def test_inline(sch: Schedule):
    sch.inline("s_exp")
    assert sch.blocks == ("s_max", "s_sum")
    assert "xsum[i] += exp(inp[i, j] - xmax[i])" in str(sch)
    assert sch.check()


# -- memory ----------------------------------------------------------------------------------------


def test_cache_read(sch: Schedule):
    made = sch.cache_read("s_max", "inp", "shared")
    path, copy, _ = find_block(sch.program, made)
    assert path < find_block(sch.program, "s_max")[0]
    assert sch.program.buffer(copy.writes).scope == "shared"
    assert f"xmax[i] = max(xmax[i], {copy.writes}[i, j])" in str(sch)
    assert copy.origin == "s_max"
    assert sch.check()


def test_cache_write(sch: Schedule):
    made = sch.cache_write("s_max", "local")
    writer = find_block(sch.program, "s_max")[1]
    copy = find_block(sch.program, made)[1]
    assert {sch.program.buffer(b.writes).scope for b in (writer, copy)} == {"local", "global"}
    assert {b.writes for b in (writer, copy)} > {"xmax"}
    assert copy.origin == "s_max"
    assert sch.check()


def test_set_scope(sch: Schedule):
    sch.set_scope("s_exp", "local")
    assert sch.program.buffer("xexp").scope == "local"
    assert sch.check()


def test_decompose_reduction(sch: Schedule):
    assert sch.decompose_reduction("s_max", "s_max.j") == "s_max_start"
    assert sch.blocks == ("s_max_start", "s_max", "s_exp", "s_sum")
    assert "xmax[i] = -inf" in str(sch)
    start, update = (find_block(sch.program, b)[1] for b in ("s_max_start", "s_max"))
    assert (start.role, start.origin, start.init) == (Role.INITIAL, "s_max", None)
    assert update.init is None
    assert sch.check()


# -- loops as the grid, and notes ------------------------------------------------------------------


def test_bind(sch: Schedule):
    sch.bind("s_max.i", "blockIdx.x")
    sch.bind("s_sum.i", "blockIdx.x")  # another nest, another kernel
    kinds = [s.kind for _, s, _ in statements(sch.program) if isinstance(s, Loop)]
    assert kinds == ["blockIdx.x", "serial", "serial", "serial", "blockIdx.x", "serial"]
    assert "for i in range(4):  # blockIdx.x" in str(sch)
    assert sch.check()


def test_annotations_stay_through_other_steps(sch: Schedule):
    sch.annotate("s_max.i", "num_warps", 4)
    sch.annotate("s_max.i", "num_warps", 8)
    sch.annotate("s_max.i", "note", "rows")
    sch.split("s_max.j", (None, 4))
    sch.bind("s_max.i", "blockIdx.x")
    sch.inline("s_exp")
    outermost = sch.program.body[0]
    assert isinstance(outermost, Loop)
    assert dict(outermost.annotations) == {"num_warps": 8, "note": "rows"}
    assert "# num_warps" in str(sch)
    assert sch.check()


# -- refusals --------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[Callable[[Schedule], object], str]] = {
    "no such block": (lambda s: s.split("s_mas.j", (None, 2)), "there is no block 's_mas'[^?]*did you mean 's_max'"),
    "no such loop": (
        lambda s: s.split("s_max.k", (None, 2)),
        "'s_max' has no loop 'k' around it[^:]*: the loops.*i, j",
    ),
    "no loop named": (
        lambda s: s.split("s_max", (None, 2)),
        "'s_max' does not name a loop[^']*\"block.loop\": 's_max.i', 's_max.j'$",
    ),
    "no block named": (lambda s: s.split("i", (None, 2)), "'i' does not name a loop[^']*: 's_max.i', 's_exp.i'"),
    "one factor": (lambda s: s.split("s_max.j", (4,)), "two or more positive extents"),
    "two unknown factors": (lambda s: s.split("s_max.j", (None, None)), "at most one of them None"),
    "a factor of 0": (
        lambda s: s.split("s_max.j", (None, 0)),
        r"split: factors=\[None, 0\], expected a tuple of positive integers",
    ),
    "factors too small": (lambda s: s.split("s_max.j", (2, 3)), "cover 6 of the 8 iterations"),
    "too few names": (lambda s: s.split("s_max.j", (None, 2), names=["a"]), "1 names for 2 factors"),
    "a name that is taken": (lambda s: s.split("s_max.j", (None, 2), names=["i", "k"]), r"\['i', 'k'\] are not free"),
    "a factor that is text": (lambda s: s.split("s_max.j", (None, "2")), "expected a tuple of positive integers"),  # type: ignore[arg-type]
    "a loop that is a number": (lambda s: s.split(3, (None, 2)), "split: loop=3, expected a string"),  # type: ignore[arg-type]
    "fuse one loop": (lambda s: s.fuse("s_exp", "i"), "two loops or more"),
    "fuse none": (lambda s: s.fuse("s_exp"), "two loops or more"),
    "fuse the wrong way round": (lambda s: s.fuse("s_exp", "j", "i"), "TVM refuses"),
    "reorder with a stranger": (lambda s: s.reorder("s_exp", "i", "k"), "has no loop 'k'"),
    "tile a stranger": (lambda s: s.tile("s_exp", k=2), "has no loop 'k'"),
    "tile by nothing": (lambda s: s.tile("s_exp", i=0), "tiles={'i': 0}, expected a positive integer"),
    "bind a fold": (lambda s: s.bind("s_max.j", "blockIdx.x"), "'s_max' carries a value from one iteration"),
    "bind to a thread": (lambda s: s.bind("s_max.i", "threadIdx.x"), "'threadIdx.x' is not a grid axis"),
    "consumer before producer": (lambda s: s.reverse_compute_at("s_sum", "s_max.j"), "TVM refuses"),
    "compute at its own loop": (lambda s: s.compute_at("s_exp", "s_exp.i"), "TVM refuses"),
    "inline a fold": (lambda s: s.inline("s_max"), "'s_max' is a reduction: it cannot be inlined"),
    "inline a stranger": (lambda s: s.inline("exp"), "did you mean 's_exp'"),
    "cache what is not read": (lambda s: s.cache_read("s_max", "xexp"), "'s_max' does not read 'xexp'"),
    "an output on chip": (lambda s: s.set_scope("s_sum", "local"), "writes 'xsum', an output"),
    "no such scope": (lambda s: s.set_scope("s_exp", "register"), "scope='register' is not a memory scope"),
    "a producer behind its consumer": (
        lambda s: s.reverse_compute_at("s_max", "s_sum.i"),
        "'s_exp' would read 'xmax' before 's_max' writes it",
    ),
    "decompose a map": (lambda s: s.decompose_reduction("s_exp", "s_exp.j"), "'s_exp' has no start value.*not a reduc"),
    "decompose inside": (
        lambda s: s.decompose_reduction("s_sum", "s_sum.j1"),
        "folds along 'j0', which is outside 'j1'",
    ),
    "fuse an incomplete read": (lambda s: s.fuse_under("s_sum", "s_max.j"), "which leaves it incomplete"),
    "fuse where it stands": (lambda s: s.fuse_under("s_max", "s_max.i"), "is under loop 's_max.i' already"),
    "remark nothing": (lambda s: s.remark(" "), "remark takes a sentence"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_leave_the_schedule_as_it_was(sch: Schedule, name: str):
    action, match = REFUSALS[name]
    sch.split("s_sum.j", (None, 2))
    program, steps = sch.program, sch.steps
    with pytest.raises(ScheduleError, match=match):
        action(sch)
    assert sch.program is program
    assert sch.steps == steps


def test_an_axis_is_taken_once_a_nest(sch: Schedule):
    sch.bind("s_exp.i", "blockIdx.x")
    with pytest.raises(ScheduleError, match=r"blockIdx\.x is taken by loop 'i' of the same nest"):
        sch.bind("s_exp.j", "blockIdx.x")
    sch.bind("s_exp.j", "blockIdx.y")
    inner_first = Schedule(sch.operator)
    inner_first.bind("s_exp.j", "blockIdx.x")
    with pytest.raises(ScheduleError, match=r"blockIdx\.x is taken by loop 'j' of the same nest"):
        inner_first.bind("s_exp.i", "blockIdx.x")


def test_what_carries_a_value_is_not_inlined(sch: Schedule):
    sch.materialize_tags("s_max")
    with pytest.raises(ScheduleError, match="'s_max' carries a value from one iteration to the next"):
        sch.inline("s_max")


def test_tags_stay_in_order(sch: Schedule):
    """TVM does not see that a scan reads the tag before, and would walk the columns in any order."""
    sch.rolling_update("s_sum", "s_max.j")
    sch.split("s_max.j", (None, 2))
    with pytest.raises(
        ScheduleError, match="with loop 'j1' outside 'j0', block 's_max' would visit its tags out of order"
    ):
        sch.reorder("s_max", "j1", "j0")
    sch.reorder("s_max", "j0", "j1", "i")
    assert sch.check()


def test_a_reduction_is_not_read_inside_a_loop_that_it_folds_along():
    """TVM takes it for complete inside a loop of one iteration."""
    sch = small.schedule(small.scaled_first())
    sch.rolling_update("r", "c.j")
    sch.split("c.j", (None, 1))
    with pytest.raises(
        ScheduleError, match="'o' would read 'r' inside loop 'j0', which 'r' still folds along"
    ) as caught:
        sch.reverse_compute_at("o", "r.j1")
    assert caught.value.help == "use rolling_update or split_k_update to fuse across 'r'"


def test_a_map_of_an_incomplete_reduction_is_told_where_that_is_complete_and_which_reduction_takes_it_along(
    sch: Schedule,
):
    with pytest.raises(ScheduleError, match="'s_exp' would read 's_max' inside loop 'j'") as caught:
        sch.reverse_compute_at("s_exp", "s_max.j")
    outside, repaired = (caught.value.help or "").split("; or ")
    assert outside == "name a loop outside it, such as 's_max.i'"
    assert repaired == "use rolling_update or split_k_update on 's_sum', which takes 's_exp' along"
    sch.copy().reverse_compute_at("s_exp", "s_max.i")
    sch.rolling_update("s_sum", "s_max.j")


@pytest.mark.parametrize("columns_outside", [False, True])
def test_what_each_iteration_overwrites_is_not_read_after_the_loop(columns_outside: bool):
    """The step of a vector repair has no tags: each iteration writes it anew.  TVM takes it for complete."""
    sch = Schedule(norms.layer_norm(4, 6))
    if columns_outside:
        sch.reorder("x_sum", "j", "i")
    sch.rolling_update("deviation_sum", "x_sum.j")
    with pytest.raises(ScheduleError, match=r"would read '.*' after loop 'j', in each iteration of which") as caught:
        sch.compute_at("deviation_sum", "variance.i")
    assert caught.value.help == "leave 'deviation_sum' inside that loop"
    assert sch.check()


def test_two_copies_of_one_name(sch: Schedule):
    """Taken for each other, they would merge."""
    copy = sch.cache_read("s_max", "inp", "shared")
    assert sch.phases[0].note == "inp is copied to shared memory; the copy is read by s_max, s_exp."
    with pytest.raises(ScheduleError, match="there is a block or buffer 'inp_shared' already"):
        sch.cache_read(copy, "inp", "shared")
    sch.cache_read(copy, "inp", "local")
    assert sch.check()


def test_no_grid_along_tags_or_along_what_replaced_them(sch: Schedule):
    sch.materialize_tags("s_max")
    with pytest.raises(ScheduleError, match="'s_max' carries a value"):
        sch.bind("s_max.j", "blockIdx.x")
    sch.retire_tags("s_max")
    with pytest.raises(ScheduleError, match="'s_max_next' carries a value"):
        sch.bind("s_max.j", "blockIdx.x")
    sch.bind("s_max.i", "blockIdx.x")


# -- the registry ----------------------------------------------------------------------------------


def test_a_block_of_another_kernel_is_not_fused(sch: Schedule):
    sch.bind("s_sum.i", "blockIdx.x")
    with pytest.raises(ScheduleError, match="'s_sum' is in a loop that is bound to the grid"):
        sch.fuse_under("s_sum", "s_max.i")


def test_every_primitive_is_a_method_with_its_arguments_and_a_summary():
    ours = {name for name, p in PRIMITIVES.items() if p.ours}
    assert ours >= {
        *("fuse_under", "tile_outermost", "privatize_reduction", "rolling_update", "split_k_update"),
        *("materialize_tags", "retire_tags", "cut", "remark"),
    }
    for name, primitive in PRIMITIVES.items():
        assert callable(getattr(Schedule, name))
        assert primitive.summary.endswith((".", "worked out)."))
        assert primitive.parameters[0].name in ("block", "loop") or name == "remark"


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (Step.of("splt", loop="s_max.j"), "there is no primitive 'splt'[^?]*did you mean 'split'"),
        (Step.of("split", lop="s_max.j", factors=[None, 2]), "split has no argument 'lop'[^?]*did you mean 'loop'"),
        (Step.of("split", loop="s_max.j"), "split needs the argument 'factors'"),
    ],
)
def test_steps_that_are_not_calls(sch: Schedule, step: Step, match: str):
    with pytest.raises(ScheduleError, match=match):
        sch.apply(step)


# -- the dataflow graph ----------------------------------------------------------------------------


def test_dataflow_graph_of_figure_1(sch: Schedule):
    g = graph(sch.program)
    assert {name: (d["node"].kind, d["node"].detail) for name, d in g.nodes(data=True)} == {
        "inp": ("input", "4 × 8 float32"),
        "s_max": ("reduce", "max over j"),
        "s_exp": ("map", "map"),
        "s_sum": ("reduce", "sum over j"),
    }
    assert {(u, v): d["edge"].tensor for u, v, d in g.edges(data=True)} == {
        ("inp", "s_max"): "inp",
        ("inp", "s_exp"): "inp",
        ("s_max", "s_exp"): "xmax",
        ("s_exp", "s_sum"): "xexp",
    }


def test_dataflow_graph_shows_reads_of_the_previous_tag(sch: Schedule):
    sch.rolling_update("s_sum", "s_max.j")
    edges = {(u, v): d["edge"].previous for u, v, d in graph(sch.program).edges(data=True)}
    assert edges == {("inp", "s_max"): False, ("inp", "s_sum"): False, ("s_max", "s_sum"): True}


def test_blocks_of_the_definition_are_their_own_origin():
    program = small.operator(small.weighted()).program
    found = [s for _, s, _ in statements(program) if isinstance(s, Block)]
    assert [b.origin for b in found] == [b.name for b in found]
