"""What passes take for granted of numbers: how large they are, and which infinities they can be."""

from __future__ import annotations

import math

from neptune_lab.htile.nodes import (
    Access,
    Elementwise,
    Gather,
    GridAxis,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    Program,
    Scalar,
    Slice,
    Tensor,
)
from neptune_lab.htile_passes.magnitudes import Magnitudes
from neptune_lab.htile_passes.partition_masked_loops.simplify import INF, infinities


def function(name: str, *args: Access | Elementwise | Literal | Scalar) -> Elementwise:
    return Elementwise(name, args, "float32")


def test_a_magnitude_of_what_is_computed_from_the_grid_is_not_guessed():
    """A part of unknown size is no infinity, whose negative has the exponential 0."""
    of = Magnitudes(Program("p", (), (), (), (Kernel("k", "k", (GridAxis("h", 4),), ()),)))
    assert of(function("exp2", function("neg", Scalar(Name("h"))))) == 1.0
    assert of(function("exp2", function("neg", function("sqrt", Scalar(Name("h")))))) == 1.0
    unknown = function("div", Literal(1.0, "float32"), Scalar(Name("h")))  # 1 / 0
    assert of(function("exp2", function("neg", unknown))) == math.inf


def test_a_gathered_element_is_as_large_as_its_dtype_allows():
    q = Tensor("q", (8, 16), "float16", "input")
    of = Magnitudes(Program("p", (q,), ("q",), (), ()))
    rows = Iota((Slice(Int(0), 8, "i"),))
    assert of(Gather("q", (rows, Scalar(Int(0))))) == of(Access("q", (Slice(Int(0), 8, "i"), Int(0)))) == 65504.0


def test_division_by_a_negative_number_turns_an_infinity_round():
    x = Access("x", (Slice(Int(0), 16, "j"),))
    for divisor, expected in ((-2.0, INF), (2.0, -INF)):
        assert infinities(function("div", x, Literal(divisor, "float32")), {"x": frozenset({-INF})}) == {expected}
