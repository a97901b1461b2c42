"""05_schedules: what a program costs, checked by brute force; and every exercise, right, wrong and open."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from math import prod

import pytest
from neptune_widgets.course import schedules as exercises

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Const, Expr, Loop, Previous, Program, Stmt
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.walks import loads, substitute
from neptune_lab.operators import attention


def tiny() -> nl.Schedule:
    return nl.Schedule(attention.causal(batch=1, heads=2, seq=8, head_dim=4))


Steps = Callable[[nl.Schedule], object]


def fused(sch: nl.Schedule, rows: int = 4, keys: int = 2) -> nl.Schedule:
    return nl.templates.rolling_update(sch, block_q=rows, block_kv=keys)


# -- costs ------------------------------------------------------------------------------------------------------


def alive_at_once(program: Program, buffer: str) -> int:
    """The most elements of a buffer that are written and will still be read, over a run of one program of the grid.

    Every statement is executed in order, with all its accesses written down; nothing is reasoned about.
    """
    accesses: list[tuple[bool, tuple[int, ...]]] = []

    def go(stmt: Stmt, at: dict[str, int]) -> None:
        if isinstance(stmt, Loop):
            for n in range(1 if stmt.kind.startswith("blockIdx") else stmt.extent):
                for inner in stmt.body:
                    go(inner, {**at, stmt.var: n})
            return
        env = {it.name: it.binding for it in stmt.iters}

        def place(indices: tuple[Expr, ...], back: int = 0) -> tuple[int, ...]:
            first, *rest = (value(substitute(index, env), at) for index in indices)
            return (first - back, *rest)

        for read in loads(stmt.body.value):
            if read.buffer == buffer:
                accesses.append((False, place(read.indices, int(isinstance(read, Previous)))))
        if stmt.writes == buffer:
            accesses.append((True, place(stmt.body.indices)))

    for stmt in program.body:
        go(stmt, {})
    last_read: dict[tuple[int, ...], int] = {}
    for n, (writes, where) in enumerate(accesses):
        if not writes:
            last_read[where] = n
    alive: set[tuple[int, ...]] = set()
    most = 0
    for n, (writes, where) in enumerate(accesses):
        if writes and last_read.get(where, -1) > n:
            alive.add(where)
        elif last_read.get(where) == n:
            most = max(most, len(alive))
            alive.discard(where)
        most = max(most, len(alive))
    return most


def value(index: Expr, at: Mapping[str, int]) -> int:
    """An index expression at one iteration."""
    reach = bounds(substitute(index, {name: Const(n) for name, n in at.items()}), {})
    assert reach is not None
    assert reach[0] == reach[1]
    return reach[0]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (8, 8), (4, 1)])
def test_what_a_program_holds_is_what_a_run_of_it_keeps(sizes: tuple[int, int]):
    sch = fused(tiny(), *sizes)
    bytes_of = {b.name: 4 if b.dtype == "float32" else 2 for b in sch.program.buffers}
    inner = [b.name for b in sch.program.buffers if b.name not in sch.program.params]
    kept = sum(alive_at_once(sch.program, name) * bytes_of[name] for name in inner)
    assert exercises.costs(sch.program, "qk.j").held == kept


def test_before_tags_are_retired_all_of_them_are_held():
    sch = fused(tiny())
    while "retire_tags" in str(sch.steps):
        sch.undo()
    tags = exercises.costs(sch.program, "qk.j").held
    sch.redo()
    # Four tags of four rows against the previous and the current one; each value has 4 bytes.
    assert tags - exercises.costs(sch.program, "qk.j").held == (4 - 2) * 4 * 4


@pytest.mark.nightly
def test_between_nests_is_what_the_kernels_pass_through_memory():
    op = attention.causal(batch=1, heads=2, seq=256, head_dim=64)
    sch = nl.templates.split_k_update(nl.Schedule(op), block_q=64, block_kv=64, config=nl.SplitKConfig(splits=2))
    line = nl.compile(sch).outline.splitlines()[1]
    sizes = [prod(map(int, shape.split(","))) for shape in re.findall(r"float32\[([\d, ]+)\]", line)]
    now = exercises.costs(sch.program, "qk.j")
    assert now.between == 4 * sum(sizes) > 0
    assert now.nests == len(nl.compile(sch).triton.kernels) == 2


def test_passes_are_the_outermost_loops_along_the_keys():
    sch = tiny()
    by_block = defaultdict(int)
    for block in tree.blocks(sch.program):
        by_block[block.name] += any(it.name == "j" for it in block.iters)
    assert exercises.costs(sch.program, "qk.j").passes == sum(by_block.values()) == 7
    assert exercises.costs(fused(sch).program, "qk.j").passes == 1


def test_costs_in_words():
    assert str(exercises.Costs(1, 1, 0, 1536)) == (
        "1 loop nest, 1 pass over the keys, 0 KiB between nests, 1.5 KiB held by a program"
    )
    assert exercises.kib(2 * 1024 * 1024) == "2,048 KiB"


# -- refusals ---------------------------------------------------------------------------------------------------


def test_a_refusal_says_what_and_how_to_mend_it():
    sch = tiny()
    sch.tile("qk", i=4, j=4)
    shown = str(exercises.refused(sch, lambda s: s.bind("qk.d", "blockIdx.x")))
    assert shown.startswith("ScheduleError: loop 'qk.d' cannot run in parallel")
    assert "\nhelp: bind an outer loop" in shown
    assert shown.endswith("(the schedule is as it was: 1 step)")


def test_a_change_before_the_refusal_is_seen():
    def half(s: nl.Schedule) -> None:
        s.tile("qk", i=4)
        s.tile("qk", z=4)

    refusal = exercises.refused(tiny(), half)
    assert not refusal.untouched
    assert "CHANGED" in str(refusal)


def test_what_is_not_refused_is_an_error():
    with pytest.raises(ScheduleError, match="it was accepted"):
        exercises.refused(tiny(), lambda s: s.tile("qk", i=4))


# -- exercises --------------------------------------------------------------------------------------------------


def prepared(sch: nl.Schedule, axis: str = "i0") -> None:
    sch.tile("qk", i=64, j=64)
    sch.bind(f"qk.{axis}", "blockIdx.x")
    sch.bind("qk.h", "blockIdx.y")
    sch.bind("qk.b", "blockIdx.z")
    sch.reverse_compute_at("score", "qk.j0")


def finished(sch: nl.Schedule, starts: tuple[str, ...] = ("s_sum", "acc")) -> None:
    sch.retire_tags("s_max")
    for block in starts:
        sch.decompose_reduction(block, f"{block}.j0")


def mended(sch: nl.Schedule) -> None:
    prepared(sch)
    for block in ("s_max", "s_sum", "acc"):
        sch.rolling_update(block, "qk.j0")
    sch.reverse_compute_at("out", "qk.i0")
    finished(sch)


def in_another_order(sch: nl.Schedule) -> None:
    """No step for the maximum, the output before the sum, and the quotient moved last."""
    prepared(sch)
    sch.rolling_update("acc", "qk.j0")
    sch.rolling_update("s_sum", "qk.j0")
    finished(sch)
    sch.fuse_under("out", "qk.i0")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("steps", [mended, in_another_order, fused, lambda s: fused(s, 32, 128)])
def test_a_schedule_is_mended(steps: Steps):
    verdict = exercises.mended(steps)
    assert verdict, verdict
    assert "1 kernel" in verdict.text
    assert "equals the definition" in verdict.text


def bound_along_the_keys(sch: nl.Schedule) -> None:
    prepared(sch, "j0")
    sch.rolling_update("s_max", "qk.j0")


def retired_early(sch: nl.Schedule) -> None:
    prepared(sch)
    sch.rolling_update("s_sum", "qk.j0")
    sch.retire_tags("s_max")
    sch.rolling_update("acc", "qk.j0")


def one_start(sch: nl.Schedule) -> None:
    prepared(sch)
    sch.rolling_update("s_sum", "qk.j0")
    sch.rolling_update("acc", "qk.j0")
    sch.reverse_compute_at("out", "qk.i0")
    finished(sch, ("acc",))


def out_left_behind(sch: nl.Schedule) -> None:
    prepared(sch)
    sch.rolling_update("s_sum", "qk.j0")
    sch.rolling_update("acc", "qk.j0")
    finished(sch)


def not_on_the_grid(sch: nl.Schedule) -> None:
    sch.tile("qk", i=64, j=64)
    sch.reverse_compute_at("score", "qk.j0")
    sch.rolling_update("s_sum", "qk.j0")
    sch.rolling_update("acc", "qk.j0")
    sch.reverse_compute_at("out", "qk.i0")
    finished(sch)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (bound_along_the_keys, "'qk.j0' is bound to blockIdx.x"),
        (retired_early, "whose tags are retired"),
        (one_start, "'s_sum' carries a value over loops outside its tile"),
        (out_left_behind, "in separate nests: out"),
        (not_on_the_grid, "h, i0 run in order"),
        (lambda sch: None, "no step"),
        (lambda: None, "raised TypeError"),
        (lambda sch: sch.tiles("qk"), "raised AttributeError"),
        ("sch.tile('qk', i=64)", "a function that takes `sch`"),
    ],
)
def test_a_schedule_that_is_still_broken_is_told_why(steps: Steps, why: str):
    verdict = exercises.mended(steps)
    assert verdict.state == "wrong"
    assert why in verdict.text


RIGHT = {"A": "never", "B": "later", "C": "compile", "D": "at once"}


@pytest.mark.nightly
def test_when_is_it_refused():
    verdict = exercises.when(RIGHT)
    assert verdict, verdict
    assert verdict.text.count("\n") == 4
    assert exercises.when(dict(reversed(RIGHT.items())))


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"A": "later"}, "3 of 4 are right. A is not 'later': every step is accepted, and so is the program"),
        ({"B": "at once"}, "B is not 'at once': it is refused by a step, but not by that one"),
        ({"B": "compile"}, "a step is refused before there is anything to compile"),
        ({"C": "never", "D": "later"}, "2 of 4 are right. C is not 'never': something refuses it"),
        ({"C": "later"}, "C is not 'later': every step is accepted"),
        ({"D": "soon"}, "each answer is one of 'at once', 'later', 'compile', 'never'"),
        ({"E": "later"}, "an answer to each of A, B, C and D"),
    ],
)
def test_a_wrong_guess_is_told_why(change: dict[str, str], why: str):
    verdict = exercises.when({**RIGHT, **change})
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [(128, 32), [128, 16], (130, 16)])
def test_tiles_that_fit(sizes: tuple[int, int]):
    verdict = exercises.sizes(sizes)
    assert verdict, verdict


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((64, 64), "4 programs per head"),
        ((128, 64), "each holds 162.5 KiB"),
        ((256, 16), "1 program per head, but each holds 181 KiB"),
        ((128, 0), "block_kv=0"),
        (128, "two numbers"),
        ("many", "two numbers"),
    ],
)
def test_tiles_that_do_not_fit_are_told_why(sizes: object, why: str):
    verdict = exercises.sizes(sizes)
    assert verdict.state == "wrong"
    assert why in verdict.text


def products(sch: nl.Schedule, rows: int = 64, rounded: bool = True) -> None:
    sch.tile("ab", i=rows, j=64)
    sch.bind("ab.i0", "blockIdx.x")
    sch.bind("ab.z", "blockIdx.y")
    if rounded:
        sch.reverse_compute_at("ab_rounded", "ab.j0")
    sch.rolling_update("abd", "ab.j0")
    sch.reverse_compute_at("out", "ab.i0")
    sch.decompose_reduction("abd", "abd.j0")


def inlined(sch: nl.Schedule) -> None:
    """The rounding written into the product that reads it."""
    sch.inline("ab_rounded")
    products(sch, 32, rounded=False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("steps", [products, inlined, lambda s: fused(s, 32, 32)])
def test_a_chain_of_products(steps: Steps):
    verdict = exercises.chain(steps)
    assert verdict, verdict
    assert "no repair was needed" in verdict.text


def apart(sch: nl.Schedule) -> None:
    for block in ("ab", "abd"):
        sch.tile(block, i=64)
        sch.bind(f"{block}.i0", "blockIdx.x")
        sch.bind(f"{block}.z", "blockIdx.y")


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (lambda s: products(s, 128), "more than 64 KiB"),
        (apart, "these blocks are in separate nests: ab_rounded, abd, out"),
        (lambda s: products(s, rounded=False), "'ab_rounded'"),
        (lambda s: s.fuse_under("abd", "ab.j"), "refused, after 0 steps that were accepted"),
    ],
)
def test_a_chain_that_is_not_one_kernel_is_told_why(steps: Steps, why: str):
    verdict = exercises.chain(steps)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.parametrize("exercise", [exercises.mended, exercises.when, exercises.sizes, exercises.chain])
def test_no_answer_is_open(exercise: Callable):
    verdict = exercise(None)
    assert verdict.state == "open"
    assert len(verdict.hints) == 3
