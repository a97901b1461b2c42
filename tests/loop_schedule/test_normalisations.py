"""Normalisations: the rewritten definition keeps the promise of docs/concepts/numbers.md, and refuses where it would
not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loop_schedule.random_products import random_product

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.parser import from_text
from neptune_lab.loop_ir.printer import to_text
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule import PRIMITIVES, Schedule
from neptune_lab.loop_schedule.definition.refusal import FloatsDiffer
from neptune_lab.operators import softmax
from neptune_lab.pipeline.normalise import ORDER
from neptune_lab.pipeline.validate.compare import difference, expectations, may_remove
from neptune_lab.pipeline.validate.data import data_sets
from neptune_lab.pipeline.validate.reference import evaluate

# Magnitudes of the rows of inputs; a float16 has what is nearest to them.
_SCALES = (1.0, 1e-30, 1e-6, 1e4, 1e18, 1e30, 3e38)


def inputs_of(program: Program, seed: int) -> list[dict[str, np.ndarray]]:
    """Ordinary and special inputs, and rows of all magnitudes: each row of each input has one of its own."""
    rng = np.random.default_rng(seed)
    sets = [arrays for _, arrays in data_sets(program, {}, 6)]
    for _ in range(4):
        arrays = {}
        for name, ordinary in sets[0].items():
            scale = rng.choice(_SCALES, ordinary.shape[:1]).reshape(-1, *[1] * (ordinary.ndim - 1))
            limit = 6e4 if ordinary.dtype == np.float16 else 3e38
            arrays[name] = np.clip(rng.standard_normal(ordinary.shape) * scale, -limit, limit).astype(ordinary.dtype)
        sets.append(arrays)
    return sets


def check_promise(definition: Program, rewritten: Program, seed: int = 0) -> None:
    """Evaluates both in their dtypes: a number stays one, close by, and an infinity or NaN one of them."""
    verify(rewritten)
    assert rewritten.params == definition.params
    for name, wanted, arrays in _wanted(definition, seed):
        found = evaluate(rewritten, arrays)
        wrong = difference(wanted, {n: found[n] for n in definition.outputs}, removes=may_remove(definition, arrays))
        assert wrong is None, f"set {name}: {wrong}\n{to_text(rewritten)}"


def _wanted(definition: Program, seed: int):
    sets = inputs_of(definition, seed)
    with np.errstate(all="ignore"):
        return list(zip(range(len(sets)), expectations(definition, sets), sets, strict=True))


def rewrites(program: Program) -> list[tuple[str, Program]]:
    """The programs that normalisations make of a definition, one step after the other."""
    made: list[tuple[str, Program]] = []
    for name in ORDER:
        waiting = [b.name for b in tree.blocks(program)]
        while waiting:
            try:
                outcome = PRIMITIVES[name].apply(program, block=waiting.pop(0))
            except ScheduleError:
                continue
            program = outcome.program
            made.append((name, program))
            waiting += outcome.made
    return made


def check_seeds(seeds: range, draw: Callable[[int], Program] = random_product) -> dict[str, int]:
    """How often each normalisation applied to definitions of these seeds, all of which keep the promise."""
    steps: dict[str, int] = {}
    for seed in seeds:
        program = draw(seed)
        for step, new in rewrites(program):
            steps[step] = steps.get(step, 0) + 1
            with np.errstate(all="ignore"):
                try:
                    check_promise(program, new, seed)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}, {step}: {error}\n{to_text(program)}") from error
    return steps


def test_random_products_keep_the_promise():
    steps = check_seeds(range(40))
    products = [name for name in ORDER if name not in ("share_stage", "split_entropy")]
    assert {name: steps.get(name, 0) >= 5 for name in products} == dict.fromkeys(products, True)


@pytest.mark.nightly
def test_many_random_products_keep_the_promise():
    assert check_seeds(range(1000, 2000))


def product(
    weights: str, *, dtype: str = "float16", values: str = "float16", part: int = 64, top: str = "m[i]"
) -> Program:
    """p @ v for p[i, j] over x[8, 64], its maximum m of the first `part` columns, its exponentials e relative to `top`
    and their sum r; s[i] is an input."""
    used = [n for n in "xs" if n == "x" or "{s}" in weights + top]
    kinds = {"x": f"{dtype}[8, 64]", "s": f"{dtype}[8]"}
    inputs = "\n".join(f"  input {n} {kinds[n]}" for n in used)
    read = "float32({})" if dtype != "float32" else "{}"
    x = read.format("x[i, {}]")
    weights, top = (text.format(x=x.format("j"), s=read.format("s[i]")) for text in (weights, top))
    v = "float32(v[j, c])" if values != "float32" else "v[j, c]"
    return from_text(f"""program product({", ".join(used)}, v) -> out
{inputs}
  input v {values}[64, 4]
  output out float32[8, 4]
  global m float32[8]
  global e float32[8, 64]
  global r float32[8]
  global p float32[8, 64]

for i, k in grid(8, {part}):
    block m(i, reduce k):
        init m[i] = -inf
        m[i] = max(m[i], {x.format("k")})
for i, j in grid(8, 64):
    block e(i, j):
        e[i, j] = exp({x.format("j")} - {top})
for i, k in grid(8, {part}):
    block r(i, reduce k):
        init r[i] = 0.0
        r[i] += e[i, k]
for i, j in grid(8, 64):
    block p(i, j):
        p[i, j] = {weights}
for i, c, j in grid(8, 4, 64):
    block out(i, c, reduce j):
        init out[i, c] = 0.0
        out[i, c] += p[i, j] * {v}
""")


def test_a_division_per_row_moves_behind_the_product(golden):
    program = product("e[i, j] / r[i]")
    moved = PRIMITIVES["move_scale"].apply(program, block="out")
    golden("move_scale.txt", to_text(moved.program))
    assert moved.made == ("out_unscaled",)
    assert dict(moved.sources) == {"out_unscaled": "out"}
    assert [phase.key for phase in moved.phases] == ["move_scale"]
    check_promise(program, moved.program)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "x / s overflows behind the sum": ({"weights": "{x} / {s}"}, "its values have no bound"),
    "a sum of a part may be tiny": ({"weights": "e[i, j] / r[i]", "part": 32}, "its values have no bound"),
    "a sum without the sink's exponential": (
        {"weights": "e[i, j] / r[i]", "top": "max(m[i], {s})"},
        "its values have no bound",
    ),
    "a factor above 1": (
        {"weights": "e[i, j] / r[i] * 2.0", "values": "float32"},
        "its values may reach 2, and 64 products with v",
    ),
    "small values underflow": (
        {"weights": "e[i, j] * 4.0 / max(r[i], 0.001)"},
        "the scale may be above 1, and products without it underflow",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_floats_do_not_allow_is_refused(case: str):
    arguments, match = REFUSALS[case]
    with pytest.raises(FloatsDiffer, match=match):
        PRIMITIVES["move_scale"].apply(product(**arguments), block="out")


def test_a_sum_with_the_sinks_exponential_is_at_least_1():
    program = product("e[i, j] / (r[i] + exp({s} - max(m[i], {s})))", top="max(m[i], {s})", values="float32")
    moved = PRIMITIVES["move_scale"].apply(program, block="out").program
    check_promise(program, moved)


def test_a_difference_of_two_becomes_two_products(golden):
    program = product("e[i, j] / r[i] - 0.5 * e[i, j]")
    split = PRIMITIVES["distribute"].apply(program, block="out")
    golden("distribute.txt", to_text(split.program))
    assert split.made == ("out_left", "out_right")
    assert dict(split.sources) == {"p_left": "p", "out_left": "out", "p_right": "p", "out_right": "out"}
    check_promise(program, split.program)


DISTRIBUTIONS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "exact terms may cancel": ({"weights": "{x} - {s}"}, "if its terms cancel, two products lose digits"),
    "a term without a bound": ({"weights": "e[i, j] - {x} / {s}"}, "its terms may reach inf"),
    "terms above 1": ({"weights": "e[i, j] + 2.0 * e[i, j]", "values": "float32"}, "its terms may reach 2"),
}


@pytest.mark.parametrize("case", DISTRIBUTIONS_REFUSED)
def test_what_loses_digits_is_not_distributed(case: str):
    arguments, match = DISTRIBUTIONS_REFUSED[case]
    with pytest.raises(FloatsDiffer, match=match):
        PRIMITIVES["distribute"].apply(product(**arguments), block="out")


def concatenation(*, first: bool = False, read: str = "j", folded: str = "e[i, j]") -> Program:
    """A softmax over a row of 6 with one more element, its last or first, of which an output has the row's part."""
    parts = ("float32(s[i])", "x[i, j - 1]") if first else ("x[i, j]", "float32(s[i])")
    return from_text(f"""program cat(x, s) -> out
  input x float32[4, 6]
  input s float16[4]
  output out float32[4, 6]
  global c float32[4, 7]
  global m float32[4]
  global e float32[4, 7]
  global r float32[4]

for i, j in grid(4, 7):
    block c(i, j):
        c[i, j] = where(j < {1 if first else 6}, {parts[0]}, {parts[1]})
for i, j in grid(4, 7):
    block m(i, reduce j):
        init m[i] = -inf
        m[i] = max(m[i], c[i, j])
for i, j in grid(4, 7):
    block e(i, j):
        e[i, j] = exp(c[i, j] - m[i])
for i, j in grid(4, 7):
    block r(i, reduce j):
        init r[i] = 0.0
        r[i] += {folded}
for i, j in grid(4, 6):
    block out(i, j):
        out[i, j] = e[i, {read}] / r[i]
""")


@pytest.mark.parametrize("first", [False, True])
def test_an_element_is_taken_out_of_its_row(first: bool, golden):
    program = concatenation(first=first, read="j + 1" if first else "j")
    split = PRIMITIVES["split_concatenation"].apply(program, block="c")
    golden(f"split_concatenation_{'first' if first else 'last'}.txt", to_text(split.program))
    assert split.made == ("c_row",)
    assert dict(split.sources) == {"c_row": "c", "m_row": "m", "e_row": "e", "r_row": "r"}
    check_promise(program, split.program)


@pytest.mark.parametrize("first", [False, True])
def test_where_the_element_is_in_the_row_counts(first: bool):
    """A weight by position, and a read of the element alone."""
    program = concatenation(first=first, read="0", folded="e[i, j] * float32(j)")
    check_promise(program, PRIMITIVES["split_concatenation"].apply(program, block="c").program)


def test_what_reads_the_row_with_the_element_is_no_split():
    with pytest.raises(ScheduleError, match=r"stage 'out' reads e\[i, j \+ 1\], of the row and the element"):
        PRIMITIVES["split_concatenation"].apply(concatenation(read="j + 1"), block="c")
    with pytest.raises(ScheduleError, match="stage 'e' is no row with one more element at its end or start"):
        PRIMITIVES["split_concatenation"].apply(concatenation(), block="e")
    rows = from_text("""program cat(x, s) -> c
  input x float32[4, 6]
  input s float32[4]
  output c float32[4, 7]

for i, j in grid(4, 7):
    block c(i, j):
        c[i, j] = where(j < 6, x[i, j], s[i])
""")
    with pytest.raises(ScheduleError, match="the output 'c' has the row with the element"):
        PRIMITIVES["split_concatenation"].apply(rows, block="c")


def test_what_is_no_product_with_a_scale_is_refused():
    program = product("e[i, j] / r[i]")
    for block, match in (
        ("m", "stage 'm' is no sum of products in float32"),
        ("p", "stage 'p' is no sum of products"),
        ("none", "there is no block 'none'"),
    ):
        for name in ("distribute", "move_scale"):
            with pytest.raises(ScheduleError, match=match):
                PRIMITIVES[name].apply(program, block=block)
    moved = PRIMITIVES["move_scale"].apply(program, block="out").program
    with pytest.raises(ScheduleError, match="no factor of 'out_unscaled' is a sum or a difference"):
        PRIMITIVES["distribute"].apply(moved, block="out_unscaled")
    with pytest.raises(ScheduleError, match="no factor of 'out_unscaled' has a scale that is constant along j"):
        PRIMITIVES["move_scale"].apply(moved, block="out_unscaled")


@pytest.mark.parametrize("op", ["*", "+"])
def test_integers_are_no_scale_and_no_sum(op: str):
    """Integers wrap around before they become floats."""
    program = from_text(f"""program whole(x, s, v) -> out
  input x int32[4, 6]
  input s int32[4]
  input v float16[6, 3]
  output out float32[4, 3]
  global p int32[4, 6]

for i, j in grid(4, 6):
    block p(i, j):
        p[i, j] = x[i, j] {op} s[i]
for i, c, j in grid(4, 3, 6):
    block out(i, c, reduce j):
        init out[i, c] = 0.0
        out[i, c] += float32(p[i, j]) * float32(v[j, c])
""")
    for name, what in (("move_scale", "has a scale"), ("distribute", "is a sum or a difference")):
        with pytest.raises(ScheduleError, match=what):
            PRIMITIVES[name].apply(program, block="out")


def test_a_normalisation_comes_first():
    sch = Schedule(softmax.figure1(4, 8))
    sch.split("s_max.j", (None, 4))
    with pytest.raises(ScheduleError, match=r"split.* is applied already, and a normalisation rewrites the definition"):
        sch.move_scale("s_sum")
