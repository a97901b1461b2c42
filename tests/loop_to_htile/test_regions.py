"""From scalar accesses to tile accesses: regions, dimension order, dots."""

from __future__ import annotations

import pytest

from neptune_lab.errors import TileError
from neptune_lab.htile.nodes import Access, Arith, Dot, Elementwise, Int, Iota, Literal, Name, NewAxis, Permute, Slice
from neptune_lab.htile.nodes import Cast as TileCast
from neptune_lab.loop_ir.nodes import Buffer, Cast, Const, Expr, Load, Op, Program, Var, add, mul
from neptune_lab.loop_to_htile.access_regions import TileableNest, access_region, split_inner
from neptune_lab.loop_to_htile.dimension_order import positions, reconcile_dimension_order
from neptune_lab.loop_to_htile.patterns import Converter, fold, match_dot

I0, J0 = Name("i0"), Name("j0")
ROWS, COLS = Slice(Int(0), 8, "i1"), Slice(Int(0), 4, "j1")


# -- squeeze, permute, unsqueeze (section 5.1) -----------------------------------------------------


def test_squeeze():
    """An index that no inner loop walks is a scalar: x[i0, 0:4] under j1 is one row."""
    assert reconcile_dimension_order("x", (I0, COLS), ("j1",)) == Access("x", (I0, COLS))
    assert reconcile_dimension_order("x", (I0, J0), ("i1", "j1")) == Access("x", (I0, J0))


def test_unsqueeze():
    """An axis that the access does not walk becomes a NewAxis, in its place."""
    assert reconcile_dimension_order("x", (ROWS,), ("i1", "j1")) == Access("x", (ROWS, NewAxis()))
    assert reconcile_dimension_order("x", (COLS,), ("i1", "j1")) == Access("x", (NewAxis(), COLS))
    assert reconcile_dimension_order("x", (I0, COLS), ("i1", "j1", "d")) == Access(
        "x", (I0, NewAxis(), COLS, NewAxis())
    )


def test_permute():
    """y[j, i] under (i, j) is the transposed tile."""
    assert reconcile_dimension_order("y", (COLS, ROWS), ("i1", "j1")) == Permute(Access("y", (COLS, ROWS)), (1, 0))


def test_permute_and_unsqueeze():
    found = reconcile_dimension_order("y", (COLS, ROWS), ("i1", "d", "j1"))
    assert found == Permute(Access("y", (COLS, ROWS, NewAxis())), (1, 2, 0))


def test_same_order_stays_the_access():
    assert reconcile_dimension_order("x", (ROWS, COLS), ("i1", "j1")) == Access("x", (ROWS, COLS))


def test_positions_along_an_axis():
    assert positions(I0, 8, "i1", ("i1", "j1")) == Iota((Slice(I0, 8, "i1"), NewAxis()))
    assert positions(J0, 4, "j1", ("i1", "j1")) == Iota((NewAxis(), Slice(J0, 4, "j1")))


# -- regions ---------------------------------------------------------------------------------------

NEST = TileableNest("b", {"i1": 8, "j1": 4}, {"i0": 2, "i1": 8, "j0": 3, "j1": 4})
I = add(mul(Var("i0"), 8), Var("i1"))
J = add(mul(Var("j0"), 4), Var("j1"))


def test_a_tiled_index_is_a_slice():
    assert access_region((I, J), "x[i, j]", NEST) == (
        Slice(Arith("*", I0, Int(8)), 8, "i1"),
        Slice(Arith("*", J0, Int(4)), 4, "j1"),
    )


def test_an_index_over_outer_loops_is_a_scalar():
    assert access_region((Var("i0"), Const(3), Var("j1")), "x", NEST) == (I0, Int(3), Slice(Int(0), 4, "j1"))


def test_an_offset_moves_the_slice():
    (found,) = access_region((Op("sub", (J, Const(1))),), "x[j - 1]", NEST)
    assert found == Slice(Arith("-", Arith("*", J0, Int(4)), Int(1)), 4, "j1")


def test_tiled_indices_are_divided_back():
    """(j0 * 4 + j1) // 4 is j0: which tile an element is in."""
    assert access_region((Op("floordiv", (J, Const(4))),), "x[j // 4]", NEST) == (J0,)


@pytest.mark.parametrize(
    ("indices", "match"),
    [
        ((I, I), r"block 'b': the access x\[…\] uses inner loop 'i1' twice"),
        ((Op("mul", (Var("i1"), Const(2))),), r"uses inner loop i1 in i1 \* 2, which is not one loop with step 1"),
        ((Op("mul", (Var("i1"), Var("i1"))),), r"uses inner loop i1 in i1 \* i1, which is not one loop"),
        (
            (Op("add", (Var("i1"), Var("j1"))),),
            r"uses inner loops i1, j1 in i1 \+ j1.*\n.*bind those that run in parallel to the grid",
        ),
        ((Op("sub", (Const(7), Var("i1"))),), r"uses inner loop i1 in 7 - i1"),
        ((Op("floormod", (Var("i1"), Const(3))),), r"uses inner loop i1 in i1 % 3"),
    ],
)
def test_accesses_that_are_no_tiles(indices: tuple[Expr, ...], match: str):
    with pytest.raises(TileError, match=match) as caught:
        access_region(indices, "x[…]", NEST)
    assert caught.value.node == "b"
    assert caught.value.help


def test_split_inner():
    assert split_inner(J, NEST) == (mul(Var("j0"), 4), ("j1",))
    assert split_inner(mul(Var("j1"), 2), NEST) is None


# -- reduce and dot --------------------------------------------------------------------------------

BUFFERS = (
    Buffer("a", (16, 12), "float16"),
    Buffer("b", (12, 20), "float16"),
    Buffer("bt", (20, 12), "float16"),
    Buffer("c", (16, 12), "float32", "local"),
)
PROGRAM = Program("p", ("a", "b", "bt"), (), BUFFERS, ())
DOT = TileableNest("b", {"m": 8, "n": 4, "k": 2}, {"m": 8, "n": 4, "k": 2, "k0": 6})
CONVERT = Converter(PROGRAM, DOT)
K = add(mul(Var("k0"), 2), Var("k"))
M_, N_, K_ = Slice(Int(0), 8, "m"), Slice(Int(0), 4, "n"), Slice(Arith("*", Name("k0"), Int(2)), 2, "k")
A, B = Load("a", (Var("m"), K)), Load("b", (K, Var("n")))


def wide(e: Expr) -> Expr:
    return Cast("float32", e)


def test_a_product_folded_over_k_is_a_dot():
    expected = Dot(Access("a", (M_, K_)), Access("b", (K_, N_)))
    assert match_dot(CONVERT, Op("mul", (wide(A), wide(B))), (), ("m", "n"), ("k",)) == expected
    assert match_dot(CONVERT, Op("mul", (wide(B), wide(A))), (), ("m", "n"), ("k",)) == expected


def test_a_transposed_operand_is_permuted():
    term = Op("mul", (A, Load("bt", (Var("n"), K))))
    assert match_dot(CONVERT, term, (), ("m", "n"), ("k",)) == Dot(
        Access("a", (M_, K_)), Permute(Access("bt", (N_, K_)), (1, 0))
    )


@pytest.mark.parametrize(
    ("term", "spatial", "reduced"),
    [
        (Op("add", (A, B)), ("m", "n"), ("k",)),
        (Op("mul", (A, A)), ("m", "n"), ("k",)),
        (Op("mul", (A, B)), ("m",), ("k",)),
        (Op("mul", (A, B)), ("m", "n"), ("k", "k0")),
        (Op("mul", (A, Const(2.0, "float16"))), ("m", "n"), ("k",)),
    ],
)
def test_what_is_no_dot(term: Expr, spatial: tuple[str, ...], reduced: tuple[str, ...]):
    assert match_dot(CONVERT, term, (), spatial, reduced) is None


def test_lanes_past_the_end_count_as_nothing_in_a_dot():
    """A global read gives 0 there by itself; an on-chip tile is masked."""
    mask = Op("lt", (K, Const(12)))
    found = match_dot(CONVERT, Op("mul", (Load("c", (Var("m"), K)), wide(B))), (mask,), ("m", "n"), ("k",))
    assert isinstance(found, Dot)
    assert found.b == TileCast(Access("b", (K_, N_)), "float32")
    assert isinstance(found.a, Elementwise)
    assert found.a.op == "where"
    assert found.a.args[1:] == (Access("c", (M_, K_)), Literal(0.0, "float32"))


def test_lanes_between_a_prefix_and_the_end_of_its_tensor_count_as_nothing_in_a_dot():
    """What is there may be NaN, and 0 * NaN is NaN."""
    mask = Op("lt", (K, Const(11)))
    found = match_dot(CONVERT, Op("mul", (Load("c", (Var("m"), K)), wide(B))), (mask,), ("m", "n"), ("k",))
    assert isinstance(found, Dot)
    right = TileCast(Access("b", (K_, N_)), "float32")  # as c is
    for operand, read in ((found.a, Access("c", (M_, K_))), (found.b, right)):
        assert isinstance(operand, Elementwise)
        assert (operand.op, operand.args[1]) == ("where", read)


def test_whole_tiles_past_the_end_of_a_tensor_need_no_mask():
    for limit, masked in ((6, False), (5, True)):
        mask = Op("lt", (Var("k0"), Const(limit)))
        found = match_dot(CONVERT, Op("mul", (wide(A), wide(B))), (mask,), ("m", "n"), ("k",))
        assert isinstance(found, Dot)
        assert isinstance(found.b, Elementwise) == masked


def test_lanes_past_the_end_count_as_the_identity_in_a_reduce():
    mask = Op("lt", (K, Const(11)))
    found = fold(CONVERT, "max", Load("c", (Var("m"), K)), (mask,), ("m",), ("k",), "float32")
    where = found.arg  # type: ignore[union-attr]
    assert isinstance(where, Elementwise)
    assert (where.op, where.args[2]) == ("where", Literal(float("-inf"), "float32"))
    assert found.dim == 1  # type: ignore[union-attr]
