"""Names of the user never collide with names that the compiler makes, and stay as the user wrote them."""

from __future__ import annotations

import keyword
import random
from typing import Any

import by_name
import pytest
import small_operators as small
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.operators import Operator, custom

# What users write; what steps, emitters and the algebra make; what Python, Triton and SymPy mean.
NAMES = [
    *("b_", "i_0", "n_1", "j", "j0", "j1", "js", "i", "i0", "i1", "e0", "k1", "v_i", "ax0", "i_fused", "j_init"),
    *("s_max_local", "blockIdx", "_start", "_local", "_init", "tmp", "tl", "torch", "pid", "block", "self", "loop"),
    *("triton", "kernel", "offsets", "mask", "max", "exp", "x", "t", "r", "r_before", "q_now", "range", "program"),
    *("Symbol", "E", "I", "S", "N", "pi", "gamma", "num_warps", "INTERPRETED", "é", "ñ_1", "lambda", "for", "None"),
]


def stage(shape: tuple[int, ...], body: Any, name: str, axes: list[str]) -> Any:
    """A stage whose loops are called `axes`; a keyword cannot be one, so it gets another."""
    names = [f"{axis}_" if keyword.iskeyword(axis) else axis for axis in axes]
    made = eval(f"lambda {', '.join(names)}: body({', '.join(names)})", {"body": body})
    return small.compute(shape, made, name=name)


def softmax(names: list[str]) -> Operator:
    """A softmax without its division: three stages, four loops and an input, called `names`."""
    row, column, first, second, top, shifted, total, x = names
    data = te.placeholder((3, 10), "float32", name=x)
    a, b = te.reduce_axis((0, 10), name=first), te.reduce_axis((0, 10), name=second)
    r = stage((3,), lambda i: te.max(data[i, a], axis=a), top, [row])
    e = stage((3, 10), lambda i, j: te.exp(data[i, j] - r[i]), shifted, [row, column])
    s = stage((3,), lambda i: te.sum(e[i, b], axis=b), total, [row])
    return custom("named", [data], [s])


def draw(seed: int) -> list[str]:
    """Distinct names; those of tensors are no keywords, which `custom` refuses."""
    rng = random.Random(seed)
    loops = rng.sample(NAMES, 4)
    tensors = [name for name in NAMES if not keyword.iskeyword(name)]
    return [*loops, *rng.sample(tensors, 4)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(4, 8))])
def test_any_names_compile(seed, template):
    options: dict[str, Any] = {"block_kv": 4, **({"splits": 2} if template == "split_k_update" else {})}
    kernel = by_name.compile(softmax(draw(seed)), template, **options)
    assert kernel.relative_error() < 1e-5


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(8))
def test_any_names_are_scheduled_by_the_names_that_were_given(seed):
    names = draw(seed)
    sch = nl.Schedule(softmax(names))
    _, _, first, _, top, _, total, _ = names
    assert sch.loops(top)[1] == f"{top}.{first}"
    outer, inner = sch.split(f"{top}.{first}", (None, 4))
    assert sch.loops(top)[1:] == (outer, inner)
    sch.rolling_update(total, outer)
    assert sch.check()
    assert nl.Schedule.replay(sch.operator, sch.to_json()).program == sch.program


def matrix_of(rows: str, columns: str) -> nl.Schedule:
    x = small.matrix("x", 4, 6)
    return nl.Schedule(custom("named", [x], [stage((4, 6), lambda i, j: x[i, j] * 2.0, "o", [rows, columns])]))


def test_new_loops_of_the_names_that_the_user_gave_get_other_names():
    sch = matrix_of("j0", "j")
    assert sch.split("o.j", (None, 2)) == ("o.j0_2", "o.j1")
    assert sch.fuse("o", "j0_2", "j1", name="j") == "o.j"
    assert sch.loops("o") == ("o.j0", "o.j")
    assert sch.check()


def test_new_names_may_be_those_of_other_new_loops():
    """TVM calls them j0 and j1 itself, in the other order."""
    sch = matrix_of("i", "j")
    sch.split("o.j", (None, 2), names=("j1", "j0"))
    assert sch.loops("o") == ("o.i", "o.j1", "o.j0")
    assert sch.check()


def test_a_name_that_is_taken_is_refused():
    sch = matrix_of("i", "j")
    with pytest.raises(ScheduleError, match="not free"):
        sch.split("o.j", (None, 2), names=("i", "k"))
    sch.split("o.j", (None, 2))
    with pytest.raises(ScheduleError, match="'i' is not free"):
        sch.fuse("o", "j0", "j1", name="i")


def test_a_split_does_not_capture_a_loop_inside():
    """Another block inside the loop has a loop of the name that the split would choose."""
    x = small.matrix("x", 4, 6)
    a = stage((4, 6), lambda i, j: x[i, j] * 2.0, "a", ["i", "i1"])
    o = stage((4, 6), lambda i, j: a[i, j] + 1.0, "o", ["i", "i0"])
    sch = nl.Schedule(custom("named", [x], [o]))
    sch.reverse_compute_at("o", "a.i")
    sch.split("a.i", (None, 2))
    assert sch.check()


def test_loops_called_like_arguments():
    sch = matrix_of("block", "self")
    sch.tile("o", block=2, self=3)
    assert sch.loops("o") == ("o.block0", "o.self0", "o.block1", "o.self1")
    assert sch.check()


def test_a_decomposed_start_value_beside_a_stage_of_its_name():
    x = small.matrix("x", 3, 5)
    j, k = te.reduce_axis((0, 5), name="j"), te.reduce_axis((0, 5), name="k")
    start = stage((3,), lambda i: te.max(x[i, j], axis=j), "s_start", ["i"])
    s = stage((3,), lambda i: te.sum(te.exp(x[i, k] - start[i]), axis=k), "s", ["i"])
    sch = nl.Schedule(custom("named", [x], [s]))
    assert sch.decompose_reduction("s", "s.k") == "s_start2"
    assert sch.check()
