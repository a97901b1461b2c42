"""What a program shows of its values' ranges, and what the solver makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import small_operators as small
from tvm import te, tirx

from neptune_lab.loop_ir import sign
from neptune_lab.loop_ir.nodes import Const, Load, Op, Var
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.sign import is_nonnegative, may_be_empty, may_be_infinite, range_of
from neptune_lab.loop_ir.tree import blocks, find_block
from neptune_lab.loop_ir.tvm_compat import from_te
from neptune_lab.loop_ir.value_range import ValueRange
from neptune_lab.loop_ir.walks import loads
from neptune_lab.loop_to_repair.read import assumptions, read_term
from neptune_lab.operators import softmax
from neptune_lab.pipeline import SplitKConfig, schedule
from neptune_lab.repair import RepairError, solve, text

INF = math.inf


def fold(reducer: str, of: Callable[[Any], Any], dtype: str = "float32") -> ValueRange:
    """The range of r[i] = reducer(of(x[i, j]) for 5 j)."""
    x = te.placeholder((3, 5), dtype, name="x")
    r = small.fold(reducer, "r", 3, 5, lambda i, j: of(x[i, j]))
    return range_of(from_te("t", [x], [r]), Load("r", (Var("i"),)))


@pytest.mark.parametrize(
    ("reducer", "of", "expected"),
    [
        ("max", te.abs, (0, INF)),
        ("sum", lambda x: x * x, (0, INF)),
        ("sum", lambda x: x.astype("float64") * x.astype("float64"), (0, INF)),
        # An exponential underflows to 0, so a sum of them is not taken for positive ...
        ("sum", te.exp, (0, INF)),
        # ... and one that is bounded from below is.
        ("sum", lambda x: te.exp(te.tanh(x)), (math.exp(-1), 5 * math.e)),
        ("sum", lambda x: x * x + 0.5, (0.5, INF)),
        ("sum", lambda x: te.const(1.0, "float32"), (1, 5)),
        ("max", lambda x: te.max(te.abs(x), te.const(0.25, "float32")), (0.25, INF)),
        ("min", lambda x: te.max(te.min(x, te.const(2.0, "float32")), te.const(1.0, "float32")), (1, 2)),
        ("max", lambda x: -1.0 - x * x, (-INF, -1)),
        ("sum", lambda x: te.tanh(x), (-5, 5)),
        ("sum", lambda x: te.power(x, te.const(4.0, "float32")), (0, INF)),
        ("sum", lambda x: te.if_then_else(x > 0.0, te.abs(x), te.const(3.0, "float32")), (0, INF)),
        ("max", lambda x: 1.0 / (x * x + 2.0), (0, 0.5)),
        ("min", lambda x: te.sqrt(x * x + 4.0), (2, INF)),
        ("max", lambda x: te.sigmoid(x), (0, 1)),
        ("sum", lambda x: x, (-INF, INF)),
        ("max", lambda x: x - x * x, (-INF, INF)),
    ],
)
def test_ranges(reducer, of, expected):
    found = fold(reducer, of)
    assert (found.low, found.high) == pytest.approx(expected)


def test_whole_numbers_have_ends():
    assert fold("max", lambda x: x, "uint8") == ValueRange(0, 255)
    assert fold("max", lambda x: x, "int8") == ValueRange(-128, 127)
    # 127 + 127 wraps around in int8: nothing is known of it but its ends.
    assert fold("max", lambda x: (x + x).astype("int8"), "int8").low == -128


def asked(definition: small.Definition) -> tuple[str, Any, dict[str, tuple[str, ...]]]:
    """Reducer, term and assumptions of the block o that reads r, as the solver is asked."""
    program = from_te("t", *definition)
    _, block, _ = find_block(program, "o")
    reduction = match_reduction(block)
    named = {read: "r" for read in loads(reduction.term) if read.buffer == "r"}
    reading = read_term(reduction.term, named)
    return reduction.reducer, reading.term, assumptions(program, reading)


@pytest.mark.parametrize(
    ("g", "reducer", "of", "words", "h"),
    [
        # r is bounded away from 0, so no guard is needed there, and c*r needs none after the loop.
        (lambda c, r: c * r, "sum", lambda c: te.max(te.abs(c), te.const(0.25, "float32")), "positive", "t*r'/r"),
        (lambda c, r: c * r, "min", lambda c: -1.0 - c * c, "negative", "t*r'/r"),
        (lambda c, r: c / te.sqrt(r), "max", lambda c: c * c + 0.5, "positive", "t*sqrt(r)/sqrt(r')"),
        (lambda c, r: c / r, "max", te.abs, "nonnegative", "t*r/r'"),
    ],
)
def test_inferred_assumptions_are_used(g, reducer, of, words, h):
    reducer, term, told = asked(small.pair(g, reducer, of=of))
    assert told["r"] == (words,)
    assert text(solve(reducer, term, "r", assumptions=told, constants=()).h) == h


def test_a_positive_scale_comes_out_of_a_condition_and_a_nonnegative_one_does_not():
    """c/r > 0 is c > 0 where r > 0; at r = 0 it is 0/0 > 0."""
    any_ = te.comm_reducer(lambda a, b: tirx.Or(a, b), lambda dtype: tirx.const(False, dtype), name="any")

    def o(of: Callable[[Any], Any]) -> small.Definition:
        x = small.matrix()
        r = small.fold("max", "r", 3, 5, lambda i, j: of(x[i, j]))
        j = te.reduce_axis((0, 5), name="j")
        return [x], [small.compute((3,), lambda i: any_(x[i, j] / r[i] > 0.0, axis=j), name="o")]

    reducer, term, told = asked(o(lambda c: te.abs(c) + 0.5))
    assert (reducer, told["r"]) == ("any", ("positive",))
    assert text(solve(reducer, term, "r", assumptions=told, constants=()).h) == "t"
    reducer, term, told = asked(o(te.abs))
    with pytest.raises(RepairError, match=r"the condition .* changes with r"):
        solve(reducer, term, "r", assumptions=told, constants=())


def test_nonnegative_is_a_range():
    program = from_te("t", *small.l2_norm())
    assert is_nonnegative(program, Load("r", (Var("i"),)))
    assert not is_nonnegative(program, Load("x", (Var("i"), Var("j"))))


def test_a_tile_past_the_end_holds_the_identity():
    """Four tiles of two over five elements: the last has none, and its maximum of magnitudes is -inf."""
    sch = small.schedule(small.l2_norm(m=5))
    sch.split("r.j", (4, None))
    sch.privatize_reduction("r.j0")
    block = next(b for b in blocks(sch.program) if b.role is Role.LOCAL)
    read = Load(block.writes, ())
    assert may_be_empty(sch.program, block)
    assert range_of(sch.program, read) == ValueRange()
    assert may_be_infinite(sch.program, read, -1)
    assert not may_be_infinite(small.schedule(small.l2_norm(m=5)).program, Load("r", ()), -1)


def test_of_a_value_that_depends_on_itself_nothing_is_known():
    """A maximum and its copy from the tag before, each written from the other."""
    sch = schedule(softmax.figure1(4, 16), "split_k_update", block_kv=2, config=SplitKConfig(splits=2))
    assert {b.writes for b in blocks(sch.program)} >= {"xmax_local_0", "xmax_local_1"}
    for name in ("xmax_local_0", "xmax_local_1", "xmax"):
        assert range_of(sch.program, Load(name, (Var("i"), Var("j0")))) == ValueRange()


def test_retired_tags_read_each_other_and_have_a_range():
    """r_1 is max(r_0, tile), and r_0 is the r_1 of the iteration before: nothing is assumed of what is being worked
    out, and the start value of r_0 counts."""
    sch = small.schedule(small.l2_norm())
    sch.split("r.j", (None, 2))
    sch.rolling_update("o", "r.j0")
    sch.retire_tags("r")
    previous, current = (range_of(sch.program, Load(name, (Var("i"),))) for name in ("r_0", "r_1"))
    assert current == ValueRange(0.0)
    assert previous == ValueRange()
    assert may_be_infinite(sch.program, Load("r_0", (Var("i"),)), -1)


def test_ends_that_are_no_number_are_none():
    program = from_te("t", *small.l2_norm())
    nothing = Const(-INF, "float32")
    assert range_of(program, Op("sub", (nothing, nothing))) == ValueRange()
    assert may_be_infinite(program, Op("add", (nothing, Op("neg", (nothing,)))), -1)


def test_the_range_of_a_stage_is_computed_once_in_a_chain():
    """Each link has a stage that reads the one before it: 2 ** 10 paths lead from the last link to the first."""
    links = 10

    def stage(name: str, of: Callable[[Any, Any], Any]) -> Any:
        return te.compute((3, 5), of, name=name)

    def link(n: int, x: Any) -> Any:
        above = stage(f"a{n}", lambda i, j: te.tanh(x[i, j]))
        return stage(f"x{n}", lambda i, j: x[i, j] * above[i, j])

    stages = [te.placeholder((3, 5), "float32", name="x")]
    for n in range(links):
        stages.append(link(n, stages[-1]))
    program = from_te("chain", stages[:1], stages[-1:])
    sign._of_buffer.cache_clear()
    assert range_of(program, Load(f"x{links - 1}", (Var("i"), Var("j")))) == ValueRange()
    assert sign._of_buffer.cache_info().misses <= 2 * links + 1
