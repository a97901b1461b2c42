"""The exercises on tiles, and what the helpers read from the compiler."""

from __future__ import annotations

import pytest
from neptune_widgets.course import tiles

CUT, BASE = "partition_masked_loops", "exponentials_to_base_two"


def test_the_order_of_t():
    assert tiles.order_of_t((1, 2, 0))
    assert tiles.order_of_t([1, 2, 0])
    for answer, why in (
        ((2, 0, 1), "the inverse permutation"),
        ((0, 1, 2), "would become"),
        ((0, 0, 1), "each of the dimensions"),
        (3, "three numbers"),
    ):
        verdict = tiles.order_of_t(answer)
        assert verdict.state == "wrong"
        assert why in verdict.text


@pytest.mark.parametrize(
    "stage",
    [
        lambda x, i, j: x[i + j, j],
        lambda x, i, j: x[i, i] + x[j, j],
        lambda x, i, j: x[2 * i, j],
        lambda x, i, j: x[i // 2, j],
        lambda x, i, j: x[31 - i, j],
    ],
)
def test_stages_that_are_no_tiles(stage):
    assert tiles.no_tile(stage)


@pytest.mark.parametrize(
    ("stage", "why"),
    [
        (lambda x, i, j: x[j, i], "this is a tile: `permute("),
        (lambda x, i, j: x[i + 1, j] * 2, "this is a tile"),
        (lambda x, i, j: x.nothing, "not a tensor expression"),
        (lambda x, i, j: x[i + j + 30, j], "runs from 30 to 92, and the axis has 64 elements"),
        (lambda x, i, j: x[i - 1, i], "runs from -1 to 30"),
        (5, "expected a function"),
    ],
)
def test_stages_that_are_tiles(stage, why: str):
    verdict = tiles.no_tile(stage)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.one_in(2)
@pytest.mark.parametrize("names", [(CUT, BASE), [BASE, CUT]])
def test_passes_to_leave_out(names):
    assert tiles.left_out(names)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((CUT,), "there is still an `exp2`"),
        (BASE, "depends on `i0`"),
        ((), "depends on `i0`"),
        ((CUT, BASE, "longest_first"), "leave 'longest_first' in"),
        (("no_such_pass",), "there is no such pass"),
    ],
)
def test_passes_not_to_leave_out(names, why: str):
    verdict = tiles.left_out(names)
    assert verdict.state == "wrong"
    assert why in verdict.text


@pytest.mark.nightly
def test_bytes_of_all_programs():
    right = 2 * (4 + 2 * 10 + 4) * 2048
    assert tiles.bytes_moved(right)
    for answer, why in {
        2 * (4 + 2 * 16 + 4) * 2048: "the mask leaves out",
        2 * (4 + 2 * 10) * 2048: "the output is stored too",
        right // 2: "half of it",
        2 * right: "float16",
        56: "number of tiles",
        2 * 4 * 4 * 2048: "every tensor once",
        5: "a different number",
    }.items():
        verdict = tiles.bytes_moved(answer)
        assert verdict.state == "wrong"
        assert why in verdict.text


@pytest.mark.parametrize("question", [tiles.order_of_t, tiles.no_tile, tiles.left_out, tiles.bytes_moved])
def test_unanswered(question):
    assert question(None).state == "open"
    assert question.hints


def test_reconciled_accesses_are_those_of_the_tile_program():
    """The helper walks the same way as the translation: what it says stands in the program."""
    from neptune_lab.htile.printer import to_text

    kernel = tiles.causal()
    text = " ".join(to_text(kernel.translated).split())
    for stage in ("score", "s_max_tile", "s_max", "s_exp", "s_sum", "acc", "out"):
        for made in tiles.reconciled(kernel.program, stage):
            assert made.tile in text
    assert tiles.inner_loops(kernel.program, "s_exp") == ("i1", "j1")
    assert tiles.outer_loops(kernel.program, "s_exp") == ("b", "h", "i0", "j0")
    with pytest.raises(KeyError):
        tiles.inner_loops(kernel.program, "nothing")
