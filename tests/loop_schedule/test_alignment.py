"""A block is fused along a dimension only where the blocks there visit all of it: no prefix, offset, stride, diagonal.

Each case compiles to a kernel that is right, or is refused with the sizes found; no case may lose or repeat an element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_operators as small
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.operators import Operator, custom


def column(extent: int, name: str) -> Any:
    return te.reduce_axis((0, extent), name=name)


def partial_norm(part: int, whole: int, at: Any) -> Operator:
    """`part` elements of a row, at(j), make the norm that all `whole` elements are divided by."""
    x = te.placeholder((4, whole), "float32", name="x")
    j, k = column(part, "j"), column(whole, "k")
    s = small.compute((4,), lambda i: te.sum(x[i, at(j)] * x[i, at(j)], axis=j), name="s")
    o = small.compute((4,), lambda i: te.sum(x[i, k] / te.sqrt(s[i] + 1.0), axis=k), name="o")
    return custom("partial", [x], [o])


def attention_over_parts(key: int, value: int) -> Operator:
    """Keys and values are columns of one tensor: kv[:, :key] and kv[:, :value]."""
    n, m = 4, 12
    q = te.placeholder((n, key), "float32", name="q")
    kv = te.placeholder((m, max(key, value)), "float32", name="kv")
    d = column(key, "d")
    qk = small.compute((n, m), lambda i, j: te.sum(q[i, d] * kv[j, d], axis=d), name="qk")
    j1, j2, j3 = column(m, "j1"), column(m, "j2"), column(m, "j3")
    top = small.compute((n,), lambda i: te.max(qk[i, j1], axis=j1), name="top")
    p = small.compute((n, m), lambda i, j: te.exp(qk[i, j] - top[i]), name="p")
    total = small.compute((n,), lambda i: te.sum(p[i, j2], axis=j2), name="total")
    o = small.compute((n, value), lambda i, e: te.sum(p[i, j3] / total[i] * kv[j3, e], axis=j3), name="o")
    return custom("parts", [q, kv], [o])


def gram(n: int = 6, m: int = 4) -> Operator:
    """Both of a pair of rows are rows of x, which the norm visits one at a time."""
    x = te.placeholder((n, m), "float32", name="x")
    d, e = column(m, "d"), column(m, "e")
    norm = small.compute((n,), lambda i: te.sum(x[i, d] * x[i, d], axis=d), name="norm")
    o = small.compute((n, n), lambda i, j: te.sum(x[i, e] * x[j, e] / (norm[i] + 1.0), axis=e), name="o")
    return custom("gram", [x], [o])


def attempt(action: Callable[[], Any]) -> tuple[Any, Any]:
    """(the refusal, None) or (None, the result) of an action that may refuse."""
    try:
        return None, action()
    except NeptuneError as refusal:
        return refusal, None


OPERATORS = {
    "prefix": lambda: partial_norm(20, 40, lambda j: j),
    "offset": lambda: partial_norm(20, 40, lambda j: j + 20),
    "stride": lambda: partial_norm(20, 40, lambda j: j * 2),
    "reversed": lambda: partial_norm(40, 40, lambda j: 39 - j),
    "folded": lambda: partial_norm(40, 40, lambda j: te.floordiv(j, 2)),
    "narrow keys": lambda: attention_over_parts(2, 6),
    "narrow values": lambda: attention_over_parts(6, 2),
    "gram": gram,
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_default_compile_visits_every_element(name):
    op = OPERATORS[name]()
    refusal, kernel = attempt(lambda: nl.compile(op))
    assert refusal.help if kernel is None else kernel.relative_error() < 1e-5


@pytest.mark.parametrize("tile", [4, 7])
@pytest.mark.parametrize("name", ["prefix", "offset", "stride", "folded"])
def test_an_anchor_that_visits_a_part_is_refused(name, tile):
    op = OPERATORS[name]()
    for update in ("rolling_update", "split_k_update"):
        sch = nl.Schedule(op)
        sch.split("s.j", (None, tile))
        before = sch.program
        with pytest.raises(ScheduleError) as refusal:
            getattr(sch, update)("o", "s.j0")
        assert sch.program is before
        assert "0 to 39 of dimension 1 of 'x'" in str(refusal.value)
        if name == "prefix":
            assert "visits 0 to 19" in str(refusal.value)


def test_a_loop_is_used_for_one_iteration_only():
    """o reads x[i, e] and x[j, e]; with one loop for both i and j only the diagonal would be computed."""
    sch = nl.Schedule(gram())
    sch.split("norm.i", (None, 2))
    refusal, _ = attempt(lambda: sch.fuse_under("o", "norm.i0"))
    assert refusal is None or refusal.help
    assert sch.check()


@pytest.mark.parametrize("loops", [("i1", "j"), ("i0", "i1", "j")])
def test_a_bound_on_rows_and_columns_at_once_keeps_the_start_value_in_its_buffer(loops):
    """6 rows as 2 x 4, fused with the columns: the bound is on the fused loop, and so is the start value's."""
    from neptune_lab.operators import rows

    sch = nl.Schedule(rows.softmax(rows=6, cols=24))
    sch.split("s_max.i", (None, 4))
    sch.fuse("s_max", *loops)
    assert sch.check()
    found = sch.run(**sch.operator.random_inputs(0))
    assert all(np.isfinite(found[name]).all() for name in sch.definition.outputs)


def test_two_iterations_that_share_a_tensor_keep_loops_of_their_own():
    """Row i of the norm is row i or j of o, not both: o is fused with a loop of its own for the other one."""
    sch = nl.Schedule(gram())
    sch.fuse_under("o", "norm.i")
    assert len(set(sch.loops("o"))) == 3
    assert sch.check()


def windows() -> Operator:
    """Two sums over windows that begin at i, of 4 and of 6 elements."""
    x, w = te.placeholder((9,), "float32", name="x"), te.placeholder((3,), "float32", name="w")
    j, k = column(4, "j"), column(6, "k")
    r = small.compute((3,), lambda i: te.sum(x[i + j] * w[i], axis=j), name="r")
    o = small.compute((3,), lambda i: te.sum(x[i + k] * w[i], axis=k), name="o")
    return custom("windows", [x, w], [r, o])


def test_a_part_of_an_index_takes_all_values():
    """Below the shared row, k is what j is, but for its last two values."""
    sch = nl.Schedule(windows())
    sch.fuse_under("o", "r.i")
    with pytest.raises(ScheduleError, match=r"block 'o' cannot be fused under r\.j: no tensor that it shares"):
        sch.fuse_under("o", "r.j")
    assert sch.check()


def test_a_reduction_is_not_fused_under_a_loop_that_it_does_not_run_along():
    """It would be added up once per iteration."""
    x, z = te.placeholder((4, 6), "float32", name="x"), te.placeholder((4, 5), "float32", name="z")
    j, k = column(6, "j"), column(5, "k")
    r = small.compute((4,), lambda i: te.sum(x[i, j], axis=j), name="r")
    sch = nl.Schedule(custom("two", [x, z], [r, small.compute((4,), lambda i: te.sum(z[i, k], axis=k), name="o")]))
    sch.split("r.j", (None, 2))
    with pytest.raises(ScheduleError, match=r"block 'o' cannot be fused under r\.j0: no tensor that it shares"):
        sch.fuse_under("o", "r.j0")


def test_a_read_beside_what_the_loop_has_written_is_refused():
    """o[i, j] reads c[i, j + 1], which the iteration after this one writes."""
    x = te.placeholder((4, 6), "float32", name="x")
    c = small.compute((4, 6), lambda i, j: x[i, j] * 2.0, name="c")
    sch = nl.Schedule(custom("beside", [x], [small.compute((4, 5), lambda i, j: c[i, j] + c[i, j + 1], name="o")]))
    with pytest.raises(ScheduleError, match=r"would read c\[i, j \+ 1\], but only .* is written by then"):
        sch.fuse_under("o", "c.i")
    assert sch.check()
