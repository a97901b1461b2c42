"""Tiling expressions: the published ones of a GEMM chain, and how loops go to the grid."""

from __future__ import annotations

from math import factorial

import pytest

from neptune_lab.autotune.expressions import (
    Chain,
    Computation,
    Operand,
    Tiling,
    bind,
    deep_tilings,
    flat_tilings,
    gemm_chain,
    tilings,
)
from neptune_lab.errors import TuneError

GEMMS = gemm_chain(64, 64, 64, 64)


def three_gemms() -> Chain:
    """(A B) D F: one product more, and two loops of its own that it folds and keeps."""
    first = Computation(Operand("C", ("m", "n")), (Operand("A", ("m", "k")), Operand("B", ("k", "n"))))
    second = Computation(Operand("E", ("m", "h")), (Operand("C", ("m", "n")), Operand("D", ("n", "h"))))
    third = Computation(Operand("G", ("m", "p")), (Operand("E", ("m", "h")), Operand("F", ("h", "p"))))
    return Chain(tuple((loop, 32) for loop in "mnkhp"), (first, second, third))


def test_a_gemm_chain_has_24_deep_and_2_flat_expressions():
    assert len(list(deep_tilings(GEMMS))) == 24
    assert [str(t) for t in flat_tilings(GEMMS)] == ["mn(k,h)", "nm(k,h)"]
    assert len(set(tilings(GEMMS))) == 26


def test_loops_of_a_longer_chain():
    chain = three_gemms()
    assert len(list(deep_tilings(chain))) == factorial(5)
    # m, n and h are shared; k belongs to the first product alone, p to the last.
    assert chain.shared == ("m", "n", "h")
    assert len(list(flat_tilings(chain))) == factorial(3)
    assert chain.parallel == ("m", "p")
    assert chain.intermediates == {"C", "E"}


def test_without_two_loops_of_their_own_there_is_no_flat_expression():
    product = Chain(GEMMS.extents[:3], GEMMS.computations[:1])
    assert list(flat_tilings(product)) == []


@pytest.mark.parametrize(
    ("text", "grid", "block"),
    [
        ("mhnk", "mh", "nk"),  # the paper's two examples of one sub-tiling expression
        ("mnkh", "mh", "nk"),
        ("nmkh", "mh", "nk"),
        ("mhkn", "mh", "kn"),
        ("mnhk", "m", "nhk"),
        ("hkmn", "hm", "kn"),
    ],
)
def test_spatial_loops_go_to_the_grid(text, grid, block):
    bound, left = bind(GEMMS, Tiling(tuple(text)))
    assert ("".join(bound), str(left)) == (grid, block)


def test_a_loop_in_a_sequence_stays_in_the_block():
    bound, left = bind(GEMMS, Tiling(("n", "m"), (("k",), ("h",))))
    assert bound == ("m",)
    assert str(left) == "n(k,h)"


def test_taking_out_nothing_gives_the_same_object():
    tiling = Tiling(("m", "n"), (("k",), ("h",)))
    assert tiling.without("x") is tiling
    assert str(tiling.without("h")) == "mnk"


def test_longer_names_stand_apart():
    assert str(Tiling(("row", "column"))) == "row column"


def test_a_loop_without_extent_is_refused():
    with pytest.raises(TuneError, match="C runs along loop 'k', whose extent is not given; given are m, n"):
        Chain((("m", 4), ("n", 4)), GEMMS.computations[:1])
