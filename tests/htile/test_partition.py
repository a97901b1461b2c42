"""Loop partition: the analysis against all positions, the proof that an iteration is idle, and the meaning after."""

from __future__ import annotations

import numpy as np
import pytest
from htile_programs import CASES, F32, NEW, at, lit, op, randn
from hypothesis import given, settings
from hypothesis import strategies as st
from index_values import value
from masked_programs import CAUSAL, COLUMNS, DOCUMENT, INF, KV, PROGRAMS, ROWS, B, H, Q, holds, integer, number, rolling

from neptune_lab.htile import interpret, to_text, verify
from neptune_lab.htile.affine import affine, expression, is_at_most, maximum, minimum
from neptune_lab.htile.bounds import Interval
from neptune_lab.htile.nodes import (
    Arith,
    For,
    GridAxis,
    IndexExpr,
    Int,
    Kernel,
    Name,
    Program,
    Reduce,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile_passes.partition_masked_loops import partition_loops_of_any_size, partition_masked_loops
from neptune_lab.htile_passes.partition_masked_loops.formula import formula_of
from neptune_lab.htile_passes.partition_masked_loops.ranges import IterationRange, Span, everywhere, somewhere

# -- the prover and the analysis, against enumeration ---------------------------------------------------------

indices = st.recursive(
    st.sampled_from([Name("x"), Name("y")]) | st.integers(-6, 6).map(Int),
    lambda inner: st.one_of(
        st.builds(Arith, st.sampled_from(["+", "-", "min", "max"]), inner, inner),
        st.builds(lambda a, n: Arith("*", a, Int(n)), inner, st.integers(-3, 3)),
        st.builds(lambda a, n: Arith("//", a, Int(n)), inner, st.integers(1, 5)),
    ),
    max_leaves=5,
)
ENV = {"x": Interval(0, 3), "y": Interval(-2, 2)}
POINTS = [{"x": x, "y": y} for x in range(4) for y in range(-2, 3)]


@pytest.mark.nightly
@settings(max_examples=150)
@given(a=indices, b=indices)
def test_what_the_prover_says_holds_at_every_point(a, b):
    forms = {expr: expression(affine(expr)) for expr in (a, b)}
    low, high = minimum(a, b, ENV), maximum(a, b, ENV)
    for point in POINTS:
        left, right = value(a, point), value(b, point)
        assert all(value(form, point) == value(expr, point) for expr, form in forms.items())
        assert (value(low, point), value(high, point)) == (min(left, right), max(left, right))
        if is_at_most(a, b, ENV):
            assert left <= right


def test_the_prover_cancels_and_divides():
    x, y = Name("x"), Name("y")
    assert is_at_most(Arith("max", Int(0), Arith("-", x, Int(1))), x, ENV)
    assert is_at_most(Arith("//", Arith("+", Arith("*", x, Int(2)), Int(1)), Int(4)), x, ENV)
    assert minimum(Arith("+", x, y), Arith("+", Arith("+", y, x), Int(1)), ENV) == Arith("+", x, y)
    assert not is_at_most(x, y, ENV)


THIRDS = integer("floordiv", Q, number(3))
positions = st.sampled_from(
    [
        *(Q, KV, H, integer("sub", Q, KV), integer("add", Q, KV), integer("mul", number(2), KV)),
        # (2 divides the rows of a tile, 3 does not)
        *(integer("floordiv", Q, number(2)), integer("floordiv", integer("sub", KV, number(8)), number(4))),
        *(integer("add", integer("floordiv", Q, number(2)), KV), THIRDS, integer("floordiv", KV, number(3))),
        integer("sub", number(2), integer("mul", number(3), integer("floordiv", integer("sub", Q, KV), number(5)))),
        integer("sub", integer("floordiv", integer("add", Q, number(1)), number(3)), THIRDS),
    ]
)
comparisons = st.builds(
    lambda name, a, n, wrap: holds(name, integer("abs", a) if wrap else a, number(n)),
    st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]),
    positions,
    st.integers(-6, 18),
    st.booleans(),
) | st.builds(holds, st.sampled_from(["lt", "le", "gt", "ge"]), positions, positions)
conditions = st.recursive(
    comparisons,
    lambda inner: (
        st.builds(holds, st.sampled_from(["and", "or"]), inner, inner) | st.builds(lambda a: holds("not", a), inner)
    ),
    max_leaves=4,
)


def truth(condition: TileExpr, h: int, i: int, j: int) -> np.ndarray:
    """The condition at every position of a tile, by the interpreter."""
    tensors = (Tensor("y", (5 * B, 5 * B), "bool", "output"),)
    store = Store("s", at("y", ROWS, COLUMNS), holds("and", holds("eq", Q, Q), condition), "y")
    fixed = {"i0": i, "j0": j, "h": h}
    body: tuple[Store | For, ...] = (store,)
    for var, n in fixed.items():
        body = (For(f"l{var}", var, Int(n), Int(n + 1), body, ""),)
    found = interpret(Program("p", tensors, (), ("y",), (Kernel("k", "p", (), body),)), {})["y"]
    return found[i * B : i * B + B, j * B : j * B + B]


@pytest.mark.nightly
@settings(max_examples=60)
@given(condition=conditions, first=st.integers(0, 2))
def test_ranges_against_every_position(condition, first):
    span = Span("j0", IterationRange(Int(first), Int(5)), {"i0": Interval(0, 2), "h": Interval(0, 1)})
    formula = formula_of(condition)
    true, visited = everywhere(formula, span), somewhere(formula, span)
    for h in range(2):
        for i in range(3):
            env = {"i0": i, "h": h}
            is_true = range(value(true.lo, env), value(true.hi, env))
            is_visited = range(value(visited.lo, env), value(visited.hi, env))
            for j in range(first, 5):
                if j in is_true:
                    assert truth(condition, h, i, j).all()
                if j not in is_visited:
                    assert not truth(condition, h, i, j).any()


def test_rows_of_a_group_of_heads_have_bounds():
    """Row r of a group of two heads is that of query r // 2, which sees the keys up to its own position."""
    span = Span("j0", IterationRange(Int(0), Int(5)), {"i0": Interval(0, 2)})
    formula = formula_of(holds("le", KV, integer("floordiv", Q, number(2))))
    assert str(formula) == "0 <= i0*2+[0..3]//2-j0*4 - [0..3]"
    for i in range(3):
        last = value(somewhere(formula, span).hi, {"i0": i})
        assert last == 1 + (2 * i + 1) // 4, "the tile after that of the last query"
    assert str(formula_of(holds("le", KV, THIRDS))) == "0 <= (i0*4+[0..3])//3-j0*4 - [0..3]"


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 8, 9])
@pytest.mark.parametrize("moving", ["columns", "rows"])
def test_documents_of_one_length_have_exact_bounds(length, moving):
    """The loop visits the tiles that share a document with the program's, and no others, along either axis."""
    rows, columns = (integer("floordiv", at, number(length)) for at in (Q, KV))
    same = formula_of(holds("eq", rows, columns))
    var, fixed = ("j0", "i0") if moving == "columns" else ("i0", "j0")
    span = Span(var, IterationRange(Int(0), Int(9)), {fixed: Interval(0, 8)})
    own = [set(range(n * B // length, (n * B + B - 1) // length + 1)) for n in range(9)]
    for n in range(9):
        found = somewhere(same, span)
        visited = range(value(found.lo, {fixed: n}), value(found.hi, {fixed: n}))
        assert list(visited) == [m for m in range(9) if own[n] & own[m]]


def test_quotients_of_different_positions_do_not_cancel():
    """(Q + 1) // 3 - Q // 3 is 0 in some rows of each tile, and 1 in others."""
    difference = integer("sub", integer("floordiv", integer("add", Q, number(1)), number(3)), THIRDS)
    span = Span("j0", IterationRange(Int(0), Int(5)), {"i0": Interval(0, 2)})
    for name, n in (("lt", 1), ("gt", 0)):
        formula = formula_of(holds(name, difference, number(n)))
        true, visited = everywhere(formula, span), somewhere(formula, span)
        for i in range(3):
            assert value(true.hi, {"i0": i}) <= value(true.lo, {"i0": i})
            assert (value(visited.lo, {"i0": i}), value(visited.hi, {"i0": i})) == (0, 5)


# -- whole programs -----------------------------------------------------------------------------------------


def inputs(n: int = 14) -> dict[str, np.ndarray]:
    return {"x": randn(1, n, n), "v": randn(2, n, 4), "doc": np.repeat([0, 1, 2], 5)[:n].astype(np.int32)}


def loops(program: Program) -> list[For]:
    return [stmt for stmt in program.kernels[0].body if isinstance(stmt, For)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_meaning_stays(name):
    before = PROGRAMS[name]()
    verify(before)
    after = partition_masked_loops(before).program
    verify(after)
    assert after is not before
    found, expected = (interpret(p, inputs(), dtype="float64")["out"] for p in (after, before))
    np.testing.assert_array_equal(found, expected)  # bit by bit, NaN of unseen rows included


@pytest.mark.parametrize("name", [*PROGRAMS, *CASES])
def test_a_partitioned_program_is_not_partitioned_again(name):
    program = partition_masked_loops(PROGRAMS[name]() if name in PROGRAMS else CASES[name]().program).program
    again = partition_masked_loops(program)
    assert (again.program is program, again.notes) == (True, ())


def test_golden_parts(golden):
    rewrite = partition_masked_loops(rolling(holds("and", DOCUMENT, CAUSAL)))
    golden("htile_partition.txt", "\n".join(rewrite.notes) + "\n\n" + to_text(rewrite.program))


def test_a_document_mask_stays_where_the_causal_one_goes():
    interior, edge = loops(partition_masked_loops(PROGRAMS["documents"]()).program)
    (masked, whole) = (loop.body[0] for loop in (interior, edge))
    assert isinstance(masked, Store)
    assert isinstance(whole, Store)
    assert masked.value == op("where", DOCUMENT, at("x", ROWS, COLUMNS), lit(-INF))
    assert whole.value == op("where", holds("and", DOCUMENT, CAUSAL), at("x", ROWS, COLUMNS), lit(-INF))


def test_a_mask_that_nothing_meets_leaves_no_iteration():
    (loop,) = loops(partition_masked_loops(PROGRAMS["nothing seen"]()).program)
    assert loop.start == loop.stop


def test_documents_of_one_length_leave_one_loop_for_all_sizes():
    """With bounds that hold for any number of programs: here, the last document ends with the last tile."""
    before = rolling(holds("eq", integer("floordiv", Q, number(8)), integer("floordiv", KV, number(8))))
    cut, whole = (f(before).program for f in (partition_masked_loops, partition_loops_of_any_size))
    (loop,) = loops(whole)
    assert isinstance(loop.stop, Arith)
    assert loop.stop.op == "min"
    assert bounds_of(whole) != (Int(0), Int(4))
    wanted = interpret(before, inputs(), dtype="float64")["out"]
    for after in (cut, whole):
        verify(after)
        np.testing.assert_array_equal(interpret(after, inputs(), dtype="float64")["out"], wanted)


def test_ids_are_unique_and_name_their_part():
    program = partition_masked_loops(PROGRAMS["window"]()).program
    assert [loop.node_id for loop in loops(program)] == ["l/left", "l/interior", "l/right"]
    assert [stmt.node_id for stmt in loops(program)[0].body][:2] == ["a/left", "b/left"]
    assert {stmt.origin for loop in loops(program) for stmt in loop.body} == {"s", "m_new", "p", "sum", "acc", "m"}


def test_a_rolling_loop_inside_a_split():
    """Column tiles from split*2 on, with the split a loop around; a bound of the loop holds an outer variable."""
    first = Arith("*", Name("split"), Int(2))
    bounds = (first, Arith("min", Arith("+", first, Int(2)), Int(4)))
    before = rolling(CAUSAL, loop=bounds, outer=lambda loop: For("o", "split", Int(0), Int(2), (loop,), "s"))
    verify(before)
    after = partition_masked_loops(before).program
    verify(after)
    (outer,) = loops(after)
    assert [loop.part for loop in outer.body if isinstance(loop, For)] == ["interior", "right edge"]
    found, expected = (interpret(p, inputs(), dtype="float64")["out"] for p in (after, before))
    np.testing.assert_array_equal(found, expected)


# -- refusals to skip -----------------------------------------------------------------------------------------


def bounds_of(program: Program) -> tuple[IndexExpr, IndexExpr]:
    parts = loops(program)
    return parts[0].start, parts[-1].stop


def test_no_skip_where_the_masked_value_is_not_the_identity():
    rewrite = partition_masked_loops(rolling(CAUSAL, masked=0.0))
    assert bounds_of(rewrite.program) == (Int(0), Int(4))
    assert any("m would become max(m, reduce(max, " in line for line in rewrite.notes)
    assert len(loops(rewrite.program)) == 2, "the interior needs no such proof"


def test_no_skip_without_the_guard():
    """exp(m - m) is NaN where m is still -inf: an unguarded repair is not 1."""
    rewrite = partition_masked_loops(rolling(CAUSAL, guarded=False))
    assert bounds_of(rewrite.program) == (Int(0), Int(4))
    assert any("and not stay sum" in line for line in rewrite.notes)


def test_no_skip_of_a_store_to_global_memory():
    tensors = (Tensor("x", (16, 16), F32, "input"), Tensor("y", (16, 16), F32, "output"))
    store = Store("s", at("y", ROWS, COLUMNS), op("where", CAUSAL, at("x", ROWS, COLUMNS), lit(0.0)), "y")
    kernel = Kernel("k", "p", (GridAxis("i0", 4),), (For("l", "j0", Int(0), Int(4), (store,), "y"),))
    before = Program("p", tensors, ("x",), ("y",), (kernel,))
    rewrite = partition_masked_loops(before)
    assert bounds_of(rewrite.program) == (Int(0), Int(4))
    assert any("an iteration stores to y" in line for line in rewrite.notes)
    x = {"x": randn(1, 16, 16)}
    np.testing.assert_array_equal(interpret(rewrite.program, x)["y"], np.tril(x["x"]))


def test_a_condition_that_gives_a_tile_its_extents_stays():
    """`where(j <= i, x[i], 0)` has the columns from its condition alone: a sum over them counts x[i] four times."""
    tensors = (Tensor("x", (16,), F32, "input"), Tensor("y", (16,), F32, "output"), Tensor("t", (16,), F32, "chip"))
    summed = Reduce("sum", op("where", CAUSAL, at("x", ROWS, NEW), lit(0.0)), 1)
    body = (
        Store("1", at("t", ROWS), lit(0.0), "t"),
        For("l", "j0", Int(0), Int(4), (Store("s", at("t", ROWS), op("add", at("t", ROWS), summed), "t"),), "t"),
        Store("2", at("y", ROWS), at("t", ROWS), "y"),
    )
    program = Program("p", tensors, ("x",), ("y",), (Kernel("k", "p", (GridAxis("i0", 4),), body),))
    x = {"x": randn(1, 16)}
    found = interpret(partition_masked_loops(program).program, x, dtype="float64")["y"]
    np.testing.assert_allclose(found, x["x"].astype(np.float64) * np.arange(1, 17), rtol=1e-12)


def _two_kernels(first: str):
    """A kernel that stores a function of a row, and one whose loop multiplies it with what a mask hides."""
    masked = op("where", holds("le", KV, Q), op("exp2", at("s", ROWS, COLUMNS)), lit(0.0))
    term = op("mul", op("add", at("s", ROWS, COLUMNS), at("t", ROWS, NEW)), masked)
    begin = Store("begin", at("acc", ROWS), lit(0.0), "acc")
    step = Store("step", at("acc", ROWS), op("add", at("acc", ROWS), Reduce("sum", term, 1)), "acc")
    body = (
        begin,
        For("loop", "j0", Int(0), Int(3), (step,), "acc"),
        Store("end", at("out", ROWS), at("acc", ROWS), "out"),
    )
    tensors = (
        Tensor("x", (12,), "float32", "input"),
        Tensor("s", (12, 12), "float32", "input"),
        Tensor("t", (12,), "float32", "global"),
        Tensor("acc", (12,), "float32", "chip"),
        Tensor("out", (12,), "float32", "output"),
    )
    value = op(first, at("x", ROWS)) if first != "square" else op("mul", at("x", ROWS), at("x", ROWS))
    kernels = (
        Kernel("k0", "first", (GridAxis("i0", 3),), (Store("t", at("t", ROWS), value, "t"),)),
        Kernel("k1", "second", (GridAxis("i0", 3),), body),
    )
    return Program("two_kernels", tensors, ("x", "s"), ("out",), kernels)


@pytest.mark.parametrize(("first", "skipped"), [("square", True), ("log", False)])
def test_what_another_kernel_stored_is_finite_only_if_its_stores_are(first, skipped):
    done = partition_masked_loops(_two_kernels(first)).program
    loops = [stmt for stmt in done.kernels[1].body if isinstance(stmt, For)]
    assert (to_text(done).count("range(i0, i0+1)") == 1) == skipped, to_text(done)
    assert len(loops) == 2
