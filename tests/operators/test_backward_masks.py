"""The mask of a softmax in its backward pass: applied to scores, and to their gradient only where that is needed."""

from __future__ import annotations

import pytest
from gradients import worst_error
from tvm import te

import neptune_lab as nl
from neptune_lab.loop_ir.nodes import Const, Load, Op, Var
from neptune_lab.operators import attention, backward, custom, training
from neptune_lab.operators.reverse_mode.masks import is_weighted, of_visible
from neptune_lab.operators.reverse_mode.part import Part
from neptune_lab.operators.reverse_mode.softmaxes import find_softmaxes
from neptune_lab.operators.reverse_mode.stages import stages_of

SIZES = {"batch": 1, "heads": 2, "seq": 12, "head_dim": 4, "dtype": "float32"}


def _softmax(lowest: float, of_products: bool = True):
    """A causal softmax whose mask puts `lowest` in place of hidden scores, which are products or given."""
    x = te.placeholder((5, 5), "float32", name="x")
    depth = te.reduce_axis((0, 5), name="d")
    dots = te.compute((5, 5), lambda i, j: te.sum(x[i, depth] * x[j, depth], axis=depth), name="dots")
    given = dots if of_products else x
    score = te.compute(
        (5, 5), lambda i, j: te.if_then_else(j <= i, given[i, j], te.const(lowest, "float32")), name="score"
    )
    columns = [te.reduce_axis((0, 5), name=name) for name in "jk"]
    largest = te.compute((5,), lambda i: te.max(score[i, columns[0]], axis=columns[0]), name="largest")
    e = te.compute((5, 5), lambda i, j: te.exp(score[i, j] - largest[i]), name="e")
    total = te.compute((5,), lambda i: te.sum(e[i, columns[1]], axis=columns[1]), name="total")
    return custom("masked", [x], [te.compute((5, 5), lambda i, j: e[i, j] / total[i], name="out")])


def _masked_gradients(op) -> list[str]:
    """The stages of gradients that a condition is applied to."""
    return [line for line in backward(op).source.splitlines() if line.startswith("d_") and "where(" in line]


@pytest.mark.parametrize("name", ["causal", "softcap", "window", "prefix"])
def test_the_mask_is_applied_once(name):
    extra = {"window": {"window": 4}, "prefix": {"prefix": 3}}.get(name, {})
    op = getattr(attention, name)(**SIZES, **extra)
    assert not _masked_gradients(op)
    assert worst_error(op, training(op)) < 1e-6


def test_rows_that_see_no_key_have_no_gradient_of_their_own():
    op = attention.general(1, 2, 9, 13, 4, mask_mod=lambda b, h, q, kv: kv < q - 2, dtype="float32", empty_rows="zero")
    assert not _masked_gradients(op)
    assert worst_error(op, training(op)) < 1e-6
    assert nl.compile(backward(op)).relative_error() < 2e-5


@pytest.mark.parametrize(
    ("lowest", "of_products", "again"), [(float("-inf"), True, 0), (-2.0, True, 1), (float("-inf"), False, 1)]
)
def test_only_scores_of_minus_infinity_have_no_weight(lowest, of_products, again):
    op = _softmax(lowest, of_products)
    assert len(_masked_gradients(op)) == again
    assert worst_error(op, training(op)) < 1e-6


@pytest.mark.nightly
def test_hidden_tiles_are_skipped_without_the_second_mask():
    kernel = nl.compile(backward(attention.causal(**{**SIZES, "seq": 64})), block_q=16, block_kv=16)
    assert "range(j0+1, 4)" in kernel.htile_text
    assert not [line for line in kernel.htile_text.splitlines() if "range(" in line and line.endswith("range(4):")]


def test_a_cotangent_with_another_part_is_no_multiple_of_the_weights():
    op = _softmax(float("-inf"))
    stages = stages_of(op.program)
    softmaxes = find_softmaxes(stages, op.program.inputs)
    score = next(stage for stage in stages if stage.name == "score")
    own = Part(score.element, (), reader=softmaxes[0].weights)
    assert is_weighted(score, [own, own], softmaxes)
    assert not is_weighted(score, [own, Part(score.element, (), reader="elsewhere")], softmaxes)
    assert not is_weighted(score, [own, Part(score.element, ())], softmaxes)
    assert not is_weighted(stages[0] if stages[0] is not score else stages[1], [own], softmaxes)


def test_masks_in_masks():
    i, j, one, zero, lowest = Var("i"), Var("j"), Const(1.0), Const(0.0), Const(float("-inf"))
    x, a, b = Load("x", (i, j)), Op("le", (j, i)), Op("lt", (i, Const(3)))

    def choice(condition, value, other):
        return Op("select", (condition, value, other))

    assert of_visible(choice(a, choice(b, x, lowest), lowest), choice(a, choice(b, one, zero), zero)) == one
    inner = choice(b, one, zero)
    assert of_visible(choice(a, choice(b, x, zero), lowest), choice(a, inner, zero)) == inner
    other = choice(b, one, zero)
    assert of_visible(choice(a, x, lowest), other) == other
