"""What the kernel of both nests may not store in place of others: programs changed in one place are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.joint.pairs import after_pairs, copied, pairs_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from tests.gluon.pairs import both_nests, changed, nests, one_sample, stores_pairs

COPY, PAIRS = "attention_general_backward_d_bias_sum", "d_score_bfloat16"
ALWAYS = ir.Literal(value=True, dtype="bool")


def copying(program: ir.Program) -> ir.Kernel:
    """The kernel that reads pairs."""
    return next(kernel for kernel in program.kernels if kernel.name == COPY)


def beside(program: ir.Program, change: Callable[[ir.Store], ir.Store]) -> ir.Program:
    """The program with another kernel at its end, made of the one that reads pairs."""
    body = tuple(change(stmt) for stmt in copying(program).body if isinstance(stmt, ir.Store))
    return replace(program, kernels=(*program.kernels, replace(copying(program), name="beside", body=body)))


def through_16_bits(expr: ir.TileExpr) -> ir.TileExpr:
    is_wide = isinstance(expr, ir.Cast) and expr.dtype == "float32"
    return replace(expr, arg=ir.Cast(expr.arg, "float16")) if is_wide else expr


def elsewhere(store: ir.Store) -> ir.Store:
    return replace(store, target=replace(store.target, tensor=f"{store.target.tensor}_2"))


def zero(store: ir.Store) -> ir.Store:
    return replace(store, value=ir.Literal(0.0, "float32"))


NO_COPIES: dict[str, Callable[[ir.Program], ir.Program]] = {
    "through another dtype": lambda p: changed(COPY, lambda s: replace(s, value=rewrite(s.value, through_16_bits)), p),
    "of some elements": lambda p: changed(COPY, lambda s: replace(s, mask=ALWAYS), p),
    "that others read too": lambda p: beside(p, elsewhere),
    "that others write too": lambda p: beside(p, zero),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("change", NO_COPIES)
def test_only_a_copy_of_all_pairs_alone_is_stored_in_their_place(change: str):
    program = one_sample().htile
    found = pairs_of(program)
    assert found is not None
    assert copied(program, found) is not None
    assert copied(NO_COPIES[change](program), found) is None


@pytest.mark.nightly
def test_what_reads_what_reads_pairs_comes_after_both_nests():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None

    def later(store: ir.Store) -> ir.Store:
        return replace(elsewhere(store), value=ir.Access("d_bias", store.target.index))

    assert [k.name for k in after_pairs(beside(program, later), found)] == [COPY, "beside"]


def test_pairs_that_are_stored_under_a_condition_are_left():
    program = changed(nests()[0], lambda s: replace(s, mask=ALWAYS) if stores_pairs(s) else s)
    assert pairs_of(program) is None


def test_programs_for_all_sizes_store_no_pairs():
    program = both_nests().htile
    assert pairs_of(replace(program, sizes=(ir.Size("n", "q", 2),))) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: replace(t, shape=(*t.shape[:-1], t.shape[-1] + 8)), "has other pairs"),
        (lambda t: replace(t, strides=(1, 1, 1, 1)), "is not contiguous"),
    ],
    ids=["another size", "another layout"],
)
def test_pairs_have_the_place_of_the_sum(change: Callable[[ir.Tensor], ir.Tensor], reason: str):
    program = both_nests().htile
    tensors = tuple(change(t) if t.name == PAIRS else t for t in program.tensors)
    with pytest.raises(UnsupportedKernel, match=reason):
        joint_of(replace(program, tensors=tensors))
