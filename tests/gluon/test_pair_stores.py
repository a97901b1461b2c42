"""Which tiles of pairs the kernel of both nests stores: programs of tiles that are changed in one place are left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.joint.pairs import after_pairs, copied, pairs_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from tests.gluon.joint_kernels import IN_ORDER, backward
from tests.gluon.pairs import as_chosen, both_nests, changed, nests, one_sample, stores_pairs, with_bias


def other_values(store: ir.Store) -> ir.Store:
    if not stores_pairs(store):
        return store
    assert isinstance(store.value, ir.Access)
    return replace(store, value=replace(store.value, tensor="d_score"))


def other_place(store: ir.Store) -> ir.Store:
    if not stores_pairs(store):
        return store
    (*outer, rows, columns) = store.target.index
    return replace(store, target=replace(store.target, index=(*outer, columns, rows)))


def other_head(store: ir.Store) -> ir.Store:
    if not stores_pairs(store):
        return store
    return replace(store, target=replace(store.target, index=(ir.Int(0), *store.target.index[1:])))


@pytest.mark.nightly
@pytest.mark.parametrize("tile", ["d_score_chip", "weights", "d_weights_in_bfloat16"])
def test_pairs_of_32_bits_are_those_that_the_left_operand_rounds(tile: str):
    program = as_chosen(with_bias(256, 256, 64, dtype=torch.float32)).htile
    found = pairs_of(program)
    assert found is not None
    assert found.tensor == "d_score"
    assert isinstance(found.statement.value, ir.Access)
    other = replace(found.statement, value=replace(found.statement.value, tensor=tile))
    program = changed(found.maker, lambda s: other if s.target.tensor == "d_score" else s, program)
    if tile == "d_score_chip":  # (as it is)
        stored = joint_of(program).pairs
        assert stored is not None
        assert stored.unrounded == "d_score_2"
    else:
        with pytest.raises(UnsupportedKernel, match="is not the left operand"):
            joint_of(program)


@pytest.mark.parametrize("change", [other_values, other_place, other_head], ids=lambda f: f.__name__)
def test_only_the_left_operand_of_the_sum_is_stored_by_the_kernel_of_both(change: Callable[[ir.Store], ir.Store]):
    program = changed(nests()[0], change)
    assert program != both_nests().htile
    with pytest.raises(UnsupportedKernel, match="is not the left operand"):
        joint_of(program)


def test_a_tensor_of_pairs_that_is_stored_twice_is_left():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None
    first, *_ = program.kernels
    twice = replace(first, body=(*first.body, found.statement))
    assert pairs_of(replace(program, kernels=(twice, *program.kernels[1:]))) is None


def test_what_reads_pairs_comes_after_both_nests():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None
    assert [k.name for k in after_pairs(program, found)] == ["attention_general_backward_d_bias_sum"]
    assert [k.name for k in joined(program, in_order=True).program.kernels][
        -1
    ] == "attention_general_backward_d_bias_sum"


def twice(expr: ir.TileExpr) -> ir.TileExpr:
    is_wide = isinstance(expr, ir.Cast) and expr.dtype == "float32"
    return ir.Elementwise("add", (expr, expr), "float32") if is_wide else expr


def first_row(expr: ir.TileExpr) -> ir.TileExpr:
    if not isinstance(expr, ir.Access) or expr.tensor != "d_score_bfloat16":
        return expr
    (*outer, _, columns) = expr.index
    return replace(expr, index=(*outer, ir.Int(0), columns))


@pytest.mark.parametrize(
    ("change", "copies"),
    [(None, True), (twice, False), (first_row, False)],
    ids=["as it is", "twice", "the first row"],
)
def test_a_tensor_is_stored_in_place_of_another_that_only_copies_it(change: Any, copies: bool):
    program = one_sample().htile
    if change is not None:
        name = "attention_general_backward_d_bias_sum"
        made = changed(name, lambda s: replace(s, value=rewrite(s.value, change)), program)
        assert made != program
        program = made
    found = pairs_of(program)
    assert found is not None
    assert (copied(program, found) is not None) == copies


@pytest.mark.parametrize("columns", [192, 384])
def test_a_tensor_is_not_stored_in_place_of_one_of_another_size(columns: int):
    """Elements of the copy would be stored where other rows of it are, or past its end."""
    program = one_sample().htile
    found = pairs_of(program)
    assert found is not None
    resized = [replace(t, shape=(*t.shape[:-1], columns)) if t.name == "d_bias" else t for t in program.tensors]
    assert copied(replace(program, tensors=tuple(resized)), found) is None


def test_a_sum_over_samples_is_no_copy():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None
    assert copied(program, found) is None


def test_a_transposed_tile_has_the_elements_of_the_other_nest():
    """The nest over queries reads the bias of keys and queries, where the other one reads that of queries and keys."""

    def as_it_is(expr: ir.TileExpr) -> ir.TileExpr:
        return expr.arg if isinstance(expr, ir.Permute) and "bias" in str(expr) else expr

    def visit(store: ir.Store) -> ir.Store:
        return store if isinstance(store.value, ir.Dot) else replace(store, value=rewrite(store.value, as_it_is))

    program = changed(nests()[1], visit)
    assert program != both_nests().htile
    with pytest.raises(UnsupportedKernel, match="has the columns of others as rows"):
        joint_of(program)


@pytest.mark.nightly
def test_only_conditions_that_hold_for_all_pairs_are_left_out():
    """Of the terms of a tile, "before the end" is left out, and "before the row before the end" is not."""
    program = backward(with_bias(320, 256, 64), IN_ORDER, None).htile
    joint = joint_of(program)

    def shorter(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, value=319) if expr == ir.Literal(320, "int32") else expr

    made = changed(joint.other.name, lambda s: replace(s, value=rewrite(s.value, shorter)), program)
    assert made != program
    with pytest.raises(UnsupportedKernel, match="do not compute the same tiles"):
        joint_of(made)
