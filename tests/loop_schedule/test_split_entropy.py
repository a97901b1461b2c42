"""split_entropy: sums of p * log(p), with p a softmax, in which only the maximum is left to repair."""

from __future__ import annotations

import pytest
from loop_schedule.random_products import random_entropy
from loop_schedule.test_normalisations import check_promise, check_seeds

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.parser import from_text
from neptune_lab.loop_ir.printer import to_text
from neptune_lab.loop_schedule import PRIMITIVES
from neptune_lab.loop_schedule.definition.refusal import FloatsDiffer


def entropy(
    *,
    top: str = "m[i]",
    folded: str = "e[i, k]",
    columns: int = 8,
    log: str = "x[i, j] - m[i] - log(r[i])",
    product: str = "exp(l[i, j]) * l[i, j]",
) -> Program:
    return from_text(f"""program entropy(x, s) -> out
  input x float32[4, 8]
  input s float32[4]
  output out float32[4]
  global m float32[4]
  global top float32[4]
  global e float32[4, 8]
  global r float32[4]
  global l float32[4, 8]

for i, k in grid(4, 8):
    block m(i, reduce k):
        init m[i] = -inf
        m[i] = max(m[i], x[i, k])
for i in range(4):
    block top(i):
        top[i] = max(m[i], s[i])
for i, j in grid(4, 8):
    block e(i, j):
        e[i, j] = exp(x[i, j] - {top})
for i, k in grid(4, {columns}):
    block r(i, reduce k):
        init r[i] = 0.0
        r[i] += {folded}
for i, j in grid(4, 8):
    block l(i, j):
        l[i, j] = {log}
for i, j in grid(4, 8):
    block out(i, reduce j):
        init out[i] = 0.0
        out[i] += {product}
""")


@pytest.mark.parametrize("product", ["exp(l[i, j]) * l[i, j]", "l[i, j] * exp(l[i, j])", "e[i, j] / r[i] * l[i, j]"])
def test_each_spelling_becomes_the_same(product: str, golden):
    program = entropy(product=product)
    split = PRIMITIVES["split_entropy"].apply(program, block="out")
    golden("split_entropy.txt", to_text(split.program))
    assert split.made == ("out_unscaled",)
    assert dict(split.sources) == {"out_unscaled": "out", "out_unscaled_above": "out"}
    check_promise(program, split.program)


SCALED = {
    "-exp(l[i, j]) * l[i, j]": "log(r[i]) - out_unscaled[i] / r[i]",
    "exp(l[i, j]) * -l[i, j]": "log(r[i]) - out_unscaled[i] / r[i]",
    "(exp(l[i, j]) * -1.5) * (l[i, j] * -0.5)": "0.75 * (out_unscaled[i] / r[i] - log(r[i]))",
}


@pytest.mark.parametrize("product", SCALED)
def test_factors_may_have_a_sign_and_a_constant(product: str):
    program = entropy(product=product)
    split = PRIMITIVES["split_entropy"].apply(program, block="out")
    assert f"out[i] = {SCALED[product]}\n" in to_text(split.program)
    check_promise(program, split.program)


def test_a_logarithm_times_more_than_1_may_be_infinite():
    with pytest.raises(ScheduleError, match="are not probabilities of a softmax times their logarithms"):
        PRIMITIVES["split_entropy"].apply(entropy(product="exp(l[i, j]) * (l[i, j] * 1.5)"), block="out")


@pytest.mark.nightly
def test_random_sums_keep_the_promise():
    steps = check_seeds(range(60), random_entropy)
    assert steps["split_entropy"] >= 15


@pytest.mark.nightly
def test_many_random_sums_keep_the_promise():
    assert check_seeds(range(1000, 2000), random_entropy)


def test_a_logarithm_of_what_may_be_0_is_left():
    """exp(-200) is 0 in float32, and 0 * log(0) is NaN."""
    program = entropy(product="e[i, j] / r[i] * log(e[i, j] / r[i])")
    with pytest.raises(FloatsDiffer, match="rounded to 0") as caught:
        PRIMITIVES["split_entropy"].apply(program, block="out")
    assert "log_softmax" in str(caught.value.help)


@pytest.mark.parametrize(
    "other",
    [
        {"columns": 4},
        {"folded": "e[i, k] * 2.0"},
        {"folded": "e[i, k] * e[i, k]"},
        {"top": "top[i]"},
    ],
    ids=str,
)
def test_another_sum_than_that_of_the_exponentials(other: dict[str, str]):
    with pytest.raises(
        ScheduleError, match=r"'r' is not the sum of exp\(x\[i, j\] - m\[i\]\) over the elements of 'out'"
    ):
        PRIMITIVES["split_entropy"].apply(entropy(**other), block="out")  # type: ignore[arg-type]


def test_exponentials_that_may_all_be_small():
    program = entropy(top="top[i]", log="x[i, j] - top[i] - log(r[i])")
    with pytest.raises(FloatsDiffer, match=r"their sum may be below 1"):
        PRIMITIVES["split_entropy"].apply(program, block="out")


def test_what_is_no_sum_of_probabilities_and_logarithms():
    for product in ("l[i, j] * l[i, j]", "exp(l[i, j]) * x[i, j]", "exp(x[i, j] - m[i]) * l[i, j]"):
        with pytest.raises(ScheduleError, match="are not probabilities of a softmax times their logarithms"):
            PRIMITIVES["split_entropy"].apply(entropy(product=product), block="out")
    with pytest.raises(ScheduleError, match="stage 'm' is no sum of products"):
        PRIMITIVES["split_entropy"].apply(entropy(), block="m")
