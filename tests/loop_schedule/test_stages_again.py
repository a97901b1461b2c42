"""share_stage and inline_map: one stage for two that compute the same, and maps of inputs that are no stages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from loop_schedule.random_products import random_twice
from loop_schedule.test_normalisations import check_promise, check_seeds, rewrites

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.parser import from_text
from neptune_lab.loop_ir.printer import to_text
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule import PRIMITIVES


def definition(
    *,
    first: str = "x[i, j] * 0.5",
    second: str = "x[i, k] * 0.5",
    dtype: str = "float32",
    fold: str = "max(n[i], {})",
    start: str = "-inf",
    columns: int = 8,
    out: str = "s[i, j] - n[i]",
    outputs: str = "out",
) -> Program:
    stored = f"{dtype}({first})" if dtype != "float32" else first
    read = "float32(s[i, k])" if dtype != "float32" else "s[i, k]"
    kinds = {name: "output" if name in outputs.split(", ") else "global" for name in ("n", "out")}
    return from_text(f"""program twice(x) -> {outputs}
  input x float32[4, 8]
  {kinds["out"]} out float32[4, 8]
  global s {dtype}[4, 8]
  global m float32[4]
  {kinds["n"]} n float32[4]

for i, j in grid(4, 8):
    block s(i, j):
        s[i, j] = {stored}
for i, k in grid(4, 8):
    block m(i, reduce k):
        init m[i] = -inf
        m[i] = max(m[i], {read})
for i, k in grid(4, {columns}):
    block n(i, reduce k):
        init n[i] = {start}
        n[i] = {fold.format(second)}
for i, j in grid(4, 8):
    block out(i, j):
        out[i, j] = {out.replace("s[i, j]", "float32(s[i, j])") if dtype != "float32" else out} + m[i]
""")


def applied(name: str, program: Program, block: str) -> Program:
    return PRIMITIVES[name].apply(program, block=block).program


def test_two_spellings_of_a_maximum_are_one_stage(golden):
    program = definition()
    shared = applied("share_stage", program, "n")
    check_promise(program, shared)
    assert [b.name for b in tree.blocks(shared)] == ["s", "m", "out"]
    golden("shared_stage.txt", to_text(shared))


DIFFERENT = {
    "another factor": {"second": "x[i, k] * 0.25"},
    "the other zero": {"first": "x[i, j] * 0.0", "second": "x[i, k] * -0.0"},
    "a rounded value": {"dtype": "float16"},
    "another reducer": {"fold": "min(n[i], {})", "start": "inf"},
    "a part of the row": {"columns": 4},
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_stages_that_differ_stay(case: str):
    with pytest.raises(ScheduleError, match="no earlier stage computes the same as 'n'"):
        applied("share_stage", definition(**DIFFERENT[case]), "n")


def test_a_result_stays():
    program = definition(outputs="n, out")
    with pytest.raises(ScheduleError, match="is a result of the program"):
        applied("share_stage", program, "n")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_map_is_computed_where_it_is_read(dtype: str):
    """In the stage's dtype: a value that it rounds stays rounded."""
    program = definition(dtype=dtype, first="x[i, j] * 0.3", second="x[i, k] * 0.7")
    inlined = applied("inline_map", program, "s")
    assert [b.name for b in tree.blocks(inlined)] == ["m", "n", "out"]
    check_promise(program, inlined)


def test_what_is_no_map_of_inputs_stays():
    program = definition()
    for block, said in (("m", "folds values"), ("out", "is a result of the program")):
        with pytest.raises(ScheduleError, match=said):
            applied("inline_map", program, block)


def test_a_product_does_not_compute_a_map_again():
    program = from_text("""program product(x, w) -> out
  input x float32[4, 8]
  input w float32[8, 3]
  output out float32[4, 3]
  global s float32[4, 8]

for i, j in grid(4, 8):
    block s(i, j):
        s[i, j] = x[i, j] * 0.5
for i, c, j in grid(4, 3, 8):
    block out(i, c, reduce j):
        init out[i, c] = 0.0
        out[i, c] += s[i, j] * w[j, c]
""")
    with pytest.raises(ScheduleError, match="would compute elements of 's' more than once: it has 96 iterations"):
        applied("inline_map", program, "s")


def chain(stages: int) -> Program:
    """Each stage reads the one before twice: written out, the last one has 2^stages terms."""
    names = ["x", *(f"s{n}" for n in range(stages))]
    maps = [
        f"for i, j in grid(4, 8):\n    block {own}(i, j):\n        {own}[i, j] = {read}[i, j] * {read}[i, j] + 0.5\n"
        for read, own in pairwise(names)
    ]
    buffers = "".join(f"  global {own} float32[4, 8]\n" for own in names[1:])
    last = names[-1]
    return from_text(
        f"program chain(x) -> out\n  input x float32[4, 8]\n  output out float32[4]\n{buffers}\n{''.join(maps)}"
        "for i, k in grid(4, 8):\n    block out(i, reduce k):\n        init out[i] = 0.0\n"
        f"        out[i] += exp({last}[i, k]) * {last}[i, k]\n"
    )


@pytest.mark.parametrize("stages", [12, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_long_chain_stays_small(stages: int):
    program = chain(stages)
    made = rewrites(program)
    assert made[-1][0] == "inline_map"
    assert sum(len(list(walk(b.body.value))) for b in tree.blocks(made[-1][1])) < 200 + 10 * stages
    check_promise(program, made[-1][1])


@pytest.mark.nightly
def test_random_stages_keep_the_promise():
    steps = check_seeds(range(60), random_twice)
    assert {name: steps.get(name, 0) >= 5 for name in ("share_stage", "inline_map")} == {
        "share_stage": True,
        "inline_map": True,
    }


@pytest.mark.nightly
def test_many_random_stages_keep_the_promise():
    assert check_seeds(range(1000, 2000), random_twice)
